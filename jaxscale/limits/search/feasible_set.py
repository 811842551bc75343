"""Coordinates of relaxed plans, and the limits on them that are linear in logarithms.

A plan is a point u: logarithms of the degrees of the five groups, of m and of i, the expert-parallel one as its
share of ln E, which a dense model has too; and an excess, by which deadline and memory may be missed at a price. Limits
read A u <= a.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxscale.base.smooth import larger
from jaxscale.limits.frontier.degrees import DP, EP, PP, TP_FF, TP_WIDTH, Degrees
from jaxscale.limits.frontier.frontier_scenario import FrontierScenario
from jaxscale.limits.frontier.scaling_laws import FrontierWork

N_GROUPS = 5
MICRO, INTERLEAVE, EXCESS = range(N_GROUPS, 8)
N_COORDINATES = 8
N_DEGREES = 7
N_LINEAR = 14
"""Rows of A: eight lower bounds, the expert share, batch, depth, two widths, memory."""

MARGIN = 1e-6
"""Smallest range of a coordinate, e-folds: the feasible set keeps an interior where a degree can only be one [1]."""


def degrees_at(point: Float[Array, " 8"], work: FrontierWork) -> Degrees:
    """The plan at a point."""
    groups = point[:N_GROUPS].at[EP].multiply(work.log_experts)
    return Degrees(groups, point[MICRO], point[INTERLEAVE])


class LinearLimits(NamedTuple):
    """Linear limits A u <= a.

    Attributes:
        matrix: A [limit, coordinate].
        bound: a [limit].
    """

    matrix: Float[Array, "14 8"]
    bound: Float[Array, " 14"]


def log_state_bytes(work: FrontierWork, scenario: FrontierScenario) -> Array:
    """Weights, gradients and optimizer state of the whole model, natural logarithm [byte]."""
    per_param = scenario.weight_bytes + scenario.gradient_bytes + scenario.optimizer_bytes
    return work.log_params + work.log_experts - work.log_active + jnp.log(per_param)


def linear_limits(work: FrontierWork, scenario: FrontierScenario) -> LinearLimits:
    """Limits on the degrees: nothing below one, b >= 1, m DP <= B, PP i <= L, slices of a row at least, memory."""
    eye = jnp.eye(N_COORDINATES)
    upper = jnp.stack(
        [
            eye[EP],
            eye[DP] + eye[MICRO],
            eye[PP] + eye[INTERLEAVE],
            eye[TP_WIDTH],
            eye[TP_FF],
            -eye[TP_WIDTH] - eye[TP_FF] - eye[PP] - work.log_experts * eye[EP] - eye[EXCESS],
        ]
    )
    bound = jnp.stack(
        [
            jnp.ones_like(work.log_batch),
            larger(work.log_batch, MARGIN),
            larger(work.log_layers, MARGIN),
            larger(work.log_width, MARGIN),
            larger(work.log_ff, MARGIN),
            jnp.log(scenario.memory_bytes) - log_state_bytes(work, scenario),
        ]
    )
    return LinearLimits(jnp.concatenate([-eye, upper]), jnp.concatenate([jnp.zeros(N_COORDINATES), bound]))
