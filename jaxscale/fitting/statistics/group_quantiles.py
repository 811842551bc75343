"""Widths of prediction intervals for runs of new groups, from held-out errors, by split-conformal prediction.

Of G exchangeable groups, the quantile $q (1 + 1/G)$ of the left-out errors covers a share q of a new group. Runs of a
group share most of their error, so that many runs of few groups contain little information.
References: Lei et al. 2018, JASA 113, 1094-1111, section 2.2; Kish 1965, Survey Sampling, section 5.4 (effective
sample size).
"""

import numpy as np
from jaxtyping import Float

GROUPS_THAT_TELL = 9
"""Minimum number of groups G for which the largest error covers 90 % of new groups: a share G / (G + 1) [1]."""


def conformal_level(share: float, worth: float) -> float:
    """Level of the quantile of held-out errors that covers a share of new errors; at most 1, the largest error [1].

    Args:
        share: share of new errors to cover [1].
        worth: effective number of held-out errors [1].
    """
    return min(1.0, share * (1.0 + 1.0 / worth))


def half_width(errors: np.ndarray, groups: np.ndarray, least: float = 0.0) -> float:
    r"""Half-width of a symmetric interval with 90 % coverage of runs of a new group.

    For G groups with the intraclass correlation $\rho$, the effective number of errors is $G / \rho$ (`worth_of`).
    With fewer groups than `GROUPS_THAT_TELL` the half-width is at least `least`.

    Args:
        errors: errors of held-out runs, with their signs [row].
        groups: group of each run [row].
        least: half-width from the known scatter of single runs.

    Returns:
        Half-width, in the unit of the errors.
    """
    codes = np.unique(groups, return_inverse=True)[1]
    n = int(codes.max()) + 1
    found = float(np.quantile(np.abs(errors), conformal_level(0.9, worth_of(errors, codes))))
    # Few groups: at least the scatter of a run.
    return max(found, least) if n < GROUPS_THAT_TELL else found


def interval_of(errors: Float[np.ndarray, " row"], groups: np.ndarray) -> tuple[float, float]:
    r"""Ends of the central interval with 90 % coverage of runs of a new group.

    Each group has equal weight, for any number of runs. For G groups with the intraclass correlation $\rho$, the
    effective number of groups is $G / \rho$. Quantiles of groups move in steps of a whole group, hence half
    a step is subtracted.

    Args:
        errors: errors of held-out runs, with their signs [row].
        groups: group of each run [row].

    Returns:
        Lower and upper end, in the unit of the errors.
    """
    codes, counts = np.unique(groups, return_inverse=True, return_counts=True)[1:]
    # Each group weighs alike, however many runs.
    weights = 1.0 / (counts[codes] * len(counts))
    worth = worth_of(errors, codes)
    # Half a step of a whole group is subtracted.
    level = min(1.0, 0.95 * (1.0 + 1.0 / worth) - 0.5 / worth)
    order = np.argsort(errors)
    # Middle of each step of the weighted distribution.
    heights = np.cumsum(weights[order]) - 0.5 * weights[order]
    low, high = np.interp([1.0 - level, level], heights, errors[order])
    return float(low), float(high)


def worth_of(errors: Float[np.ndarray, " row"], codes: np.ndarray) -> float:
    r"""Effective number of independent errors for errors correlated within groups, $G / \rho$ [1].

    Args:
        errors: errors with their signs [row].
        codes: group of each error, from 0 on [row].
    """
    # G / rho, at most the number of errors.
    return min((int(codes.max()) + 1) / max(shared_variance(errors, codes), 1e-9), float(len(errors)))


def shared_variance(errors: Float[np.ndarray, " row"], codes: np.ndarray) -> float:
    r"""Intraclass correlation $\rho$: share of the variance of errors between groups, with equal weight of groups [1].

    Errors beyond three robust standard deviations count as three.

    Args:
        errors: errors with their signs [row].
        codes: group of each error, from 0 on [row].
    """
    centre = np.median(errors)
    # Median absolute deviation of a normal distribution to the standard deviation.
    scale = 1.48 * np.median(np.abs(errors - centre))
    if scale == 0.0:
        return 1.0
    # Single runs do not hide the common share.
    scaled = np.clip((errors - centre) / scale, -3.0, 3.0)
    counts = np.bincount(codes)
    means = np.bincount(codes, scaled) / counts
    within = np.bincount(codes, (scaled - means[codes]) ** 2) / counts
    # The scatter of runs alone makes means of few runs differ.
    between = max(float(means.var() - (within / counts).mean()), 0.0)
    return between / max(between + float(within.mean()), 1e-12)
