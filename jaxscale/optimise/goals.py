"""Goals of a minimisation: objective and upper bounds, linear in the quantities of a problem."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from jaxscale.base.errors import InputError

UNBOUNDED = 100.0
"""Log of a bound that exceeds all quantities, used for no bound [1]."""


@dataclass(frozen=True)
class Goals:
    """Objective and upper bounds, linear in log quantities; common to all problems or one row per problem.

    Attributes:
        names: names of the quantities, in the order of `Problem.log_quantities`.
        weights: weights of the logarithms in the objective [1].
        upper: logarithms of the upper bounds.
    """

    names: tuple[str, ...]
    weights: Float[np.ndarray, "*problem quantity"]
    upper: Float[np.ndarray, "*problem quantity"]

    def with_bound(self, name: str, log_bound: float) -> "Goals":
        """Copy of the goals with a changed bound on one quantity."""
        upper = self.upper.copy()
        upper[..., self.names.index(name)] = log_bound
        return replace(self, upper=upper)

    def bound(self, name: str) -> float:
        """Log of the bound on one quantity."""
        return float(self.upper[self.names.index(name)])

    def rows(self, picked: np.ndarray) -> "Goals":
        """Goals of selected problems, one row per problem."""
        if self.weights.ndim == 1:
            shape = (len(picked), len(self.weights))
            return replace(self, weights=np.broadcast_to(self.weights, shape), upper=np.broadcast_to(self.upper, shape))
        return replace(self, weights=self.weights[picked], upper=self.upper[picked])

    def bounded(self) -> np.ndarray:
        """Indices of the quantities with a bound in any problem."""
        return np.flatnonzero(np.atleast_2d(self.upper).min(axis=0) < UNBOUNDED)

    def objective(self, values: np.ndarray) -> np.ndarray:
        """Weighted sum of log quantities [...]."""
        return np.asarray(np.sum(values * self.weights, axis=-1))

    def residuals(self, values: np.ndarray) -> np.ndarray:
        """Constraints g = ln(value) - ln(bound), satisfied for g <= 0 [..., quantity]."""
        return values - self.upper


def goals(names: Sequence[str], minimise: Mapping[str, float], bounds: Mapping[str, float | int]) -> Goals:
    """Objective and bounds from mappings by name.

    Args:
        names: names of the quantities, in the order of `Problem.log_quantities`.
        minimise: weights of the logarithms of quantities [1].
        bounds: upper bounds of quantities, SI units.

    Returns:
        The goals in logarithms.

    Raises:
        InputError: an unknown quantity, or a bound that is not positive.
    """
    for name in (*minimise, *bounds):
        if name not in names:
            raise InputError(f"quantity {name!r} is unknown; expected one of {', '.join(names)}")
    for name, bound in bounds.items():
        if not 0.0 < bound < np.inf:
            raise InputError(f"bound on {name} = {bound!r} is out of range; expected a number above 0")
    weights, upper = np.zeros(len(names)), np.full(len(names), UNBOUNDED)
    for name, weight in minimise.items():
        weights[names.index(name)] = weight
    for name, bound in bounds.items():
        upper[names.index(name)] = np.log(bound)
    return Goals(tuple(names), weights, upper)
