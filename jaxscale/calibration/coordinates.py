"""Unconstrained coordinates of coefficients: the log of a positive value, the logit of a fraction."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxscale.calibration.coefficients import Coefficients, from_values, priors, values_of


@functools.cache
def _fractions() -> np.ndarray:
    return np.asarray([prior.kind == "fraction" for prior in priors().values()])


def constrain(unconstrained: Float[Array, "*batch coefficient"]) -> Coefficients:
    """Coefficients in their own units: exp, or the logistic function for fractions."""
    values = constrain_values(unconstrained)
    return from_values([values[..., index] for index in range(values.shape[-1])])


def constrain_values(unconstrained: Any) -> Any:
    """Values of coefficients in their own units, of arrays of the host or of JAX [..., coefficient]."""
    xp = jnp if isinstance(unconstrained, jax.Array) else np
    bounded = xp.clip(unconstrained, -80.0, 80.0)  # keeps exp finite in float32 too
    return xp.where(_fractions(), 1.0 / (1.0 + xp.exp(-bounded)), xp.exp(bounded))


def slope_of_values(unconstrained: np.ndarray) -> np.ndarray:
    """Change of each value for one of its coordinate: the value v where that is its log, v (1 - v) where its logit."""
    values = constrain_values(unconstrained)
    return np.where(_fractions(), values * (1.0 - values), values)


def unconstrain(coefficients: Coefficients) -> np.ndarray:
    """Coordinates of coefficient values, in field order: log, or logit for fractions [coefficient]."""
    values = np.asarray(values_of(coefficients))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(_fractions(), np.log(values) - np.log1p(-values), np.log(values))
