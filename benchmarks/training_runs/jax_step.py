"""Times training steps of small decoders in JAX on one GPU and writes them as a runs table.

Run `python benchmarks/training_runs/jax_step.py --out runs.csv` on a machine with a GPU. A step is compiled whole:
bfloat16 with float32 master weights, gradients and Adam moments, attention by cuDNN, the scan over the layers unrolled
(rolled up, XLA stores its intermediates in stacked buffers at a quarter of the step's time). Peak memory is XLA's.
"""

import functools
import os
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.92")

import jax
import jax.numpy as jnp
import optax
from jax import lax
from settings import Run, measure_all, step_times, succeeded

Weights = dict[str, jax.Array]


def shapes(run: Run) -> dict[str, tuple[int, ...]]:
    """Weights: embedding, logits head, and those of all layers stacked."""
    d, n, (heads, kv_heads) = run.d_model, run.n_layers, run.heads
    layers = {
        "query": (n, d, heads * run.head_dim),
        "key": (n, d, kv_heads * run.head_dim),
        "value": (n, d, kv_heads * run.head_dim),
        "out": (n, heads * run.head_dim, d),
        "up": (n, d, run.width),
        "down": (n, run.width, d),
        "norm_attention": (n, d),
        "norm_mlp": (n, d),
    }
    gate = {"gate": (n, d, run.width)} if run.gated else {}
    return {"embedding": (run.vocab, d), "head": (d, run.vocab), "norm": (d,), **layers, **gate}


def rms_norm(x: jax.Array, gain: jax.Array) -> jax.Array:
    """Root mean square norm, in 32 bits."""
    wide = x.astype(jnp.float32)
    scale = lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-6)
    return (wide * scale * gain).astype(x.dtype)


def layer(run: Run, x: jax.Array, weights: Weights) -> jax.Array:
    """One decoder layer on the residual stream [sequence, token, d_model]."""
    (heads, kv_heads), (size, length, _) = run.heads, x.shape
    cast = {name: w.astype(jnp.bfloat16) for name, w in weights.items() if w.ndim > 1}
    hidden = rms_norm(x, weights["norm_attention"])
    query = (hidden @ cast["query"]).reshape(size, length, heads, run.head_dim)
    key = (hidden @ cast["key"]).reshape(size, length, kv_heads, run.head_dim)
    value = (hidden @ cast["value"]).reshape(size, length, kv_heads, run.head_dim)
    attended = jax.nn.dot_product_attention(query, key, value, is_causal=True, implementation="cudnn")
    x = x + attended.reshape(size, length, -1) @ cast["out"]
    hidden = rms_norm(x, weights["norm_mlp"])
    up = hidden @ cast["up"]
    up = jax.nn.silu(hidden @ cast["gate"]) * up if run.gated else jax.nn.gelu(up)
    return x + up @ cast["down"]


def loss(weights: Weights, tokens: jax.Array, run: Run) -> jax.Array:
    """Mean cross-entropy of the next token; logits in 32 bits."""
    stacked = {name: w for name, w in weights.items() if name not in ("embedding", "head", "norm")}
    x = weights["embedding"].astype(jnp.bfloat16)[tokens]
    one = functools.partial(layer, run)
    one = jax.checkpoint(one) if run.recompute == "full" else one
    x, _ = lax.scan(lambda x, w: (one(x, w), None), x, stacked, unroll=run.n_layers)
    logits = rms_norm(x, weights["norm"]) @ weights["head"].astype(jnp.bfloat16)
    labels = jnp.roll(tokens, -1, axis=1)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), labels))


def gradients_of(weights: Weights, tokens: jax.Array, run: Run) -> Weights:
    """Gradients added up over microbatches [microbatch, sequence, token]."""
    of_one = jax.grad(functools.partial(loss, run=run))
    if run.n_microbatches == 1:
        return of_one(weights, tokens[0])
    zeros = jax.tree.map(jnp.zeros_like, weights)
    total, _ = lax.scan(lambda sum_, one: (jax.tree.map(jnp.add, sum_, of_one(weights, one)), None), zeros, tokens)
    return total


def measure(run: Run) -> dict[str, Any]:
    """Median time of a step and peak memory, or `oom`."""
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-4))
    size = (run.n_microbatches, run.micro_batch, run.seq_len)
    tokens = jax.random.randint(jax.random.key(1), size, 0, run.vocab)

    def begin() -> tuple[Weights, optax.OptState]:
        weights = {name: 0.02 * jax.random.normal(jax.random.key(0), shape) for name, shape in shapes(run).items()}
        return weights, optimiser.init(weights)

    def train(state: tuple[Weights, optax.OptState], tokens: jax.Array) -> tuple[Any, optax.OptState]:
        weights, moments = state
        updates, moments = optimiser.update(gradients_of(weights, tokens, run), moments, weights)
        return optax.apply_updates(weights, updates), moments

    try:
        compiled = jax.jit(train, donate_argnums=0).lower(jax.eval_shape(begin), tokens).compile()
        state: list[Any] = [jax.jit(begin)()]

        def step() -> None:
            state[0] = jax.block_until_ready(compiled(state[0], tokens))

        times = step_times(step)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return {"status": "oom"}
    finally:
        jax.clear_caches()
    used: Any = compiled.memory_analysis()
    peak = used.argument_size_in_bytes + used.output_size_in_bytes + used.temp_size_in_bytes - used.alias_size_in_bytes
    return succeeded(times, peak)


if __name__ == "__main__":
    measure_all(measure, "jax", f"jax {jax.__version__}", __doc__)
