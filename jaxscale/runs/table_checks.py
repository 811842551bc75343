r"""Warnings about a table of measured runs: unusable rows and implausible numbers.

No row is dropped: the fit is robust to a few wrong runs, and the owner of the table decides.

Replicates are runs of equal model, plan, cluster and software. The scatter of their step times is a lower bound on the
error of any prediction from these settings. The deviation of the i-th of n log step times from the mean is scaled to
the scatter of a single run, since the mean follows the runs:

$$ \varepsilon_i = \sqrt{\frac{n}{n - 1}} \, (x_i - \bar x) . $$

Siblings are runs of one model on one chip and software whose plans differ only in microbatch, pipeline stages and
replicas, by a factor of at most `REACH` in all. Measured times alone, without any prediction, show whether siblings
contradict each other. The time of a pipeline slot, $T / (m + (p - 1) / v)$ with v virtual stages on a chip, obeys
bounds:

- with r times as many sequences in a microbatch, a slot takes at least as long, and at most r times as long;
- with r times as many stages, a slot takes at least 1/r of the time, and at most the same time;
- with more replicas a slot takes the same time, but the reduction of gradients may dominate a step of few slots.

A run that breaks these bounds by `MARGIN` with more than half of its siblings is suspect.
"""

from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np
from jaxtyping import Float

from jaxscale.base.jit import filter_jit
from jaxscale.calibration.levels import Levels
from jaxscale.costs.step import tokens_per_step
from jaxscale.models.transformer import model_flops
from jaxscale.plans.adapters import trained_by
from jaxscale.runs.arrays import Measured, RunBatch, classes, padded
from jaxscale.runs.measured import Described
from jaxscale.runs.schema import Runs
from jaxscale.tables.categorical import Categorical, together
from jaxscale.tables.cells import first_of

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
    """Deviation of each run's log step time from the mean of runs with equal settings.

    Args:
        log_time: natural log of measured step times [ln s], [row].
        batch: models, plans and clusters [row].
        levels: levels of each run by factor [row].
        kinds: factors that count as settings.

    Returns:
        Log ratio of step times, scaled to the scatter of single runs [1]; nan for runs without replicates
        [row].
    """
    group = classes(batch, [levels.column(kind) for kind in kinds])
    # Mean of each group.
    count = np.bincount(group)[group]
    mean = (np.bincount(group, log_time) / np.bincount(group))[group]
    # The mean follows the runs: sqrt(n / (n - 1)) restores the scatter of a run.
    widened = np.sqrt(count / np.maximum(count - 1.0, 1.0)) * (log_time - mean)
    return np.where(count > 1, widened, np.nan)


def contradicted(measured: Measured) -> np.ndarray:
    """Whether the step time of each run contradicts more than half of its siblings [row].

    Args:
        measured: runs with their step times.
    """
    if not len(measured.batch):
        return np.zeros(0, dtype=bool)
    plan, family = measured.batch.plan, families(measured)
    varied = np.stack([np.asarray(getattr(plan, name), float) for name in VARIED])
    # Runs of equal settings have equal siblings and bounds: settings are compared instead of runs.
    setting = classes((family.astype(float), *varied), [])
    first = np.unique(setting, return_index=True)[1]
    micro, count, stages, replicas = varied[:4, first]
    # m + (p - 1) / v slots of a pipeline.
    slots = count + (stages - 1.0) / np.asarray(plan.vpp)[first]
    # The reduction of gradients may dominate a step of few slots.
    few = np.where(slots < FEW_SLOTS, REDUCTION, 1.0)
    log_slot = np.log(np.asarray(measured.step_time) / slots[setting])
    sorted_slots = _SortedGroups(log_slot, setting)
    siblings, broken = np.zeros(len(setting)), np.zeros(len(setting))
    for one, other in pairs_within(family[first]):
        ratios = np.stack([part[other] / part[one] for part in (micro, stages, replicas)])
        # Product of the factors up or down.
        is_near = np.prod(np.maximum(ratios, 1.0 / ratios), axis=0) <= REACH
        one, other, ratios = one[is_near], other[is_near], ratios[:, is_near]
        # Longest slot of the second setting over the first, with scatter.
        highest = np.log(MARGIN * _longest(ratios, few[other]))
        # The reverse bound: a slot of the first over the second.
        lowest = -np.log(MARGIN * _longest(1.0 / ratios, few[one]))
        for pairs in _in_parts(sorted_slots.sizes[one]):
            rows, place = sorted_slots.members(one[pairs])
            group = other[pairs][place]
            above = sorted_slots.above(group, log_slot[rows] + highest[pairs][place])
            below = sorted_slots.below(group, log_slot[rows] + lowest[pairs][place])
            siblings += np.bincount(rows, sorted_slots.sizes[group], minlength=len(setting))
            broken += np.bincount(rows, above + below, minlength=len(setting))
    # Of the runs of its own settings a run contradicts those that took longer or less by the margin.
    siblings += sorted_slots.sizes[setting] - 1.0
    broken += sorted_slots.above(setting, log_slot + np.log(MARGIN)) + sorted_slots.below(
        setting, log_slot - np.log(MARGIN)
    )
    return broken > 0.5 * siblings


