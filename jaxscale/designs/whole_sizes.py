"""Integer widths, depths and heads of practical models that a framework can run."""

import jax
import numpy as np

from jaxscale.base.arrays import divisors, number, with_columns
from jaxscale.designs.quantities import WIDTH_FIELDS, head_share
from jaxscale.models.transformer import LAYER_SHARES, Transformer
from jaxscale.plans.rules import shares_key_values

TILE = 128
"""Unit of widths: the tile of matmul kernels (NVIDIA, Matrix Multiplication Background, 2023) [1]."""

HEAD_WIDTHS = (64, 96, 128)
"""Widths of a head in published models, all with kernels [1]."""

HEADS = 8
"""Unit of the number of query heads: the chips of a node, over which tensor parallelism splits the heads [1]."""

KEY_VALUE_HEADS = (4, 8, 16)
"""Alternative numbers of key/value heads, if the template's number does not suit the chips [1]."""


def width_step(template: Transformer, head_dim: np.ndarray, tp: np.ndarray) -> np.ndarray:
    """Step of the widths: integer tiles, and integer groups of heads where the heads span the width [shape].

    Args:
        template: model with the share of the heads in the width.
        head_dim: width of a head, integer [shape].
        tp: tensor-parallel degrees [shape].
    """
    if head_share(template) != 1.0:
        return np.full(np.broadcast(head_dim, tp).shape, 2 * TILE)
    return np.lcm(TILE, np.asarray(head_dim, int) * np.lcm(HEADS, np.asarray(tp, int)))


def whole_shapes(
    template: Transformer,
    d_model: np.ndarray,
    n_layers: np.ndarray,
    head_dim: np.ndarray,
    tp: np.ndarray,
    mlp_ratio: np.ndarray | float = 1.0,
    head_unit: int = HEADS,
) -> Transformer:
    """Template at integer widths and depths: MLP widths in integer tiles, heads divisible by tp, integer layers.

    Args:
        template: proportions of the model, and its number of key/value heads.
        d_model: d [shape].
        n_layers: L, integer [shape].
        head_dim: width of a head [shape].
        tp: tensor-parallel degrees, which divide heads and MLPs [shape].
        mlp_ratio: MLP width over model width, relative to the template's [shape].
        head_unit: unit of the number of heads where the width does not determine the heads [1].

    Returns:
        Models, stacked [shape].
    """
    tp, scale = np.asarray(tp, int), head_dim / number(template.head_dim)
    tile, wider, share = np.lcm(TILE, tp), d_model / number(template.d_model), head_share(template)
    # At a share of 1 the width determines the heads.
    group = np.ones_like(tp) if share == 1.0 else np.lcm(head_unit, tp)
    n_heads = group * np.maximum(np.round(d_model * share / (head_dim * group)), 1.0)
    changes = {"d_model": d_model, "n_layers": n_layers, "n_heads": n_heads}
    changes["n_kv_heads"] = kept_key_value_heads(template, n_heads, tp)
    for name in ("head_dim", "v_head_dim", "rope_head_dim"):
        changes[name] = number(getattr(template, name)) * scale
    for name in WIDTH_FIELDS:
        ratio = mlp_ratio if name in ("d_ff", "d_ff_expert") else 1.0
        widest = number(getattr(template, name)) * wider * ratio
        # A tile at least, unless the template has none.
        changes[name] = tile * np.maximum(np.round(widest / tile), np.sign(widest))
    for name in LAYER_SHARES:
        # Whole layers of a share.
        changes[name] = np.round(number(getattr(template, name)) * n_layers) / n_layers
    plain = jax.tree.map(lambda leaf: np.full(len(d_model), number(leaf)), template)
    return with_columns(plain, {name: np.broadcast_to(value, len(d_model)) for name, value in changes.items()})


def kept_key_value_heads(template: Transformer, n_heads: np.ndarray, tp: np.ndarray) -> np.ndarray:
    """Numbers of key/value heads: the template's, or a usual number that divides the heads and suits tp [shape].

    Args:
        template: model; a key/value head for each query head stays so.
        n_heads: H [shape].
        tp: tensor-parallel degrees [shape].
    """
    own = number(template.n_kv_heads)
    if own == number(template.n_heads):
        return n_heads
    # Few distinct pairs among many shapes.
    pairs, which = np.unique(np.stack([n_heads, tp * np.ones_like(n_heads)], axis=1), axis=0, return_inverse=True)
    counts = []
    for heads, degree in pairs.tolist():
        usual = np.asarray((own, *KEY_VALUE_HEADS))
        usual = usual[(heads % usual == 0) & shares_key_values(degree, usual)]
        every = divisors(heads)
        options = usual if len(usual) else every[shares_key_values(degree, every)]
        # Nearest in ratio to the number of the template.
        counts.append(float(options[np.argmin(np.abs(np.log(options / own)))]))
    return np.asarray(counts)[which.ravel()]
