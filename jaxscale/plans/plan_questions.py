"""Questions for a plan (model, cluster, batch, open choices), and the search for all plans that answer a question."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jaxscale.base.arrays import number
from jaxscale.base.errors import InputError
from jaxscale.calibration.memory_limit import ACCEPTED_RISK, MemoryLimit, memory_limit
from jaxscale.calibration.record import Fit
from jaxscale.hardware.cluster import Cluster
from jaxscale.hardware.formats import PRECISIONS
from jaxscale.models.transformer import Transformer
from jaxscale.plans.enumerate import PlanSpace, count_degrees, enumerate_plans, within_domains
from jaxscale.plans.found_plans import FoundPlans, PlanTask
from jaxscale.plans.framework_space import stated_space
from jaxscale.plans.score import Judged, score_tables
from jaxscale.runs.run_levels import model_levels
from jaxscale.runs.software import software_of
from jaxscale.tables.words import translate

MOST_DEGREES = 50_000
"""Largest number of combinations of degrees, with some 50 plans each, for scoring every plan; for more combinations the
search is by gradient [1]."""

SCORED_TOGETHER = 1_000_000
"""Plans of several questions that are scored together, a bound on memory [1]."""


class PlanQuestion(NamedTuple):
    """Question for a plan: model, cluster, batch and open choices.

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
        """Usable memory of the planned run, by a fit."""
        return fit.memory_limit(self.levels, self.n_chips)

    def task(self, fit: Fit, oom_probability: float = ACCEPTED_RISK) -> PlanTask:
        """Task of the search that answers the question.

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
    """Question for the plan of one run, from a row of a runs table.

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
    """Find the plans that answer each of several tasks: all valid plans, or plans near the optimum in large spaces.

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
    """Score every valid plan of each task."""
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
