"""Tables of losses: read, checked, in a common unit and a common count of parameters."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxscale.base.errors import InputError, one_like
from jaxscale.laws.loss import FLOP_PER_PARAM_TOKEN
from jaxscale.laws.losses.loss_columns import LOSS_COLUMN, count_of
from jaxscale.laws.losses.loss_headings import ALSO, COUNTED, derived, in_nats, meanings, plain_cell, unit_notes
from jaxscale.tables.categorical import Categorical, together
from jaxscale.tables.cells import Parsed, parse_cells
from jaxscale.tables.names import Names
from jaxscale.tables.reader import read
from jaxscale.tables.schema import AbstractSchema, CellProblems, Check, ColumnHeading, Header
from jaxscale.tables.table import AbstractTable
from jaxscale.tables.tables_in_memory import AnyTable


@dataclass(frozen=True, repr=False)
class Losses(AbstractTable):
    """A table of losses, column by column; see `AbstractTable`.

    Attributes:
        label: name of the table, empty for the name of the file.
        count: count of parameters in `n_params`, empty if not stated.
        family: source whose laws the prior must leave out, empty for a table of the user.
        headings: headings as written, by column.
        notes: a line for each converted or computed column.
    """

    label: str = ""
    count: str = ""
    family: str = ""
    headings: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    shown = ("run", "n_params", "tokens", "loss")

    @property
    def name(self) -> str:
        """Name of the table, for messages."""
        return self.label or str(self.path)

    def number(self, column: str) -> Float[np.ndarray, " row"]:
        """Numbers of a column, nan for an empty cell or an absent column [row]."""
        return self.numbers(column)

    @property
    def n_params(self) -> Float[np.ndarray, " row"]:
        """Parameters, in the count of the table [1], [row]."""
        return self.number("n_params")

    @property
    def tokens(self) -> Float[np.ndarray, " row"]:
        """Tokens seen [token], [row]."""
        return self.number("tokens")

    @property
    def loss(self) -> Float[np.ndarray, " row"]:
        """Measured loss [nat per token], [row]."""
        return self.number("loss")

    @property
    def log_flop(self) -> Float[np.ndarray, " row"]:
        """Logarithm of the training flop 6 N D, in the count of the table [row]."""
        return np.log(FLOP_PER_PARAM_TOKEN) + np.log(self.n_params) + np.log(self.tokens)

    def select(self, rows: Bool[np.ndarray, " row"] | Int[np.ndarray, " some"]) -> "Losses":
        """Rows of the table by mask or position."""
        return self.take(rows)


class LossSchema(AbstractSchema[Losses]):
    """Tables of losses.

    Args:
        needs_loss: whether a row without a loss is refused.
    """

    columns = LOSS_COLUMN

    def __init__(self, needs_loss: bool = True):
        """Take the required columns."""
        super().__init__(Names())
        self.required = [
            name for name, column in LOSS_COLUMN.items() if column.required and (needs_loss or name != "loss")
        ]

    def headings(self, header: Sequence[str]) -> list[ColumnHeading]:
        """Meanings of headings, synonyms and units of tools included."""
        return meanings(header)

    def lacks(self, header: Header) -> str:
        """Absent required columns that do not follow from the present columns."""
        columns = header.columns
        missing = [name for name in self.required if name not in columns and not _told_otherwise(name, columns)]
        told = ", ".join(f"{name} ({ALSO[name]})" if name in ALSO else name for name in self.required)
        there = ", ".join(map(str.strip, header.written))
        names = ", ".join(map(repr, missing))
        return names and f"missing {names} among {there}; expected at least the columns {told}"

    def values(self, heading: ColumnHeading, texts: Sequence[str]) -> Parsed:
        """Values of cells, multiplied by the factor of the heading, losses in nats."""
        column = LOSS_COLUMN[heading.column]
        if column.kind == "text":
            return super().values(heading, texts)
        plain = [plain_cell(text) for text in texts] if column.name in COUNTED else texts
        parsed = parse_cells(replace(column, maximum=np.inf), plain, self.names)
        numbers = in_nats(np.asarray(parsed.values, dtype=float) * heading.factor, heading.unit)
        problems = dict(parsed.problems)
        for place in np.flatnonzero(numbers > column.maximum).tolist():
            problems[place] = f"out of range; expected at most {column.maximum:g}"
        for place in np.flatnonzero(numbers <= 0.0).tolist() if heading.unit else []:
            problems[place] = f"not the {heading.unit} of a loss above 0"
        return Parsed([None if np.isnan(value) else value for value in numbers.tolist()], problems)

    def table(self, table: AbstractTable, header: Header, problems: CellProblems) -> Losses:
        """Losses with parameters and tokens computed from compute, steps and batch in rows without them."""
        del problems
        losses = Losses.of(table, headings=dict(zip(header.columns, map(str.strip, header.written), strict=True)))
        changes, notes = derived(losses)
        units = [note for heading in header.meant for note in unit_notes(heading.unit)]
        return replace(_with_numbers(losses, changes), notes=(*units, *notes))

    def checks(self, table: Losses) -> Iterator[Check]:
        """Required cells are filled."""
        for name in self.required:
            cells = table.cells.get(name) or Categorical.constant("", len(table))
            is_empty = np.isnan(table.numbers(name)) & cells.matches(lambda cell: not cell.strip())
            yield Check(is_empty, lambda row, name=name: f"column {name!r} = '': empty; expected a number > 0")


def _with_numbers(table: Losses, columns: Mapping[str, np.ndarray]) -> Losses:
    """The table with given columns replaced, nan for an empty cell."""
    coded = {name: _coded(numbers) for name, numbers in columns.items()}
    return replace(table, values={**table.values, **coded})


def _coded(numbers: np.ndarray) -> Categorical:
    return Categorical.of_numbers(numbers).map(lambda value: None if np.isnan(value) else value)


def _told_otherwise(name: str, columns: Sequence[str]) -> bool:
    """Whether an absent column follows from the present columns."""
    given = set(columns)
    if name == "tokens":
        return {"flops", "n_params"} <= given or {"steps", "batch_tokens"} <= given
    return name == "n_params" and {"flops", "tokens"} <= given


def read_losses(
    path: AnyTable, *, count: str = "", where: Mapping[str, str] | None = None, needs_loss: bool = True
) -> Losses:
    """Table of losses from a file or from memory, checked.

    Args:
        path: a CSV file, or a table in memory as for `read_runs`, with at least the columns `n_params`, `tokens` and
            `loss`; headings and units of tools are understood, and compute may replace parameters or tokens.
        count: total, non-embedding or active: takes `n_params` or `n_params_alt`, by the count stated in each row.
        where: wanted cells by column; rows with different cells are left out.
        needs_loss: whether a row without a loss is refused.

    Raises:
        InputError: an unreadable file, an absent required column, a bad cell, no row left, or mixed counts of
            parameters.
    """
    return with_count(read(path, LossSchema(needs_loss), where=where), count)


def with_count(table: Losses, count: str = "") -> Losses:
    """The table with parameters in a single count.

    Args:
        table: as read.
        count: wanted count, empty for `n_params` unchanged.

    Raises:
        InputError: mixed counts, or rows without the wanted count.
    """
    kinds = np.asarray([count_of(kind) for kind in table.text("n_params_kind")], dtype=object)
    others = np.asarray([count_of(kind) for kind in table.text("n_params_alt_kind")], dtype=object)
    if count:
        return _recounted(table, count, kinds, others)
    named = sorted(set(kinds))
    if len(named) > 1:
        told = ", ".join(repr(kind or "not stated") for kind in named)
        raise InputError(
            f"{table.name}: n_params_kind mixes counts of parameters ({told}); expected one, such as by --count total"
        )
    return replace(table, count=named[0])


def _recounted(table: Losses, count: str, kinds: np.ndarray, others: np.ndarray) -> Losses:
    wanted = count_of(count)
    own, other = kinds == wanted, (others == wanted) & np.isfinite(table.number("n_params_alt"))
    neither = np.flatnonzero(~own & ~other)
    if len(neither):
        stated = sorted({kind for kind in (*kinds, *others) if kind}) or ["none"]
        raise InputError(
            f"{table.name}:{table.lines[neither[0]]}: no count of parameters is {count!r}; stated: {', '.join(stated)}"
        )
    n_params = np.where(own, table.n_params, table.number("n_params_alt"))
    return replace(_with_numbers(table, {"n_params": n_params}), count=wanted)


def losses_of(columns: Mapping[str, Any], name: str = "table", **texts: Sequence[str]) -> Losses:
    """Table of losses from arrays: `losses_of({"n_params": N, "tokens": D, "loss": L})`.

    Args:
        columns: numbers by column, equally long.
        name: name of the table, for messages.
        texts: words by column.

    Raises:
        InputError: an absent required column, columns of unequal length, or a number not positive and finite.
    """
    values = {column: np.asarray(numbers, float) for column, numbers in columns.items()}
    absent = [column for column in ("n_params", "tokens", "loss") if column not in values]
    if absent:
        raise InputError(f"{name}: missing {', '.join(absent)}; expected n_params, tokens and loss")
    size = len(values["loss"])
    if any(column.shape != (size,) for column in (*values.values(), *map(np.asarray, texts.values()))):
        raise InputError(f"{name}: columns of different lengths; expected {size} rows in each")
    for column in ("n_params", "tokens", "loss"):
        bad = np.flatnonzero(~(np.isfinite(values[column]) & (values[column] > 0.0)))
        if len(bad):
            raise InputError(f"{name}: {column}[{bad[0]}] = {values[column][bad[0]]:g}; expected a number > 0")
    coded = {column: _coded(numbers) for column, numbers in values.items()}
    words = {column: Categorical.of(column_texts) for column, column_texts in texts.items()}
    cells = {column: Categorical(one.codes, tuple(map(_cell, one.values))) for column, one in coded.items()}
    lines = np.arange(size) + 1
    return with_count(Losses(Path(name), (*cells, *words), lines, {**cells, **words}, {**coded, **words}))


def _cell(value: float | None) -> str:
    return "" if value is None else str(value)


def best_of(table: Losses, columns: Sequence[str]) -> Losses:
    """Row of the least loss for each combination of cells, such as the best learning rate for each size and tokens.

    Args:
        table: runs of a sweep.
        columns: columns of the combination.

    Raises:
        InputError: an absent column.
    """
    for column in columns:
        if column not in table.cells and column not in table.values:
            raise InputError(f"{table.name}: column {column!r} is not there; {one_like(column, table.cells)}")
    # A value may have several codes in a column of many distinct cells.
    of_row = together(*(table.categories(column).map(lambda value: value) for column in columns)).codes
    order = np.lexsort((table.loss, of_row))
    first = np.concatenate([[True], of_row[order][1:] != of_row[order][:-1]])
    return table.take(np.sort(order[first]))
