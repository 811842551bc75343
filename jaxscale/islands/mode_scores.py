"""Scores of modes of joint training on sets of islands: throughput, required tokens and days to the loss."""

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from jaxscale.base.arrays import host_arrays, in_blocks_of, number, stacked, with_fields
from jaxscale.base.jit import small_jit
from jaxscale.base.units import DAY
from jaxscale.islands.fleet import Fleet, host_rate, part_of_links
from jaxscale.islands.fleet_days import LossGoal, tokens_needed
from jaxscale.islands.island_plans import IslandPlans, Pace, least_finish, whole_shares
from jaxscale.islands.modes import (
    ACTIVATION_BYTES,
    LOOSE_MODES,
    MODES,
    WHOLE_MODES,
    IslandJob,
    loose_plan,
    survey_fleets,
)
from jaxscale.islands.pipeline_split import MOST_PERMUTED, PLAIN, ChainWay, best_cut, best_order, best_permutation
from jaxscale.islands.round_time import fleet_round

FLEETS_AT_A_TIME = 64
"""Fleets per call of `survey_fleets` [fleet]."""

MOST_SUBSETS = 5
"""Largest fleet with all sets of islands scored; sets of larger fleets lose islands successively [1]."""

Subset = tuple[int, ...]
"""Active islands, in the order of the ring or chain."""


class PipelineChoice(NamedTuple):
    """Pipeline with whole layers over islands.

    Attributes:
        order: islands in the order of the pipeline.
        layers: layers of each island, in the order of the pipeline [1].
        time: time of a step [s].
        words: least share of the activations sent over a link [1].
        microbatches: m, microbatches of a step [1].
    """

    order: Subset
    layers: np.ndarray
    time: float
    words: float = 1.0
    microbatches: float = 1.0


def host_steps(pace: Pace, sequences: Any) -> Float[np.ndarray, " island"]:
    """Step time of each island at a given batch, in numpy [s], [island]."""
    # t = t_0 + r (B - B_0)
    base, slow = np.asarray(pace.base_time), np.asarray(pace.seconds_per_sequence)
    return base + slow * (np.asarray(sequences) - np.asarray(pace.base_sequences))


def host_microbatch(job: IslandJob) -> float:
    """Sequences of a microbatch of a pipeline over islands, in numpy [sequence]."""
    return min(float(np.max(np.asarray(job.pace.microbatch))), float(np.asarray(job.sequences)))


def whole_delay(job: IslandJob) -> float:
    """Increase of the step time by whole instead of divisible batch shares [s]."""
    given = whole_shares(job.pace, round(float(np.asarray(job.sequences))))
    # Islands without a share take no time.
    exact = np.max(host_steps(job.pace, given) * (given > 0.0))
    return max(float(exact) - least_finish(job.pace, float(np.asarray(job.sequences))), 0.0)


@small_jit
def _compared(job: IslandJob, inner_steps: Any, shares: Any) -> Any:
    """Rounds of every mode with all layers on each island: terms with best and with given shares, and steps."""
    told = {}
    for mode in WHOLE_MODES:
        plan = loose_plan(job, mode, inner_steps)
        rounds = [
            fleet_round(job.pace, job.links, one, n_params=job.n_params, sequences=job.sequences)
            for one in (plan, with_fields(plan, {"batch_share": shares}))
        ]
        told[mode] = rounds[0].terms(), rounds[1].terms(), plan.period
    return told


def compared_rounds(
    job: IslandJob, mode: str, inner_steps: float, shares: np.ndarray
) -> tuple[dict[str, float], dict[str, float], float]:
    """Time of a round by cause, with the optimal divisible shares and with given shares.

    Args:
        mode: one of `WHOLE_MODES`.
        inner_steps: H, steps between two exchanges [1].
        shares: given shares of the batch [1], [island].

    Returns:
        Terms with divisible shares and with given shares, by name [s], and the steps of a round [1].
    """
    # One program evaluates all modes: compiling for a single mode would not take less time.
    relaxed, fixed, period = _compared(host_arrays(job), np.asarray(inner_steps), np.asarray(shares))[mode]
    plain = [{name: float(term) for name, term in terms.items()} for terms in (relaxed, fixed)]
    return plain[0], plain[1], float(period)


