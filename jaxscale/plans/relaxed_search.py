"""The search for a plan where there are too many to try: by gradient, then among whole numbers near the optimum.

All problems and all starts run as one `vmap`. The relaxed optimum is then the centre of a window of valid plans, the
nearest few values of every degree crossed with every kind of sharding, schedule and recomputation; the window moves to
its best plan until that no longer improves.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxscale._arrays import number
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.hardware.cluster import Cluster
from jaxscale.optimise.batches import Problems
from jaxscale.optimise.candidates import CONVERGED, best_candidate, certify, promising
from jaxscale.optimise.goals import Goals
from jaxscale.optimise.interior_point import polish
from jaxscale.optimise.lagrangian import rough_search, start_points
from jaxscale.optimise.problems import Optimum
from jaxscale.plan.plan import Plan
from jaxscale.plans.enumerate import PlanSpace, PlanTable, admissible, enumerate_plans, within_domains
from jaxscale.plans.plan_problem import PLAN_COORDINATES, PlanSetting, plan_goals
from jaxscale.plans.relaxation import families_for
from jaxscale.plans.score import Scores, score_plans
from jaxscale.workload import Transformer

WINDOW = {"tp": 5, "pp": 5, "cp": 5, "vpp": 9, "ep": 4, "micro_batch_size": 4}
"""Values of every degree in a window; interleavings divide a stage's layers, so that near ones may be far apart [1]."""


class PlanProblem(NamedTuple):
    """A search for a plan.

    Attributes:
        model: the transformer.
        cluster: chips and network.
        batch: sequences of a step [sequence].
        coefficients: fitted parameters, effects applied.
        memory_limit: largest predicted peak of a chip [byte].
    """

    model: Transformer
    cluster: Cluster
    batch: float | int
    coefficients: Coefficients
    memory_limit: float

    def settings(self) -> list[PlanSetting]:
        """What plans are judged in, one for each kind of sharding and recomputation."""
        fixed = (self.model, self.cluster, self.coefficients, self.batch)
        return [PlanSetting(*fixed, family) for family in families_for(number(self.cluster.n_chips))]

    @property
    def most_replicas(self) -> float:
        """Largest dp: whole replicas divide chips and batch [1]."""
        return float(math.gcd(round(number(self.cluster.n_chips)), round(self.batch)))


class RelaxedPlan(NamedTuple):
    """A continuous optimum, by the smooth model.

    Attributes:
        plan: degrees.
        step_time: [s].
        residual: KKT residual [1].
        multipliers: d ln step time / d ln bound, of memory and of the batch, negated [quantity].
    """

    plan: Plan
    step_time: float
    residual: float
    multipliers: np.ndarray

    @property
    def converged(self) -> bool:
        """Whether the residual certifies an optimum."""
        return self.residual <= CONVERGED


class FoundPlans(NamedTuple):
    """What a search returns.

    Attributes:
        table: plans of the last window.
        scores: of these.
        best: row of the fastest plan that fits; of the leanest where none does.
        fits: whether it fits.
        searched: plans scored in all windows.
        relaxed: the continuous optimum.
    """

    table: PlanTable
    scores: Scores
    best: int
    fits: bool
    searched: int
    relaxed: RelaxedPlan


def relax_plans(
    problems: Sequence[PlanProblem], *, n_starts: int = 9, n_steps: int = 60, candidates: int = 4
) -> list[list[RelaxedPlan]]:
    """Continuous optima of many problems at once.

    Args:
        problems: what is searched.
        n_starts: rough searches for each kind of sharding and recomputation [1].
        n_steps: evaluations of each [1].
        candidates: optima that are made exact, for each problem [1].

    Returns:
        For each problem its optima, the best first.
    """
    families = [problem.settings() for problem in problems]
    settings = [setting for mine in families for setting in mine]
    every, owner = Problems.of(settings), np.repeat(np.arange(len(problems)), [len(mine) for mine in families])
    limits = np.asarray([problem.memory_limit for problem in problems])
    replicas = np.asarray([problem.most_replicas for problem in problems])
    wanted = plan_goals(limits[owner], replicas[owner])
    rows = np.repeat(np.arange(len(settings)), n_starts)
    starts = np.tile(start_points(n_starts, len(PLAN_COORDINATES)), (len(settings), 1))
    rough = rough_search(starts, every.rows(rows), wanted.rows(rows), n_steps)
    chosen = []
    for index in range(len(problems)):
        mine = np.flatnonzero(owner[rows] == index)
        chosen.append(mine[promising(rough.merits[mine], rows[mine])[:candidates]])
    order = np.concatenate(chosen)
    polished, bounds = every.rows(rows[order]), wanted.rows(rows[order])
    optimum = polish(rough.points[order], polished, bounds)
    ends = np.cumsum([len(part) for part in chosen])
    parts = [np.arange(end - len(mine), end) for end, mine in zip(ends, chosen, strict=True)]
    best = [part[best_candidate(optimum.rows(part), bounds.rows(part))] for part in parts]
    optimum = certify(optimum, np.asarray(best), polished, bounds)
    return [
        _ranked(optimum.rows(part), bounds.rows(part), [settings[row] for row in rows[order[part]]]) for part in parts
    ]


