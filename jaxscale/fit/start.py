"""What a fit starts from: which earlier fit answers for its runs, and whether that has seen their sources."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from jaxscale.calibration.levels import Levels
from jaxscale.calibration.record import Fit
from jaxscale.errors import InputError
from jaxscale.runs.arrays import Measured


def columns(levels: Mapping[str, Sequence[str]]) -> Levels:
    """Levels of runs given as one column of names for each kind."""
    return Levels.of_columns(levels, len(next(iter(levels.values()))))


def levels_of(measured: Measured) -> list[dict[str, str]]:
    """Levels of each run by kind [row]."""
    levels = measured.levels
    return [dict(zip(levels, row, strict=True)) for row in zip(*levels.values(), strict=True)]


def named_as(start: Fit, measured: Measured) -> Measured:
    """The runs with the source and framework that a fit gives those that name neither."""
    named = start.seen.named(columns(measured.levels))
    return dataclasses.replace(measured, levels={kind: tuple(named.column(kind)) for kind in measured.levels})


def answering(start: Fit, measured: Measured) -> Fit:
    """The fit that answers for some runs: a start, or its parent, where that alone knows their sources or frameworks.

    Raises:
        InputError: the start answers for some of the runs and not for others.
    """
    is_parents = start.seen.only_parent_knows(columns(measured.levels))
    if start.parent is None or not is_parents.any():
        return start
    if not is_parents.all():
        raise InputError(
            f"{np.sum(is_parents)} of {len(is_parents)} runs are of a source or framework that {start.name!r} knows "
            "from the fit it started from alone, and the others are not; expected one kind: fit each from its own start"
        )
    return answering(start.parent, measured)


def knows(start: Fit, measured: Measured) -> bool:
    """Whether a fit has seen the sources of all of some runs."""
    return set(measured.levels["source"]) <= start.known_sources
