"""Steps of recommendation models: DLRM with cross layers, as DLRM-DCNv2 in MLPerf Training."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxscale.examples.training import array_of, weights_of

HOTNESS = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
"""Look-ups per table and sample of DLRM-DCNv2 (mlcommons/training, recommendation_v2, 2023), 214 in all."""

ROWS = (
    *(40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956, 405_282, 10),
    *(2_209, 11_938, 155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000, 590_152, 12_973, 108, 36),
)
"""Rows of its tables."""


def dense_shapes(name: str, widths: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Matrices of an MLP."""
    return {f"{name}{place}": (widths[place], widths[place + 1]) for place in range(len(widths) - 1)}


def dlrm(
    batch: int = 6912,
    rows: Sequence[int] = ROWS,
    hotness: Sequence[int] = HOTNESS,
    width: int = 128,
    bottom: Sequence[int] = (13, 512, 256, 128),
    top: Sequence[int] = (1024, 1024, 512, 256, 1),
    n_cross: int = 3,
    rank: int = 512,
) -> tuple[Any, ...]:
    """Training step of DLRM-DCNv2 with Adagrad per row, and the shapes of its arguments.

    Tables are updated where they were read: the gradient of a row is scattered, no table is passed over.
    """
    features = width * (len(rows) + 1)
    shapes = {**dense_shapes("bottom", bottom), **dense_shapes("top", (features, *top))}
    for layer in range(n_cross):
        shapes[f"cross{layer}.in"], shapes[f"cross{layer}.out"] = (features, rank), (rank, features)
    dense = weights_of(shapes)
    tables = weights_of({f"table{place}": (count, width) for place, count in enumerate(rows)})

    def forward(w: dict[str, jax.Array], pooled: list[jax.Array], numbers: jax.Array, clicks: jax.Array) -> jax.Array:
        w = {name: weight.astype(jnp.bfloat16) for name, weight in w.items()}
        x = numbers.astype(jnp.bfloat16)
        with jax.named_scope("bottom"):
            for layer in range(len(bottom) - 1):
                x = jax.nn.relu(x @ w[f"bottom{layer}"])
        with jax.named_scope("cross"):
            first = jnp.concatenate([x, *pooled], -1)
            x = first
            for layer in range(n_cross):
                x = first * (x @ w[f"cross{layer}.in"] @ w[f"cross{layer}.out"]) + x
        with jax.named_scope("top"):
            for layer in range(len(top)):
                x = x @ w[f"top{layer}"]
                x = jax.nn.relu(x) if layer < len(top) - 1 else x
        logits = x[:, 0].astype(jnp.float32)
        return jnp.mean(jax.nn.softplus(logits) - clicks * logits)

    def step(state: Any, numbers: jax.Array, indices: list[jax.Array], clicks: jax.Array) -> Any:
        dense, tables = state
        with jax.named_scope("tables"):
            pooled = [
                jnp.sum(tables[f"table{place}"][index], 1).astype(jnp.bfloat16) for place, index in enumerate(indices)
            ]
        slopes, pulls = jax.grad(forward, (0, 1))(dense, pooled, numbers, clicks)
        dense = jax.tree.map(lambda weight, slope: weight - 0.1 * slope, dense, slopes)
        with jax.named_scope("tables"):
            for place, (index, pull) in enumerate(zip(indices, pulls, strict=True)):
                spread = jnp.broadcast_to(-0.1 * pull.astype(jnp.float32)[:, None], (*index.shape, width))
                tables[f"table{place}"] = tables[f"table{place}"].at[index].add(spread)
        return dense, tables

    indices = [array_of((batch, hot), jnp.int32) for hot in hotness]
    return step, (dense, tables), array_of((batch, bottom[0])), indices, array_of((batch,))


def square_dlrm(
    batch: int = 65536,
    n_tables: int = 4096,
    rows: int = 2_080_000,
    width: int = 94,
    look_ups: int = 15,
    n_bottom: int = 10,
    n_top: int = 10,
    mlp: int = 3994,
) -> tuple[Any, ...]:
    """Training step of a model of equal tables and square layers, and its arguments: DLRM-A of MAD-Max.

    Such stand-ins describe production models (Hsia et al. 2023, arXiv 2310.02784). A sum of the pooled look-ups joins
    them with the dense layers, which have 32 bits; the tables have 16.
    """
    dense = weights_of({f"bottom{layer}": (mlp, mlp) for layer in range(n_bottom)})
    dense |= weights_of({f"top{layer}": (mlp, mlp) for layer in range(n_top)})
    tables = array_of((n_tables, rows, width), jnp.bfloat16)

    def forward(w: dict[str, jax.Array], pooled: jax.Array, x: jax.Array) -> jax.Array:
        for layer in range(n_bottom):
            x = jax.nn.relu(x @ w[f"bottom{layer}"])
        x = x + jnp.sum(jax.nn.relu(pooled), (1, 2))[:, None].astype(x.dtype)
        for layer in range(n_top):
            x = jax.nn.relu(x @ w[f"top{layer}"])
        return jnp.mean(x)

    def step(state: Any, x: jax.Array, indices: jax.Array) -> Any:
        dense, tables = state
        pooled = jax.vmap(lambda table, index: jnp.sum(table[index], 1), (0, 1), 1)(tables, indices)
        slopes, pull = jax.grad(forward, (0, 1))(dense, pooled, x)
        dense = jax.tree.map(lambda weight, slope: weight - 0.1 * slope, dense, slopes)

        def update(table: jax.Array, index: jax.Array, pull: jax.Array) -> jax.Array:
            return table.at[index].add(jnp.broadcast_to(-0.1 * pull[:, None], (*index.shape, width)))

        return dense, jax.vmap(update, (0, 1, 1))(tables, indices, pull)

    return step, (dense, tables), array_of((batch, mlp)), array_of((batch, n_tables, look_ups), jnp.int32)
