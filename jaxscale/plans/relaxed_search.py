"""Search for a plan in large spaces: gradient search over continuous plans, then local search among whole numbers.

All problems and all starts run as one `vmap`. The relaxed optimum is the centre of a window of valid plans: the nearest
values of every degree crossed with all choices of sharding, schedule and recomputation. The window moves to the best
plan inside until the best plan no longer improves.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence

import jax
import numpy as np
from jaxtyping import Array, ArrayLike

from jaxscale.base.arrays import number
from jaxscale.base.jit import filter_jit
from jaxscale.optimise.batches import LeafLayout, Problems, in_blocks
from jaxscale.optimise.interior_point import CONVERGED, best_candidate, certify, polish, promising
from jaxscale.optimise.lagrangian import rough_search, start_points
from jaxscale.optimise.problems import Goals, Optimum
from jaxscale.plans.enumerate import PlanTable, admissible, enumerate_plans
from jaxscale.plans.found_plans import FoundPlans, PlanTask, RelaxedPlan
from jaxscale.plans.plan import Plan
from jaxscale.plans.plan_problem import PLAN_COORDINATES, plan_goals, relaxed_problems
from jaxscale.plans.score import Scores, score_plans

WINDOW = {"tp": 5, "pp": 5, "cp": 5, "vpp": 9, "ep": 4, "micro_batch_size": 4}
"""Values of every degree in a window. Interleavings divide the layers of a stage, so that neighbouring values may be
far apart [1]."""

Centre = tuple[float, ...]
"""Degrees in the order of `WINDOW` [1]."""

PLANS_AT_ONCE = 64
"""Points that one call turns into plans [point]."""


def relax_plans(
    tasks: Sequence[PlanTask], *, n_starts: int = 9, n_steps: int = 60, candidates: int = 4
) -> list[list[RelaxedPlan]]:
    """Continuous optima of many tasks at once.

    Args:
        tasks: tasks of the searches.
        n_starts: rough searches for each family of sharding and recomputation [1].
        n_steps: evaluations of each rough search [1].
        candidates: rough optima per task that are refined to exact optima [1].

    Returns:
        Optima of each task, the best first.
    """
    of_task = [relaxed_problems(task) for task in tasks]
    # (problems,): index of the task.
    owner = np.repeat(np.arange(len(tasks)), [len(problems) for problems in of_task])
    every = Problems.of([problem for problems in of_task for problem in problems])
    wanted = plan_goals([tasks[index] for index in owner.tolist()])
    rows = np.repeat(np.arange(len(owner)), n_starts)
    starts = np.tile(start_points(n_starts, len(PLAN_COORDINATES)), (len(owner), 1))
    rough = rough_search(starts, every.rows(rows), wanted.rows(rows), n_steps)
    chosen = []
    for index in range(len(tasks)):
        mine = np.flatnonzero(owner[rows] == index)
        chosen.append(mine[promising(rough.merits[mine], rows[mine])[:candidates]])
    picked = np.concatenate(chosen)
    kept = rows[picked]
    parts = [np.flatnonzero(owner[kept] == index) for index in range(len(tasks))]
    return _exact(rough.points[picked], every.rows(kept), wanted.rows(kept), parts)


def _exact(points: np.ndarray, problems: Problems, wanted: Goals, parts: list[np.ndarray]) -> list[list[RelaxedPlan]]:
    """Exact optima from rough points, ranked within each group of `parts`."""
    optimum = polish(points, problems, wanted)
    best = [part[best_candidate(optimum.rows(part), wanted.rows(part))] for part in parts]
    # Multipliers and residual of the best optimum of each task.
    optimum = certify(optimum, np.asarray(best), problems, wanted)
    return [_ranked(optimum.rows(part), wanted.rows(part), problems.rows(part)) for part in parts]


def _ranked(optimum: Optimum, wanted: Goals, problems: Problems) -> list[RelaxedPlan]:
    best = best_candidate(optimum, wanted)
    plans = plans_at(optimum.point, problems)
    order = [best, *(row for row in np.argsort(optimum.values[:, 0]) if row != best)]
    return [
        RelaxedPlan(
            plan=plans[row],
            step_time=float(np.exp(optimum.values[row, 0])),
            residual=float(optimum.residual[row]),
            converged=bool(optimum.residual[row] <= CONVERGED),
            # The objective has no multiplier.
            multipliers=optimum.multipliers[row, 1:],
        )
        for row in order
    ]


def plans_at(points: np.ndarray, problems: Problems) -> list[Plan]:
    """Continuous plans at a point of each problem."""
    leaves = in_blocks(_plan_leaves, PLANS_AT_ONCE, (points, problems.numbers), problems.layout)
    structure = jax.tree.structure(Plan())
    return [jax.tree.unflatten(structure, [leaf[row] for leaf in leaves]) for row in range(len(points))]


@filter_jit
def _plan_leaves(points: ArrayLike, numbers: ArrayLike, layout: LeafLayout) -> tuple[Array, ...]:
    plans = jax.vmap(lambda point, row: layout.module(row).plan_at(point))(points, numbers)
    return tuple(jax.tree.leaves(plans))


def search_plans(tasks: Sequence[PlanTask]) -> list[FoundPlans]:
    """Find the best valid plans near the continuous optima.

    Args:
        tasks: tasks of the searches, all run at once.

    Returns:
        One result per task; without plans where no plan is valid.
    """
    optima = relax_plans(tasks)
    return [_near(task, mine) for task, mine in zip(tasks, optima, strict=True)]


def _near(task: PlanTask, optima: list[RelaxedPlan]) -> FoundPlans:
    """Window with the best plan, among all windows on the paths from the continuous optima."""
    best, searched, seen = None, 0, set()
    for relaxed in optima:
        start = tuple(number(getattr(relaxed.plan, name)) for name in WINDOW)
        for window in _windows_from(start, task, seen):
            searched += len(window.table)
            if best is None or window.merits[window.best] < best.merits[best.best]:
                best = window
    if best is None:
        # No plan has half a chip: an empty table with the right columns.
        empty = enumerate_plans(task.model, 0.5, task.batch, task.space)
        best = FoundPlans(empty, Scores(np.zeros(0), np.zeros(0)), task.memory_limit, 0)
    return best._replace(searched=searched, relaxed=optima[0])


def _windows_from(centre: Centre, task: PlanTask, seen: set[Centre]) -> Iterator[FoundPlans]:
    """Scored windows, each around the best plan of the previous window, until the best plan no longer improves."""
    lowest = math.inf
    # A window seen from an earlier start ends the walk.
    while centre not in seen:
        seen.add(centre)
        table = _window(task, centre)
        if table is None:
            return
        scores = score_plans(task.model, table, task.cluster, task.coefficients)
        window = FoundPlans(table, scores, task.memory_limit, len(table))
        yield window
        merit = float(window.merits[window.best])
        # Not less, or nan: stop.
        if not merit < lowest:
            return
        lowest = merit
        centre = tuple(float(table.columns[name][window.best]) for name in WINDOW)


def _window(task: PlanTask, centre: Centre) -> PlanTable | None:
    """Valid plans around a centre, in a window widened until it holds a plan; None for a space without valid plan."""
    options = admissible(task.model, task.n_chips, task.batch, task.space)
    widening = 1
    while True:
        near = {
            name: _nearest(options[name], degree, widening * width)
            for (name, width), degree in zip(WINDOW.items(), centre, strict=True)
        }
        narrowed = dataclasses.replace(task.space, **{name: tuple(values.tolist()) for name, values in near.items()})
        table = enumerate_plans(task.model, task.n_chips, task.batch, narrowed)
        if len(table):
            return table
        if all(len(near[name]) == len(options[name]) for name in WINDOW):
            return None
        # Degrees of whole numbers may be sparse around the centre.
        widening *= 2


def _nearest(options: np.ndarray, wanted: float, count: int) -> np.ndarray:
    # Degrees are compared by ratio.
    order = np.argsort(np.abs(np.log(options) - np.log(max(wanted, 1.0))), kind="stable")
    return np.sort(options[order[:count]])
