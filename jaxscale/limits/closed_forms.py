r"""Limits in closed form, each that of the whole model where one cause acts alone.

Reference: Erdil and Schneider-Joseph, arXiv 2411.01137; the forms follow from the equations of `batch_time`.
"""

import jax.numpy as jnp
from jaxtyping import Array

from jaxscale.limits.frontier.frontier_scenario import FrontierScenario

SEQUENTIAL_MATMULS = 4.0
"""Matmuls of a layer that follow each other: two forward, two backward [1]."""


def wall_exponent(scenario: FrontierScenario) -> Array:
    r"""Growth of the wall with run length and batch, $1 / (1/2 - \beta + \lambda/2)$; latency and depth lower it so.

    Zero or negative: there is no wall, since steps become fewer faster than layers become more.
    """
    return jnp.asarray(1.0 / (0.5 - scenario.batch_exponent + 0.5 * scenario.depth_exponent))


def log_latency_wall(scenario: FrontierScenario) -> Array:
    r"""Training compute beyond which latency alone takes longer than the run, natural logarithm [flop].

    Every batch takes at least $c\,\tau L$ with $\tau$ the latency of a kernel: $(D / B)\, c\, \tau L = t_{train}$, a
    power of T.

    Args:
        scenario: assumptions; the depth is its power law, `log_depth` is left out.

    Returns:
        The wall; infinite where there is none.
    """
    exponent = 0.5 - scenario.batch_exponent + 0.5 * scenario.depth_exponent
    log_start = jnp.log(scenario.reference_flop)
    log_params = 0.5 * (log_start - jnp.log(6.0 * scenario.tokens_per_param))
    log_batch = (
        jnp.log(scenario.reference_batch)
        + jnp.log(scenario.batch_multiplier)
        + scenario.batch_sparsity_exponent * jnp.log(scenario.sparsity)
    )
    log_steps = log_params + jnp.log(scenario.tokens_per_param) - log_batch
    log_layers = jnp.log(scenario.reference_layers) + scenario.depth_exponent * (
        log_params - jnp.log(scenario.reference_params)
    )
    log_taken = log_steps + log_layers + jnp.log(SEQUENTIAL_MATMULS * scenario.kernel_latency)
    distance = jnp.log(scenario.training_time) - log_taken
    return jnp.where(exponent > 0.0, log_start + distance / jnp.where(exponent > 0.0, exponent, 1.0), jnp.inf)
