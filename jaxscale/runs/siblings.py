r"""Runs of a table that contradict their siblings; the rule looks at measured times alone, at no model's prediction.

Siblings are runs of one model on one kind of chip and software whose plans differ in nothing but microbatch, pipeline
stages and replicas, by a factor of at most `REACH` in all. The time of a pipeline slot, $T / (m + (p - 1) / v)$ with v
virtual stages on a chip, ties them:

- r times as many sequences in a microbatch take at least as long, and at most r times as long;
- r times as many stages leave at least 1/r of the work to each, and at most all of it;
- replicas leave it as it is, except that the reduction of gradients may dominate a step of few slots.

A run that breaks these bounds by `MARGIN` with more than half of its siblings is suspect.
"""

import numpy as np
from jaxtyping import ArrayLike

from jaxscale.runs.arrays import Measured, classes

REACH = 4.0
"""Largest product of the factors by which microbatch, stages and replicas of siblings differ [1]."""

MARGIN = 1.2
"""Factor beyond the bounds that run-to-run scatter may explain [1]."""

FEW_SLOTS = 16
"""Slots of a step below which the reduction of gradients may take as long as several of them [1]."""

REDUCTION = 4.0
"""Factor by which it may then lengthen a slot [1]."""

LEVELS = ("source", "gpu", "release", "number_format", "attention_kernel")
"""Levels that siblings share."""

VARIED = ("micro_batch_size", "n_microbatches", "pp", "dp", "shard_group")
"""Fields of a plan in which siblings differ; the shard group is that of the replicas."""


def contradicted(measured: Measured) -> np.ndarray:
    """Which runs contradict more than half of their siblings.

    Args:
        measured: runs with their step times.

    Returns:
        Whether each is suspect [row].
    """
    kin = families(measured)
    found = np.zeros(len(kin), dtype=bool)
    for family in np.flatnonzero(np.bincount(kin) > 1):
        inside = np.flatnonzero(kin == family)
        found[inside] = contradicted_within(measured.take(inside))
    return found


def families(measured: Measured) -> np.ndarray:
    """Number of the family of each run: model, chip, software and the rest of the plan are the same [row]."""
    batch = measured.batch
    plan = [getattr(batch.plan, name) for name in batch.plan.__dataclass_fields__ if name not in VARIED]
    return classes((batch.model, batch.cluster.chip, plan), [measured.levels[name] for name in LEVELS])


def contradicted_within(measured: Measured) -> np.ndarray:
    """Which runs of one family contradict more than half of their siblings [row]."""
    plan = measured.batch.plan
    slots = np.asarray(plan.n_microbatches + (plan.pp - 1.0) / plan.vpp)
    slot = np.asarray(measured.step_time) / slots
    micro, stages, replicas = (ratios(part) for part in (plan.micro_batch_size, plan.pp, plan.dp))
    near = np.prod([np.maximum(ratio, 1.0 / ratio) for ratio in (micro, stages, replicas)], axis=0) <= REACH
    siblings = near & ~np.eye(len(slot), dtype=bool)
    few = np.where(slots < FEW_SLOTS, REDUCTION, 1.0)
    longest = np.maximum(micro, 1.0) / np.minimum(stages, 1.0) * np.where(replicas > 1.0, few, 1.0)
    # Pair (i, j) says how many times longer the slot of j is than that of i, and (j, i) the inverse.
    excess = ratios(slot) / longest
    broken = np.maximum(excess, excess.T) > MARGIN
    return (broken & siblings).sum(axis=1) > 0.5 * siblings.sum(axis=1)


def ratios(values: ArrayLike) -> np.ndarray:
    """Value of j over value of i [i, j]."""
    return np.divide.outer(np.asarray(values), np.asarray(values)).T
