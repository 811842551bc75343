r"""Key/value cache: bytes of a sequence, and their distribution by tensor parallelism.

Grouped-query attention caches $2 K h$ elements per token and layer, latent attention $r_{kv} + h_{rope}$ (DeepSeek-V2,
arXiv 2405.04434, section 2.1.4). Window layers cache at most a window, state-space layers a constant state.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from jaxscale.base.arrays import Number
from jaxscale.base.smooth import Temperature, smooth_min
from jaxscale.models.transformer import (
    Heads,
    Transformer,
    attention_layers,
    head_kinds,
    is_latent,
    key_value_numbers,
    ssm_layers,
)
from jaxscale.serving.engine import Engine

STATE_BYTES = 4.0
"""Stored bytes of an element of the state of a state-space layer (Mamba-2, arXiv 2405.21060: 32 bits) [byte]."""


def over_cached_keys(
    model: Transformer, context: ArrayLike, of: Callable[[Heads, ArrayLike], Number], temperature: Temperature = 0.0
) -> Number:
    """Mean over attention layers of a function of the heads and of the number of cached tokens."""
    full, windowed = head_kinds(model)
    # Without a window (0) all tokens are held.
    held = smooth_min(model.window + (1.0 - jnp.clip(model.window, 0.0, 1.0)) * context, context, temperature)
    return full.share * of(full, context) + windowed.share * of(windowed, held)


def cached_keys(model: Transformer, context: ArrayLike, temperature: Temperature = 0.0) -> Array:
    """Number of cached tokens of a context, mean over attention layers with and without a window [token]."""
    return over_cached_keys(model, context, lambda _, keys: keys, temperature)


def state_bytes(model: Transformer) -> Number:
    """Constant state of a sequence over all state-space layers [byte]."""
    return ssm_layers(model) * model.ssm_d_inner * model.ssm_state / model.ssm_groups * STATE_BYTES


def cached_on_rank(model: Transformer, engine: Engine, kind: Heads, temperature: Temperature = 0.0) -> Array:
    """Numbers of a token in the cache of a layer on one of min(tp, K) ranks; latents in full on every rank [1]."""
    # Beyond K ranks, keys and values are replicated.
    split = key_value_numbers(kind) / smooth_min(engine.tp, kind.n_kv_heads, temperature)
    return split + is_latent(model) * (model.kv_lora_rank + model.rope_head_dim - split)


def cache_per_sequence(model: Transformer, engine: Engine, context: ArrayLike, temperature: Temperature = 0.0) -> Array:
    """Cache of a sequence on a chip of its rank, over all layers of all pipeline stages [byte].

    Args:
        engine: number format and degrees.
        context: tokens of the sequence [token].
        temperature: 0 for exact minima, else their smoothing [1].

    Returns:
        Bytes per sequence [byte].
    """
    numbers = over_cached_keys(
        model, context, lambda kind, keys: keys * cached_on_rank(model, engine, kind, temperature), temperature
    )
    # State-space heads split over tp.
    return attention_layers(model) * numbers * engine.cache_bytes + state_bytes(model) / engine.tp
