"""The best model and plan for a cluster and a budget, by gradient.

A rough search from many starts, an interior point from the best of them, then an integer design judged by the exact
model: width, depth, MLP ratio, batch, micro-batch and every degree at once; under a given plan, width and depth alone.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from jaxscale.base.arrays import number
from jaxscale.base.errors import InputError
from jaxscale.calibration.memory_limit import memory_limit
from jaxscale.calibration.store import AnyFit, fit_of
from jaxscale.designs.budgets import Budget, budget_goals, shape_goals
from jaxscale.designs.design_result import DesignChoice, RelaxedDesign
from jaxscale.designs.design_space import N_COORDINATES, Design
from jaxscale.designs.quantities import DesignProblem
from jaxscale.designs.rounding import Rounded, round_design
from jaxscale.designs.shadow_prices import shadow_prices
from jaxscale.designs.shape_lattice import round_shape
from jaxscale.designs.shape_problem import ShapeProblem
from jaxscale.designs.time_to_loss import Laws, laws_of
from jaxscale.hardware.cluster import Cluster
from jaxscale.laws.fitted_law import FittedLaw
from jaxscale.laws.loss import compute_exponent
from jaxscale.models import model
from jaxscale.models.transformer import Transformer
from jaxscale.optimise.batches import Problems
from jaxscale.optimise.candidates import CONVERGED, best_candidate, certify, promising
from jaxscale.optimise.goals import Goals
from jaxscale.optimise.interior_point import polish
from jaxscale.optimise.lagrangian import rough_search, start_points
from jaxscale.plans.plan import Plan
from jaxscale.plans.relaxation import families_for

CANDIDATES = 5
"""Rough optima that the interior point continues from, of different families first [1]."""

AnyProblem = TypeVar("AnyProblem", DesignProblem, ShapeProblem)

ROUNDED_FROM = 3
"""Relaxed designs around which the integer search begins [1]."""


def best_design(
    cluster: Cluster,
    budget: Budget,
    *,
    plan: Plan | None = None,
    template: Transformer | str = "llama3-8b",
    fit: AnyFit = "default",
    levels: Mapping[str, str | None] | None = None,
    laws: Laws | FittedLaw | None = None,
    bounds: Mapping[str, float | int] | None = None,
    objective: str = "time",
    oom_probability: float = 0.1,
    head_dim: int = 128,
    n_starts: int = 60,
    n_steps: int = 80,
) -> DesignChoice:
    """The best model and plan for a cluster and a budget, or the best shape under a given plan.

    Args:
        cluster: chips and network; the plan uses all chips.
        budget: time, loss, compute or size.
        plan: degrees and batch to keep: width and depth of a model of `budget.params` parameters are then chosen for
            least time to the same loss. Where None, batch and plan are chosen too.
        template: proportions that are kept: vocabulary, sequence length, key/value heads, experts.
        fit: a fit, or the name or file of a fit.
        levels: framework, gpu and so on of the planned run, whose fitted effects apply.
        laws: of loss, batch, shape, failures and power, or a fitted law of the loss; the defaults where None. A given
            plan asks for the shape's.
        bounds: further upper bounds by name of `QUANTITIES`, SI units, such as `{"tokens": 15e12}`; of
            `SHAPE_QUANTITIES` under a given plan.
        objective: minimised quantity of a run to a loss, of a compute or of a size, of `OBJECTIVES`.
        oom_probability: accepted probability of running out of memory [1].
        head_dim: width of a head [1].
        n_starts: rough searches, spread evenly over the kinds of sharding and recomputation [1].
        n_steps: evaluations of each [1].

    Returns:
        The integer design, the relaxed optimum, the gap between both, KKT residual and shadow prices.

    Raises:
        InputError: an argument out of range, or no design that keeps the bounds.
    """
    n_chips = number(cluster.n_chips)
    if not (n_chips >= 1 and n_chips == round(n_chips)):
        raise InputError(f"n_chips = {n_chips:g} is out of range; expected a whole number of at least 1")
    record, levels = fit_of(fit), levels or {}
    base = model(template) if isinstance(template, str) else template
    rules = laws_of(laws)
    limit = memory_limit(number(cluster.chip.hbm_bytes), record.memory_limit(levels, n_chips), oom_probability)
    fitted = record.coefficients(levels, n_chips)
    if plan is not None:
        wanted = shape_goals(budget, limit, bounds, objective)
        numbers = (number(budget.params), compute_exponent(), head_dim)
        shape = ShapeProblem(base, plan, cluster, fitted, rules.shape, *numbers)
        return _search([shape], 1, wanted, round_shape, n_starts, n_steps)
    wanted = budget_goals(budget, rules, limit, bounds, objective)
    problems = [DesignProblem(base, cluster, fitted, rules, family, head_dim) for family in families_for(n_chips)]
    return _search(problems, N_COORDINATES, wanted, round_design, n_starts, n_steps)


def _search(
    problems: Sequence[AnyProblem],
    n_coordinates: int,
    wanted: Goals,
    rounded: Callable[[list[Design], AnyProblem, Goals], Rounded],
    n_starts: int,
    n_steps: int,
) -> DesignChoice:
    """The best design of several problems that differ in the family of plans alone."""
    rows = np.arange(n_starts) % len(problems)
    every = Problems.of(problems)
    rough = rough_search(start_points(n_starts, n_coordinates), every.rows(rows), wanted, n_steps)
    order = promising(rough.merits, rows)[:CANDIDATES]
    optimum = polish(rough.points[order], every.rows(rows[order]), wanted)
    optimum = certify(optimum, np.asarray([best_candidate(optimum, wanted)]), every.rows(rows[order]), wanted)
    best = best_candidate(optimum, wanted)
    chosen = [problems[int(rows[candidate])] for candidate in order]
    designs = [problem.design_at(point) for point, problem in zip(optimum.point, chosen, strict=True)]
    relaxed = RelaxedDesign(
        design=designs[best],
        values=optimum.values[best],
        objective=float(optimum.objective[best]),
        residual=float(optimum.residual[best]),
        converged=bool(optimum.residual[best] <= CONVERGED),
        point=optimum.point[best],
        multipliers=optimum.multipliers[best],
        problem=chosen[best],
    )
    prices = shadow_prices(optimum, best, chosen[best], wanted)
    ranked = [designs[best], *(design for row, design in enumerate(designs) if row != best)]
    integer = rounded(ranked[:ROUNDED_FROM], chosen[best], wanted)
    return DesignChoice(integer, relaxed, prices, wanted, rough.trajectory, rough.path)
