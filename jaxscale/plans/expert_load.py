r"""Load of the hottest expert-parallel rank, from the skew of the popularity of experts.

The i-th most popular of E experts receives the share $i^{-s} / H$ of the copies of tokens, $H = \sum_{i=1}^E i^{-s}$:
uniform for s = 0, Zipf's law for s = 1. If experts are dealt to r ranks in the order of popularity, the hottest rank
holds the experts 1, 1 + r, 1 + 2 r, ..., and the load over the mean is

$$ \lambda = \frac{r}{H} \sum_{j=0}^{E/r-1} (1 + j r)^{-s} . $$

The longest-processing-time rule (Graham 1969, SIAM Journal on Applied Mathematics 17(2)) with equally many experts on
each rank puts the first expert beside the least popular experts, with a load of at least the mean. With a capacity
factor c an expert processes at most c times the mean, and further copies are dropped (Fedus et al. 2021,
arXiv 2101.03961, section 2.2).
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Real
from scipy.optimize import minimize_scalar

from jaxscale.base.errors import InputError
from jaxscale.base.smooth import larger, smaller
from jaxscale.plans.plan import Plan

FIRST_TERMS = 8
"""Explicit terms of a sum of powers; the remaining terms use the Euler-Maclaurin formula, with an error of 1e-7 [1]."""

LEAST_SKEW = 1e-6
"""Smallest skew in the rank of the last expert beyond capacity; smaller skews count as this value [1]."""

MOST_SKEW = 10.0
"""Largest skew of a fit [1]."""


def power_sum(first: ArrayLike, count: ArrayLike, exponent: ArrayLike) -> Array:
    r"""Sum of powers of equally spaced numbers, $\sum_{j=0}^{n-1} (a + j)^{-s}$, in closed form for any n.

    Args:
        first: a, above 0 [1].
        count: n; a fractional count adds a fraction of a term [1].
        exponent: s [1].

    Returns:
        The sum [1].
    """
    # Single precision stays single.
    dtype = jnp.result_type(first, count, exponent, 1.0)
    a, n, s = (jnp.asarray(number, dtype) for number in (first, count, exponent))
    low = a + FIRST_TERMS
    # A fractional n adds a fraction of the last term.
    total = sum((jnp.clip(n - j, 0.0, 1.0) * (a + j) ** -s for j in range(FIRST_TERMS)), start=jnp.zeros((), dtype))
    high = low + larger(n - FIRST_TERMS, 0.0)
    stretch = jnp.log(high / low)
    power = (1.0 - s) * stretch
    # s near 1: series in place of 0 / 0.
    is_flat = jnp.abs(power) < 1e-3
    safe = jnp.where(is_flat, 1.0, power)
    growth = jnp.where(is_flat, 1.0 + power / 2.0 + power**2 / 6.0, jnp.expm1(safe) / safe)
    # Integral of x^-s from a + 8 to a + n.
    integral = low ** (1.0 - s) * stretch * growth
    # Euler-Maclaurin: half terms at the ends, then odd derivatives.
    ends = 0.5 * (low**-s - high**-s)
    slopes = s / 12.0 * (low ** (-s - 1.0) - high ** (-s - 1.0))
    third = s * (s + 1.0) * (s + 2.0) / 720.0 * (low ** (-s - 3.0) - high ** (-s - 3.0))
    return total + integral + ends + slopes - third


def hottest_load(n_experts: ArrayLike, top_k: ArrayLike, plan: Plan) -> Array:
    """Load of the hottest expert-parallel rank: copies of tokens over the mean of all ranks, after drops [1].

    Args:
        n_experts: E [1].
        top_k: distinct experts of a token [1].
        plan: ep, `expert_skew`, `balanced_experts`, `capacity_factor`; or a stated `expert_load`.

    Returns:
        The load; exactly one for a plan without skew.
    """
    skew, capacity = jnp.asarray(plan.expert_skew), jnp.asarray(plan.capacity_factor)
    # Without skew the load is one for every number and placement of experts and ranks.
    n_experts, top_k, ranks, is_balanced = (
        jnp.where(skew == 0.0, jax.lax.stop_gradient(number), number)
        for number in map(jnp.asarray, (n_experts, top_k, plan.ep, plan.balanced_experts))
    )
    # E / r experts on each rank.
    every, held = power_sum(1.0, n_experts, skew), n_experts / ranks
    is_capped = capacity > 0.0
    cap = jnp.where(is_capped, capacity, jnp.inf)
    over = _beyond_capacity(n_experts, every, plan)
    # Experts of the first rank at capacity, and the remaining experts of the first rank.
    # Experts 1, 1 + r, 1 + 2 r, ... of the first rank.
    full = jnp.clip(jnp.floor((over - 1.0) / ranks) + 1.0, 0.0, held) * (over >= 1.0)
    # lambda = r / H sum (1 + j r)^-s, with r^-s before the sum.
    rest = ranks**-skew * power_sum(1.0 / ranks + full, held - full, skew) * ranks / every
    dealt = full / held * jnp.where(is_capped, capacity, 0.0) + rest
    fewest = larger(held - 1.0, 0.0)
    last = power_sum(n_experts - fewest + 1.0, fewest, skew)
    # With equally many experts on each rank, the first expert is beside the last experts.
    first = smaller(n_experts / every, cap) * ranks / n_experts
    kept = 1.0 - _dropped(n_experts, every, over, plan)
    # No placement brings the hottest rank below the mean of the kept copies.
    balanced = larger(first + last * ranks / every, kept)
    # A token visits each expert at most once.
    most = ranks * smaller(held, top_k) / top_k
    skewed = smaller(dealt + is_balanced * (balanced - dealt), most)
    # Without skew the load is exactly one, with the slope of the skewed formula.
    even = smaller(1.0, cap) + (skewed - jax.lax.stop_gradient(skewed))
    stated = smaller(plan.expert_load, cap)
    return jnp.where(jnp.greater(plan.expert_load, 0.0), stated, jnp.where(skew == 0.0, even, skewed))


def _beyond_capacity(n_experts: ArrayLike, every: Array, plan: Plan) -> Array:
    """Number of experts whose tokens exceed the capacity, from the most popular on, as a whole number [1]."""
    # A factor of 0 is no limit.
    capacity = jnp.where(jnp.greater(plan.capacity_factor, 0.0), plan.capacity_factor, jnp.inf)
    excess = jnp.log(n_experts / (capacity * every))
    # An expert exactly at capacity, such as all of a uniform law with a factor of one, is not beyond capacity.
    log_rank = jnp.where(excess > 1e-6, excess, 0.0) / larger(plan.expert_skew, LEAST_SKEW)
    count = jnp.floor(jnp.exp(smaller(log_rank, jnp.log(jnp.asarray(n_experts, log_rank.dtype)))))
    # A whole number has no slope.
    return jax.lax.stop_gradient(jnp.where(excess > 1e-6, count, 0.0))


def _dropped(n_experts: ArrayLike, every: Array, over: Array, plan: Plan) -> Array:
    """Share of the copies of tokens that exceed the capacity of experts [1]."""
    taken = power_sum(1.0, over, plan.expert_skew) / every
    # Copies of the first experts less the capacity of the experts.
    return jnp.where(over > 0.0, taken - over * plan.capacity_factor / n_experts, 0.0)


def dropped_share(n_experts: ArrayLike, plan: Plan) -> Array:
    """Share of the copies of tokens that are dropped by experts at capacity [1].

    Args:
        n_experts: E [1].
        plan: `expert_skew` and `capacity_factor`; for a stated `expert_load`, only the drops of the hottest rank are
            known.
    """
    every = power_sum(1.0, n_experts, plan.expert_skew)
    by_skew = _dropped(n_experts, every, _beyond_capacity(n_experts, every, plan), plan)
    capacity = jnp.where(jnp.greater(plan.capacity_factor, 0.0), plan.capacity_factor, jnp.inf)
    of_rank = larger(plan.expert_load - capacity, 0.0) / plan.ep
    return jnp.where(jnp.greater(plan.expert_load, 0.0), of_rank, by_skew)


def rank_loads(
    counts: Sequence[float | int] | Real[np.ndarray, " expert"], ranks: int, is_balanced: bool = False
) -> Float[np.ndarray, " rank"]:
    """Loads of expert-parallel ranks over the mean, from measured loads of experts.

    The maximum is an `expert_load` of a plan.

    Args:
        counts: tokens of each expert [token], [expert].
        ranks: number of ranks, with equally many experts on each [1].
        is_balanced: whether experts are placed by the longest-processing-time rule, else dealt in the order of
            popularity.

    Returns:
        Loads [1], [rank].

    Raises:
        InputError: counts that are no loads of experts, or ranks that do not divide the number of experts.
    """
    ordered = _ordered(counts)
    if ranks < 1 or len(ordered) % ranks:
        raise InputError(f"ranks = {ranks} do not hold equally many of {len(ordered)} experts; expected a divisor")
    if not is_balanced:
        # Dealt in turn: (experts of a rank, ranks).
        loads = ordered.reshape(-1, ranks).sum(axis=0)
        return loads / loads.mean()
    loads, room = np.zeros(ranks), np.full(ranks, len(ordered) // ranks)
    for load in ordered:
        # Longest-processing-time rule: the next expert goes to the emptiest rank with room.
        place = int(np.argmin(np.where(room > 0, loads, np.inf)))
        loads[place] += load
        room[place] -= 1
    return loads / loads.mean()


def fitted_skew(counts: Sequence[float | int] | Real[np.ndarray, " expert"]) -> float:
    """Skew s of measured experts by maximum likelihood, for popularity $i^{-s}$ of the i-th most popular expert [1].

    Args:
        counts: tokens of each expert, in any order [token], [expert].

    Raises:
        InputError: counts that are no loads of experts.
    """
    ordered = _ordered(counts)
    logs, weights = np.log(np.arange(1, len(ordered) + 1)), ordered / ordered.sum()

    def surprise(skew: float) -> float:
        # Negative log likelihood of the shares i^-s / H, per token.
        return float(skew * weights @ logs + np.log(np.exp(-skew * logs).sum()))

    found = minimize_scalar(surprise, bounds=(0.0, MOST_SKEW), method="bounded", options={"xatol": 1e-8})
    return float(found.x)  # pyright: ignore[reportAttributeAccessIssue]


def _ordered(counts: Sequence[float | int] | np.ndarray) -> np.ndarray:
    """Token counts of experts, in falling order."""
    given = np.sort(np.asarray(counts, float))[::-1]
    if given.ndim != 1 or len(given) < 1 or not np.all(np.isfinite(given)) or given[-1] < 0.0 or given[0] <= 0.0:
        raise InputError("counts of experts: expected one finite number of tokens, at least 0, for each, not all 0")
    return given
