"""How the parallel branches of a block can share the GPUs of the cluster."""

import functools
import itertools

import numpy as np
from jaxtyping import Bool, Int

from jaxscale.burst.networks import MAX_BRANCHES


@functools.cache
def _splits(n_branches: int) -> tuple[tuple[int, ...], ...]:
    """Exponents d with sum of 2^-d = 1: a branch gets at most the fraction 2^-d of the GPUs."""
    exponents = itertools.product(range(1, max(n_branches, 2)), repeat=n_branches)
    return tuple(split for split in exponents if sum(2.0**-d for d in split) == 1.0)


def share_tables(widest: int) -> tuple[Int[np.ndarray, "n split branch"], Bool[np.ndarray, "n split"]]:
    """All ways to run the branches of a block at the same time on disjoint GPUs.

    Branches run on powers of two, so every placement that fits is within a split whose fractions are powers of one
    half and add up to 1 (Kraft): one for two branches, three for three, thirteen for four. The smaller shares of a
    looser placement only take options away.

    Args:
        widest: largest number of branches of the graph [1].

    Returns:
        Exponents d of the fraction 2^-d by number of branches (minus 1), split and branch; and which splits exist.
    """
    n_splits = max(1, *(len(_splits(n)) for n in range(1, widest + 1)))
    exponents = np.zeros((widest, n_splits, MAX_BRANCHES), int)
    valid = np.zeros((widest, n_splits), bool)
    for n in range(2, widest + 1):
        for index, split in enumerate(_splits(n)):
            exponents[n - 1, index, :n] = split
            valid[n - 1, index] = True
    return exponents, valid
