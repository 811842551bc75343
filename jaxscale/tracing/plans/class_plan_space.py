"""Plans of traced workloads that there are: degrees, splits of classes, microbatches and placements of tables."""

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxscale.base.arrays import divisors
from jaxscale.tracing.classed_program import ClassedProgram
from jaxscale.tracing.plans.class_collectives import is_table
from jaxscale.tracing.plans.class_plan import (
    ClassPlan,
    Tables,
    batch_class,
    class_plan,
    meeting_classes,
    tensor_classes,
)
from jaxscale.tracing.plans.plan_time import in_layers

MOST_SPLIT = 5
"""Classes whose splits over tensor parallelism are tried in every combination, the largest by weights first [1]."""

MOST_MICROBATCHES = 64
"""Microbatches of a step that are tried at most, by powers of two [1]."""


class StatedDegrees(NamedTuple):
    """Degrees of a class plan that are stated; None for those left open.

    Attributes:
        data: chips among which the data class is split [1].
        tensor: chips among which classes of weights are divided [1].
        pipeline: stages [1].
        shard: chips that share one copy of the weights, at most those of `data` [1].
        n_microbatches: microbatches of a step [1].
        micro_batch: size of the data class in a microbatch on one chip [1].
        split: names of the classes that `tensor` divides.
        tables: placement of embedding tables.
        joint_statistics: whether norms over the batch see the batch of all chips, as the program says.
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
"""A plan of which nothing is stated."""


def class_plans(work: ClassedProgram, n_chips: int, stated: StatedDegrees = OPEN) -> list[ClassPlan]:
    """Every valid plan on a number of chips that agrees with stated degrees.

    Args:
        work: the workload, of the whole batch.
        n_chips: chips of the plan [1].
        stated: degrees that plans must have; a batch need not be a multiple of a stated degree or number of
            microbatches, which then count as means.

    Returns:
        The plans; none where no degrees agree.

    Raises:
        InputError: the workload has no class of the batch, or a stated split is none of this workload.
    """
    sizes = work.classes()
    batch_name = work.tables.class_names[batch_class(work)]
    turns, every_split = loop_turns(work), split_sets(work)
    plans = []
    for data, tensor, pipeline in factor_triples(n_chips):
        degrees = (data, tensor, pipeline)
        if any(said not in (None, degree) for said, degree in zip(stated[:3], degrees, strict=True)):
            continue
        if turns % pipeline or (stated.data is None and sizes[batch_name] % data):
            continue
        local = sizes[batch_name] / data
        splits = [one for one in every_split if all(sizes[name] % tensor == 0 for name in one)]
        modes: Sequence[Tables] = table_modes(work) if stated.tables is None else [stated.tables]
        choices = itertools.product(
            [()] if tensor == 1 else splits if stated.split is None else [stated.split],
            microbatch_counts(local, stated),
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
    """Numbers of microbatches that are tried: they fill a pipeline or save memory.

    Args:
        local: size of the data class on one chip [1].
        stated: a number, or a size, that plans must have.

    Returns:
        The numbers [1].
    """
    if stated.n_microbatches is not None:
        return [stated.n_microbatches]
    if stated.micro_batch is not None:
        return [max(local / stated.micro_batch, 1.0)]
    return [float(m) for m in powers_of_two(MOST_MICROBATCHES) if local % m == 0]


def table_modes(work: ClassedProgram) -> Sequence[Tables]:
    """Placements of embedding tables that are tried: apart where there are tables."""
    return ("table", "row") if is_table(work).any() else ("replicated",)


def loop_turns(work: ClassedProgram) -> int:
    """Turns of the loop over layers; 1 where there is none."""
    if not in_layers(work).any():
        return 1
    places = np.unique(work.tables.weight_turns.classes)
    return int(min(np.asarray(work.sizes)[places[places > 0]]))


def split_sets(work: ClassedProgram) -> list[tuple[str, ...]]:
    """Combinations of the largest classes that can be split, by the weights that have them."""
    counts = np.asarray(work.tables.weights.values(jnp.asarray(work.sizes, float)))
    having: Mapping[str, float] = {
        name: float(counts[(work.tables.weights.classes == work.place_of(name)).any(axis=1)].sum())
        for name in tensor_classes(work)
    }
    largest = sorted(having, key=lambda name: -having[name])[:MOST_SPLIT]
    sets = [one for size in range(1, len(largest) + 1) for one in itertools.combinations(largest, size)]
    return [one for one in sets if meeting_classes(work, [work.place_of(name) for name in one]) is None]


def split_names(work: ClassedProgram, plan: ClassPlan) -> tuple[str, ...]:
    """Names of the classes that a plan divides over tensor parallelism."""
    return tuple(name for name, on in zip(work.tables.class_names, np.asarray(plan.split), strict=True) if on)


def factor_triples(n_chips: int) -> list[tuple[int, int, int]]:
    """Products of three whole numbers that give a number."""
    factors = divisors(n_chips).tolist()
    return [(n_chips // (b * c), b, c) for b in factors for c in factors if n_chips % (b * c) == 0]


def powers_of_two(most: int) -> list[int]:
    """1, 2, 4, ... up to a number."""
    return [2**power for power in range(most.bit_length()) if 2**power <= most]
