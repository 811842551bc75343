"""What a search minimises and what it must keep to, as linear functions of the quantities of a design."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from jaxscale.designs.quantities import N_QUANTITIES, QUANTITIES
from jaxscale.errors import InputError

UNBOUNDED = 100.0
"""Log of a bound that no quantity reaches [1]."""


@dataclass(frozen=True)
class Goals:
    """Objective and bounds, in the order of the quantities; one for all problems or one row for each.

    Attributes:
        weights: of the logarithms in the objective [1].
        upper: log of the largest value allowed.
    """

    weights: Float[np.ndarray, "*problem quantity"]
    upper: Float[np.ndarray, "*problem quantity"]

    def with_bound(self, name: str, log_bound: float) -> "Goals":
        """The same goals with another bound on one of `QUANTITIES`."""
        upper = self.upper.copy()
        upper[..., QUANTITIES.index(name)] = log_bound
        return replace(self, upper=upper)

    def bound(self, name: str) -> float:
        """Log of the bound on one of `QUANTITIES`."""
        return float(self.upper[QUANTITIES.index(name)])

    def rows(self, picked: np.ndarray) -> "Goals":
        """One row for each of the picked problems."""
        if self.weights.ndim == 1:
            shape = (len(picked), len(self.weights))
            return Goals(np.broadcast_to(self.weights, shape), np.broadcast_to(self.upper, shape))
        return Goals(self.weights[picked], self.upper[picked])

    def bounded(self) -> np.ndarray:
        """Indices of the quantities that are bounded in any problem."""
        return np.flatnonzero(np.atleast_2d(self.upper).min(axis=0) < UNBOUNDED)

    def objective(self, values: np.ndarray) -> np.ndarray:
        """Weighted sum of log quantities [...]."""
        return np.asarray(np.sum(values * self.weights, axis=-1))

    def residuals(self, values: np.ndarray) -> np.ndarray:
        """Constraints, satisfied where not positive: log value less log bound [..., quantity]."""
        return values - self.upper


def goals(minimise: dict[str, float], bounds: Mapping[str, float | int]) -> Goals:
    """Goals by name.

    Args:
        minimise: weights of the logarithms of quantities [1].
        bounds: largest values of quantities, SI units.

    Returns:
        The goals in logarithms.

    Raises:
        InputError: a quantity that does not exist, or a bound that is not positive.
    """
    for name in (*minimise, *bounds):
        if name not in QUANTITIES:
            raise InputError(f"quantity {name!r} is unknown; expected one of {', '.join(QUANTITIES)}")
    for name, bound in bounds.items():
        if not 0.0 < bound < np.inf:
            raise InputError(f"bound on {name} = {bound!r} is out of range; expected a number above 0")
    weights, upper = np.zeros(N_QUANTITIES), np.full(N_QUANTITIES, UNBOUNDED)
    for name, weight in minimise.items():
        weights[QUANTITIES.index(name)] = weight
    for name, bound in bounds.items():
        upper[QUANTITIES.index(name)] = np.log(bound)
    return Goals(weights, upper)
