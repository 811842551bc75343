"""Plans of traced workloads: every valid one over dimension classes is scored, those that fit are ranked."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxscale._arrays import number, stacked
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.costs.traced.class_collectives import is_table
from jaxscale.costs.traced.class_plan import ClassPlan, batch_class, class_plan, meeting_classes, tensor_classes
from jaxscale.costs.traced.plan_time import in_layers
from jaxscale.errors import InputError
from jaxscale.hardware.cluster import Cluster
from jaxscale.memory import memory
from jaxscale.plans.enumerate import divisors
from jaxscale.step import step_time
from jaxscale.tracing.traced_workload import Workload

MOST_SPLIT = 5
"""Classes whose splits over tensor parallelism are tried in every combination, the largest by weights first [1]."""

MOST_MICROBATCHES = 64
"""Microbatches of a step that are tried at most, by powers of two [1]."""

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
    work: Workload,
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
        work = work.with_sizes({work.tables.class_names[batch_class(work)]: batch})
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


def split_names(work: Workload, plan: ClassPlan) -> tuple[str, ...]:
    """Names of the classes that a plan divides over tensor parallelism."""
    return tuple(name for name, on in zip(work.tables.class_names, np.asarray(plan.split), strict=True) if on)


def class_plans(work: Workload, n_chips: int) -> list[ClassPlan]:
    """Every valid plan on a number of chips."""
    classes = work.classes()
    batch_name = work.tables.class_names[batch_class(work)]
    turns, every_split = loop_turns(work), split_sets(work)
    modes: Sequence[Any] = ("table", "row") if is_table(work).any() else ("replicated",)
    plans = []
    for data, tensor, pipeline in factor_triples(n_chips):
        if classes[batch_name] % data or turns % pipeline:
            continue
        local = classes[batch_name] / data
        # Microbatches fill a pipeline or save memory.
        counts = [m for m in powers_of_two(MOST_MICROBATCHES) if local % m == 0]
        splits = (
            [()] if tensor == 1 else [one for one in every_split if all(classes[name] % tensor == 0 for name in one)]
        )
        for split, m, shard, tables in itertools.product(splits, counts, {1, data}, modes):
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
                )
            )
    return plans


def loop_turns(work: Workload) -> int:
    """Turns of the loop over layers; 1 where there is none."""
    if not in_layers(work).any():
        return 1
    places = np.unique(work.tables.weight_turns.classes)
    return int(min(np.asarray(work.sizes)[places[places > 0]]))


def split_sets(work: Workload) -> list[tuple[str, ...]]:
    """Combinations of the largest classes that can be split, by the weights that have them."""
    counts = np.asarray(work.tables.weights.values(jnp.asarray(work.sizes, float)))
    having: Mapping[str, float] = {
        name: float(counts[(work.tables.weights.classes == work.place_of(name)).any(axis=1)].sum())
        for name in tensor_classes(work)
    }
    largest = sorted(having, key=lambda name: -having[name])[:MOST_SPLIT]
    sets = [one for size in range(1, len(largest) + 1) for one in itertools.combinations(largest, size)]
    return [one for one in sets if meeting_classes(work, [work.place_of(name) for name in one]) is None]


def factor_triples(n_chips: int) -> list[tuple[int, int, int]]:
    """Products of three whole numbers that give a number."""
    factors = divisors(n_chips).tolist()
    return [(n_chips // (b * c), b, c) for b in factors for c in factors if n_chips % (b * c) == 0]


def powers_of_two(most: int) -> list[int]:
    """1, 2, 4, ... up to a number."""
    return [2**power for power in range(most.bit_length()) if 2**power <= most]


@eqx.filter_jit
def _scores(work: Workload, plans: ClassPlan, cluster: Cluster, coefficients: Coefficients) -> Any:
    def one(plan: ClassPlan) -> Any:
        seconds = step_time(work, plan, cluster, coefficients).total
        return seconds, memory(work, plan, cluster, coefficients).total

    return jax.vmap(one)(plans)


def class_plan_scores(
    work: Workload, plans: Sequence[ClassPlan], cluster: Cluster, coefficients: Coefficients
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
