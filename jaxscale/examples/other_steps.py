"""Steps of a diffusion transformer, a graph network and a state-space model."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxscale.examples.training import array_of, descent_step, half, layer_norm, rms_norm, weights_of

Weights = dict[str, jax.Array]


def dit(
    batch: int = 32,
    n_layers: int = 28,
    width: int = 1152,
    n_heads: int = 16,
    tokens: int = 256,
    patch: int = 16,
    unroll: bool = True,
) -> tuple[Any, ...]:
    """Training step of DiT-XL/2 by plain descent (Peebles & Xie 2022, arXiv 2212.09748), and its arguments.

    The noise of patches of 2 x 2 x 4 numbers is learned; a layer takes six shifts and scales from the condition.
    """
    n, d = n_layers, width
    stacked = {
        "modulate": (n, d, 6 * d),
        "qkv": (n, d, 3 * d),
        "out": (n, d, d),
        "up": (n, d, 4 * d),
        "down": (n, 4 * d, d),
    }
    shapes = {
        **stacked,
        "patch": (patch, d),
        "place": (tokens, d),
        "time": (256, d),
        "time2": (d, d),
        "last": (d, patch),
    }

    def layer(x: jax.Array, condition: jax.Array, w: Weights) -> jax.Array:
        w = half(w)
        shift, scale, gate, shift2, scale2, gate2 = jnp.split((condition @ w["modulate"])[:, None], 6, -1)
        y = layer_norm(x) * (1 + scale) + shift
        query, key, value = jnp.split((y @ w["qkv"]).reshape(*y.shape[:2], 3 * n_heads, -1), 3, 2)
        y = jax.nn.dot_product_attention(query, key, value, implementation="cudnn").reshape(x.shape) @ w["out"]
        x = x + gate * y
        y = layer_norm(x) * (1 + scale2) + shift2
        return x + gate2 * (jax.nn.gelu(y @ w["up"]) @ w["down"])

    def loss(weights: Weights, patches: jax.Array, times: jax.Array, noise: jax.Array) -> jax.Array:
        w = half(weights)
        x = patches.astype(jnp.bfloat16) @ w["patch"] + w["place"]
        condition = jax.nn.silu(jax.nn.silu(times.astype(jnp.bfloat16) @ w["time"]) @ w["time2"])
        layers = {name: weights[name] for name in stacked}
        x, _ = lax.scan(lambda x, one: (layer(x, condition, one), None), x, layers, unroll=n if unroll else 1)
        return jnp.mean(jnp.square((layer_norm(x) @ w["last"]).astype(jnp.float32) - noise))

    image = array_of((batch, tokens, patch))
    return descent_step(loss), weights_of(shapes), image, array_of((batch, 256)), image


def graph_network(
    nodes: int = 100_000, edges: int = 1_000_000, width: int = 128, n_layers: int = 4, features: int = 100
) -> tuple[Any, ...]:
    """Training step of a message-passing network: messages along edges, sums at nodes; and its arguments."""
    shapes = {"first": (features, width), "last": (width, 1)}
    for layer in range(n_layers):
        shapes |= {f"message{layer}": (2 * width, width), f"update{layer}": (2 * width, width)}

    def loss(weights: Weights, x: jax.Array, senders: jax.Array, receivers: jax.Array) -> jax.Array:
        w = half(weights)
        x = x.astype(jnp.bfloat16) @ w["first"]
        for layer in range(n_layers):
            with jax.named_scope(f"layer{layer}"):
                pairs = jnp.concatenate([x[senders], x[receivers]], -1)
                messages = jax.nn.relu(pairs @ w[f"message{layer}"])
                sums = jax.ops.segment_sum(messages, receivers, nodes)
                x = x + jax.nn.relu(jnp.concatenate([x, sums], -1) @ w[f"update{layer}"])
        return jnp.mean(jnp.square((x @ w["last"]).astype(jnp.float32)))

    ends = array_of((edges,), jnp.int32)
    return descent_step(loss), weights_of(shapes), array_of((nodes, features)), ends, ends


def mamba2(
    batch: int = 4,
    seq_len: int = 4096,
    d_model: int = 2048,
    head_dim: int = 64,
    state: int = 128,
    chunk: int = 256,
    n_layers: int = 4,
) -> tuple[Any, ...]:
    """Training step of Mamba-2 layers in chunks (Dao & Gu 2024, arXiv 2405.21060, listing 1), and its arguments."""
    inner = 2 * d_model
    heads = inner // head_dim
    shapes = {
        "in": (n_layers, d_model, 2 * inner + 2 * state + heads),
        "out": (n_layers, inner, d_model),
        "norm": (n_layers, d_model),
    }

    def scan_chunks(x: jax.Array, decay: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
        size, length = x.shape[0], seq_len // chunk
        x, decay = x.reshape(size, length, chunk, heads, head_dim), decay.reshape(size, length, chunk, heads)
        b, c = b.reshape(size, length, chunk, state), c.reshape(size, length, chunk, state)
        total = jnp.cumsum(decay, 2)
        gaps = jnp.exp(total[:, :, :, None] - total[:, :, None]) * jnp.tril(jnp.ones((chunk, chunk)))[:, :, None]
        scores = jnp.einsum("zlin,zljn->zlij", c, b)
        mixed = (scores[..., None] * gaps).astype(x.dtype)
        inside = jnp.einsum("zlijh,zljhp->zlihp", mixed, x)
        left = jnp.exp(total[:, :, -1:] - total).astype(x.dtype)
        states = jnp.einsum("zljn,zljhp->zlhpn", b, x * left[..., None])
        last = jnp.exp(total[:, :, -1]).astype(x.dtype)

        def hand_on(carried: jax.Array, one: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            added, kept = one
            return carried * kept[..., None, None] + added, carried

        start = jnp.zeros_like(states[:, 0])
        _, before = lax.scan(hand_on, start, (jnp.moveaxis(states, 1, 0), jnp.moveaxis(last, 1, 0)))
        across = jnp.einsum("zlin,lzhpn->zlihp", c, before) * jnp.exp(total).astype(x.dtype)[..., None]
        return (inside + across).reshape(size, seq_len, inner)

    def layer(x: jax.Array, w: Weights) -> jax.Array:
        w = half(w)
        parts = rms_norm(x, w["norm"]) @ w["in"]
        ends = [inner, 2 * inner, 2 * inner + state, 2 * inner + 2 * state]
        gate, value, b, c, step = jnp.split(parts, ends, -1)
        mixed = scan_chunks(value, -jax.nn.softplus(step.astype(jnp.float32)), b, c)
        return x + (mixed * jax.nn.silu(gate)) @ w["out"]

    def loss(weights: Weights, x: jax.Array) -> jax.Array:
        x, _ = lax.scan(lambda x, one: (layer(x, one), None), x, weights, unroll=n_layers)
        return jnp.mean(jnp.square(x.astype(jnp.float32)))

    return descent_step(loss), weights_of(shapes), array_of((batch, seq_len, d_model), jnp.bfloat16)
