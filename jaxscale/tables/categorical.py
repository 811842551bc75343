"""Categorical columns: distinct values, and the code of each row's value.

Work on a column is done once per distinct value, and spread over the rows by numpy.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

SLOTS = 1 << 20
"""Slots of the hash table of `Categorical.of_numbers` [1]."""

SPARSE = 16
"""Possible codes over rows from which on sorting the codes is cheaper than a table of all possible ones [1]."""

TRIED = 16
"""Blocks after which it is known of a column of text whether its cells repeat [1]."""

MANY = 0.5
"""Distinct texts over rows from which on a column of text is one whose cells hardly repeat [1]."""

_SPREAD = np.uint64(0x9E3779B97F4A7C15)
"""Odd multiplier that spreads the bit patterns of numbers over the slots of a hash table (Knuth, vol. 3, 6.4) [1]."""


@dataclass(frozen=True)
class Categorical:
    """Column of a table as codes into distinct values.

    Attributes:
        codes: position of each row's value among the values [1], [row].
        values: the values, in no special order; a value may be unused, and may be listed twice in columns with few
            repetitions.
    """

    codes: Int[np.ndarray, " row"]
    values: tuple[Any, ...]

    def __len__(self) -> int:
        """Number of rows [1]."""
        return len(self.codes)

    def __getitem__(self, row: int) -> Any:
        """Value of a row."""
        return self.values[self.codes[row]]

    @classmethod
    def of(cls, values: Iterable[Hashable]) -> "Categorical":
        """Column from the values of all rows."""
        places: dict[Hashable, int] = {}
        codes = [places.setdefault(value, len(places)) for value in values]
        return cls(np.asarray(codes, dtype=int), tuple(places))

    @classmethod
    def of_numbers(cls, numbers: Float[np.ndarray, " row"]) -> "Categorical":
        """Column from the floats of all rows; values with equal bits are equal."""
        bits = np.ascontiguousarray(numbers, dtype=np.float64).view(np.uint64)
        if SLOTS > SPARSE * len(bits):
            # Sorting a few rows takes less time than clearing the slots.
            return cls._of_sorted(numbers, bits)
        # A hash table without chains: one row of each slot stands for all rows there, unless two values share a slot.
        slots = ((bits * _SPREAD) >> np.uint64(44)).astype(np.intp)
        row_of_slot = np.zeros(SLOTS, dtype=np.intp)
        row_of_slot[slots] = np.arange(len(bits))
        if np.array_equal(bits[row_of_slot[slots]], bits):
            codes, present = compacted(slots, SLOTS)
            return cls(codes, tuple(numbers[row_of_slot[present]].tolist()))
        return cls._of_sorted(numbers, bits)

    @classmethod
    def _of_sorted(cls, numbers: np.ndarray, bits: np.ndarray) -> "Categorical":
        """Column from the floats of all rows and their bits, by sorting."""
        first, codes = np.unique(bits, return_index=True, return_inverse=True)[1:]
        return cls(codes, tuple(numbers[first].tolist()))

    @classmethod
    def constant(cls, value: Any, n_rows: int) -> "Categorical":
        """Column with the same value in all rows."""
        return cls(np.zeros(n_rows, dtype=int), (value,))

    def take(self, rows: np.ndarray) -> "Categorical":
        """Selected rows, by index or mask; unused values are dropped."""
        codes, present = compacted(self.codes[rows], len(self.values))
        return Categorical(codes, tuple(self.values[code] for code in present.tolist()))

    def map(self, function: Callable[[Any], Hashable]) -> "Categorical":
        """Column of a function of the values, called once per distinct value; equal results share a code."""
        results = Categorical.of(function(value) for value in self.values)
        return Categorical(results.codes[self.codes], results.values)

    def where(self, mask: np.ndarray, value: Any) -> "Categorical":
        """Column with a value set in the rows of a mask."""
        return Categorical(np.where(mask, len(self.values), self.codes), (*self.values, value))

    def spread(self, rows: np.ndarray, n_rows: int, otherwise: Any) -> "Categorical":
        """Longer column with these values in the given rows, and a constant elsewhere.

        Args:
            rows: positions of the values in the longer column [row].
            n_rows: number of rows of the longer column [1].
            otherwise: the constant.
        """
        codes = np.full(n_rows, len(self.values), dtype=int)
        codes[rows] = self.codes
        return Categorical(codes, (*self.values, otherwise))

    def numbers(self, function: Callable[[Any], Any] | None = None) -> np.ndarray:
        """Each row's value, or a function of it, as a float, nan for None [row]."""
        values = self.values if function is None else [function(value) for value in self.values]
        return np.asarray(values, dtype=float)[self.codes]

    def matches(self, condition: Callable[[Any], bool]) -> np.ndarray:
        """Whether each row's value meets a condition [row]."""
        return np.asarray([bool(condition(value)) for value in self.values], dtype=bool)[self.codes]

    def array(self) -> np.ndarray:
        """Value of each row, as objects [row]."""
        values = np.empty(len(self.values), dtype=object)
        values[:] = self.values
        return values[self.codes]


