"""What a fit starts from: which earlier fit answers for its runs, and whether that has seen their sources."""

import dataclasses
from collections.abc import Mapping, Sequence

from jaxscale.calibration.coefficients import Coefficients, from_values
from jaxscale.errors import InputError
from jaxscale.runs.arrays import Measured


def rows_of(levels: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Levels by kind of each run, of those of all runs by kind [row]."""
    return [dict(zip(levels, row, strict=True)) for row in zip(*levels.values(), strict=True)]


def levels_of(measured: Measured) -> list[dict[str, str]]:
    """Levels of each run by kind [row]."""
    return rows_of(measured.levels)


def named_as(start: Coefficients, measured: Measured) -> Measured:
    """The runs with the source and framework that a fit takes those to have that do not name their own."""
    record = start.calibration
    if record is None:
        return measured
    rows = [record.named(row) for row in levels_of(measured)]
    levels = {kind: tuple(str(row[kind]) for row in rows) for kind in measured.levels}
    return dataclasses.replace(measured, levels=levels)


def answering(start: Coefficients, measured: Measured) -> Coefficients:
    """The fit that answers for some runs: a start, or the one it started from, where only that has seen their like.

    Raises:
        InputError: the start answers for some of the runs and not for others.
    """
    record = start.calibration
    if record is None or record.origin is None:
        return start
    is_older = [record.origin_of(row) is not None for row in levels_of(measured)]
    if not any(is_older):
        return start
    if not all(is_older):
        raise InputError(
            f"{sum(is_older)} of {len(is_older)} runs are of a source or framework that {record.name!r} knows from the "
            "fit it started from alone, and the others are not; expected one kind: fit each from its own start"
        )
    return answering(from_values(record.origin.values, record.origin.record), measured)


def knows(start: Coefficients, measured: Measured) -> bool:
    """Whether a fit has seen the sources of all of some runs."""
    known = start.calibration.known_sources if start.calibration is not None else frozenset()
    return set(measured.levels["source"]) <= known
