r"""Plans and step times of islands, and batch shares for an equal finish of unequal islands.

The step time is affine in the batch: a step of island i on $B_i$ sequences takes

$$ t_i = o_i + r_i B_i, $$

with the time per sequence $r_i$ and a constant offset $o_i$ (fill and drain of pipelines, the exposed end of gradient
reductions, the optimizer). Offset and time per sequence follow from step times at two batches, evaluated in one
`jax.vmap`. The least time of the slowest island, $\min_{B_i} \max_i (o_i + r_i B_i)$ with $\sum_i B_i = B$, is reached
by an equal finish of all active islands,

$$ T^* = \frac{B + \sum_i o_i / r_i}{\sum_i 1 / r_i}, \qquad B_i = (T^* - o_i) / r_i , $$

where an island with $o_i > T^*$ gets no share (condition of Karush, Kuhn and Tucker). The equal finish is the fixed
point of schemes that move work away from late islands (Ma et al. 2021, arXiv 2110.07029).

The plan of an island is the fastest one for its batch share, or for the most layers that fit.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxscale.base.arrays import Number, as_float, number, with_fields
from jaxscale.base.errors import InputError
from jaxscale.base.smooth import larger
from jaxscale.base.units import GB, plural
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.calibration.record import Fit
from jaxscale.hardware.cluster import Cluster
from jaxscale.islands.fleet import Fleet, PerIsland, as_indexable
from jaxscale.models.transformer import Transformer
from jaxscale.plans.best_plan import plans_of_any_batch, stated_degrees
from jaxscale.plans.choice import nothing_valid
from jaxscale.plans.plan import Plan
from jaxscale.plans.plan_questions import every_plan, plan_question
from jaxscale.plans.score import PlanTask, time_plans

BACKWARD_SHARE = 2.0 / 3.0
"""Share of the backward pass in a step without recomputation: two of three multiply-adds [1]."""


class Pace(eqx.Module):
    """Step time of each island as an affine function of the island's batch.

    Attributes:
        base_time: step time at the batch `base_sequences` [s], [island].
        base_sequences: batch with a computed step time [sequence], [island].
        seconds_per_sequence: r, additional time per sequence [s], [island].
        granule: increment of an island's batch, one sequence per replica, dp [sequence], [island].
        microbatch: sequences that an island processes at a time, b dp [sequence], [island].
        seq_len: S, sequence length [token].
    """

    base_time: PerIsland
    base_sequences: PerIsland
    seconds_per_sequence: PerIsland
    granule: PerIsland
    microbatch: PerIsland
    seq_len: Number = eqx.field(converter=as_float)

    @property
    def offset(self) -> Array:
        """Offset o of the step time, independent of the batch [s], [island]."""
        # o = t - r B at the evaluated step.
        return jnp.asarray(self.base_time) - jnp.asarray(self.seconds_per_sequence) * jnp.asarray(self.base_sequences)

    @property
    def tokens_per_s(self) -> Array:
        """Throughput in the limit of a large batch, S / r [token/s], [island]."""
        return jnp.asarray(self.seq_len) / jnp.asarray(self.seconds_per_sequence)

    @property
    def gradient_window(self) -> Array:
        """Time of the backward pass of the last microbatch, in which gradients become ready [s], [island]."""
        return BACKWARD_SHARE * jnp.asarray(self.seconds_per_sequence) * jnp.asarray(self.microbatch)

    def step(self, sequences: ArrayLike) -> Array:
        """Step time of each island at a given batch [s], [island].

        Args:
            sequences: batch of each island [sequence], [island].

        Returns:
            Times; exactly `base_time` at `base_sequences`.
        """
        more = jnp.asarray(sequences) - jnp.asarray(self.base_sequences)
        return jnp.asarray(self.base_time) + jnp.asarray(self.seconds_per_sequence) * more

    def part(self, islands: Sequence[int] | np.ndarray) -> "Pace":
        """Step-time functions of selected islands, in the given order."""
        kept = np.asarray(islands, int)
        per_island = (self.base_time, self.base_sequences, self.seconds_per_sequence, self.granule, self.microbatch)
        base, sequences, slow, granule, microbatch = (as_indexable(leaf)[..., kept] for leaf in per_island)
        return Pace(base, sequences, slow, granule, microbatch, self.seq_len)


def pace_of_rates(
    tokens_per_s: ArrayLike,
    seq_len: ArrayLike,
    offset: ArrayLike = 0.0,
    granule: Any = 1.0,
    microbatch: Any = None,
) -> Pace:
    """Step-time functions of islands with given throughputs.

    Args:
        tokens_per_s: throughput in the limit of a large batch [token/s], [island].
        seq_len: S, sequence length [token].
        offset: offset of a step [s], [island].
        granule: increment of a batch [sequence], [island].
        microbatch: sequences processed at a time; by default the granule [sequence], [island].
    """
    rate = jnp.asarray(tokens_per_s)
    ones = jnp.ones_like(rate)
    taken = granule if microbatch is None else microbatch
    # Evaluated at an empty batch: the offset alone.
    return Pace(ones * offset, 0.0 * ones, jnp.asarray(seq_len) / rate, ones * granule, ones * taken, seq_len)


def island_paces(
    models: Sequence[Transformer],
    plans: Sequence[Plan],
    clusters: Cluster,
    coefficients: Sequence[Coefficients],
) -> Pace:
    """Step-time function of each island, from step times at the plan's batch and at twice as many microbatches.

    Args:
        models: the transformer, or its layers on the island, for each island.
        clusters: chips and networks, stacked [island].
        coefficients: fitted parameters of each island.
    """
    times = [_two_steps(*one) for one in zip(models, plans, _each(clusters), coefficients, strict=True)]
    first, second = np.asarray(times).T
    sequences = np.asarray([number(plan.global_batch_size_seqs) for plan in plans])
    dp, taken = (np.asarray([number(getattr(plan, name)) for plan in plans]) for name in ("dp", "micro_batch_size"))
    # Twice the microbatches are twice the sequences: the difference is r B.
    return Pace(first, sequences, (second - first) / sequences, dp, taken * dp, float(models[0].seq_len))


def _each(clusters: Cluster) -> list[Cluster]:
    """List of the clusters of a fleet."""
    count = len(np.asarray(clusters.n_chips))
    return [jax.tree.map(lambda leaf, island=island: np.asarray(leaf)[island], clusters) for island in range(count)]


def _two_steps(model: Transformer, plan: Plan, cluster: Cluster, coefficients: Coefficients) -> np.ndarray:
    """Step time of one island at its batch, and at twice as many microbatches [s]."""
    # A longer step of equal microbatches: t is affine in m.
    more = with_fields(plan, {"n_microbatches": 2.0 * number(plan.n_microbatches)})
    # The program that scores plans is already compiled; compiling a step would take seconds.
    return time_plans(model, [plan, more], cluster, coefficients)


def equal_finish(offset: ArrayLike, seconds_per_sequence: ArrayLike, sequences: ArrayLike) -> tuple[Array, Array]:
    """Least step time over all divisions of a batch between islands, and the optimal division.

    Args:
        offset: o, step time independent of the batch [s], [island].
        seconds_per_sequence: r, additional time per sequence [s], [island].
        sequences: B, batch of all islands together [sequence].

    Returns:
        Time T* [s]; sequences of each island [island]; both differentiable.
    """
    late, slow = jnp.asarray(offset), jnp.asarray(seconds_per_sequence)
    order = jnp.argsort(late)
    # The active islands are a prefix in order of offset; every longer or shorter prefix finishes later.
    work = jnp.cumsum(late[order] / slow[order])
    # Sum of 1 / r over the active islands.
    rate = jnp.cumsum(1.0 / slow[order])
    # T* = (B + sum o / r) / sum 1 / r, least over the prefixes.
    finish = jnp.min((jnp.asarray(sequences) + work) / rate)
    # An island with an offset beyond T* gets no share.
    return finish, larger((finish - late) / slow, 0.0)


def best_shares(pace: Pace, sequences: ArrayLike) -> Array:
    """Batch shares for an equal finish of all active islands [1], [island]."""
    _, given = equal_finish(pace.offset, pace.seconds_per_sequence, sequences)
    return given / jnp.sum(given)


def _host_times(pace: Pace) -> tuple[np.ndarray, np.ndarray]:
    """Offset and reciprocal pace on the host [s], [island]."""
    slow = np.asarray(pace.seconds_per_sequence, float)
    return np.asarray(pace.base_time, float) - slow * np.asarray(pace.base_sequences, float), slow


def least_finish(pace: Pace, sequences: float) -> float:
    """Time T* of an equal finish, as in `equal_finish`, in numpy [s]."""
    offset, slow = _host_times(pace)
    order = np.argsort(offset)
    work = np.cumsum((offset / slow)[order])
    return float(np.min((sequences + work) / np.cumsum(1.0 / slow[order])))


def whole_shares(pace: Pace, sequences: int) -> Float[np.ndarray, " island"]:
    """Batches of the islands in whole granules, for the least time of the slowest island.

    Each granule goes to the island with the earliest finish, which is optimal for increasing step-time
    functions and equal granules.

    Args:
        sequences: B, batch of all islands together [sequence].

    Returns:
        Batch of each island, with sum B [sequence], [island].

    Raises:
        InputError: a batch below one sequence.
    """
    if sequences < 1:
        raise InputError(f"batch = {sequences} is out of range; expected at least one sequence")
    offset, slow = _host_times(pace)
    # Host numbers: the heap below needs no device.
    granule = np.asarray(pace.granule, float)
    ideal = (least_finish(pace, float(sequences)) - offset) / slow
    # Most granules follow from the equal finish: no optimum is two granules below it on any island.
    given = granule * np.maximum(np.floor(ideal / granule) - 1.0, 0.0)
    finish = [(offset[i] + slow[i] * (given[i] + granule[i]), i) for i in range(len(granule))]
    heapq.heapify(finish)
    left = sequences - given.sum()
    while left > 0.0:
        _, island = heapq.heappop(finish)
        # The last granule of the batch may be cut.
        taken = min(granule[island], left)
        given[island] += taken
        left -= taken
        heapq.heappush(finish, (offset[island] + slow[island] * (given[island] + granule[island]), island))
    return given


FINENESS = 8
"""Batches are rounded to multiples of a power of two, at least 1 / `FINENESS` of the batch, for many divisors [1]."""

OOM_PROBABILITY = 0.1
"""Accepted probability of running out of memory, as in `js.best_plan` [1]."""


class IslandPlans(NamedTuple):
    """Plan and step-time function of each island.

    Attributes:
        plans: plan of each island.
        layers: layers on each island; all layers if the model fits [1], [island].
        pace: step times for the whole model, extrapolated for an island with a subset of the layers.
        alone_time: time of a step on the whole batch by the island's best plan; inf with a subset of the layers [s],
            [island].
        memory: peak of allocated memory on the fullest chip of each island [byte], [island].
        halfwidth: half of the 90 % interval of the log step time [1], [island].
    """

    plans: tuple[Plan, ...]
    layers: Float[np.ndarray, " island"]
    pace: Pace
    alone_time: Float[np.ndarray, " island"]
    memory: Float[np.ndarray, " island"]
    halfwidth: Float[np.ndarray, " island"]


def island_plans(
    model: Transformer,
    fleet: Fleet,
    sequences: int,
    *,
    fit: Fit,
    cells: Sequence[Mapping[str, Any]],
) -> IslandPlans:
    """Fastest plan of each island for a batch share proportional to the peak rate, with step-time functions.

    Args:
        sequences: B, batch of all islands together [sequence].
        cells: stated plan and software of each island, by column of a runs table, for example `gpu` and `framework`.

    Raises:
        InputError: an island without memory for a layer and a sequence.
    """
    # Batch shares by peak flop rate: paces are not known before plans.
    weights = np.asarray(fleet.clusters.n_chips) * np.asarray(fleet.clusters.chip.peak("bf16"))
    wanted = sequences * weights / weights.sum()
    plans, slices, coefficients, widths, alone, held = [], [], [], [], [], []
    for island, name in enumerate(fleet.names):
        question = plan_question(model, fleet.cluster(island), float(round_batch(wanted[island])), cells[island])
        task = question.task(fit, OOM_PROBABILITY)
        chosen, part = _plan_or_part(task, sequences, name)
        by_itself = _fastest(task._replace(batch=float(sequences))) if part is model else None
        alone.append(np.inf if by_itself is None else by_itself.step_time)
        plans.append(chosen.plan)
        held.append(chosen.memory)
        slices.append(part)
        coefficients.append(task.coefficients)
        widths.append(float(fit.interval(question.levels, question.n_chips).time))
    pace = whole_model_pace(model, plans, slices, fleet.clusters, coefficients)
    layers = np.asarray([number(part.n_layers) for part in slices])
    # A batch that is not divisible by any plan of an island is timed by the island's pace.
    steps = np.asarray(pace.base_time) + np.asarray(pace.seconds_per_sequence) * (
        sequences - np.asarray(pace.base_sequences)
    )
    times = np.where(np.isinf(alone) & (layers == number(model.n_layers)), steps, np.asarray(alone))
    return IslandPlans(tuple(plans), layers, pace, times, np.asarray(held), np.asarray(widths))


def round_batch(sequences: float) -> int:
    """Batch near a wanted batch, divisible by many degrees [sequence]."""
    # Least power of two of at least 1 / FINENESS of the batch.
    step = 2 ** max(math.floor(math.log2(max(sequences, 1.0) / FINENESS * 2.0)), 0)
    return max(round(sequences / step), 1) * step


def whole_model_pace(
    model: Transformer,
    plans: Sequence[Plan],
    slices: Sequence[Transformer],
    clusters: Cluster,
    coefficients: Sequence[Coefficients],
) -> Pace:
    """Step-time functions for the whole model on islands that hold only some layers.

    Args:
        slices: model reduced to the layers on each island.
        clusters: chips and networks, stacked [island].

    Returns:
        The functions, scaled from the layers on the island to the depth of the model.
    """
    pace = island_paces(slices, plans, clusters, coefficients)
    # Depth of the model over depth of the slice.
    stretch = np.asarray([number(model.n_layers) / number(part.n_layers) for part in slices])
    times = {name: np.asarray(getattr(pace, name)) * stretch for name in ("base_time", "seconds_per_sequence")}
    return with_fields(pace, times)


def _plan_or_part(task: PlanTask, sequences: int, name: str) -> tuple["_ScoredPlan", Transformer]:
    """Fastest plan that fits, of the whole model or of the most layers that fit on the island."""
    depth = int(number(task.model.n_layers))
    plan = _fastest(task)
    batch = task.stated_batch
    while plan is None and batch < sequences:
        # A small share may have fewer sequences than chips: the next power of two feeds more replicas.
        batch = float(min(2 ** math.ceil(math.log2(batch + 1.0)), sequences))
        plan = _fastest(task._replace(batch=batch))
    if plan is not None:
        return plan, task.model
    held, best = 0, None
    # Memory grows with layers: bisection for the most layers.
    low, high = 1, depth - 1
    while low <= high:
        layers = (low + high) // 2
        plan = _fastest(_slice(task, layers))
        if plan is None:
            high = layers - 1
        else:
            held, best, low = layers, plan, layers + 1
    if best is None:
        capacity, chips = number(task.cluster.chip.hbm_bytes) / GB, number(task.cluster.n_chips)
        named = name if name.startswith("island") else f"island {name}"
        # Stated degrees may allow no plan, whatever the memory.
        if not len(valid := plans_of_any_batch(task)):
            told = nothing_valid(task.model, chips, task.stated_batch, valid, stated_degrees(task))
            raise InputError(f"{named}: {told}")
        raise InputError(
            f"{named}: {chips:g} {plural(chips, 'chip')} of {capacity:g} GB cannot hold one layer of the "
            "model with one sequence; expected more chips, more memory, or the island left out"
        )
    return best, _slice(task, held).model


def _slice(task: PlanTask, layers: int) -> PlanTask:
    """Task for a number of layers of the model, with at most one sequence per chip."""
    batch = min(task.stated_batch, float(round_batch(number(task.cluster.n_chips))))
    return task._replace(model=with_fields(task.model, {"n_layers": float(layers)}), batch=batch)


class _ScoredPlan(NamedTuple):
    """Plan, with step time [s] and peak of allocated memory [byte]."""

    plan: Plan
    step_time: float
    memory: float


def _fastest(task: PlanTask) -> _ScoredPlan | None:
    """Fastest valid plan that fits; None without a fitting plan."""
    (searched,) = every_plan([task])
    if not len(searched.table) or not searched.fits.any():
        return None
    row = int(searched.ranked(1)[0])
    # Allocated memory: without driver and contexts.
    memory = float(searched.scores.memory[row]) - number(task.coefficients.framework_bytes)
    return _ScoredPlan(searched.table.plan(row), float(searched.scores.step_time[row]), memory)
