"""Scores of modes on sets of islands: paces in one `vmap` per size of set, tokens by the law of looseness, days."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from jaxscale._arrays import host_arrays, stacked, with_fields
from jaxscale._compile.jit import filter_jit
from jaxscale.islands.batch_shares import least_finish, whole_shares
from jaxscale.islands.fleet import host_rate, part_of_links
from jaxscale.islands.looseness.fleet_days import LossGoal, sampled_tokens, tokens_needed
from jaxscale.islands.looseness.loose_law import LooseLaw
from jaxscale.islands.modes import (
    ACTIVATION_BYTES,
    LOOSE_MODES,
    MODES,
    IslandJob,
    loose_plan,
    survey_fleets,
)
from jaxscale.islands.pace import Pace
from jaxscale.islands.pipeline_split import best_cut
from jaxscale.islands.ring_order import MOST_PERMUTED, best_order, best_permutation
from jaxscale.islands.round_time import fleet_round

MOST_SUBSETS = 5
"""Islands up to which every set of them is scored; beyond, sets that leave out one more island at a time [1]."""

Subset = tuple[int, ...]
"""Islands that take part, in the order of the ring or chain."""


class PipelineChoice(NamedTuple):
    """Whole layers of a pipeline over islands.

    Attributes:
        order: islands of the chain.
        layers: of each island, in the order of the chain [1].
        time: of one step [s].
    """

    order: Subset
    layers: np.ndarray
    time: float


def host_steps(pace: Pace, sequences: Any) -> Float[np.ndarray, " island"]:
    """Time of a step of each island on a number of sequences, on the host [s], [island]."""
    base, slow = np.asarray(pace.base_time), np.asarray(pace.seconds_per_sequence)
    return base + slow * (np.asarray(sequences) - np.asarray(pace.base_sequences))


def host_microbatch(job: IslandJob) -> float:
    """Sequences that pass through a pipeline of islands at a time, on the host [sequence]."""
    return min(float(np.max(np.asarray(job.pace.microbatch))), float(np.asarray(job.sequences)))


def whole_delay(job: IslandJob) -> float:
    """Time by which a step takes longer where islands get whole granules than where shares divide at will [s]."""
    given = whole_shares(job.pace, round(float(np.asarray(job.sequences))))
    exact = np.max(host_steps(job.pace, given) * (given > 0.0))
    return max(float(exact) - least_finish(job.pace, float(np.asarray(job.sequences))), 0.0)


@filter_jit
def _compared(job: IslandJob, mode: str, inner_steps: Any, shares: Any) -> Any:
    plan = loose_plan(job, mode, inner_steps)
    fixed = with_fields(plan, {"batch_share": shares})
    rounds = [
        fleet_round(job.pace, job.links, one, n_params=job.n_params, sequences=job.sequences) for one in (plan, fixed)
    ]
    return rounds[0].terms(), rounds[1].terms(), plan.period


def compared_rounds(
    job: IslandJob, mode: str, inner_steps: float, shares: np.ndarray
) -> tuple[dict[str, float], dict[str, float], float]:
    """Terms of one round with shares that divide at will, and with given ones.

    Args:
        job: model and islands.
        mode: in which each island holds all layers.
        inner_steps: H [1].
        shares: of the batch [1], [island].

    Returns:
        Terms of both by name [s], and the steps of a round [1].
    """
    relaxed, fixed, period = _compared(host_arrays(job), mode, np.asarray(inner_steps), np.asarray(shares))
    plain = [{name: float(term) for name, term in terms.items()} for terms in (relaxed, fixed)]
    return plain[0], plain[1], float(period)


def sub_job(job: IslandJob, islands: Sequence[int]) -> IslandJob:
    """The job on some of its islands, in the given order."""
    changes = {"pace": job.pace.part(islands), "links": part_of_links(job.links, islands)}
    fields: dict[str, Any] = {name: getattr(job, name) for name in job.__dataclass_fields__}
    return IslandJob(**{**fields, **changes})


def ring_subset(job: IslandJob, islands: Sequence[int]) -> Subset:
    """Islands in the order of the ring whose slowest hop is fastest."""
    rate, latency = host_rate(job.links), np.asarray(job.links.latency)
    costs = float(np.asarray(job.n_params)) * 4.0 / (len(rate) * rate) + latency
    chosen = np.asarray(islands)
    return tuple(int(island) for island in chosen[best_order(costs[np.ix_(chosen, chosen)]).order])


def subset_speeds(
    job: IslandJob, subsets: Sequence[Subset], inner_steps: Sequence[float]
) -> dict[Subset, Float[np.ndarray, "mode period"]]:
    """Paces of every mode on sets of at least two islands [token/s].

    Args:
        job: model and whole fleet.
        subsets: sets of islands.
        inner_steps: H [1], [period].

    Returns:
        Paces by set.
    """
    by_size: dict[int, list[Subset]] = {}
    for subset in subsets:
        by_size.setdefault(len(subset), []).append(subset)
    paces = {}
    for group in by_size.values():
        jobs = host_arrays(stacked([sub_job(job, subset) for subset in group]))
        table = np.asarray(survey_fleets(jobs, np.asarray(inner_steps)))
        paces |= dict(zip(group, table, strict=True))
    return paces


def candidate_subsets(islands: Sequence[int]) -> list[tuple[int, ...]]:
    """Sets of at least two islands that are scored first: all of them where they are few, else all and all but one."""
    count = len(islands)
    if count <= MOST_SUBSETS:
        sizes = range(2, count + 1)
        return [subset for size in sizes for subset in itertools.combinations(islands, size)]
    return [tuple(islands), *without_each(islands)]


def without_each(islands: Sequence[int]) -> list[tuple[int, ...]]:
    """Sets of islands that leave out one of them."""
    return [tuple(other for other in islands if other != island) for island in islands]


class TokenTable(NamedTuple):
    """Tokens that modes need.

    Attributes:
        synchronous: where islands exchange every step [token].
        loose: of the loose modes, by replicas from 1 on and inner steps [token], [mode, replica, period].
    """

    synchronous: float
    loose: np.ndarray


def hidden_share(mode: Any, inner_steps: Any) -> Any:
    """Share of H during which a parameter is under way: one step in streaming, none in local updates [1]."""
    return mode / inner_steps


@filter_jit
def _tokens(goal: LossGoal, batch: Any, modes: Any, replicas: Any, periods: Any) -> Any:
    def one(mode: Any, count: Any, steps: Any) -> Any:
        return tokens_needed(goal, batch, count, steps, hidden_share(mode, steps))

    over_periods = jax.vmap(one, (None, None, 0))
    over_replicas = jax.vmap(over_periods, (None, 0, None))
    return jax.vmap(over_replicas, (0, None, None))(modes, replicas, periods)


@filter_jit
def _sampled(goal: LossGoal, samples: LooseLaw, batch: Any, modes: Any, replicas: Any, periods: Any) -> Any:
    def one(mode: Any, steps: Any) -> Any:
        return sampled_tokens(goal, samples, batch, replicas, steps, hidden_share(mode, steps))

    return jax.vmap(jax.vmap(one, (None, 0)), (0, None))(modes, periods)


def token_table(goal: LossGoal, batch_tokens: float, most: int, inner_steps: Sequence[float]) -> TokenTable:
    """Tokens that each mode needs for the goal.

    Args:
        goal: loss and laws.
        batch_tokens: B [token].
        most: islands at most [1].
        inner_steps: H [1], [period].

    Returns:
        The table.
    """
    replicas = np.arange(most + 1.0)
    modes = np.arange(float(len(LOOSE_MODES)))
    goal = host_arrays(goal)
    table = np.asarray(_tokens(goal, np.asarray(batch_tokens), modes, replicas, np.asarray(inner_steps)))
    return TokenTable(float(table[0, 0, 0]), table[:, 1:])


def sampled_loose_tokens(
    goal: LossGoal, samples: LooseLaw, batch_tokens: float, replicas: int, inner_steps: Sequence[float]
) -> Float[np.ndarray, "mode period sample"]:
    """Tokens that the loose modes need, for each law of looseness [token], [mode, period, sample]."""
    modes = np.arange(float(len(LOOSE_MODES)))
    aim, laws, batch = host_arrays((goal, samples, np.asarray(batch_tokens)))
    return np.asarray(_sampled(aim, laws, batch, modes, np.asarray(float(replicas)), np.asarray(inner_steps, float)))


def best_pipeline(job: IslandJob, islands: Sequence[int], layers_held: np.ndarray) -> PipelineChoice | None:
    """Best pipeline of whole layers over islands: exact cuts, in every order where islands are few.

    Args:
        job: model and whole fleet.
        islands: that may take part.
        layers_held: layers that the memory of each island of the fleet holds [1], [island].

    Returns:
        The pipeline; None where the islands together do not hold the model.
    """
    chosen, depth = np.asarray(islands), round(float(np.asarray(job.n_layers)))
    if not 2 <= len(chosen) <= depth or layers_held[chosen].sum() < depth:
        return None
    part = sub_job(job, islands)
    size = host_microbatch(part)
    microbatches = float(np.asarray(job.sequences)) / size
    layer = np.asarray(part.pace.seconds_per_sequence) * size / depth
    times, held = np.repeat(layer[:, None], depth, axis=1), layers_held[chosen]
    volume = ACTIVATION_BYTES * job.d_model * size * job.pace.seq_len
    moving = np.asarray(volume) / host_rate(part.links)
    latency = np.asarray(part.links.latency)

    def cut(order: np.ndarray) -> Any:
        hops = (moving[order[:-1], order[1:]], latency[order[:-1], order[1:]])
        return best_cut(times[order], hops[0], microbatches, hops[1], held[order])

    if len(chosen) <= min(MOST_SUBSETS, MOST_PERMUTED):
        order, _ = best_permutation(lambda order: cut(order).time, len(chosen))
    else:
        order = best_order(moving + latency, "sum", closed=False).order
    best = cut(order)
    share = best.layers / depth
    offset = float(np.max(share * host_steps(part.pace, 0.0)[order]))
    return PipelineChoice(tuple(int(island) for island in chosen[order]), best.layers, best.time + offset)


def with_scaled_links(job: IslandJob, factor: Any) -> IslandJob:
    """The job with the bandwidth of all links and uplinks multiplied by a factor."""
    links = job.links
    changes = {"bandwidth": links.bandwidth * factor, "uplink": links.uplink * factor}
    return IslandJob(
        **{**{name: getattr(job, name) for name in job.__dataclass_fields__}, "links": with_fields(links, changes)}
    )


def mode_index(mode: str) -> int:
    """Place of a mode in tables over modes."""
    return MODES.index(mode)