def _ranked(optimum: Optimum, wanted: Goals, settings: list[PlanSetting]) -> list[RelaxedPlan]:
    best = best_candidate(optimum, wanted)
    order = [best, *(row for row in np.argsort(optimum.values[:, 0]) if row != best)]
    return [
        RelaxedPlan(
            plan=jax.tree.map(np.asarray, settings[row].plan_at(jnp.asarray(optimum.point[row]))),
            step_time=float(np.exp(optimum.values[row, 0])),
            residual=float(optimum.residual[row]),
            multipliers=optimum.multipliers[row, 1:],
        )
        for row in order
    ]


def search_plans(problems: Sequence[PlanProblem], space: PlanSpace | None = None) -> list[FoundPlans]:
    """The best valid plans found near the continuous optima.

    Args:
        problems: what is searched; all of them at once.
        space: what may be chosen; everything valid where None.

    Returns:
        One answer for each problem.
    """
    relaxed = relax_plans(problems)
    found = zip(problems, relaxed, strict=True)
    return [_near(problem, optima, within_domains(space, problem.cluster)) for problem, optima in found]


def _near(problem: PlanProblem, optima: list[RelaxedPlan], space: PlanSpace) -> FoundPlans:
    """Move the window from the continuous optima until its best plan no longer improves."""
    options = admissible(problem.model, number(problem.cluster.n_chips), problem.batch, space)
    found, searched, seen = None, 0, set()
    for relaxed in optima:
        centre = {name: number(getattr(relaxed.plan, name)) for name in WINDOW}
        lowest = math.inf
        while tuple(centre.values()) not in seen:
            seen.add(tuple(centre.values()))
            table = _window(problem, options, centre, space)
            if table is None:
                break
            scores = score_plans(problem.model, table, problem.cluster, problem.coefficients)
            searched += len(table)
            merits = _merits(scores, problem.memory_limit)
            best = int(np.argmin(merits))
            if found is None or merits[best] < found[0]:
                found = (float(merits[best]), table, scores, best)
            if not merits[best] < lowest:
                break
            lowest = float(merits[best])
            centre = {name: float(table.columns[name][best]) for name in WINDOW}
    if found is None:
        empty = enumerate_plans(problem.model, 0.5, problem.batch, space)
        return FoundPlans(empty, Scores(np.zeros(0), np.zeros(0)), -1, False, 0, optima[0])
    _, table, scores, best = found
    fits = bool(scores.memory[best] <= problem.memory_limit)
    return FoundPlans(table, scores, best, fits, searched, optima[0])


def _merits(scores: Scores, limit: float) -> np.ndarray:
    """Step time where a plan fits; far above, and by how much it does not, elsewhere."""
    return np.where(scores.memory <= limit, scores.step_time, 1e12 * scores.memory / limit)


def _window(
    problem: PlanProblem, options: dict[str, np.ndarray], centre: dict[str, float], space: PlanSpace
) -> PlanTable | None:
    """Valid plans around a centre; a wider window where there are none, and None where there are none at all."""
    widening = 1
    while True:
        near = {name: _nearest(options[name], centre[name], widening * width) for name, width in WINDOW.items()}
        narrowed = dataclasses.replace(space, **{name: tuple(values.tolist()) for name, values in near.items()})
        table = enumerate_plans(problem.model, number(problem.cluster.n_chips), problem.batch, narrowed)
        if len(table):
            return table
        if all(len(near[name]) == len(options[name]) for name in WINDOW):
            return None
        widening *= 2


def _nearest(options: np.ndarray, wanted: float, count: int) -> np.ndarray:
    order = np.argsort(np.abs(np.log(options) - np.log(max(wanted, 1.0))), kind="stable")
    return np.sort(options[order[:count]])
