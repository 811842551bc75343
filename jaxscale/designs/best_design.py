"""Best model and plan for a cluster and a budget, by gradient-based search.

The search has three stages: a rough search from many starts, an interior-point method from the best end points, and
integer designs evaluated by the exact model. Variables are width, depth, MLP ratio, batch, micro-batch and every
degree at once; under a given plan, width and depth only.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from jaxscale.base.arrays import divisors, number, with_fields
from jaxscale.base.errors import InputError
from jaxscale.calibration.memory_limit import memory_limit
from jaxscale.calibration.record import AnyFit, fit_of
from jaxscale.designs.budgets import Budget, budget_goals, check_smallest, shape_goals
from jaxscale.designs.design_result import DesignChoice, RelaxedDesign, shadow_prices
from jaxscale.designs.integer_designs import HEAD_WIDTHS, TILE, IntegerSpace
from jaxscale.designs.quantities import N_COORDINATES, Design, DesignProblem
from jaxscale.designs.rounding import Rounded, round_design
from jaxscale.designs.shape_lattice import round_shape
from jaxscale.designs.shape_problem import ShapeProblem
from jaxscale.designs.time_to_loss import Laws, laws_of
from jaxscale.hardware.catalogue import load_hardware
from jaxscale.hardware.cluster import Cluster
from jaxscale.laws.fitted_law import FittedLaw
from jaxscale.laws.loss import compute_exponent
from jaxscale.models import model
from jaxscale.models.transformer import Transformer
from jaxscale.optimise.interior_point import (
    CONVERGED,
    best_candidate,
    certify,
    polish,
    promising,
    rough_search,
    start_points,
)
from jaxscale.optimise.problems import Goals, Problems
from jaxscale.plans.best_plan import question_of_levels
from jaxscale.plans.enumerate import PlanSpace
from jaxscale.plans.plan import Plan
from jaxscale.plans.relaxed_search import Family, families_for

CANDIDATES = 6
"""Number of rough optima from which the interior-point method continues, different families first [1]."""

AnyProblem = TypeVar("AnyProblem", DesignProblem, ShapeProblem)

UNMEASURED = "a design"
"""Level of an architecture without runs."""


def best_design(
    cluster: Cluster,
    budget: Budget,
    *,
    plan: Plan | None = None,
    template: Transformer | str = "llama3-8b",
    fit: AnyFit = "default",
    levels: Mapping[str, str | None] | None = None,
    space: PlanSpace | None = None,
    laws: Laws | FittedLaw | None = None,
    bounds: Mapping[str, float | int] | None = None,
    objective: str = "time",
    oom_probability: float = 0.1,
    head_dim: int | None = None,
    like: Transformer | None = None,
    n_starts: int = 60,
    n_steps: int = 80,
) -> DesignChoice:
    """Best model and plan for a cluster and a budget, or the best shape under a given plan.

    Args:
        cluster: chips and network; the plan uses all chips.
        budget: time, loss, compute or number of parameters.
        plan: fixed degrees and batch: width and depth of a model of `budget.params` parameters are then chosen for
            least time to equal loss. By default, batch and plan are chosen too.
        template: proportions of the model: vocabulary, sequence length, key/value heads, experts.
        fit: a fit, or the name or file of a fit.
        levels: framework, precision, gpu and so on of the planned run, whose fitted effects apply.
        space: choices of plans, and features of the software; by default all plans of the framework.
        laws: laws of loss, batch, shape, failures and power, or a fitted law of the loss; by default `default_laws`. A
            given plan needs the law of the shape only.
        bounds: further upper bounds by name of `QUANTITIES`, in SI units, for example `{"tokens": 15e12}`; of
            `SHAPE_QUANTITIES` under a given plan.
        objective: minimised quantity, from `OBJECTIVES`, for a budget of loss, compute or parameters.
        oom_probability: accepted probability of running out of memory [1].
        head_dim: width of a head; by default the best of 64, 96 and 128, or the template's for latent attention [1].
        like: a built model; the result includes its best batch and plan under the same budget.
        n_starts: rough searches, spread evenly over the choices of sharding and recomputation [1].
        n_steps: evaluations of each rough search [1].

    Returns:
        The integer design, the relaxed optimum, the gap between the two, KKT residual and shadow prices.

    Raises:
        InputError: an argument out of range, or no design that keeps the bounds.
    """
    n_chips = number(cluster.n_chips)
    if not (n_chips >= 1 and n_chips == round(n_chips)):
        raise InputError(f"n_chips = {n_chips:g} is out of range; expected a whole number of at least 1")
    record = fit_of(fit)
    base = model(template) if isinstance(template, str) else template
    # The vocabulary is padded to whole tiles.
    base = with_fields(base, {"vocab_size": TILE * math.ceil(number(base.vocab_size) / TILE)})
    heads = (float(head_dim),) if head_dim else _head_widths(base)
    rules = laws_of(laws)
    levels = {"gpu": load_hardware().chip_id(cluster), **(levels or {})}
    question = question_of_levels(base, cluster, None, levels, space)
    # The architecture of a design is absent from the fitted runs.
    unmeasured = {"architecture": UNMEASURED, "mixture": UNMEASURED if number(base.n_experts) > 1.0 else None}
    levels = {**question.levels, **levels, **unmeasured}
    limit = memory_limit(number(cluster.chip.hbm_bytes), record.memory_limit(levels, n_chips), oom_probability)
    fitted = record.coefficients(levels, n_chips)
    # The narrowest head gives the smallest model.
    check_smallest(budget, base, heads[0], rules)
    if plan is not None:
        wanted = shape_goals(budget, limit, bounds, objective)
        numbers = (number(budget.params), compute_exponent(), heads[-1])
        shape = ShapeProblem(base, plan, cluster, fitted, rules.shape, *numbers)
        return _search([shape], 1, wanted, round_shape, n_starts, n_steps)
    wanted = budget_goals(budget, rules, limit, bounds, objective, base)
    choices = question.space
    if bounds and "expert_chips" in bounds:
        # The degree ep divides the experts.
        spread = divisors(number(base.n_experts))
        choices = replace(choices, ep=tuple(spread[spread <= bounds["expert_chips"]].tolist()))
    fixed, software = (base, cluster, fitted, rules), choices.base
    problems = [DesignProblem(*fixed, family, heads[-1], software) for family in _families(choices, n_chips)]

    def rounded(relaxed: list[Design], problem: DesignProblem, wanted: Goals) -> Rounded:
        return round_design(relaxed, IntegerSpace(problem, choices, heads, limit), wanted)

    choice = _search(problems, N_COORDINATES, wanted, rounded, n_starts, n_steps)
    if like is None:
        return choice
    where = IntegerSpace(choice.relaxed.problem, choices, heads, limit, like)  # pyright: ignore[reportArgumentType]
    return replace(choice, like=round_design([choice.relaxed.design], where, wanted))


def _head_widths(template: Transformer) -> tuple[float, ...]:
    """Candidate widths of a head of a design, the usual width last [1]."""
    own = number(template.head_dim)
    return (own,) if number(template.kv_lora_rank) else tuple(map(float, HEAD_WIDTHS))


def _families(space: PlanSpace, n_chips: float) -> list[Family]:
    """Families of plans in a space; all families where the space contains none as a whole."""
    # Families are fully sharded (3) or not (1).
    stages = {3.0 if stage > 1 else 1.0 for stage in space.zero_stage}
    recomputed = {float(word == "full") for word in space.recompute or ()}
    recomputed = recomputed or {float(number(space.software.recompute_full) > 0.5)}
    every = families_for(n_chips)
    kept = [one for one in every if number(one.zero_stage) in stages and number(one.recompute_full) in recomputed]
    if space.pp is not None:
        kept = [
            one for one in kept if number(one.smallest_pp) <= max(space.pp) and number(one.largest_pp) >= min(space.pp)
        ]
    return kept or list(every)


def _search(
    problems: Sequence[AnyProblem],
    n_coordinates: int,
    wanted: Goals,
    rounded: Callable[[list[Design], AnyProblem, Goals], Rounded],
    n_starts: int,
    n_steps: int,
) -> DesignChoice:
    """Best design of several problems that differ in the family of plans only."""
    # Starts spread evenly over the families.
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
    # The best first, as the rounding expects.
    ranked = [designs[best], *(design for row, design in enumerate(designs) if row != best)]
    integer = rounded(ranked, chosen[best], wanted)
    return DesignChoice(integer, relaxed, prices, wanted, rough.trajectory, rough.path)
