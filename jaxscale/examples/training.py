"""What the example steps share: shapes of weights, norms, descent, and mean cross-entropy."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

Shapes = dict[str, jax.ShapeDtypeStruct]

Step = Callable[..., Any]
"""A training step: the state, and the data."""


def weights_of(shapes: Mapping[str, tuple[int, ...]], dtype: Any = jnp.float32) -> Shapes:
    """Abstract weights from their shapes."""
    return {name: jax.ShapeDtypeStruct(shape, dtype) for name, shape in shapes.items()}


def array_of(shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    """An abstract array."""
    return jax.ShapeDtypeStruct(shape, dtype)


def descent_step(loss: Callable[..., jax.Array], rate: float = 0.1) -> Step:
    """Step of plain gradient descent: weights and data to weights."""

    def step(weights: Any, *data: Any) -> Any:
        gradients = jax.grad(loss)(weights, *data)
        return jax.tree.map(lambda weight, gradient: weight - rate * gradient.astype(weight.dtype), weights, gradients)

    return step


def adam_step(gradients_of: Callable[..., Any], weights: Any) -> tuple[Step, tuple[Any, Any]]:
    """Step of AdamW with gradients clipped by their norm, and the state that it begins with."""
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-4))

    def step(state: tuple[Any, Any], *data: Any) -> tuple[Any, Any]:
        weights, moments = state
        updates, moments = optimiser.update(gradients_of(weights, *data), moments, weights)
        return optax.apply_updates(weights, updates), moments

    return step, (weights, jax.eval_shape(optimiser.init, weights))


def rms_norm(x: jax.Array, gain: jax.Array) -> jax.Array:
    """Root mean square norm, in 32 bits."""
    wide = x.astype(jnp.float32)
    scale = lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-6)
    return (wide * scale * gain).astype(x.dtype)


def layer_norm(x: jax.Array) -> jax.Array:
    """Layer norm without gain, in 32 bits."""
    wide = x.astype(jnp.float32)
    centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
    return (centred * lax.rsqrt(jnp.mean(centred * centred, axis=-1, keepdims=True) + 1e-6)).astype(x.dtype)


def mean_cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean cross-entropy of whole-number labels, in 32 bits."""
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), labels))


def half(weights: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Matrices in 16 bits; vectors stay as they are."""
    return {name: weight.astype(jnp.bfloat16) if weight.ndim > 1 else weight for name, weight in weights.items()}
