"""The best parallel plan: every valid one is scored, those that fit are ranked."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxscale._arrays import number
from jaxscale.calibration.intervals import interval_ends
from jaxscale.calibration.memory_limit import MemoryLimit, memory_limit, probability_of_oom
from jaxscale.calibration.record import Fit
from jaxscale.calibration.store import fit_of
from jaxscale.errors import InputError
from jaxscale.hardware.cluster import Cluster
from jaxscale.plans.choice import PlanChoice, ScoredPlan
from jaxscale.plans.class_plans import ClassPlanChoice, best_class_plan
from jaxscale.plans.enumerate import PlanSpace, count_degrees, enumerate_plans, within_domains
from jaxscale.plans.found_plans import FoundPlans
from jaxscale.plans.plan_problem import PlanTask
from jaxscale.plans.reasons import alternatives, binding, nothing_fits, nothing_valid
from jaxscale.plans.relaxed_search import search_plans
from jaxscale.plans.score import detail_plans, score_plans
from jaxscale.tracing.traced_workload import Workload
from jaxscale.workload import Transformer

if TYPE_CHECKING:
    # Static checkers do not see which choice belongs to which model; the run-time check below does.
    Choice = Any
else:
    Choice = PlanChoice | ClassPlanChoice
    """Ranked plans of a transformer, or of a traced workload."""

ROOMY_BATCH = 2.0**40
"""Sequences per chip of a batch that every degree divides, to find the degrees that the wanted batch forbids [1]."""

MOST_DEGREES = 50_000
"""Combinations of degrees up to which every plan is scored, some 50 for each; beyond, the search is by gradient [1]."""


def best_plan(
    model: Transformer | Workload,
    cluster: Cluster,
    global_batch_size_seqs: float | int,
    *,
    fit: Fit | str | Path = "default",
    levels: Mapping[str, str | None] | None = None,
    space: PlanSpace | None = None,
    top: int = 10,
    oom_probability: float = 0.1,
    exhaustive: bool | None = None,
) -> Choice:
    """The fastest plan that fits: out of every valid plan, or by gradient and local search where plans are too many.

    Args:
        model: the transformer, or a traced workload.
        cluster: chips and network; the plan uses all chips.
        global_batch_size_seqs: B, sequences per step, or what the data class of a traced workload counts [sequence].
        fit: a fit, or the name or file of a fit.
        levels: framework, gpu and so on of the planned run, whose fitted effects apply.
        space: choices that are open; everything valid where None.
        top: how many plans to rank [1].
        oom_probability: accepted probability of running out of memory [1].
        exhaustive: whether to score every valid plan; decided by the number of plans where None.

    Returns:
        The ranked plans, with reasons.

    Raises:
        InputError: an argument out of range, no valid plan, or none that fits.
    """
    _check(global_batch_size_seqs, top, oom_probability)
    record, levels = fit_of(fit), levels or {}
    n_chips = number(cluster.n_chips)
    usable, coefficients = record.memory_limit(levels, n_chips), record.coefficients(levels, n_chips)
    limit = memory_limit(number(cluster.chip.hbm_bytes), usable, oom_probability)
    if isinstance(model, Workload):
        return best_class_plan(model, cluster, global_batch_size_seqs, coefficients, float(limit), top)
    task = PlanTask(model, cluster, global_batch_size_seqs, coefficients, limit)
    space = within_domains(space, cluster)
    if exhaustive is None:
        exhaustive = count_degrees(model, task.n_chips, global_batch_size_seqs, space) <= MOST_DEGREES
    found = every_plan(task, space) if exhaustive else search_plans([task], space)[0]
    _refuse_none(task, found, space)
    ranked = _scored(task, found, found.ranked()[:top], usable)
    interval = interval_ends(ranked[0].step_time, record.interval(levels, task.n_chips).time)
    return _choice(found, ranked, interval)


def every_plan(task: PlanTask, space: PlanSpace) -> FoundPlans:
    """Every valid plan of a space, scored."""
    table = enumerate_plans(task.model, task.n_chips, task.batch, space)
    scores = score_plans(task.model, table, task.cluster, task.coefficients)
    return FoundPlans(table, scores, task.memory_limit, len(table))


def _choice(found: FoundPlans, ranked: tuple[ScoredPlan, ...], interval: tuple[float, float]) -> PlanChoice:
    """The ranked plans with reasons."""
    row, best = int(found.ranked()[0]), ranked[0]
    return PlanChoice(
        best=best,
        top=ranked,
        step_time_interval=interval,
        searched=found.searched,
        infeasible=int(np.sum(~found.fits)),
        exhaustive=found.relaxed is None,
        memory_limit=found.memory_limit,
        alternatives=alternatives(found, row),
        binds=binding(found, row, best.terms, best.memory_terms),
        relaxed_step_time=found.relaxed.step_time if found.relaxed else None,
        kkt_residual=found.relaxed.residual if found.relaxed else None,
    )


def _refuse_none(task: PlanTask, found: FoundPlans, space: PlanSpace) -> None:
    """Say which batches or chips would do where no plan is valid or fits."""
    if not len(found.table):
        unbatched = enumerate_plans(task.model, task.n_chips, ROOMY_BATCH * task.n_chips, space)
        raise nothing_valid(task.model, task.n_chips, task.batch, unbatched)
    if not found.fits.any():
        (leanest,) = detail_plans(task.model, found.table, task.cluster, task.coefficients, np.asarray([found.best]))
        raise nothing_fits(found, leanest.memory_terms, task.cluster)


def _check(batch: float | int, top: int, oom_probability: float) -> None:
    if not (batch >= 1 and batch == round(batch)):
        raise InputError(f"global_batch_size_seqs = {batch:g} is out of range; expected a whole number of at least 1")
    if top < 1:
        raise InputError(f"top = {top} is out of range; expected at least 1")
    if not 0.0 < oom_probability < 1.0:
        raise InputError(f"oom_probability = {oom_probability:g} is out of range; expected a number between 0 and 1")


def _scored(task: PlanTask, found: FoundPlans, rows: np.ndarray, usable: MemoryLimit) -> tuple[ScoredPlan, ...]:
    """Plans with every term and the probability of running out of memory."""
    details = detail_plans(task.model, found.table, task.cluster, task.coefficients, rows)
    capacity = number(task.cluster.chip.hbm_bytes)
    ranked = []
    for row, detail in zip(rows.tolist(), details, strict=True):
        seconds, peak = float(found.scores.step_time[row]), float(found.scores.memory[row])
        oom = float(probability_of_oom(peak, capacity, usable))
        plan = found.table.plan(row)
        ranked.append(ScoredPlan(plan, seconds, detail.mfu, peak, oom, detail.terms, detail.memory_terms))
    return tuple(ranked)