def sub_job(job: IslandJob, islands: Sequence[int]) -> IslandJob:
    """Job restricted to selected islands, in the given order."""
    changes = {"pace": job.pace.part(islands), "links": part_of_links(job.links, islands)}
    fields: dict[str, Any] = {name: getattr(job, name) for name in job.__dataclass_fields__}
    return IslandJob(**{**fields, **changes})


def ring_subset(job: IslandJob, islands: Sequence[int]) -> Subset:
    """Islands in the ring order with the least time of the slowest hop."""
    rate, latency = host_rate(job.links), np.asarray(job.links.latency)
    # Bytes of a hop of the ring, N / P in 32 bits, over the rate, and the latency.
    costs = float(np.asarray(job.n_params)) * 4.0 / (len(rate) * rate) + latency
    chosen = np.asarray(islands)
    return tuple(int(island) for island in chosen[best_order(costs[np.ix_(chosen, chosen)]).order])


def subset_speeds(
    job: IslandJob, subsets: Sequence[Subset], inner_steps: Sequence[float]
) -> dict[Subset, Float[np.ndarray, "mode period"]]:
    """Throughput of every mode on sets of at least two islands [token/s].

    Args:
        job: model and whole fleet.
        inner_steps: H, steps between two exchanges [1], [period].

    Returns:
        Throughput by set.
    """
    by_size: dict[int, list[Subset]] = {}
    for subset in subsets:
        # Fleets of equal size share a program.
        by_size.setdefault(len(subset), []).append(subset)
    paces = {}
    for group in by_size.values():
        table = surveyed([sub_job(job, subset) for subset in group], inner_steps)
        paces |= dict(zip(group, table, strict=True))
    return paces


def surveyed(jobs: Sequence[IslandJob], inner_steps: Sequence[float]) -> Float[np.ndarray, "fleet mode period"]:
    """Throughput in every mode of fleets with equal numbers of islands, by a single compiled program [token/s].

    Args:
        inner_steps: H, steps between two exchanges [1], [period].

    Returns:
        Throughput [fleet, mode, period].
    """
    together, periods = host_arrays((stacked(jobs), np.asarray(inner_steps, float)))
    return in_blocks_of(FLEETS_AT_A_TIME, lambda block: survey_fleets(block, periods), together)


def candidate_subsets(islands: Sequence[int]) -> list[tuple[int, ...]]:
    """Candidate sets of two or more islands: all sets of a small fleet, else all islands and all but each one."""
    count = len(islands)
    if count <= MOST_SUBSETS:
        sizes = range(2, count + 1)
        return [subset for size in sizes for subset in itertools.combinations(islands, size)]
    return [tuple(islands), *without_each(islands)]


def without_each(islands: Sequence[int]) -> list[tuple[int, ...]]:
    """Sets of islands with a single island removed."""
    return [tuple(other for other in islands if other != island) for island in islands]


class TokenTable(NamedTuple):
    """Tokens required by each mode to reach the loss, under the best laws and under each draw of the laws.

    Attributes:
        synchronous: tokens with exchange in every step [token], [1 + sample].
        loose: tokens of the modes `LOOSE_MODES`, by replicas from 1 on and inner steps [token],
            [1 + sample, mode, replica, period].
    """

    synchronous: Float[np.ndarray, " law"]
    loose: Float[np.ndarray, "law mode replica period"]


def hidden_share(mode: Any, inner_steps: Any) -> Any:
    """Share of the inner steps concurrent with an exchange: 1 / H in streaming, 0 in local updates [1]."""
    # Index of the mode: 0 local updates, 1 streaming.
    return mode / inner_steps


@small_jit
def _tokens(goals: LossGoal, batch: Any, modes: Any, replicas: Any, periods: Any) -> Any:
    def one(goal: LossGoal) -> Any:
        shares = hidden_share(modes[:, None, None], periods)
        return tokens_needed(goal, batch, replicas[:, None], periods, shares)

    return jax.vmap(one)(goals)


def token_table(goals: LossGoal, batch_tokens: float, most: int, inner_steps: Sequence[float]) -> TokenTable:
    """Tokens required by each mode to reach a target loss.

    Args:
        goals: target loss and laws, every leaf [1 + sample].
        batch_tokens: B, tokens per step [token].
        most: largest number of islands [1].
        inner_steps: H, steps between two exchanges [1], [period].
    """
    replicas, modes = np.arange(most + 1.0), np.arange(float(len(LOOSE_MODES)))
    aims, batch, periods = host_arrays((goals, np.asarray(batch_tokens), np.asarray(inner_steps, float)))
    table = np.asarray(_tokens(aims, batch, modes, replicas, periods))
    # Replicas 0 stand for exchange in every step.
    return TokenTable(table[:, 0, 0, 0], table[:, :, 1:])


