"""Scores of a fleet: every mode on every candidate set of islands, at its best number of inner steps."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxscale.base.arrays import number
from jaxscale.base.units import DAY
from jaxscale.islands.choice.mode_scores import (
    MOST_SUBSETS,
    PipelineChoice,
    Subset,
    TokenTable,
    best_pipeline,
    candidate_subsets,
    mode_index,
    ring_subset,
    sub_job,
    subset_speeds,
    whole_delay,
    without_each,
)
from jaxscale.islands.fleet import Fleet
from jaxscale.islands.island_plans import IslandPlans
from jaxscale.islands.looseness.fleet_days import LossGoal
from jaxscale.islands.modes import LOOSE_MODES, IslandJob

MOST_LEFT_OUT = 3
"""Islands that are left out of a large fleet at most, one after another [1]."""


class SetScore(NamedTuple):
    """A mode on a set of islands, before it is described."""

    mode: str
    subset: Subset
    period: int
    speed: float
    days: float
    pipeline: PipelineChoice | None = None


class FleetStudy(NamedTuple):
    """All that the scores of one fleet need."""

    job: IslandJob
    fleet: Fleet
    plans: IslandPlans
    goal: LossGoal
    tokens: TokenTable
    grid: Sequence[float]

    def chips(self, subset: Sequence[int], apart: bool) -> float:
        """Chips that one failure stops: of the largest island where islands train apart, else of all [1]."""
        counts = np.asarray(self.fleet.clusters.n_chips)[list(subset)]
        return float(counts.max() if apart else counts.sum())

    def delayed(self, subset: Sequence[int], speeds: np.ndarray) -> np.ndarray:
        """Paces with whole shares, which lengthen every step by the same time, whatever the mode [token/s]."""
        tokens = number(self.job.sequences) * number(self.job.pace.seq_len)
        return tokens / (tokens / speeds + whole_delay(sub_job(self.job, subset)))

    def days(self, tokens: np.ndarray | float, speed: np.ndarray | float, chips: float) -> Any:
        """Days of a run of some tokens at a pace [day]."""
        slowdown = float(self.goal.failure.slowdown(self.goal.total_params, chips))
        return np.asarray(tokens) / np.asarray(speed) * slowdown / DAY


def whole_islands(study: FleetStudy) -> list[int]:
    """Islands that hold all layers."""
    return [int(island) for island in np.flatnonzero(study.plans.layers >= number(study.job.n_layers))]


def set_scores(study: FleetStudy) -> list[SetScore]:
    """Every mode on every candidate set of islands, at its best number of inner steps."""
    whole, batch = whole_islands(study), number(study.job.sequences)
    tokens = batch * number(study.job.pace.seq_len)
    scored = []
    for island in whole:
        speed = tokens / float(study.plans.alone_time[island])
        days = float(study.days(study.tokens.synchronous[0], speed, study.chips([island], False)))
        scored.append(SetScore("alone", (island,), 0, speed, days))
    if len(whole) > 1:
        scored.extend(_joined_scores(study, candidate_subsets(whole)))
        scored.extend(_smaller_sets(study, scored, len(whole)))
    everyone = list(range(study.fleet.n_islands))
    for subset in candidate_subsets(everyone) if len(everyone) > 1 else []:
        pipeline = best_pipeline(study.job, subset, study.plans.layers)
        if pipeline is not None:
            speed = tokens / pipeline.time
            days = float(study.days(study.tokens.synchronous[0], speed, study.chips(subset, False)))
            scored.append(SetScore("pipeline", pipeline.order, 0, speed, days, pipeline))
    return [entry for entry in scored if math.isfinite(entry.days)]


def _joined_scores(study: FleetStudy, subsets: Sequence[Sequence[int]]) -> list[SetScore]:
    """Modes in which each island holds all layers, on sets of islands."""
    rings = [ring_subset(study.job, subset) for subset in subsets]
    paces = subset_speeds(study.job, rings, study.grid)
    return [entry for subset in rings for entry in _mode_scores(study, subset, paces[subset])]


def _smaller_sets(study: FleetStudy, scored: Sequence[SetScore], count: int) -> list[SetScore]:
    """Scores of sets that leave out one more island at a time, while that helps; none where all sets are scored."""
    more: list[SetScore] = []
    if count <= MOST_SUBSETS:
        return more
    best = min((entry for entry in scored if entry.mode != "alone"), key=lambda entry: entry.days)
    for _ in range(MOST_LEFT_OUT):
        if len(best.subset) == count or len(best.subset) < 3:
            return more
        count = len(best.subset)
        further = _joined_scores(study, without_each(sorted(best.subset)))
        more.extend(further)
        best = min([best, *further], key=lambda entry: entry.days)
    return more


def _mode_scores(study: FleetStudy, subset: Subset, speeds: np.ndarray) -> list[SetScore]:
    """Modes in which each island holds all layers, on one set of islands."""
    scored = []
    tokens, delay = (
        number(study.job.sequences) * number(study.job.pace.seq_len),
        whole_delay(sub_job(study.job, subset)),
    )
    # Whole shares lengthen every step by the same time, whatever the mode.
    speeds = tokens / (tokens / speeds + delay)
    speed = float(speeds[mode_index("data-parallel"), 0])
    days = float(study.days(study.tokens.synchronous[0], speed, study.chips(subset, False)))
    scored.append(SetScore("data-parallel", subset, 0, speed, days))
    for place, mode in enumerate(LOOSE_MODES):
        paces = speeds[mode_index(mode)]
        over = study.days(study.tokens.loose[0, place, len(subset) - 1], paces, study.chips(subset, True))
        if np.isfinite(over).any():
            period = int(np.nanargmin(over))
            scored.append(SetScore(mode, subset, period, float(paces[period]), float(over[period])))
    return scored
