"""Family of shapes: a model scaled in width and depth, with all proportions fixed."""

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from jaxscale.base.arrays import number, with_fields
from jaxscale.models.transformer import Transformer, n_params

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
