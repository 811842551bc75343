"""One weight matrix, one microbatch, forward and backward: arithmetic and traffic to memory."""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxscale.limits.frontier.degrees import DP, EP, PP, TP_FF, TP_WIDTH, Degrees
from jaxscale.limits.frontier.frontier_scenario import FrontierScenario
from jaxscale.limits.frontier.scaling_laws import FrontierWork

N_MATMULS = 3.0
"""Matmuls of a weight matrix: forward, and backward for activations and for weights [1]."""


class Slice(NamedTuple):
    """Slice of a matrix and a microbatch on one chip, as natural logarithms.

    Attributes:
        tokens: token visits to the chip's experts, b k / EP [token].
        width: rows of the slice, w_m.
        ff: columns of the slice, w_f.
        experts: experts on the chip, E / EP.
        matrices: weight matrices on the chip, of each expert, 2 L / PP.
    """

    tokens: Array
    width: Array
    ff: Array
    experts: Array
    matrices: Array

    @property
    def weights(self) -> Array:
        """Weights of one layer's matrix on the chip, all its experts."""
        return self.experts + self.width + self.ff


def local_slice(degrees: Degrees, work: FrontierWork) -> Slice:
    """Slice of a matrix and a microbatch on one chip."""
    groups = degrees.groups
    return Slice(
        work.log_batch + work.log_active - groups[DP] - groups[EP] - degrees.n_microbatches,
        work.log_width - groups[TP_WIDTH],
        work.log_ff - groups[TP_FF],
        work.log_experts - groups[EP],
        math.log(2.0) + work.log_layers - groups[PP],
    )


def arithmetic_time(local: Slice, scenario: FrontierScenario) -> Array:
    """Time of the arithmetic, 2 * 3 b w_m w_f / (u C) [s]."""
    rate = scenario.max_utilisation * scenario.peak_flops
    return 2.0 * N_MATMULS * jnp.exp(local.tokens + local.width + local.ff - jnp.log(rate))


def memory_time(local: Slice, scenario: FrontierScenario) -> Array:
    """Time to move weights and activations to and from DRAM, 3 p (w_m w_f + b w_m + b w_f) / W [s]."""
    words: Float[Array, " 3"] = jnp.stack([local.weights, local.tokens + local.width, local.tokens + local.ff])
    sizes = jnp.stack([scenario.weight_bytes, scenario.activation_bytes, scenario.activation_bytes])
    return N_MATMULS * jnp.sum(sizes * jnp.exp(words - jnp.log(scenario.memory_bandwidth)))
