"""Measured runs as arrays: one stacked model, plan and cluster, ready for one `vmap`."""

from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from jaxscale.catalogue import Hardware
from jaxscale.hardware import Cluster
from jaxscale.plan import Plan
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
        levels: level names of each row, by kind; static, never traced.
    """

    batch: RunBatch
    step_time: Float[np.ndarray, " row"] | Float[Array, " row"]
    peak_memory: Float[np.ndarray, " row"] | Float[Array, " row"]
    levels: Mapping[str, tuple[str, ...]] = eqx.field(static=True)

    def take(self, rows: np.ndarray) -> "Measured":
        """The given rows, by index or mask."""
        index = np.arange(len(self.batch))[rows]
        levels = {kind: tuple(values[i] for i in index) for kind, values in self.levels.items()}
        measured = (np.asarray(self.step_time)[index], np.asarray(self.peak_memory)[index])
        return Measured(self.batch.take(index), *measured, levels)


def stack(modules: Sequence[Any]) -> Any:
    """Stack equal modules leaf by leaf along a new leading axis."""
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf, dtype=float) for leaf in leaves]), *modules)


def assemble(descriptions: Sequence[RowDescription], hardware: Hardware) -> RunBatch:
    """Build and stack the model, plan and cluster of each described row.

    Raises:
        ValueError: a shape or a degree that cannot be; the reader has checked files before.
    """
    return RunBatch(
        model=stack([Transformer(**row.shape) for row in descriptions]),
        plan=stack([Plan(**row.plan) for row in descriptions]),
        cluster=stack([_cluster(row, hardware) for row in descriptions]),
    )


def _cluster(row: RowDescription, hardware: Hardware) -> Cluster:
    entry = hardware[row.gpu]
    return Cluster(entry.chip(), entry.network(row.gpus_per_node, row.inter_node_gbit_per_s_per_gpu), row.n_gpus)
