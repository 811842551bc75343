r"""Record of a fit of any kind: coefficients at their centre, effects of levels, spreads, widths of intervals, file.

The coordinate of coefficient p of run i, which belongs to some levels, is

$$ u_{ip} = u^0_p + \sum_k e_{k, l_k(i), p} , $$

with the centre $u^0$ and effects e by kind of level k. A level without effects stands at the centre, unless another one
stands in for it (`stand_ins`). Records of training, of serving and of the others name their own quantities.
"""

import abc
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxscale.base.record_file import RecordFile
from jaxscale.calibration.effects import Effects, LevelEffect
from jaxscale.calibration.levels import Levels, Place
from jaxscale.calibration.seen import Seen
from jaxscale.calibration.spec import Spec

Kind = TypeVar("Kind", bound="Record")

Spreads = Mapping[str, Mapping[str, float]]
"""Standard deviations by kind of level and coefficient [1]."""


class FileForm(NamedTuple):
    """How a field of a record is kept in its file.

    Attributes:
        written: the table of a value.
        read: the value of a table.
    """

    written: Callable[[Any], Any]
    read: Callable[[Any], Any]


def names_by_kind(places: Sequence[Place]) -> dict[str, list[str]]:
    """Names of levels by kind, sorted."""
    by_kind: dict[str, list[str]] = {}
    for kind, name in sorted(places):
        by_kind.setdefault(kind, []).append(name)
    return by_kind


def tables_of_entries(entry: type) -> FileForm:
    """FileForm of a tuple of entries of a dataclass: a list of tables, without what is as by default."""
    usual = {name: field.default for name, field in entry.__dataclass_fields__.items()}

    def written(values: Sequence[Any]) -> list[dict[str, Any]]:
        return [{name: one for name, one in vars(value).items() if one is not usual[name]} for value in values]

    return FileForm(written, lambda table: tuple(entry(**one) for one in table))


NUMBER = FileForm(lambda value: value, lambda value: value)
"""A number as it is."""

TEXTS = FileForm(dict, lambda table: tuple((key, str(value)) for key, value in table.items()))
"""Pairs of texts."""

COUNTS = FileForm(
    lambda counts: {name: int(count) for name, count in counts},
    lambda table: tuple((name, float(count)) for name, count in table.items()),
)
"""Pairs of a name and a whole number."""

PLACES = FileForm(names_by_kind, lambda table: tuple((kind, name) for kind, names in table.items() for name in names))
"""Levels: their names by kind."""


