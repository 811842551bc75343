r"""Rough search by the augmented Lagrangian, minimised by Adam from many starts at once.

$$ f(u) + \sum_j \frac{1}{2\rho} \left[\max(0, \lambda_j + \rho g_j(u))^2 - \lambda_j^2\right] $$

with multipliers $\lambda_j \leftarrow \max(0, \lambda_j + \rho g_j)$ after every round. The search finds the basin of
an optimum; the interior-point method makes the optimum exact. Reference: Nocedal & Wright 2006, Numerical Optimization,
algorithm 17.4.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxscale.optimise.batches import Problems
from jaxscale.optimise.problems import Goals

EDGE = 1e-3
"""Least distance of starts and rough optima from the faces of the unit cube [1]."""

ROUNDS = 6
"""Number of rounds, each with an update of the multipliers [1]."""

FIRST_PENALTY, PENALTY_GROWTH = 3.0, 2.0
"""Penalty of the first round, and growth factor per round [1]."""


class Rough(NamedTuple):
    """Rough optima, one per start.

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
