"""Levels of runs: the value of each categorical factor (source, framework, chip, ...) for each run, stored as codes.

`Seen` holds the levels that a fit has seen.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from jaxscale.tables.categorical import compacted

NO_LEVEL = -1
"""Code of a run without a level of a factor."""

LEVEL_KINDS = (
    *("source", "framework", "release", "gpu", "precision", "attention_kernel", "fused_norm", "number_format"),
    *("release_gpu", "mixture", "architecture", "local_shape", "sequences", "recompute", "parallelism", "stack"),
    *("recipe", "company", "unstated", "execution"),
)
"""Factors of runs."""

COMPANY = ("alone", "beside collectives")
"""Levels of the factor `company`: whether compute kernels share the chip with kernels of collectives."""

GUESSES = " and "
"""Separator between the facts in a level of the factor `unstated`."""

Names = Sequence[str | None] | np.ndarray
"""Level name of each run for a factor; None or empty without a level [row]."""

Place = tuple[str, str]
"""Factor of a level and name of the level."""

MOST_KEYS = 2**62
"""Largest number of combinations of levels with distinct keys in 64-bit integers [1]."""


@dataclass(frozen=True)
class Levels:
    """Level of each run by factor: source, framework, chip and so on.

    Attributes:
        codes: index of each run's level among the names of the factor, `NO_LEVEL` without a level [factor][row].
        names: names of the levels of each factor.
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
        """Levels from one mapping of factor to level name per run; an empty name means no level."""
        kinds = dict.fromkeys(kind for row in rows for kind in row)
        return cls.of_columns({kind: [row.get(kind) for row in rows] for kind in kinds}, len(rows))

    @classmethod
    def of_columns(cls, columns: Mapping[str, Names], n_rows: int) -> "Levels":
        """Levels from one column of level names per factor; an empty name means no level."""
        codes, names = {}, {}
        for kind, column in columns.items():
            places: dict[str, int] = {}
            found = [places.setdefault(name, len(places)) if name else NO_LEVEL for name in column]
            codes[kind], names[kind] = np.asarray(found, dtype=int), tuple(places)
        return cls(codes, names, n_rows)

    @classmethod
    def concatenated(cls, parts: Sequence["Levels"]) -> "Levels":
        """Concatenation of the levels of several tables of runs."""
        kinds = dict.fromkeys(kind for part in parts for kind in part.codes)
        columns = {kind: np.concatenate([part.column(kind) for part in parts]) for kind in kinds}
        return cls.of_columns(columns, sum(len(part) for part in parts))

    def take(self, rows: np.ndarray) -> "Levels":
        """Levels of a subset of the runs, by index or mask."""
        index = np.arange(self.n_rows)[rows]
        return Levels({kind: codes[index] for kind, codes in self.codes.items()}, self.names, len(index))

    def row(self, index: int) -> dict[str, str | None]:
        """Level name of one run by factor; None without a level."""
        found = {kind: int(codes[index]) for kind, codes in self.codes.items()}
        return {kind: None if code == NO_LEVEL else self.names[kind][code] for kind, code in found.items()}

    def column(self, kind: str) -> np.ndarray:
        """Level names of a factor, empty for a run without a level [row]."""
        if kind not in self.codes:
            return np.full(self.n_rows, "", dtype=object)
        return np.asarray([*self.names[kind], ""], dtype=object)[self.codes[kind]]

    def distinct(self) -> tuple["Levels", Int[np.ndarray, " row"]]:
        """Distinct combinations of levels, and the combination index of each run [row]."""
        key, n_keys = np.zeros(self.n_rows, dtype=np.int64), 1
        for kind, codes in self.codes.items():
            n_codes = len(self.names[kind]) + 1
            if n_keys * n_codes > MOST_KEYS:
                # Renumber the keys found so far, so that the product of the radices stays within 64 bits.
                distinct_keys, key = np.unique(key, return_inverse=True)
                n_keys = len(distinct_keys)
            key, n_keys = key * n_codes + codes + 1, n_keys * n_codes
        index, present = compacted(key, n_keys)
        # Any row of a combination stands for the combination.
        row_of = np.empty(len(present), dtype=int)
        row_of[index] = np.arange(self.n_rows)
        return self.take(row_of), index

    def missing(self, kind: str) -> Bool[np.ndarray, " row"]:
        """Whether a run has no level of a factor [row]."""
        return self.codes[kind] == NO_LEVEL if kind in self.codes else np.full(self.n_rows, True)

    def has(self, holds: Callable[[str], bool], kind: str, *, of_none: bool = False) -> Bool[np.ndarray, " row"]:
        """Whether a predicate holds for each run's level of a factor.

        Args:
            holds: predicate of a level name, evaluated once per name.
            kind: factor.
            of_none: result for runs without a level of the factor.

        Returns:
            The results [row].
        """
        if kind not in self.codes:
            return np.full(self.n_rows, of_none)
        answers = [bool(holds(name)) for name in self.names[kind]]
        return np.asarray([*answers, of_none])[self.codes[kind]]

    def numbers(self, value: Callable[[str], float], kind: str, *, of_none: float = np.nan) -> np.ndarray:
        """Value of a function of each run's level of a factor; `of_none` for a run without a level [row].

        The function is evaluated once per level name.
        """
        if kind not in self.codes:
            return np.full(self.n_rows, of_none)
        values = [float(value(name)) for name in self.names[kind]]
        return np.asarray([*values, of_none])[self.codes[kind]]

    def only(self, keep: Mapping[str, Callable[[str], bool]]) -> "Levels":
        """Levels of the factors in `keep`, without levels excluded by the factor's predicate."""
        codes, names = {}, {}
        for kind in (kind for kind in keep if kind in self.codes):
            is_kept = np.asarray([bool(keep[kind](name)) for name in self.names[kind]], dtype=bool)
            new_codes = np.append(np.where(is_kept, np.cumsum(is_kept) - 1, NO_LEVEL), NO_LEVEL)
            codes[kind] = new_codes[self.codes[kind]]
            names[kind] = tuple(name for name, kept in zip(self.names[kind], is_kept, strict=True) if kept)
        return Levels(codes, names, self.n_rows)

    def filled(self, kind: str, other: str) -> "Levels":
        """Levels with missing levels of a factor filled in from a second factor."""
        if other not in self.codes:
            return self
        names = dict.fromkeys([*self.names.get(kind, ()), *self.names[other]])
        place = {name: code for code, name in enumerate(names)}
        of_other = np.asarray([*(place[name] for name in self.names[other]), NO_LEVEL])[self.codes[other]]
        codes = np.where(self.missing(kind), of_other, self.codes.get(kind, of_other))
        return Levels({**self.codes, kind: codes}, {**self.names, kind: tuple(names)}, self.n_rows)

    def renamed(self, kind: str, name_of: Callable[[str], str], to: str = "") -> "Levels":
        """Levels with the names of a factor replaced by a function of the name.

        Levels with equal new names merge; an empty new name removes the level.

        Args:
            kind: factor whose names change.
            name_of: function from the name of a level to the new name.
            to: factor that receives the new names; by default `kind`.

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
        """Levels with the columns of given factors replaced; an empty name means no level."""
        others = Levels.of_columns(columns, self.n_rows)
        return Levels({**self.codes, **others.codes}, {**self.names, **others.names}, self.n_rows)

    def replace(self, rows: Bool[np.ndarray, " row"], levels: Mapping[str, str]) -> "Levels":
        """Levels with the given levels in place of the levels of selected runs.

        Args:
            rows: mask of the runs.
            levels: new level name by factor; an empty name means no level.

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
    """Levels of a run, completed by the factor `company`: `alone` on a single chip, else `beside collectives`.

    Args:
        levels: level of the run by factor.
        n_chips: number of chips of the run [1].

    Returns:
        The levels by factor.
    """
    return {"company": COMPANY[int(n_chips > 1.0)], **levels}


