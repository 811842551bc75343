r"""Utilisation of the best plan, thresholds of training compute at which it falls, the wall, and their elasticities.

The thresholds are the training computes at which the utilisation falls to 80, 50 and 10 % of its plateau; the wall is
the compute beyond which even the fastest batch misses the deadline. Each is the root of $F(\ln T, \theta) = 0$: for a
share s of the plateau, $F = \ln U^*(T) - \ln U^*(T_{max}) - \ln s$; for the wall, $F = \ln t_{max}(T) - \ln t^*(T)$
with the least time of a batch $t^*$. By the envelope theorem the slopes of the optima are those of their Lagrangians,
so that $\partial \ln T / \partial \theta = - F_\theta / F_{\ln T}$ costs one reverse pass.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxscale.base.arrays import host_arrays
from jaxscale.base.jit import filter_jit
from jaxscale.limits.frontier_problem import utilisation_problem
from jaxscale.limits.frontier_scenario import (
    FrontierScenario,
    log_ideal_chip_seconds,
    log_step_limit,
    stack_scenarios,
    workload,
)
from jaxscale.limits.relaxed_plan import SIZES, PlanResult, at_sizes, relaxed_plans, survey_logs
from jaxscale.optimise.problems import Optimum

SHARES = {"end_of_linear": 0.8, "half": 0.5, "tenth": 0.1}
"""Thresholds by utilisation: share of the plateau [1]."""

NAMES = (*SHARES, "wall")
LOG_10 = math.log(10.0)
RANGE = (18.0 * LOG_10, 42.0 * LOG_10)
"""Where thresholds are looked for, natural logarithm of training compute [flop]."""

N_PASSES = 4
"""Times that the brackets are cut [1]."""


class Thresholds(NamedTuple):
    """Thresholds of scenarios and their elasticities.

    Attributes:
        log_flop: natural logarithms of the thresholds in the order of `NAMES`, infinite for none [flop],
            [scenario, threshold].
        plateau: highest utilisation of each scenario [1], [scenario].
        elasticities: d ln T / d ln of every field, nan for an absent threshold [1], [scenario, threshold].
    """

    log_flop: Float[np.ndarray, "scenario threshold"]
    plateau: Float[np.ndarray, " scenario"]
    elasticities: FrontierScenario

    def flop(self, row: int) -> dict[str, float]:
        """Thresholds of one scenario by name [flop]."""
        return dict(zip(NAMES, np.exp(self.log_flop[row]).tolist(), strict=True))

    def by_field(self, row: int) -> dict[str, dict[str, float]]:
        """Elasticities of the finite thresholds of one scenario, by threshold and field [1]."""
        fields = [field.name for field in dataclasses.fields(FrontierScenario)]
        tables = {name: np.asarray(getattr(self.elasticities, name)) for name in fields}
        return {
            threshold: {name: float(table[row, column]) for name, table in tables.items()}
            for column, threshold in enumerate(NAMES)
            if np.isfinite(self.log_flop[row, column])
        }


def log_value(log_flop: Array, scenario: FrontierScenario, optimum: Optimum, speed: Array) -> Array:
    """Log utilisation of the best plan, ln U*, or for the fastest batch the log room in the deadline [1].

    The room is ln(t_max / t*). Differentiable in log compute and scenario by the envelope theorem.

    Args:
        log_flop: natural logarithm of the training compute [flop].
        scenario: assumptions.
        optimum: end of the search.
        speed: whether the search was for the fastest batch.
    """
    problem = utilisation_problem(log_flop, scenario, speed)
    least = problem.lagrangian(optimum.point, optimum.multipliers)
    work = workload(log_flop, scenario)
    # ln(6 N B / C) - ln(n t), or ln t_max - ln t
    return jnp.where(speed, log_step_limit(work, scenario), log_ideal_chip_seconds(work, scenario)) - least


@filter_jit
def _slopes(
    log_flop: Array, scenarios: FrontierScenario, optima: Optimum, speed: Array
) -> tuple[Array, FrontierScenario]:
    return jax.vmap(jax.grad(log_value, argnums=(0, 1)))(log_flop, scenarios, optima, speed)


def slopes(
    log_flop: np.ndarray, scenarios: FrontierScenario, optima: Optimum, speed: np.ndarray
) -> tuple[np.ndarray, FrontierScenario]:
    """Derivatives of `log_value` in log compute and in every field of the scenario [scenario, size]."""
    return at_sizes(lambda *case: _slopes(*case[:-1]), log_flop, scenarios, optima, speed)


@filter_jit
def _log_step_limits(log_flop: Array, scenarios: FrontierScenario) -> Array:
    sizes = jax.vmap(lambda size, scenario: log_step_limit(workload(size, scenario), scenario), in_axes=(0, None))
    return jax.vmap(sizes)(log_flop, scenarios)


def _values(plans: PlanResult, log_flop: np.ndarray, scenarios: FrontierScenario, speed: np.ndarray) -> np.ndarray:
    """Ln U*, minus infinity where infeasible, or the log room in the deadline for the fastest batch."""
    with np.errstate(divide="ignore"):
        shares = np.log(np.asarray(plans.utilisation))
    limit = _log_step_limits(host_arrays(log_flop), scenarios)
    return np.where(speed, np.asarray(limit) - np.asarray(plans.log_time), shares)


class _Brackets:
    """Intervals with one root each, all narrowed at once by evaluation at several inner points."""

    def __init__(self, scenarios: FrontierScenario, n_scenarios: int):
        self.scenarios = scenarios
        grid = np.linspace(*RANGE, SIZES)
        shape = (n_scenarios, SIZES)
        logs = np.broadcast_to(grid, shape)
        no, yes = np.zeros(shape, bool), np.ones(shape, bool)
        curve = _values(survey_logs(logs, scenarios, no), logs, scenarios, no)
        room = _values(survey_logs(logs, scenarios, yes), logs, scenarios, yes)
        top = np.argmax(curve, axis=1)
        self.log_plateau = curve.max(axis=1)
        self.log_top = grid[top]
        # Falls are sought beyond the top of the curve.
        after = np.arange(SIZES) >= top[:, None]
        levels = self.log_plateau[:, None] + np.log(list(SHARES.values()))
        # Last the wall: no room for the fastest batch.
        falls = [after & (curve < levels[:, [k]]) for k in range(len(SHARES))] + [after & (room < 0.0)]
        self.levels = np.concatenate([levels, np.zeros((n_scenarios, 1))], axis=1)
        self.exists = np.stack([fall.any(axis=1) for fall in falls], axis=1)
        # An interval needs a left end.
        first = np.stack([np.maximum(fall.argmax(axis=1), 1) for fall in falls], axis=1)
        self.low, self.high = grid[first - 1], grid[first]

    def cut(self) -> None:
        """Shrink every interval to the segment in which its value first falls below its level."""
        n_scenarios, n_inner = len(self.low), SIZES // len(NAMES)
        share = np.arange(1, n_inner + 1) / (n_inner + 1)
        inner = self.low[..., None] + (self.high - self.low)[..., None] * share
        speed = np.broadcast_to(np.asarray(NAMES)[:, None] == "wall", inner.shape)
        flat, kinds = inner.reshape(n_scenarios, -1), speed.reshape(n_scenarios, -1)
        values = _values(survey_logs(flat, self.scenarios, kinds), flat, self.scenarios, kinds).reshape(inner.shape)
        # The right end is below the level.
        below = np.concatenate([values < self.levels[..., None], np.ones((*self.low.shape, 1), bool)], axis=-1)
        ends = np.concatenate([self.low[..., None], inner, self.high[..., None]], axis=-1)
        first = below.argmax(axis=-1)[..., None]
        self.low = np.take_along_axis(ends, first, -1)[..., 0]
        self.high = np.take_along_axis(ends, first + 1, -1)[..., 0]


def thresholds(scenarios: Sequence[FrontierScenario]) -> Thresholds:
    """Thresholds of scenarios, with their elasticities in every field."""
    stacked = stack_scenarios(scenarios)
    count = len(scenarios)
    brackets = _Brackets(stacked, count)
    for _ in range(N_PASSES):
        brackets.cut()
    # Points left of the roots, where plans are feasible; and the plateau, in the same call.
    ends = np.concatenate([brackets.low, brackets.log_top[:, None]], axis=1)
    speed = np.broadcast_to(np.asarray([*(name == "wall" for name in NAMES), False]), ends.shape)
    # The size of curves: a shared compilation.
    padded = np.pad(ends, [(0, 0), (0, SIZES - ends.shape[1])], mode="edge")
    kinds = np.pad(speed, [(0, 0), (0, SIZES - ends.shape[1])], mode="edge")
    plans = survey_logs(padded, stacked, kinds)
    optima: Optimum = jax.tree.map(lambda leaf: leaf[:, : ends.shape[1]], plans.optimum)
    along, fields = slopes(host_arrays(ends), stacked, optima, speed)
    values = _values(plans, padded, stacked, kinds)[:, : ends.shape[1]]
    # One Newton step from the bracket's left end to the root.
    # Without a root, or without any feasible plan, there is no step.
    with np.errstate(invalid="ignore", divide="ignore"):
        step = (brackets.levels - values[:, :-1]) / along[:, :-1]
    step = np.clip(np.where(np.isfinite(step), step, 0.0), 0.0, brackets.high - brackets.low)
    log_flop = np.where(brackets.exists, brackets.low + step, np.inf)
    is_share = np.asarray([name in SHARES for name in NAMES])

    def scaled(table: np.ndarray, value: np.ndarray) -> np.ndarray:
        """D ln T / d ln field; a share moves with the plateau too."""
        moved = table[:, :-1] - np.where(is_share, table[:, -1:], 0.0)
        scale = np.asarray(value)[:, None]
        slope_of_root = np.where(brackets.exists, along[:, :-1], 1.0)
        # d ln T / d ln theta = -theta F_theta / F_lnT
        return np.where(brackets.exists, -scale * moved / slope_of_root, np.nan)

    elasticities = jax.tree.map(scaled, fields, stacked)
    return Thresholds(log_flop, np.exp(brackets.log_plateau), elasticities)


# Compiler options are refused below another transformation, so this one is compiled without them.
@eqx.filter_jit
def _utilisation(training_flop: Array, scenario: FrontierScenario) -> Array:
    log_flop = jnp.log(training_flop.reshape(-1))
    fixed, frozen = jax.lax.stop_gradient((log_flop, scenario))
    all_of_them = jnp.ones(log_flop.shape, bool)
    plans = jax.lax.stop_gradient(
        relaxed_plans(jax.vmap(lambda size: utilisation_problem(size, frozen))(fixed), all_of_them)
    )
    # The Lagrangian at the optimum has the optimum's value and, by the envelope theorem, its slopes.
    values = jax.vmap(lambda size, optimum: log_value(size, scenario, optimum, jnp.asarray(False)))
    shares = jnp.exp(values(log_flop, plans.optimum))
    return jnp.where(plans.feasible, shares, 0.0).reshape(training_flop.shape)


def utilisation(training_flop: Float[ArrayLike, "*size"], scenario: FrontierScenario) -> Float[Array, "*size"]:
    """Share of the chips' peak that the best relaxed plan sustains; zero beyond the wall.

    Differentiable in the training compute and in every field of the scenario: `jax.grad` gives the slope with the best
    plan at each point.

    Args:
        training_flop: T [flop].
        scenario: assumptions.

    Returns:
        Utilisation [1].
    """
    flop = jnp.asarray(training_flop, jnp.result_type(float))
    numbers = jax.tree.map(lambda leaf: jnp.asarray(leaf, flop.dtype), scenario)
    return _utilisation(flop, numbers)
