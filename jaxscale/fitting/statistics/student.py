r"""Student's t distribution as likelihood of all fits: loss, weights, pseudo-residuals and scale of errors.

$\rho(x) = \frac{\nu + 1}{2} \ln(1 + x^2 / \nu)$ is minus the log density up to a constant: normal near zero, a power
law in the tails, so that mislabelled runs have little influence. Reference: Lange et al. 1989, doi 10.2307/2290063.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

DEGREES_OF_FREEDOM = 3.0
"""Student's nu, of runs and of effects: heavy tails tolerate mislabelled rows (Lange et al. 1989, section 5), and
stacks with a single large deviation, without a pull on the pool (Gelman et al. 2013, Bayesian Data Analysis, section
17.2) [1]."""

SCALE_STEPS = 10
"""Steps of expectation maximisation towards a scale [1]."""


def student_loss(standardised: Float[ArrayLike, "*error"], freedom: float = DEGREES_OF_FREEDOM) -> Array:
    r"""Negative log density of standardised errors up to a constant, $\rho(x)$ of the module [1]."""
    return 0.5 * (freedom + 1.0) * jnp.log1p(jnp.asarray(standardised) ** 2 / freedom)


def student_weight(standardised: Float[ArrayLike, "*error"]) -> Array:
    r"""Weight of standardised errors in reweighted least squares, $\rho'(x) / x = (\nu + 1) / (\nu + x^2)$ [1]."""
    nu = DEGREES_OF_FREEDOM
    return (nu + 1.0) / (nu + jnp.asarray(standardised) ** 2)


def robust(standardised: Array) -> Array:
    r"""Pseudo-residual of a standardised error or effect: a signed number with the square $2 \rho$ [1]."""
    nu = DEGREES_OF_FREEDOM
    square = standardised**2 / nu
    # log1p(x) / x stays smooth through zero, where the square root of the loss has a kink.
    ratio = jnp.where(square > 1e-8, jnp.log1p(square) / jnp.maximum(square, 1e-8), 1.0 - 0.5 * square)
    return standardised * jnp.sqrt((nu + 1.0) / nu * ratio)


def robust_slope(standardised: Array) -> Array:
    """Derivative of `robust` [1]."""
    return jax.jvp(robust, (standardised,), (jnp.ones_like(standardised),))[1]


def student_scale(errors: Float[np.ndarray, " error"], start: float, bounds: tuple[float, float]) -> float:
    """Maximum-likelihood scale of errors about zero, by expectation maximisation.

    Args:
        errors: errors, in any unit [error].
        start: initial scale, in the unit of the errors.
        bounds: bounds of the scale, in the unit of the errors.

    Returns:
        The scale, in the unit of the errors.
    """
    scale = start
    for _ in range(SCALE_STEPS):
        # Expectation: weights at the present scale; maximisation: weighted variance.
        weights = np.asarray(student_weight(errors / scale))
        scale = float(np.clip(np.sqrt((weights * errors**2).mean()), *bounds))
    return scale
