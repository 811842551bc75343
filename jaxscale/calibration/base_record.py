r"""Base class of fits: central coefficients, level effects, spreads, interval widths, and the file of the fit.

A level is the value of a categorical factor (source, framework, chip) for a run. The coordinate (log or logit)
of coefficient p of run i is
$$ u_{ip} = u^0_p + \sum_k e_{k, l_k(i), p} , $$

with the centre $u^0$ and the effect e of level $l_k(i)$ of factor k. A level without effects has the coefficients of
the centre, unless `stand_ins` names a substitute level. Fits of training, serving and traced kernels are subclasses.
"""

import abc
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxscale.base.record_file import RecordFile
from jaxscale.calibration.levels import Levels, Place, Seen
from jaxscale.calibration.spec import Spec


@dataclass(frozen=True)
class LevelEffect:
    """Shift of the coefficients of all runs with a given level of a factor.

    Attributes:
        kind: factor of the level, such as `source` or `gpu`.
        level: name of the level.
        shifts: pairs of coefficient name and shift of the coefficient's log (logit for a fraction) [1].
    """

    kind: str
    level: str
    shifts: tuple[tuple[str, float], ...]

    def single(self) -> Iterator[tuple[str, str, str, float]]:
        """Tuples of factor, level, coefficient and shift of the coefficient's log or logit [1]."""
        return ((self.kind, self.level, coefficient, shift) for coefficient, shift in self.shifts)


def effects_of(shifts: Iterable[tuple[str, str, str, float]]) -> tuple[LevelEffect, ...]:
    """Level effects from tuples of factor, level, coefficient and shift [1]; shifts of equal coefficients add up."""
    by_level: dict[Place, dict[str, float]] = {}
    for kind, level, coefficient, shift in shifts:
        of_level = by_level.setdefault((kind, level), {})
        of_level[coefficient] = of_level.get(coefficient, 0.0) + float(shift)
    return tuple(LevelEffect(kind, level, tuple(sorted(own.items()))) for (kind, level), own in by_level.items())


@dataclass(frozen=True)
class Effects:
    """Level effects of a record, with lookup by factor and level.

    Attributes:
        entries: the effects; effects of factors absent from the table of coefficients are ignored.
        spec: table of the coefficients.
    """

    entries: tuple[LevelEffect, ...]
    spec: Spec

    def combinations(self, levels: Levels, also: Iterable[str] = ()) -> tuple[Levels, Int[np.ndarray, " row"]]:
        """Distinct combinations of levels with effects, and the index of the combination of each run [row].

        Levels without effects are ignored, except for the factors in `also`.
        """
        levels = self.spec.stand_ins.applied(levels, self.by_kind)
        moving: dict[str, Callable[[str], bool]] = {}
        for kind in self.spec.kinds:
            moving[kind] = (lambda _: True) if kind in also else self.by_kind.get(kind, {}).__contains__
        return levels.only(moving).distinct()

    def shifts(self, combinations: Levels) -> Float[np.ndarray, "row coefficient"]:
        """Sum of the effects of each combination of levels, on log or logit [1], [row, coefficient]."""
        nothing = np.zeros(len(self.spec.names))
        total = np.zeros((len(combinations), len(nothing)))
        for kind in self.spec.kinds:
            of_kind = self.by_kind.get(kind)
            if of_kind and kind in combinations.codes:
                # The last row of the table serves runs without a level, whose code is -1.
                table = np.asarray([*(of_kind.get(name, nothing) for name in combinations.names[kind]), nothing])
                total += table[combinations.codes[kind]]
        return total

    @functools.cached_property
    def by_kind(self) -> dict[str, dict[str, np.ndarray]]:
        """Shift of the log (or logit) of every coefficient [1], [coefficient], by factor and name of level."""
        shifts: dict[str, dict[str, np.ndarray]] = {}
        for effect in self.entries:
            row = shifts.setdefault(effect.kind, {}).setdefault(effect.level, np.zeros(len(self.spec.names)))
            row += self.spec.column(dict(effect.shifts))
        return shifts


Kind = TypeVar("Kind", bound="Record")

Spreads = Mapping[str, Mapping[str, float]]
"""Standard deviations by factor and coefficient [1]."""


class FileForm(NamedTuple):
    """Conversion between a field of a fit and a table in the fit's file.

    Attributes:
        written: function from the field's value to the table.
        read: function from the table to the field's value.
    """

    written: Callable[[Any], Any]
    read: Callable[[Any], Any]


def names_by_kind(places: Sequence[Place]) -> dict[str, list[str]]:
    """Names of levels by factor, sorted, from pairs of factor and level."""
    by_kind: dict[str, list[str]] = {}
    for kind, name in sorted(places):
        by_kind.setdefault(kind, []).append(name)
    return by_kind


def tables_of_entries(entry: type) -> FileForm:
    """Conversion of a tuple of dataclass instances to a list of tables without default values."""
    usual = {name: field.default for name, field in entry.__dataclass_fields__.items()}

    def written(values: Sequence[Any]) -> list[dict[str, Any]]:
        return [{name: one for name, one in vars(value).items() if one is not usual[name]} for value in values]

    return FileForm(written, lambda table: tuple(entry(**one) for one in table))


