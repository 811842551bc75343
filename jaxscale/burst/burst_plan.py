"""Fastest burst-parallel plan: number of GPUs of each layer, by exact dynamic programming over the layer graph.

The state is a matrix of best times from option a at the stage entry to option k at the present step. A layer multiplies
the matrix in the (min, +) sense; at the end of a stage the branches are combined, in sequence (sum) or concurrently on
disjoint GPUs (maximum), and the stage is appended to the preceding path.
"""

import functools
import itertools
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.ops import segment_max, segment_sum
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from jaxscale.base.errors import InputError
from jaxscale.burst.layer_graph import MAX_BRANCHES, LayerGraph
from jaxscale.burst.layer_time import AbstractLayerTime
from jaxscale.burst.step_costs import BurstJob, StepCosts, step_costs


class ShareTable(NamedTuple):
    """Placements of the concurrent branches of a block.

    A flavour is a share of the cluster, the fraction 2^-d of the GPUs, and a location: home (GPUs of the block's entry)
    or away. Flavour 0 is the whole cluster at home, for plain layers and for branches in sequence.

    Attributes:
        exponent: d by flavour [1].
        away: by flavour, whether the branch's input and output cross to different GPUs.
        flavour: flavour by number of branches (minus 1), split and branch [1].
        exists: whether a split exists, by number of branches (minus 1) and split.
    """

    exponent: Int[np.ndarray, " flavour"]
    away: Bool[np.ndarray, " flavour"]
    flavour: Int[np.ndarray, "n split branch"]
    exists: Bool[np.ndarray, "n split"]


@functools.cache
def _splits(n_branches: int) -> tuple[tuple[tuple[int, ...], int], ...]:
    """Splits: exponents d with sum of 2^-d = 1, and the home branch, one of the branches with the largest share."""
    # Kraft's equation with n branches has no exponent above n - 1.
    exponents = itertools.product(range(1, max(n_branches, 2)), repeat=n_branches)
    exact = (split for split in exponents if sum(2.0**-d for d in split) == 1.0)
    return tuple((split, home) for split in exact for home, d in enumerate(split) if d == min(split))


@functools.cache
def share_table(widths: tuple[int, ...]) -> ShareTable:
    """Placements of the concurrent branches of the blocks of a graph, by number of branches.

    Branches run on powers of two. Every feasible placement is therefore within a split whose fractions are powers of
    one half with sum 1 (Kraft); a placement with smaller shares only has fewer options.

    Args:
        widths: distinct numbers of branches of the stages of the graph [1].

    Returns:
        The table: 2 splits for two branches, 3 for three, 16 for four.
    """
    splits = {n: [[(d, b != home) for b, d in enumerate(split)] for split, home in _splits(n)] for n in widths if n > 1}
    used = {flavour for rows in splits.values() for row in rows for flavour in row}
    # Flavour 0: the whole cluster at home.
    flavours = [(0, False), *sorted(used)]
    # (branches - 1, split, branch)
    index = np.zeros((MAX_BRANCHES, max([1, *map(len, splits.values())]), MAX_BRANCHES), np.int32)
    exists = np.zeros(index.shape[:2], bool)
    for n, rows in splits.items():
        index[n - 1, : len(rows), :n] = [[flavours.index(flavour) for flavour in row] for row in rows]
        exists[n - 1, : len(rows)] = True
    return ShareTable(np.array([d for d, _ in flavours], np.int32), np.array([a for _, a in flavours]), index, exists)


Reduction = Callable[[Array, int], Array]
"""Minimum or maximum of an array along an axis, exact or smooth."""


class StageChoices(NamedTuple):
    """Choices of the dynamic programme at every step, the input of `backtrack`.

    Attributes:
        inside: time from the stage entry to each option before the step [s].
        entry: best option at the stage entry, by step and option at the stage end [1].
        mode: 0 for branches in sequence, else 1 + index of the split, by step and options at entry and end [1].
    """

    inside: Float[Array, "step flavour option option"]
    entry: Int[Array, "step option"]
    mode: Int[Array, "step option option"]


