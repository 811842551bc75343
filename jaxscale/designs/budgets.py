"""Budgets of a training run, and the objective and bounds of a search within a budget."""

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from jaxscale.base.arrays import number
from jaxscale.base.errors import InputError, check_known
from jaxscale.base.units import DAY
from jaxscale.designs.integer_designs import HEADS, whole_shapes
from jaxscale.designs.quantities import LOWEST, QUANTITIES
from jaxscale.designs.shape_problem import SHAPE_QUANTITIES
from jaxscale.designs.time_to_loss import Laws, compute_optimal_flop, compute_optimal_loss, loss_of_template
from jaxscale.laws.loss import FLOP_PER_PARAM_TOKEN
from jaxscale.models.transformer import Transformer, n_active_params, n_params
from jaxscale.optimise.problems import Goals, goals

PARAMS_TOLERANCE = 0.03
"""Relative tolerance on the number of parameters of an integer design for a budget of parameters [1]."""

BUDGETS = {"days": 1e6, "loss": 1e3, "flop": 1e40, "params": 1e20}
"""Kinds of budget and the largest value of each."""

OBJECTIVES = {
    "time": {"time": 1.0},
    "energy": {"energy": 1.0},
    "tokens_per_second": {"time": 1.0, "tokens": -1.0},
}
"""Weights of the log quantities in the objectives for a run to a loss, of a compute or of a size. Money is
proportional to time, since all chips are paid for. For tokens per second the batch is bounded by the critical batch,
else the optimum is unbounded."""


@dataclass(frozen=True)
class Budget:
    """Budget of a training run, exactly one of: time, final loss, compute, number of parameters.

    Attributes:
        days: training time, for least loss [day].
        loss: final loss, for least time [nat per token].
        flop: training compute, for least time to the loss of the compute-optimal model with small batches [flop].
        params: number of parameters N, for least time to the loss at which N is compute-optimal [1].
    """

    days: float | int | None = None
    loss: float | int | None = None
    flop: float | int | None = None
    params: float | int | None = None

    def __post_init__(self):
        """Raise an `InputError` for no budget, several budgets, or a value out of range."""
        given = self.given()
        if len(given) != 1:
            told = ", ".join(given) or "none"
            raise InputError(f"budget: {told} given; expected exactly one of {', '.join(BUDGETS)}")
        ((name, value),) = given.items()
        if not 0.0 < value <= BUDGETS[name]:
            raise InputError(f"{name} = {value:g} is out of range; expected above 0, at most {BUDGETS[name]:g}")

    def given(self) -> dict[str, float | int]:
        """Value of the stated budget by name."""
        return {name: getattr(self, name) for name in BUDGETS if getattr(self, name) is not None}


def check_smallest(budget: Budget, template: Transformer, head_dim: float, laws: Laws) -> None:
    """Check that a budget suffices for the smallest run of a search: two layers, one group of heads, fewest tokens.

    Args:
        budget: time, loss, compute or size.
        template: model with the vocabulary and experts of every design.
        head_dim: least width of a head [1].
        laws: law of the loss.

    Raises:
        InputError: the budget is too small; states the smallest budget.
    """
    # A group of heads of the least width.
    narrowest = np.asarray([head_dim * HEADS])
    smallest = whole_shapes(template, narrowest, np.asarray([2.0]), np.asarray([head_dim]), np.ones(1, int))
    params, active = number(n_params(smallest)[0]), number(n_active_params(smallest)[0])
    # C = 6 N D with active parameters and the fewest tokens.
    least = {"flop": FLOP_PER_PARAM_TOKEN * active * LOWEST["tokens"], "params": params}
    for name, value in budget.given().items():
        if name in least and value < least[name]:
            raise InputError(f"{name} = {value:g} is out of range; the smallest run takes {least[name]:.2g}")
    worst = number(laws.loss.loss(active, LOWEST["tokens"]))
    if budget.loss is not None and budget.loss > worst:
        raise InputError(f"loss = {budget.loss:g} is out of range; the smallest run reaches {worst:.3g}")


