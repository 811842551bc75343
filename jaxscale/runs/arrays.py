"""Measured runs as arrays: models, plans and clusters stacked along the rows, ready for `vmap`."""

import math
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from jaxscale.base.arrays import stacked, with_fields
from jaxscale.base.jit import filter_jit
from jaxscale.base.units import GBIT
from jaxscale.calibration.levels import Levels
from jaxscale.costs.model_states import optimizer_state_bytes, weight_bytes
from jaxscale.hardware.catalogue import Hardware
from jaxscale.hardware.cluster import Cluster
from jaxscale.models.transformer import Transformer, customary
from jaxscale.plans.local import local_plan
from jaxscale.plans.plan import Plan
from jaxscale.runs.description import Description
from jaxscale.runs.shapes import Shapes
from jaxscale.tables.categorical import Categorical, compacted, together


class RunBatch(eqx.Module):
    """Complete runs, stacked along the leading axis.

    Attributes:
        model: shapes [row].
        plan: plans [row].
        cluster: clusters [row].
        counted: code of the memory that a measured peak includes, as in `Memory.measured` [row].
    """

    model: Transformer
    plan: Plan
    cluster: Cluster
    counted: Float[np.ndarray, " row"] | Float[Array, " row"]

    def __len__(self) -> int:
        """Number of rows."""
        return int(np.shape(self.plan.dp)[0])

    def take(self, rows: np.ndarray) -> "RunBatch":
        """Batch of the given rows, by index or mask."""
        return jax.tree.map(lambda leaf: np.asarray(leaf)[rows], self)


ROW_BUCKETS = (128, 512, 1024, 1536, 2048, 3072, 3584, 4096, 6144, 8192, 16384, 32768, 65536, 262144)
"""Rows are padded with copies of the first to one of these counts, so that few shapes are compiled [1]."""