class _State(NamedTuple):
    path: Array
    inside: Array
    serial: Array
    parallel: Array


def _first_minimum(values: Array, axis: int) -> Array:
    """Index of the minimum, in a form that XLA vectorises on the CPU, unlike `argmin`."""
    n = values.shape[axis]
    # At most 17 options or modes: 8 bits hold an index.
    index = jnp.arange(n, dtype=jnp.int8).reshape((n,) + (1,) * (values.ndim - 1 - axis))
    lowest = values.min(axis, keepdims=True)
    return jnp.where(values == lowest, index, jnp.int8(n - 1)).min(axis)


def _flags(graph: LayerGraph) -> dict[str, Array]:
    names = ("first", "last", "closes", "is_join", "branch", "n_branches")
    return {name: jnp.asarray(getattr(graph, name)) for name in names}


def forward(
    graph: LayerGraph,
    edge: Float[Array, "step place option option"],
    chips: Float[Array, " option"],
    n_chips: ArrayLike,
    forbidden: ArrayLike,
    minimum: Reduction,
    maximum: Reduction,
) -> tuple[Array, StageChoices]:
    r"""Least time from the first step to each option of the last step, by dynamic programming.

    Chain: $S_l(b) = \min_a S_{l-1}(a) + c_l(a, b)$. Block with branches j between options a and b:
    $M(a, b) = \min\big(\sum_j M_j(a, b),\ \min_{d} \max_j M_j^{d_j}(a, b)\big)$, where $M_j^{d}$ uses at most the
    fraction $2^{-d}$ of the GPUs, at home or away, and d runs over the splits of `share_table`.

    Args:
        edge: cost of each step; at least `forbidden` for a forbidden edge [s].
        chips: GPUs of each option [1].
        n_chips: GPUs of the cluster [1].
        forbidden: finite cost in place of infinity [s].
        minimum: minimum of an array along an axis.
        maximum: maximum of an array along an axis.

    Returns:
        Time by option of the last step [s], and the choices from which `backtrack` reads the exact plan.
    """
    table = share_table(graph.widths)
    n_options, n_flavours = edge.shape[-1], len(table.exponent)
    # Identity of the (min, +) product.
    identity = jnp.where(jnp.eye(n_options, dtype=bool), 0.0, forbidden)
    # (flavours, 1)
    share = 2.0 ** jnp.asarray(table.exponent)[:, None]
    # A branch on the fraction 2^-d of the cluster has at most this fraction of the GPUs, up to rounding.
    too_wide = (chips * share > jnp.asarray(n_chips) * (1 + 1e-6)) & (share > 1)
    narrow = jnp.where(too_wide, forbidden, 0.0)
    away, splits, exists = jnp.asarray(table.away), jnp.asarray(table.flavour), jnp.asarray(table.exists)
    zero = jnp.zeros((n_options, n_options), edge.dtype)
    nothing = jnp.zeros((splits.shape[1], n_options, n_options), edge.dtype)
    # path (option,), inside (flavour, option, option), serial (option, option)
    start = _State(jnp.zeros(n_options, edge.dtype), jnp.zeros((n_flavours, *zero.shape), edge.dtype), zero, nothing)

    def advance(state: _State, step):
        cost, flag = step
        # A branch starts anew from the options at the stage entry.
        ahead = jnp.where(flag["first"], identity, state.inside)
        # Input and output of an away branch cross to different GPUs.
        crosses = away & (flag["first"] | flag["is_join"])
        # (flavour, entry, before, after), reduced over `before`.
        inside = minimum(ahead[:, :, :, None] + cost[crosses.astype(jnp.int32)][:, None], 2)
        # The option of a join is at the end of the stage, outside the share of the branch.
        inside = inside + jnp.where(flag["is_join"], 0.0, narrow)[:, None, :]
        width = flag["n_branches"] - 1
        # (split, entry, option)
        shared = inside[splits[width, :, flag["branch"]]]
        # Branches in sequence each have the whole cluster: flavour 0.
        serial = state.serial + jnp.where(flag["last"], inside[0], 0.0)
        fresh = flag["branch"] == 0
        longest = jnp.where(fresh, shared, maximum(jnp.stack([state.parallel, shared]), 0))
        parallel = jnp.where(flag["last"], longest, state.parallel)
        # Mode 0 is the sequence, mode 1 + i is split i.
        modes = jnp.concatenate([serial[None], jnp.where(exists[width][:, None, None], parallel, forbidden)])
        # (entry, end)
        ends = state.path[:, None] + minimum(modes, 0)
        path = jnp.where(flag["closes"], minimum(ends, 0), state.path)
        record = StageChoices(ahead, _first_minimum(ends, 0), _first_minimum(modes, 0))
        serial, parallel = (jnp.where(flag["closes"], 0.0, value) for value in (serial, parallel))
        return _State(path, inside, serial, parallel), record

    final, record = jax.lax.scan(advance, start, (edge, _flags(graph)))
    return final.path, record