UNBOUNDED = 1e6
"""Number of microbatches in the limit of a long pipeline, limited by the slowest stage alone [1]."""


def best_pipeline(
    job: IslandJob, islands: Sequence[int], layers_held: np.ndarray, way: ChainWay = PLAIN
) -> PipelineChoice | None:
    """Fastest pipeline of whole layers over islands, with exact cuts, over all orders if there are few islands.

    Args:
        job: model and whole fleet.
        islands: candidate islands.
        layers_held: largest number of layers in the memory of each island of the fleet [1], [island].
        way: coupling of the stages.

    Returns:
        The pipeline; None if the islands together do not hold the model.
    """
    chosen, depth = np.asarray(islands), round(float(np.asarray(job.n_layers)))
    # Every stage needs a layer.
    if not 2 <= len(chosen) <= depth or layers_held[chosen].sum() < depth:
        return None
    part = sub_job(job, islands)
    size = host_microbatch(part)
    microbatches = float(np.asarray(job.sequences)) / size
    layer = np.asarray(part.pace.seconds_per_sequence) * size / depth
    times, held = np.repeat(layer[:, None], depth, axis=1), layers_held[chosen]
    # Activations of a microbatch, b S d in 16 bits.
    volume = ACTIVATION_BYTES * job.d_model * size * job.pace.seq_len
    moving = np.asarray(volume) / host_rate(part.links)
    latency = np.asarray(part.links.latency)

    def cut(order: np.ndarray) -> PipelineChoice:
        hops, waits = moving[order[:-1], order[1:]], latency[order[:-1], order[1:]]
        # Cuts are made for the fewest words on each hop.
        fewest = way.words * way.least_words * hops
        found = best_cut(times[order], fewest, microbatches if way.waits else UNBOUNDED, waits, held[order])
        stages, share = layer[order] * found.layers, found.layers / depth
        # Offsets are in proportion to the layers held.
        offset = float(np.max(share * host_steps(part.pace, 0.0)[order]))
        time, words = way.time(stages, hops, microbatches, waits), float(way.sent(stages, hops).min())
        names = tuple(int(island) for island in chosen[order])
        return PipelineChoice(names, found.layers, time + offset, words, microbatches)

    if len(chosen) <= min(MOST_SUBSETS, MOST_PERMUTED):
        order, _ = best_permutation(lambda order: cut(order).time, len(chosen))
    else:
        order = best_order(moving + latency, "sum", closed=False).order
    return cut(order)


def with_scaled_links(job: IslandJob, factor: Any) -> IslandJob:
    """Job with the bandwidth of all links and uplinks multiplied by a factor."""
    links = job.links
    changes = {"bandwidth": links.bandwidth * factor, "uplink": links.uplink * factor}
    return IslandJob(
        **{**{name: getattr(job, name) for name in job.__dataclass_fields__}, "links": with_fields(links, changes)}
    )


def mode_index(mode: str) -> int:
    """Index of a mode in tables over modes."""
    return MODES.index(mode)


MOST_LEFT_OUT = 3
"""Largest number of islands removed from a large fleet [1]."""


class SetScore(NamedTuple):
    """Score of a mode of joint training on a set of islands.

    Attributes:
        mode: one of `MODES`, or `alone`.
        subset: indices of the islands.
        period: index of the number of inner steps in the grid.
        speed: throughput [token/s].
        days: days to the loss [day].
        pipeline: the pipeline, for the mode `pipeline`.
    """

    mode: str
    subset: Subset
    period: int
    speed: float
    days: float
    pipeline: PipelineChoice | None = None


