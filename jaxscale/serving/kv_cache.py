r"""Key/value cache: bytes of a sequence, and how tensor parallelism splits them.

Grouped-query attention caches $2 K h$ elements per token and layer, latent attention $r_{kv} + h_{rope}$ (DeepSeek-V2,
arXiv 2405.04434, section 2.1.4). Window layers hold at most a window, state-space layers a constant state.
"""

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from jaxscale.base.arrays import Number
from jaxscale.base.smooth import Temperature, smooth_min
from jaxscale.models.model_figures import cached_width, is_latent
from jaxscale.models.transformer import Transformer, attention_layers, ssm_layers
from jaxscale.serving.engine import Engine

STATE_BYTES = 4.0
"""Stored bytes of an element of the state of a state-space layer (Mamba-2, arXiv 2405.21060: 32 bits) [byte]."""


def cached_keys(model: Transformer, context: ArrayLike, temperature: Temperature = 0.0) -> Array:
    """Tokens of a context that an attention layer holds, on average over layers with and without a window [token]."""
    held = smooth_min(model.window + (1.0 - jnp.clip(model.window, 0.0, 1.0)) * context, context, temperature)
    return context + model.window_share * (held - context)


def state_bytes(model: Transformer) -> Number:
    """Constant state of one sequence over all state-space layers [byte]."""
    return ssm_layers(model) * model.ssm_d_inner * model.ssm_state / model.ssm_groups * STATE_BYTES


def cache_shards(model: Transformer, engine: Engine, temperature: Temperature = 0.0) -> Array:
    """Parts into which tensor parallelism splits the cache: min(tp, K), one for latent attention [1]."""
    split = smooth_min(engine.tp, model.n_kv_heads, temperature)
    return split + is_latent(model) * (1.0 - split)


def cache_per_sequence(model: Transformer, engine: Engine, context: ArrayLike, temperature: Temperature = 0.0) -> Array:
    """Cache of one sequence on one chip of its rank, over all layers of all pipeline stages [byte].

    Args:
        engine: number format and degrees.
        context: tokens of the sequence [token].
        temperature: 0 for exact minima, else their smoothing [1].

    Returns:
        Bytes per sequence [byte].
    """
    keys = cached_keys(model, context, temperature)
    cached = attention_layers(model) * keys * cached_width(model) * engine.cache_bytes
    return cached / cache_shards(model, engine, temperature) + state_bytes(model) / engine.tp
