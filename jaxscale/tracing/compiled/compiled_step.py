"""What a compiler made of a step, beside what the trace of the same step says."""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxscale.base.table import Table, TableColumn, make_table, text_column, text_of
from jaxscale.tracing.compiled.program_tables import CompiledCollective, CompiledKernel
from jaxscale.tracing.plans.class_collectives import class_exchanges
from jaxscale.tracing.plans.class_plan import ClassPlan, local_sizes
from jaxscale.tracing.plans.kernel_time import COLLECTIVE_KINDS, PRODUCTS
from jaxscale.tracing.traced_workload import Workload

KINDS = ("matmul", "conv", "attention", "other")
"""Kinds of kernels that a compiled program is told by."""

NAMES = {"matmul": "matmul", "attention": "attention", **dict.fromkeys(("conv", "grouped_conv", "conv3d"), "conv")}
"""Kind of a compiled kernel for each kind of a traced one; all others are `other`."""

REDUCED = ("gradients", "statistics", "tensor_forward", "tensor_backward", "scatters")
"""Exchanges of a plan that add up values of several chips."""


FIGURE_COLUMNS = (
    text_column("of one chip", says="{}:"),
    TableColumn("compiled", stays=True),
    TableColumn("traced"),
)
"""Columns of the table of compared figures."""


class ComparedFigure(NamedTuple):
    """A figure by the compiler and by the trace.

    Attributes:
        name: of the figure.
        compiled: by the compiler.
        traced: by the trace under the same plan.
    """

    name: str
    compiled: float
    traced: float


@dataclass(frozen=True)
class CompiledStep:
    """A step as a compiler made it, of one chip of those that share it.

    Attributes:
        name: number and id of the chips.
        capacity: memory of a chip [byte].
        seconds: time of the compilation [s].
        argument_bytes: weights, state and data [byte].
        result_bytes: results that take no place of an argument [byte].
        temporary_bytes: values of the program itself at its fullest point [byte].
        kernels: in the order of the program.
        collectives: by kind and groups.
        work: trace of the step, of the whole batch.
        plan: degrees for which it was compiled.
    """

    name: str
    capacity: float
    seconds: float
    argument_bytes: float
    result_bytes: float
    temporary_bytes: float
    kernels: tuple[CompiledKernel, ...]
    collectives: tuple[CompiledCollective, ...]
    work: Workload
    plan: ClassPlan

    @property
    def peak_bytes(self) -> float:
        """Peak memory of a chip, by the compiler [byte]."""
        return self.argument_bytes + self.result_bytes + self.temporary_bytes

    @property
    def fits(self) -> bool:
        """Whether the peak is within the memory of a chip."""
        return self.peak_bytes <= self.capacity

    def launches(self, *kinds: str) -> float:
        """Kernels of a step, of some kinds or of all [1]."""
        return float(sum(one.launches for one in self.kernels if not kinds or one.kind in kinds))

    def bytes(self, *kinds: str) -> float:
        """Bytes that kernels read and write in a step, of some kinds or of all [byte]."""
        return float(sum(one.bytes for one in self.kernels if not kinds or one.kind in kinds))

    def beside_trace(self) -> list[ComparedFigure]:
        """Figures of the compiled step beside those of its trace under the same plan, of one chip."""
        local = Workload(local_sizes(self.work, self.plan), self.work.tables)
        columns = local.columns()
        moved, launches = np.asarray(columns.bytes), np.asarray(columns.launches)
        is_kernel = np.array([kind not in COLLECTIVE_KINDS for kind in local.tables.kinds])
        kinds = np.array([NAMES.get(kind, "matmul" if kind in PRODUCTS else "other") for kind in local.tables.kinds])
        rows = [
            ComparedFigure("peak memory [GB]", self.peak_bytes / 1e9, self._traced_peak() / 1e9),
            ComparedFigure("traffic [GB]", self.bytes() / 1e9, float(moved[is_kernel].sum()) / 1e9),
        ]
        for kind in KINDS:
            mine = is_kernel & (kinds == kind)
            row = ComparedFigure(f"{kind} kernels", self.launches(kind), float(launches[mine].sum()))
            rows += [row] if row.compiled or row.traced else []
        return rows + self._reduced()

    def _traced_peak(self) -> float:
        """Peak of a chip by the trace: state by its shards, the rest at local sizes [byte]."""
        tables, sizes = self.work.tables, local_sizes(self.work, self.plan)
        shared = np.array([origin in ("weights", "state") for origin in tables.point_origins])
        held = tables.points.values(sizes) / jnp.where(shared, self.plan.shard, 1.0)
        return float(jnp.max(jnp.zeros(len(tables.point_phases)).at[tables.points.row].add(held)))

    def _reduced(self) -> list[ComparedFigure]:
        """Collectives that add up, and that gather."""
        exchanges = class_exchanges(self.work, self.plan)
        traced = sum(float(getattr(exchanges, name).volume) for name in REDUCED)
        reduced = self.collective_bytes("all-reduce", "reduce-scatter")
        gathered = self.collective_bytes("all-gather")
        rows = [
            ComparedFigure("reduced [GB]", reduced / 1e9, traced / 1e9),
            ComparedFigure("gathered [GB]", gathered / 1e9, float(exchanges.gathers.volume) / 1e9),
        ]
        return [row for row in rows if row.compiled or row.traced]

    def collective_bytes(self, *kinds: str) -> float:
        """Bytes of the collectives of some kinds in a step, of one chip [byte]."""
        return float(sum(one.bytes for one in self.collectives if one.kind in kinds))

    def parts(self) -> list[str | Table]:
        """A line on the compilation, figures of the compiler beside those of the trace, and the collectives."""
        capacity = "" if np.isinf(self.capacity) else f" of {self.capacity / 1e9:.1f} GB"
        told = f"compiled for {self.name} in {self.seconds:.1f} s: {self.peak_bytes / 1e9:.2f} GB at the peak{capacity}"
        figures = [(row.name, f"{row.compiled:,.2f}", f"{row.traced:,.2f}") for row in self.beside_trace()]
        collectives = [
            f"{one.count:g} {one.kind} among {one.members} chips, stride {one.stride}: {one.bytes / 1e6:,.2f} MB"
            for one in self.collectives
        ]
        return [told, make_table("", FIGURE_COLUMNS, figures), *collectives]

    def __str__(self) -> str:
        """Figures of the compiler beside those of the trace, and the collectives."""
        return text_of(self.parts())
