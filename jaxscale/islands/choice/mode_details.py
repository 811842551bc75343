"""Modes in full: whole shares, terms of a round, and intervals of the days."""

from typing import NamedTuple

import numpy as np

from jaxscale.base.arrays import number
from jaxscale.islands.batch_shares import whole_shares
from jaxscale.islands.choice.fleet_scores import FleetStudy, SetScore
from jaxscale.islands.choice.islands_choice import Band, ScoredMode
from jaxscale.islands.choice.mode_scores import (
    PipelineChoice,
    compared_rounds,
    host_microbatch,
    host_steps,
    mode_index,
    sub_job,
    subset_speeds,
    whole_delay,
)
from jaxscale.islands.modes import LOOSE_MODES, IslandJob
from jaxscale.islands.pipeline_split import least_divided

SAMPLES = 100
"""Samples of the laws behind an interval [1]."""

NORMAL_90 = 1.6448536269514722
"""Standard deviations of half a central 90 % interval [1]."""


def described(study: FleetStudy, entry: SetScore) -> ScoredMode:
    """An entry with shares, terms and the interval of its days."""
    names = [study.fleet.names[island] for island in entry.subset]
    job = sub_job(study.job, entry.subset)
    details = _batch_details(study, entry, job) if entry.pipeline is None else _pipeline_details(entry.pipeline, job)
    total, (low, high) = details.amounts.sum(), _days_band(study, entry)
    return ScoredMode(
        mode=entry.mode,
        islands=tuple(names),
        tokens_per_s=entry.speed / details.slower,
        days=entry.days * details.slower,
        band=(low * details.slower, high * details.slower),
        inner_steps=study.grid[entry.period] if entry.mode in LOOSE_MODES else 1.0,
        shares=dict(zip(names, (details.amounts / total).tolist(), strict=True)),
        amounts=dict(zip(names, details.amounts.astype(int).tolist(), strict=True)),
        terms=details.terms,
        work=dict(zip(names, details.work.tolist(), strict=True)),
        replicas=len(entry.subset) if entry.mode in LOOSE_MODES else 0,
        relaxed_gap=details.gap,
    )


class _Details(NamedTuple):
    """Whole shares of an entry, and the time of one round on each island."""

    amounts: np.ndarray
    terms: dict[str, float]
    work: np.ndarray
    gap: float
    slower: float = 1.0


def _batch_details(study: FleetStudy, entry: SetScore, job: IslandJob) -> _Details:
    """Whole sequences of each island in a mode in which each holds all layers."""
    whole = whole_shares(job.pace, round(number(job.sequences)))
    steps = host_steps(job.pace, whole) * (whole > 0.0)
    if entry.mode == "alone":
        alone = study.plans.alone_time[list(entry.subset)]
        return _Details(whole, {"compute": float(alone[0])}, alone, 0.0)
    relaxed, exact, period = compared_rounds(job, entry.mode, study.grid[entry.period], whole / whole.sum())
    slower = sum(exact.values()) / sum(relaxed.values())
    # Scores count the delay of whole shares already; what is left is how much of it an exchange hides.
    delay = whole_delay(job) * period / sum(relaxed.values())
    return _Details(whole, exact, steps * period, slower - 1.0, slower / (1.0 + delay))


def _pipeline_details(pipeline: PipelineChoice, job: IslandJob) -> _Details:
    """Whole layers of each island in a pipeline, over a bound by layers that divide at will and no hops."""
    whole = host_steps(job.pace, job.sequences) * pipeline.layers / number(job.n_layers)
    busiest = float(whole.max())
    terms = {"compute": float(whole.mean()), "imbalance": busiest - float(whole.mean())}
    terms["exchange"] = pipeline.time - busiest
    return _Details(pipeline.layers, terms, whole, pipeline.time / _relaxed_pipeline(job) - 1.0)


def _relaxed_pipeline(job: IslandJob) -> float:
    """Time of a step of layers that divide at will over the same islands without hops, a lower bound [s]."""
    size = host_microbatch(job)
    return least_divided(np.asarray(job.pace.seconds_per_sequence) * size, number(job.sequences) / size)


def _days_band(study: FleetStudy, entry: SetScore) -> Band:
    """Interval of the days of an entry, from the scatter of step times and of laws [day]."""
    half = float(np.max(study.plans.halfwidth[list(entry.subset)]))
    scatter = np.random.default_rng(0).standard_normal(SAMPLES) * half / NORMAL_90
    if entry.mode in LOOSE_MODES:
        days = _sampled_days(study, entry)[entry.period]
    else:
        days = entry.days * study.tokens.synchronous[1:] / study.tokens.synchronous[0]
    # Under some laws the loss may be out of reach.
    return band_of(np.where(np.isfinite(days), days, np.inf) * np.exp(scatter))


def _sampled_days(study: FleetStudy, entry: SetScore) -> np.ndarray:
    """Days of a loose mode at every number of inner steps under each sample of the laws [day], [period, sample]."""
    place, apart = LOOSE_MODES.index(entry.mode), len(entry.subset)
    speeds = subset_speeds(study.job, [entry.subset], study.grid)[entry.subset][mode_index(entry.mode)]
    speeds = study.delayed(entry.subset, speeds)
    return study.days(study.tokens.loose[1:, place, apart - 1].T, speeds[:, None], study.chips(entry.subset, True))


def period_band(study: FleetStudy, best: SetScore) -> Band:
    """Interval of the best number of inner steps over laws of looseness [1]."""
    days = _sampled_days(study, best)
    reached = np.where(np.isfinite(days), days, np.inf)
    # Laws under which the loss is out of reach prefer no number of steps.
    kept = reached[:, np.isfinite(reached).any(axis=0)]
    if not kept.size:
        return study.grid[best.period], study.grid[best.period]
    return band_of(np.asarray(study.grid)[np.argmin(kept, axis=0)])


def band_of(values: np.ndarray) -> Band:
    """Ends of the central 90 % of sampled values."""
    low, high = np.quantile(values, [0.05, 0.95], method="nearest")
    return float(low), float(high)
