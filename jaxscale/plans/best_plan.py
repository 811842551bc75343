"""Choice of the best parallel plan: score every valid plan, rank the plans that fit."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxscale.base.arrays import number
from jaxscale.base.errors import InputError
from jaxscale.calibration.intervals import interval_ends
from jaxscale.calibration.levels import Levels
from jaxscale.calibration.memory_limit import ACCEPTED_RISK, MemoryLimit, memory_limit, probability_of_oom
from jaxscale.calibration.record import AnyFit, Fit, fit_of
from jaxscale.calibration.unstated import usable_if_stated
from jaxscale.hardware.catalogue import Hardware, load_hardware
from jaxscale.hardware.catalogue import cluster as cluster_of
from jaxscale.hardware.cluster import Cluster
from jaxscale.models import model as model_of
from jaxscale.models.transformer import Transformer
from jaxscale.models.work import AbstractWork
from jaxscale.plans.choice import (
    PlanChoice,
    ScoredPlan,
    alternatives,
    binding,
    hottest_experts,
    nothing_fits,
    nothing_valid,
)
from jaxscale.plans.enumerate import PlanSpace, PlanTable, enumerate_plans
from jaxscale.plans.plan import DEGREES, Plan
from jaxscale.plans.plan_questions import SOFTWARE_KINDS, PlanQuestion, find_plans, plan_question
from jaxscale.plans.score import FoundPlans, PlanTask, detailed
from jaxscale.tables.cells import respelt

if TYPE_CHECKING:
    from jaxscale.plans.node_links import NodeLinks, NodePlacement

ROOMY_BATCH = 2.0**40
"""Sequences per chip of a batch that every degree divides, to find the degrees that the requested batch forbids [1]."""


def best_plan(
    model: Transformer | AbstractWork | str | Path,
    cluster: Cluster | str,
    global_batch: float | int,
    *,
    n_chips: float | int | None = None,
    fit: AnyFit = "default",
    levels: Mapping[str, str | None] | None = None,
    space: PlanSpace | None = None,
    top: int = 10,
    oom_probability: float = ACCEPTED_RISK,
    exhaustive: bool | None = None,
    hardware: Hardware | None = None,
    links: str | Path | None = None,
) -> Any:
    """Fastest plan that fits in memory: among all valid plans, or by gradient and local search in large spaces.

    `js.best_plan("llama3-8b", "h100-80gb", 1024, n_chips=512)`

    Args:
        model: the transformer, or name or file of a transformer, or a traced workload.
        cluster: chips and network, all used by the plan; or the name of a chip, beside `n_chips`.
        global_batch: B, sequences per step, or units of the data class of a traced workload [sequence].
        n_chips: number of chips, with a cluster given by the name of a chip [1].
        fit: a fit, or the name or file of a fit.
        levels: framework, precision, gpu and so on of the planned run, whose fitted effects apply; a missing gpu is
            looked up in the catalogue by the numbers of the cluster.
        space: open choices; where None, every valid plan that the framework can run.
        top: number of plans to rank [1].
        oom_probability: accepted probability of running out of memory [1].
        exhaustive: whether to score every valid plan; decided by the number of plans where None.
        hardware: catalogue of chips; the shipped catalogue where None.
        links: CSV table of measured links between nodes, see `node_links.load_links`; equal links where None.

    Returns:
        The ranked plans, with reasons: a `PlanChoice`; for a traced workload a `ClassPlanChoice`.

    Raises:
        InputError: an unknown name, an argument out of range, no valid plan, or none that fits.
    """
    record = fit_of(fit, hardware)
    machine, gpu = cluster_and_chip(cluster, n_chips, hardware or load_hardware())
    # Stated levels override the level of the chip.
    levels = {"gpu": gpu, **(levels or {})}
    if isinstance(model, AbstractWork):
        _check(global_batch, oom_probability)
        return _of_own_plans(model, machine, global_batch, record, levels, oom_probability, top)
    shape = model if isinstance(model, Transformer) else model_of(model)
    question = question_of_levels(shape, machine, global_batch, levels, space)
    measured = None
    if links is not None:
        # Nodes with unequal links are rare.
        from jaxscale.plans.node_links import load_links

        measured = load_links(Path(links))
    return answered(question, record, top=top, oom_probability=oom_probability, exhaustive=exhaustive, links=measured)


def question_of_levels(
    model: Transformer,
    cluster: Cluster,
    batch: float | int | None,
    levels: Mapping[str, str | None],
    space: PlanSpace | None = None,
) -> PlanQuestion:
    """`PlanQuestion` of a run with known levels: framework, precision, gpu and so on.

    Args:
        model: the transformer.
        cluster: chips and network.
        batch: sequences of a step; None where the batch is open [sequence].
        levels: levels of the run by kind; the switches of the software follow from the levels.
        space: open choices; where None, every valid plan that the framework can run.
    """
    if framework := levels.get("framework"):
        levels = {**levels, "framework": respelt("framework", framework)}
    cells = {kind: levels[kind] for kind in (*SOFTWARE_KINDS, "gpu") if levels.get(kind)}
    question = plan_question(model, cluster, batch, cells, levels)
    return question if space is None else question._replace(space=space)


def cluster_and_chip(
    cluster: Cluster | str, n_chips: float | int | None, hardware: Hardware
) -> tuple[Cluster, str | None]:
    """Cluster and catalogue id of the chip; the id is None for a chip outside the catalogue.

    Raises:
        InputError: the name of a chip without a count, or a count beside a cluster with a count.
    """
    if isinstance(cluster, Cluster):
        if n_chips is not None:
            raise InputError(
                f"n_chips = {n_chips:g} beside a cluster of {number(cluster.n_chips):g}; expected one of them"
            )
        return cluster, hardware.chip_id(cluster)
    if n_chips is None:
        raise InputError(f"{cluster!r} is the name of a chip; expected n_chips beside it")
    return cluster_of(cluster, n_chips, hardware=hardware), hardware[cluster].id


def _of_own_plans(
    work: AbstractWork,
    cluster: Cluster,
    batch: float | int,
    record: Fit,
    levels: Mapping[str, str | None],
    oom_probability: float,
    top: int,
) -> Any:
    """Ranked plans of a traced workload, whose class defines the plans."""
    n_chips = number(cluster.n_chips)
    limit = memory_limit(number(cluster.chip.hbm_bytes), record.memory_limit(levels, n_chips), oom_probability)
    return work.ranked_plans(cluster, batch, record.coefficients(levels, n_chips), float(limit), top)


def answered(
    question: PlanQuestion,
    fit: Fit,
    *,
    top: int = 10,
    oom_probability: float = ACCEPTED_RISK,
    exhaustive: bool | None = None,
    links: "NodeLinks | None" = None,
) -> PlanChoice:
    """Ranked plans for a plan question, with reasons.

    Args:
        question: model, cluster, batch and open choices.
        fit: calibration.
        top: number of plans to rank [1].
        oom_probability: accepted probability of running out of memory [1].
        exhaustive: whether to score every valid plan; decided by the number of plans where None.
        links: measured links between nodes.

    Raises:
        InputError: no valid plan, none that fits, or links of a different number of nodes.
    """
    question = question if links is None else links.linked(question)
    found = searched(question, fit, oom_probability, exhaustive)
    return choice_of(found, question, fit, top, oom_probability, links)


def searched(
    question: PlanQuestion, fit: Fit, oom_probability: float = ACCEPTED_RISK, exhaustive: bool | None = None
) -> FoundPlans:
    """Scored plans for a plan question, at least one of which fits in memory; arguments as in `answered`.

    Raises:
        InputError: no valid plan, or none that fits.
    """
    _check(1 if question.batch is None else question.batch, oom_probability)
    task = question.task(fit, oom_probability)
    (found,) = find_plans([task], exhaustive)
    refuse_none(task, found)
    return found


def choice_of(
    found: FoundPlans,
    question: PlanQuestion,
    fit: Fit,
    top: int,
    oom_probability: float,
    links: "NodeLinks | None" = None,
) -> PlanChoice:
    """Ranked plans with reasons, from the scored plans of a finished search; arguments as in `answered`."""
    if top < 1:
        raise InputError(f"top = {top} is out of range; expected at least 1")
    placements: dict[int, NodePlacement] = {}
    if links is not None:
        found, placements = links.placed(found, question, fit, top)
    rows = found.ranked(top).tolist()
    plans = [found.table.plan(row) for row in rows]
    ranked = scored_plans(question.task(fit, oom_probability), question.usable(fit), plans)
    if links is not None:
        ranked = tuple(placements[row].placed(scored) for row, scored in zip(rows, ranked, strict=True))
    interval = interval_ends(ranked[0].step_time, fit.interval(question.levels, question.n_chips).time)
    capacity = number(question.cluster.chip.hbm_bytes)
    # The unstated fact that would narrow the interval of memory most.
    blank = usable_if_stated(fit, Levels.of_rows([question.levels]), question.n_chips, capacity, oom_probability)
    choice = _choice(found, ranked, interval, (*blank, *hottest_experts(question.model, plans[0])))
    if links is None:
        return choice
    return dataclasses.replace(choice, placement=placements[rows[0]].to_json(links.names))


def _choice(
    found: FoundPlans, ranked: tuple[ScoredPlan, ...], interval: tuple[float, float], further: tuple[str, ...]
) -> PlanChoice:
    """Ranked plans with reasons, and `further` sentences on facts to state and on experts."""
    row, best = int(found.ranked(1)[0]), ranked[0]
    return PlanChoice(
        best=best,
        top=ranked,
        step_time_interval=interval,
        searched=found.searched,
        infeasible=int(np.sum(~found.fits)),
        exhaustive=found.relaxed is None,
        memory_limit=found.memory_limit,
        alternatives=alternatives(found, row),
        binds=(*binding(found, row, best.terms, best.memory_terms), *further),
        relaxed_step_time=found.relaxed.step_time if found.relaxed else None,
        kkt_residual=found.relaxed.residual if found.relaxed else None,
    )


def plans_of_any_batch(task: PlanTask) -> PlanTable:
    """Plans that are valid for a batch that is a multiple of all degrees."""
    return enumerate_plans(task.model, task.n_chips, ROOMY_BATCH * task.n_chips, task.space)


def stated_degrees(task: PlanTask) -> dict[str, int]:
    """Degrees that are not searched, by name [1]."""
    choices = {name: getattr(task.space, name) for name in DEGREES}
    return {name: values[0] for name, values in choices.items() if values is not None and len(values) == 1}


def refuse_none(task: PlanTask, found: FoundPlans) -> None:
    """Refuse a search without a valid plan or without a plan that fits.

    Raises:
        InputError: no valid plan, with valid batches or chips; or no plan that fits, with a remedy.
    """
    if not len(found.table):
        unbatched = plans_of_any_batch(task)
        raise nothing_valid(task.model, task.n_chips, task.stated_batch, unbatched, stated_degrees(task))
    if not found.fits.any():
        (leanest,) = detailed(task.model, [found.table.plan(found.best)], task.cluster, task.coefficients)
        raise nothing_fits(found, leanest.memory_terms, task.cluster)


def _check(batch: float | int, oom_probability: float) -> None:
    if not (batch >= 1 and batch == round(batch)):
        raise InputError(f"global_batch = {batch:g} is out of range; expected a whole number of at least 1")
    if not 0.0 < oom_probability < 1.0:
        raise InputError(f"oom_probability = {oom_probability:g} is out of range; expected a number between 0 and 1")


def scored_plans(task: PlanTask, usable: MemoryLimit, plans: Sequence[Plan]) -> tuple[ScoredPlan, ...]:
    """Score a few plans: every cost term and the probability of running out of memory.

    Args:
        task: model, cluster and coefficients.
        usable: usable memory of a chip.
        plans: the plans.
    """
    details = detailed(task.model, plans, task.cluster, task.coefficients)
    risks = probability_of_oom(np.asarray([one.memory for one in details]), number(task.cluster.chip.hbm_bytes), usable)
    scored = []
    for plan, one, risk in zip(plans, details, np.asarray(risks).tolist(), strict=True):
        # A printed peak counts allocations of the program, not driver and contexts.
        printed = one.memory - one.memory_terms["framework"]
        scored.append(ScoredPlan(plan, one.step_time, one.mfu, printed, risk, one.terms, one.memory_terms))
    return tuple(scored)
