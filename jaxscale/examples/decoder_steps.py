"""Steps of decoders: dense, with grouped queries, mixtures of experts; scanned, unrolled, rematerialised."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxscale.examples.training import (
    Shapes,
    adam_step,
    array_of,
    descent_step,
    mean_cross_entropy,
    rms_norm,
    weights_of,
)


class DecoderSetting(NamedTuple):
    """Shape of a decoder and how its step is written.

    Attributes:
        n_layers: depth [1].
        d_model: width [1].
        n_heads: query heads [1].
        n_kv_heads: key heads [1].
        d_ff: width of the MLP [1].
        gated_mlp: whether the MLP has a gate.
        vocab_size: vocabulary [1].
        seq_len: tokens of a sequence [token].
        micro_batch: sequences of a microbatch [sequence].
        n_microbatches: microbatches of a step [1].
        recompute: whether layers are computed again for the backward pass.
        unroll: whether the scan over the layers is unrolled.
        attention: `cudnn` (fused) or `xla` (scores in memory).
        n_experts: experts of each MLP; 0 for a dense one [1].
        moe_top_k: experts of a token [1].
        dtype: of the activations.
        optimizer: `adamw` or `descent`.
    """

    n_layers: int = 16
    d_model: int = 2048
    n_heads: int = 16
    n_kv_heads: int = 16
    d_ff: int = 8192
    gated_mlp: bool = False
    vocab_size: int = 32000
    seq_len: int = 2048
    micro_batch: int = 4
    n_microbatches: int = 1
    recompute: bool = False
    unroll: bool = True
    attention: str = "cudnn"
    n_experts: int = 0
    moe_top_k: int = 2
    dtype: Any = jnp.bfloat16
    optimizer: str = "adamw"

    @property
    def head_dim(self) -> int:
        """Width of a head [1]."""
        return self.d_model // self.n_heads


def decoder_weights(s: DecoderSetting) -> Shapes:
    """Abstract weights of a decoder, those of all layers stacked."""
    n, d, f = s.n_layers, s.d_model, s.d_ff
    experts = (s.n_experts,) if s.n_experts else ()
    shapes: dict[str, tuple[int, ...]] = {
        "embedding": (s.vocab_size, d),
        "head": (d, s.vocab_size),
        "norm": (d,),
        "query": (n, d, s.n_heads * s.head_dim),
        "key": (n, d, s.n_kv_heads * s.head_dim),
        "value": (n, d, s.n_kv_heads * s.head_dim),
        "out": (n, s.n_heads * s.head_dim, d),
        "up": (n, *experts, d, f),
        "down": (n, *experts, f, d),
        "norm_attention": (n, d),
        "norm_mlp": (n, d),
    }
    if s.gated_mlp:
        shapes["gate"] = (n, *experts, d, f)
    if s.n_experts:
        shapes["router"] = (n, d, s.n_experts)
    return weights_of(shapes)


def attend(s: DecoderSetting, x: jax.Array, w: dict[str, jax.Array]) -> jax.Array:
    """Causal attention with its projections."""
    size, length, _ = x.shape
    query = (x @ w["query"]).reshape(size, length, s.n_heads, s.head_dim)
    key = (x @ w["key"]).reshape(size, length, s.n_kv_heads, s.head_dim)
    value = (x @ w["value"]).reshape(size, length, s.n_kv_heads, s.head_dim)
    kernel: Any = s.attention
    mixed = jax.nn.dot_product_attention(query, key, value, is_causal=True, implementation=kernel)
    return mixed.reshape(size, length, -1) @ w["out"]


def dense_mlp(s: DecoderSetting, x: jax.Array, w: dict[str, jax.Array]) -> jax.Array:
    """MLP, gated or not."""
    up = x @ w["up"]
    up = jax.nn.silu(x @ w["gate"]) * up if s.gated_mlp else jax.nn.gelu(up)
    return up @ w["down"]


def routed_mlp(s: DecoderSetting, x: jax.Array, w: dict[str, jax.Array]) -> jax.Array:
    """Mixture of experts: tokens sorted by expert, one grouped product for all experts."""
    tokens = x.reshape(-1, s.d_model)
    scores = jax.nn.softmax((tokens @ w["router"]).astype(jnp.float32))
    weight, chosen = lax.top_k(scores, s.moe_top_k)
    order = jnp.argsort(chosen.reshape(-1))
    rows = jnp.take(tokens, order // s.moe_top_k, axis=0)
    counts = jnp.bincount(chosen.reshape(-1), length=s.n_experts)
    up = lax.ragged_dot(rows, w["up"], counts)
    up = jax.nn.silu(lax.ragged_dot(rows, w["gate"], counts)) * up if s.gated_mlp else jax.nn.gelu(up)
    down = lax.ragged_dot(up, w["down"], counts) * jnp.take(weight.reshape(-1), order)[:, None].astype(x.dtype)
    return jax.ops.segment_sum(down, order // s.moe_top_k, len(tokens)).reshape(x.shape).astype(x.dtype)


def decoder_layer(s: DecoderSetting, x: jax.Array, weights: dict[str, jax.Array]) -> jax.Array:
    """A layer on the residual stream [sequence, token, d_model]."""
    matrices = {name: weight.astype(s.dtype) if weight.ndim > 1 else weight for name, weight in weights.items()}
    with jax.named_scope("attention"):
        x = x + attend(s, rms_norm(x, matrices["norm_attention"]), matrices)
    with jax.named_scope("mlp"):
        mlp = routed_mlp if s.n_experts else dense_mlp
        return x + mlp(s, rms_norm(x, matrices["norm_mlp"]), matrices)


def decoder_loss(weights: dict[str, jax.Array], tokens: jax.Array, s: DecoderSetting) -> jax.Array:
    """Mean cross-entropy of the next token; logits in 32 bits."""
    stacked = {name: weight for name, weight in weights.items() if name not in ("embedding", "head", "norm")}
    x = weights["embedding"].astype(s.dtype)[tokens]
    layer = functools.partial(decoder_layer, s)
    layer = jax.checkpoint(layer) if s.recompute else layer
    x, _ = lax.scan(lambda x, w: (layer(x, w), None), x, stacked, unroll=s.n_layers if s.unroll else 1)
    logits = rms_norm(x, weights["norm"]) @ weights["head"].astype(s.dtype)
    return mean_cross_entropy(logits, jnp.roll(tokens, -1, axis=1))


def decoder_gradients(weights: dict[str, jax.Array], tokens: jax.Array, s: DecoderSetting) -> dict[str, jax.Array]:
    """Gradients added up over microbatches [microbatch, sequence, token]."""
    of_one = jax.grad(functools.partial(decoder_loss, s=s))
    if s.n_microbatches == 1:
        return of_one(weights, tokens[0])
    zeros = jax.tree.map(jnp.zeros_like, weights)
    total, _ = lax.scan(lambda sums, one: (jax.tree.map(jnp.add, sums, of_one(weights, one)), None), zeros, tokens)
    return total


def decoder(**setting: Any) -> tuple[Any, ...]:
    """Training step of a decoder, and the shapes of its arguments; the setting is that of `DecoderSetting`."""
    s = DecoderSetting(**setting)
    weights = decoder_weights(s)
    tokens = array_of((s.n_microbatches, s.micro_batch, s.seq_len), jnp.int32)
    if s.optimizer == "descent":
        return descent_step(lambda weights, tokens: decoder_loss(weights, tokens[0], s)), weights, tokens
    step, begin = adam_step(functools.partial(decoder_gradients, s=s), weights)

    def train(state: Any, tokens: jax.Array) -> Any:
        return step(state, tokens)

    return train, begin, tokens
