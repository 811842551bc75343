"""Layers of the stages of a pipeline: shared out evenly, or by cost with the logits head counted as layers.

Reference: Narayanan et al. 2021, arXiv 2104.04473, section 2.2.
"""

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

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
"""Temperature from which on layers are shared as if they could be divided, see `is_divisible` [1]."""

HEAD_ROUNDING = 0.01
"""Layers by which the head must exceed a whole number of them to count as one more [1]."""


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
    ratio = head * total_layers(model) / (matmul_params_per_token(model) - head)
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
    even = busiest_layers(total_layers(model), plan.pp, temperature)
    share = busiest_layers(total_layers(model) + head_in_layers(model, temperature), plan.pp, temperature)
    # What the other stages get: a difference, so that the smooth form of a single stage still holds all layers.
    by_cost = total_layers(model) - smooth_max(total_layers(model) - share, 0.0, temperature)
    return even + plan.balanced_stages * (by_cost - even)


def last_stage_layers(model: Transformer, plan: Plan, temperature: Temperature = 0.0) -> Array:
    """Layers of the last stage beside the logits head: its share less what the head counts for, at least none [1]."""
    even = total_layers(model) / plan.pp
    head = head_in_layers(model, temperature)
    by_cost = smooth_max((total_layers(model) + head) / plan.pp, head, temperature) - head
    return even + plan.balanced_stages * (by_cost - even)
