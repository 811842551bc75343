"""Work on some rows of a batch, compacted into full blocks: rows without work cost nothing."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

Rows = TypeVar("Rows")

BLOCK = 64
"""Rows that are worked on side by side: few enough for a core's cache [1]."""


def work_on_rows(
    wanted: Bool[Array, " row"], work: Callable[[Any, Any], Any], state: Rows, given: Any, size: int = BLOCK
) -> Rows:
    """State of a batch after work on some rows.

    Args:
        wanted: rows that want work.
        work: new state of a block of rows, from the old state and `given`.
        state: arrays [row, ...].
        given: arrays [row, ...] that the work reads.
        size: rows of a block [1].

    Returns:
        The state, changed where there was work.
    """
    size = min(size, wanted.shape[0])
    order = jnp.argsort(~wanted)

    def block(index: Array, state: Rows) -> Rows:
        # A block that would reach over the end reaches back instead, and repeats the work on some rows.
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