class Choice(NamedTuple):
    """Number of GPUs and placement of every step: the path chosen by the dynamic programme.

    Attributes:
        option: option k of each step, for $2^k$ GPUs [1].
        before: option of the preceding step, the producer of the input [1].
        place: 1 if the input comes from different GPUs, else 0 [1].
        mode: 0 if the branches of the step's stage run in sequence, else 1 + index of the split [1].
    """

    option: Int[Array, " step"]
    before: Int[Array, " step"]
    place: Int[Array, " step"]
    mode: Int[Array, " step"]


def backtrack(
    graph: LayerGraph, edge: Float[Array, "step place option option"], record: StageChoices, last_option: ArrayLike
) -> Choice:
    """Fastest plan, read from the choices of `forward` from the last step back to the first.

    Args:
        edge: cost of each step, as given to `forward` [s].
        record: choices from `forward`.
        last_option: option of the last step [1].

    Returns:
        Option, input and mode of every step.
    """
    table = share_table(graph.widths)
    splits, away = jnp.asarray(table.flavour), jnp.asarray(table.away)

    def retreat(state, step):
        end, entry, mode, option = state
        seen, cost, flag = step
        # In reverse order, the closing step is the first step of a stage.
        entry = jnp.where(flag["closes"], seen.entry[end].astype(jnp.int32), entry)
        mode = jnp.where(flag["closes"], seen.mode[entry, end].astype(jnp.int32), mode)
        option = jnp.where(flag["last"], end, option)
        # Mode 0 has no split: the flavour is 0 below, and the index must not be -1.
        split = splits[flag["n_branches"] - 1, jnp.maximum(mode - 1, 0), flag["branch"]]
        flavour = jnp.where(mode == 0, 0, split)
        place = (away[flavour] & (flag["first"] | flag["is_join"])).astype(jnp.int32)
        before = jnp.argmin(seen.inside[flavour, entry] + cost[place, :, option]).astype(jnp.int32)
        opens = flag["first"] & (flag["branch"] == 0)
        # Before the first branch of a stage lies the entry; the branches share the end.
        state = (jnp.where(opens, entry, end), entry, mode, before)
        return state, Choice(option, before, place, mode)

    end = jnp.asarray(last_option, jnp.int32)
    zero = jnp.zeros((), jnp.int32)
    _, choice = jax.lax.scan(retreat, (end, zero, zero, end), (record, edge, _flags(graph)), reverse=True)
    return choice


class BurstPlan(eqx.Module):
    """Number of GPUs of every layer, with the time and GPU-time of an iteration.

    Attributes:
        time: time of a training iteration [s].
        chip_seconds: GPU-time occupied by the job per iteration [s].
        chips: GPUs of each step [1].
        step_time: transfer, compute and synchronisation time of each step [s].
        amplification: GPU-time of each step over its time on one GPU [1]; 0 for a step exempt from the limit.
        parallel: whether the branches of the stage are concurrent.
        single_chip_time: time of an iteration on one GPU [s].
    """

    time: Float[Array, "*job"]
    chip_seconds: Float[Array, "*job"]
    chips: Float[Array, "*job step"]
    step_time: Float[Array, "*job step"]
    amplification: Float[Array, "*job step"]
    parallel: Bool[Array, "*job step"]
    single_chip_time: Float[Array, "*job"]


