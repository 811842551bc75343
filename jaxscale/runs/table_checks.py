"""Warnings about a table of measured runs: unusable rows and implausible numbers.

No row is dropped: the fit is robust to a few wrong runs, and the owner of the table decides.
"""

from collections.abc import Callable

import jax
import numpy as np

from jaxscale.base.jit import filter_jit
from jaxscale.costs.step import tokens_per_step
from jaxscale.models.transformer import model_flops
from jaxscale.plans.adapters import trained_by
from jaxscale.runs.arrays import Measured, RunBatch, padded
from jaxscale.runs.measured import Described
from jaxscale.runs.schema import Runs
from jaxscale.runs.siblings import contradicted
from jaxscale.tables.categorical import Categorical, together
from jaxscale.tables.cells import first_of

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
    """Report unusable rows and implausible runs before a fit.

    Args:
        runs: the table.
        described: the described rows.
        measured: rows for the fit.
        index: positions of these rows in the table [row].
        say: takes a line of text.
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
    """Why a row has no step time to count."""
    if status not in (None, "ok"):
        return f"status {status}"
    return "no step time" if is_answered else note


def tell_doubts(runs: Runs, measured: Measured, index: np.ndarray, say: Say) -> None:
    """Report implausible measured runs; arguments as of `tell`."""
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
    """Warnings about single runs.

    Args:
        runs: the table.
        measured: rows for the fit.
        index: positions of these rows in the table [row].
        reached: `utilisation` of these rows [1], [row].

    Returns:
        By warning: whether each run is concerned [row], and the text.
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
    """Whether a run equals an earlier run in all columns but the place in the source [row]."""
    columns = [column.map(lambda value: value) for name, column in runs.values.items() if name != PLACE]
    group = together(*columns).codes
    first = np.full(group.max() + 1, len(group))
    # First row of each group of equal rows.
    np.minimum.at(first, group, np.arange(len(group)))
    return first[group] < np.arange(len(group))


def share_of_peak(measured: Measured) -> np.ndarray:
    """Model flop utilisation of each run, relative to the peak in the precision of its matmuls [1], [row].

    A lower bound: no recomputation, causal attention, no gradients of frozen weights.
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
    """Ratio of stated step time to the step time from the stated throughput; 1 where either is absent [1], [row]."""
    names = ("step_time_s", "tokens_per_s_per_gpu", "global_batch_size_seqs", "seq_len", "n_gpus")
    time, throughput, batch, length, n_gpus = (runs.numbers(name) for name in names)
    # T (tokens per second and chip) n / (B S)
    return np.nan_to_num(time * throughput * n_gpus / (batch * length), nan=1.0)
