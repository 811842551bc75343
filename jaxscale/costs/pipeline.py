r"""Pipeline parallelism: bubble, imbalance of the stages, point-to-point transfers.

With stage times $t_s$ per microbatch, a 1F1B or GPipe step takes

$$ T = m \max_s t_s + \frac{1 - z}{v} \left(\sum_s t_s - \max_s t_s\right), $$

v virtual stages per chip, z the share of the bubble that weight gradients fill (2/3 for the schedule ZB-H1).
References: Narayanan et al. 2021, arXiv 2104.04473, section 2.2; Qi et al. 2023, arXiv 2401.10241.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from jaxscale._smooth import Temperature, larger, smaller, smooth_max
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.costs.collectives import Link, send_time
from jaxscale.plan.plan import Plan, element_bytes, tokens_per_microbatch
from jaxscale.workload import Transformer, head_params, logits_per_token, matmul_params_per_token

ZERO_BUBBLE_LEAVES = 1.0 / 3.0
"""Bubble of the zero-bubble schedule with the memory of 1F1B (ZB-H1) over that of 1F1B, for equal times of forward,
backward and weight gradient (Qi et al. 2023, table 2) [1]."""


DIVISIBLE = 0.02
"""Temperature from which on layers are shared as if they could be divided, see `is_divisible` [1]."""

HEAD_ROUNDING = 0.01
"""Layers by which the head must exceed a whole number of them to count as one more [1]."""


class StageTimes(NamedTuple):
    """Time of one microbatch, forward and backward, by stage.

    Attributes:
        total: summed over all stages [s].
        busiest: of the slowest stage [s].
    """

    total: Array
    busiest: Array


def is_divisible(temperature: Temperature) -> bool:
    """Whether stages hold shares of layers; an array is taken as below `DIVISIBLE`."""
    return isinstance(temperature, int | float) and temperature >= DIVISIBLE


def busiest_layers(n_layers: ArrayLike, stages: ArrayLike, temperature: Temperature = 0.0) -> Array:
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
    if is_divisible(temperature):
        return ratio
    whole = jnp.floor(ratio)
    width = larger(jnp.divide(1.0, stages), (temperature / DIVISIBLE) ** 3)
    return jnp.where(jnp.less_equal(stages, 1.0), ratio, whole + smaller((ratio - whole) / width, 1.0))


def head_in_layers(model: Transformer, temperature: Temperature = 0.0) -> Array:
    """Logits head counted in layers of as many matmul parameters, by which frameworks balance stages [1].

    Rounded up, as the stages before it hold whole layers, unless `DIVISIBLE`.
    """
    head = logits_per_token(model) * head_params(model)
    ratio = head * model.n_layers / (matmul_params_per_token(model) - head)
    return ratio if is_divisible(temperature) else jnp.ceil(ratio - HEAD_ROUNDING)


def first_stage_layers(model: Transformer, plan: Plan, temperature: Temperature = 0.0) -> Array:
    r"""Layers of the first stage, which has the most.

    $\lceil L / p \rceil$ where layers are split evenly; $\lceil (L + c_h) / p \rceil$, at most L, where stages are
    balanced by cost and the logits head counts as $c_h$ layers, `head_in_layers`.

    Args:
        model: the transformer.
        plan: pipeline degree, `balanced_stages`.
        temperature: smoothing [1].

    Returns:
        Layers [1].
    """
    even = busiest_layers(model.n_layers, plan.pp, temperature)
    share = busiest_layers(model.n_layers + head_in_layers(model, temperature), plan.pp, temperature)
    # What the other stages get: a difference, so that the smooth form of a single stage still holds all layers.
    by_cost = model.n_layers - smooth_max(model.n_layers - share, 0.0, temperature)
    return even + plan.balanced_stages * (by_cost - even)


def last_stage_layers(model: Transformer, plan: Plan, temperature: Temperature = 0.0) -> Array:
    """Layers of the last stage beside the logits head: its share less what the head counts for, at least none [1]."""
    even = model.n_layers / plan.pp
    head = head_in_layers(model, temperature)
    by_cost = smooth_max((model.n_layers + head) / plan.pp, head, temperature) - head
    return even + plan.balanced_stages * (by_cost - even)


def stage_times(
    model: Transformer, plan: Plan, layers: ArrayLike, head: ArrayLike, temperature: Temperature = 0.0
) -> StageTimes:
    """Sum and maximum over the stages of the time of one microbatch.

    Args:
        model: the transformer.
        plan: pipeline degree, how layers are shared out.
        layers: time of all layers [s].
        head: time of the logits head [s].
        temperature: smoothing [1].

    Returns:
        Times [s].
    """
    layer = layers / model.n_layers
    fullest = first_stage_layers(model, plan, temperature) * layer
    last = last_stage_layers(model, plan, temperature) * layer + head
    return StageTimes(jnp.asarray(layers + head), smooth_max(fullest, last, temperature))


def bubble_time(plan: Plan, stages: StageTimes) -> Array:
    """Idle time of the busiest stage while the pipeline fills and drains [s]."""
    filled = (1.0 - ZERO_BUBBLE_LEAVES) * plan.zero_bubble
    return (1.0 - filled) * (stages.total - stages.busiest) / plan.vpp


def imbalance_time(plan: Plan, stages: StageTimes) -> Array:
    """Time that stages of the mean load wait for the busiest, over all microbatches of a step [s]."""
    return plan.n_microbatches * (stages.busiest - stages.total / plan.pp)


def transfer_time(
    model: Transformer, plan: Plan, link: Link, coefficients: Coefficients, temperature: Temperature = 0.0
) -> Array:
    """Exposed point-to-point transfers of one step.

    Each microbatch crosses a boundary forward and backward for every virtual stage; the tensor is split over tp (every
    rank sends its slice). `pp_exposed` is the share that compute does not hide.

    Returns:
        Time [s]; zero for pp = 1.
    """
    volume = element_bytes(plan) * tokens_per_microbatch(model, plan) * model.d_model / plan.tp
    hop = send_time(volume, plan.tp * plan.cp * plan.dp, plan.pp, link, temperature)
    crossings = 2.0 * (plan.n_microbatches * plan.vpp + plan.pp - 1.0) * (1.0 - 1.0 / plan.pp)
    return coefficients.pp_exposed * crossings * hop
