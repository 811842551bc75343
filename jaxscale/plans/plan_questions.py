"""Plan questions (model, cluster, batch, open choices of a framework), and the search for the plans."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxscale.base.arrays import number
from jaxscale.base.errors import InputError
from jaxscale.calibration.memory_limit import ACCEPTED_RISK, MemoryLimit, memory_limit
from jaxscale.calibration.record import Fit
from jaxscale.hardware.cluster import Cluster
from jaxscale.hardware.formats import PRECISIONS
from jaxscale.models.transformer import Transformer
from jaxscale.plans.enumerate import PlanSpace, count_degrees, enumerate_plans, within_domains
from jaxscale.plans.plan import END_STAGES, Plan
from jaxscale.plans.rules import RULES, Rule, divides
from jaxscale.plans.score import FoundPlans, Judged, PlanTask, score_tables
from jaxscale.runs.defaults import default_for, framework_defaults
from jaxscale.runs.run_levels import model_levels
from jaxscale.runs.software import software_of
from jaxscale.tables.cells import respelt, translate

COUNTS = (
    *("tp", "pp", "vpp", "cp", "ep", "dp", "micro_batch_size", "n_microbatches", "zero_stage", "shard_group"),
    *END_STAGES,
)
"""Columns of a row that fix a count of the plan."""


_RULES = (
    Rule(
        "whole key/value heads",
        lambda tp, n_kv_heads: divides(tp, n_kv_heads),
        lambda tp, n_kv_heads: f"tp = {tp:g} must divide n_kv_heads = {n_kv_heads:g}",
    ),
    Rule(
        "untied pipelines",
        lambda pp, tied_embeddings: np.equal(pp, 1) | np.equal(tied_embeddings, 0),
        lambda pp: f"pp = {pp:g} needs embeddings that are not tied",
    ),
    Rule(
        "equal stages",
        lambda pp, vpp, n_layers, first_stage_layers, last_stage_layers: (
            divides(pp * vpp, n_layers) & np.equal(first_stage_layers + last_stage_layers, 0)
        ),
        lambda pp, vpp, n_layers: f"pp * vpp = {pp * vpp:g} must divide n_layers = {n_layers:g}",
    ),
    Rule(
        "even ends",
        lambda first_stage_layers, last_stage_layers: np.equal(first_stage_layers + last_stage_layers, 0),
        lambda: "layers of the first and the last stage cannot be stated",
    ),
    Rule(
        "microbatches of stages",
        lambda pp, n_microbatches: divides(pp, n_microbatches),
        lambda pp, n_microbatches: f"n_microbatches = {n_microbatches:g} must be a multiple of pp = {pp:g}",
    ),
    Rule(
        "whole gradients of stages",
        lambda zero_stage, pp: np.less(zero_stage, 2) | np.equal(pp, 1),
        lambda zero_stage: f"ZeRO stage {zero_stage:g} needs pp = 1",
    ),
    Rule(
        "experts on replicas",
        lambda ep, dp: divides(ep, dp),
        lambda ep, dp: f"ep = {ep:g} must divide dp = {dp:g}",
    ),
)

FRAMEWORK_RULES: Mapping[str, Rule] = {rule.name: rule for rule in _RULES}
"""Framework rules by name; each rule needs the fields that it names."""


def framework_space(framework: str | None) -> PlanSpace:
    """Search space of a framework's plans in bf16: software choices are fixed, all decisions are free.

    Args:
        framework: a framework of `data/frameworks.toml`, such as `nemo`; every unknown name counts as an unnamed
            framework.
    """
    cells = {"framework": framework and respelt("framework", framework), "precision": "bf16"}
    return stated_space(cells, software_of(cells).plan)


def stated_space(cells: Mapping[str, Any], software: Plan) -> PlanSpace:
    """Search space of the plans that agree with the cells of a row of a runs table.

    Args:
        cells: values by column, None or absent for an open decision.
        software: plan with the software choices of the row.

    Returns:
        The space: stated decisions only, and for open decisions the choices that the framework of the row can run.
    """
    framework = cells.get("framework")
    # A stated count is the only admitted value.
    stated = {name: (round(cells[name]),) for name in COUNTS if cells.get(name) is not None}
    recomputes = any(cells.get(name) is not None for name in ("activation_recompute", "recompute_modules"))
    stated_flag = cells.get("sequence_parallel")
    degrees = {name: tuple(values) for name, values in default_for("degrees", framework, None).items()}
    rules = tuple(FRAMEWORK_RULES[name] for name in default_for("plan_rules", framework, None))
    return PlanSpace(
        # Stated values replace the framework's.
        **{"zero_stage": tuple(default_for("zero_stages", framework, None)), **degrees, **stated},  # pyright: ignore
        rules=(*RULES, *rules),
        sequence_parallel=(False, True) if stated_flag is None else (bool(stated_flag),),
        schedule=_schedules(cells.get("schedule"), framework),
        software=software,
        # A stated dispatcher holds for every schedule.
        dispatchers={} if cells.get("moe_dispatcher") else _dispatchers(framework),
        # Stated recomputation is in the software plan.
        **({"recompute": None} if recomputes else {}),
    )


def _schedules(stated: str | None, framework: str | None) -> tuple[str, ...]:
    """Schedules of a pipeline: the stated schedule, or the schedules of a framework."""
    if stated is None:
        return tuple(default_for("schedules", framework, None))
    word = translate("schedule", stated) or stated
    # Interleaving is 1F1B with several virtual stages, a separate column of the row.
    return ("1f1b", "interleaved") if word == "1f1b" else (word,)


def _dispatchers(framework: str | None) -> dict[str, str]:
    """Token dispatcher set by a schedule, by schedule, from the facts about a framework."""
    tables = framework_defaults()
    facts = [fact for name in ("default", framework or "") for fact in tables.get(name, {}).get("facts", [])]
    # Facts conditional on the schedule alone.
    of_schedule = [fact for fact in facts if set(fact["when"]) == {"schedule"} and "moe_dispatcher" in fact["set"]]
    return {fact["when"]["schedule"]: fact["set"]["moe_dispatcher"] for fact in of_schedule}


MOST_DEGREES = 50_000
"""Largest number of combinations of degrees, with some 50 plans each, for scoring every plan; for more combinations the
search is by gradient [1]."""

SCORED_TOGETHER = 1_000_000
"""Plans of several questions that are scored together, a bound on memory [1]."""


class PlanQuestion(NamedTuple):
    """Model, cluster, batch and open choices for which the best plan is sought.

    Attributes:
        model: the transformer.
        cluster: chips and network, all used by a plan.
        batch: sequences of a step; None where the batch follows from each plan [sequence].
        levels: levels of the planned run by kind that are independent of the plan; their fitted effects apply.
        space: open choices.
    """

    model: Transformer
    cluster: Cluster
    batch: float | int | None
    levels: Mapping[str, str | None]
    space: PlanSpace

    @property
    def n_chips(self) -> float:
        """Chips of the cluster [1]."""
        return number(self.cluster.n_chips)

    def usable(self, fit: Fit) -> MemoryLimit:
        """Usable memory of a chip in the planned run, by a fit."""
        return fit.memory_limit(self.levels, self.n_chips)

    def task(self, fit: Fit, oom_probability: float = ACCEPTED_RISK) -> PlanTask:
        """Search task of the question: coefficients of a fit, and limits of memory and domains.

        Args:
            fit: calibration.
            oom_probability: accepted probability of running out of memory [1].
        """
        limit = memory_limit(number(self.cluster.chip.hbm_bytes), self.usable(fit), oom_probability)
        coefficients = fit.coefficients(self.levels, self.n_chips)
        space = within_domains(self.space, self.cluster)
        return PlanTask(self.model, self.cluster, self.batch, coefficients, limit, space)


SOFTWARE_KINDS = ("framework", "precision", "release", "attention_kernel")
"""Kinds of level that are columns of a runs table and set the software switches of a run."""


def plan_question(
    model: Transformer,
    cluster: Cluster,
    batch: float | int | None,
    cells: Mapping[str, Any],
    levels: Mapping[str, str | None] | None = None,
) -> PlanQuestion:
    """`PlanQuestion` of one run, from a row of a runs table.

    Args:
        model: the transformer.
        cluster: chips and network.
        batch: sequences of a step; None where the batch is open [sequence].
        cells: values by column: `gpu`, `framework`, `precision`, stated decisions, software choices.
        levels: further levels by kind, which override the levels from the cells.

    Raises:
        InputError: an unknown number format.
    """
    precision = cells.get("precision")
    if precision is not None and translate("precisions", precision) is None:
        raise InputError(f"precision = {precision!r}; expected one of {', '.join(PRECISIONS)}")
    software = software_of(cells)
    # Stated levels override levels of model and software.
    every = {**software.levels, **model_levels(model), "gpu": cells.get("gpu"), **(levels or {})}
    return PlanQuestion(model, cluster, batch, every, stated_space(cells, software.plan))


def find_plans(tasks: Sequence[PlanTask], exhaustive: bool | None = None) -> list[FoundPlans]:
    """Scored plans of several search tasks: all valid plans, or the plans near the optimum in large spaces.

    Args:
        tasks: tasks of the searches.
        exhaustive: whether to score every valid plan; decided by the number of plans where None.

    Returns:
        The plans of each task, scored.
    """
    if exhaustive is None:
        sizes = [count_degrees(task.model, task.n_chips, task.batch, task.space) for task in tasks]
        is_small = [size <= MOST_DEGREES for size in sizes]
    else:
        is_small = [exhaustive] * len(tasks)
    small = [task for task, small in zip(tasks, is_small, strict=True) if small]
    large = [task for task, small in zip(tasks, is_small, strict=True) if not small]
    scored, searched = iter(every_plan(small)), iter(_near_optima(large))
    # Back in the order of the tasks.
    return [next(scored) if is_one else next(searched) for is_one in is_small]


def _near_optima(tasks: Sequence[PlanTask]) -> list[FoundPlans]:
    """Plans near the optimum of each task."""
    if not tasks:
        return []
    # Large spaces alone need the search by gradient.
    from jaxscale.plans.relaxed_search import search_plans

    return search_plans(tasks)


def every_plan(tasks: Sequence[PlanTask]) -> list[FoundPlans]:
    """Scores of every valid plan of each task."""
    found: list[FoundPlans] = []
    waiting: list[tuple[PlanTask, Judged]] = []
    for task in tasks:
        table = enumerate_plans(task.model, task.n_chips, task.batch, task.space)
        waiting.append((task, Judged(task.model, table, task.cluster, task.coefficients)))
        # A bound on memory: tables are scored before more are made.
        if sum(len(judged.table) for _, judged in waiting) > SCORED_TOGETHER:
            found += _scored(waiting)
            waiting = []
    return found + (_scored(waiting) if waiting else [])


def _scored(waiting: list[tuple[PlanTask, Judged]]) -> list[FoundPlans]:
    """Score plans of several tasks together."""
    scores = score_tables([judged for _, judged in waiting])
    return [
        FoundPlans(judged.table, score, task.memory_limit, len(judged.table))
        for (task, judged), score in zip(waiting, scores, strict=True)
    ]
