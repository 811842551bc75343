"""Rows of a runs table that leave open how they run: every plan that agrees with them, to choose one from.

A row that states a model, a chip, a count and a sequence length, but not its microbatch, its degrees or its batch, is a
question with many answers. `open_questions` lists them as rows of a table; when they have been predicted, `completed`
takes the best of each row, and says how far the others are from it.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxscale.models import catalogue_model
from jaxscale.runs import Runs
from jaxscale.runs.categorical import Categorical, together
from jaxscale.runs.schema import COLUMNS, MAX_GPUS

DECIDED = ("tp", "pp", "cp", "ep", "dp", "micro_batch_size", "global_batch_size_seqs")
"""Columns that a completion fills."""

OPEN = ("tp", "pp", "dp", "micro_batch_size", "n_microbatches", "global_batch_size_seqs")
"""Columns of which an empty cell can leave a row open."""

GIVEN = ("gpu", "n_gpus", "seq_len")
"""Columns without which a row stays unanswered, its shape beside them."""

TENSOR, MICROBATCHES, LARGEST_MICROBATCH = (1, 2, 4, 8), (1, 2, 4, 8, 16), 64.0
STAGES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 15, 16, 20, 24, 32)
EXPERTS = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS, LEAST_PART = (1, 2, 4, 8, 16), 4096.0
"""Degrees and microbatches that are tried [1], and the shortest part into which a sequence is split [token]."""

MICROBATCHES_OF_A_STAGE = 4.0
"""Microbatches for each stage of a pipeline in a step whose batch is not stated [1]."""

LIKELY = 0.5
"""Probability of running out of memory below which a plan fits [1]."""

NEAR = 1.5
"""Time over that of the fastest plan up to which another one is an alternative [1]."""

_SAYS_NOTHING = {"source_row", "notes", "status", "step_time_s", "step_time_derived", "peak_mem_gb", "mfu"} | {
    "tokens_per_s_per_gpu",
    "tflops_per_gpu",
}


@dataclass(frozen=True)
class Candidates:
    """Completions of the open questions of a table, as rows of a table of their own.

    Attributes:
        rows: positions in the table of the open rows [open row].
        question: question of each of these rows; rows that ask the same share one [1], [open row].
        runs: candidates of all questions [candidate].
        owner: question of each candidate [1], [candidate].
        values: what each candidate fills in [column][candidate].
    """

    rows: Int[np.ndarray, " open"]
    question: Int[np.ndarray, " open"]
    runs: Runs
    owner: Int[np.ndarray, " candidate"]
    values: Mapping[str, Float[np.ndarray, " candidate"]]


def open_questions(runs: Runs, unanswered: Bool[np.ndarray, " row"]) -> Candidates | None:
    """Completions of the rows that leave open how they run.

    Args:
        runs: the table.
        unanswered: whether a row lacks what it needs [row].

    Returns:
        The completions; None where no row is open.
    """
    is_open = unanswered & np.any([np.isnan(runs.numbers(name)) for name in OPEN], axis=0)
    for name in GIVEN:
        is_open &= ~runs.categories(name).matches(lambda value: value is None)
    is_open &= runs.numbers("n_gpus") < MAX_GPUS
    rows = np.flatnonzero(is_open)
    if not len(rows):
        return None
    names = [column.name for column in COLUMNS if column.name not in _SAYS_NOTHING and column.name in runs.values]
    asked = together(*(runs.categories(name).take(rows) for name in names))
    first = np.asarray([np.flatnonzero(asked.codes == code)[0] for code in range(len(asked.values))], dtype=int)
    fills = [list(_fills(dict(zip(names, values, strict=True)))) for values in asked.values]
    owner = np.repeat(np.arange(len(fills)), [len(one) for one in fills])
    if not len(owner):
        return None
    flat = [fill for one in fills for fill in one]
    values = {name: np.asarray([fill[name] for fill in flat], dtype=float) for name in DECIDED}
    table = _filled(runs.take(rows[first][owner]), values)
    return Candidates(rows, asked.codes, table, owner, values)


def _fills(row: Mapping[str, Any]) -> Iterator[dict[str, float]]:
    """Completions of one row, each with all columns of `DECIDED`."""
    chips = float(row["n_gpus"])
    for tp, pp, cp in _degrees(row, chips):
        dp = row.get("dp") or chips / (tp * pp * cp)
        if dp < 1.0 or dp != math.floor(dp) or dp * tp * pp * cp != chips:
            continue
        for micro, batch in _batches(row, dp, pp):
            for ep in _expert_degrees(row, dp * cp):
                yield {
                    **{"tp": tp, "pp": pp, "cp": cp, "ep": ep, "dp": dp},
                    **{"micro_batch_size": micro, "global_batch_size_seqs": batch},
                }


def _degrees(row: Mapping[str, Any], chips: float) -> Iterator[tuple[float, float, float]]:
    """Degrees of tensor, pipeline and context parallelism that agree with a row."""
    parts = [cp for cp in CONTEXTS if cp == 1 or float(row["seq_len"]) / cp >= LEAST_PART]
    for cp in (row["cp"],) if row.get("cp") else parts:
        for tp in (row["tp"],) if row.get("tp") else TENSOR:
            if row.get("dp") and row.get("pp") is None and row.get("tp"):
                yield float(tp), chips / (row["dp"] * tp * cp), float(cp)
                continue
            for pp in (row["pp"],) if row.get("pp") else STAGES:
                if chips % (tp * pp * cp) == 0.0:
                    yield float(tp), float(pp), float(cp)


def _batches(row: Mapping[str, Any], dp: float, pp: float) -> Iterator[tuple[float, float]]:
    """Microbatches and batches that agree with a row."""
    batch, count = row.get("global_batch_size_seqs"), row.get("n_microbatches")
    if batch and count and row.get("micro_batch_size") is None:
        yield batch / (dp * count), batch
        return
    share = batch / dp if batch else 0.0
    whole_share = (share,) if MICROBATCHES[-1] < share <= LARGEST_MICROBATCH and share.is_integer() else ()
    for micro in (row["micro_batch_size"],) if row.get("micro_batch_size") else (*MICROBATCHES, *whole_share):
        whole = batch or micro * dp * (count or (MICROBATCHES_OF_A_STAGE * pp if pp > 1.0 else 1.0))
        if row.get("micro_batch_size") or (whole / (dp * micro)).is_integer():
            yield float(micro), float(whole)


def _expert_degrees(row: Mapping[str, Any], replicas: float) -> Iterator[float]:
    """Degrees of expert parallelism that agree with a row; an empty one stays 1 where tp and pp are stated."""
    entry = catalogue_model(str(row.get("model") or "")) or {}
    is_mixture = (row.get("n_experts") or entry.get("n_experts") or 1.0) > 1.0
    if not is_mixture or row.get("ep") or row.get("tp") and row.get("pp"):
        yield float(row.get("ep") or 1.0)
        return
    yield from (float(ep) for ep in EXPERTS if replicas % ep == 0.0)


def _filled(runs: Runs, values: Mapping[str, np.ndarray]) -> Runs:
    """A table with columns of numbers replaced; nan is an empty cell."""
    empty = {name: Categorical.of_numbers(column) for name, column in values.items()}
    columns = {name: column.map(lambda value: None if math.isnan(value) else value) for name, column in empty.items()}
    return replace(runs, values={**runs.values, **columns})


@dataclass(frozen=True)
class Completion:
    """A table whose open rows are completed.

    Attributes:
        runs: the table.
        assumed: completed values of each row in words, empty where nothing was [row].
        fastest: least time of an alternative over that of the chosen plan [1], [row].
        slowest: greatest time of an alternative over that of the chosen plan [1], [row].
    """

    runs: Runs
    assumed: np.ndarray
    fastest: Float[np.ndarray, " row"]
    slowest: Float[np.ndarray, " row"]


def completed(
    runs: Runs,
    tried: Candidates,
    step_time: Float[np.ndarray, " candidate"],
    oom_probability: Float[np.ndarray, " candidate"],
    is_valid: Bool[np.ndarray, " candidate"],
) -> Completion:
    """The table with the best plan in each open row, by `best_and_near`.

    Args:
        runs: the table.
        tried: completions of its open rows.
        step_time: predicted for each of them, nan where there is no answer [s], [candidate].
        oom_probability: predicted [1], [candidate].
        is_valid: whether the plan breaks no rule [candidate].

    Returns:
        The completed table; rows without a valid completion stay as they are.
    """
    values = {name: runs.numbers(name).copy() for name in DECIDED}
    assumed = np.full(len(runs), "", dtype=object)
    fastest, slowest = np.ones(len(runs)), np.ones(len(runs))
    for question in range(int(tried.question.max()) + 1):
        answered = (tried.owner == question) & np.isfinite(step_time)
        if not answered.any():
            continue
        # What a row states can break a rule in every completion: it is answered as a full row would be, with a note.
        places = np.flatnonzero(answered & is_valid if (answered & is_valid).any() else answered)
        chosen = best_and_near(step_time[places], oom_probability[places])
        best = places[chosen.best]
        rows = tried.rows[tried.question == question]
        words = []
        for name in DECIDED:
            filled = tried.values[name][best]
            if np.isnan(values[name][rows[0]]) and (name not in ("cp", "ep") or filled != 1.0):
                words.append(f"{name} = {filled:g}")
            values[name][rows] = filled
        assumed[rows] = ", ".join(words)
        fastest[rows], slowest[rows] = chosen.fastest, chosen.slowest
    return Completion(_filled(runs, values), assumed, fastest, slowest)


class Alternatives(NamedTuple):
    """The best of several plans, and how far those are from it that are nearly as good.

    Attributes:
        best: place of the best plan [1].
        fastest: least time of an alternative over that of the best [1].
        slowest: greatest time of an alternative over that of the best [1].
    """

    best: int
    fastest: float
    slowest: float


def best_and_near(step_time: Float[np.ndarray, " plan"], oom_probability: Float[np.ndarray, " plan"]) -> Alternatives:
    """The best of several plans: of those that fit, the one of the least time over the chance that it fits.

    $t / (1 - p)$ is least, with p the probability of running out of memory: who plans takes some risk for a gain.

    Args:
        step_time: of each plan [s].
        oom_probability: of each plan [1].

    Returns:
        The best plan and its alternatives; where no plan fits, the one that is nearest to it.
    """
    excess = np.where(oom_probability < LIKELY, 0.0, oom_probability)
    expected = step_time / (1.0 - np.minimum(oom_probability, LIKELY))
    best = int(np.lexsort((expected, excess))[0])
    is_near = (excess <= excess[best]) & (step_time <= NEAR * step_time[best])
    times = step_time[is_near] / step_time[best]
    return Alternatives(best, float(times.min()), float(times.max()))