def bucket_of(n: int) -> int:
    """Padded number of rows: the next of `ROW_BUCKETS`, or a multiple of the largest [1]."""
    largest = ROW_BUCKETS[-1]
    # Whole multiples of the largest bucket.
    return next((bucket for bucket in ROW_BUCKETS if bucket >= n), -(-n // largest) * largest)


def padded(tree: PyTree, n: int, size: int | None = None) -> Any:
    """Tree of arrays of n rows, filled up with copies of the first row to a given size or to `bucket_of(n)`."""
    size = size or bucket_of(n)
    if n < size:
        # The first row is repeated.
        rows = np.pad(np.arange(n), (0, size - n))
        tree = jax.tree.map(lambda leaf: np.asarray(leaf)[rows], tree)
    # All leaves at once: a transfer of each by itself costs more than its bytes.
    return jax.device_put(tree)


MEASURED_COLUMNS = ("step_time", "peak_memory", "peak_bound", "ran_out", "parts")
"""Fields of `Measured` that have one number for each run."""


class Measured(eqx.Module):
    """Measured runs: inputs of the model, step times, memory, and levels of each run.

    Attributes:
        batch: models, plans and clusters [row].
        step_time: measured step time [s], [row].
        peak_memory: measured peak memory, nan if not measured [byte], [row].
        peak_bound: upper bound of the peak of a finished run, lower bound for a run that ran out of memory; infinite
            if the row does not state its recomputation [byte], [row].
        ran_out: whether the run ran out of memory [row].
        parts: number of timings behind the runs of a setup whose steps are composed of timings [1], [row].
        levels: levels of each run by factor; static, never traced [row].
    """

    batch: RunBatch
    step_time: Float[np.ndarray, " row"] | Float[Array, " row"]
    peak_memory: Float[np.ndarray, " row"] | Float[Array, " row"]
    peak_bound: Float[np.ndarray, " row"] | Float[Array, " row"]
    ran_out: Bool[np.ndarray, " row"] | Bool[Array, " row"]
    parts: Float[np.ndarray, " row"] | Float[Array, " row"]
    levels: Levels = eqx.field(static=True)

    def take(self, rows: np.ndarray) -> "Measured":
        """Measured runs of the given rows, by index or mask."""
        index = np.arange(len(self.batch))[rows]
        columns = {name: np.asarray(getattr(self, name))[index] for name in MEASURED_COLUMNS}
        return Measured(self.batch.take(index), **columns, levels=self.levels.take(index))


def concatenate(tables: Sequence[Measured]) -> Measured:
    """Concatenation of several tables of measured runs."""
    batch = jax.tree.map(lambda *leaves: np.concatenate(leaves), *[table.batch for table in tables])
    columns = {name: np.concatenate([getattr(table, name) for table in tables]) for name in MEASURED_COLUMNS}
    return Measured(batch, **columns, levels=Levels.concatenated([table.levels for table in tables]))


def classes(numbers: PyTree, words: Sequence[Sequence[str] | np.ndarray]) -> np.ndarray:
    """Index of the equivalence class of each run; runs of a class have equal numbers and words.

    Args:
        numbers: arrays, each stacked along its leading axis [row, ...].
        words: columns of text [row].

    Returns:
        Class numbers from 0 on [row].
    """
    leaves = jax.tree.leaves(numbers)
    flat = [column for leaf in leaves for column in np.reshape(leaf, (len(leaf), math.prod(leaf.shape[1:]))).T]
    columns = [*map(Categorical.of_numbers, flat), *map(Categorical.of, words)]
    # Column by column, which is quicker than sorting whole rows, and numbers the classes in the order of sorted rows.
    numbered, n_classes = np.zeros(len(columns[0]), dtype=int), 1
    for column in columns:
        ranks = np.unique(np.asarray(column.values), return_inverse=True)[1].ravel()
        n_ranks = len(column.values)
        numbered, present = compacted(numbered * n_ranks + ranks[column.codes], n_classes * n_ranks)
        n_classes = len(present)
    return numbered


FSDP_FROM = 0.95
"""Share of the chip's memory above which weights, gradients and the optimizer's state count as not fitting [1]."""


def assemble(described: Description, hardware: Hardware) -> RunBatch:
    """Model, plan and cluster of each described row, stacked.

    A row without a ZeRO stage counts as FSDP where weights, gradients and optimizer state would not fit with the
    framework's default stage.

    Args:
        described: the rows.
        hardware: catalogue of the chips.

    Returns:
        The runs [answered row].
    """
    batch = RunBatch(
        _models(described.shapes),
        plans_of(described),
        clusters_of(described.machine, described.n_chips, hardware),
        described.counted,
    )
    return _sharded_to_fit(batch, described.states_zero_stage)


def _sharded_to_fit(batch: RunBatch, is_stated: np.ndarray) -> RunBatch:
    """Runs with FSDP assumed for rows without ZeRO stage and pipeline whose state would not fit otherwise [row]."""
    plan = batch.plan
    # FSDP needs replicas, and no pipeline that reuses weights.
    is_open = np.flatnonzero(~is_stated & (plan.pp == 1.0) & (plan.dp * plan.cp > 1.0))
    if not len(is_open):
        return batch
    use = np.asarray(_state_over_memory(padded(batch.take(is_open), len(is_open))))[: len(is_open)]
    zero_stage = np.array(plan.zero_stage)
    zero_stage[is_open[use > FSDP_FROM]] = 3.0
    return eqx.tree_at(lambda runs: runs.plan.zero_stage, batch, zero_stage)


@filter_jit
def _state_over_memory(batch: RunBatch) -> Float[Array, " row"]:
    """Weights, gradients and the optimizer's state over the memory of a chip [1], [row]."""

    def one(run: RunBatch) -> Array:
        # A 32-bit weight has its 16-bit copy too when it is not sharded.
        plan = with_fields(run.plan, {"wide_weights": jnp.zeros_like(run.plan.wide_weights)})
        local = local_plan(run.model, plan)
        weights = weight_bytes(local) * local.params.total
        gradients = run.plan.gradient_bytes * local.trained_params(0.0)
        optimizer = optimizer_state_bytes(local) * local.trained_params(local.optimizer_sharded)
        return (weights + gradients + optimizer) / run.cluster.chip.hbm_bytes

    return jax.vmap(one)(batch)


def _models(shapes: Shapes) -> Transformer:
    """Transformers of the rows, each distinct shape built once [row]."""
    built = Transformer(**customary(shapes.arguments, len(shapes.arguments["n_layers"])))
    # Distinct shapes are built once, then spread over the rows.
    return jax.tree.map(lambda leaf: leaf[shapes.codes], built)


def plans_of(described: Description) -> Plan:
    """Plans of described rows [row]."""
    words = together(*described.words.values())
    said = stacked([Plan(**dict(zip(described.words, values, strict=True))) for values in words.values])
    plans = jax.tree.map(lambda leaf: leaf[words.codes], said)
    return with_fields(plans, described.numbers)


def clusters_of(machine: Categorical, n_chips: Float[np.ndarray, " row"], hardware: Hardware) -> Cluster:
    """Clusters of rows, each distinct machine built once.

    Args:
        machine: catalogue id of the chip, chips in a scale-up domain [1] and scale-out bandwidth [Gbit/s] of each row;
            None for the catalogue's domain or bandwidth.
        n_chips: chips [1].
        hardware: catalogue of the chips.

    Returns:
        The clusters, stacked [row].
    """
    machines = []
    for gpu, gpus_per_node, gbit_per_s in machine.values:
        # Gbit/s to byte/s.
        bandwidth = None if gbit_per_s is None else gbit_per_s * GBIT
        machines.append(Cluster(hardware[gpu].chip(), hardware[gpu].network(gpus_per_node, bandwidth), 1.0))
    clusters = jax.tree.map(lambda leaf: leaf[machine.codes], stacked(machines))
    return with_fields(clusters, {"n_chips": n_chips})
