"""Figures of a model: parameters, flop and cache per token, as `jaxscale model` prints."""

from typing import Any

from jaxtyping import Array

from jaxscale.models.model_catalogue import ModelDescription
from jaxscale.models.transformer import (
    Transformer,
    attention_layers,
    embedding_params,
    head_params,
    is_latent,
    key_value_numbers,
    mean_over_heads,
    model_flops,
    n_active_params,
    n_params,
)

CACHE_BYTES = 2.0
"""Width of a key or value kept for later tokens [byte]."""


def cached_width(model: Transformer) -> Array:
    """Cached numbers per token of an attention layer [1].

    K (h + h_v), half where keys serve as values; for latent attention the latent of rank r_kv and the rotary part
    of a head (DeepSeek-V2, arXiv 2405.04434, section 2.1.4).
    """
    full = mean_over_heads(model, key_value_numbers)
    # No branch: different kinds of attention stack and trace.
    return full + is_latent(model) * (model.kv_lora_rank + model.rope_head_dim - full)


def kv_bytes_per_token(model: Transformer) -> float:
    """Size of the keys and values of a token in all attention layers, in 16 bits [byte].

    Layers with a window cache at most the tokens of the window.
    """
    return float(CACHE_BYTES * attention_layers(model) * cached_width(model))


def model_figures(name: str, description: ModelDescription) -> dict[str, Any]:
    """Figures of a model.

    Args:
        name: name or file of the model.
        description: fields of the model, and parts beyond the fields.

    Returns:
        Parameters in all, active per token and of the embeddings [1], flop of a training step and bytes
        of keys and values per token, fields, parts beyond the fields [1], and features that are not modelled.

    Raises:
        InputError: a shape that no transformer can have.
    """
    model = description.transformer(name)
    tied = float(model.tied_embeddings)
    return {
        "name": name,
        "n_params": float(n_params(model)),
        "n_active_params": float(n_active_params(model)),
        "n_embedding_params": float(embedding_params(model)),
        # A tied matrix also makes the logits, hence counts.
        "n_active_params_without_input_embedding": float(n_active_params(model) - (1.0 - tied) * head_params(model)),
        "flop_per_token": float(model_flops(model)),
        "flop_per_token_causal": float(model_flops(model, causal=True)),
        "kv_bytes_per_token": kv_bytes_per_token(model),
        "fields": dict(description.fields),
        "parts": dict(description.parts),
        "not_modelled": list(description.not_modelled),
    }
