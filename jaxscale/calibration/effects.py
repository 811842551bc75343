"""Effects of levels on the coefficients: software stack, chip, number format and so on, added up."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from jaxscale.calibration.anchors import anchor_shifts
from jaxscale.calibration.coefficients import names
from jaxscale.calibration.levels import Levels

CENTRE_KINDS = ("stack", "gpu", "number_format", "recipe", "company")
"""Kinds of level whose effects make up the centre, which answers for a stack that no fit knows."""

OFFSET_KINDS = ("source", "mixture", "local_shape")
"""Kinds of level whose effects set single stacks apart from the centre."""

KINDS = (*CENTRE_KINDS, *OFFSET_KINDS)
"""All kinds of level that have effects."""


@dataclass(frozen=True)
class LevelEffect:
    """Shift of the unconstrained coefficients of runs that belong to one level.

    Attributes:
        kind: one of `KINDS`.
        level: its name.
        shifts: coefficient names and shifts of their log (or logit) [1].
    """

    kind: str
    level: str
    shifts: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Effects:
    """Effects of levels that a fit knows.

    Attributes:
        entries: the effects.
    """

    entries: tuple[LevelEffect, ...]

    def combinations(self, levels: Levels) -> tuple[Levels, Int[np.ndarray, " row"]]:
        """Each combination of levels that move coefficients once, and the combination that each run has.

        Args:
            levels: of the runs, with the fit's own source and framework filled in.

        Returns:
            The combinations, and their positions [row].
        """
        # A run without a number format has that of its precision's name, as fp8 where it is not mxfp8.
        levels = levels.filled("number_format", "precision").or_usual()
        moving: dict[str, Callable[[str], bool]] = {kind: self._by_kind.get(kind, {}).__contains__ for kind in KINDS}
        moving["gpu"] = lambda _: True  # a chip without an effect still has an anchor
        return levels.only(moving).distinct()

    def shifts(self, combinations: Levels) -> Float[np.ndarray, "row coefficient"]:
        """Sum of the effects of the levels of each run, on the unconstrained coefficients.

        Args:
            combinations: of levels, as `combinations` returns them.

        Returns:
            The shifts [1], [row, coefficient].
        """
        total = anchor_shifts(combinations, self._by_kind.get("gpu", {}))
        for kind in KINDS:
            total = total + self._gather(kind, combinations)
        return total

    @functools.cached_property
    def _by_kind(self) -> dict[str, dict[str, np.ndarray]]:
        """Shifts of every level by kind and name [coefficient]."""
        column = {name: index for index, name in enumerate(names())}
        shifts: dict[str, dict[str, np.ndarray]] = {}
        for effect in self.entries:
            row = shifts.setdefault(effect.kind, {}).setdefault(effect.level, np.zeros(len(column)))
            for name, shift in effect.shifts:
                row[column[name]] += shift
        return shifts

    def _gather(self, kind: str, levels: Levels) -> Float[np.ndarray, "row coefficient"]:
        """Shifts that the level of one kind gives each run [row, coefficient]."""
        of_kind, nothing = self._by_kind.get(kind, {}), np.zeros(len(names()))
        if not of_kind or kind not in levels.codes:
            return np.zeros((len(levels), len(nothing)))
        table = np.asarray([*(of_kind.get(name, nothing) for name in levels.names[kind]), nothing])
        return table[levels.codes[kind]]
