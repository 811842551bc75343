"""The best parallel plan: every valid one is scored, those that fit are ranked."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from jaxscale._arrays import number
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.calibration.intervals import interval_ends
from jaxscale.calibration.memory_limit import MemoryLimit, memory_limit, probability_of_oom
from jaxscale.calibration.record import Fit
from jaxscale.calibration.store import fit_of
from jaxscale.errors import InputError
from jaxscale.hardware.cluster import Cluster
from jaxscale.plans.choice import PlanChoice, ScoredPlan
from jaxscale.plans.enumerate import PlanSpace, PlanTable, count_degrees, enumerate_plans, within_domains
from jaxscale.plans.reasons import alternatives, binding, nothing_fits, nothing_valid
from jaxscale.plans.relaxed_search import PlanProblem, search_plans
from jaxscale.plans.score import Scores, detail_plans, score_plans
from jaxscale.workload import Transformer

ROOMY_BATCH = 2.0**40
"""Sequences per chip of a batch that every degree divides: finds the degrees that the wanted batch forbids [1]."""

MOST_DEGREES = 50_000
"""Combinations of degrees up to which every plan is scored, some 50 for each; beyond, the search is by gradient [1]."""


def best_plan(
    model: Transformer,
    cluster: Cluster,
    global_batch_size_seqs: float | int,
    *,
    fit: Fit | str | Path = "default",
    levels: Mapping[str, str | None] | None = None,
    space: PlanSpace | None = None,
    top: int = 10,
    oom_probability: float = 0.1,
    exhaustive: bool | None = None,
) -> PlanChoice:
    """The fastest plan that fits: out of every valid one, or where these are too many, by gradient and local search.

    Args:
        model: the transformer.
        cluster: chips and network; the plan uses all chips.
        global_batch_size_seqs: B, sequences per step [sequence].
        fit: a fit, or its name or file.
        levels: framework, gpu and so on of the planned run, whose fitted effects apply.
        space: what may be chosen; everything valid where None.
        top: how many plans to rank [1].
        oom_probability: accepted probability of running out of memory [1].
        exhaustive: whether to score every valid plan; by their number where None.

    Returns:
        The ranked plans, with reasons.

    Raises:
        InputError: an argument out of range, no valid plan, or none that fits.
    """
    _check(global_batch_size_seqs, top, oom_probability)
    record, levels = fit_of(fit), levels or {}
    usable, fitted = record.memory_limit(levels), record.coefficients(levels)
    n_chips = number(cluster.n_chips)
    space = within_domains(space, cluster)
    capacity = number(cluster.chip.hbm_bytes)
    limit = memory_limit(capacity, usable, oom_probability)
    if exhaustive is None:
        exhaustive = count_degrees(model, n_chips, global_batch_size_seqs, space) <= MOST_DEGREES
    relaxed = None
    if exhaustive:
        table = enumerate_plans(model, n_chips, global_batch_size_seqs, space)
        scores, searched = score_plans(model, table, cluster, fitted), len(table)
    else:
        problem = PlanProblem(model, cluster, global_batch_size_seqs, fitted, limit)
        ((table, scores, _, _, searched, relaxed),) = search_plans([problem], space)
    if not len(table):
        unbatched = enumerate_plans(model, n_chips, ROOMY_BATCH * n_chips, space)
        raise nothing_valid(model, n_chips, global_batch_size_seqs, unbatched)
    fits = scores.memory <= limit
    if not fits.any():
        leanest = int(np.argmin(scores.memory))
        (detail,) = detail_plans(model, table, cluster, fitted, np.asarray([leanest]))
        raise nothing_fits(table, scores, leanest, detail.memory_terms, cluster, limit)
    order = rank(scores, fits)[:top]
    ranked = _scored(model, table, scores, cluster, fitted, order, usable)
    best = int(order[0])
    return PlanChoice(
        best=ranked[0],
        top=ranked,
        step_time_interval=interval_ends(ranked[0].step_time, record.interval(levels, n_chips).time),
        searched=searched,
        infeasible=int(np.sum(~fits)),
        exhaustive=exhaustive,
        memory_limit=limit,
        alternatives=alternatives(table, scores, best, limit),
        binds=binding(table, scores, best, limit, ranked[0].terms, ranked[0].memory_terms),
        relaxed_step_time=relaxed.step_time if relaxed else None,
        kkt_residual=relaxed.residual if relaxed else None,
    )


def rank(scores: Scores, fits: np.ndarray) -> np.ndarray:
    """Rows of the plans that fit, fastest first; of equally fast ones the leaner first."""
    rows = np.flatnonzero(fits)
    # Six digits of the log: plans that differ by rounding alone count as equally fast.
    time = scores.step_time[rows].astype(float)
    return rows[np.lexsort((scores.memory[rows], np.round(np.log(time), 6)))]


def _check(batch: float | int, top: int, oom_probability: float) -> None:
    if not (batch >= 1 and batch == round(batch)):
        raise InputError(f"global_batch_size_seqs = {batch:g} is out of range; expected a whole number of at least 1")
    if top < 1:
        raise InputError(f"top = {top} is out of range; expected at least 1")
    if not 0.0 < oom_probability < 1.0:
        raise InputError(f"oom_probability = {oom_probability:g} is out of range; expected a number between 0 and 1")


def _scored(
    model: Transformer,
    table: PlanTable,
    scores: Scores,
    cluster: Cluster,
    coefficients: Coefficients,
    rows: np.ndarray,
    limit: MemoryLimit,
) -> tuple[ScoredPlan, ...]:
    details = detail_plans(model, table, cluster, coefficients, rows)
    capacity = number(cluster.chip.hbm_bytes)
    ranked = []
    for row, detail in zip(rows, details, strict=True):
        seconds, used = float(scores.step_time[row]), float(scores.memory[row])
        oom = float(probability_of_oom(used, capacity, limit))
        ranked.append(
            ScoredPlan(table.plan(int(row)), seconds, detail.mfu, used, oom, detail.terms, detail.memory_terms)
        )
    return tuple(ranked)