@dataclass(frozen=True)
class Record(abc.ABC):
    """Coefficients fitted to measured runs, and how they differ between levels of runs.

    Attributes:
        name: of the fit.
        centre: coefficients of runs of no level in particular, in their own units, by name; a module of coefficients or
            a mapping, kept as a mapping.
        effects: by level; a level that is not listed has none.
        spreads: standard deviation of the effects by kind of level and coefficient, `centre` for the centre itself:
            what a new level may bring [1].
        widths: of intervals, from runs that were left out.
        known: kind and name of every level of the fitted runs.
        parent: fit from which the search started.
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
        """Table of the coefficients."""

    def __post_init__(self) -> None:
        """Keep the values of the centre by name, in order."""
        given = self.centre if isinstance(self.centre, Mapping) else vars(self.centre)
        centre = {name: float(given[name]) for name in self.spec().names}
        object.__setattr__(self, "centre", _Values(centre))

    def unconstrained(self, levels: Levels) -> Float[np.ndarray, "row coefficient"]:
        """Coordinates of the coefficients of runs, effects of their levels included [row, coefficient]."""
        table, index = self.unconstrained_table(levels)
        return table[index]

    def unconstrained_table(
        self, levels: Levels
    ) -> tuple[Float[np.ndarray, "combination coefficient"], Int[np.ndarray, " row"]]:
        """Coordinates of each combination of levels that move them, and the combination of each run [row]."""
        combinations, index = self._combinations(levels)
        table = self.spec().unconstrained(list(self.centre.values())) + self._shifts(combinations)
        if (others := self.only_parent_knows(levels)).any():
            of_parent, index_of_parent = self.parent.unconstrained_table(levels.take(others))
            index[others] = len(table) + index_of_parent
            table = np.concatenate([table, of_parent])
        return table, index

    def _combinations(self, levels: Levels) -> tuple[Levels, Int[np.ndarray, " row"]]:
        """Each combination of levels that move coefficients, and the combination that each run has."""
        return self.level_shifts.combinations(levels)

    def _shifts(self, combinations: Levels) -> Float[np.ndarray, "row coefficient"]:
        """Shift of the coordinates of each combination of levels from the centre."""
        return self.level_shifts.shifts(combinations)

    def only_parent_knows(self, levels: Levels) -> Bool[np.ndarray, " row"]:
        """Whether the parent answers for a run in place of the record itself [row]."""
        return np.zeros(len(levels), dtype=bool)

    def by_who_knows(
        self, rows: "LevelRows", answer: Callable[[Any, "LevelRows"], Sequence[np.ndarray]]
    ) -> tuple[np.ndarray, ...]:
        """Columns that the record has for runs, and its parent has for those that it alone knows.

        Args:
            rows: the runs.
            answer: columns of a record, this one or an ancestor, for runs [column][row].

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
        """Effects, ready for look-up."""
        return Effects(self.effects, self.spec())

    @functools.cached_property
    def seen(self) -> Seen:
        """Levels of the fitted runs; those with effects where none is listed."""
        return Seen(frozenset(self.known or ((effect.kind, effect.level) for effect in self.effects)))

    def is_new(self, kind: str, levels: Levels) -> Bool[np.ndarray, " row"]:
        """Whether no fitted run had the level of a kind that a run has; new where it has none [row]."""
        return ~levels.has(lambda name: self.seen.knows(kind, name), kind)

    def draws(self, count: int, seed: int = 0) -> dict[str, np.ndarray]:
        """Values drawn from the spreads of the centre, by name; without a spread the centre itself [draw]."""
        random, spec = np.random.default_rng(seed), self.spec()
        moves = np.zeros((count, len(spec.names)))
        for name, spread in self.spreads.get("centre", {}).items():
            moves[:, spec.names.index(name)] = spread * random.standard_normal(count)
        values = spec.constrained(spec.unconstrained(list(self.centre.values())) + moves)
        return dict(zip(spec.names, values.T, strict=True))

    def save(self, path: str | Path, comment: str = "") -> None:
        """Write the record as TOML, whole or not at all.

        Raises:
            InputError: the folder does not exist or cannot be written.
        """
        self.file.write(path, self.document(), comment)

    def document(self) -> dict[str, Any]:
        """The record as nested tables."""
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
        """The record of a file; a coefficient that the file lacks is read from the priors.

        Raises:
            InputError: the file is missing, cut, of a later version, or no such record.
        """
        return cls.file.read(path, cls.of_tables)

    @classmethod
    def of_tables(cls: type[Kind], path: Path, table: Mapping[str, Any]) -> Kind:
        """The record of the tables of a file, whose coefficients are numbers or tables with a `value`.

        Raises:
            InputError: an unknown coefficient, or a value out of its range.
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
    """Values by name, as one value of a record: two records of the same values are the same key of a cache."""

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return hash(tuple(self.items()))


@dataclass(frozen=True)
class LevelRows:
    """Runs about which a record is asked.

    Attributes:
        levels: of each.
        n_chips: of each [1], [row].
        is_one: whether a single run was given, whose answers are no arrays.
    """

    levels: Levels
    n_chips: Float[np.ndarray, " row"]
    is_one: bool = False

    @classmethod
    def of(cls, levels: Levels | Mapping[str, str | None], n_chips: Any = 0.0) -> "LevelRows":
        """Runs from their levels, or one run from its levels by kind, with a number of chips for all or for each."""
        is_one = not isinstance(levels, Levels)
        many = Levels.of_rows([levels]) if is_one else levels
        return cls(many, np.broadcast_to(np.asarray(n_chips, float), (len(many),)), is_one)

    def take(self, rows: np.ndarray) -> "LevelRows":
        """The given runs, by index or mask."""
        return LevelRows(self.levels.take(rows), self.n_chips[rows])

    def given(self, column: np.ndarray) -> Any:
        """A column as it was asked for: its only entry for a single run."""
        return column.tolist()[0] if self.is_one else column


def _effect(path: Path, entry: Mapping[str, Any], spec: Spec) -> LevelEffect:
    """Effect of an entry of a file."""
    kind, level = entry["kind"], entry["level"]
    shifts = spec.known(f"{path}: effect of {kind} {level!r}: ", entry["shifts"])
    return LevelEffect(kind, level, tuple(sorted(shifts.items())))
