"""Map from a point of the unit cube to a model, a plan and a number of tokens.

Every coordinate is a share of the remaining range after the earlier coordinates, in logarithms (stick-breaking): each
point of the cube then obeys all linear bounds, `dp * tp * pp * cp = n_chips`, `pp * vpp <= L`, `tp <= heads`,
`b * m * dp = B`, and only the constraints on time, loss and memory remain.

A shape is a model scaled in width and depth, with all proportions fixed.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from jaxscale.base.arrays import number, with_fields
from jaxscale.models.transformer import Transformer, n_params
from jaxscale.plans.plan import Plan
from jaxscale.plans.plan_problem import Family, plan_with, splits

WIDTH_FIELDS = ("d_ff", "d_ff_expert", "moe_latent_size", "ssm_d_inner")
"""Fields proportional to the width."""


def head_share(template: Transformer) -> float:
    """Width of all query heads over the width of the model, to three digits: near-equal widths count as equal [1]."""
    return round(number(template.n_heads * template.head_dim / template.d_model), 3)


def stretched(
    template: Transformer, d_model: ArrayLike, n_layers: ArrayLike, head_dim: ArrayLike = 128.0
) -> Transformer:
    """Template at a different width and depth: fixed ratios of MLP and of heads to width, fixed key/value heads.

    Args:
        template: model with the proportions; equal numbers of key/value and query heads stay equal.
        d_model: d, any positive number [1].
        n_layers: L, any positive number [1].
        head_dim: width of a head; the number of heads follows [1].

    Returns:
        The model; exact for integer sizes, the continuous relaxation between integers.
    """
    wider, scale = d_model / template.d_model, head_dim / template.head_dim
    # A fixed share of the width for the heads.
    n_heads = template.n_heads * wider / scale
    changed = {name: getattr(template, name) * wider for name in WIDTH_FIELDS}
    # Multi-head attention stays multi-head.
    is_full = template.n_kv_heads == template.n_heads
    heads = {
        "n_heads": n_heads,
        "n_kv_heads": jnp.where(is_full, n_heads, jnp.minimum(template.n_kv_heads, n_heads)),
        "head_dim": head_dim,
        "v_head_dim": scale * template.v_head_dim,
        "rope_head_dim": scale * template.rope_head_dim,
    }
    return with_fields(template, {"d_model": d_model, "n_layers": n_layers, **changed, **heads})


def depth_of(template: Transformer, d_model: ArrayLike, params: ArrayLike, head_dim: ArrayLike = 128.0) -> Array:
    """Depth at which the scaled template has a number of parameters: parameters are affine in depth [1]."""
    one = n_params(stretched(template, d_model, jnp.asarray(1.0), head_dim))
    two = n_params(stretched(template, d_model, jnp.asarray(2.0), head_dim))
    # Affine in depth: N(L) = N(1) + (L - 1) (N(2) - N(1)).
    return jnp.asarray(1.0 + (params - one) / (two - one))


COORDINATES = ("d_model", "n_layers", "d_ff", "tokens", "tp", "cp", "pp", "batch", "micro_batch_size", "vpp", "ep")
"""Sizes and degrees of the coordinates, in order."""

N_COORDINATES = len(COORDINATES)

LOWEST = {"d_model": 256.0, "n_layers": 2.0, "d_ff": 0.25, "tokens": 1e7}
HIGHEST = {"d_model": 262144.0, "n_layers": 1024.0, "d_ff": 4.0, "tokens": 1e16}
"""Range of the coordinates without further bounds; the MLP ratio relative to the template's [1] or [token]."""

LARGEST_BATCH = 1e12
"""Upper bound of the batch, beyond every critical batch of the shipped laws [token]."""


class Design(NamedTuple):
    """Model, plan and length of a run.

    Attributes:
        model: the transformer.
        plan: degrees and batch.
        small_batch_tokens: tokens that a run with small batches would need; nan for open length [token].
    """

    model: Transformer
    plan: Plan
    small_batch_tokens: ArrayLike = math.nan


def _between(share: Array, name: str) -> Array:
    # Even in the logarithm.
    low, high = jnp.log(LOWEST[name]), jnp.log(HIGHEST[name])
    return jnp.exp(low + share * (high - low))


def design_at(
    point: Float[Array, " coordinate"],
    template: Transformer,
    family: Family,
    n_chips: ArrayLike,
    head_dim: ArrayLike,
    software: Plan | None = None,
) -> Design:
    """Design at a point of the unit cube.

    Args:
        point: shares of the remaining range, in the order of `COORDINATES` [1].
        template: proportions of the model: heads, experts, vocabulary, sequence length.
        family: sharding and recomputation.
        n_chips: number of chips, all used by the plan [1].
        head_dim: width of a head [1].
        software: a plan with the fields other than degrees; an unnamed framework's where None.

    Returns:
        The continuous design.
    """
    share = {name: point[index] for index, name in enumerate(COORDINATES)}
    d_model, n_layers = _between(share["d_model"], "d_model"), _between(share["n_layers"], "n_layers")
    model = stretched(template, d_model, n_layers, head_dim)
    ratio = _between(share["d_ff"], "d_ff")
    # Dense MLPs and experts share a ratio to the template.
    model = with_fields(model, {"d_ff": model.d_ff * ratio, "d_ff_expert": model.d_ff_expert * ratio})
    # ln dp + ln tp + ln pp + ln cp = ln n_chips
    room = jnp.log(n_chips)
    split = splits(share, family, model, jnp.log(model.n_heads), room)
    # ln(b m) as a share of ln(B_max / S) - ln dp
    replica_batch = share["batch"] * (jnp.log(LARGEST_BATCH / model.seq_len) - split["dp"])
    plan = plan_with(share, split, replica_batch, family, software)
    return Design(model, plan, _between(share["tokens"], "tokens"))
