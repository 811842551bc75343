"""How the branches of a block can run: one after another, or at the same time on disjoint GPUs."""

import functools
import itertools
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from jaxscale.burst.networks.layer_graph import MAX_BRANCHES


class ShareTable(NamedTuple):
    """Ways to run the branches of a block at the same time.

    A flavour is a share of the cluster, the fraction 2^-d of its GPUs, and a place: at home, on GPUs of the block's
    entry, or away. Flavour 0 is the whole cluster at home: plain layers, and branches one after another.

    Attributes:
        exponent: d by flavour [1].
        away: by flavour; the branch's input and output cross to other GPUs.
        flavour: by number of branches (minus 1), split and branch [1].
        exists: which splits a number of branches has.
    """

    exponent: Int[np.ndarray, " flavour"]
    away: Bool[np.ndarray, " flavour"]
    flavour: Int[np.ndarray, "n split branch"]
    exists: Bool[np.ndarray, "n split"]


@functools.cache
def _splits(n_branches: int) -> tuple[tuple[tuple[int, ...], int], ...]:
    """Exponents d with sum of 2^-d = 1, and the branch that stays at home: one with the largest share."""
    exponents = itertools.product(range(1, max(n_branches, 2)), repeat=n_branches)
    exact = (split for split in exponents if sum(2.0**-d for d in split) == 1.0)
    return tuple((split, home) for split in exact for home, d in enumerate(split) if d == min(split))


@functools.cache
def share_table(widths: tuple[int, ...]) -> ShareTable:
    """All ways to run the blocks of a graph with their branches at the same time.

    Branches run on powers of two, so every placement that fits is within a split whose fractions are powers of one
    half and add up to 1 (Kraft); the smaller shares of a looser placement only take options away.

    Args:
        widths: numbers of branches that occur in the graph [1].

    Returns:
        The table: 2 splits for two branches, 3 for three, 16 for four.
    """
    splits = {n: [[(d, b != home) for b, d in enumerate(split)] for split, home in _splits(n)] for n in widths if n > 1}
    used = {flavour for rows in splits.values() for row in rows for flavour in row}
    flavours = [(0, False), *sorted(used)]
    index = np.zeros((MAX_BRANCHES, max([1, *map(len, splits.values())]), MAX_BRANCHES), np.int32)
    exists = np.zeros(index.shape[:2], bool)
    for n, rows in splits.items():
        index[n - 1, : len(rows), :n] = [[flavours.index(flavour) for flavour in row] for row in rows]
        exists[n - 1, : len(rows)] = True
    return ShareTable(np.array([d for d, _ in flavours], np.int32), np.array([a for _, a in flavours]), index, exists)
