"""Smooth burst planner: plan time with gradients in bandwidth, latency, batch and amplification limit."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from jaxscale.base.smooth import soft_maximum, soft_minimum
from jaxscale.burst.burst_plan import forward
from jaxscale.burst.layer_graph import LayerGraph
from jaxscale.burst.layer_time import AbstractLayerTime
from jaxscale.burst.step_costs import BurstJob, StepCosts, step_costs

_FORBIDDEN = 1e4
"""Cost of a missing edge relative to the time on one GPU [1]; finite, to keep gradients finite."""


class SoftPlan(eqx.Module):
    """Smooth iteration time, and expected GPUs of each step over all plans.

    Attributes:
        time: smooth minimum of the iteration time [s].
        chip_seconds: expected GPU-time of an iteration [s].
        chips: expected GPUs of each step [1].
        usage: weight of each option in each step; the weights of a step on the critical branch sum to 1 [1].
    """

    time: Float[Array, "*job"]
    chip_seconds: Float[Array, "*job"]
    chips: Float[Array, "*job step"]
    usage: Float[Array, "*job step option"]


def _soft_edges(costs: StepCosts, limit: ArrayLike, width: ArrayLike, price: ArrayLike) -> Array:
    """Edge costs with a penalty in place of the limit: p t_1 w softplus((A - limit) / w) [s]."""
    # w softplus((A - limit) / w)
    excess = jnp.asarray(width) * jax.nn.softplus((costs.amplification - jnp.asarray(limit)) / width)
    single = costs.edge[:, :1, :1, :1]
    # A single GPU throughout has amplification 1, up to rounding, at any limit.
    free = costs.exempt[:, None, None, None] | (costs.amplification <= 1.0 + 1e-6)
    penalised = costs.edge + jnp.where(free, 0.0, price * single * excess)
    # The substitute for infinity needs only the right scale, so it carries no gradient.
    forbidden = _FORBIDDEN * jax.lax.stop_gradient(single.sum())
    return jnp.where(costs.legal[:, None], penalised, forbidden)


def _soft_time(graph: LayerGraph, edge: Array, costs: StepCosts, n_chips: ArrayLike, temperature: ArrayLike) -> Array:
    forbidden = _FORBIDDEN * jax.lax.stop_gradient(costs.edge[:, 0, 0, 0].sum())

    def maximum(values: Array, axis: int) -> Array:
        return soft_maximum(values, temperature, axis)

    def minimum(values: Array, axis: int) -> Array:
        return soft_minimum(values, temperature, axis)

    path, _ = forward(graph, edge, costs.chips, n_chips, forbidden, minimum, maximum)
    return minimum(path, 0)


def soft_plan_time(
    graph: LayerGraph,
    layer_time: AbstractLayerTime,
    job: BurstJob,
    n_options: int,
    temperature: ArrayLike,
    synchronisation: str = "correct",
    limit_width: ArrayLike = 0.02,
    limit_price: ArrayLike = 30.0,
) -> Float[Array, ""]:
    r"""Smooth minimum of the iteration time over all plans.

    The minimum of the dynamic programme becomes $-T \ln \sum_i e^{-x_i / T}$, the maximum over branches
    $T \ln \sum_i e^{x_i / T}$, and the amplification limit a penalty
    $p\, t_l^{(1)}\, w \ln\big(1 + e^{(A_l - \text{limit})/w}\big)$ on every layer. The limit $T \to 0$, $w \to 0$ with
    large p is the exact plan. `jax.grad` in the job gives the price of bandwidth, latency, batch and limit.

    Args:
        layer_time: time of every layer as a function of samples per GPU.
        n_options: see `step_costs`.
        temperature: T [s]; the time is lower by at most T times the logarithm of the number of plans.
        synchronisation: `correct` or `released`.
        limit_width: w, width of the limit in units of amplification [1].
        limit_price: p, price of the excess over the limit [1].

    Returns:
        Smooth iteration time [s].
    """
    costs = step_costs(graph, layer_time, job, n_options, synchronisation)
    edge = _soft_edges(costs, job.amplification_limit, limit_width, limit_price)
    return _soft_time(graph, edge, costs, job.n_chips, temperature)


def plan_soft(
    graph: LayerGraph,
    layer_time: AbstractLayerTime,
    job: BurstJob,
    n_options: int,
    temperature: ArrayLike,
    synchronisation: str = "correct",
    limit_width: ArrayLike = 0.02,
    limit_price: ArrayLike = 30.0,
) -> SoftPlan:
    r"""Smooth minimum of the iteration time, with the expected use of every number of GPUs by every step.

    The weight of an edge is the derivative of the smooth time by the edge's cost,
    $w_l(a, b) = \partial S / \partial c_l(a, b)$; the weights over the options of a step sum to 1 (inside a block, to
    the weight of the branch in the maximum).

    Args:
        layer_time: time of every layer as a function of samples per GPU.
        n_options: see `step_costs`.
        temperature: T [s].
        synchronisation: `correct` or `released`.
        limit_width: see `soft_plan_time` [1].
        limit_price: see `soft_plan_time` [1].
    """
    costs = step_costs(graph, layer_time, job, n_options, synchronisation)
    edge = _soft_edges(costs, job.amplification_limit, limit_width, limit_price)
    # w_l(a, b) = dS / dc_l(a, b)
    time, weight = jax.value_and_grad(lambda e: _soft_time(graph, e, costs, job.n_chips, temperature))(edge)
    # Sum over place and preceding option.
    usage = weight.sum((1, 2))
    # A branch off the critical path may have weight 0.
    share = usage / jnp.maximum(usage.sum(1, keepdims=True), 1e-12)
    return SoftPlan(time, (weight * costs.edge * costs.chips).sum(), share @ costs.chips, usage)


def prices(
    graph: LayerGraph,
    layer_time: AbstractLayerTime,
    job: BurstJob,
    n_options: int,
    temperature: ArrayLike,
    synchronisation: str = "correct",
) -> BurstJob:
    r"""Elasticities of the smooth time: $\partial \ln S / \partial \ln x$ for every field x of the job.

    A bandwidth elasticity of -0.2 means that 10 % more bandwidth shortens the iteration by 2 %.

    Args:
        layer_time: time of every layer as a function of samples per GPU.
        n_options: see `step_costs`.
        temperature: T [s].
        synchronisation: `correct` or `released`.

    Returns:
        A `BurstJob` of elasticities [1].
    """

    def log_time(log_job: BurstJob) -> Array:
        # Derivatives by the logarithm of each field are elasticities.
        point = jax.tree.map(jnp.exp, log_job)
        return jnp.log(soft_plan_time(graph, layer_time, point, n_options, temperature, synchronisation))

    return jax.grad(log_time)(jax.tree.map(lambda x: jnp.log(jnp.asarray(x, jnp.result_type(float))), job))
