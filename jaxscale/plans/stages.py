"""Layers of the stages of a pipeline: divided evenly, or by cost with the logits head counted as layers.

Reference: Narayanan et al. 2021, arXiv 2104.04473, section 2.2.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from jaxscale.base.arrays import Number
from jaxscale.base.smooth import Temperature, larger, smaller, smooth_max
from jaxscale.models.transformer import (
    Transformer,
    head_params,
    logits_per_token,
    matmul_params_per_token,
    total_layers,
)
from jaxscale.plans.plan import Plan

DIVISIBLE = 0.02
"""Temperature from which on layers are divided continuously, see `is_divisible` [1]."""

HEAD_ROUNDING = 0.01
"""Smallest excess of the head over a whole number of layers that counts as one more layer [1]."""


def is_divisible(temperature: Temperature) -> bool:
    """Whether the temperature of smoothing is high enough for fractional layers in stages; false for an array."""
    return isinstance(temperature, int | float) and temperature >= DIVISIBLE


def busiest_layers(n_layers: ArrayLike, stages: ArrayLike, temperature: Temperature = 0.0) -> Array:
    r"""Layers of the fullest stage: $\lceil L / p \rceil$, continuous between whole numbers.

    The exact form rises linearly over the width $1/p$ between $L$ and $L + 1$ layers, and is therefore continuous and
    equal to the ceiling at every whole L and p; a single stage holds all layers. Smooth forms rise over at least
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
    # 1 / p is the exact form; wider forms are smoother.
    width = larger(jnp.divide(1.0, stages), (temperature / DIVISIBLE) ** 3)
    return jnp.where(jnp.less_equal(stages, 1.0), ratio, whole + smaller((ratio - whole) / width, 1.0))


def head_in_layers(model: Transformer, temperature: Temperature = 0.0) -> Array:
    """Size of the logits head in layers of equally many matmul parameters, as used by frameworks to balance stages [1].

    Rounded up to whole layers, except at high smoothing temperatures, see `is_divisible`.
    """
    head = logits_per_token(model) * head_params(model)
    # c_h: parameters of the head over parameters of a layer.
    ratio = head * total_layers(model) / (matmul_params_per_token(model) - head)
    # The earlier stages hold whole layers.
    return ratio if is_divisible(temperature) else jnp.ceil(ratio - HEAD_ROUNDING)


class StageLayers(NamedTuple):
    """Layers of the stages of a pipeline.

    Attributes:
        first: layers of the first stage [1].
        middle: layers of the fullest stage between the ends [1].
        last: layers of the last stage, beside the logits head [1].
    """

    first: Number
    middle: Number
    last: Number


def stage_layers(model: Transformer, plan: Plan, temperature: Temperature = 0.0) -> StageLayers:
    r"""Layers of the stages: stated layers of the end stages, the remaining layers split evenly or by cost.

    An even split gives $\lceil L / p \rceil$ layers. Stages balanced by cost count the logits head as $c_h$ layers,
    `head_in_layers`, and have $\lceil (L + c_h) / p \rceil$ layers, at most L; the last stage has an equal share less
    $c_h$ layers, at least none.

    Args:
        model: the transformer.
        plan: pipeline degree, `balanced_stages`, `first_stage_layers`, `last_stage_layers`.
        temperature: smoothing [1].

    Returns:
        Layers [1].
    """
    layers, stated = total_layers(model), (jnp.asarray(plan.first_stage_layers), jnp.asarray(plan.last_stage_layers))
    # A single stage holds all layers, whatever a row states of the ends of a pipeline.
    is_first, is_last = (jnp.greater(count, 0.0) & jnp.greater(plan.pp, 1.0) for count in stated)
    first, last = jnp.where(is_first, stated[0], 0.0), jnp.where(is_last, stated[1], 0.0)
    # Stages without stated layers share the remaining layers.
    is_stated, left = is_first | is_last, layers - first - last
    others = jnp.where(is_stated, larger(plan.pp - 1.0 * is_first - 1.0 * is_last, 1.0), plan.pp)
    even = busiest_layers(left, others, temperature)
    head = head_in_layers(model, temperature)
    share = busiest_layers(layers + head, plan.pp, temperature)
    # Layers of the remaining stages: a difference, so that the smooth form of a single stage still holds all layers.
    by_cost = layers - smooth_max(layers - share, 0.0, temperature)
    # Share less the head, at least no layer.
    last_by_cost = smooth_max((layers + head) / plan.pp, head, temperature) - head
    balanced = plan.balanced_stages * jnp.where(is_stated, 0.0, 1.0)
    middle, end = even + balanced * (by_cost - even), left / others + balanced * (last_by_cost - left / others)
    return StageLayers(jnp.where(is_first, first, middle), middle, jnp.where(is_last, last, end))


def shortened_ends(n_layers: Any, stages: Any) -> Any:
    """Layers of first and last stage, where embedding and logits head each replace one layer.

    Args:
        n_layers: L [1].
        stages: p [1].

    Returns:
        $(L + 2) / p - 1$ where this number is whole and $L / p$ is not; else 0, for not stated [1].
    """
    # More than two stages: a stage between the ends takes L + 2 over p.
    is_short = (np.mod(n_layers, stages) != 0) & (np.mod(np.add(n_layers, 2), stages) == 0) & np.greater(stages, 2)
    return np.where(is_short, np.add(n_layers, 2) // stages - 1, 0)