def _longest(ratios: np.ndarray, few: np.ndarray) -> np.ndarray:
    """Upper bound of the ratio of slot times of two siblings, from microbatch, stages and replicas [1], [pair]."""
    micro, stages, replicas = ratios
    # Larger microbatches take at most in proportion, fewer stages at most all work.
    return np.maximum(micro, 1.0) / np.minimum(stages, 1.0) * np.where(replicas > 1.0, few, 1.0)


def _in_parts(sizes: np.ndarray) -> Iterator[slice]:
    """Slices of pairs of settings with about `PAIRS_AT_ONCE` runs in the first settings."""
    ends = np.cumsum(sizes)
    begin = 0
    while begin < len(sizes):
        limit = (ends[begin - 1] if begin else 0) + PAIRS_AT_ONCE
        # At least a pair of settings, however many runs.
        end = max(int(np.searchsorted(ends, limit, side="right")), begin + 1)
        yield slice(begin, end)
        begin = end


class _SortedGroups:
    """Numbers sorted within groups, so that numbers above or below a bound are counted by binary search.

    Args:
        values: numbers [row].
        groups: group of each number, integers from 0 [row].
    """

    def __init__(self, values: np.ndarray, groups: np.ndarray):
        """Sort the numbers by group and size."""
        # Groups lie apart on one line: one search serves all of them.
        self._width = 2.0 * (float(np.ptp(values)) + 1.0)
        self._low = float(values.min())
        self._order = np.lexsort((values, groups))
        self._line = self._at(groups, values)[self._order]
        self.sizes = np.bincount(groups)
        self._start = np.cumsum(self.sizes) - self.sizes

    def _at(self, groups: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Sort key of a value of a group; values beyond all numbers lie between two groups."""
        return groups * self._width + np.clip(values - self._low, -0.25 * self._width, 0.74 * self._width)

    def members(self, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the given groups, concatenated, and the position of each row's group."""
        place = np.repeat(np.arange(len(groups)), self.sizes[groups])
        before = np.cumsum(self.sizes[groups]) - self.sizes[groups]
        return self._order[self._start[groups][place] + np.arange(len(place)) - before[place]], place

    def above(self, groups: np.ndarray, bounds: np.ndarray) -> np.ndarray:
        """Count of numbers of a group above a bound, for each pair of group and bound [pair]."""
        ends = self._start[groups] + self.sizes[groups]
        return ends - np.searchsorted(self._line, self._at(groups, bounds), side="right")

    def below(self, groups: np.ndarray, bounds: np.ndarray) -> np.ndarray:
        """Count of numbers of a group below a bound, for each pair of group and bound [pair]."""
        return np.searchsorted(self._line, self._at(groups, bounds), side="left") - self._start[groups]


def pairs_within(groups: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Positions of all ordered pairs of rows within a group, in blocks.

    Args:
        groups: group of each row, integers from 0 [row].

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
    """Family number of each run: runs with equal model, chip, software and plan, except the fields `VARIED` [row]."""
    batch = measured.batch
    plan = [getattr(batch.plan, name) for name in batch.plan.__dataclass_fields__ if name not in VARIED]
    return classes((batch.model, batch.cluster.chip, plan), [measured.levels.column(name) for name in LEVELS])


LINES_TOLD = 10
"""Lines of runs that are named one by one [1]."""

LEAST_UTILISATION = 0.005
"""Share of the peak that half of the runs of a real table exceed: 0.06 to 0.6 in the shipped tables [1]."""

FAR_BELOW = 0.01
"""Utilisation of a run over that of half of its table below which its time is hardly in the same unit [1]."""

CAPACITY_SLACK = 1.1
"""Peak memory over what the catalogue says of a chip, from which on no rounding of its capacity explains it [1]."""

TOLERANCE = 0.05
"""Difference up to which two statements of the same speed count as one, as where the time is rounded [1]."""

PLACE = "source_row"
"""Column that tells copies of a row apart."""

Say = Callable[[str], None]


def tell(runs: Runs, described: Described, measured: Measured, index: np.ndarray, say: Say) -> None:
    """Report unusable rows and implausible runs of a table before a fit.

    Args:
        runs: the table.
        described: the described rows.
        measured: rows for the fit.
        index: positions of the measured rows in the table [row].
        say: callback with a line of text.
    """
    if reasons := why_left_out(runs, described, index):
        told = [f"{reason}: {len(lines)} (lines {first_of(lines, LINES_TOLD)})" for reason, lines in reasons.items()]
        count = len(runs) - len(index)
        say(f"{runs.path}: {count} of {len(runs)} rows have no step time to count: {'; '.join(told)}")
    tell_doubts(runs, measured, index, say)


def why_left_out(runs: Runs, described: Described, index: np.ndarray) -> dict[str, list[int]]:
    """Lines of the rows left out of a fit, by reason: a failure, a missing setting, or no step time.

    Args:
        runs: the table.
        described: the described rows.
        index: positions of the fitted rows [row].
    """
    left_out = np.setdiff1d(np.arange(len(runs)), index)
    is_answered = Categorical(np.isin(left_out, described.index).astype(int), (False, True))
    facts = together(runs.categories("status").take(left_out), described.notes.take(left_out), is_answered)
    reasons, lines = facts.map(lambda fact: _reason(*fact)), runs.lines[left_out]
    first = [int(np.flatnonzero(reasons.codes == code)[0]) for code in np.unique(reasons.codes)]
    return {reasons[row]: lines[reasons.codes == reasons.codes[row]].tolist() for row in sorted(first)}


def _reason(status: str | None, note: str, is_answered: bool) -> str:
    """Reason why a row is left out of a fit."""
    if status not in (None, "ok"):
        return f"status {status}"
    return "no step time" if is_answered else note


def tell_doubts(runs: Runs, measured: Measured, index: np.ndarray, say: Say) -> None:
    """Report implausible measured runs of a table; arguments as in `tell`."""
    found = share_of_peak(measured)
    if np.median(found) < LEAST_UTILISATION:
        say(
            f"{runs.path}: half of the runs reach less than {np.median(found):.2%} of the peak of their chips: check "
            "that step_time_s is in seconds and global_batch_size_seqs in sequences"
        )
    lines = runs.lines[index]
    for which, what in doubts(runs, measured, index, found):
        if which.any():
            named = first_of(lines[which].tolist(), LINES_TOLD)
            say(f"{runs.path}: {which.sum()} of {len(lines)} runs {what} (lines {named}); they count all the same")


def doubts(runs: Runs, measured: Measured, index: np.ndarray, reached: np.ndarray) -> list[tuple[np.ndarray, str]]:
    """Warnings about single measured runs.

    Args:
        runs: the table.
        measured: rows for the fit.
        index: positions of the measured rows in the table [row].
        reached: `share_of_peak` of the measured rows [1], [row].

    Returns:
        For each warning: whether each run is concerned [row], and the text.
    """
    held = np.nan_to_num(measured.peak_memory / np.asarray(measured.batch.cluster.chip.hbm_bytes))
    # Ratio of two statements of a speed, in logarithms.
    apart = np.abs(np.log(stated_twice(runs)[index])) > TOLERANCE
    return [
        (
            reached > 1.0,
            "take less time than their chips need to multiply: check that step_time_s is in seconds and "
            "global_batch_size_seqs in sequences",
        ),
        (
            reached < FAR_BELOW * np.median(reached),
            f"reach less than {FAR_BELOW:.0%} of what half of the others do: check that their step_time_s is in "
            "seconds",
        ),
        (held > CAPACITY_SLACK, "hold more than their chips can: check that peak_mem_gb is in 1e9 byte"),
        (is_copy(runs.take(index)), "are copies of an earlier row, down to the measured time"),
        (apart, "state a throughput that contradicts their step time, which is the one used"),
        (contradicted(measured), "contradict most of their siblings, with more work in less time or the reverse"),
    ]


def is_copy(runs: Runs) -> np.ndarray:
    """Whether a run equals an earlier run in all columns except `source_row` [row]."""
    columns = [column.map(lambda value: value) for name, column in runs.values.items() if name != PLACE]
    group = together(*columns).codes
    first = np.full(group.max() + 1, len(group))
    # First row of each group of equal rows.
    np.minimum.at(first, group, np.arange(len(group)))
    return first[group] < np.arange(len(group))


def share_of_peak(measured: Measured) -> np.ndarray:
    """Lower bound of the model flop utilisation of each run, relative to the peak of its number format [1], [row].

    Without recomputation, with causal attention, and without gradients of frozen weights.
    """
    with jax.enable_x64(True):
        least = np.asarray(_least_times(padded(measured.batch, len(measured.batch))))[: len(measured.batch)]
    return least / np.asarray(measured.step_time)


@filter_jit
def _least_times(batch: RunBatch) -> jax.Array:
    return jax.vmap(_least_time)(batch)


def _least_time(run: RunBatch) -> jax.Array:
    # Forward and input gradients are 2 of 3 multiply-adds, weight gradients by trained share.
    flops = model_flops(run.model, causal=True) * (2.0 + trained_by(run.model, run.plan.lora_rank)) / 3.0
    seconds_per_flop = run.cluster.chip.seconds_per_flop(run.plan.precision)
    return flops * tokens_per_step(run.model, run.plan) * seconds_per_flop / run.cluster.n_chips


def stated_twice(runs: Runs) -> np.ndarray:
    """Ratio of stated step time to the step time from the stated throughput; 1 if either is absent [1], [row]."""
    names = ("step_time_s", "tokens_per_s_per_gpu", "global_batch_size_seqs", "seq_len", "n_gpus")
    time, throughput, batch, length, n_gpus = (runs.numbers(name) for name in names)
    # T (tokens per second and chip) n / (B S)
    return np.nan_to_num(time * throughput * n_gpus / (batch * length), nan=1.0)