class _Places(dict[str, int]):
    """Codes of texts, numbered by first occurrence."""

    def __missing__(self, text: str) -> int:
        """Give a new text the next code."""
        code = self[text] = len(self)
        return code


class TextColumn:
    """Column of text that grows by blocks of cells, as a file is read."""

    def __init__(self):
        """Begin with no cells."""
        self._places = _Places()
        self._single: list[str] = []
        self._blocks: list[np.ndarray] = []
        self._is_single = False

    def add(self, cells: Sequence[str]) -> None:
        """Append a block of cells.

        Args:
            cells: texts of the rows, not empty.
        """
        first, n_rows = cells[0], len(cells)
        # Empty columns, and columns of tables that are sorted, have one text in most blocks.
        if first == cells[-1] and cells.count(first) == n_rows:
            codes = np.full(n_rows, self._places[first], np.int32)
        elif self._is_single:
            codes = -1 - np.arange(len(self._single), len(self._single) + n_rows, dtype=np.int32)
            self._single += cells
        else:
            codes = np.fromiter(map(self._places.__getitem__, cells), np.int32, n_rows)
        self._blocks.append(codes)
        # Texts of which hardly any comes twice, such as measured numbers, are kept as they come: no look-up.
        if len(self._blocks) == TRIED:
            self._is_single = len(self._places) > MANY * sum(map(len, self._blocks))

    def categorical(self) -> Categorical:
        """Column of the cells added so far; a text may be among the values twice in columns with few repetitions."""
        codes = np.concatenate(self._blocks or [np.zeros(0, np.int32)])
        values = (*self._places, *self._single)
        return Categorical(np.where(codes < 0, len(self._places) - 1 - codes, codes), values)


def compacted(codes: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes without gaps, and the old code of each new code.

    Args:
        codes: whole numbers from 0 to below `size` [row].
        size: number of possible codes [1].

    Returns:
        New codes, in the order of the old codes [row]; the used old codes, ascending [code].
    """
    if size > SPARSE * len(codes):
        present, new = np.unique(codes, return_inverse=True)
        return new.ravel(), present
    occurs = np.zeros(size, dtype=bool)
    occurs[codes] = True
    present = np.flatnonzero(occurs)
    new_code = np.zeros(size, dtype=int)
    new_code[present] = np.arange(len(present))
    return new_code[codes], present


def together(*columns: Categorical) -> Categorical:
    """Column of tuples of the values of several columns."""
    codes, present = compacted(columns[0].codes, len(columns[0].values))
    places = [present]
    for column in columns[1:]:
        size = len(column.values)
        codes, pairs = compacted(codes * size + column.codes, len(places[0]) * size)
        places = [*(place[pairs // size] for place in places), pairs % size]
    values = ([column.values[code] for code in place.tolist()] for column, place in zip(columns, places, strict=True))
    return Categorical(codes, tuple(zip(*values, strict=True)))


def joined(columns: Sequence[Categorical]) -> Categorical:
    """Column of joined texts of several columns, empty texts left out."""
    return together(*columns).map(lambda texts: "; ".join(text for text in texts if text))


def chained(columns: Sequence[Categorical]) -> Categorical:
    """Concatenation of columns, one after the other."""
    sizes = [0, *np.cumsum([len(column.values) for column in columns])[:-1].tolist()]
    codes = np.concatenate([column.codes + size for column, size in zip(columns, sizes, strict=True)])
    values = tuple(value for column in columns for value in column.values)
    return Categorical(codes, values).map(lambda value: value)