def evaluate(graph: LayerGraph, costs: StepCosts, choice: Choice) -> BurstPlan:
    r"""Time and GPU-time of an iteration for given numbers of GPUs.

    A stage takes $\sum_j T_j$ for branches in sequence and $\max_j T_j$ for concurrent branches; the GPU-time is
    $\sum_l 2^{k_l} t_l$ in either case.

    Args:
        choice: number of GPUs and placement of every step.

    Returns:
        The plan; differentiable in the costs.
    """
    steps = jnp.arange(graph.n_steps, dtype=jnp.int32)
    # (steps,)
    step_time = costs.edge[steps, choice.place, choice.before, choice.option]
    amplification = costs.amplification[steps, choice.place, choice.before, choice.option]
    chips, parallel = costs.chips[choice.option], choice.mode > 0
    slot = jnp.asarray(graph.stage) * MAX_BRANCHES + jnp.asarray(graph.branch)
    # (stages, branches)
    branches = segment_sum(step_time, slot, graph.n_stages * MAX_BRANCHES).reshape(graph.n_stages, MAX_BRANCHES)
    together = segment_max(parallel.astype(jnp.int32), jnp.asarray(graph.stage), graph.n_stages) > 0
    stages = jnp.where(together, branches.max(1), branches.sum(1))
    return BurstPlan(
        stages.sum(),
        (chips * step_time).sum(),
        chips,
        step_time,
        jnp.where(costs.exempt, 0.0, amplification),
        parallel,
        # A single GPU throughout: option 0 before and after.
        costs.edge[:, 0, 0, 0].sum(),
    )


def plan_burst(
    graph: LayerGraph,
    layer_time: AbstractLayerTime,
    job: BurstJob,
    n_options: int,
    synchronisation: str = "correct",
) -> BurstPlan:
    r"""Fastest plan in which no layer exceeds the amplification limit.

    Minimises $\sum_l t_l$ over the options of all layers, subject to
    $A_l = 2^{k_l} t_l / t_l^{(1)} < \text{limit}$ for every layer longer than `exempt_below` on one GPU. The limit
    binds every layer separately, transfer included, so the dynamic programme is exact. The gradient of the plan's time
    is that along the optimal path (envelope theorem).

    Args:
        layer_time: time of every layer as a function of samples per GPU.
        job: job and cluster; `jax.vmap` over jobs gives sweeps.
        n_options: see `step_costs`.
        synchronisation: `correct` or `released`.

    Reference:
        Park et al., arXiv 2112.10065, section 4. Two departures: the released planner tests the limit only where two
        predecessors compete (`plan_released`), and lets the branches of a block overlap without counting GPUs; here
        branches share the cluster or run in sequence.
    """
    costs = step_costs(graph, layer_time, job, n_options, synchronisation)
    # The choice is discrete and carries no gradient; `evaluate` differentiates along the chosen path.
    fixed = jax.lax.stop_gradient(costs)
    # The exact minimum carries no gradient, so infinity is safe.
    edge = jnp.where(fixed.allowed(jax.lax.stop_gradient(job.amplification_limit)), fixed.edge, jnp.inf)
    n_chips = jax.lax.stop_gradient(jnp.asarray(job.n_chips))
    path, record = forward(graph, edge, fixed.chips, n_chips, jnp.inf, jnp.min, jnp.max)
    return evaluate(graph, costs, backtrack(graph, edge, record, jnp.argmin(path)))


def plan_data_parallel(
    graph: LayerGraph,
    layer_time: AbstractLayerTime,
    job: BurstJob,
    n_options: int,
    synchronisation: str = "correct",
) -> BurstPlan:
    """Data-parallel plan: every layer on all GPUs, at most one GPU per sample, without limit on the amplification.

    Args:
        layer_time: time of every layer as a function of samples per GPU.
        n_options: see `step_costs`.
        synchronisation: `correct` or `released`.
    """
    costs = step_costs(graph, layer_time, job, n_options, synchronisation)
    # A change is off the diagonal: the diagonal of `legal` counts the existing options.
    widest = jnp.diagonal(costs.legal[0]).sum(dtype=jnp.int32) - 1
    option = jnp.full(graph.n_steps, widest)
    return evaluate(graph, costs, Choice(option, option, jnp.zeros_like(option), jnp.zeros_like(option)))


