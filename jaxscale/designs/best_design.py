"""The best model and plan for a cluster and a budget, by gradient.

A rough search from many starts, an interior point from the best of them, then an integer design by local search on the
exact model: width, depth, MLP ratio, batch, micro-batch and every degree at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxscale._arrays import number
from jaxscale.calibration.memory_limit import memory_limit
from jaxscale.calibration.record import Fit
from jaxscale.calibration.store import fit_of
from jaxscale.designs.design_result import DesignChoice, RelaxedDesign
from jaxscale.designs.design_space import N_COORDINATES
from jaxscale.designs.quantities import QUANTITIES, Setting
from jaxscale.designs.rounding import round_design
from jaxscale.designs.shadow_prices import shadow_prices
from jaxscale.designs.time_to_loss import Laws, compute_optimal_flop, compute_optimal_loss, default_laws
from jaxscale.errors import InputError
from jaxscale.hardware.cluster import Cluster
from jaxscale.models import model
from jaxscale.optimise.batches import Problems
from jaxscale.optimise.candidates import CONVERGED, best_candidate, certify, promising
from jaxscale.optimise.goals import Goals, goals
from jaxscale.optimise.interior_point import polish
from jaxscale.optimise.lagrangian import rough_search, start_points
from jaxscale.plans.relaxation import families_for
from jaxscale.units import DAY
from jaxscale.workload import Transformer

PARAMS_TOLERANCE = 0.03
"""How far an integer design may be from a number of parameters asked for [1]."""

CANDIDATES = 5
"""Rough optima that the interior point continues from, of different families first [1]."""

ROUNDED_FROM = 3
"""Relaxed designs around which the integer search begins [1]."""

BUDGETS = {"days": 1e6, "loss": 1e3, "flop": 1e40, "params": 1e20}
"""Kinds of budget and the largest value of each."""

OBJECTIVES = {
    "time": {"time": 1.0},
    "energy": {"energy": 1.0},
    "tokens_per_second": {"time": 1.0, "tokens": -1.0},
}
"""What a run to a loss, of a compute or of a size may minimise: weights of logarithms. Money goes with time: all chips
are paid for. Tokens per second keep to the critical batch, else the batch has no end."""


@dataclass(frozen=True)
class Budget:
    """What a run may use, or what it must reach; exactly one of them.

    Attributes:
        days: least loss within this time [day].
        loss: least time to this loss [nat per token].
        flop: least time to the loss that this much compute buys with the best model and small batches [flop].
        params: least time to the loss for which this many parameters are the compute-optimal number [1].
    """

    days: float | int | None = None
    loss: float | int | None = None
    flop: float | int | None = None
    params: float | int | None = None

    def __post_init__(self):
        """Refuse none or several, and values out of range."""
        given = self.given()
        if len(given) != 1:
            told = ", ".join(given) or "none"
            raise InputError(f"budget: {told} given; expected exactly one of {', '.join(BUDGETS)}")
        ((name, value),) = given.items()
        if not 0.0 < value <= BUDGETS[name]:
            raise InputError(f"{name} = {value:g} is out of range; expected above 0, at most {BUDGETS[name]:g}")

    def given(self) -> dict[str, float | int]:
        """The budget by name."""
        return {name: getattr(self, name) for name in BUDGETS if getattr(self, name) is not None}


def budget_goals(
    budget: Budget,
    laws: Laws,
    memory_bytes: float,
    bounds: Mapping[str, float | int] | None = None,
    objective: str = "time",
) -> Goals:
    """Objective and bounds of a budget.

    Args:
        budget: what may be used or must be reached.
        laws: of the loss.
        memory_bytes: largest predicted peak of a chip [byte].
        bounds: further bounds on `QUANTITIES`, SI units.
        objective: of `OBJECTIVES`; a budget of days always asks for the least loss.

    Raises:
        InputError: a loss that no run reaches, an unknown objective, or one that does not go with the budget.
    """
    if objective not in OBJECTIVES:
        raise InputError(f"objective {objective!r} is unknown; expected one of {', '.join(OBJECTIVES)}")
    if budget.days is not None and objective != "time":
        raise InputError(f"objective {objective!r} does not go with days; expected a budget of loss, flop or params")
    if budget.params is None and objective == "tokens_per_second":
        raise InputError("objective 'tokens_per_second' needs a size, else models shrink; expected a budget of params")
    limits = {"memory": memory_bytes, **(bounds or {})}
    if budget.days is not None:
        return goals(QUANTITIES, {"excess_loss": 1.0}, {**limits, "time": budget.days * DAY})
    if budget.params is not None:
        limits["params"] = budget.params * (1.0 + PARAMS_TOLERANCE)
        limits["inverse_params"] = 1.0 / (budget.params * (1.0 - PARAMS_TOLERANCE))
    loss, floor = target_loss(budget, laws), number(laws.loss.irreducible)
    if not loss > floor:
        raise InputError(f"loss = {loss:g} is out of reach; expected more than the irreducible {floor:g} nat per token")
    if objective == "tokens_per_second":
        limits.setdefault("batch_over_critical", 1.0)
    return goals(QUANTITIES, OBJECTIVES[objective], {**limits, "excess_loss": loss - floor})


def target_loss(budget: Budget, laws: Laws) -> float:
    """Loss that a budget of loss, compute or size stands for [nat per token]."""
    if budget.loss is not None:
        return float(budget.loss)
    with jax.enable_x64(True):
        flop = compute_optimal_flop(laws, budget.params) if budget.params is not None else jnp.asarray(budget.flop)
        return number(compute_optimal_loss(laws, flop))


def optimize_shape(
    cluster: Cluster,
    budget: Budget,
    *,
    template: Transformer | str = "llama3-8b",
    fit: Fit | str | Path = "default",
    levels: Mapping[str, str | None] | None = None,
    laws: Laws | None = None,
    bounds: Mapping[str, float | int] | None = None,
    objective: str = "time",
    oom_probability: float = 0.1,
    head_dim: int = 128,
    n_starts: int = 60,
    n_steps: int = 80,
) -> DesignChoice:
    """The best model and plan for a cluster and a budget.

    Args:
        cluster: chips and network; the plan uses all chips.
        budget: time, loss, compute or size.
        template: proportions that are kept: vocabulary, sequence length, key/value heads, experts.
        fit: a fit, or its name or file.
        levels: framework, gpu and so on of the planned run, whose fitted effects apply.
        laws: of loss, batch, shape, failures and power; the defaults where None.
        bounds: further upper bounds by name of `QUANTITIES`, SI units, such as `{"tokens": 15e12}`.
        objective: of `OBJECTIVES`: what a run to a loss, of a compute or of a size minimises.
        oom_probability: accepted probability of running out of memory [1].
        head_dim: width of a head [1].
        n_starts: rough searches, spread evenly over the kinds of sharding and recomputation [1].
        n_steps: evaluations of each [1].

    Returns:
        The integer design, the relaxed optimum, their gap, KKT residual and shadow prices.

    Raises:
        InputError: an argument out of range, or no design that keeps the bounds.
    """
    n_chips = number(cluster.n_chips)
    if not (n_chips >= 1 and n_chips == round(n_chips)):
        raise InputError(f"n_chips = {n_chips:g} is out of range; expected a whole number of at least 1")
    record, levels = fit_of(fit), levels or {}
    base = model(template) if isinstance(template, str) else template
    rules = default_laws() if laws is None else laws
    limit = memory_limit(number(cluster.chip.hbm_bytes), record.memory_limit(levels), oom_probability)
    wanted = budget_goals(budget, rules, limit, bounds, objective)
    fitted = record.coefficients(levels)
    settings = [Setting(base, cluster, fitted, rules, family, head_dim) for family in families_for(n_chips)]
    return search(settings, wanted, head_dim, n_starts, n_steps)


def search(settings: list[Setting], wanted: Goals, head_dim: int, n_starts: int, n_steps: int) -> DesignChoice:
    """The best design of several settings that differ in their family alone."""
    rows = np.arange(n_starts) % len(settings)
    every = Problems.of(settings)
    rough = rough_search(start_points(n_starts, N_COORDINATES), every.rows(rows), wanted, n_steps)
    order = promising(rough.merits, rows)[:CANDIDATES]
    optimum = polish(rough.points[order], every.rows(rows[order]), wanted)
    optimum = certify(optimum, np.asarray([best_candidate(optimum, wanted)]), every.rows(rows[order]), wanted)
    best = best_candidate(optimum, wanted)
    chosen = [settings[rows[candidate]] for candidate in order]
    designs = [setting.design_at(point) for point, setting in zip(optimum.point, chosen, strict=True)]
    setting = chosen[best]
    relaxed = RelaxedDesign(
        design=designs[best],
        values=optimum.values[best],
        objective=float(wanted.objective(optimum.values[best])),
        residual=float(optimum.residual[best]),
        converged=bool(optimum.residual[best] <= CONVERGED),
        point=optimum.point[best],
        multipliers=optimum.multipliers[best],
        setting=setting,
    )
    prices = shadow_prices(optimum, best, setting, wanted)
    n_chips = round(number(setting.cluster.n_chips))
    ranked = [designs[best], *(design for row, design in enumerate(designs) if row != best)]
    rounded = round_design(ranked[:ROUNDED_FROM], setting, wanted, n_chips=n_chips, head_dim=head_dim)
    return DesignChoice(rounded, relaxed, prices, wanted, rough.trajectory)
