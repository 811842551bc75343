r"""Primal-dual interior-point method with infeasible start, for exact optima in double precision.

The method suits a few candidates of any `Problem` in the unit cube, with any number of curved quantities in the limits:
arrays stay on the host, and only quantities and slopes are compiled, in a program shared with the search for rough
optima. For thousands of problems with feasible starts inside one compiled program, see `barrier`.

Slacks $s$ turn $g(u) \le 0$ into $g + s = 0$; each Newton step solves

$$ (H + J^T S^{-1} Z J)\, \delta u = -(\nabla f + J^T z) - J^T S^{-1} (\mu - S z + Z (g + s)) $$

with the Hessian H of the Lagrangian from central differences of the exact gradient, eigenvalues made positive, and
a line search on the $\ell_1$ merit $f - \mu \sum \ln s + \sum_j \nu_j \lvert g_j + s_j \rvert$; $\mu$ decreases once
the barrier problem is solved. A full step that fails by the curvature of the constraints alone gets a second-order
correction (Maratos effect).
References: Nocedal & Wright 2006, Numerical Optimization, section 19.3 (Fiacco-McCormick); Waechter & Biegler 2006,
Mathematical Programming 106, section 2.4 (correction).

The starts to refine are the best of a rough search; optima that did not converge are refined once more.

Rough search by the augmented Lagrangian, minimised by Adam from many starts at once:

$$ f(u) + \sum_j \frac{1}{2\rho} \left[\max(0, \lambda_j + \rho g_j(u))^2 - \lambda_j^2\right] $$

with multipliers $\lambda_j \leftarrow \max(0, \lambda_j + \rho g_j)$ after every round. The search finds the basin of
an optimum; the interior-point method makes the optimum exact. Reference: Nocedal & Wright 2006, Numerical Optimization,
algorithm 17.4.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxscale.optimise.problems import Goals, Optimum, Problems

EDGE = 1e-3
"""Least distance of starts and rough optima from the faces of the unit cube [1]."""

ROUNDS = 6
"""Number of rounds, each with an update of the multipliers [1]."""

FIRST_PENALTY, PENALTY_GROWTH = 3.0, 2.0
"""Penalty of the first round, and growth factor per round [1]."""


class Rough(NamedTuple):
    """Result of the rough search: approximate optima, one per start.

    Attributes:
        points: best point of each start [start, coordinate].
        merits: objective at the best point plus ten times the violations [start].
        path: points along the search [step, start, coordinate].
        trajectory: objective along the search, nan where a bound is violated by more than 1 % [step, start].
    """

    points: np.ndarray
    merits: np.ndarray
    path: np.ndarray
    trajectory: np.ndarray


def start_points(n_starts: int, n_coordinates: int, seed: int = 0) -> np.ndarray:
    """Random points around the middle of the cube; a larger `n_starts` keeps the earlier points [start, coordinate]."""
    generator = np.random.default_rng(seed)
    return generator.uniform(0.15, 0.75, (n_starts, n_coordinates))


def rough_search(starts: np.ndarray, problems: Problems, wanted: Goals, n_steps: int) -> Rough:
    """Minimise the augmented Lagrangian by Adam.

    Args:
        starts: start points [start, coordinate].
        problems: one problem per start.
        wanted: objective and bounds.
        n_steps: evaluations per start [1].

    Returns:
        The best point of each start.
    """
    import optax  # loaded in 0.1 s, which only a search by gradient waits for

    wanted = wanted.rows(np.arange(len(starts)))
    optimiser = optax.adam(optax.cosine_decay_schedule(0.06, n_steps, 0.02), b1=0.8, b2=0.95)
    update = jax.jit(optimiser.update)
    with jax.enable_x64(True):
        state = optimiser.init(jnp.asarray(starts))
    points, best, merits = starts, starts, np.full(len(starts), np.inf)
    multipliers, penalty = np.zeros_like(wanted.upper), FIRST_PENALTY
    path, trajectory = [], []
    for step in range(n_steps):
        values, slope = problems.pulled(points, wanted.weights, multipliers, penalty, wanted.upper)
        broken, objective = wanted.residuals(values), wanted.objective(values)
        violation = np.maximum(broken, 0.0)
        merit = objective + 10.0 * violation.sum(axis=-1)
        better = merit < merits
        best, merits = np.where(better[:, None], points, best), np.where(better, merit, merits)
        path.append(points)
        trajectory.append(np.where(violation.max(axis=-1) < 0.01, objective, np.nan))
        if step and step % max(n_steps // ROUNDS, 1) == 0:
            multipliers = np.maximum(multipliers + penalty * broken, 0.0)
            penalty *= PENALTY_GROWTH
        with jax.enable_x64(True):
            change, state = update(jnp.asarray(slope), state)
        points = np.clip(points + np.asarray(change), EDGE, 1.0 - EDGE)
    return Rough(best, merits, np.asarray(path), np.asarray(trajectory))


DISPLACEMENT, LEAST_DISPLACEMENT = 1e-5, 1e-9
"""Range of the step of central differences of the gradient, half the distance to the nearest face within it [1]."""

STEPS = tuple(0.5**k for k in range(1, 13))
"""Shares of the longest step with positive slacks, tried where the full step fails [1]."""

FLOOR, HIGHEST_FLOOR = 1e-6, 1e2
"""Range of the least eigenvalue of the Newton matrix, raised where a full step fails, like a trust region [1]."""

PENALTY_FACTOR, LEAST_PENALTY = 2.0, 1e-2
"""Penalty of a violation relative to the multiplier, and for a zero multiplier; larger penalties stop steps along
bounds [1]."""

LOWEST_BARRIER = 1e-11
"""Final barrier parameter [1]."""

CORRECTIONS = 2
"""Largest number of second-order corrections of a full step [1]."""

PATIENCE = 60
"""Steps after which a candidate is abandoned unless the residual has fallen by a tenth [1]."""


class _Local(NamedTuple):
    """Quantities, constraints and their gradients at a point, and the Hessian of the Lagrangian."""

    values: np.ndarray
    constraints: np.ndarray
    slope: np.ndarray
    jacobian: np.ndarray
    hessian: np.ndarray


def _constraints(points: np.ndarray, values: np.ndarray, wanted: Goals, bounded: np.ndarray) -> np.ndarray:
    """Constraints g: bounds, then the faces of the unit cube [..., constraint]."""
    return np.concatenate([wanted.residuals(values)[..., bounded], -points, points - 1.0], axis=-1)


def _local(points: np.ndarray, problems: Problems, wanted: Goals, bounded: np.ndarray, z: np.ndarray) -> _Local:
    count, size = points.shape
    reach = np.clip(0.5 * np.minimum(points, 1.0 - points), LEAST_DISPLACEMENT, DISPLACEMENT)
    shifts = np.concatenate([np.zeros((1 + len(bounded), size)), np.eye(size), -np.eye(size)])
    cloud = points[:, None, :] + reach[:, None, :] * shifts
    force = np.repeat(wanted.weights[:, None, :], cloud.shape[1], axis=1)
    single, whole = slice(1, 1 + len(bounded)), slice(1 + len(bounded), None)
    force[:, single] = np.eye(force.shape[-1])[bounded]
    force[:, whole, bounded] += z[:, None, : len(bounded)]
    rows = np.repeat(np.arange(count), cloud.shape[1])
    values, slopes = problems.rows(rows).pulled(cloud.reshape(-1, size), force.reshape(len(rows), -1))
    values, slopes = values.reshape(count, -1, values.shape[-1])[:, 0], slopes.reshape(count, -1, size)
    ahead, behind = slopes[:, whole][:, :size], slopes[:, whole][:, size:]
    second = (ahead - behind) / (2.0 * reach[..., None])
    faces = np.broadcast_to(np.eye(size), (count, size, size))
    jacobian = np.concatenate([slopes[:, single], -faces, faces], axis=1)
    constraints = _constraints(points, values, wanted, bounded)
    return _Local(values, constraints, slopes[:, 0], jacobian, 0.5 * (second + np.swapaxes(second, -1, -2)))


def _newton(
    here: _Local, s: np.ndarray, z: np.ndarray, mu: np.ndarray, floor: np.ndarray, primal: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Newton steps of points, slacks and multipliers, which remove the violation `primal` of g + s = 0."""
    pull, jacobian = z / s, here.jacobian
    matrix = here.hessian + np.einsum("cji,cj,cjk->cik", jacobian, pull, jacobian)
    target = mu[:, None] / s + pull * primal
    right = -(here.slope + np.einsum("cji,cj->ci", jacobian, target))
    eigenvalues, vectors = np.linalg.eigh(matrix)
    # Absolute eigenvalues turn directions of negative curvature into descent directions.
    scaled = np.einsum("cij,ci->cj", vectors, right) / np.maximum(np.abs(eigenvalues), floor[:, None])
    du = np.einsum("cij,cj->ci", vectors, scaled)
    ds = -primal - np.einsum("cji,ci->cj", jacobian, du)
    return du, ds, mu[:, None] / s - z - pull * ds