_CHANGE_PENALTY = 1000.0
"""Factor in the released planner on the cost of a change of GPUs at an activation [1]."""


def _accept(costs: StepCosts, limit: Array, state, step) -> tuple[tuple[Array, Array], Array]:
    """Released choice for a layer: predecessors are tried from one GPU upwards and accepted successively."""
    total, amplification = state
    edge, chips, exempt, legal, single = step
    n_options = edge.shape[0]
    best = jnp.full(n_options, jnp.inf)
    lowest = jnp.full(n_options, jnp.inf)
    chosen = jnp.zeros(n_options, jnp.int32)
    for before in range(n_options):
        candidate = jnp.where(legal[before], total[before] + edge[before], jnp.inf)
        a = amplification[before]
        # Released test: the first predecessor, or a faster one below the limit or below the last accepted value.
        accept = (candidate < best) & ((a < limit) | (a < lowest))
        best = jnp.where(accept, candidate, best)
        lowest = jnp.where(accept, a, lowest)
        chosen = jnp.where(accept, before, chosen)
    # The amplification along the best path is tested at the following layer.
    layer = edge[chosen, jnp.arange(n_options)]
    after = jnp.where(exempt, 1.0, layer * chips / jnp.where(exempt, 1.0, single))
    return (best, after), chosen


def plan_released(
    graph: LayerGraph,
    layer_time: AbstractLayerTime,
    job: BurstJob,
    n_options: int,
    synchronisation: str = "released",
) -> BurstPlan:
    """Plan of the planner released with arXiv 2112.10065, for a chain of layers.

    In contrast to `plan_burst`, the limit is tested on the preceding layer, along the best path to the layer, and only
    when one predecessor replaces another: a predecessor above the limit is accepted if it is the first, or if its
    amplification is lower than that of the replaced predecessor. The plan can therefore exceed the limit, and need not
    be the fastest below the limit.

    Args:
        layer_time: time of every layer as a function of samples per GPU.
        n_options: see `step_costs`.
        synchronisation: `released` or `correct`.

    Raises:
        InputError: the graph has blocks with branches.

    Reference:
        seojinpark/DeepPool@7922cac parallelizationPlanner.py.
    """
    if graph.widths[-1] > 1:
        raise InputError(f"network {graph.name}: the released rule is implemented for chains; expected no branches")
    costs = step_costs(graph, layer_time, job, n_options, synchronisation)
    exists = jnp.diagonal(costs.legal[0])
    change = (jnp.asarray(graph.keeps_layout)[:, None, None]) & ~jnp.eye(n_options, dtype=bool)
    near = costs.edge[:, 0]
    # (steps, 1, after)
    stay = jnp.diagonal(near, axis1=1, axis2=2)[:, None, :]
    edge = jnp.where(change, stay + _CHANGE_PENALTY * (near - stay), near)
    legal = jnp.broadcast_to(exists[:, None] & exists, edge.shape)
    own = jnp.eye(n_options, dtype=bool) & exists
    # The first layer has no predecessor on another number of GPUs.
    legal = legal.at[0].set(own)
    single = edge[:, 0, 0]
    start = (jnp.where(exists, 0.0, jnp.inf), jnp.ones(n_options))

    def layer(state, step):
        edge, exempt, legal, single = step
        return _accept(costs, jnp.asarray(job.amplification_limit), state, (edge, costs.chips, exempt, legal, single))

    (total, _), chosen = jax.lax.scan(layer, start, (edge, costs.exempt, legal, single))

    def retreat(option, pointer):
        return pointer[option], (option, pointer[option])

    _, (option, before) = jax.lax.scan(retreat, jnp.argmin(total).astype(jnp.int32), chosen, reverse=True)
    zero = jnp.zeros_like(option)
    return evaluate(graph, costs, Choice(option, before, zero, zero))
