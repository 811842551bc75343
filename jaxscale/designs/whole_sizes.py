"""Whole widths, depths and heads of models that a framework can run."""

import functools
import math

import jax
import numpy as np

from jaxscale.base.arrays import divisors, number, with_fields
from jaxscale.models.transformer import LAYER_SHARES, Transformer
from jaxscale.plans.rules import shares_key_values

TILE = 128
"""Widths are multiples of this: the tile of matmul kernels (NVIDIA, Matrix Multiplication Background, 2023) [1]."""


def at_whole_sizes(
    template: Transformer, d_model: np.ndarray, n_layers: np.ndarray, head_dim: float | int, tp: np.ndarray
) -> Transformer:
    """The template at whole widths and depths: heads that divide each other and suit tp, whole layers of each kind.

    Args:
        template: proportions that are kept; widths of MLPs are kept.
        d_model: d, whole multiples of `head_dim` [shape].
        n_layers: L, whole [shape].
        head_dim: width of a head [1].
        tp: tensor-parallel degrees, which divide the heads [shape].

    Returns:
        Models, stacked [shape].
    """
    n_heads, scale = np.round(d_model / head_dim), head_dim / number(template.head_dim)
    share = number(template.n_kv_heads / template.n_heads)
    changes = {
        "d_model": d_model,
        "n_layers": n_layers,
        "n_heads": n_heads,
        "n_kv_heads": np.asarray([_kv_heads(h, t, share) for h, t in zip(n_heads.tolist(), tp.tolist(), strict=True)]),
        "head_dim": np.full_like(d_model, head_dim),
        "v_head_dim": np.full_like(d_model, number(template.v_head_dim) * scale),
        "rope_head_dim": np.full_like(d_model, number(template.rope_head_dim) * scale),
    }
    for name in LAYER_SHARES:
        changes[name] = np.round(number(getattr(template, name)) * n_layers) / n_layers
    return with_fields(jax.tree.map(lambda leaf: np.full_like(d_model, number(leaf)), template), changes)


@functools.lru_cache(maxsize=4096)
def _kv_heads(heads: float, tp: int, share: float) -> float:
    """Number of key/value heads: a divisor of the heads, near a share, that ranks hold in whole heads or copies."""
    options = divisors(heads)
    options = options[shares_key_values(tp, options)]
    return float(options[np.argmin(np.abs(np.log(options) - math.log(heads * share)))])