def _longest(value: np.ndarray, change: np.ndarray, keep: float) -> np.ndarray:
    """Longest step that leaves at least the share 1 - keep of every positive number [candidate]."""
    ratio = np.where(change < 0.0, -keep * value / np.where(change < 0.0, change, -1.0), np.inf)
    return np.minimum(ratio.min(axis=-1), 1.0)


class _Search(NamedTuple):
    """Iterates of all candidates, with the merit functions."""

    points: np.ndarray
    slacks: np.ndarray
    here: _Local
    problems: Problems
    wanted: Goals
    bounded: np.ndarray
    z: np.ndarray
    mu: np.ndarray
    floor: np.ndarray

    def now(self) -> np.ndarray:
        """Merit at the present iterates [candidate]."""
        missed = self.here.constraints + self.slacks
        return self._merit(self.wanted.objective(self.here.values), self.slacks, missed, self.z, self.mu)

    def after(self, rows: np.ndarray, du: np.ndarray, ds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Merit and g + s of selected candidates after a step; infinite where the merit is nan."""
        points, slacks = self.points[rows] + du, self.slacks[rows] + ds
        values, wanted = self.problems.rows(rows).values(points), self.wanted.rows(rows)
        missed = _constraints(points, values, wanted, self.bounded) + slacks
        merit = self._merit(wanted.objective(values), slacks, missed, self.z[rows], self.mu[rows])
        return np.where(np.isfinite(merit), merit, np.inf), missed

    @staticmethod
    def _merit(objective: np.ndarray, slacks: np.ndarray, missed: np.ndarray, z: np.ndarray, mu: np.ndarray) -> Any:
        penalties = PENALTY_FACTOR * z + LEAST_PENALTY
        return objective - mu * np.log(slacks).sum(-1) + (penalties * np.abs(missed)).sum(-1)

    def rows(self, picked: np.ndarray) -> tuple[_Local, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Local problem, slacks, multipliers, barrier and eigenvalue floor of selected candidates."""
        here = _Local(*(part[picked] for part in self.here))
        return here, self.slacks[picked], self.z[picked], self.mu[picked], self.floor[picked]


def _search(search: _Search) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Steps of points, slacks and multipliers: full, else corrected, else shortened; next eigenvalue floor."""
    rows = np.arange(len(search.points))
    primal = search.here.constraints + search.slacks
    du, ds, dz = _newton(*search.rows(rows), primal)
    allowed = search.now()
    # Near the optimum, changes of the merit are within rounding; the tolerance accepts such steps.
    allowed = allowed + 1e-12 * np.abs(allowed)
    longest = _longest(search.slacks, ds, 0.995)[:, None]
    point_change, slack_change = longest * du, longest * ds
    merit, missed = search.after(rows, point_change, slack_change)
    failed = np.flatnonzero(merit > allowed)
    target = longest * primal
    for _ in range(CORRECTIONS):
        target = target + missed
        if not len(failed):
            break
        corrected, slack, _ = _newton(*search.rows(failed), target[failed])
        share = _longest(search.slacks[failed], slack, 0.995)[:, None]
        merit, missed[failed] = search.after(failed, share * corrected, share * slack)
        good = merit <= allowed[failed]
        point_change[failed[good]], slack_change[failed[good]] = (share * corrected)[good], (share * slack)[good]
        failed = failed[~good]
    floor = np.maximum(0.1 * search.floor, FLOOR)
    if len(failed):
        shares = _backtrack(search, failed, point_change, slack_change, allowed)
        point_change[failed], slack_change[failed] = shares * point_change[failed], shares * slack_change[failed]
        floor[failed] = np.minimum(search.floor[failed] / shares[:, 0], HIGHEST_FLOOR)
    return point_change, slack_change, _longest(search.z, dz, 0.995)[:, None] * dz, floor


def _backtrack(search: _Search, failed: np.ndarray, du: np.ndarray, ds: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Longest tried share of a step that lowers the merit, else the share of least merit [failed, 1]."""
    rows, shares = np.repeat(failed, len(STEPS)), np.tile(STEPS, len(failed))[:, None]
    merit, _ = search.after(rows, shares * du[rows], shares * ds[rows])
    merit = merit.reshape(len(failed), -1)
    lower = merit <= allowed[failed, None]
    pick = np.where(lower.any(axis=1), lower.argmax(axis=1), merit.argmin(axis=1))
    return np.asarray(STEPS)[pick][:, None]


FINISHED = 1e-8
"""KKT residual at which a candidate is finished [1]."""


def polish(points: np.ndarray, problems: Problems, wanted: Goals, n_steps: int = 200) -> Optimum:
    """Refine rough points to optima by the interior-point method.

    Args:
        points: start points [candidate, coordinate].
        problems: one problem per candidate.
        wanted: objective and bounds, common to all candidates or per candidate.
        n_steps: largest number of Newton steps [1].

    Returns:
        The point of least KKT residual of each candidate.
    """
    # Starts keep a distance from the faces, where slacks would vanish.
    points = np.clip(points, 1e-2, 1.0 - 1e-2)
    live, bounded = np.arange(len(points)), wanted.bounded()
    wanted = wanted.rows(live)
    values = problems.values(points)
    unknown = np.full(len(points), np.inf)
    best = Optimum(points.copy(), values.copy(), np.zeros_like(values), unknown.copy(), unknown.copy())
    mu, since, mark = np.full(len(points), 1e-2), np.zeros(len(points), int), np.full(len(points), np.inf)
    s = np.maximum(-_constraints(points, values, wanted, bounded), 1e-2)
    z, floor = mu[:, None] / s, np.full(len(points), FLOOR)
    for _ in range(n_steps):
        here = _local(points, problems, wanted, bounded, z)
        primal, product = np.abs(here.constraints + s).max(-1), s * z
        stationarity = here.slope + np.einsum("cji,cj->ci", here.jacobian, z)
        dual = np.abs(stationarity).max(-1) / np.maximum(1.0, np.abs(z).max(-1))
        residual = np.maximum(np.maximum(dual, here.constraints.max(-1)), product.max(-1))
        objective = wanted.objective(here.values)
        iterate = Optimum(points, here.values, z[:, : len(bounded)], objective, residual)
        _keep_better(best, live, iterate, bounded)
        improved = residual < 0.9 * mark
        since, mark = np.where(improved, 0, since + 1), np.where(improved, residual, mark)
        going = (residual >= FINISHED) & (since < PATIENCE) & np.isfinite(here.hessian).all(axis=(1, 2))
        if not going.any():
            break
        solved = np.maximum(np.maximum(dual, primal), np.abs(product - mu[:, None]).max(-1)) < 10.0 * mu
        mu = np.where(solved, np.maximum(np.minimum(0.2 * mu, mu**1.5), LOWEST_BARRIER), mu)
        # Finished candidates leave the batch, so that the remaining steps cost less.
        kept = (live, points, s, z, mu, since, mark, floor)
        live, points, s, z, mu, since, mark, floor = (part[going] for part in kept)
        here = _Local(*(part[going] for part in here))
        problems, wanted = problems.rows(going), wanted.rows(going)
        du, ds, dz, floor = _search(_Search(points, s, here, problems, wanted, bounded, z, mu, floor))
        points, s, z = points + du, s + ds, z + dz
        # Slacks may grow up to the room of the constraint; multipliers stay within a range around mu / s.
        z = np.clip(z, mu[:, None] / (1e8 * s), 1e8 * mu[:, None] / s)
    return best


def _keep_better(best: Optimum, live: np.ndarray, here: Optimum, bounded: np.ndarray) -> None:
    """Overwrite the best iterate of each candidate with the present iterate if its residual is lower."""
    lower = np.flatnonzero(here.residual < best.residual[live])
    rows = live[lower]
    best.point[rows], best.values[rows] = here.point[lower], here.values[lower]
    best.multipliers[rows[:, None], bounded] = here.multipliers[lower]
    best.objective[rows], best.residual[rows] = here.objective[lower], here.residual[lower]


CONVERGED = 1e-6
"""Largest KKT residual of a certified optimum [1]."""

UNCERTAIN = 1e-3
"""Error of an uncertified optimum, in the logarithm of objective or bound [1]."""


def promising(merits: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Order in which starts are refined: the best of each group, then the second best of each, and so on [start]."""
    order = np.argsort(merits, kind="stable")
    place = np.zeros(len(order), int)
    for group in np.unique(groups):
        members = groups[order] == group
        place[members] = np.arange(members.sum())
    return order[np.argsort(place, kind="stable")]


def best_candidate(optimum: Optimum, wanted: Goals) -> int:
    """Row of the feasible candidate of least objective; an uncertified candidate must be better by `UNCERTAIN`."""
    objective = wanted.objective(optimum.values) + UNCERTAIN * (optimum.residual > CONVERGED)
    kept = wanted.residuals(optimum.values).max(axis=-1) <= UNCERTAIN
    return int(np.argmin(np.where(kept, objective, np.inf) if kept.any() else optimum.residual))


def certify(optimum: Optimum, rows: np.ndarray, problems: Problems, wanted: Goals) -> Optimum:
    """Optima after a second interior-point run for the unconverged rows among `rows`."""
    failed = rows[optimum.residual[rows] > CONVERGED]
    if not len(failed):
        return optimum
    again = polish(optimum.point[failed], problems.rows(failed), wanted.rows(failed))
    lower = again.residual < optimum.residual[failed]
    merged = Optimum(*(part.copy() for part in optimum))
    for part, new in zip(merged, again, strict=True):
        part[failed[lower]] = new[lower]
    return merged