def budget_goals(
    budget: Budget,
    laws: Laws,
    memory_bytes: float,
    bounds: Mapping[str, float | int] | None = None,
    objective: str = "time",
    template: Transformer | None = None,
) -> Goals:
    """Objective and bounds of the search for a design within a budget.

    Args:
        budget: time, loss, compute or number of parameters.
        laws: law of the loss.
        memory_bytes: largest predicted peak of a chip [byte].
        bounds: further upper bounds on `QUANTITIES`, in SI units.
        objective: minimised quantity from `OBJECTIVES`; a budget of days always minimises the loss.
        template: model with the share of active parameters and the experts of the designs; by default a dense model.

    Raises:
        InputError: an unreachable loss, an unknown objective, or an objective incompatible with the budget.
    """
    check_known("objective", objective, OBJECTIVES)
    if budget.days is not None and objective != "time":
        raise InputError(f"objective {objective!r} does not go with days; expected a budget of loss, flop or params")
    if budget.params is None and objective == "tokens_per_second":
        raise InputError("objective 'tokens_per_second' needs a size, else models shrink; expected a budget of params")
    limits = {"memory": memory_bytes, **(bounds or {})}
    if budget.days is not None:
        return goals(QUANTITIES, {"excess_loss": 1.0}, {**limits, "time": budget.days * DAY})
    if budget.params is not None:
        limits["params"] = budget.params * (1.0 + PARAMS_TOLERANCE)
        # An upper bound on 1 / N is a lower bound on N.
        limits["inverse_params"] = 1.0 / (budget.params * (1.0 - PARAMS_TOLERANCE))
    loss, floor = target_loss(budget, laws, template), number(laws.loss.irreducible)
    if not loss > floor:
        raise InputError(f"loss = {loss:g} is out of reach; expected more than the irreducible {floor:g} nat per token")
    if objective == "tokens_per_second":
        # Tokens per second would grow without end with the batch.
        limits.setdefault("batch_over_critical", 1.0)
    # The bound is on the excess over the irreducible loss.
    return goals(QUANTITIES, OBJECTIVES[objective], {**limits, "excess_loss": loss - floor})


def shape_goals(
    budget: Budget, memory_bytes: float, bounds: Mapping[str, float | int] | None = None, objective: str = "time"
) -> Goals:
    """Objective (least time to equal loss) and bounds of the search for a shape under a given plan.

    Args:
        budget: budget of the number of parameters.
        memory_bytes: largest predicted peak of a chip [byte].
        bounds: further upper bounds on `SHAPE_QUANTITIES`, in SI units.
        objective: `time`, the only choice.

    Raises:
        InputError: a budget or objective incompatible with a plan.
    """
    if budget.params is None:
        (kind,) = budget.given()
        raise InputError(f"a budget of {kind} does not go with a plan; expected a budget of params")
    if objective != "time":
        raise InputError(f"objective {objective!r} does not go with a plan; expected time")
    return goals(SHAPE_QUANTITIES, {"time_to_loss": 1.0}, {"memory": memory_bytes, **(bounds or {})})


def target_loss(budget: Budget, laws: Laws, template: Transformer | None = None) -> float:
    """Final loss of a budget of loss, compute or parameters, with the experts of a template [nat per token]."""
    if budget.loss is not None:
        return float(budget.loss)
    with jax.enable_x64(True):
        law = laws.loss if template is None else loss_of_template(laws, template)
        if budget.params is None:
            return number(compute_optimal_loss(law, jnp.asarray(budget.flop)))
        # The size counts all experts, the law active parameters.
        active = 1.0 if template is None else n_active_params(template) / n_params(template)
        return number(compute_optimal_loss(law, compute_optimal_flop(law, budget.params * active)))