class FleetStudy(NamedTuple):
    """Inputs of the scores of a fleet: job, fleet, plans, target loss, required tokens and grid of inner steps."""

    job: IslandJob
    fleet: Fleet
    plans: IslandPlans
    goal: LossGoal
    tokens: TokenTable
    grid: Sequence[float]

    @property
    def tokens_per_step(self) -> float:
        """Tokens of a step of all islands [token]."""
        return number(self.job.sequences) * number(self.job.pace.seq_len)

    def chips(self, subset: Sequence[int], apart: bool) -> float:
        """Number of chips stopped by a failure: the largest island if islands train apart, else all islands [1]."""
        counts = np.asarray(self.fleet.clusters.n_chips)[list(subset)]
        # Islands apart fail apart: a failure stops an island.
        return float(counts.max() if apart else counts.sum())

    def delayed(self, subset: Sequence[int], speeds: np.ndarray) -> np.ndarray:
        """Throughput with whole batch shares, from the throughput with divisible shares [token/s]."""
        tokens = self.tokens_per_step
        return tokens / (tokens / speeds + whole_delay(sub_job(self.job, subset)))

    def synchronous(
        self, mode: str, subset: Sequence[int], speed: float, pipeline: PipelineChoice | None = None
    ) -> SetScore:
        """Score of a mode with exchange in every step, on a set of islands in the given order."""
        days = float(self.days(self.tokens.synchronous[0], speed, self.chips(subset, False)))
        return SetScore(mode, tuple(subset), 0, speed, days, pipeline)

    def days(self, tokens: np.ndarray | float, speed: np.ndarray | float, chips: float) -> Any:
        """Duration of a run from tokens, throughput and the chips stopped by a failure [day]."""
        slowdown = float(self.goal.failure.slowdown(self.goal.total_params, chips))
        return np.asarray(tokens) / np.asarray(speed) * slowdown / DAY


def whole_islands(study: FleetStudy) -> list[int]:
    """Islands with memory for all layers."""
    return [int(island) for island in np.flatnonzero(study.plans.layers >= number(study.job.n_layers))]


def set_scores(study: FleetStudy) -> list[SetScore]:
    """Scores of every mode on every candidate set of islands, at the best number of inner steps."""
    whole, tokens = whole_islands(study), study.tokens_per_step
    scored = []
    for island in whole:
        scored.append(study.synchronous("alone", (island,), tokens / float(study.plans.alone_time[island])))
    if len(whole) > 1:
        scored.extend(_joined_scores(study, candidate_subsets(whole)))
        scored.extend(_smaller_sets(study, scored, len(whole)))
    everyone = list(range(study.fleet.n_islands))
    for subset in candidate_subsets(everyone) if len(everyone) > 1 else []:
        pipeline = best_pipeline(study.job, subset, study.plans.layers)
        if pipeline is not None:
            scored.append(study.synchronous("pipeline", pipeline.order, tokens / pipeline.time, pipeline))
    return [entry for entry in scored if math.isfinite(entry.days)]


def _joined_scores(study: FleetStudy, subsets: Sequence[Sequence[int]]) -> list[SetScore]:
    """Scores of modes with all layers on each island, on sets of islands."""
    rings = [ring_subset(study.job, subset) for subset in subsets]
    paces = subset_speeds(study.job, rings, study.grid)
    return [entry for subset in rings for entry in _mode_scores(study, subset, paces[subset])]


def _smaller_sets(study: FleetStudy, scored: Sequence[SetScore], count: int) -> list[SetScore]:
    """Scores of sets that lose islands successively, while the days decrease; empty if all sets are scored."""
    more: list[SetScore] = []
    if count <= MOST_SUBSETS:
        return more
    best = min((entry for entry in scored if entry.mode != "alone"), key=lambda entry: entry.days)
    for _ in range(MOST_LEFT_OUT):
        # The last removal did not help.
        if len(best.subset) == count or len(best.subset) < 3:
            return more
        count = len(best.subset)
        further = _joined_scores(study, without_each(sorted(best.subset)))
        more.extend(further)
        best = min([best, *further], key=lambda entry: entry.days)
    return more


def _mode_scores(study: FleetStudy, subset: Subset, speeds: np.ndarray) -> list[SetScore]:
    """Scores of modes with all layers on each island, on a set of islands."""
    # Whole shares lengthen every step by an equal time in all modes.
    speeds = study.delayed(subset, speeds)
    scored = [study.synchronous("data-parallel", subset, float(speeds[mode_index("data-parallel"), 0]))]
    for place, mode in enumerate(LOOSE_MODES):
        paces = speeds[mode_index(mode)]
        over = study.days(study.tokens.loose[0, place, len(subset) - 1], paces, study.chips(subset, True))
        if np.isfinite(over).any():
            period = int(np.nanargmin(over))
            scored.append(SetScore(mode, subset, period, float(paces[period]), float(over[period])))
    return scored
