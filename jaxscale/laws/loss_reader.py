"""Reader of tables of losses: columns, headings and units of other tools, count of parameters; shipped tables.

Headings and cells such as `Params (B)`, `tokens_m`, `7B`, `perplexity` and `bits_per_byte` are understood; absent
tokens follow from compute and parameters, or from steps and batch.
"""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxscale.base.documents import data_path, read_toml
from jaxscale.base.errors import InputError, one_like
from jaxscale.laws.loss import FLOP_PER_PARAM_TOKEN
from jaxscale.tables.categorical import Categorical, together
from jaxscale.tables.cells import Column, Names, Parsed, parse_cells
from jaxscale.tables.reader import AnyTable, read
from jaxscale.tables.schema import AbstractSchema, CellProblems, Check, ColumnHeading, Header, Headings, joined_words
from jaxscale.tables.table import AbstractTable

_TABLE = read_toml(data_path("loss_columns.toml"))

LOSS_COLUMNS = tuple(Column(name, **entry) for name, entry in _TABLE["columns"].items())

LOSS_COLUMN = {column.name: column for column in LOSS_COLUMNS}

COUNTS = ("total", "non-embedding", "active")
"""Conventions of counting parameters; laws of different counts differ, since embeddings are a third of small models."""


def count_of(kind: str) -> str:
    """Convention of counting parameters, from a cell of `n_params_kind`.

    `active, non-embedding` is a separate count, as is a total without the input embedding.
    """
    text = kind.strip().lower()
    if text.startswith("total less input embedding"):
        return "total less input embedding"
    parts = [count for count in COUNTS if text.split("(")[0].find(count) >= 0]
    return ", ".join(sorted(parts)) if parts else text


PERPLEXITY, BITS_PER_BYTE = "perplexity", "bits per byte"

OTHER_LOSSES = {heading: unit for unit, headings in _TABLE["losses"].items() for heading in headings}
"""Headings of losses in a further unit, and the unit."""

QUALIFIERS = frozenset(_TABLE["beside"]["words"])
"""Words beside a loss in the headings of tools, for the split, the step and the mean."""

LOSSES = ("loss", "loss_ppl", "loss_perplexity", "cross_entropy", "ce_loss", "nll", *OTHER_LOSSES)
"""Headings of losses without qualifiers."""

FACTORS: Mapping[str, float] = _TABLE["factors"]
"""Factors at the end of a heading or a cell [1]."""

COUNTED = ("n_params", "n_params_alt", "tokens", "epochs_unique_tokens", "batch_tokens", "flops")
"""Columns whose headings and cells may have a factor."""

ALSO = {"n_params": "or flops and tokens", "tokens": "or flops, or steps and batch_tokens"}
ALSO["loss"] = "or perplexity, bits_per_byte"
"""Alternatives to a required column."""

HEADINGS = Headings(
    {heading: column for column, headings in _TABLE["names"].items() for heading in headings},
    dict.fromkeys(COUNTED, FACTORS),
)
"""Further names of columns; a factor may end a heading, as in `tokens_m`."""

_CELL = re.compile(r"([0-9.,]+(?:e[+-]?[0-9]+)?)\s*([a-z]+)", re.IGNORECASE)


def meaning(heading: str) -> ColumnHeading:
    """Column, factor and unit of a heading, in any case, with any blanks and brackets."""
    text = heading.strip().lower()
    if text in LOSS_COLUMN:
        return ColumnHeading(text)
    words = joined_words(text)
    # Tools name the split, the step and the mean beside a loss: `eval/loss`, `lm loss validation`, `Final val loss`.
    bare = "_".join(dict.fromkeys(word for word in words.split("_") if word not in QUALIFIERS))
    words = bare.removeprefix("loss_") if bare in LOSSES else words
    if words in OTHER_LOSSES:
        return ColumnHeading("loss", unit=OTHER_LOSSES[words])
    found = HEADINGS.meaning(words, LOSS_COLUMN)
    return found if found.column in LOSS_COLUMN else ColumnHeading(heading.strip())


