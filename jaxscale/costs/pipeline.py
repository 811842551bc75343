r"""Pipeline parallelism: bubble, imbalance of the stages, point-to-point transfers.

With stage times $t_s$ per microbatch, a 1F1B or GPipe step takes

$$ T = m \max_s t_s + \frac{1 - z}{v} \left(\sum_s t_s - \max_s t_s\right), $$

v virtual stages per chip, z the share of the bubble that is filled: 2/3 by weight gradients in the schedule ZB-H1, and
by the other of two directions in DualPipe.
References: Narayanan et al. 2021, arXiv 2104.04473, section 2.2; Qi et al. 2023, arXiv 2401.10241; DeepSeek-AI 2024,
arXiv 2412.19437, table 2.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from jaxscale.base.smooth import Temperature, smooth_max
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.costs.collectives import send_time
from jaxscale.costs.machine import Machine
from jaxscale.models.transformer import total_layers
from jaxscale.plans.local import LocalPlan

ZERO_BUBBLE_LEAVES = 1.0 / 3.0
"""Bubble of the zero-bubble schedule with the memory of 1F1B (ZB-H1) over that of 1F1B, for equal times of forward,
backward and weight gradient (Qi et al. 2023, table 2) [1]."""

DUAL_PIPE_LEAVES = 1.0 / 3.0
"""Bubble of DualPipe over that of 1F1B for many stages: (p/2 - 1)(F&B + B - 3W) against (p - 1)(F + B) with F = W = B/2
and F&B = F + B (DeepSeek-AI 2024, table 2) [1]."""


class StageTimes(NamedTuple):
    """Time of one microbatch, forward and backward, by stage.

    Attributes:
        total: summed over all stages [s].
        busiest: of the slowest stage [s].
    """

    total: Array
    busiest: Array


def stage_times(local: LocalPlan, layers: ArrayLike, head: ArrayLike, temperature: Temperature = 0.0) -> StageTimes:
    """Sum and maximum over the stages of the time of one microbatch.

    Args:
        local: layers of the end stages.
        layers: time of all layers [s].
        head: time of the logits head [s].
        temperature: smoothing [1].

    Returns:
        Times [s].
    """
    layer = layers / total_layers(local.model)
    fullest, last = local.fullest_layers * layer, local.layers.last * layer + head
    busiest = smooth_max(fullest, last, temperature)
    # A chip of DualPipe is a stage for half of the microbatches and its mirror image for the others.
    others = smooth_max(fullest, (layers + head) / local.plan.pp, temperature)
    return StageTimes(jnp.asarray(layers + head), busiest - 0.5 * local.plan.dual_pipe * (busiest - others))


def bubble_time(local: LocalPlan, stages: StageTimes) -> Array:
    """Idle time of the busiest stage while the pipeline fills and drains [s]."""
    plan = local.plan
    filled = (1.0 - ZERO_BUBBLE_LEAVES) * plan.zero_bubble + (1.0 - DUAL_PIPE_LEAVES) * plan.dual_pipe
    return (1.0 - filled) * (stages.total - stages.busiest) / plan.vpp


def imbalance_time(local: LocalPlan, stages: StageTimes) -> Array:
    """Time that stages of the mean load wait for the busiest, over all microbatches of a step [s]."""
    return local.plan.n_microbatches * (stages.busiest - stages.total / local.plan.pp)


def transfer_time(
    local: LocalPlan, machine: Machine, coefficients: Coefficients, temperature: Temperature = 0.0
) -> Array:
    """Exposed point-to-point transfers of one step.

    Each microbatch crosses a boundary forward and backward for every virtual stage; the tensor is split over tp (every
    rank sends its slice). `pp_exposed` is the share that compute does not hide.

    Returns:
        Time [s]; zero for pp = 1.
    """
    plan = local.plan
    volume = local.element_bytes * local.tokens * local.model.d_model / plan.tp
    hop = send_time(volume, plan.tp * plan.cp * plan.dp, plan.pp, machine.link, temperature)
    crossings = 2.0 * (plan.n_microbatches * plan.vpp + plan.pp - 1.0) * (1.0 - 1.0 / plan.pp)
    return coefficients.pp_exposed * crossings * hop
