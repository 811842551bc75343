"""Utilisation of the best plan as a differentiable function of training compute and assumptions."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from jaxscale.limits.frontier.frontier_scenario import FrontierScenario
from jaxscale.limits.search.frontier_problem import utilisation_problem
from jaxscale.limits.search.relaxed_plan import relaxed_plans
from jaxscale.limits.thresholds import log_value


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
