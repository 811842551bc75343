"""Pareto front: the least loss within each of many times, with energy and size along the front."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from jaxscale.designs.design_result import RelaxedDesign
from jaxscale.designs.design_space import Design
from jaxscale.optimise.batches import Problems
from jaxscale.optimise.goals import Goals
from jaxscale.optimise.interior_point import polish


class Front(NamedTuple):
    """Relaxed optima along a bound.

    Attributes:
        bounds: value of the bound [front].
        quantities: quantities in SI units, by name of the goals, each [front].
        prices: d ln objective / d ln bound [front].
        residuals: KKT residuals; a large residual marks an unreliable point [front].
        designs: the continuous designs.
    """

    bounds: Float[np.ndarray, " front"]
    quantities: dict[str, np.ndarray]
    prices: Float[np.ndarray, " front"]
    residuals: Float[np.ndarray, " front"]
    designs: list[Design]


def pareto_front(relaxed: RelaxedDesign, wanted: Goals, name: str, bounds: Sequence[float]) -> Front:
    """Optima for many values of a bound, each started from the previous optimum.

    Args:
        relaxed: an optimum to start from.
        wanted: goals of the optimum.
        name: the varied bound, of the goals.
        bounds: values of the bound, SI units, in order.

    Returns:
        The front as arrays.
    """
    point, problem, index = relaxed.point, Problems.of([relaxed.problem]), wanted.names.index(name)
    values, prices, residuals, designs = [], [], [], []
    for bound in bounds:
        # Bounds of goals are logs.
        optimum = polish(point[None], problem, wanted.with_bound(name, float(np.log(bound))))
        # The following bound starts from the optimum.
        point = optimum.point[0]
        values.append(np.exp(optimum.values[0]))
        # d ln objective / d ln bound = -multiplier
        prices.append(-optimum.multipliers[0, index])
        residuals.append(optimum.residual[0])
        designs.append(relaxed.problem.design_at(point))
    columns = dict(zip(wanted.names, np.asarray(values).T, strict=True))
    return Front(np.asarray(bounds, float), columns, np.asarray(prices), np.asarray(residuals), designs)
