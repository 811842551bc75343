r"""Runs of one table beside each other: how far repeats of equal settings scatter, and which runs contradict siblings.

Repeats, runs of equal settings, differ: the error that no prediction from these settings can go below on further runs.

Of the n logs of step time of runs whose model, plan, cluster and software are the same, each is $x_i - \bar x$ from
their mean, the best that a prediction can do. These are a share $(n - 1) / n$ of the variance of one run, since the
mean has followed them:

$$ \varepsilon_i = \sqrt{\frac{n}{n - 1}} \, (x_i - \bar x) . $$

Siblings may contradict each other; the rule looks at measured times alone, at no model's prediction.

Siblings are runs of one model on one kind of chip and software whose plans differ in nothing but microbatch, pipeline
stages and replicas, by a factor of at most `REACH` in all. The time of a pipeline slot, $T / (m + (p - 1) / v)$ with v
virtual stages on a chip, ties them:

- r times as many sequences in a microbatch take at least as long, and at most r times as long;
- r times as many stages leave at least 1/r of the work to each, and at most all of it;
- replicas leave it as it is, except that the reduction of gradients may dominate a step of few slots.

A run that breaks these bounds by `MARGIN` with more than half of its siblings is suspect.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float

from jaxscale.calibration.levels import Levels
from jaxscale.runs.arrays import Measured, RunBatch, classes

REACH = 4.0
"""Largest product of the factors by which microbatch, stages and replicas of siblings differ [1]."""

MARGIN = 1.2
"""Factor beyond the bounds that run-to-run scatter may explain [1]."""

FEW_SLOTS = 16
"""Slots of a step below which the reduction of gradients may take as long as several of them [1]."""

PAIRS_AT_ONCE = 1 << 20
"""Pairs of runs that are compared at a time [1]."""

REDUCTION = 4.0
"""Factor by which it may then lengthen a slot [1]."""

LEVELS = ("source", "gpu", "release", "number_format", "attention_kernel")
"""Levels that siblings share."""

VARIED = ("micro_batch_size", "n_microbatches", "pp", "dp", "shard_group")
"""Fields of a plan in which siblings differ; the shard group is that of the replicas."""

SOFTWARE = ("source", "framework", "precision", "number_format", "attention_kernel", "fused_norm", "release")
"""Levels that runs of equal settings share, besides what the batch holds."""


def deviations(
    log_time: Float[np.ndarray, " row"],
    batch: RunBatch,
    levels: Levels,
    kinds: Sequence[str] = SOFTWARE,
) -> np.ndarray:
    """How far each run is from what runs of its settings take on average.

    Args:
        log_time: natural log of measured step times [ln s], [row].
        batch: what ran [row].
        levels: levels of each run by kind [row].
        kinds: levels that count as settings.

    Returns:
        Log of its step time over theirs, as wide as single runs scatter [1]; nan where no other run has its settings
        [row].
    """
    group = classes(batch, [levels.column(kind) for kind in kinds])
    count = np.bincount(group)[group]
    mean = (np.bincount(group, log_time) / np.bincount(group))[group]
    widened = np.sqrt(count / np.maximum(count - 1.0, 1.0)) * (log_time - mean)
    return np.where(count > 1, widened, np.nan)


def contradicted(measured: Measured) -> np.ndarray:
    """Which runs contradict more than half of their siblings.

    Args:
        measured: runs with their step times.

    Returns:
        Whether each is suspect [row].
    """
    plan = measured.batch.plan
    varied = [np.asarray(part) for part in (plan.micro_batch_size, plan.pp, plan.dp)]
    slots = np.asarray(plan.n_microbatches + (plan.pp - 1.0) / plan.vpp)
    slot = np.asarray(measured.step_time) / slots
    few = np.where(slots < FEW_SLOTS, REDUCTION, 1.0)

    def excess(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """Slot of the other run over the longest that its siblings' allow [1], [pair]."""
        micro, stages, replicas = (part[other] / part[one] for part in varied)
        longest = np.maximum(micro, 1.0) / np.minimum(stages, 1.0) * np.where(replicas > 1.0, few[other], 1.0)
        return slot[other] / slot[one] / longest

    siblings, broken = np.zeros(len(slot)), np.zeros(len(slot))
    for one, other in pairs_within(families(measured)):
        ratios = [part[other] / part[one] for part in varied]
        is_near = np.prod([np.maximum(ratio, 1.0 / ratio) for ratio in ratios], axis=0) <= REACH
        one, other = one[is_near], other[is_near]
        is_broken = np.maximum(excess(one, other), excess(other, one)) > MARGIN
        siblings += np.bincount(one, minlength=len(slot))
        broken += np.bincount(one, is_broken, minlength=len(slot))
    return broken > 0.5 * siblings


def pairs_within(groups: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Positions of all ordered pairs of two rows of the same group, a block of them at a time.

    Args:
        groups: group of each row, whole numbers from 0 on [row].

    Yields:
        The first and the second row of each pair [pair].
    """
    order = np.argsort(groups, kind="stable")
    size = np.bincount(groups)[groups[order]]
    start = np.searchsorted(groups[order], groups[order])
    n_pairs = np.cumsum(size)
    begin = 0
    while begin < len(order):
        end = int(np.searchsorted(n_pairs, n_pairs[begin] - size[begin] + PAIRS_AT_ONCE, side="right"))
        rows = np.arange(begin, max(end, begin + 1))
        first = np.repeat(rows, size[rows])
        before = np.repeat(np.cumsum(size[rows]) - size[rows], size[rows])
        second = start[first] + np.arange(len(first)) - before
        is_pair = first != second
        yield order[first[is_pair]], order[second[is_pair]]
        begin = int(rows[-1]) + 1


def families(measured: Measured) -> np.ndarray:
    """Number of the family of each run: model, chip, software and the rest of the plan are the same [row]."""
    batch = measured.batch
    plan = [getattr(batch.plan, name) for name in batch.plan.__dataclass_fields__ if name not in VARIED]
    return classes((batch.model, batch.cluster.chip, plan), [measured.levels.column(name) for name in LEVELS])