SETTINGS = ("sequences", "recompute", "parallelism")
"""Factors without effects. A fit of few runs lists their levels, so that a new setting widens the interval."""

NOTED_KINDS = ("source", "framework", "gpu", "precision", "attention_kernel", "architecture", *SETTINGS)
"""Factors whose new levels appear in the note of a prediction."""

UNNAMED = "unnamed"
"""Factor under which a fit lists the frameworks of runs without a source."""


def software_stack(source: str) -> str:
    """Software stack `table/framework` of a source, without a third component."""
    return "/".join(source.split("/")[:2])


def is_apart(source: str) -> bool:
    """Whether a source is a subset `table/framework/part` of a software stack, rather than the whole stack."""
    return source != software_stack(source)


def table_of(source: str) -> str:
    """Name of the table of measured runs of a source: the first component of the source's path."""
    return source.split("/")[0]


@dataclass(frozen=True)
class Seen:
    """Levels of the fitted runs of a fit.

    Attributes:
        known: factor and name of every level of the runs, with or without effects.
        fitted: factor and name of the sources and frameworks of the fitted runs, without the runs of the parent.
        own: source and framework common to all runs, if any.
        parent: levels of the fit's parent.
        is_centre: whether the fit is a centre, which predicts all stacks unknown to its child.
    """

    known: frozenset[Place] = frozenset()
    fitted: frozenset[Place] = frozenset()
    own: tuple[Place, ...] = ()
    parent: "Seen | None" = None
    is_centre: bool = False

    def named(self, levels: Levels) -> Levels:
        """Levels with `own` filled in for runs without a source, and without a framework different from `own`."""
        if not self.own:
            return levels
        own_framework = dict(self.own).get("framework")
        is_like_own = levels.missing("source") & levels.has(
            lambda name: name == own_framework, "framework", of_none=True
        )
        return levels.replace(is_like_own, dict(self.own))

    def only_parent_knows(self, levels: Levels) -> Bool[np.ndarray, " row"]:
        """Whether the parent predicts a run, because only the parent has seen the source, or else the framework.

        A parent with `is_centre` predicts every run of a source outside `fitted`.
        """
        if self.parent is None:
            return np.zeros(len(levels), dtype=bool)
        levels = self.named(levels)
        if self.parent.is_centre:
            return ~levels.has(lambda name: ("source", name) in self.fitted, "source")
        answers, is_open = (np.full(len(levels), value) for value in (False, True))
        for kind in ("source", "framework"):
            is_fitted = levels.has(lambda name, kind=kind: (kind, name) in self.fitted, kind)
            is_parents = levels.has(lambda name, kind=kind, parent=self.parent: (kind, name) in parent.known, kind)
            answers |= is_open & is_parents & ~is_fitted
            is_open &= ~(is_parents | is_fitted)
        return answers

    def knows(self, kind: str, name: str) -> bool:
        """Whether any fitted run had the level."""
        return (kind, name) in self.known

    def is_new(self, kind: str, name: str) -> bool:
        """Whether a level is absent from the fitted runs; false for a factor that the fit does not list."""
        return bool(self.known) and (kind not in SETTINGS or kind in self._known_kinds) and not self.knows(kind, name)

    def ancestor_knows(self, kind: str, name: str) -> bool:
        """Whether a run of the fit's parent, or of any further ancestor, had the level."""
        parent = self.parent
        return parent is not None and (parent.knows(kind, name) or parent.ancestor_knows(kind, name))

    @functools.cached_property
    def _known_kinds(self) -> frozenset[str]:
        return frozenset(kind for kind, _ in self.known)

    def notes(self, levels: Levels) -> np.ndarray:
        """Warning for each run with a list of levels absent from the fitted runs; else empty [row]."""
        if not self.known:
            return np.full(len(levels), "", dtype=object)
        unseen = levels.only({kind: lambda name, kind=kind: self.is_new(kind, name) for kind in NOTED_KINDS})
        combinations, index = unseen.distinct()
        texts = [self._note(combinations.row(row)) for row in range(len(combinations))]
        return np.asarray([*texts, ""], dtype=object)[index]

    def _note(self, unseen: Mapping[str, str | None]) -> str:
        places = [(kind, name) for kind in NOTED_KINDS if (name := unseen.get(kind))]
        texts = {
            "not in the fit, pooled values used": [p for p in places if not self.ancestor_knows(*p)],
            "known from the start of the fit alone": [p for p in places if self.ancestor_knows(*p)],
        }
        named = {text: ", ".join(f"{kind} {name!r}" for kind, name in group) for text, group in texts.items()}
        return "; ".join(f"{text}: {levels}" for text, levels in named.items() if levels)
