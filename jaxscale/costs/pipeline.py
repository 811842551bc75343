r"""Pipeline parallelism: time of the bubble, of stage imbalance and of point-to-point transfers between stages.

With stage times $t_s$ per microbatch, a 1F1B or GPipe step takes

$$ T = m \max_s t_s + \frac{z}{v} \left(\sum_s t_s - \max_s t_s\right), $$

v virtual stages per chip, z the remaining share of the bubble: 1, or less in the schedule ZB-H1, where weight gradients
fill the bubble, and in DualPipe, where weight gradients and the opposite direction fill the bubble.
References: Narayanan et al. 2021, arXiv 2104.04473, section 2.2; Qi et al. 2023, arXiv 2401.10241, table 2; DeepSeek-AI
2024, arXiv 2412.19437, table 2. `jaxscale.timeline` runs each schedule event by event.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from jaxscale.base.smooth import Temperature, is_exact, larger, smaller, smooth_max
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.costs.collectives import send_time
from jaxscale.costs.machine import Machine
from jaxscale.models.transformer import total_layers
from jaxscale.plans.local import LocalPlan


class PassShares(NamedTuple):
    """Shares of forward pass and weight gradients in the time of a microbatch, forward and backward.

    Attributes:
        forward: share of the forward pass [1].
        weights: share of the gradients of weights [1].
    """

    forward: Array
    weights: Array


class StageTimes(NamedTuple):
    """Time of a microbatch, forward and backward: sum and maximum over the pipeline stages.

    Attributes:
        total: time summed over all stages [s].
        busiest: time of the slowest stage [s].
    """

    total: Array
    busiest: Array


def stage_times(local: LocalPlan, layers: ArrayLike, head: ArrayLike, temperature: Temperature = 0.0) -> StageTimes:
    """Sum and maximum over the pipeline stages of the time of a microbatch, forward and backward.

    Args:
        local: number of layers of the first, last and fullest stage.
        layers: time of all layers [s].
        head: time of the logits head [s].
        temperature: smoothing [1].

    Returns:
        Times [s].
    """
    # Time of the average layer.
    layer = layers / total_layers(local.model)
    fullest, last = local.fullest_layers * layer, local.layers.last * layer + head
    busiest = smooth_max(fullest, last, temperature)
    # A chip of DualPipe is a stage for half of the microbatches and the mirrored stage for the second half.
    others = smooth_max(fullest, (layers + head) / local.plan.pp, temperature)
    return StageTimes(jnp.asarray(layers + head), busiest - 0.5 * local.plan.dual_pipe * (busiest - others))


def bubble_time(local: LocalPlan, stages: StageTimes, passes: PassShares, temperature: Temperature = 0.0) -> Array:
    """Pipeline bubble: idle time of the busiest stage in a step while the pipeline fills and drains [s].

    In ZB-H1, weight gradients of the other stages, and of up to p - 1 microbatches of the busiest stage, fill the
    backward phase of the bubble. For equal stages (p - 1)(F + B - W) remains, with the times F of the forward pass, B
    of the gradients of inputs and W of the gradients of weights.
    """
    plan, others = local.plan, stages.total - stages.busiest
    # Weight gradients of the remaining stages, and of p - 1 microbatches of the busiest stage.
    filled = passes.weights * (others + (smaller(plan.pp, plan.n_microbatches) - 1.0) * stages.busiest)
    # At least the forward passes remain.
    zero_bubble = larger(others - filled, passes.forward * others)
    dual_pipe = dual_pipe_leaves(plan.pp, plan.n_microbatches, passes) * others
    switched = plan.zero_bubble * (zero_bubble - others) + plan.dual_pipe * (dual_pipe - others)
    if is_exact(temperature):
        # A single stage has no bubble: the rest is rounding error.
        switched = jnp.where(jnp.greater(plan.pp, 1.0), switched, 0.0)
    # v virtual stages divide the bubble.
    return (others + switched) / plan.vpp


def dual_pipe_leaves(pp: ArrayLike, n_microbatches: ArrayLike, passes: PassShares) -> Array:
    r"""Ratio of the bubble of DualPipe to the bubble of 1F1B [1].

    $[h (F + 2 B - W) - \min(F, h (B - F))] / [(p - 1)(F + B + W)]$ with $h = p/2 - 1$ and the times F of the forward
    pass, B of the gradients of inputs and W of the gradients of weights: 1/3 for many stages and F = B = W. The second
    term is the time of the first backward passes of the drain.
    """
    # h = p / 2 - 1
    halves = 0.5 * larger(jnp.subtract(pp, 2.0), 0.0)
    forward, weights = passes
    inputs = 1.0 - forward - weights
    # h (F + 2 B) - min(h, m) W
    idle = halves * (forward + 2.0 * inputs) - smaller(halves, n_microbatches) * weights
    # min(F, h (B - F))
    idle = idle - smaller(forward, halves * (inputs - forward))
    return idle / larger(jnp.subtract(pp, 1.0), 1.0)


def imbalance_time(local: LocalPlan, stages: StageTimes) -> Array:
    """Waiting time of a stage of mean load for the busiest stage, summed over all microbatches of a step [s]."""
    # m (max t_s - mean t_s)
    return local.plan.n_microbatches * (stages.busiest - stages.total / local.plan.pp)


def transfer_time(
    local: LocalPlan, machine: Machine, coefficients: Coefficients, temperature: Temperature = 0.0
) -> Array:
    """Exposed time of the point-to-point transfers between stages in a step.

    Each microbatch crosses a boundary forward and backward for every virtual stage; the tensor is split over tp (every
    rank sends a slice). `pp_exposed` is the share that compute does not hide.

    Returns:
        Time [s]; zero for pp = 1.
    """
    plan = local.plan
    volume = local.element_bytes * local.tokens * local.model.d_model / plan.tp
    hop = send_time(volume, plan.tp * plan.cp * plan.dp, plan.pp, machine.link, temperature)
    # Forward and backward; zero for a single stage.
    crossings = 2.0 * (plan.n_microbatches * plan.vpp + plan.pp - 1.0) * (1.0 - 1.0 / plan.pp)
    return coefficients.pp_exposed * crossings * hop
