"""What a search minimises and what it must keep to, as linear functions of the quantities of a design."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from jaxscale.choose.quantities import N_QUANTITIES, QUANTITIES
from jaxscale.errors import InputError

UNBOUNDED = 100.0
"""Log of a bound that no quantity reaches [1]."""


@dataclass(frozen=True)
class Goals:
    """Objective and bounds, in the order of `QUANTITIES`.

    Attributes:
        weights: of the logarithms in the objective [1].
        upper: log of the largest value allowed.
        least_params: log of the fewest parameters.
    """

    weights: Float[np.ndarray, " quantity"]
    upper: Float[np.ndarray, " quantity"]
    least_params: float

    def with_bound(self, name: str, log_bound: float) -> "Goals":
        """The same goals with another bound."""
        upper = self.upper.copy()
        upper[QUANTITIES.index(name)] = log_bound
        return replace(self, upper=upper)

    def bound(self, name: str) -> float:
        """Log of the bound on a quantity."""
        return float(self.upper[QUANTITIES.index(name)])


CONSTRAINTS = (*QUANTITIES, "least_params")
"""One for each upper bound, and one for the lower bound on the parameters."""


def goals(minimise: dict[str, float], bounds: Mapping[str, float | int], least_params: float | None = None) -> Goals:
    """Goals by name.

    Args:
        minimise: weights of the logarithms of quantities [1].
        bounds: largest values of quantities, SI units.
        least_params: fewest parameters [1].

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
    return Goals(weights, upper, -UNBOUNDED if least_params is None else float(np.log(least_params)))


def residuals(values: np.ndarray, wanted: Goals) -> np.ndarray:
    """Constraints of designs, satisfied where not positive: log value less log bound [design, constraint]."""
    above = values - wanted.upper
    below = wanted.least_params - values[..., QUANTITIES.index("params")]
    return np.concatenate([above, below[..., None]], axis=-1)


def residual_slopes(slopes: np.ndarray) -> np.ndarray:
    """Slopes of `residuals` from those of the quantities [design, constraint, coordinate]."""
    params = QUANTITIES.index("params")
    return np.concatenate([slopes, -slopes[..., params : params + 1, :]], axis=-2)
