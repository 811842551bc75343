"""Measured runs as arrays: one stacked model, plan and cluster, ready for one `vmap`."""

import math
from collections.abc import Mapping, Sequence

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxscale._types import stacked
from jaxscale.catalogue import Hardware
from jaxscale.costs.data import local_params
from jaxscale.hardware import Cluster
from jaxscale.plan import Plan, element_bytes
from jaxscale.runs import RowDescription
from jaxscale.workload import Transformer


class RunBatch(eqx.Module):
    """Runs that the model can answer, stacked along their leading axis.

    Attributes:
        model: shapes [row].
        plan: plans [row].
        cluster: clusters [row].
    """

    model: Transformer
    plan: Plan
    cluster: Cluster

    def __len__(self) -> int:
        """Number of rows."""
        return int(np.shape(self.plan.dp)[0])

    def take(self, rows: np.ndarray) -> "RunBatch":
        """The given rows, by index or mask."""
        return jax.tree.map(lambda leaf: np.asarray(leaf)[rows], self)


class Measured(eqx.Module):
    """Measured runs: what ran, how long a step took, and to which levels each run belongs.

    Attributes:
        batch: what ran [row].
        step_time: measured [s], [row].
        peak_memory: measured [byte], nan where it was not [row].
        parts: how many timings are behind all runs of a setup, where steps are composed of them [1], [row].
        levels: level names of each row, by kind; static, never traced.
    """

    batch: RunBatch
    step_time: Float[np.ndarray, " row"] | Float[Array, " row"]
    peak_memory: Float[np.ndarray, " row"] | Float[Array, " row"]
    parts: Float[np.ndarray, " row"] | Float[Array, " row"]
    levels: Mapping[str, tuple[str, ...]] = eqx.field(static=True)

    def take(self, rows: np.ndarray) -> "Measured":
        """The given rows, by index or mask."""
        index = np.arange(len(self.batch))[rows]
        levels = {kind: tuple(values[i] for i in index) for kind, values in self.levels.items()}
        time, memory, parts = (np.asarray(column)[index] for column in (self.step_time, self.peak_memory, self.parts))
        return Measured(self.batch.take(index), time, memory, parts, levels)


def concatenate(tables: Sequence[Measured]) -> Measured:
    """Several tables of measured runs as one."""
    batch = jax.tree.map(lambda *leaves: np.concatenate(leaves), *[table.batch for table in tables])
    kinds = tables[0].levels
    levels = {kind: tuple(level for table in tables for level in table.levels[kind]) for kind in kinds}
    columns = zip(*((table.step_time, table.peak_memory, table.parts) for table in tables), strict=True)
    times, memory, parts = (np.concatenate(column) for column in columns)
    return Measured(batch, times, memory, parts, levels)


def classes(numbers: PyTree, words: Sequence[Sequence[str]]) -> np.ndarray:
    """Number of the class of each run; those of one class have the same numbers and words.

    Args:
        numbers: arrays, each stacked along its leading axis [row, ...].
        words: columns of text [row].

    Returns:
        Whole numbers from 0 on [row].
    """
    leaves = jax.tree.leaves(numbers)
    flat = [np.reshape(leaf, (len(leaf), math.prod(leaf.shape[1:]))) for leaf in leaves]
    coded = [np.unique(column, return_inverse=True)[1][:, None] for column in words]
    return np.unique(np.hstack([*flat, *coded]), axis=0, return_inverse=True)[1].ravel()


FSDP_FROM = 0.95
"""Share of the chip's memory above which weights, gradients and optimizer state count as not fitting [1]."""


def assemble(descriptions: Sequence[RowDescription], hardware: Hardware) -> RunBatch:
    """Build and stack the model, plan and cluster of each described row.

    Where a row names no ZeRO stage and its state could not fit without sharding the weights, it is taken as FSDP.

    Raises:
        ValueError: a shape or a degree that cannot be; the reader has checked files before.
    """
    models = [Transformer(**row.shape) for row in descriptions]
    clusters = [_cluster(row, hardware) for row in descriptions]
    plans = [_plan(*parts) for parts in zip(descriptions, models, clusters, strict=True)]
    return RunBatch(stacked(models), stacked(plans), stacked(clusters))


def _plan(row: RowDescription, model: Transformer, cluster: Cluster) -> Plan:
    plan = Plan(**row.plan)
    if row.states_zero_stage or plan.pp > 1 or plan.dp * plan.cp == 1:
        return plan
    # Weights and gradients are what ZeRO-1 leaves on every chip (Rajbhandari et al. 2020, section 3).
    per_param = float(element_bytes(plan)) + float(plan.gradient_bytes) * float(model.trainable_share)
    state = per_param * float(local_params(model, plan).total)
    return Plan(**{**row.plan, "zero_stage": 3.0}) if state > FSDP_FROM * cluster.chip.hbm_bytes else plan


def _cluster(row: RowDescription, hardware: Hardware) -> Cluster:
    entry = hardware[row.gpu]
    return Cluster(entry.chip(), entry.network(row.gpus_per_node, row.inter_node_gbit_per_s_per_gpu), row.n_gpus)
