"""Effects of levels on coefficients: software stack, chip, number format and so on, added up on their coordinates."""

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from jaxscale.calibration.levels import Levels, Place
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

    def single(self) -> Iterator[tuple[str, str, str, float]]:
        """Its shifts one by one, as `effects_of` takes them."""
        return ((self.kind, self.level, coefficient, shift) for coefficient, shift in self.shifts)


def effects_of(shifts: Iterable[tuple[str, str, str, float]]) -> tuple[LevelEffect, ...]:
    """Effects of levels from single shifts, which add up: kind of level, level, coefficient, shift [1]."""
    by_level: dict[Place, dict[str, float]] = {}
    for kind, level, coefficient, shift in shifts:
        of_level = by_level.setdefault((kind, level), {})
        of_level[coefficient] = of_level.get(coefficient, 0.0) + float(shift)
    return tuple(LevelEffect(kind, level, tuple(sorted(own.items()))) for (kind, level), own in by_level.items())


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
        """Each combination of levels that move coefficients once, and the combination of each run [row].

        Of the kinds `also` every level moves coefficients, whether it has an effect or not.
        """
        levels = self.spec.stand_ins.applied(levels, self.by_kind)
        moving: dict[str, Callable[[str], bool]] = {}
        for kind in self.spec.kinds:
            moving[kind] = (lambda _: True) if kind in also else self.by_kind.get(kind, {}).__contains__
        return levels.only(moving).distinct()

    def shifts(self, combinations: Levels) -> Float[np.ndarray, "row coefficient"]:
        """Sum of the effects of each of the `combinations` of levels, on the coordinates of coefficients [1]."""
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
