"""Problems of constrained minimisation and optima: the vocabulary that all searches share.

A problem is a module of numbers that judges points: objective and limits are made of the logarithms that
`log_quantities(point)` gives. Three solvers take problems:

* `lagrangian.rough_search`: from scattered starts to the right valley, limits broken on the way;
* `interior_point.polish`: from rough points, which may break limits, to optima in double precision, on the host;
* `barrier.minimise`: from points that keep every limit, for thousands of problems inside one compiled program.
"""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Array, Float

Numbers = Any
"""Array of the host, by `interior_point.polish`, or of JAX, by `barrier.minimise`."""


@runtime_checkable
class Problem(Protocol):
    """A module of numbers that judges points."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the quantities, in order."""
        ...

    def log_quantities(self, point: Float[Array, " coordinate"]) -> Float[Array, " quantity"]:
        """Natural logarithms of the quantities at a point."""
        ...


@runtime_checkable
class CurvedProblem(Problem, Protocol):
    r"""A problem of one curved quantity q, the rest linear, as `barrier.minimise` solves.

    $\min_u g \cdot u + q(u)$ subject to $A u \le a$ and, as the last limit, $q(u) - e \le b$. The coordinate e is an
    excess, by which limits may be missed at a price in g, so that every problem has a point that keeps its limits.
    """

    def objective(self, point: Float[Array, " coordinate"], values: Float[Array, " 1"]) -> Float[Array, ""]:
        """Objective, given the log quantity at the point."""
        ...

    def slacks(self, point: Float[Array, " coordinate"], values: Float[Array, " 1"]) -> Float[Array, " limit"]:
        """Room left in every limit, the curved one last, given the log quantity at the point."""
        ...

    def slopes(
        self, point: Float[Array, " coordinate"], slope: Float[Array, " coordinate"]
    ) -> tuple[Float[Array, " coordinate"], Float[Array, "limit coordinate"]]:
        """Slopes of the objective and of every limit, given that of the log quantity."""
        ...

    def multiplier_scale(self, multipliers: Float[Array, " limit"]) -> Float[Array, ""]:
        """Largest multiplier, that of the excess left out: next to its price everything would look stationary."""
        ...


class Optimum(NamedTuple):
    """Optima of problems with certificates, as arrays of the host or of JAX.

    Attributes:
        point: coordinates [*problem, coordinate].
        values: log quantities [*problem, quantity].
        multipliers: of the limits [*problem, limit].
        objective: minimised value [*problem].
        residual: KKT residual, the largest of scaled stationarity, violation and complementarity [1], [*problem].
    """

    point: Numbers
    values: Numbers
    multipliers: Numbers
    objective: Numbers
    residual: Numbers

    def rows(self, picked: np.ndarray) -> "Optimum":
        """Optima of some of the problems."""
        return Optimum(*(part[picked] for part in self))
