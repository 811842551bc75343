"""Order of islands in a ring or a chain: exact by dynamic programme, or by all permutations.

The slowest hop bounds a ring: the best order is the tour whose longest hop is shortest (bottleneck travelling
salesman), or the one of least sum for messages that pass through all hops.
Reference: Held and Karp 1962, doi 10.1137/0110015.
"""

import itertools
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from jaxscale.base.errors import InputError

MOST_EXACT = 14
"""Islands up to which the dynamic programme runs: $2^{14} \\cdot 14^2$ steps take a second [1]."""

ROUNDING = 1e-15
"""Gain up to which an order counts as no better, so that a search ends [1]."""

MOST_PERMUTED = 7
"""Islands up to which all permutations are tried: 5,040 of them [1]."""

Goal = Literal["slowest", "sum"]
"""What counts of the hops: the slowest one, or their sum."""


class RingOrder(NamedTuple):
    """Order of islands.

    Attributes:
        order: islands in turn [island].
        cost: slowest hop, or sum of hops, in the unit of the costs.
        exact: whether no other order is better.
    """

    order: Int[np.ndarray, " island"]
    cost: float
    exact: bool


def order_cost(costs: Float[np.ndarray, "island island"], order: np.ndarray, goal: Goal, closed: bool = True) -> float:
    """Cost of one order.

    Args:
        costs: of each hop, sender first.
        order: islands in turn [island].
        goal: what counts of the hops.
        closed: whether the last island passes on to the first one.

    Returns:
        The cost; zero for one island.
    """
    following = np.roll(order, -1) if closed else order[1:]
    hops = costs[order if closed else order[:-1], following]
    if len(order) < 2:
        return 0.0
    return float(hops.max() if goal == "slowest" else hops.sum())


def best_order(costs: np.ndarray, goal: Goal = "slowest", closed: bool = True) -> RingOrder:
    """Best order of islands.

    Args:
        costs: of each hop, such as seconds, sender first; they may differ both ways [island, island].
        goal: what counts of the hops.
        closed: whether the last island passes on to the first one.

    Returns:
        The order: exact up to `MOST_EXACT` islands, beyond by exchanges of two islands from a greedy start.

    Raises:
        InputError: costs that are no square matrix.
    """
    matrix = np.asarray(costs, float)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"costs of hops have the shape {matrix.shape}; expected a square matrix over islands")
    count = len(matrix)
    if count <= 2:
        order = np.arange(count)
        back = not closed and count == 2 and matrix[1, 0] < matrix[0, 1]
        order = order[::-1] if back else order
        return RingOrder(order, order_cost(matrix, order, goal, closed), True)
    if count <= MOST_EXACT:
        order = _held_karp(matrix, goal, closed)
        return RingOrder(order, order_cost(matrix, order, goal, closed), True)
    order, cost = improved_order(lambda tried: order_cost(matrix, tried, goal, closed), _greedy(matrix))
    return RingOrder(order, cost, False)


def best_permutation(score: Callable[[np.ndarray], float], count: int) -> tuple[np.ndarray, float]:
    """Order of least score out of all permutations.

    Args:
        score: of one order.
        count: number of islands, at most `MOST_PERMUTED` [1].

    Returns:
        The order [island] and its score.

    Raises:
        InputError: too many islands.
    """
    if count > MOST_PERMUTED:
        raise InputError(f"{count} islands have too many orders; expected at most {MOST_PERMUTED}")
    orders = [np.asarray(order) for order in itertools.permutations(range(count))]
    scores = [score(order) for order in orders]
    place = int(np.argmin(scores))
    return orders[place], scores[place]


def _held_karp(costs: np.ndarray, goal: Goal, closed: bool) -> np.ndarray:
    """Best order by dynamic programme over sets of visited islands."""
    count = len(costs)
    join = np.maximum if goal == "slowest" else np.add
    # A ring may start anywhere; a chain starts at each island, which an extra island without costs stands for.
    matrix = costs if closed else np.pad(costs, ((0, 1), (0, 1)))
    size = len(matrix)
    start, others = size - 1, size - 1
    sets = 1 << others
    best = np.full((sets, others), np.inf)
    came = np.zeros((sets, others), np.int8)
    best[1 << np.arange(others), np.arange(others)] = matrix[start, :others]
    members = (np.arange(sets)[:, None] >> np.arange(others)) & 1
    sizes = members.sum(axis=1)
    for length in range(2, others + 1):
        rows = np.flatnonzero(sizes == length)
        for last in range(others):
            here = rows[members[rows, last] == 1]
            options = join(best[here ^ (1 << last)], matrix[:others, last][None, :])
            came[here, last] = np.argmin(options, axis=1)
            best[here, last] = np.min(options, axis=1)
    ends = join(best[-1], matrix[:others, start])
    last, chosen = int(np.argmin(ends)), sets - 1
    order = [last]
    while len(order) < others:
        before = int(came[chosen, last])
        chosen ^= 1 << last
        last = before
        order.append(last)
    return np.asarray([start, *order[::-1]] if count == size else order[::-1])


def _greedy(costs: np.ndarray) -> np.ndarray:
    """Order that always goes on over the cheapest hop."""
    left, order = set(range(1, len(costs))), [0]
    while left:
        following = min(left, key=lambda island: costs[order[-1], island])
        order.append(following)
        left.remove(following)
    return np.asarray(order)


def improved_order(
    score: Callable[[np.ndarray], float], order: np.ndarray, *, moves: bool = False
) -> tuple[np.ndarray, float]:
    """Order improved by exchanges of two places and reversals of parts, until none helps, and its score.

    Args:
        score: of an order; the less the better.
        order: where to begin.
        moves: whether single places may move elsewhere, too.
    """
    best, cost, improves = order, score(order), True
    while improves:
        improves = False
        for first, second in itertools.combinations(range(len(order)), 2):
            swapped = best.copy()
            swapped[[first, second]] = swapped[[second, first]]
            turned = np.concatenate([best[:first], best[first : second + 1][::-1], best[second + 1 :]])
            moved = [np.insert(np.delete(best, first), second, best[first])] if moves else []
            for candidate in (swapped, turned, *moved):
                value = score(candidate)
                if value < cost - ROUNDING:
                    best, cost, improves = candidate, value, True
    return best, cost
