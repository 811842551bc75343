"""Plans of traced workloads: every valid one over dimension classes is scored, those that fit are ranked."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from jaxscale.base.arrays import number, stacked
from jaxscale.base.errors import InputError
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.hardware.cluster import Cluster
from jaxscale.tracing.classed_program import ClassedProgram
from jaxscale.tracing.plans.class_plan import ClassPlan, batch_class
from jaxscale.tracing.plans.class_plan_space import class_plans, split_names
from jaxscale.tracing.plans.plan_time import traced_memory_terms, traced_terms

BLOCK = 256
"""Plans scored in one call of a compiled program [1]."""


class ScoredClassPlan(NamedTuple):
    """A plan of a traced workload with its outcome.

    Attributes:
        plan: the plan.
        split: names of the classes that it divides.
        step_time: time of a step [s].
        memory: peak memory of a chip [byte].
    """

    plan: ClassPlan
    split: tuple[str, ...]
    step_time: float
    memory: float

    def __str__(self) -> str:
        """Degrees, classes, time and memory in one line."""
        p = self.plan
        degrees = {
            "data": p.data,
            "shard": p.shard,
            "tensor": p.tensor,
            "pipeline": p.pipeline,
            "microbatches": p.n_microbatches,
        }
        parts = [f"{name} {float(degree):.0f}" for name, degree in degrees.items() if float(degree) > 1]
        parts += [f"split {', '.join(self.split)}"] if self.split else []
        parts += (
            ["tables apart"] if float(p.tables_by_table) else ["rows of tables apart"] if float(p.tables_by_row) else []
        )
        return f"{', '.join(parts) or 'one chip'}: {self.step_time * 1e3:.2f} ms, {self.memory / 1e9:.1f} GB"


class ClassPlanChoice(NamedTuple):
    """Ranked plans of a traced workload.

    Attributes:
        best: the fastest plan that fits.
        top: the fastest ones, in order.
        searched: plans that were scored [1].
        infeasible: of them those that do not fit [1].
    """

    best: ScoredClassPlan
    top: tuple[ScoredClassPlan, ...]
    searched: int
    infeasible: int

    def __str__(self) -> str:
        """One line for each plan."""
        head = f"{self.searched} plans, {self.infeasible} of them too large for a chip"
        return "\n".join([head, *map(str, self.top)])


def best_class_plan(
    work: ClassedProgram,
    cluster: Cluster,
    batch: float | int | None,
    coefficients: Coefficients,
    memory_limit: float,
    top: int = 10,
) -> ClassPlanChoice:
    """The fastest plan of a traced workload that fits, out of every valid one.

    Args:
        work: the workload.
        cluster: chips and network; the plan uses all chips.
        batch: size of the data class; that of the trace where None [1].
        coefficients: fitted parameters.
        memory_limit: memory that a chip may take [byte].
        top: how many plans to rank [1].

    Returns:
        The ranked plans.

    Raises:
        InputError: no valid plan, or none that fits.
    """
    if batch is not None:
        sizes = work.sizes_with({work.tables.class_names[batch_class(work)]: batch})
        work = ClassedProgram(sizes, work.tables)
    plans = class_plans(work, int(number(cluster.n_chips)))
    if not plans:
        raise InputError(
            f"no plan of the workload has {number(cluster.n_chips):.0f} chips; expected a batch that they divide"
        )
    seconds, peaks = class_plan_scores(work, plans, cluster, coefficients)
    fits = peaks <= memory_limit
    if not fits.any():
        least = peaks.min() / 1e9
        raise InputError(
            f"no plan fits: the leanest takes {least:.1f} GB of {memory_limit / 1e9:.1f} GB; expected more chips"
        )
    order = np.argsort(np.where(fits, seconds, np.inf), kind="stable")[: min(top, int(fits.sum()))]
    ranked = tuple(
        ScoredClassPlan(plans[row], split_names(work, plans[row]), float(seconds[row]), float(peaks[row]))
        for row in order
    )
    return ClassPlanChoice(ranked[0], ranked, len(plans), int((~fits).sum()))


@eqx.filter_jit
def _scores(work: ClassedProgram, plans: ClassPlan, cluster: Cluster, coefficients: Coefficients) -> Any:
    def one(plan: ClassPlan) -> Any:
        times = traced_terms(work, plan, cluster, coefficients)
        peaks = traced_memory_terms(work, plan, cluster, coefficients)
        return sum(times.values()), sum(peaks.values())

    return jax.vmap(one)(plans)


def class_plan_scores(
    work: ClassedProgram, plans: Sequence[ClassPlan], cluster: Cluster, coefficients: Coefficients
) -> tuple[np.ndarray, np.ndarray]:
    """Step time [s] and peak memory [byte] of every plan."""
    seconds, peaks = [], []
    for begin in range(0, len(plans), BLOCK):
        block = list(plans[begin : begin + BLOCK])
        filled = block + [block[-1]] * (BLOCK - len(block))
        times, memories = _scores(work, stacked(filled), cluster, coefficients)
        seconds.append(np.asarray(times)[: len(block)])
        peaks.append(np.asarray(memories)[: len(block)])
    return np.concatenate(seconds), np.concatenate(peaks)
