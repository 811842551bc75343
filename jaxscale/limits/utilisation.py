"""Utilisation of the best plan as a differentiable function of training compute and assumptions."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from jaxscale.limits.interior_point import Optimum
from jaxscale.limits.problem import utilisation_problem
from jaxscale.limits.relaxed_plan import search
from jaxscale.limits.scenario import Scenario
from jaxscale.limits.thresholds import log_value


def _one(log_flop: Array, scenario: Scenario) -> Array:
    fixed, frozen = jax.lax.stop_gradient((log_flop, scenario))
    found = search(utilisation_problem(fixed, frozen))
    optimum: Optimum = jax.lax.stop_gradient(found.optimum)
    # The Lagrangian at the optimum has the optimum's value and, by the envelope theorem, its slopes.
    value = jnp.exp(log_value(log_flop, scenario, optimum, jnp.asarray(False)))
    return jnp.where(found.feasible, value, 0.0)


# Compiler options are refused below another transformation, so this one is compiled without them.
@eqx.filter_jit
def _utilisation(training_flop: Array, scenario: Scenario) -> Array:
    return jnp.vectorize(lambda flop: _one(jnp.log(flop), scenario))(training_flop)


def utilisation(training_flop: Float[ArrayLike, "*size"], scenario: Scenario) -> Float[Array, "*size"]:
    """Share of the peak that the best relaxed plan sustains; zero beyond the wall.

    Differentiable in the training compute and in every field of the scenario: `jax.grad` gives the slope with the plan
    chosen anew.

    Args:
        training_flop: T [flop].
        scenario: assumptions.

    Returns:
        Utilisation [1].
    """
    flop = jnp.asarray(training_flop, jnp.result_type(float))
    numbers = jax.tree.map(lambda leaf: jnp.asarray(leaf, flop.dtype), scenario)
    return _utilisation(flop, numbers)