NUMBER = FileForm(lambda value: value, lambda value: value)
"""Unchanged number."""

TEXTS = FileForm(dict, lambda table: tuple((key, str(value)) for key, value in table.items()))
"""Pairs of texts: key and value."""

COUNTS = FileForm(
    lambda counts: {name: int(count) for name, count in counts},
    lambda table: tuple((name, float(count)) for name, count in table.items()),
)
"""Pairs of a name and a whole number."""

PLACES = FileForm(names_by_kind, lambda table: tuple((kind, name) for kind, names in table.items() for name in names))
"""Levels, as names by factor."""


@dataclass(frozen=True)
class Record(abc.ABC):
    """Base class of a fit: coefficients fitted to measured runs, with their variation between levels.

    Attributes:
        name: name of the fit.
        centre: coefficients of a run without level effects, by name, in the unit of each coefficient; given as a module
            of coefficients or a mapping, kept as a mapping.
        effects: shifts of coefficients by level; an unlisted level has no effect.
        spreads: standard deviation of the effects by factor and coefficient, the prior of a new level; under
            the key `centre`, the standard deviation of the centre [1].
        widths: widths of prediction intervals, from held-out runs.
        known: factor and name of every level of the fitted runs.
        parent: fit from which the fitting started.
        provenance: keys and values: data hash, versions, number of runs, held-out error.
    """

    name: str
    centre: Any
    effects: tuple[LevelEffect, ...] = ()
    spreads: Spreads = field(default_factory=dict, hash=False)
    widths: tuple[Any, ...] = ()
    known: tuple[Place, ...] = ()
    parent: Any = None
    provenance: tuple[tuple[str, str], ...] = ()

    file: ClassVar[RecordFile] = RecordFile("record", "coefficients", "a file of a record", "Record of a fit.")
    tables: ClassVar[Mapping[str, tuple[str, FileForm]]] = {
        "provenance": ("provenance", TEXTS),
        "known": ("known", PLACES),
    }

    @classmethod
    @abc.abstractmethod
    def spec(cls) -> Spec:
        """Priors, units and ranges of the coefficients."""

    def __post_init__(self) -> None:
        """Convert the central values to a mapping by name, in the order of `spec`."""
        given = self.centre if isinstance(self.centre, Mapping) else vars(self.centre)
        centre = {name: float(given[name]) for name in self.spec().names}
        object.__setattr__(self, "centre", _Values(centre))

    def unconstrained(self, levels: Levels) -> Float[np.ndarray, "row coefficient"]:
        """Log or logit of the coefficients of each run, level effects included [row, coefficient]."""
        table, index = self.unconstrained_table(levels)
        return table[index]

    def unconstrained_table(
        self, levels: Levels
    ) -> tuple[Float[np.ndarray, "combination coefficient"], Int[np.ndarray, " row"]]:
        """Log or logit of the coefficients of each combination of levels, and the combination of each run [row]."""
        combinations, index = self._combinations(levels)
        table = self.spec().unconstrained(list(self.centre.values())) + self._shifts(combinations)
        if (others := self.only_parent_knows(levels)).any():
            of_parent, index_of_parent = self.parent.unconstrained_table(levels.take(others))
            index[others] = len(table) + index_of_parent
            table = np.concatenate([table, of_parent])
        return table, index

    def _combinations(self, levels: Levels) -> tuple[Levels, Int[np.ndarray, " row"]]:
        """Distinct combinations of levels with effects, and the combination index of each run [row]."""
        return self.level_shifts.combinations(levels)

    def _shifts(self, combinations: Levels) -> Float[np.ndarray, "row coefficient"]:
        """Shift of each combination of levels from the centre, on coordinates [1], [row, coefficient]."""
        return self.level_shifts.shifts(combinations)

    def only_parent_knows(self, levels: Levels) -> Bool[np.ndarray, " row"]:
        """Whether the parent predicts a run, because only the parent has seen the run's level [row]."""
        return np.zeros(len(levels), dtype=bool)

    def by_who_knows(
        self, rows: "LevelRows", answer: Callable[[Any, "LevelRows"], Sequence[np.ndarray]]
    ) -> tuple[np.ndarray, ...]:
        """Evaluate a function on this fit, and on the parent for the runs of `only_parent_knows`.

        Args:
            rows: the runs.
            answer: function from a fit (the present or an ancestor) and runs to columns [column][row].

        Returns:
            The columns.
        """
        columns = tuple(answer(self, rows))
        if (others := self.only_parent_knows(rows.levels)).any():
            of_parent = self.parent.by_who_knows(rows.take(others), answer)
            for column, values in zip(columns, of_parent, strict=True):
                column[others] = values
        return columns

    @functools.cached_property
    def level_shifts(self) -> Effects:
        """Level effects of the fit, with lookup by factor and level."""
        return Effects(self.effects, self.spec())

    @functools.cached_property
    def seen(self) -> Seen:
        """Levels of the fitted runs; if `known` is empty, the levels with effects."""
        return Seen(frozenset(self.known or ((effect.kind, effect.level) for effect in self.effects)))

    def is_new(self, kind: str, levels: Levels) -> Bool[np.ndarray, " row"]:
        """Whether the level of a run is absent from the fitted runs; true for a run without a level [row]."""
        return ~levels.has(lambda name: self.seen.knows(kind, name), kind)

    def draws(self, count: int, seed: int = 0) -> dict[str, np.ndarray]:
        """Random draws of the central coefficients by name, with the standard deviations `spreads["centre"]` [draw].

        Args:
            count: number of draws [1].
            seed: seed of the random numbers.

        Returns:
            Values in the unit of each coefficient; equal values for a coefficient without a standard deviation.
        """
        random, spec = np.random.default_rng(seed), self.spec()
        moves = np.zeros((count, len(spec.names)))
        for name, spread in self.spreads.get("centre", {}).items():
            moves[:, spec.names.index(name)] = spread * random.standard_normal(count)
        values = spec.constrained(spec.unconstrained(list(self.centre.values())) + moves)
        return dict(zip(spec.names, values.T, strict=True))

    def save(self, path: str | Path, comment: str = "") -> None:
        """Write the fit atomically as TOML.

        Raises:
            InputError: the folder does not exist or cannot be written.
        """
        self.file.write(path, self.document(), comment)

    def document(self) -> dict[str, Any]:
        """Content of the fit as nested tables."""
        document: dict[str, Any] = {"name": self.name}
        document["coefficients"] = {name: {"value": value} for name, value in self.centre.items()}
        for table, (name, form) in self.tables.items():
            if value := getattr(self, name):
                document[table] = form.written(value)
        if self.spreads:
            document["spreads"] = {kind: dict(by_name) for kind, by_name in self.spreads.items()}
        document["effects"] = [{"kind": e.kind, "level": e.level, "shifts": dict(e.shifts)} for e in self.effects]
        return document | ({"parent": self.parent.document()} if self.parent is not None else {})

    @classmethod
    def load(cls: type[Kind], path: str | Path) -> Kind:
        """Read a fit from a file; coefficients absent from the file get the prior medians.

        Raises:
            InputError: the file is missing, truncated, of a later version, or not a record of this class.
        """
        return cls.file.read(path, cls.of_tables)

    @classmethod
    def of_tables(cls: type[Kind], path: Path, table: Mapping[str, Any]) -> Kind:
        """Fit from the tables of a file; a coefficient is a number or a table with a `value`.

        Raises:
            InputError: an unknown coefficient, or a value out of range.
        """
        spec = cls.spec()
        own = {name: form.read(table[key]) for key, (name, form) in cls.tables.items() if key in table}
        return cls(
            name=str(table.get("name", path.stem)),
            centre=spec.stated(path, table["coefficients"]),
            effects=tuple(_effect(path, entry, spec) for entry in table.get("effects", [])),
            spreads=table.get("spreads", {}),
            parent=cls.of_tables(path, table["parent"]) if "parent" in table else None,
            **own,
        )


