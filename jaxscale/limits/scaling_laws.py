r"""Model, data and batch of a training run of given compute, and limits in closed form.

Tokens and parameters follow Hoffmann et al. 2022: $D = r N$ with $T = 6 N D$. The batch follows
$B = B_0 (T / T_0)^\beta$ (Erdil and Schneider-Joseph, arXiv 2411.01137), the depth
$L = L_0 (N / N_0)^\lambda + \kappa \ln(d / d_0)$: a power law, or the logarithm of Levine et al., arXiv 2006.12467.

Reference: Erdil and Schneider-Joseph, arXiv 2411.01137; the forms follow from the equations of `batch_time`.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from jaxscale.base.smooth import larger, smaller
from jaxscale.limits.frontier_scenario import FrontierScenario

DEPTH_STEPS = 6
"""Newton steps for a depth that depends on the width; each at least squares the relative error [1]."""


class FrontierWork(NamedTuple):
    """Model, data and batch of a training compute, as natural logarithms where the name says so.

    Attributes:
        log_params: active parameters N.
        log_tokens: training tokens D [token].
        log_batch: batch B [token].
        log_layers: depth L.
        log_width: model width d.
        log_ff: width of an expert's MLP f.
        log_experts: experts of a layer E.
        log_active: experts that a token visits k.
    """

    log_params: Array
    log_tokens: Array
    log_batch: Array
    log_layers: Array
    log_width: Array
    log_ff: Array
    log_experts: Array
    log_active: Array


def depth_and_width(log_params: Array, scenario: FrontierScenario) -> tuple[Array, Array]:
    """Log depth and log width of a stack of MLP blocks, N = 2 k L d f."""
    log_shape = log_params - jnp.log(2.0 * scenario.ff_ratio * scenario.active_experts)  # of L d^2
    power = jnp.log(scenario.reference_layers) + scenario.depth_exponent * (
        log_params - jnp.log(scenario.reference_params)
    )
    # Newton on L - exp(power) - kappa ln(d / d0), with d = sqrt(shape / L); exact at once where kappa is zero.
    offset = 0.5 * log_shape - jnp.log(scenario.log_depth_width)
    layers = jnp.exp(power) + larger(scenario.log_depth, 1.0)
    for _ in range(DEPTH_STEPS):
        excess = layers - jnp.exp(power) - scenario.log_depth * (offset - 0.5 * jnp.log(layers))
        # Slope 1 + kappa / (2 L); a layer at least.
        layers = larger(layers - excess / (1.0 + 0.5 * scenario.log_depth / layers), 1.0)
    log_layers = jnp.log(layers)
    # d = sqrt(shape / L)
    return log_layers, 0.5 * (log_shape - log_layers)


def workload(log_flop: Float[ArrayLike, ""], scenario: FrontierScenario) -> FrontierWork:
    """Model, data and batch by the scaling laws of a scenario.

    Args:
        log_flop: natural logarithm of the training compute [flop].
    """
    # T = 6 r N^2
    log_params = 0.5 * jnp.subtract(log_flop, jnp.log(6.0 * scenario.tokens_per_param))
    log_tokens = log_params + jnp.log(scenario.tokens_per_param)
    log_batch = (
        jnp.log(scenario.reference_batch)
        + scenario.batch_exponent * (log_flop - jnp.log(scenario.reference_flop))
        + jnp.log(scenario.batch_multiplier)
        + scenario.batch_sparsity_exponent * jnp.log(scenario.sparsity)
    )
    log_layers, log_width = depth_and_width(log_params, scenario)
    log_active = jnp.log(scenario.active_experts)
    return FrontierWork(
        log_params,
        log_tokens,
        # A batch is at most all data.
        smaller(log_batch, log_tokens),
        log_layers,
        log_width,
        log_width + jnp.log(scenario.ff_ratio),
        log_active + jnp.log(scenario.sparsity),
        log_active,
    )


def log_step_limit(work: FrontierWork, scenario: FrontierScenario) -> Array:
    """Longest time of a batch that lets the run end in time, t_train B / D, natural logarithm [s]."""
    return jnp.log(scenario.training_time) + work.log_batch - work.log_tokens


def log_ideal_chip_seconds(work: FrontierWork, scenario: FrontierScenario) -> Array:
    """Chips times seconds of a batch at the chip's peak, 6 N B / C, natural logarithm [chip s]."""
    return math.log(6.0) + work.log_params + work.log_batch - jnp.log(scenario.peak_flops)


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
    # ln(D / B)
    log_steps = log_params + jnp.log(scenario.tokens_per_param) - log_batch
    log_layers = jnp.log(scenario.reference_layers) + scenario.depth_exponent * (
        log_params - jnp.log(scenario.reference_params)
    )
    # ln((D / B) c tau L)
    log_taken = log_steps + log_layers + jnp.log(SEQUENTIAL_MATMULS * scenario.kernel_latency)
    distance = jnp.log(scenario.training_time) - log_taken
    # The inner `where` keeps gradients finite.
    return jnp.where(exponent > 0.0, log_start + distance / jnp.where(exponent > 0.0, exponent, 1.0), jnp.inf)
