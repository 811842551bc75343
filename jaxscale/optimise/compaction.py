"""Compaction of batches: selected rows are packed into full blocks, so that idle rows cost no time."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

Rows = TypeVar("Rows")

BLOCK = 64
"""Rows processed simultaneously, few enough for a core's cache [1]."""


def work_on_rows(
    wanted: Bool[Array, " row"], work: Callable[[Any, Any], Any], state: Rows, given: Any, size: int = BLOCK
) -> Rows:
    """Apply a function to selected rows of a batch, in blocks.

    Args:
        wanted: mask of the selected rows.
        work: function from the old state of a block of rows and `given` to the new state.
        state: arrays [row, ...].
        given: further input arrays of `work` [row, ...].
        size: rows per block [1].

    Returns:
        The state, changed in the selected rows.
    """
    size = min(size, wanted.shape[0])
    order = jnp.argsort(~wanted)

    def block(index: Array, state: Rows) -> Rows:
        # `dynamic_slice` shifts a block that exceeds the end backwards, so that a few rows are processed twice.
        rows = jax.lax.dynamic_slice(order, (index * size,), (size,))
        part, read = jax.tree.map(lambda leaf: leaf[rows], (state, given))
        moved = where_rows(wanted[rows], work(part, read), part)
        return jax.tree.map(lambda whole, new: whole.at[rows].set(new), state, moved)

    n_blocks = (jnp.sum(wanted) + size - 1) // size
    return jax.lax.fori_loop(0, n_blocks, block, state)


def where_rows(condition: Bool[Array, " row"], new: Rows, old: Rows) -> Rows:
    """Rows of `new` where the condition holds, else of `old`."""

    def pick(first: Array, second: Array) -> Array:
        return jnp.where(condition.reshape(-1, *[1] * (first.ndim - 1)), first, second)

    return jax.tree.map(pick, new, old)
