r"""Limits in closed form, each that of the whole model where one cause acts alone.

Reference: Erdil and Schneider-Joseph, arXiv 2411.01137; the forms follow from the equations of `batch_time`.
"""

import jax.numpy as jnp
from jaxtyping import Array

from jaxscale.limits.frontier.frontier_scenario import FrontierScenario
from jaxscale.limits.frontier.scaling_laws import log_ideal_chip_seconds, log_step_limit, workload

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


def bandwidth_side(scenario: FrontierScenario, bandwidth: Array | float) -> Array:
    r"""Side of a square weight slice whose tensor-parallel traffic takes as long as its arithmetic [1].

    $\tfrac43 u C p / W$, with C in multiply-adds; narrower slices leave arithmetic waiting.

    Args:
        scenario: assumptions.
        bandwidth: W of the level that carries the traffic [byte/s].

    Returns:
        The side w.
    """
    rate = 0.5 * scenario.max_utilisation * scenario.peak_flops
    return jnp.asarray(4.0 / 3.0 * rate * scenario.activation_bytes / bandwidth)


def replica_tokens(scenario: FrontierScenario, bandwidth: Array | float) -> Array:
    r"""Tokens of a replica whose gradients take as long as their arithmetic, $\tfrac23 u C p_g / W$ [token]."""
    rate = 0.5 * scenario.max_utilisation * scenario.peak_flops
    return jnp.asarray(2.0 / 3.0 * rate * scenario.gradient_bytes / bandwidth)


def latency_volume(scenario: FrontierScenario, overhead: Array | float, collective: Array | float = 0.0) -> Array:
    r"""Volume $b w^2$ of a matmul that keeps latency to a share $\epsilon$ of its arithmetic [1].

    $2 u C (\tau + t_{coll}) / 3 \epsilon$, with C in multiply-adds.

    Args:
        scenario: assumptions.
        overhead: that share [1].
        collective: latency of the all-reduce that follows each matmul [s].

    Returns:
        Tokens times rows times columns.
    """
    rate = 0.5 * scenario.max_utilisation * scenario.peak_flops
    return jnp.asarray(2.0 / 3.0 * rate * (scenario.kernel_latency + collective) / overhead)


def log_least_chips(log_flop: Array, scenario: FrontierScenario) -> Array:
    """Chips that end the run in time at the highest utilisation, T / (u C t_train), natural logarithm."""
    work = workload(log_flop, scenario)
    ideal = log_ideal_chip_seconds(work, scenario) - jnp.log(scenario.max_utilisation)
    return ideal - log_step_limit(work, scenario)
