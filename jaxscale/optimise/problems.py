"""Interfaces of constrained minimisation: problems, goals and optima, common to all searches.

A problem is a module of numbers: objective and limits are functions of the logarithms that `log_quantities(point)`
returns. Three solvers minimise problems:

* `interior_point.rough_search`: from scattered starts to the basin of an optimum, limits violated during the search;
* `interior_point.polish`: from rough points, possibly infeasible, to optima in double precision, on the host;
* `barrier.minimise`: from feasible points, for thousands of problems inside one compiled program.

Problems of equal structure are the rows of a matrix, evaluated in blocks of one fixed size: every search, every budget
and every perturbed problem of a structure shares one compilation.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxscale.base.arrays import in_blocks_of, stacked
from jaxscale.base.errors import InputError, check_known
from jaxscale.base.jit import filter_jit

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
        """Natural logarithm of the bound on one quantity."""
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
    """Optimisation problem: logarithms of named quantities as a function of the coordinates of a point."""

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


BLOCK = 64
"""Points per call: many enough to use all cores, few enough to waste little on padding [point]."""


@dataclass(frozen=True)
class LeafLayout:
    """Layout of a module's leaves in a row of numbers.

    Attributes:
        structure: tree structure of the module.
        shapes: shapes of the leaves.
    """

    structure: Any
    shapes: tuple[tuple[int, ...], ...]

    def module(self, numbers: Array) -> Any:
        """Module from one row of numbers."""
        ends = np.cumsum([math.prod(shape) for shape in self.shapes])
        parts = [numbers[end - math.prod(shape) : end] for end, shape in zip(ends, self.shapes, strict=True)]
        leaves = [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        return jax.tree.unflatten(self.structure, leaves)


def leaf_matrix(module: Any, count: int) -> tuple[Float[np.ndarray, "row number"], LeafLayout]:
    """Leaves of a stacked module, each [row, ...], concatenated to one matrix, with the layout of a row."""
    leaves, structure = jax.tree.flatten(module)
    arrays = [np.asarray(leaf, np.float64) for leaf in leaves]
    numbers = np.concatenate([leaf.reshape(count, -1) for leaf in arrays], axis=1)
    return numbers, LeafLayout(structure, tuple(leaf.shape[1:] for leaf in arrays))


@dataclass(frozen=True)
class Problems:
    """Problems of equal structure, as the rows of a matrix.

    Attributes:
        numbers: leaves of the problems [problem, number].
        layout: layout of a row.
        names: names of the quantities, in order.
    """

    numbers: Float[np.ndarray, "problem number"]
    layout: LeafLayout
    names: tuple[str, ...]

    @classmethod
    def of(cls, problems: Sequence[Problem]) -> "Problems":
        """Matrix of problems of equal structure."""
        return cls(*leaf_matrix(stacked(problems), len(problems)), problems[0].names)

    def rows(self, picked: np.ndarray) -> "Problems":
        """Selected problems, with repetition."""
        return replace(self, numbers=self.numbers[picked])

    def values(self, points: np.ndarray) -> np.ndarray:
        """Log quantities, at one point per problem [problem, quantity]."""
        # The program with slopes is reused: compiling a second program takes longer than thousands of evaluations.
        return self.pulled(points, np.zeros((len(points), len(self.names))))[0]

    def pulled(
        self,
        points: np.ndarray,
        force: np.ndarray,
        multipliers: ArrayLike = 0.0,
        penalty: float = 0.0,
        upper: Any = 0.0,
    ) -> tuple[np.ndarray, np.ndarray]:
        r"""Log quantities v and the gradient of a weighted sum of v.

        The weight of each quantity is $w + \max(0, \lambda + \rho (v - b))$: $\rho = 0$ and $\lambda = 0$ give the
        gradient of $w \cdot v$, further values that of the augmented Lagrangian.

        Args:
            points: one point per problem [problem, coordinate].
            force: w [problem, quantity].
            multipliers: lambda [problem, quantity].
            penalty: rho [1].
            upper: b, log bounds [problem, quantity].

        Returns:
            Values [problem, quantity] and gradients [problem, coordinate].
        """
        multipliers, upper = (np.broadcast_to(np.asarray(part), force.shape) for part in (multipliers, upper))
        columns = (points, self.numbers, force, multipliers, np.full(len(points), penalty), upper)
        values, slopes = in_blocks(_pulled, BLOCK, columns, self.layout)
        return values, slopes

    def jacobian(self, points: np.ndarray, picked: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Log quantities [problem, quantity] and gradients of picked quantities [problem, picked, coordinate]."""
        rows = np.repeat(np.arange(len(points)), len(picked))
        force = np.tile(np.eye(len(self.names))[np.asarray(picked)], (len(points), 1))
        values, slopes = self.rows(rows).pulled(points[rows], force)
        return values[:: len(picked)], slopes.reshape(len(points), len(picked), -1)


@filter_jit
def _pulled(
    points: Array,
    numbers: Array,
    force: Array,
    multipliers: Array,
    penalty: Array,
    upper: Array,
    layout: LeafLayout,
) -> tuple[Array, Array]:
    def one(point: Array, row: Array, w: Array, held: Array, rho: Array, bound: Array) -> tuple[Array, Array]:
        values, back = jax.vjp(layout.module(row).log_quantities, point)
        return values, back(w + jnp.maximum(held + rho * (values - bound), 0.0))[0]

    return jax.vmap(one)(points, numbers, force, multipliers, penalty, upper)


def in_blocks(
    function: Callable[..., Any], size: int, columns: tuple[np.ndarray, ...], *fixed: Any
) -> tuple[np.ndarray, ...]:
    """Evaluate a compiled function of columns in blocks of rows, in double precision.

    Args:
        function: function from columns and the fixed arguments to a tuple of columns.
        size: rows per call; the last call is padded [1].
        columns: columns, each [row, ...].
        fixed: arguments passed on unchanged.

    Returns:
        The columns returned by the function.
    """
    doubles = tuple(np.asarray(column, np.float64) for column in columns)
    with jax.enable_x64(True):
        return in_blocks_of(size, lambda block: function(*block, *fixed), doubles)
