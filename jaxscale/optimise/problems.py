"""Interfaces of constrained minimisation: problems and optima, common to all searches.

A problem is a module of numbers: objective and limits are functions of the logarithms that `log_quantities(point)`
returns. Three solvers take problems:

* `lagrangian.rough_search`: from scattered starts to the basin of an optimum, limits violated during the search;
* `interior_point.polish`: from rough points, possibly infeasible, to optima in double precision, on the host;
* `barrier.minimise`: from feasible points, for thousands of problems inside one compiled program.
"""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Array, Float

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
