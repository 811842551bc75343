"""Effects of levels on coefficients: software stack, chip, number format and so on, added up on their coordinates."""

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from jaxscale.calibration.levels import Levels
from jaxscale.calibration.spec import Spec


@dataclass(frozen=True)
class LevelEffect:
    """Shift of the coordinates of coefficients of runs that belong to one level.

    Attributes:
        kind: of the level, such as `source` or `chip`.
        level: its name.
        shifts: coefficient names and shifts of their log (or logit) [1].
    """

    kind: str
    level: str
    shifts: tuple[tuple[str, float], ...]


def effects_of(shifts: Mapping[str, Mapping[str, Mapping[str, float]]]) -> tuple[LevelEffect, ...]:
    """Effects from shifts by kind of level, level and coefficient [1]."""
    return tuple(
        LevelEffect(kind, level, tuple(sorted((name, float(shift)) for name, shift in by_name.items())))
        for kind, by_level in shifts.items()
        for level, by_name in by_level.items()
    )


def shifts_by_level(effects: Iterable[LevelEffect]) -> dict[str, dict[str, dict[str, float]]]:
    """Shifts by kind of level, level and coefficient, from effects [1]."""
    shifts: dict[str, dict[str, dict[str, float]]] = {}
    for effect in effects:
        shifts.setdefault(effect.kind, {}).setdefault(effect.level, {}).update(effect.shifts)
    return shifts


@dataclass(frozen=True)
class Effects:
    """Effects that a record knows of.

    Attributes:
        entries: the effects; those of other kinds than the table of coefficients has count for nothing.
        spec: table of the coefficients.
    """

    entries: tuple[LevelEffect, ...]
    spec: Spec

    def combinations(self, levels: Levels, also: Iterable[str] = ()) -> tuple[Levels, Int[np.ndarray, " row"]]:
        """Each combination of levels that move coefficients once, and the combination that each run has.

        Args:
            levels: of the runs.
            also: kinds of which every level moves coefficients, whether it has an effect or not.

        Returns:
            The combinations, and their positions [row].
        """
        levels = self.spec.stand_ins.applied(levels, self.by_kind)
        moving: dict[str, Callable[[str], bool]] = {}
        for kind in self.spec.kinds:
            moving[kind] = (lambda _: True) if kind in also else self.by_kind.get(kind, {}).__contains__
        return levels.only(moving).distinct()

    def shifts(self, combinations: Levels) -> Float[np.ndarray, "row coefficient"]:
        """Sum of the effects of the levels of each run, on the coordinates of the coefficients.

        Args:
            combinations: of levels, as `combinations` returns them.

        Returns:
            The shifts [1], [row, coefficient].
        """
        nothing = np.zeros(len(self.spec.names))
        total = np.zeros((len(combinations), len(nothing)))
        for kind in self.spec.kinds:
            of_kind = self.by_kind.get(kind)
            if of_kind and kind in combinations.codes:
                table = np.asarray([*(of_kind.get(name, nothing) for name in combinations.names[kind]), nothing])
                total += table[combinations.codes[kind]]
        return total

    @functools.cached_property
    def by_kind(self) -> dict[str, dict[str, np.ndarray]]:
        """Shifts of every level by kind and name [coefficient]."""
        shifts: dict[str, dict[str, np.ndarray]] = {}
        for effect in self.entries:
            row = shifts.setdefault(effect.kind, {}).setdefault(effect.level, np.zeros(len(self.spec.names)))
            row += self.spec.column(dict(effect.shifts))
        return shifts
