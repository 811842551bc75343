"""Level effects: additive shifts of coefficient coordinates by software stack, chip, number format and so on."""

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from jaxscale.calibration.levels import Levels, Place
from jaxscale.calibration.spec import Spec


@dataclass(frozen=True)
class LevelEffect:
    """Shift of the coefficient coordinates of all runs of a level.

    Attributes:
        kind: factor of the level, such as `source` or `gpu`.
        level: name of the level.
        shifts: coefficient names and shifts of the log (or logit) [1].
    """

    kind: str
    level: str
    shifts: tuple[tuple[str, float], ...]

    def single(self) -> Iterator[tuple[str, str, str, float]]:
        """Single shifts in the form that `effects_of` takes: factor, level, coefficient, shift [1]."""
        return ((self.kind, self.level, coefficient, shift) for coefficient, shift in self.shifts)


def effects_of(shifts: Iterable[tuple[str, str, str, float]]) -> tuple[LevelEffect, ...]:
    """Level effects as sums of single shifts: factor, level, coefficient, shift [1]."""
    by_level: dict[Place, dict[str, float]] = {}
    for kind, level, coefficient, shift in shifts:
        of_level = by_level.setdefault((kind, level), {})
        of_level[coefficient] = of_level.get(coefficient, 0.0) + float(shift)
    return tuple(LevelEffect(kind, level, tuple(sorted(own.items()))) for (kind, level), own in by_level.items())


@dataclass(frozen=True)
class Effects:
    """Effects of a record, with lookup.

    Attributes:
        entries: the effects; effects of factors absent from the table of coefficients are ignored.
        spec: table of the coefficients.
    """

    entries: tuple[LevelEffect, ...]
    spec: Spec

    def combinations(self, levels: Levels, also: Iterable[str] = ()) -> tuple[Levels, Int[np.ndarray, " row"]]:
        """Distinct combinations of levels with effects, and the combination index of each run [row].

        For the factors in `also`, levels without an effect are kept too.
        """
        levels = self.spec.stand_ins.applied(levels, self.by_kind)
        moving: dict[str, Callable[[str], bool]] = {}
        for kind in self.spec.kinds:
            moving[kind] = (lambda _: True) if kind in also else self.by_kind.get(kind, {}).__contains__
        return levels.only(moving).distinct()

    def shifts(self, combinations: Levels) -> Float[np.ndarray, "row coefficient"]:
        """Sum of the effects of each combination of levels, on coordinates [1], [row, coefficient]."""
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
        """Shifts of every level by factor and name [coefficient]."""
        shifts: dict[str, dict[str, np.ndarray]] = {}
        for effect in self.entries:
            row = shifts.setdefault(effect.kind, {}).setdefault(effect.level, np.zeros(len(self.spec.names)))
            row += self.spec.column(dict(effect.shifts))
        return shifts