class _Values(dict[str, float]):
    """Values by name, hashable: records with equal values share a cache entry."""

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return hash(tuple(self.items()))


@dataclass(frozen=True)
class LevelRows:
    """Levels and numbers of chips of runs, the input of the predictions of a fit.

    Attributes:
        levels: levels of each run.
        n_chips: number of chips of each run [1], [row].
        is_one: whether there is a single run, with numbers instead of arrays as results.
    """

    levels: Levels
    n_chips: Float[np.ndarray, " row"]
    is_one: bool = False

    @classmethod
    def of(cls, levels: Levels | Mapping[str, str | None], n_chips: Any = 0.0) -> "LevelRows":
        """Runs from columns of levels, or a single run from a mapping of levels by factor.

        Args:
            levels: levels of the runs, or level by factor of a single run.
            n_chips: number of chips, common or of each run [1].
        """
        is_one = not isinstance(levels, Levels)
        many = Levels.of_rows([levels]) if is_one else levels
        return cls(many, np.broadcast_to(np.asarray(n_chips, float), (len(many),)), is_one)

    def take(self, rows: np.ndarray) -> "LevelRows":
        """Subset of the runs, by index or mask."""
        return LevelRows(self.levels.take(rows), self.n_chips[rows])

    def given(self, column: np.ndarray) -> Any:
        """Result column of the runs: the single entry if `is_one`, else the array."""
        return column.tolist()[0] if self.is_one else column


def _effect(path: Path, entry: Mapping[str, Any], spec: Spec) -> LevelEffect:
    """Effect of a level from an entry of a file."""
    kind, level = entry["kind"], entry["level"]
    shifts = spec.known(f"{path}: effect of {kind} {level!r}: ", entry["shifts"])
    return LevelEffect(kind, level, tuple(sorted(shifts.items())))
