r"""Exact optimum: primal-dual interior point, many candidates at once, in double precision.

Slacks $s$ turn $g(u) \le 0$ into $g + s = 0$; each Newton step solves

$$ (H + J^T S^{-1} Z J)\, \delta u = -(\nabla f + J^T z) - J^T S^{-1} (\mu - S z + Z (g + s)) $$

with the Hessian H of the Lagrangian from central differences of exact slopes, its eigenvalues made positive, and a line
search on the $\ell_1$ merit $f - \mu \sum \ln s + \nu \lVert g + s \rVert_1$; $\mu$ falls once its problem is solved.
Reference: Nocedal & Wright 2006, Numerical Optimization, section 19.3 (Fiacco-McCormick).
"""

from typing import Any, NamedTuple

import numpy as np

from jaxscale.choose.constraints import Goals, residual_slopes, residuals
from jaxscale.choose.design_space import N_COORDINATES
from jaxscale.choose.quantities import QUANTITIES, evaluate, take

DISPLACEMENT = 1e-5
"""Of the central differences of the slopes [1]."""

STEPS = tuple(0.5**k for k in range(12))
"""Step lengths that the line search tries at once, of the longest that keeps slacks positive [1]."""

FLOOR = 1e-6
"""Smallest eigenvalue of the Newton matrix [1]."""

LOWEST_BARRIER = 1e-11
"""Where the barrier ends [1]."""


class Optimum(NamedTuple):
    """What the interior point found, for each candidate.

    Attributes:
        points: [candidate, coordinate].
        values: log quantities [candidate, quantity].
        multipliers: of `CONSTRAINTS` [candidate, constraint].
        residual: largest of scaled stationarity, violation and complementarity, the KKT residual [candidate].
    """

    points: np.ndarray
    values: np.ndarray
    multipliers: np.ndarray
    residual: np.ndarray


def _all_constraints(points: np.ndarray, values: np.ndarray, wanted: Goals) -> np.ndarray:
    return np.concatenate([residuals(values, wanted), -points, points - 1.0], axis=-1)


def _all_slopes(slopes: np.ndarray) -> np.ndarray:
    faces = np.broadcast_to(np.eye(N_COORDINATES), (len(slopes), N_COORDINATES, N_COORDINATES))
    return np.concatenate([residual_slopes(slopes), -faces, faces], axis=-2)


def _displaced(points: np.ndarray) -> np.ndarray:
    """Each point, then its displaced copies [candidate, 1 + 2 coordinate, coordinate]."""
    shifts = DISPLACEMENT * np.eye(N_COORDINATES)
    return points[:, None, :] + np.concatenate([np.zeros((1, N_COORDINATES)), shifts, -shifts])[None]


