"""Interfaces of constrained minimisation: problems, goals and optima, common to all searches.

A problem is a module of numbers: objective and limits are functions of the logarithms that `log_quantities(point)`
returns. Three solvers take problems:

* `lagrangian.rough_search`: from scattered starts to the basin of an optimum, limits violated during the search;
* `interior_point.polish`: from rough points, possibly infeasible, to optima in double precision, on the host;
* `barrier.minimise`: from feasible points, for thousands of problems inside one compiled program.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Array, Float

from jaxscale.base.errors import InputError, check_known

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
        check_known("quantity", name, names)
    for name, bound in bounds.items():
        if not 0.0 < bound < np.inf:
            raise InputError(f"bound on {name} = {bound!r} is out of range; expected a number above 0")
    weights, upper = np.zeros(len(names)), np.full(len(names), UNBOUNDED)
    for name, weight in minimise.items():
        weights[names.index(name)] = weight
    for name, bound in bounds.items():
        upper[names.index(name)] = np.log(bound)
    return Goals(tuple(names), weights, upper)


Numbers = Any
"""Array of numpy in `interior_point.polish`, of JAX in `barrier.minimise`."""


@runtime_checkable
class Problem(Protocol):
    """Module of numbers that evaluates log quantities at points."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the quantities, in order."""
        ...

    def log_quantities(self, point: Float[Array, " coordinate"]) -> Float[Array, " quantity"]:
        """Natural logarithms of the quantities at a point."""
        ...


@runtime_checkable
class CurvedProblem(Problem, Protocol):
    r"""Problem with one curved quantity q, linear otherwise, for `barrier.minimise`.

    $\min_u g \cdot u + q(u)$ subject to $A u \le a$ and, as the last limit, $q(u) - e \le b$. The coordinate e is an
    excess by which limits may be exceeded at a price in g, so that every problem has a feasible point.
    """

    def objective(self, point: Float[Array, " coordinate"], values: Float[Array, " 1"]) -> Float[Array, ""]:
        """Objective, given the log quantity at the point."""
        ...

    def slacks(self, point: Float[Array, " coordinate"], values: Float[Array, " 1"]) -> Float[Array, " limit"]:
        """Slack of every limit, the curved limit last, given the log quantity at the point."""
        ...

    def slopes(
        self, point: Float[Array, " coordinate"], slope: Float[Array, " coordinate"]
    ) -> tuple[Float[Array, " coordinate"], Float[Array, "limit coordinate"]]:
        """Gradients of the objective and of every limit, given the gradient of the log quantity."""
        ...

    def multiplier_scale(self, multipliers: Float[Array, " limit"]) -> Float[Array, ""]:
        """Largest multiplier except that of the excess, whose high price would make every residual look small."""
        ...


class Optimum(NamedTuple):
    """Optima of problems with certificates, as arrays of numpy or JAX.

    Attributes:
        point: coordinates [*problem, coordinate].
        values: log quantities [*problem, quantity].
        multipliers: Lagrange multipliers of the limits [*problem, limit].
        objective: minimised value [*problem].
        residual: KKT residual, the largest of scaled stationarity, violation and complementarity [1], [*problem].
    """

    point: Numbers
    values: Numbers
    multipliers: Numbers
    objective: Numbers
    residual: Numbers

    def rows(self, picked: np.ndarray) -> "Optimum":
        """Optima of selected problems."""
        return Optimum(*(part[picked] for part in self))
