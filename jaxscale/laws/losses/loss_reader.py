"""Read a table of losses and refuse what is malformed, with file, line, column, value and what would be valid."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxscale.base.errors import InputError, one_like
from jaxscale.laws.loss import FLOP_PER_PARAM_TOKEN
from jaxscale.laws.losses.loss_columns import LOSS_COLUMN, count_of
from jaxscale.laws.losses.loss_headings import ALSO, LossHeading, derived, in_nats, meanings, plain_cells, unit_notes
from jaxscale.tables.cells import parse_cells, show
from jaxscale.tables.reader import csv_table
from jaxscale.tables.schema import check_names

MOST_LISTED = 5
"""Problems of a table that a message lists [1]."""


@dataclass(frozen=True)
class Losses:
    """A table of losses, column by column.

    Attributes:
        name: of the table, for messages.
        columns: header as in the file.
        cells: text of each cell [column, row].
        values: numbers of the known columns, nan where a cell is empty [column, row].
        texts: words of the known columns, empty where a cell is [column, row].
        lines: line of the file on which each row starts [row].
        count: what `n_params` counts, empty where the table does not say.
        family: source whose own laws its prior must leave out, empty for a table of the user.
        headings: as the file writes them, by column.
        notes: what was understood or computed, one line each.
    """

    name: str
    columns: tuple[str, ...]
    cells: Mapping[str, np.ndarray]
    values: Mapping[str, np.ndarray]
    texts: Mapping[str, np.ndarray]
    lines: Int[np.ndarray, " row"]
    count: str = ""
    family: str = ""
    headings: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        """Rows of the table [1]."""
        return len(self.lines)

    def number(self, column: str) -> Float[np.ndarray, " row"]:
        """Numbers of a column, nan where it is absent or a cell is empty [row]."""
        return self.values.get(column, np.full(len(self), np.nan))

    def text(self, column: str) -> np.ndarray:
        """Words of a column, empty where it is absent [row]."""
        return self.texts.get(column, np.full(len(self), "", dtype=object))

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

    def select(self, rows: Bool[np.ndarray, " row"] | Int[np.ndarray, " some"], name: str = "") -> "Losses":
        """Some rows of the table, by a mask or by their numbers."""

        def part(table: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            return {column: values[rows] for column, values in table.items()}

        return replace(
            self,
            name=name or self.name,
            cells=part(self.cells),
            values=part(self.values),
            texts=part(self.texts),
            lines=self.lines[rows],
        )


def read_losses(
    path: str | Path, *, count: str = "", where: Mapping[str, str] | None = None, needs_loss: bool = True
) -> Losses:
    """Table of losses from a file, checked.

    Args:
        path: a CSV file with at least the columns `n_params`, `tokens` and `loss`; other headings and units that tools
            write for these are understood, and compute stands for one of parameters and tokens.
        count: total, non-embedding or active: takes `n_params` or `n_params_alt`, whichever counts so in a row.
        where: keeps the rows whose cells are equal to these, by column.
        needs_loss: whether a row without a loss is refused.

    Raises:
        InputError: the file cannot be read, a required column is absent, a cell is bad, no row is left, or the rows
            count parameters in different ways.
    """
    path = Path(path)
    header, records = csv_table(path)
    found = meanings(header)
    columns = tuple(one.column for one in found)
    required = [name for name, column in LOSS_COLUMN.items() if column.required and (needs_loss or name != "loss")]
    _check_header(path, header, columns, required)
    rows = [(line, record) for line, record in records]
    if not rows:
        raise InputError(f"{path}: no data rows; expected one row per run below the header")
    for line, record in rows:
        if len(record) != len(columns):
            raise InputError(f"{path}:{line}: {len(record)} cells; expected {len(columns)}, as in the header")
    lines = np.asarray([line for line, _ in rows], dtype=int)
    cells = {
        name: np.asarray([record[place].strip() for _, record in rows], dtype=object)
        for place, name in enumerate(columns)
    }
    kept = np.ones(len(lines), dtype=bool)
    for name, wanted in (where or {}).items():
        kept &= _cells_of(path, cells, name) == wanted
    if not kept.any():
        told = ", ".join(f"{name} = {wanted}" for name, wanted in (where or {}).items())
        raise InputError(f"{path}: no row has {told}; expected values of these columns")
    cells, lines = {name: column[kept] for name, column in cells.items()}, lines[kept]
    values, texts, notes = _parsed(path, cells, lines, required, {one.column: one for one in found})
    headings = {one.column: heading.strip() for one, heading in zip(found, header, strict=True)}
    table = Losses(str(path), columns, cells, values, texts, lines, headings=headings, notes=tuple(notes))
    return with_count(table, count)


def _cells_of(path: Path, cells: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    if name not in cells:
        raise InputError(f"{path}: column {name!r} is not there; {one_like(name, cells)}")
    return cells[name]


def _check_header(path: Path, header: Sequence[str], columns: Sequence[str], required: Sequence[str]) -> None:
    for column in set(columns):
        named = [heading for heading, name in zip(header, columns, strict=True) if name == column]
        if len(set(named)) > 1:
            told = " and ".join(repr(heading) for heading in named)
            raise InputError(f"{path}:1: {told} both mean {column!r}; expected one of them, or {column!r} beside them")
    check_names(path, header, columns)
    missing = [name for name in required if name not in columns and not _told_otherwise(name, columns)]
    if missing:
        told = ", ".join(f"{name} ({ALSO[name]})" if name in ALSO else name for name in required)
        there = ", ".join(map(str.strip, header))
        raise InputError(
            f"{path}:1: missing {', '.join(map(repr, missing))} among {there}; expected at least the columns {told}"
        )


def _told_otherwise(name: str, columns: Sequence[str]) -> bool:
    """Whether other columns tell the numbers of a column that is absent."""
    given = set(columns)
    if name == "tokens":
        return {"flops", "n_params"} <= given or {"steps", "batch_tokens"} <= given
    return name == "n_params" and {"flops", "tokens"} <= given


def _parsed(
    path: Path,
    cells: Mapping[str, np.ndarray],
    lines: np.ndarray,
    required: Sequence[str],
    found: Mapping[str, LossHeading],
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], list[str]]:
    """Numbers and words of the known columns, and notes on what was understood."""
    values, texts, problems, notes = {}, {}, [], []
    for name, column in cells.items():
        schema = LOSS_COLUMN.get(name)
        if schema is None:
            continue
        if schema.kind == "text":
            texts[name] = column
            continue
        parsed = parse_cells(replace(schema, maximum=np.inf), list(plain_cells(name, column)), {})
        numbers = np.asarray([np.nan if value is None else float(value) for value in parsed.values])
        values[name] = in_nats(numbers * found[name].factor, found[name].unit)
        notes += unit_notes(found[name].unit)
        told = dict(parsed.problems)
        for row in np.flatnonzero(values[name] > schema.maximum).tolist():
            told[row] = f"out of range; expected at most {schema.maximum:g}"
        for row in np.flatnonzero(values[name] <= 0.0).tolist() if found[name].unit else []:
            told[row] = f"not the {found[name].unit} of a loss above 0"
        problems += [
            (lines[row], f"column {_named(name, found)} = {show(column[row])}: {text}") for row, text in told.items()
        ]
    more, computed = derived(values)
    values |= more
    for name in required:
        empty = np.flatnonzero(~np.isfinite(values[name])).tolist() if name in values else range(len(lines))
        blank = [row for row in empty if name not in cells or not cells[name][row]]
        problems += [(lines[row], f"column {name!r} = '': empty; expected a number > 0") for row in blank]
    if problems:
        ordered = [f"{path}:{line}: {text}" for line, text in sorted(problems)]
        further = f" (and {len(ordered) - 1} more)" if len(ordered) > 1 else ""
        raise InputError(ordered[0] + further, ordered)
    return values, texts, [*notes, *computed]


def _named(name: str, found: Mapping[str, LossHeading]) -> str:
    """Name of a column in a message, with the unit of its losses."""
    return f"{name!r} ({found[name].unit})" if found[name].unit else repr(name)


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
    return replace(table, values={**table.values, "n_params": n_params}, count=wanted)


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
    cells = {column: numbers.astype(str).astype(object) for column, numbers in values.items()}
    words = {column: np.asarray(cells_, dtype=object) for column, cells_ in texts.items()}
    table = Losses(name, tuple(cells), cells, values, words, np.arange(size) + 1)
    return with_count(table)


def with_family(table: Losses, name: str, family: str) -> Losses:
    """The table under another name, with the source that its prior must leave out."""
    return replace(table, name=name, family=family)


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
    texts = [table.number(column).astype(str) if column in table.values else table.cells[column] for column in columns]
    keys = np.asarray(["\x1f".join(cells) for cells in zip(*texts, strict=True)])
    order = np.lexsort((table.loss, keys))
    first = np.concatenate([[True], keys[order][1:] != keys[order][:-1]])
    return table.select(np.sort(order[first]))