def _evaluate_with_curvature(points: np.ndarray, settings: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values, slopes and second slopes [candidate, quantity, coordinate, coordinate]."""
    cloud = _displaced(points)
    count, size = cloud.shape[:2]
    rows = np.repeat(np.arange(count), size)
    values, slopes = evaluate(cloud.reshape(-1, N_COORDINATES), take(settings, rows))
    values, slopes = values.reshape(count, size, -1), slopes.reshape(count, size, -1, N_COORDINATES)
    ahead, behind = slopes[:, 1 : 1 + N_COORDINATES], slopes[:, 1 + N_COORDINATES :]
    second = np.moveaxis(ahead - behind, 1, -1) / (2.0 * DISPLACEMENT)
    return values[:, 0], slopes[:, 0], 0.5 * (second + np.swapaxes(second, -1, -2))


def _newton(
    hessian: np.ndarray, slope: np.ndarray, jacobian: np.ndarray, g: np.ndarray, s: np.ndarray, z: np.ndarray, mu: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps of points, slacks and multipliers."""
    pull = z / s
    primal = g + s
    matrix = hessian + np.einsum("cji,cj,cjk->cik", jacobian, pull, jacobian)
    target = mu[:, None] / s + pull * primal
    right = -(slope + np.einsum("cji,cj->ci", jacobian, target))
    eigenvalues, vectors = np.linalg.eigh(matrix)
    scaled = np.einsum("cij,ci->cj", vectors, right) / np.maximum(np.abs(eigenvalues), FLOOR)
    du = np.einsum("cij,cj->ci", vectors, scaled)
    ds = -primal - np.einsum("cji,ci->cj", jacobian, du)
    return du, ds, mu[:, None] / s - z - pull * ds


def _longest(value: np.ndarray, change: np.ndarray, keep: Any) -> np.ndarray:
    """Longest step that leaves the share 1 - keep of every positive number [candidate]."""
    ratio = np.where(change < 0.0, -keep * value / np.where(change < 0.0, change, -1.0), np.inf)
    return np.minimum(ratio.min(axis=-1), 1.0)


def _line_search(
    points: np.ndarray, s: np.ndarray, steps: tuple[np.ndarray, ...], settings: Any, wanted: Goals, mu: Any, nu: Any
) -> np.ndarray:
    """The longest tried step that lowers the merit, else the one of least merit [candidate]."""
    du, ds = steps
    longest = _longest(s, ds, 0.995)
    lengths = longest[:, None] * np.asarray((0.0, *STEPS))
    tried = points[:, None] + lengths[..., None] * du[:, None]
    slacks = s[:, None] + lengths[..., None] * ds[:, None]
    rows = np.repeat(np.arange(len(points)), lengths.shape[1])
    values, _ = evaluate(tried.reshape(-1, N_COORDINATES), take(settings, rows))
    g = _all_constraints(tried.reshape(-1, N_COORDINATES), values, wanted).reshape(slacks.shape)
    objective = (values @ wanted.weights).reshape(lengths.shape)
    merit = objective - mu[:, None] * np.log(slacks).sum(-1) + nu[:, None] * np.abs(g + slacks).sum(-1)
    merit = np.where(np.isfinite(merit), merit, np.inf)
    lower = merit[:, 1:] <= merit[:, :1] + 1e-12 * np.abs(merit[:, :1])
    pick = np.where(lower.any(axis=1), lower.argmax(axis=1), merit[:, 1:].argmin(axis=1))
    return lengths[np.arange(len(points)), 1 + pick]


def polish(points: np.ndarray, settings: Any, wanted: Goals, n_steps: int = 120, tolerance: float = 1e-8) -> Optimum:
    """Interior-point optimum from rough points.

    Args:
        points: [candidate, coordinate].
        settings: one for each candidate, stacked.
        wanted: objective and bounds.
        n_steps: Newton steps at most.
        tolerance: KKT residual at which to stop [1].

    Returns:
        The point of least KKT residual of each candidate.
    """
    points = np.clip(points, 1e-2, 1.0 - 1e-2)
    mu = np.full(len(points), 1e-2)
    best: Optimum | None = None
    s = z = np.zeros(0)
    for step in range(n_steps):
        values, slopes, second = _evaluate_with_curvature(points, settings)
        g, jacobian = _all_constraints(points, values, wanted), _all_slopes(slopes)
        if step == 0:
            s = np.maximum(-g, 1e-2)
            z = mu[:, None] / s
        n_quantities = values.shape[-1]
        force = wanted.weights + z[:, :n_quantities]
        force[:, QUANTITIES.index("params")] -= z[:, n_quantities]
        hessian = np.einsum("cq,cqij->cij", force, second)
        slope = np.einsum("q,cqi->ci", wanted.weights, slopes)
        dual = np.abs(slope + np.einsum("cji,cj->ci", jacobian, z)).max(-1) / np.maximum(1.0, np.abs(z).max(-1))
        primal, product = np.abs(g + s).max(-1), s * z
        residual = np.maximum(np.maximum(dual, np.maximum(g.max(-1), 0.0)), product.max(-1))
        found = Optimum(points, values, z[:, : n_quantities + 1], residual)
        best = found if best is None else _better(best, found)
        if (best.residual < tolerance).all():
            break
        solved = np.maximum(np.maximum(dual, primal), np.abs(product - mu[:, None]).max(-1)) < 10.0 * mu
        mu = np.where(solved, np.maximum(np.minimum(0.2 * mu, mu**1.5), LOWEST_BARRIER), mu)
        du, ds, dz = _newton(hessian, slope, jacobian, g, s, z, mu)
        nu = 2.0 * np.abs(z).max(-1) + 1.0
        length = _line_search(points, s, (du, ds), settings, wanted, mu, nu)
        points, s = points + length[:, None] * du, s + length[:, None] * ds
        z = z + _longest(z, dz, 0.995)[:, None] * dz
        # Slacks may grow to what the constraint leaves; multipliers stay near mu / s.
        z = np.clip(z, mu[:, None] / (1e8 * s), 1e8 * mu[:, None] / s)
    assert best is not None
    return best


def _better(first: Optimum, second: Optimum) -> Optimum:
    improved = second.residual < first.residual

    def merge(old: np.ndarray, new: np.ndarray) -> np.ndarray:
        return np.where(improved.reshape((-1,) + (1,) * (new.ndim - 1)), new, old)

    return Optimum(*(merge(old, new) for old, new in zip(first, second, strict=True)))
