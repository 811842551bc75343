r"""Pipeline parallelism: bubble, imbalance of the stages, point-to-point transfers.

With stage times $t_s$ per microbatch, a 1F1B or GPipe step takes

$$ T = m \max_s t_s + \frac{1 - z}{v} \left(\sum_s t_s - \max_s t_s\right), $$

v virtual stages per chip, z the share of the bubble that weight gradients fill (2/3 for the schedule ZB-H1).
References: Narayanan et al. 2021, arXiv 2104.04473, section 2.2; Qi et al. 2023, arXiv 2401.10241.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from jaxscale._types import smooth_max
from jaxscale.coefficients import Coefficients
from jaxscale.costs.collectives import Link, send_time
from jaxscale.costs.elementwise import ACTIVATION_BYTES
from jaxscale.plan import Plan, tokens_per_microbatch
from jaxscale.workload import Transformer

ZERO_BUBBLE_LEAVES = 1.0 / 3.0
"""Bubble of the zero-bubble schedule with the memory of 1F1B (ZB-H1) over that of 1F1B, for equal times of forward,
backward and weight gradient (Qi et al. 2023, table 2) [1]."""


DIVISIBLE = 0.02
"""Temperature from which on layers are shared as if they could be divided [1]."""


class StageTimes(NamedTuple):
    """Time of one microbatch, forward and backward, by stage.

    Attributes:
        total: summed over all stages [s].
        busiest: of the slowest stage [s].
    """

    total: Array
    busiest: Array


def busiest_layers(n_layers: ArrayLike, stages: ArrayLike, temperature: float = 0.0) -> Array:
    r"""Layers of the fullest stage: $\lceil L / p \rceil$, continuous between whole numbers.

    The exact form rises linearly over the width $1/p$ that separates $L$ from $L + 1$ layers, so that it meets the
    ceiling at every whole L and p and is continuous; a single stage holds all layers. Smooth forms rise over at least
    $(T / T_1)^3$: the exact ceiling for up to $(T_1 / T)^3$ stages, the plain ratio from $T_1$ (`DIVISIBLE`) on.

    Args:
        n_layers: L [1].
        stages: p [1].
        temperature: T, 0 for the exact form [1].

    Returns:
        Layers [1].
    """
    ratio = jnp.divide(n_layers, stages)
    if temperature >= DIVISIBLE:
        return ratio
    whole = jnp.floor(ratio)
    width = jnp.maximum(jnp.divide(1.0, stages), (temperature / DIVISIBLE) ** 3)
    return jnp.where(jnp.less_equal(stages, 1.0), ratio, whole + jnp.minimum((ratio - whole) / width, 1.0))


def stage_times(
    model: Transformer,
    plan: Plan,
    coefficients: Coefficients,
    layers: ArrayLike,
    head: ArrayLike,
    temperature: float = 0.0,
) -> StageTimes:
    """Sum and maximum over the stages of the time of one microbatch.

    Frameworks that split layers evenly leave the logits on top of the last stage; those that balance by cost give that
    stage fewer layers. `head_balance` blends the two.

    Args:
        model: the transformer.
        plan: pipeline degree.
        coefficients: `head_balance`.
        layers: time of all layers [s].
        head: time of the logits head [s].
        temperature: smoothing [1].

    Returns:
        Times [s].
    """
    balance = coefficients.head_balance
    layer = layers / model.n_layers
    fullest = busiest_layers(model.n_layers, plan.pp, temperature) * layer
    last = layers / plan.pp + head
    even = smooth_max(fullest, last, temperature)
    # A balanced split still places whole layers: no stage below the ceiling of the mean load, none below the head.
    head_layers = head / layer
    load = busiest_layers(model.n_layers + head_layers, plan.pp, temperature) * layer
    balanced = smooth_max(smooth_max(load, head, temperature), (layers + head) / plan.pp, temperature)
    return StageTimes(jnp.asarray(layers + head), even + balance * (balanced - even))


def bubble_time(plan: Plan, stages: StageTimes) -> Array:
    """Idle time of the busiest stage while the pipeline fills and drains [s]."""
    filled = (1.0 - ZERO_BUBBLE_LEAVES) * plan.zero_bubble
    return (1.0 - filled) * (stages.total - stages.busiest) / plan.vpp


def imbalance_time(plan: Plan, stages: StageTimes) -> Array:
    """Time that stages of the mean load wait for the busiest, over all microbatches of a step [s]."""
    return plan.n_microbatches * (stages.busiest - stages.total / plan.pp)


def transfer_time(
    model: Transformer, plan: Plan, link: Link, coefficients: Coefficients, temperature: float = 0.0
) -> Array:
    """Exposed point-to-point transfers of one step.

    Each microbatch crosses a boundary forward and backward for every virtual stage; the tensor is split over tp (every
    rank sends its slice). `pp_exposed` is the share that compute does not hide.

    Returns:
        Time [s]; zero for pp = 1.
    """
    volume = ACTIVATION_BYTES * tokens_per_microbatch(model, plan) * model.d_model / plan.tp
    hop = send_time(volume, plan.tp * plan.cp * plan.dp, plan.pp, link, temperature)
    crossings = 2.0 * (plan.n_microbatches * plan.vpp + plan.pp - 1.0) * (1.0 - 1.0 / plan.pp)
    return coefficients.pp_exposed * crossings * hop
