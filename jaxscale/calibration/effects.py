"""Effects of levels on the coefficients: source or framework, chip, precision, kernel, release and so on, added up."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from jaxscale.calibration.coefficients import names
from jaxscale.calibration.levels import Levels
from jaxscale.calibration.seen import Seen

KINDS = (
    "framework",
    "gpu",
    "precision",
    "number_format",
    "attention_kernel",
    "fused_norm",
    "release",
    "release_gpu",
    "mixture",
    "architecture",
    "local_shape",
)
"""Kinds of level whose effects add to that of the source."""

OTHER_SOURCES = "framework_sources"
"""Kind of the effects that the sources of a framework foretell for a source that was never fitted."""


@dataclass(frozen=True)
class LevelEffect:
    """Shift of the unconstrained coefficients of runs that belong to one level.

    Attributes:
        kind: source, a kind of `KINDS`, or `OTHER_SOURCES`.
        level: its name.
        shifts: coefficient names and shifts of their log (or logit) [1].
    """

    kind: str
    level: str
    shifts: tuple[tuple[str, float], ...]


def total_shifts(effects: Sequence[LevelEffect], seen: Seen, levels: Levels) -> Float[np.ndarray, "row coefficient"]:
    """Sum of the effects of the levels of each run, on the unconstrained coefficients [row, coefficient].

    Args:
        effects: of the fit.
        seen: levels that the fit knows.
        levels: of the runs, with the fit's own source and framework filled in. A source that is not known has the
            effect `OTHER_SOURCES` of its framework. A run without a number format has that of its precision's name.

    Returns:
        The shifts [1].
    """
    shifts = _by_kind(effects)
    is_known = levels.has(lambda name: seen.knows("source", name), "source")
    of_source = _gather(shifts, "source", levels, "source")
    of_others = _gather(shifts, OTHER_SOURCES, levels, "framework")
    total = np.where(is_known[:, None], of_source, of_others)
    has_no_format = levels.missing("number_format")[:, None]
    for kind in KINDS:
        own = _gather(shifts, kind, levels, kind)
        if kind == "number_format":
            own = np.where(has_no_format, _gather(shifts, kind, levels, "precision"), own)
        total = total + own
    return total


def _by_kind(effects: Sequence[LevelEffect]) -> dict[str, dict[str, np.ndarray]]:
    """Shifts of every level by kind and name [coefficient]."""
    column = {name: index for index, name in enumerate(names())}
    shifts: dict[str, dict[str, np.ndarray]] = {}
    for effect in effects:
        row = shifts.setdefault(effect.kind, {}).setdefault(effect.level, np.zeros(len(column)))
        for name, shift in effect.shifts:
            row[column[name]] += shift
    return shifts


def _gather(
    shifts: dict[str, dict[str, np.ndarray]], kind: str, levels: Levels, kind_of_levels: str
) -> Float[np.ndarray, "row coefficient"]:
    """Shifts that one kind of effect gives each run, by the run's level of a kind [row, coefficient]."""
    of_kind, nothing = shifts.get(kind, {}), np.zeros(len(names()))
    if not of_kind or kind_of_levels not in levels.codes:
        return np.zeros((len(levels), len(names())))
    table = np.asarray([*(of_kind.get(name, nothing) for name in levels.names[kind_of_levels]), nothing])
    return table[levels.codes[kind_of_levels]]
