r"""Shadow prices: elasticity of the optimal objective in each bound and resource.

By the envelope theorem the slope of the optimal objective in any number p of the problem is the slope of the Lagrangian
with point and multipliers held: $dF^*/dp = \partial f/\partial p + \sum_j \lambda_j\, \partial g_j/\partial p$.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import numpy as np

from jaxscale.designs.quantities import DesignProblem
from jaxscale.designs.shape_problem import ShapeProblem
from jaxscale.optimise.problems import Goals, Optimum, Problems

AnyProblem = TypeVar("AnyProblem", bound=eqx.Module)

STEP = 1e-4
"""Log change of a resource in the central difference [1]."""

Path = Callable[[Any], Any]

RESOURCES: dict[str, tuple[Path, int | None]] = {
    "n_chips": (lambda s: s.cluster.n_chips, None),
    "peak_flops": (lambda s: s.cluster.chip.peak_flops, None),
    "hbm_bandwidth": (lambda s: s.cluster.chip.hbm_bandwidth, None),
    "scale_up_bandwidth": (lambda s: s.cluster.network.bandwidth, 0),
    "scale_out_bandwidth": (lambda s: s.cluster.network.bandwidth, 1),
    "scale_up_latency": (lambda s: s.cluster.network.latency, 0),
    "scale_out_latency": (lambda s: s.cluster.network.latency, 1),
}
"""Numbers of a problem with a price, by name; an index selects a network level."""

RUN_RESOURCES = {**RESOURCES, "failure_rate": (lambda s: s.laws.failure.failures_per_chip_second, None)}
"""Numbers with a price, for a problem that includes the length of the run."""


def with_more(problem: AnyProblem, resource: str, log_change: float) -> AnyProblem:
    """Problem with a resource changed by a log factor."""
    path, index = RUN_RESOURCES[resource]
    # A copy: the problem keeps the leaf.
    values = np.array(path(problem), float)
    values[... if index is None else (..., index)] *= np.exp(log_change)
    return eqx.tree_at(path, problem, values)


def shadow_prices(optimum: Optimum, row: int, problem: DesignProblem | ShapeProblem, wanted: Goals) -> dict[str, float]:
    """Elasticity of the optimal objective in every bound and resource.

    Args:
        optimum: stationary point of the Lagrangian.
        row: index of the candidate.
        problem: problem of the optimum.
        wanted: objective and bounds.

    Returns:
        d ln objective / d ln bound for each bound, then d ln objective / d ln resource for each resource [1].
    """
    multipliers = optimum.multipliers[row]
    # dF* / d ln b = -lambda
    prices = {f"bound_on_{wanted.names[index]}": -float(multipliers[index]) for index in wanted.bounded()}
    resources = RUN_RESOURCES if isinstance(problem, DesignProblem) else RESOURCES
    changed = [with_more(problem, name, sign * STEP) for name in resources for sign in (1.0, -1.0)]
    # Point and multipliers are held: envelope theorem.
    values = Problems.of(changed).values(np.repeat(optimum.point[row][None], len(changed), axis=0))
    # d(f + lambda g) / d ln p by central differences.
    slopes = (values[0::2] - values[1::2]) @ (wanted.weights + multipliers) / (2.0 * STEP)
    return {**prices, **{name: float(slope) for name, slope in zip(resources, slopes, strict=True)}}