def meanings(header: Sequence[str]) -> list[ColumnHeading]:
    """Column, factor and unit of each heading; an alias of a column that is present is ignored."""
    stated = {heading.strip().lower() for heading in header}
    found = [meaning(heading) for heading in header]
    return [
        ColumnHeading(heading.strip()) if one.column in stated and heading.strip().lower() != one.column else one
        for heading, one in zip(header, found, strict=True)
    ]


def plain_cell(cell: str) -> str:
    """Text of a cell with `7B`, `300 M` or `1.4T` converted to a number; other cells are unchanged."""
    found = _CELL.fullmatch(cell)
    if found is None or found[2].lower() not in FACTORS or found[1].replace(",", "").count(".") > 1:
        return cell
    return f"{float(found[1].replace(',', '')) * FACTORS[found[2].lower()]:.12g}"


def in_nats(values: Float[np.ndarray, " row"], unit: str) -> Float[np.ndarray, " row"]:
    """Losses converted from a unit to nats [row]."""
    if unit == PERPLEXITY:
        return np.log(values)
    # Bits to nats.
    return values * np.log(2.0) if unit else values


def derived(table: AbstractTable) -> tuple[dict[str, np.ndarray], list[str]]:
    """Parameters and tokens computed for empty cells, from compute, steps and batch.

    Returns:
        Changed columns by name, nan for a cell without a value; notes on the computed cells.
    """
    params, tokens, flop, steps, batch = map(table.numbers, ("n_params", "tokens", "flops", "steps", "batch_tokens"))
    changes, notes = {}, []
    # What overflows is no number of tokens, and fills no cell.
    with np.errstate(over="ignore"):
        sources = (
            ("tokens", tokens, steps * batch, "steps times batch_tokens"),
            ("tokens", tokens, flop / (FLOP_PER_PARAM_TOKEN * params), "flops / (6 n_params)"),
            ("n_params", params, flop / (FLOP_PER_PARAM_TOKEN * tokens), "flops / (6 tokens)"),
        )
    for name, stated, other, told in sources:
        # Stated cells, and cells filled by an earlier rule, stay.
        filled = ~np.isfinite(changes.get(name, stated)) & np.isfinite(other)
        if filled.any():
            changes[name] = np.where(filled, other, changes.get(name, stated))
            notes.append(f"{name} of {int(filled.sum())} rows are {told}: no cell states them")
    return changes, notes


def unit_notes(unit: str) -> list[str]:
    """Note on the conversion of the loss unit; empty without a conversion."""
    if not unit:
        return []
    told = "the logarithms of the perplexities" if unit == PERPLEXITY else f"{unit} times ln 2"
    per = "byte" if unit == BITS_PER_BYTE else "token"
    return [f"losses are {told}: nat per {per}, as are predictions"]


