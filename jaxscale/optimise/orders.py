"""Search for the best order by exchanges: of islands in a ring or chain, or of the nodes of a plan."""

import itertools
import sys
from collections.abc import Callable

import numpy as np

ROUNDING = 1e-15
"""Largest gain of an order that counts as rounding error, so that a search ends [1]."""


def greedy_order(costs: np.ndarray) -> np.ndarray:
    """Nearest-neighbour order of islands from island 0: each next island is the one with the cheapest hop.

    Args:
        costs: cost of a hop [sender, receiver].
    """
    left, order = set(range(1, len(costs))), [0]
    while left:
        following = min(left, key=lambda island: costs[order[-1], island])
        order.append(following)
        left.remove(following)
    return np.asarray(order)


def improved_order(
    score: Callable[[np.ndarray], float], order: np.ndarray, most: int = sys.maxsize
) -> tuple[np.ndarray, float]:
    """Order improved by swaps and reversals until no change helps, and the score of the order.

    Args:
        score: score of an order; smaller is better.
        order: initial order.
        most: largest number of scored orders [1].
    """
    best, cost, improves, left = order, score(order), True, most
    while improves:
        improves = False
        for first, second in itertools.combinations(range(len(order)), 2):
            swapped = best.copy()
            swapped[[first, second]] = swapped[[second, first]]
            turned = np.concatenate([best[:first], best[first : second + 1][::-1], best[second + 1 :]])
            for candidate in (swapped, turned):
                if not left:
                    return best, cost
                value, left = score(candidate), left - 1
                # Equal scores up to rounding would swap for ever.
                if value < cost - ROUNDING:
                    best, cost, improves = candidate, value, True
    return best, cost
