"""Step time, peak memory and cost terms of many runs: evaluation of blocks of rows by a single compiled program."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from jaxscale.base.arrays import filled_rows
from jaxscale.base.jit import concrete_jit
from jaxscale.calibration.coefficients import Coefficients, from_values
from jaxscale.costs.memory import PEAK_TERMS
from jaxscale.costs.step import TERM_NAMES, model_flops_utilisation, step_and_memory
from jaxscale.runs.arrays import RunBatch

BLOCK_ROWS = 1024
"""Rows of a block: few enough to stay in the cache of a processor [1].

One program serves tables of every length: padding a short table takes 2 ms, loading a second program 0.2 s.
"""

MEMORY_TERMS = tuple(f"memory_{name}" for name in PEAK_TERMS)
"""Names of the terms of peak memory among the columns, in order."""

FIRST_STAGE = "first_stage_memory"
"""Name of the column of the peak memory of the first pipeline stage [byte]."""

CACHED = "cached_memory"
"""Name of the column of the memory that the allocator keeps beyond the peak [byte]."""

Columns = dict[str, np.ndarray]
"""Columns by name [row]: `step_time` and `TERM_NAMES` [s], `memory` and `MEMORY_TERMS` [byte], `mfu` [1]."""


@concrete_jit
def _evaluated(runs: RunBatch, coefficients: Float[ArrayLike, "coefficient row"]) -> dict[str, Array]:
    def one(run: RunBatch, values: Array) -> dict[str, Array]:
        times, peak = step_and_memory(run.model, run.plan, run.cluster, from_values(list(values)))
        held = {f"memory_{name}": term for name, term in peak.terms().items()}
        utilisation = model_flops_utilisation(run.model, run.plan, run.cluster, times.total)
        totals = {"step_time": times.total, "memory": peak.total, "mfu": utilisation}
        totals |= {FIRST_STAGE: peak.first_stage, CACHED: peak.cached}
        return {**times.terms(), **held, **totals}

    return jax.vmap(one, in_axes=(0, 1))(runs, jnp.asarray(coefficients))


def started(runs: RunBatch, coefficients: Float[np.ndarray, "coefficient row"]) -> dict[str, Array]:
    """Start the evaluation of at most `BLOCK_ROWS` runs without waiting for the result.

    Args:
        runs: the runs [row].
        coefficients: coefficients of each run, in the order of `Coefficients` [coefficient, row].

    Returns:
        Result columns by name, rows of padding included [row].
    """
    rows = filled_rows(len(runs), BLOCK_ROWS)
    filled = jax.tree.map(lambda leaf: np.asarray(leaf)[rows], runs)
    return _evaluated(filled, coefficients[:, rows])


def evaluate_runs(
    runs: RunBatch, table: Coefficients, combination: Int[np.ndarray, " row"], names: tuple[str, ...] | None = None
) -> Columns:
    """Step time, peak memory and cost terms of many runs.

    Args:
        runs: the runs [row].
        table: coefficients of each combination of levels [combination].
        combination: index into `table` of each run [row].
        names: requested columns; by default all columns.

    Returns:
        Columns by name, as numpy arrays [row].
    """
    return collected([started(*block) for block in blocks_of(runs, table, combination)], len(runs), names)


def blocks_of(
    runs: RunBatch, table: Coefficients, combination: Int[np.ndarray, " row"]
) -> Iterator[tuple[RunBatch, np.ndarray]]:
    """Iterator over blocks of `BLOCK_ROWS` runs and the coefficients of the runs [coefficient, row]."""
    # One matrix instead of a column for each coefficient: a transfer to the device has a fixed cost besides the bytes.
    matrix = np.stack(jax.tree.leaves(table))
    for start in range(0, len(runs), BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        yield jax.tree.map(lambda leaf, rows=rows: leaf[rows], runs), matrix[:, combination[rows]]


def collected(blocks: list[dict[str, Array]], count: int, names: tuple[str, ...] | None = None) -> Columns:
    """Result columns of all blocks without padding, as numpy arrays [row].

    Args:
        blocks: results of `started`.
        count: runs in all blocks [1].
        names: requested columns; by default all columns.
    """
    every = ("step_time", "memory", "mfu", *TERM_NAMES, *MEMORY_TERMS)
    return {
        name: np.concatenate([np.asarray(block[name]) for block in blocks])[:count] if blocks else np.zeros(0)
        for name in names or every
    }