@dataclass(frozen=True, repr=False)
class Losses(AbstractTable):
    """Table of losses of training runs, by column; see `AbstractTable`.

    Attributes:
        label: name of the table, if different from the file name.
        count: convention of counting `n_params`; empty if not stated.
        family: source, excluded from the prior of a fit; empty for a table of the user.
        headings: headings of the file, by column.
        notes: conversions and computed columns, a line each.
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
        """Numbers of a column; nan for an absent column or an empty cell [row]."""
        return self.numbers(column)

    @property
    def n_params(self) -> Float[np.ndarray, " row"]:
        """Number of parameters, in the convention of the table [1], [row]."""
        return self.number("n_params")

    @property
    def tokens(self) -> Float[np.ndarray, " row"]:
        """Number of training tokens [token], [row]."""
        return self.number("tokens")

    @property
    def loss(self) -> Float[np.ndarray, " row"]:
        """Measured loss [nat per token], [row]."""
        return self.number("loss")

    @property
    def log_flop(self) -> Float[np.ndarray, " row"]:
        """Log of the training compute 6 N D in flop, with N in the convention of the table [row]."""
        return np.log(FLOP_PER_PARAM_TOKEN) + np.log(self.n_params) + np.log(self.tokens)

    def select(self, rows: Bool[np.ndarray, " row"] | Int[np.ndarray, " some"]) -> "Losses":
        """Selected rows of the table, by mask or index."""
        return self.take(rows)


class LossSchema(AbstractSchema[Losses]):
    """Schema of tables of losses.

    Args:
        needs_loss: whether a row without a loss is refused.
    """

    columns = LOSS_COLUMN

    def __init__(self, needs_loss: bool = True):
        """Args: needs_loss: whether a row without a loss is refused."""
        super().__init__(Names())
        self.required = [
            name for name, column in LOSS_COLUMN.items() if column.required and (needs_loss or name != "loss")
        ]

    def headings(self, header: Sequence[str]) -> list[ColumnHeading]:
        """Column, factor and unit of each heading, including headings of other tools."""
        return meanings(header)

    def lacks(self, header: Header) -> str:
        """Error text for absent required columns; empty if all are present or computable."""
        columns = header.columns
        missing = [name for name in self.required if name not in columns and not _told_otherwise(name, columns)]
        if not missing:
            return ""
        told = ", ".join(f"{name} ({ALSO[name]})" if name in ALSO else name for name in self.required)
        there = ", ".join(map(str.strip, header.written))
        names = ", ".join(map(repr, missing))
        runs = "a table of training runs is read by `jaxscale predict`"
        other = self.told_elsewhere(header, ("names",), ("n_gpus", "global_batch_size_seqs", "step_time_s"), runs)
        return f"missing {names} among {there}; expected at least the columns {told}{other}"

    def values(self, heading: ColumnHeading, texts: Sequence[str]) -> Parsed:
        """Numbers of a column with the factor of the heading applied, and losses in nats."""
        column = LOSS_COLUMN[heading.column]
        if column.kind == "text":
            return super().values(heading, texts)
        plain = [plain_cell(text) for text in texts] if column.name in COUNTED else texts
        # The maximum holds after factor and unit.
        parsed = parse_cells(replace(column, maximum=np.inf), plain, self.names)
        numbers = in_nats(np.asarray(parsed.values, dtype=float) * heading.factor, heading.unit)
        problems = dict(parsed.problems)
        for place in np.flatnonzero(numbers > column.maximum).tolist():
            problems[place] = f"out of range; expected at most {column.maximum:g}"
        for place in np.flatnonzero(numbers <= 0.0).tolist() if heading.unit else []:
            problems[place] = f"not the {heading.unit} of a loss above 0"
        return Parsed([None if np.isnan(value) else value for value in numbers.tolist()], problems)

    def table(self, table: AbstractTable, header: Header, problems: CellProblems) -> Losses:
        """Table with absent parameters and tokens computed from other columns."""
        del problems
        losses = Losses.of(table, headings=dict(zip(header.columns, map(str.strip, header.written), strict=True)))
        changes, notes = derived(losses)
        units = [note for heading in header.meant for note in unit_notes(heading.unit)]
        return replace(_with_numbers(losses, changes), notes=(*units, *notes))

    def checks(self, table: Losses) -> Iterator[Check]:
        """Checks that no required cell is empty."""
        for name in self.required:
            cells = table.cells.get(name) or Categorical.constant("", len(table))
            is_empty = np.isnan(table.numbers(name)) & cells.matches(lambda cell: not cell.strip())
            yield Check(is_empty, lambda row, name=name: f"column {name!r} = '': empty; expected a number > 0")


def _with_numbers(table: Losses, columns: Mapping[str, np.ndarray]) -> Losses:
    """Table with replaced numbers in given columns; nan gives an empty cell."""
    coded = {name: _coded(numbers) for name, numbers in columns.items()}
    return replace(table, values={**table.values, **coded})


def _coded(numbers: np.ndarray) -> Categorical:
    return Categorical.of_numbers(numbers).map(lambda value: None if np.isnan(value) else value)


def _told_otherwise(name: str, columns: Sequence[str]) -> bool:
    """Whether further columns determine an absent column."""
    given = set(columns)
    if name == "tokens":
        return {"flops", "n_params"} <= given or {"steps", "batch_tokens"} <= given
    return name == "n_params" and {"flops", "tokens"} <= given


def read_losses(
    table: AnyTable, *, count: str = "", where: Mapping[str, str] | None = None, needs_loss: bool = True
) -> Losses:
    """Read and check a table of losses.

    Args:
        table: a CSV file, or any table accepted by `js.read_runs`, with at least the columns `n_params`, `tokens` and
            `loss`; headings and units of other tools are understood, and compute may replace parameters or tokens.
        count: wanted count of parameters, `total`, `non-embedding` or `active`, from `n_params` or `n_params_alt`.
        where: cells of the rows to keep, by column.
        needs_loss: whether a row without a loss is refused.

    Raises:
        InputError: an unreadable file, an absent column, an invalid cell, no row left, or rows with different
            counts of parameters.
    """
    return with_count(read(table, LossSchema(needs_loss), where=where), count)


def with_count(table: Losses, count: str = "") -> Losses:
    """Table with parameters in a single convention of counting.

    Args:
        count: wanted convention; empty for the convention of `n_params`.

    Raises:
        InputError: rows with different conventions, or without the wanted convention.
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
        columns: numbers by column name, of equal length.
        name: name of the table, for messages.
        texts: texts by column name, of equal length.

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
    """Rows of least loss for each combination of cells, for example over learning rates for each size and tokens.

    Args:
        columns: columns that define a combination.

    Raises:
        InputError: a column is absent.
    """
    for column in columns:
        if column not in table.cells and column not in table.values:
            raise InputError(f"{table.name}: column {column!r} is not there; {one_like(column, table.cells)}")
    # `map` merges equal values, which a column may list twice.
    of_row = together(*(table.categories(column).map(lambda value: value) for column in columns)).codes
    # Least loss first within each combination.
    order = np.lexsort((table.loss, of_row))
    first = np.concatenate([[True], of_row[order][1:] != of_row[order][:-1]])
    return table.take(np.sort(order[first]))


