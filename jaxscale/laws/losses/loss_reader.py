"""Tables of losses: read, checked, and brought to one unit and one count of parameters."""

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
        label: name of the table where it is not that of its file.
        count: what `n_params` counts, empty where the table does not say.
        family: source whose own laws its prior must leave out, empty for a table of the user.
        headings: as the file writes them, by column.
        notes: what was understood or computed, one line each.
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
        """Numbers of a column, nan where it is absent or a cell is empty [row]."""
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
        """Some rows of the table, by a mask or by their numbers."""
        return self.take(rows)


class LossSchema(AbstractSchema[Losses]):
    """Tables of losses.

    Args:
        needs_loss: whether a row without a loss is refused.
    """

    columns = LOSS_COLUMN

    def __init__(self, needs_loss: bool = True):
        """Take what a row needs."""
        super().__init__(Names())
        self.required = [
            name for name, column in LOSS_COLUMN.items() if column.required and (needs_loss or name != "loss")
        ]

    def headings(self, header: Sequence[str]) -> list[ColumnHeading]:
        """What headings mean, those of other tools and in other units among them."""
        return meanings(header)

    def lacks(self, header: Header) -> str:
        """Required columns that are absent and do not follow from others."""
        columns = header.columns
        missing = [name for name in self.required if name not in columns and not _told_otherwise(name, columns)]
        told = ", ".join(f"{name} ({ALSO[name]})" if name in ALSO else name for name in self.required)
        there = ", ".join(map(str.strip, header.written))
        names = ", ".join(map(repr, missing))
        return names and f"missing {names} among {there}; expected at least the columns {told}"

    def values(self, heading: ColumnHeading, texts: Sequence[str]) -> Parsed:
        """Values of cells with the factor of their heading, losses in nats."""
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
        """Parameters and tokens of rows that do not state them follow from other columns."""
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
    """The table with other numbers in some columns, nan for an empty cell."""
    coded = {name: _coded(numbers) for name, numbers in columns.items()}
    return replace(table, values={**table.values, **coded})


def _coded(numbers: np.ndarray) -> Categorical:
    return Categorical.of_numbers(numbers).map(lambda value: None if np.isnan(value) else value)


def _told_otherwise(name: str, columns: Sequence[str]) -> bool:
    """Whether other columns tell the numbers of a column that is absent."""
    given = set(columns)
    if name == "tokens":
        return {"flops", "n_params"} <= given or {"steps", "batch_tokens"} <= given
    return name == "n_params" and {"flops", "tokens"} <= given


def read_losses(
    table: AnyTable, *, count: str = "", where: Mapping[str, str] | None = None, needs_loss: bool = True
) -> Losses:
    """Table of losses from a file, checked.

    Args:
        table: a CSV file, or whatever else `js.read_runs` takes, with at least the columns `n_params`, `tokens` and
            `loss`; other headings and units that tools write for these are understood, and compute stands for one of
            parameters and tokens.
        count: total, non-embedding or active: takes `n_params` or `n_params_alt`, whichever counts so in a row.
        where: keeps the rows whose cells are equal to these, by column.
        needs_loss: whether a row without a loss is refused.

    Raises:
        InputError: the file cannot be read, a required column is absent, a cell is bad, no row is left, or the rows
            count parameters in different ways.
    """
    return with_count(read(table, LossSchema(needs_loss), where=where), count)


def with_count(table: Losses, count: str = "") -> Losses:
    """The table with parameters in one count.

    Args:
        table: as read.
        count: wanted count, empty to take `n_params` as it is.

    Raises:
        InputError: rows count in different ways, or do not state the wanted count.
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
        columns: numbers by name of a column, equally long.
        name: of the table, for messages.
        texts: words by name of a column.

    Raises:
        InputError: a required column is absent, lengths differ, or a number is not positive and finite.
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
    """Row of the least loss of each combination of cells, such as the best learning rate of each size and tokens.

    Args:
        table: of runs.
        columns: whose cells make a combination.

    Raises:
        InputError: a column is not there.
    """
    for column in columns:
        if column not in table.cells and column not in table.values:
            raise InputError(f"{table.name}: column {column!r} is not there; {one_like(column, table.cells)}")
    # Among the values of a column, one may be there twice.
    of_row = together(*(table.categories(column).map(lambda value: value) for column in columns)).codes
    order = np.lexsort((table.loss, of_row))
    first = np.concatenate([[True], of_row[order][1:] != of_row[order][:-1]])
    return table.take(np.sort(order[first]))
