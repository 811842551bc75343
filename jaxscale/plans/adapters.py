"""Low-rank adapters (LoRA) beside frozen weights: matmuls with an adapter, and widths of the adapters.

An adapter of rank r beside a matmul of $d_{in}$ by $d_{out}$ has $r (d_{in} + d_{out})$ weights and takes
$2 r (d_{in} + d_{out})$ flops per token (Hu et al. 2021, arXiv 2106.09685, section 4).
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxscale.base.arrays import Number
from jaxscale.base.domains import is_concrete
from jaxscale.models.transformer import (
    Transformer,
    attention_layers,
    dense_layers,
    expert_input,
    indicator,
    is_latent,
    moe_layers,
)

MATMULS = ("q", "k", "v", "o", "gate", "up", "down")
"""Matmuls of a layer that may have an adapter, in the order of `Plan.lora_targets`."""

GROUPS = {"attention": MATMULS[:4], "mlp": MATMULS[4:], "all-linear": MATMULS}
"""Names of groups of `MATMULS`."""


def target_shares(targets: Any) -> Any:
    """Switches of the matmuls with adapters (1 with, 0 without), in the order of `MATMULS`, from words joined by + [1].

    Numbers are returned unchanged.

    Raises:
        ValueError: a word that names no matmul, or a switch that is not between 0 and 1.
    """
    if not isinstance(targets, str):
        if is_concrete(targets) and not np.all((np.asarray(targets) >= 0.0) & (np.asarray(targets) <= 1.0)):
            raise ValueError(f"Plan.lora_targets = {targets} is out of range; expected words, or numbers from 0 to 1")
        return targets
    words = targets.split("+")
    if unknown := [word for word in words if word not in GROUPS and word not in MATMULS]:
        valid = ", ".join((*GROUPS, *MATMULS))
        raise ValueError(f"Plan.lora_targets = {unknown[0]!r} is unknown; expected some of {valid}, joined by +")
    named = {name for word in words for name in GROUPS.get(word, (word,))}
    return np.asarray([float(name in named) for name in MATMULS])


def target_words(shares: Any) -> str:
    """Names of the matmuls with adapters, joined by +, from concrete switches in the order of `MATMULS`."""
    named = tuple(name for name, share in zip(MATMULS, np.asarray(shares), strict=True) if share > 0.0)
    return next((word for word, members in GROUPS.items() if members == named), "+".join(named))


class AdapterWidths(NamedTuple):
    """Sum of input and output widths of the matmuls with an adapter, $d_{in} + d_{out}$ over all layers.

    Attributes:
        dense: widths of matmuls that process every token [1].
        routed: widths of all routed experts [1].
        of_token: widths on the path of one token, dense and routed [1].
    """

    dense: Array
    routed: Array
    of_token: Array


def adapter_widths(model: Transformer, targets: Any) -> AdapterWidths:
    """Input and output widths of the adapters of a model; latent projections count with the matmul of the projection.

    State-space layers and the logits head have no adapters.

    Args:
        model: the transformer.
        targets: switch of each of `MATMULS` [1], [..., matmul].
    """
    # (..., matmul) -> an array for each matmul.
    q, k, v, o, gate, up, down = jnp.moveaxis(jnp.asarray(targets), -1, 0)
    d, heads, h, h_v = model.d_model, model.n_heads, model.head_dim, model.v_head_dim
    key = d + model.n_kv_heads * h
    # Down projection to the latent and the rotary width.
    key = key + is_latent(model) * (d + model.kv_lora_rank + model.rope_head_dim - key)
    value = d + model.n_kv_heads * h_v
    # Up projections of plain keys and of values, from the latent.
    value = value + is_latent(model) * (model.kv_lora_rank + heads * (h - model.rope_head_dim + h_v) - value)
    # Two matmuls d x r and r x H h, or a single matmul for r = 0.
    query = d + heads * h + 2.0 * model.q_lora_rank
    attention = attention_layers(model) * (q * query + k * key + v * value + o * (heads * h_v + d))
    of_mlp = gate * model.gated_mlp + up + down
    mixtures = moe_layers(model) * of_mlp
    mlps = dense_layers(model) * of_mlp * (d + model.d_ff)
    mlps = mlps + mixtures * model.n_shared_experts * (d + model.d_ff_expert)
    expert = mixtures * (expert_input(model) + model.d_ff_expert)
    dense = attention + mlps
    # A token passes the chosen experts alone.
    return AdapterWidths(dense, model.n_experts * expert, dense + model.moe_top_k * expert)


def trained_by(model: Transformer, rank: Number) -> Number:
    """Trained share of the weights of the model: zero beside adapters of rank one or more [1]."""
    # Adapters freeze all weights of the model.
    return model.trainable_share * (1.0 - indicator(rank))
