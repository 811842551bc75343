r"""Result of `best_fleet_plan`: ranked modes, time and shares of each, worth of islands, prices of links.

A price is the elasticity of the throughput, $\partial \ln v / \partial \ln x$, at optimal shares: by the envelope
theorem, the gradient at fixed shares equals the gradient with re-optimised shares.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxscale.base.arrays import host_arrays, number, with_fields
from jaxscale.base.jit import small_jit
from jaxscale.base.units import GB, GBIT
from jaxscale.islands.fleet import PerIsland, PerPair, host_rate
from jaxscale.islands.island_plans import whole_shares
from jaxscale.islands.mode_scores import (
    FLEETS_AT_A_TIME,
    FleetStudy,
    PipelineChoice,
    SetScore,
    compared_rounds,
    host_microbatch,
    host_steps,
    mode_index,
    sub_job,
    subset_speeds,
    surveyed,
    whole_delay,
    with_scaled_links,
)
from jaxscale.islands.modes import LOOSE_MODES, MODES, IslandJob, mode_speed, pipeline_step
from jaxscale.islands.pipeline_split import least_divided
from jaxscale.plans.plan import Plan

Band = tuple[float, float]
"""Ends of a central 90 % interval."""


@dataclass(frozen=True)
class ScoredMode:
    """Mode of joint training on a set of islands, with throughput, days to the loss and shares.

    Attributes:
        mode: one of `MODES`, or `alone`.
        islands: names of the active islands, in the order of the ring or chain.
        tokens_per_s: throughput of all active islands [token/s].
        days: days to the loss [day]; nan if the loss is out of reach.
        band: 90 % interval of the days [day].
        inner_steps: H, steps between two exchanges [1].
        shares: shares of the batch, or of the layers in a pipeline, by island [1].
        amounts: whole sequences, or whole layers in a pipeline, by island.
        terms: time of a round (H steps and an exchange) by cause [s].
        work: compute of each island in a round [s].
        replicas: islands that train apart; 0 if islands exchange every step [1].
        relaxed_gap: relative excess of the time with whole over the time with divisible shares [1].
    """

    mode: str
    islands: tuple[str, ...]
    tokens_per_s: float
    days: float
    band: Band
    inner_steps: float
    shares: Mapping[str, float]
    amounts: Mapping[str, int]
    terms: Mapping[str, float] = field(repr=False)
    work: Mapping[str, float] = field(repr=False)
    replicas: int = 0
    relaxed_gap: float = 0.0

    @property
    def utilisation(self) -> float:
        """Compute time of the slowest island over the time of a round [1]."""
        computing = sum(self.terms.get(name, 0.0) for name in ("compute", "imbalance"))
        return computing / sum(self.terms.values())

    def to_json(self) -> dict[str, Any]:
        """Mode for the JSON document."""
        return {
            "mode": self.mode,
            "islands": list(self.islands),
            "tokens_per_s": self.tokens_per_s,
            "days_to_loss": self.days,
            "days_to_loss_interval": list(self.band),
            "inner_steps": self.inner_steps,
            "shares": dict(self.shares),
            "amounts": dict(self.amounts),
            "utilisation": self.utilisation,
            "terms_s": dict(self.terms),
            "work_s": dict(self.work),
            "relaxed_gap": self.relaxed_gap,
        }


class FurtherMode(NamedTuple):
    """Published mode of joint training on its best set of islands.

    Attributes:
        mode: name of the mode.
        islands: names of the active islands, in the order of the ring or chain.
        tokens_per_s: throughput of all active islands [token/s].
        days: days to the loss; None without a published or stated penalty, infinite for a loss out of reach [day].
        band: 90 % interval of the days [day].
        inner_steps: H, steps between two exchanges; 1 without any exchange [1].
        words: least share of the activations sent over a link [1].
        factor: tokens over the tokens of synchronous islands; None if neither published nor stated [1].
        evidence: text on the measurement of the factor.
    """

    mode: str
    islands: tuple[str, ...]
    tokens_per_s: float
    days: float | None
    band: Band | None
    inner_steps: float
    words: float
    factor: float | None
    evidence: str


@dataclass(frozen=True)
class BandwidthSweep:
    """Throughput and days to the loss of all islands, as a function of the bandwidth of the links.

    Attributes:
        bandwidth: bandwidth of the slowest link [byte/s], [point].
        tokens_per_s: throughput at the best number of inner steps, by mode [token/s], [point].
        gain: days of the best island alone over days, by mode [1], [point].
        days: days of the best mode [day], [point].
        break_even: least bandwidth of the slowest link for fewer days than the best island alone; inf if the fleet
            is never faster, 0 if always [byte/s].
    """

    bandwidth: Float[np.ndarray, " point"]
    tokens_per_s: Mapping[str, Float[np.ndarray, " point"]]
    gain: Mapping[str, Float[np.ndarray, " point"]]
    days: Float[np.ndarray, " point"]
    break_even: float


@dataclass(frozen=True)
class IslandsChoice:
    """Best mode of joint training on a fleet: result of `best_fleet_plan`.

    Attributes:
        best: mode of the fewest days.
        modes: every mode on its best set of islands, and each island alone, by increasing days.
        worth: days without an island over days with the island, by island [1].
        prices: elasticity of the throughput in the numbers of links and islands, by group and name [1].
        sweep: days as a function of the bandwidth of the links; None if fewer than two islands hold the model.
        loss: target loss [nat per token].
        best_inner_steps: central 90 % interval of the best number of inner steps over draws of the laws [1].
        rise: central 90 % interval of the relative rise of the loss of two replicas at 30 inner steps [1].
        plans: plan of each island, by name.
        memory: allocated memory of the fullest chip under the plan [byte], by name.
        further: modes outside the ranking, with penalties measured on different networks or not measured.
        notes: remarks in words.
    """

    best: ScoredMode
    modes: tuple[ScoredMode, ...]
    worth: Mapping[str, float]
    prices: Mapping[str, Mapping[str, float]]
    sweep: BandwidthSweep | None
    loss: float
    best_inner_steps: Band
    rise: Band
    plans: Mapping[str, Plan] = field(repr=False)
    memory: Mapping[str, float] = field(repr=False)
    further: tuple[FurtherMode, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def sign_is_open(self) -> bool:
        """Whether the interval of the rise of the loss of two replicas includes zero."""
        return self.rise[0] < 0.0 < self.rise[1]

    def to_json(self) -> dict[str, Any]:
        """Document of `jaxscale islands --json`."""
        sweep = self.sweep
        return {
            "best": self.best.to_json(),
            "tokens_per_s": self.best.tokens_per_s,
            "days_to_loss": self.best.days,
            "days_to_loss_interval": list(self.best.band),
            "loss": self.loss,
            "modes": [scored.to_json() for scored in self.modes],
            "prices": {kind: dict(entries) for kind, entries in self.prices.items()},
            "worth": dict(self.worth),
            "break_even_gbit_per_s": None if sweep is None else sweep.break_even / GBIT,
            "best_inner_steps_interval": list(self.best_inner_steps),
            "rise_of_two_replicas_interval": list(self.rise),
            "sign_of_two_replicas_open": self.sign_is_open,
            "plans": {name: plan.words() for name, plan in self.plans.items()},
            "memory_gb": {name: held / GB for name, held in self.memory.items()},
            "further_modes": [mode._asdict() for mode in self.further],
            "notes": list(self.notes),
        }


SAMPLES = 100
"""Number of sampled laws for an interval [1]."""

NORMAL_90 = 1.6448536269514722
"""Half-width of a central 90 % interval in standard deviations of a normal distribution [1]."""


def described(study: FleetStudy, entry: SetScore) -> ScoredMode:
    """Mode with shares, time by cause and interval of the days, from the score of the mode."""
    names = [study.fleet.names[island] for island in entry.subset]
    job = sub_job(study.job, entry.subset)
    details = _batch_details(study, entry, job) if entry.pipeline is None else _pipeline_details(entry.pipeline, job)
    total, (low, high) = details.amounts.sum(), band_of(days_samples(study, entry))
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
    """Whole shares of an entry, and the round time of each island."""

    amounts: np.ndarray
    terms: dict[str, float]
    work: np.ndarray
    gap: float
    slower: float = 1.0


def _batch_details(study: FleetStudy, entry: SetScore, job: IslandJob) -> _Details:
    """Whole sequences of each island in a mode whose islands hold all layers."""
    whole = whole_shares(job.pace, round(number(job.sequences)))
    steps = host_steps(job.pace, whole) * (whole > 0.0)
    if entry.mode == "alone":
        alone = study.plans.alone_time[list(entry.subset)]
        return _Details(whole, {"compute": float(alone[0])}, alone, 0.0)
    relaxed, exact, period = compared_rounds(job, entry.mode, study.grid[entry.period], whole / whole.sum())
    slower = sum(exact.values()) / sum(relaxed.values())
    # Scores include the delay of whole shares; the terms need the exposed remainder after overlap.
    delay = whole_delay(job) * period / sum(relaxed.values())
    return _Details(whole, exact, steps * period, slower - 1.0, slower / (1.0 + delay))


def _pipeline_details(pipeline: PipelineChoice, job: IslandJob) -> _Details:
    """Whole layers of each island in a pipeline, with a bound by divisible layers and no hops."""
    whole = host_steps(job.pace, job.sequences) * pipeline.layers / number(job.n_layers)
    busiest = float(whole.max())
    # Mean work is compute, waiting for the slowest stage is imbalance.
    terms = {"compute": float(whole.mean()), "imbalance": busiest - float(whole.mean())}
    terms["exchange"] = pipeline.time - busiest
    return _Details(pipeline.layers, terms, whole, pipeline.time / _relaxed_pipeline(job) - 1.0)


def _relaxed_pipeline(job: IslandJob) -> float:
    """Lower bound of the time of a step: divisible layers, without hops [s]."""
    size = host_microbatch(job)
    # Microbatches of the pipeline: B over sequences at a time.
    return least_divided(np.asarray(job.pace.seconds_per_sequence) * size, number(job.sequences) / size)


def days_samples(study: FleetStudy, entry: SetScore) -> Float[np.ndarray, " sample"]:
    """Random draws of the days of a mode under the uncertainty of step times and laws [day], [sample]."""
    # The widest interval of the islands counts.
    half = float(np.max(study.plans.halfwidth[list(entry.subset)]))
    scatter = np.random.default_rng(0).standard_normal(SAMPLES) * half / NORMAL_90
    if entry.mode in LOOSE_MODES:
        days = _sampled_days(study, entry)[entry.period]
    else:
        # Only tokens depend on the drawn laws.
        days = entry.days * study.tokens.synchronous[1:] / study.tokens.synchronous[0]
    # The loss may be out of reach under a sampled law.
    return np.where(np.isfinite(days), days, np.inf) * np.exp(scatter)


def _sampled_days(study: FleetStudy, entry: SetScore) -> np.ndarray:
    """Days of a loose mode at every number of inner steps under each sampled law [day], [period, sample]."""
    place, apart = LOOSE_MODES.index(entry.mode), len(entry.subset)
    speeds = subset_speeds(study.job, [entry.subset], study.grid)[entry.subset][mode_index(entry.mode)]
    speeds = study.delayed(entry.subset, speeds)
    return study.days(study.tokens.loose[1:, place, apart - 1].T, speeds[:, None], study.chips(entry.subset, True))


def period_band(study: FleetStudy, best: SetScore) -> Band:
    """90 % interval of the best number of inner steps over draws of the laws of looseness [1]."""
    days = _sampled_days(study, best)
    reached = np.where(np.isfinite(days), days, np.inf)
    # Laws with the loss out of reach have no best number of steps.
    kept = reached[:, np.isfinite(reached).any(axis=0)]
    if not kept.size:
        return study.grid[best.period], study.grid[best.period]
    return band_of(np.asarray(study.grid)[np.argmin(kept, axis=0)])


def band_of(values: np.ndarray) -> Band:
    """Ends of the central 90 % interval of random draws."""
    # Nearest: interpolation with inf would give nan.
    low, high = np.quantile(values, [0.05, 0.95], method="nearest")
    return float(low), float(high)


BANDWIDTH_FACTORS = np.geomspace(1e-4, 1e4, FLEETS_AT_A_TIME)
"""Factors on the bandwidth of all links in a sweep [1]."""


class _Scales(eqx.Module):
    """Logarithms of factors on bandwidths and latencies of links, uplinks, and paces of islands."""

    bandwidth: PerPair
    latency: PerPair
    uplink: PerIsland
    pace: PerIsland


def _no_change(count: int) -> _Scales:
    square, row = np.zeros((count, count)), np.zeros(count)
    return _Scales(square, square, row, row)


def _scaled(job: IslandJob, scales: _Scales) -> IslandJob:
    """Job with factors on links and islands."""
    links = with_fields(
        job.links,
        {
            "bandwidth": job.links.bandwidth * jnp.exp(scales.bandwidth),
            "latency": job.links.latency * jnp.exp(scales.latency),
            "uplink": job.links.uplink * jnp.exp(scales.uplink),
        },
    )
    # A faster island takes less time for offset and sequences alike.
    faster = jnp.exp(-scales.pace)
    changes = {name: getattr(job.pace, name) * faster for name in ("base_time", "seconds_per_sequence")}
    pace = with_fields(job.pace, changes)
    fields = {name: getattr(job, name) for name in job.__dataclass_fields__}
    return IslandJob(**{**fields, "links": links, "pace": pace})


@small_jit
def _elasticities(job: IslandJob, scales: _Scales, mode: str, inner_steps: Any, layer_share: Any) -> _Scales:
    def log_speed(point: _Scales) -> Array:
        moved = _scaled(job, point)
        if mode == "alone":
            return jnp.log(moved.tokens / moved.pace.step(moved.sequences)[0])
        if layer_share is not None:
            return jnp.log(moved.tokens / pipeline_step(moved, layer_share))
        return jnp.log(mode_speed(moved, mode, inner_steps))

    # Envelope theorem: gradients at fixed shares price the re-optimised pace.
    return jax.grad(log_speed)(scales)


def price_table(
    job: IslandJob, mode: str, inner_steps: float, layer_share: np.ndarray | None, names: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Elasticity of the throughput in the bandwidths, latencies, uplinks and islands used by a mode.

    Args:
        job: model and active islands, in order.
        mode: one of `MODES`, or `alone`.
        inner_steps: H, steps between two exchanges [1].
        layer_share: layer share of each island of a pipeline; None for all further modes [1], [island].

    Returns:
        Elasticity by group (`links`, `latencies`, `uplinks`, `islands`) and name [1]; links without effect
        are omitted.
    """
    job = host_arrays(job)
    arguments = (np.asarray(inner_steps), None if layer_share is None else np.asarray(layer_share))
    prices = jax.tree.map(np.asarray, _elasticities(job, _no_change(len(names)), mode, *arguments))
    table: dict[str, dict[str, float]] = {"links": {}, "latencies": {}, "uplinks": {}, "islands": {}}
    for row, sender in enumerate(names):
        table["islands"][sender] = float(prices.pace[row])
        if prices.uplink[row]:
            table["uplinks"][sender] = float(prices.uplink[row])
        for column, receiver in enumerate(names):
            for kind, matrix in (("links", prices.bandwidth), ("latencies", prices.latency)):
                if row != column and matrix[row, column]:
                    table[kind][f"{sender} -> {receiver}"] = float(matrix[row, column])
    return table


