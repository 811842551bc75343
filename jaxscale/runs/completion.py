"""Completion of rows without a full parallel plan by the best plan that agrees with the stated cells.

A row with a model, a chip, a count and a sequence length, but without microbatch, degrees or batch, agrees with
many plans; `jaxscale.plans` finds the best of these plans.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from jaxscale.base.arrays import number
from jaxscale.calibration.memory_limit import Alternatives, best_and_near, near, probability_of_oom
from jaxscale.calibration.record import Fit
from jaxscale.hardware.catalogue import Hardware
from jaxscale.plans.plan import END_STAGES
from jaxscale.plans.plan_questions import COUNTS, PlanQuestion, find_plans, stated_space
from jaxscale.plans.rules import BATCH_RULE, CHIPS_RULE, RULES, decided, model_columns
from jaxscale.plans.score import FoundPlans
from jaxscale.runs import Runs
from jaxscale.runs.measured import describe_runs
from jaxscale.runs.schema import COLUMNS, MAX_GPUS
from jaxscale.runs.software import UNDECIDED, of_search
from jaxscale.tables.categorical import Categorical, together

OPEN = ("tp", "pp", "dp", "micro_batch_size", "n_microbatches", "global_batch_size_seqs")
"""Columns of which an empty cell can leave a row open."""

GIVEN = ("gpu", "n_gpus", "seq_len")
"""Columns without which a row stays unanswered, its shape beside them."""

_SAYS_NOTHING = {"source_row", "notes", "status", "step_time_s", "step_time_derived", "peak_mem_gb", "mfu"} | {
    "tokens_per_s_per_gpu",
    "tflops_per_gpu",
}


class OpenRows(NamedTuple):
    """Rows of a table without a full plan, and the `PlanQuestion` of each.

    Attributes:
        rows: positions in the table [open row].
        question: index into `questions`; rows with equal cells share a question [1], [open row].
        questions: distinct questions.
        cells: values by column of the first row of each question.
    """

    rows: Int[np.ndarray, " open"]
    question: Int[np.ndarray, " open"]
    questions: tuple[PlanQuestion, ...]
    cells: tuple[Mapping[str, Any], ...]


def open_rows(runs: Runs, unanswered: Bool[np.ndarray, " row"], hardware: Hardware | None = None) -> OpenRows | None:
    """Rows of a table without a full plan, with a `PlanQuestion` for each.

    Args:
        runs: the table.
        unanswered: whether a row lacks cells that a prediction needs [row].
        hardware: catalogue of chips; the shipped catalogue where None.

    Returns:
        The rows; None where no row is open.
    """
    is_open = unanswered & np.any([np.isnan(runs.numbers(name)) for name in OPEN], axis=0)
    for name in GIVEN:
        is_open &= ~runs.categories(name).matches(lambda value: value is None)
    # A larger count is a slip.
    is_open &= runs.numbers("n_gpus") < MAX_GPUS
    rows = np.flatnonzero(is_open)
    if not len(rows):
        return None
    names = [column.name for column in COLUMNS if column.name not in _SAYS_NOTHING and column.name in runs.values]
    asked = together(*(runs.categories(name).take(rows) for name in names))
    # First row of each question.
    first = np.asarray([np.flatnonzero(asked.codes == code)[0] for code in range(len(asked.values))], dtype=int)
    cells = [dict(zip(names, values, strict=True)) for values in asked.values]
    questions = _questions(runs.take(rows[first]), cells, hardware)
    # A row without a shape asks nothing that a plan could answer.
    kept = [place for place, question in enumerate(questions) if question is not None]
    if not kept:
        return None
    is_kept = np.isin(asked.codes, kept)
    return OpenRows(
        rows[is_kept],
        np.searchsorted(kept, asked.codes[is_kept]),
        tuple(question for question in questions if question is not None),
        tuple(cells[place] for place in kept),
    )


def _questions(runs: Runs, cells: Sequence[Mapping[str, Any]], hardware: Hardware | None) -> list[PlanQuestion | None]:
    """Search for a plan of each row, None for a row without a shape."""
    chips = Categorical.of_numbers(runs.numbers("n_gpus"))
    undecided = {name: Categorical.constant(value, len(runs)) for name, value in UNDECIDED.items()}
    # A placeholder plan: a replica and a sequence on each chip.
    whole = runs.with_values({**undecided, "dp": chips, "global_batch_size_seqs": chips})
    described = describe_runs(whole, hardware)
    questions: list[PlanQuestion | None] = [None] * len(runs)
    for place, row in enumerate(described.index.tolist()):
        run = jax.tree.map(lambda leaf, place=place: leaf[place], described.batch)
        levels = of_search(described.levels.row(place))
        batch = cells[row].get("global_batch_size_seqs")
        questions[row] = PlanQuestion(run.model, run.cluster, batch, levels, stated_space(cells[row], run.plan))
    return questions


class Completion(NamedTuple):
    """Table with completed rows, and the spread of step times over alternative plans.

    Attributes:
        runs: the table.
        assumed: completed values of each row as text, empty for rows without completion [row].
        fastest: time of the fastest alternative over the time of the chosen plan [1], [row].
        slowest: time of the slowest alternative over the time of the chosen plan [1], [row].
    """

    runs: Runs
    assumed: np.ndarray
    fastest: Float[np.ndarray, " row"]
    slowest: Float[np.ndarray, " row"]


def completed(runs: Runs, asked: OpenRows, fit: Fit) -> Completion:
    """Table with open rows completed by the fastest plan that fits in memory.

    Args:
        runs: the table.
        asked: open rows of the table.
        fit: calibration.

    Returns:
        The completed table; rows without a valid plan are unchanged.
    """
    columns = {name: runs.categories(name).array() for name in FILLED}
    assumed = np.full(len(runs), "", dtype=object)
    fastest, slowest = np.ones(len(runs)), np.ones(len(runs))
    answers = find_plans([question.task(fit) for question in asked.questions])
    for place, (question, cells) in enumerate(zip(asked.questions, asked.cells, strict=True)):
        # Stated cells may break a rule: the search then drops rules.
        found = answers[place] if len(answers[place].table) else _without_rules(question, cells, fit)
        if not len(found.table):
            continue
        chosen = _best_and_near(found, question, fit)
        plan = found.table.plan(chosen.best).words()
        values = {name: _cell(name, plan) for name in FILLED if not _states(cells, name)}
        # All rows with equal cells.
        rows = asked.rows[asked.question == place]
        for name, value in values.items():
            columns[name][rows] = value
        assumed[rows] = _told(values, plan)
        fastest[rows], slowest[rows] = chosen.fastest, chosen.slowest
    table = runs.with_values({name: Categorical.of(column.tolist()) for name, column in columns.items()})
    return Completion(table, assumed, fastest, slowest)


FILLED = (
    *("tp", "pp", "vpp", "cp", "ep", "dp", "zero_stage", "shard_group", "sequence_parallel", "recompute_modules"),
    *("schedule", "micro_batch_size", "global_batch_size_seqs", *END_STAGES),
)
"""Columns that a completion fills, in the order in which their values are told."""

_MODULES = {"none": "none", "selective": "core_attn", "full": "full"}
"""Modules that are recomputed, by the word of a plan: words of recomputation mean other modules in some frameworks."""


def _states(cells: Mapping[str, Any], name: str) -> bool:
    """Whether a row states a decision itself."""
    columns = ("recompute_modules", "activation_recompute") if name == "recompute_modules" else (name,)
    return any(cells.get(column) is not None for column in columns)


def _cell(name: str, plan: Mapping[str, Any]) -> Any:
    """Value of a column for a plan in words."""
    if name == "recompute_modules":
        return _MODULES[plan["recompute"]]
    if name == "global_batch_size_seqs":
        return float(plan["dp"] * plan["micro_batch_size"] * plan["n_microbatches"])
    value = plan[name]
    return value if isinstance(value, str | bool) else float(value)


def _told(values: Mapping[str, Any], plan: Mapping[str, Any]) -> str:
    """Completed values as text, without degrees of 1 and settings that only matter with several ranks."""
    alone = {
        **{name: plan[name] == 1 for name in ("vpp", "cp", "ep")},
        "shard_group": plan["shard_group"] == plan["dp"],
        "sequence_parallel": plan["tp"] == 1,
        "schedule": plan["pp"] == 1,
        **{name: plan[name] == 0 for name in END_STAGES},
    }
    words = {name: str(value).lower() if isinstance(value, bool) else value for name, value in values.items()}
    shown = {name: word if isinstance(word, str) else f"{word:g}" for name, word in words.items()}
    return ", ".join(f"{name} = {word}" for name, word in shown.items() if not alone.get(name, False))


def _without_rules(question: PlanQuestion, cells: Mapping[str, Any], fit: Fit) -> FoundPlans:
    """Plans of a row whose stated cells break a rule; the prediction notes the broken rule.

    The search drops the rules that the stated cells break, then the rule of the batch, then all rules that read a
    stated cell, then all rules but the number of chips.
    """
    # Rules broken by the stated cells are dropped.
    stated = {name: float(cells[name]) for name in COUNTS if cells.get(name) is not None}
    facts = {**model_columns(question.model), **stated, "domain_size": number(question.cluster.network.level(0)[0])}
    kept = tuple(rule for rule in RULES if rule not in decided(facts) or rule.holds_for(facts))
    anyhow = tuple(rule for rule in kept if rule is not BATCH_RULE)
    unread = tuple(rule for rule in anyhow if rule is CHIPS_RULE or stated.keys().isdisjoint(rule.fields))
    for rules in (kept, anyhow, unread, (CHIPS_RULE,)):
        space = replace(question.space, rules=rules)
        (found,) = find_plans([question._replace(space=space).task(fit)])
        if len(found.table):
            return found
    return found


def _best_and_near(found: FoundPlans, question: PlanQuestion, fit: Fit) -> Alternatives:
    """Best plan and near alternatives, by the rule of `best_and_near`."""
    # Where nothing fits, risks decide.
    if found.fits.any():
        return near(found.pace, found.fits, int(found.ranked(1)[0]))
    capacity = number(question.cluster.chip.hbm_bytes)
    return best_and_near(found.pace, probability_of_oom(found.scores.memory, capacity, question.usable(fit)))
