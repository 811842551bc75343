r"""Quantiles of held-out errors that cover runs of new groups, by split-conformal prediction.

Of G exchangeable groups, the quantile $q (1 + 1/G)$ of what was left out covers a share q of a new one: runs of one
group share most of their error, so that many runs of few groups tell little.
Reference: Lei et al. 2018, JASA 113, 1094-1111, section 2.2.
"""

import numpy as np
from jaxtyping import Float

GROUPS_THAT_TELL = 9
"""Groups from which on the largest error of G covers 90 % of new groups: G / (G + 1) of them [1]."""


def conformal_level(share: float, n_groups: int) -> float:
    """Quantile of errors that covers a share of the runs of a new group, the largest error where groups are few [1]."""
    return min(1.0, share * (1.0 + 1.0 / n_groups))


def half_width(errors: np.ndarray, groups: np.ndarray, least: float = 0.0) -> float:
    """Half-width that covers 90 % of the runs of a new group.

    Fewer groups than `GROUPS_THAT_TELL` cannot tell of less than the scatter that runs are known to have.

    Args:
        errors: absolute errors of held-out runs [row].
        groups: group of each run [row].
        least: half-width for the scatter of single runs.

    Returns:
        Half-width, in the unit of the errors.
    """
    n = len(np.unique(groups))
    found = float(np.nanquantile(errors, conformal_level(0.9, n)))
    return max(found, least) if n < GROUPS_THAT_TELL else found


def interval_of(errors: Float[np.ndarray, " row"], groups: np.ndarray) -> tuple[float, float]:
    """Ends of the central interval that covers 90 % of the runs of a new group.

    Where the runs of a group err alike, quantiles step by whole groups: half a step is taken back.

    Args:
        errors: of held-out runs, with their signs [row].
        groups: group of each run [row].

    Returns:
        Lower and upper end, in the unit of the errors.
    """
    n = len(np.unique(groups))
    level = min(1.0, 0.95 * (1.0 + 1.0 / n) - 0.5 / n)
    low, high = np.quantile(errors, [1.0 - level, level])
    return float(low), float(high)