def break_even_sweep(
    job: IslandJob, inner_steps: Sequence[float], synchronous_work: float, loose_work: np.ndarray, alone: float
) -> BandwidthSweep:
    """Throughput and days of a fleet as a function of the bandwidth of all links, with the break-even.

    Args:
        inner_steps: H, steps between two exchanges [1], [period].
        synchronous_work: tokens of a run times slowdown, over seconds per day, for modes with exchange in every step.
        loose_work: tokens times slowdown, over seconds per day, for modes of `LOOSE_MODES` [mode, period].
        alone: days of the best island alone [day].
    """
    speeds = surveyed([with_scaled_links(job, factor) for factor in BANDWIDTH_FACTORS], inner_steps)
    work = np.full(speeds.shape[1:], synchronous_work)
    for place, mode in enumerate(LOOSE_MODES):
        work[mode_index(mode)] = np.where(np.isfinite(loose_work[place]), loose_work[place], np.inf)
    days = work / speeds
    # (points, modes)
    best_period = np.argmin(days, axis=2)
    paces = np.take_along_axis(speeds, best_period[:, :, None], axis=2)[:, :, 0]
    fewest = days.min(axis=(1, 2))
    rate = host_rate(job.links)
    # The diagonal is no link.
    slowest = rate[~np.eye(len(rate), dtype=bool)].min()
    bandwidth = BANDWIDTH_FACTORS * slowest
    lines = {mode: paces[:, place] for place, mode in enumerate(MODES)}
    gain = {mode: alone / days[:, place].min(axis=1) for place, mode in enumerate(MODES)}
    return BandwidthSweep(bandwidth, lines, gain, fewest, _crossing(bandwidth, fewest, alone))


def _crossing(bandwidth: np.ndarray, days: np.ndarray, alone: float) -> float:
    """Bandwidth at which decreasing days equal the days of the best island alone [byte/s]."""
    better = days < alone
    if not better.any():
        return math.inf
    if better.all():
        return 0.0
    first = int(np.argmax(better))
    if first == 0:
        return 0.0
    # Days against bandwidth are interpolated in logarithms.
    logs = np.log(days[first - 1 : first + 1] / alone)
    share = logs[0] / (logs[0] - logs[1])
    return float(bandwidth[first - 1] * (bandwidth[first] / bandwidth[first - 1]) ** share)
