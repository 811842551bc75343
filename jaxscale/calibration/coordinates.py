"""Unconstrained coordinates of coefficients: the log of a positive value, the logit of a fraction."""

import functools

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxscale.calibration.coefficients import Coefficients, from_values, priors, values_of


@functools.cache
def _fractions() -> np.ndarray:
    return np.asarray([prior.kind == "fraction" for prior in priors().values()])


def constrain(unconstrained: Float[Array, "*batch coefficient"]) -> Coefficients:
    """Coefficients in their own units: exp, or the logistic function for fractions."""
    bounded = jnp.clip(unconstrained, -80.0, 80.0)  # keeps exp finite in float32 too
    values = jnp.where(_fractions(), 1.0 / (1.0 + jnp.exp(-bounded)), jnp.exp(bounded))
    return from_values([values[..., index] for index in range(values.shape[-1])])


def constrain_values(unconstrained: np.ndarray) -> np.ndarray:
    """The same as `constrain` on the host, as one array [..., coefficient]."""
    bounded = np.clip(unconstrained, -80.0, 80.0)
    return np.where(_fractions(), 1.0 / (1.0 + np.exp(-bounded)), np.exp(bounded))


def slope_of_values(unconstrained: np.ndarray) -> np.ndarray:
    """Change of each value for one of its coordinate: the value v where that is its log, v (1 - v) where its logit."""
    values = constrain_values(unconstrained)
    return np.where(_fractions(), values * (1.0 - values), values)


def unconstrain(coefficients: Coefficients) -> np.ndarray:
    """Coordinates of coefficient values, in field order: log, or logit for fractions [coefficient]."""
    values = np.asarray(values_of(coefficients))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(_fractions(), np.log(values) - np.log1p(-values), np.log(values))
