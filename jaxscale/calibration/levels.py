"""Levels of many runs by kind (source, framework, chip, ...), as columns of codes and names."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

NO_LEVEL = -1
"""Code of a run that names no level of a kind."""

LEVEL_KINDS = (
    *("source", "framework", "release", "gpu", "precision", "attention_kernel", "fused_norm", "number_format"),
    *("release_gpu", "mixture", "architecture", "local_shape", "sequences", "recompute", "parallelism", "stack"),
    *("recipe", "company", "unstated", "execution"),
)
"""Kinds of level that a run may have."""

COMPANY = ("alone", "beside collectives")
"""Levels of the kind `company`: whether the kernels of a run share the chip with those of collectives."""

GUESSES = " and "
"""What stands between the facts of a level of the kind `unstated`."""

Names = Sequence[str | None] | np.ndarray
"""Name of each run's level of a kind; None or empty for none [row]."""

Place = tuple[str, str]
"""Kind of a level and its name."""

MOST_KEYS = 2**62
"""Combinations of levels that a whole number of 64 bits tells apart [1]."""


@dataclass(frozen=True)
class Levels:
    """Level of each run, by kind: what the run is a run of, such as its source, its framework, its chip.

    Attributes:
        codes: position of each run's level among the names of its kind, `NO_LEVEL` where it has none [kind][row].
        names: of the levels of each kind.
        n_rows: number of runs [1].
    """

    codes: Mapping[str, Int[np.ndarray, " row"]]
    names: Mapping[str, tuple[str, ...]]
    n_rows: int

    def __len__(self) -> int:
        """Number of runs."""
        return self.n_rows

    @classmethod
    def of_rows(cls, rows: Sequence[Mapping[str, str | None]]) -> "Levels":
        """Levels of runs given one by one; an empty name counts as none."""
        kinds = dict.fromkeys(kind for row in rows for kind in row)
        return cls.of_columns({kind: [row.get(kind) for row in rows] for kind in kinds}, len(rows))

    @classmethod
    def of_columns(cls, columns: Mapping[str, Names], n_rows: int) -> "Levels":
        """Levels of runs given as one column of names for each kind; an empty name counts as none."""
        codes, names = {}, {}
        for kind, column in columns.items():
            places: dict[str, int] = {}
            found = [places.setdefault(name, len(places)) if name else NO_LEVEL for name in column]
            codes[kind], names[kind] = np.asarray(found, dtype=int), tuple(places)
        return cls(codes, names, n_rows)

    @classmethod
    def concatenated(cls, parts: Sequence["Levels"]) -> "Levels":
        """Levels of the runs of several tables, one table after the other."""
        kinds = dict.fromkeys(kind for part in parts for kind in part.codes)
        columns = {kind: np.concatenate([part.column(kind) for part in parts]) for kind in kinds}
        return cls.of_columns(columns, sum(len(part) for part in parts))

    def take(self, rows: np.ndarray) -> "Levels":
        """Levels of the given runs, by index or mask."""
        index = np.arange(self.n_rows)[rows]
        return Levels({kind: codes[index] for kind, codes in self.codes.items()}, self.names, len(index))

    def row(self, index: int) -> dict[str, str | None]:
        """Level of one run by kind, None where it has none."""
        found = {kind: int(codes[index]) for kind, codes in self.codes.items()}
        return {kind: None if code == NO_LEVEL else self.names[kind][code] for kind, code in found.items()}

    def column(self, kind: str) -> np.ndarray:
        """Names of one kind, empty where a run has none [row]."""
        if kind not in self.codes:
            return np.full(self.n_rows, "", dtype=object)
        return np.asarray([*self.names[kind], ""], dtype=object)[self.codes[kind]]

    def distinct(self) -> tuple["Levels", Int[np.ndarray, " row"]]:
        """Each combination of levels once, and the combination that each run has [row]."""
        key, n_keys = np.zeros(self.n_rows, dtype=np.int64), 1
        for kind, codes in self.codes.items():
            n_codes = len(self.names[kind]) + 1
            if n_keys * n_codes > MOST_KEYS:
                distinct_keys, key = np.unique(key, return_inverse=True)
                n_keys = len(distinct_keys)
            key, n_keys = key * n_codes + codes + 1, n_keys * n_codes
        _, first, index = np.unique(key, return_index=True, return_inverse=True)
        return self.take(first), index

    def missing(self, kind: str) -> Bool[np.ndarray, " row"]:
        """Whether a run has no level of a kind [row]."""
        return self.codes[kind] == NO_LEVEL if kind in self.codes else np.full(self.n_rows, True)

    def has(self, holds: Callable[[str], bool], kind: str, *, of_none: bool = False) -> Bool[np.ndarray, " row"]:
        """Whether a statement holds of each run's level of a kind.

        Args:
            holds: the statement, of the name of a level; asked once for each name.
            kind: of level.
            of_none: the answer for runs without a level of the kind.

        Returns:
            The answers [row].
        """
        if kind not in self.codes:
            return np.full(self.n_rows, of_none)
        answers = [bool(holds(name)) for name in self.names[kind]]
        return np.asarray([*answers, of_none])[self.codes[kind]]

    def numbers(self, value: Callable[[str], float], kind: str, *, of_none: float = np.nan) -> np.ndarray:
        """A number for each run, by its level of a kind; `of_none` for runs without one [row]."""
        if kind not in self.codes:
            return np.full(self.n_rows, of_none)
        values = [float(value(name)) for name in self.names[kind]]
        return np.asarray([*values, of_none])[self.codes[kind]]

    def only(self, keep: Mapping[str, Callable[[str], bool]]) -> "Levels":
        """Levels of the given kinds whose names are to be kept; runs of other names have no level of the kind."""
        codes, names = {}, {}
        for kind in (kind for kind in keep if kind in self.codes):
            is_kept = np.asarray([bool(keep[kind](name)) for name in self.names[kind]], dtype=bool)
            new_codes = np.append(np.where(is_kept, np.cumsum(is_kept) - 1, NO_LEVEL), NO_LEVEL)
            codes[kind] = new_codes[self.codes[kind]]
            names[kind] = tuple(name for name, kept in zip(self.names[kind], is_kept, strict=True) if kept)
        return Levels(codes, names, self.n_rows)

    def filled(self, kind: str, other: str) -> "Levels":
        """Levels, with the level of a second factor for runs without a level of the first."""
        if other not in self.codes:
            return self
        names = dict.fromkeys([*self.names.get(kind, ()), *self.names[other]])
        place = {name: code for code, name in enumerate(names)}
        of_other = np.asarray([*(place[name] for name in self.names[other]), NO_LEVEL])[self.codes[other]]
        codes = np.where(self.missing(kind), of_other, self.codes.get(kind, of_other))
        return Levels({**self.codes, kind: codes}, {**self.names, kind: tuple(names)}, self.n_rows)

    def renamed(self, kind: str, name_of: Callable[[str], str], to: str = "") -> "Levels":
        """Levels with names of a factor replaced; equal new names merge, an empty name removes the level.

        Args:
            kind: factor whose names change.
            name_of: new name of a level, called once per level.
            to: factor that receives the new names; `kind` where empty.

        Returns:
            The levels.
        """
        if kind not in self.codes:
            return self
        renamed = [name_of(name) for name in self.names[kind]]
        names = tuple(dict.fromkeys(filter(None, renamed)))
        codes = np.asarray([*(names.index(name) if name else NO_LEVEL for name in renamed), NO_LEVEL])
        codes = codes[self.codes[kind]]
        return Levels({**self.codes, to or kind: codes}, {**self.names, to or kind: names}, self.n_rows)

    def with_columns(self, columns: Mapping[str, Names]) -> "Levels":
        """Levels with columns of names replaced for given factors; an empty name is no level."""
        others = Levels.of_columns(columns, self.n_rows)
        return Levels({**self.codes, **others.codes}, {**self.names, **others.names}, self.n_rows)

    def replace(self, rows: Bool[np.ndarray, " row"], levels: Mapping[str, str]) -> "Levels":
        """Levels with the levels of given runs replaced.

        Args:
            rows: indices of the runs.
            levels: new levels by factor; an empty name is no level.

        Returns:
            The levels of all runs.
        """
        codes, names = dict(self.codes), dict(self.names)
        for kind, name in levels.items():
            known = names.get(kind, ())
            names[kind] = known if not name or name in known else (*known, name)
            code = names[kind].index(name) if name else NO_LEVEL
            codes[kind] = np.where(rows, code, codes.get(kind, np.full(self.n_rows, NO_LEVEL)))
        return Levels(codes, names, self.n_rows)


def on_chips(levels: Mapping[str, str | None], n_chips: float | int) -> dict[str, str | None]:
    """Levels of a run, with whether its kernels have company where they do not say and the number of chips does.

    Args:
        levels: level of the run by kind.
        n_chips: that the run takes [1].

    Returns:
        The levels by kind.
    """
    return {"company": COMPANY[int(n_chips > 1.0)], **levels}
