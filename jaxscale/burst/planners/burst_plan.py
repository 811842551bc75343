"""Exact burst-parallel plan: how many GPUs each layer gets, by dynamic programming."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.ops import segment_max, segment_sum
from jaxtyping import Array, Bool, Float

from jaxscale.burst.networks.layer_graph import MAX_BRANCHES, LayerGraph
from jaxscale.burst.networks.measured_layers import AbstractLayerTime
from jaxscale.burst.planners.dynamic_programme import Choice, backtrack, forward
from jaxscale.burst.planners.step_costs import BurstJob, StepCosts, step_costs


class BurstPlan(eqx.Module):
    """GPUs of every layer, and the time and GPU-time of the iteration.

    Attributes:
        time: one training iteration [s].
        chip_seconds: GPU-time that the job occupies in one iteration [s].
        chips: GPUs of each step [1].
        step_time: transfer, compute and synchronisation of each step [s].
        amplification: GPU-time of each step over its time on one GPU [1]; 0 where the step is exempt.
        parallel: branches of the step's stage run at the same time.
        single_chip_time: one iteration on one GPU [s].
    """

    time: Float[Array, "*job"]
    chip_seconds: Float[Array, "*job"]
    chips: Float[Array, "*job step"]
    step_time: Float[Array, "*job step"]
    amplification: Float[Array, "*job step"]
    parallel: Bool[Array, "*job step"]
    single_chip_time: Float[Array, "*job"]


def evaluate(graph: LayerGraph, costs: StepCosts, choice: Choice) -> BurstPlan:
    r"""Time and GPU-time of a given choice of options.

    A stage takes $\sum_j T_j$ where its branches run in sequence and $\max_j T_j$ where they run at the same time;
    GPU-time is $\sum_l 2^{k_l} t_l$ in both cases.

    Args:
        graph: the network.
        costs: its cost tensors.
        choice: option of every step.

    Returns:
        The plan; differentiable in the costs.
    """
    steps = jnp.arange(graph.n_steps, dtype=jnp.int32)
    step_time = costs.edge[steps, choice.place, choice.before, choice.option]
    amplification = costs.amplification[steps, choice.place, choice.before, choice.option]
    chips, parallel = costs.chips[choice.option], choice.mode > 0
    slot = jnp.asarray(graph.stage) * MAX_BRANCHES + jnp.asarray(graph.branch)
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
    binds every layer by itself, transfer included, so the programme is exact. The gradient of the plan's time is that
    along the optimal path (envelope theorem).

    Args:
        graph: the network.
        layer_time: time of every layer against samples per GPU.
        job: job and cluster; `jax.vmap` over it sweeps.
        n_options: see `step_costs`.
        synchronisation: `correct` or `released`.

    Returns:
        The plan.

    Reference:
        Park et al., arXiv 2112.10065, section 4. Two departures: the released planner tests the limit only where a
        predecessor competes with another (`released_planner.py`), and lets the branches of a block overlap without
        counting GPUs; here they share the cluster or run one after another.
    """
    costs = step_costs(graph, layer_time, job, n_options, synchronisation)
    fixed = jax.lax.stop_gradient(costs)
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
    """Every layer on all GPUs (as many as there are samples), whatever the amplification.

    Args:
        graph: the network.
        layer_time: time of every layer against samples per GPU.
        job: job and cluster.
        n_options: see `step_costs`.
        synchronisation: `correct` or `released`.

    Returns:
        The plan.
    """
    costs = step_costs(graph, layer_time, job, n_options, synchronisation)
    widest = jnp.diagonal(costs.legal[0]).sum(dtype=jnp.int32) - 1
    option = jnp.full(graph.n_steps, widest)
    return evaluate(graph, costs, Choice(option, option, jnp.zeros_like(option), jnp.zeros_like(option)))
