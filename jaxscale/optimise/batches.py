"""Batched evaluation of problems at many points in one compiled `vmap`, in double precision.

Problems of equal structure are the rows of a matrix, evaluated in blocks of one fixed size: every search, every budget
and every perturbed problem of a structure shares one compilation.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxscale.base.arrays import in_blocks_of, stacked
from jaxscale.base.jit import filter_jit
from jaxscale.optimise.problems import Problem

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
