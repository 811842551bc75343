r"""Shares of the batch among islands of unequal pace.

The least time of the slowest of islands, $\min_{B_i} \max_i (o_i + r_i B_i)$ with $\sum_i B_i = B$, is that of an equal
finish of all active islands,

$$ T^* = \frac{B + \sum_i o_i / r_i}{\sum_i 1 / r_i}, \qquad B_i = (T^* - o_i) / r_i , $$

where an island with $o_i > T^*$ gets nothing (condition of Karush, Kuhn and Tucker). It is the fixed point of schemes
that move work from islands that finish late (Ma et al. 2021, arXiv 2110.07029).
"""

import heapq

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxscale.base.errors import InputError
from jaxscale.base.smooth import larger
from jaxscale.islands.pace import Pace


def equal_finish(offset: ArrayLike, seconds_per_sequence: ArrayLike, sequences: ArrayLike) -> tuple[Array, Array]:
    """Least time of a step over all divisions of its batch, and the division.

    Args:
        offset: o, time that no share changes [s], [island].
        seconds_per_sequence: r [s], [island].
        sequences: B [sequence].

    Returns:
        T* [s] and the sequences of each island [island]; both differentiate.
    """
    late, slow = jnp.asarray(offset), jnp.asarray(seconds_per_sequence)
    order = jnp.argsort(late)
    # The active islands are the first ones by offset; every other prefix finishes later, so the least one is theirs.
    work = jnp.cumsum(late[order] / slow[order])
    rate = jnp.cumsum(1.0 / slow[order])
    finish = jnp.min((jnp.asarray(sequences) + work) / rate)
    return finish, larger((finish - late) / slow, 0.0)


def best_shares(pace: Pace, sequences: ArrayLike) -> Array:
    """Shares of the batch under which all active islands finish together [1], [island]."""
    _, given = equal_finish(pace.offset, pace.seconds_per_sequence, sequences)
    return given / jnp.sum(given)


def _host_times(pace: Pace) -> tuple[np.ndarray, np.ndarray]:
    """Offset and reciprocal pace on the host [s], [island]."""
    slow = np.asarray(pace.seconds_per_sequence, float)
    return np.asarray(pace.base_time, float) - slow * np.asarray(pace.base_sequences, float), slow


def least_finish(pace: Pace, sequences: float) -> float:
    """Time of an equal finish, as that of `equal_finish`, on the host [s]."""
    offset, slow = _host_times(pace)
    order = np.argsort(offset)
    work = np.cumsum((offset / slow)[order])
    return float(np.min((sequences + work) / np.cumsum(1.0 / slow[order])))


def whole_shares(pace: Pace, sequences: int) -> Float[np.ndarray, " island"]:
    """Sequences of each island in whole granules, of least time of the slowest island.

    Granules go one after another to the island that would finish it first: exact for the least maximum of increasing
    functions where granules are equal. The last granule of the batch may be cut.

    Args:
        pace: of the islands.
        sequences: B [sequence].

    Returns:
        Whole numbers that add up to B [sequence], [island].

    Raises:
        InputError: a batch below one sequence.
    """
    if sequences < 1:
        raise InputError(f"batch = {sequences} is out of range; expected at least one sequence")
    offset, slow = _host_times(pace)
    granule = np.asarray(pace.granule, float)
    ideal = (least_finish(pace, float(sequences)) - offset) / slow
    # All but the last granules follow from the equal finish: no optimum leaves an island two granules below it.
    given = granule * np.maximum(np.floor(ideal / granule) - 1.0, 0.0)
    finish = [(offset[i] + slow[i] * (given[i] + granule[i]), i) for i in range(len(granule))]
    heapq.heapify(finish)
    left = sequences - given.sum()
    while left > 0.0:
        _, island = heapq.heappop(finish)
        taken = min(granule[island], left)
        given[island] += taken
        left -= taken
        heapq.heappush(finish, (offset[island] + slow[island] * (given[island] + granule[island]), island))
    return given
