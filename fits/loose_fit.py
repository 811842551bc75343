r"""Fit of the law of looseness of `data/islands.toml` to measured losses.

The rise of the loss is $\rho = c\, (N / 10^9)^{-g} (M - 1)^p (H / 30)^h$.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
from jaxtyping import Array, Float

from jaxscale.base.errors import InputError
from jaxscale.base.jit import filter_jit
from jaxscale.islands.fleet_days import LooseFit, LooseLaw

FITTED = ("coefficient", "params_exponent", "replicas_exponent", "steps_exponent")
"""Numbers that a fit finds, in order; the first by its logarithm."""

START = (-5.0, 0.2, 0.8, 0.5)
"""Logarithm of c, g, p and h from which a search starts."""

Column = Float[np.ndarray, " run"]
"""Numbers of several runs."""


def _law(numbers: Array) -> LooseLaw:
    return LooseLaw(jnp.exp(numbers[0]), numbers[1], numbers[2], numbers[3], 0.0)


@filter_jit
def _fitted(columns: tuple[Array, Array, Array, Array], free: Array) -> tuple[Array, Array, Array]:
    params, replicas, steps, rise = columns
    start = jnp.asarray(START)

    def misses(moves: Array, _: object) -> Array:
        numbers = start + free * moves
        excess = _law(numbers).over_one_replica(params, replicas, steps) - rise
        # In units of a thousandth the objective is of order one; what is given stays where it is.
        return jnp.concatenate([1e3 * excess, (1.0 - free) * moves])

    solver = optx.LevenbergMarquardt(rtol=1e-10, atol=1e-10)
    moves = optx.least_squares(misses, solver, jnp.zeros(len(START)), max_steps=1000, throw=False).value
    slopes = jax.jacobian(misses)(moves, None)
    return start + free * moves, slopes, misses(moves, None)[: len(rise)] / 1e3


def fit_loose_law(n_params: Column, replicas: Column, inner_steps: Column, rise: Column) -> LooseFit:
    """Law of looseness from rises of the loss over one replica, by least squares.

    Args:
        n_params: N [1], [run].
        replicas: M, above one [1], [run].
        inner_steps: H [1], [run]; its exponent stays at 0.5 where all are equal.
        rise: relative rise of the loss [1], [run].

    Returns:
        The law, without a gain of the outer momentum, and its uncertainty.

    Raises:
        InputError: columns that are not equally long, fewer than six runs, or a single replica.
    """
    columns = [np.asarray(column, float) for column in (n_params, replicas, inner_steps, rise)]
    count = len(columns[0])
    if any(column.shape != (count,) for column in columns) or count < 6:
        raise InputError("fit_loose_law: expected four columns of at least six numbers, equally long")
    if not np.all(columns[1] > 1.0):
        raise InputError("fit_loose_law: a run has one replica; expected runs of several, against one of them")
    free = np.ones(len(START))
    free[3] = float(np.ptp(columns[2]) > 0.0)
    with jax.enable_x64(True):
        params, counts, steps, rises = (jnp.asarray(column) for column in columns)
        solution = _fitted((params, counts, steps, rises), jnp.asarray(free))
    numbers, slopes, misses = (np.asarray(part) for part in solution)
    variance = np.sum(misses**2) / (count - free.sum())
    covariance = np.linalg.inv(slopes.T @ slopes) * variance * 1e6
    widths = np.sqrt(np.diag(covariance)) * free
    deviation = {name: float(width) for name, width in zip(FITTED, widths, strict=True)}
    values = dict(zip(FITTED, [float(np.exp(numbers[0])), *numbers[1:].tolist()], strict=True))
    law = LooseLaw(**values, outer_gain=0.0)
    return LooseFit("own", law, spreads={"centre": deviation}, rms=float(np.sqrt(np.mean(misses**2))))