@functools.cache
def _tables() -> dict[str, Any]:
    return read_toml(data_path("losses/tables.toml"))["tables"]


def loss_table_names(judged: bool = True) -> tuple[str, ...]:
    """Names of the available tables of losses; tables without permission to ship exist only in the repository.

    Args:
        judged: whether to omit tables with runs of a second table, or with a necessary term.
    """
    return tuple(
        name
        for name, entry in _tables().items()
        if data_path(entry["file"]).is_file() and (entry.get("judged", True) or not judged)
    )


def loss_table(name: str, count: str = "") -> Losses:
    """Shipped table of losses by name: `js.laws.loss_table("gemstones")`.

    Args:
        name: name in `data/losses/tables.toml`.
        count: convention of counting parameters; by default as in the source.

    Raises:
        InputError: an unknown name, or a table that is not shipped.
    """
    if name not in _tables():
        raise InputError(f"table of losses {name!r} is unknown; {one_like(name, loss_table_names(False))}")
    entry = _tables()[name]
    path = data_path(entry["file"])
    if not path.is_file():
        raise InputError(
            f"table of losses {name!r} may not be shipped; expected one of {', '.join(loss_table_names())}"
        )
    table = read_losses(path, count=count, where=entry.get("where"))
    for column, value in entry.get("leave_out", {}).items():
        table = table.where(**{column: lambda cell, value=value: cell != value})
    if entry.get("plain"):
        table = table.select(table.text("notes") == "")
    if entry.get("one_epoch"):
        table = table.select(table.number("epochs_unique_tokens") >= 0.999 * table.tokens)
    if "best_of" in entry:
        table = best_of(table, entry["best_of"])
    if "drop_largest" in entry:
        table = table.select(np.sort(np.argsort(table.loss, kind="stable")[: -entry["drop_largest"]]))
    return replace(table, label=name, family=entry["family"])


def train_below_params(name: str) -> float | None:
    """Largest size of the runs used by the authors of a table to predict larger runs, if stated [1]."""
    return _tables()[name].get("train_below_params")
