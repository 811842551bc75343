"""Robust least squares of positive numbers: their logarithms are searched, misses beyond their scale count linearly."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import optimistix as optx
from jaxtyping import Array


def bounded(misses: Array) -> Array:
    r"""Signed square root of the pseudo-Huber loss, $2 (\sqrt{1 + x^2} - 1)$, of misses in units of their scale [1]."""
    return misses * jnp.sqrt(2.0 / (1.0 + jnp.sqrt(1.0 + misses**2)))


def least_squares_fit(residuals: Callable[[Array, Any], Array], start: Array, args: Any) -> Array:
    """Point of least squares by Levenberg and Marquardt.

    Args:
        residuals: of a point and further arguments.
        start: first point.
        args: further arguments.

    Returns:
        The point.
    """
    solver = optx.LevenbergMarquardt(rtol=1e-8, atol=1e-8)
    return optx.least_squares(residuals, solver, start, args=args, max_steps=500, throw=False).value
