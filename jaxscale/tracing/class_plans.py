"""Enumeration, scoring and ranking of all valid plans of a traced workload over dimension classes."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxscale.base.arrays import divisors, in_blocks_of, number, stacked
from jaxscale.base.errors import InputError
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.hardware.cluster import Cluster
from jaxscale.tracing.class_plan import (
    ClassPlan,
    Tables,
    batch_class,
    class_plan,
    is_table,
    meeting_classes,
    tensor_classes,
)
from jaxscale.tracing.classed_program import ClassedProgram
from jaxscale.tracing.plan_time import in_layers, traced_memory_terms, traced_terms

MOST_SPLIT = 5
"""Number of classes tried in every combination of tensor-parallel splits, the largest by weights first [1]."""

MOST_MICROBATCHES = 64
"""Largest number of microbatches per step in a search by powers of two [1]."""


class StatedDegrees(NamedTuple):
    """Stated degrees of a `ClassPlan`; None for an open degree.

    Attributes:
        data: chips that split the data class [1].
        tensor: chips that split weight classes [1].
        pipeline: stages [1].
        shard: chips that share a copy of the weights, at most `data` [1].
        n_microbatches: microbatches per step [1].
        micro_batch: size of the data class per microbatch and chip [1].
        split: names of the classes split by `tensor`.
        tables: placement of embedding tables.
        joint_statistics: whether norms over the batch include the batch of all chips, as in the traced program.
    """

    data: float | None = None
    tensor: float | None = None
    pipeline: float | None = None
    shard: float | None = None
    n_microbatches: float | None = None
    micro_batch: float | None = None
    split: tuple[str, ...] | None = None
    tables: Tables | None = None
    joint_statistics: bool = True


OPEN = StatedDegrees()
"""Stated degrees of a fully open plan."""


def class_plans(work: ClassedProgram, n_chips: int, stated: StatedDegrees = OPEN) -> list[ClassPlan]:
    """Valid plans of a workload on a number of chips that agree with stated degrees.

    Args:
        work: workload of the whole batch.
        n_chips: number of chips [1].
        stated: required degrees; a batch need not be a multiple of a stated degree or number of microbatches, which
            then count as means.

    Returns:
        The plans; empty where no degrees agree.

    Raises:
        InputError: the workload has no batch class, or a stated split is unknown to the workload.
    """
    sizes = work.classes()
    batch_name = work.tables.class_names[batch_class(work)]
    turns, every_split = loop_turns(work), split_sets(work)
    plans = []
    for data, tensor, pipeline in factor_triples(n_chips):
        degrees = (data, tensor, pipeline)
        if any(said not in (None, degree) for said, degree in zip(stated[:3], degrees, strict=True)):
            continue
        # Stages have whole turns of the loop over layers; a stated data degree counts as a mean.
        if turns % pipeline or (stated.data is None and sizes[batch_name] % data):
            continue
        local = sizes[batch_name] / data
        # The whole tensor group divides every class of a split.
        splits = [one for one in every_split if all(sizes[name] % tensor == 0 for name in one)]
        modes: Sequence[Tables] = table_modes(work) if stated.tables is None else [stated.tables]
        choices = itertools.product(
            [()] if tensor == 1 else splits if stated.split is None else [stated.split],
            microbatch_counts(local, stated),
            # Whole copies, or a copy shared by all replicas.
            sorted({1, data}) if stated.shard is None else [min(stated.shard, data)],
            modes,
        )
        for split, m, shard, tables in choices:
            plans.append(
                class_plan(
                    work,
                    data=data,
                    shard=shard,
                    tensor=tensor,
                    pipeline=pipeline,
                    n_microbatches=m,
                    split=split,
                    data_class=batch_name,
                    tables=tables,
                    joint_statistics=stated.joint_statistics,
                )
            )
    return plans


def microbatch_counts(local: float, stated: StatedDegrees = OPEN) -> Sequence[float]:
    """Candidate numbers of microbatches per step [1].

    Args:
        local: size of the data class on one chip [1].
        stated: required number or size of microbatches.
    """
    if stated.n_microbatches is not None:
        return [stated.n_microbatches]
    if stated.micro_batch is not None:
        # A batch below a microbatch per chip is a single microbatch.
        return [max(local / stated.micro_batch, 1.0)]
    return [float(m) for m in powers_of_two(MOST_MICROBATCHES) if local % m == 0]


def table_modes(work: ClassedProgram) -> Sequence[Tables]:
    """Candidate placements of embedding tables: whole tables or rows spread over chips; `replicated` without tables."""
    return ("table", "row") if is_table(work).any() else ("replicated",)


def loop_turns(work: ClassedProgram) -> int:
    """Number of iterations of the loop over layers; 1 without a loop [1]."""
    if not in_layers(work).any():
        return 1
    places = np.unique(work.tables.weight_turns.classes)
    # 0 is the class of the number 1.
    return int(min(np.asarray(work.sizes)[places[places > 0]]))


def split_sets(work: ClassedProgram) -> list[tuple[str, ...]]:
    """Sets of dimension classes that tensor parallelism may split together, from the classes with the most weights."""
    counts = np.asarray(work.tables.weights.values(jnp.asarray(work.sizes, float)))
    having: Mapping[str, float] = {
        name: float(counts[(work.tables.weights.classes == work.place_of(name)).any(axis=1)].sum())
        for name in tensor_classes(work)
    }
    # Combinations double with each class: the classes with the most weights count.
    largest = sorted(having, key=lambda name: -having[name])[:MOST_SPLIT]
    sets = [one for size in range(1, len(largest) + 1) for one in itertools.combinations(largest, size)]
    return [one for one in sets if meeting_classes(work, [work.place_of(name) for name in one]) is None]


def split_names(work: ClassedProgram, plan: ClassPlan) -> tuple[str, ...]:
    """Names of the dimension classes that a plan splits by tensor parallelism."""
    return tuple(name for name, on in zip(work.tables.class_names, np.asarray(plan.split), strict=True) if on)


def factor_triples(n_chips: int) -> list[tuple[int, int, int]]:
    """Ordered triples of whole numbers with product `n_chips`."""
    factors = divisors(n_chips).tolist()
    return [(n_chips // (b * c), b, c) for b in factors for c in factors if n_chips % (b * c) == 0]


def powers_of_two(most: int) -> list[int]:
    """Powers of two 1, 2, 4, ... up to `most`."""
    return [2**power for power in range(most.bit_length()) if 2**power <= most]


BLOCK = 256
"""Plans per call of the compiled scoring program [1]; a fixed number needs one compilation."""


class ScoredClassPlan(NamedTuple):
    """Plan of a traced workload with predicted time and memory.

    Attributes:
        plan: the plan.
        split: names of the split classes.
        step_time: step time [s].
        memory: peak memory of a chip [byte].
    """

    plan: ClassPlan
    split: tuple[str, ...]
    step_time: float
    memory: float

    def __str__(self) -> str:
        """Degrees, classes, time and memory as one line of text."""
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
        best: the fastest plan within the memory limit.
        top: the fastest plans, in order.
        searched: number of scored plans [1].
        infeasible: number of valid plans beyond the memory limit [1].
    """

    best: ScoredClassPlan
    top: tuple[ScoredClassPlan, ...]
    searched: int
    infeasible: int

    def __str__(self) -> str:
        """Text with one line per plan."""
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
    """Fastest valid plan of a traced workload within the memory limit.

    Args:
        work: workload of the whole batch.
        cluster: chips and network; the plan uses all chips.
        batch: size of the data class; the traced size where None [1].
        coefficients: fitted parameters.
        memory_limit: memory available per chip [byte].
        top: number of ranked plans [1].

    Raises:
        InputError: no valid plan, or none within the memory limit.
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
    # A stable sort keeps the order of enumeration among plans of equal time.
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
    """Step time [s] and peak memory [byte] of every plan [plan]."""
    return in_blocks_of(BLOCK, lambda block: _scores(work, block, cluster, coefficients), stacked(plans))
