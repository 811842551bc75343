r"""Marginal returns, crossovers of layouts, and the best tensor-parallel degree or sharding group as a function of n.

A choice is among whole degrees (`best_whole_degrees`). The growth of the best degree with n follows from the continuous
relaxation: $t^*(n)$ maximises the log throughput f over $u = \ln t$ between bounds; inside the bounds, the implicit
function theorem gives the elasticity in the number of chips, $du^*/d\ln n = -f_{un} / f_{uu}$.

With throughput R(n) [token/s], power P(n) [W] and cost C(n) [dollar/s] of all chips,

$$ \frac{dR}{dn}, \qquad \frac{dR}{dP} = \frac{dR/dn}{dP/dn}, \qquad \frac{dR}{dC} = \frac{dR/dn}{dC/dn}, $$

all by differentiation of the model in n. An extra chip returns the share $(dR/dn) / (R(n_0) / n_0)$ of the mean
throughput of a chip at the reference size $n_0$. A higher power cap p of all chips returns $(dR/dp) / (dP/dp)$ per
watt.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxscale.base.arrays import as_arrays, filled_rows, host_arrays, stacked
from jaxscale.base.jit import filter_jit
from jaxscale.trends.layout import Deployment, ParallelLayout
from jaxscale.trends.outcome import PADDING, Batch, outcome_at

RETURN_TEMPERATURE = 0.02
"""Smoothing of kinks, where exposed communication sets in; without it the derivative jumps there [1]."""

GRID = 64
"""Points of a pass of the search for a chip count [1]."""


class Totals(NamedTuple):
    """Throughput, power and cost of all chips.

    Attributes:
        tokens_per_s: throughput R [token/s].
        system_power: power P [W].
        dollars_per_s: cost C [dollar/s].
    """

    tokens_per_s: Array | np.ndarray
    system_power: Array | np.ndarray
    dollars_per_s: Array | np.ndarray


class Returns(NamedTuple):
    """Totals and marginal returns at a number of chips.

    Attributes:
        totals: throughput, power and cost of all chips.
        per_chip: dR/dn [token/s].
        per_watt: dR/dP with more chips [token/J].
        per_dollar: dR/dC with more chips [token/dollar].
        per_watt_of_cap: dR/dP with a higher power cap on the same chips; 0 where the cap does not bind [token/J].
        average: R/n [token/s].
    """

    totals: Totals
    per_chip: np.ndarray
    per_watt: np.ndarray
    per_dollar: np.ndarray
    per_watt_of_cap: np.ndarray
    average: np.ndarray


def totals_at(
    deployment: Deployment,
    layout: ParallelLayout,
    batch: Batch,
    n_chips: ArrayLike,
    temperature: float = RETURN_TEMPERATURE,
) -> Totals:
    """Throughput [token/s], power [W] and cost [dollar/s] of n chips."""
    outcome = outcome_at(deployment, layout, n_chips, batch.at(n_chips), temperature)
    return Totals(outcome.tokens_per_s, outcome.system_power, outcome.dollars_per_s)


@filter_jit
def _slopes(
    deployment: Deployment,
    layout: ParallelLayout,
    batch: Batch,
    n_chips: Float[Array, " point"],
    direction: Float[Array, "2"],
    temperature: float,
) -> tuple[Totals, Totals]:
    """Totals and their derivative in a direction of (chips, power cap)."""

    def of(n: Array, cap: Array) -> Totals:
        capped = eqx.tree_at(lambda s: s.power_cap, deployment, cap)
        return totals_at(capped, layout, batch, n, temperature)

    def one(n: Array) -> tuple[Totals, Totals]:
        # Forward mode: a single direction.
        return jax.jvp(of, (n, deployment.power_cap), (direction[0], direction[1]))

    return jax.vmap(one)(n_chips)


def marginal_returns(
    deployment: Deployment,
    layout: ParallelLayout,
    batch: Batch,
    n_chips: Sequence[float | int] | np.ndarray,
    temperature: float = RETURN_TEMPERATURE,
) -> Returns:
    """Derivatives of throughput by chips, power and cost, at many numbers of chips.

    Args:
        deployment: model, chips, coefficients, power, price.
        layout: degrees.
        batch: global batch as a function of n.
        n_chips: n [point].
        temperature: smoothing of maxima [1].

    Returns:
        Totals and their derivatives, every leaf [point].
    """
    n = np.asarray(n_chips, float)
    padded = n[filled_rows(n.size, PADDING)]
    setting, degrees, rule, chips = host_arrays((deployment, layout, batch, padded))
    # Directions: more chips, a higher cap.
    more_chips, higher_cap = host_arrays(np.eye(2))
    totals, slope = jax.tree.map(np.asarray, _slopes(setting, degrees, rule, chips, more_chips, temperature))
    _, cap = jax.tree.map(np.asarray, _slopes(setting, degrees, rule, chips, higher_cap, temperature))
    # Where the cap does not bind, neither throughput nor power move with it.
    binds = cap.system_power != 0.0
    returns = Returns(
        totals,
        slope.tokens_per_s,
        # dR/dP = (dR/dn) / (dP/dn)
        slope.tokens_per_s / slope.system_power,
        slope.tokens_per_s / slope.dollars_per_s,
        # The inner `where` avoids 0 / 0.
        np.where(binds, cap.tokens_per_s / np.where(binds, cap.system_power, 1.0), 0.0),
        totals.tokens_per_s / padded,
    )
    return jax.tree.map(lambda leaf: leaf[: n.size], returns)


def last_worthwhile_chip(
    deployment: Deployment,
    layout: ParallelLayout,
    batch: Batch,
    share: float | int,
    *,
    reference: float | int = 8.0,
    largest: float | int = 1e6,
    temperature: float = RETURN_TEMPERATURE,
) -> float:
    """Number of chips beyond which an extra chip returns less than a share of the mean return at the reference size.

    Args:
        deployment: model, chips, coefficients, power, price.
        layout: degrees.
        batch: global batch as a function of n.
        share: least return of a worthwhile chip [1].
        reference: number of chips of the mean return [1].
        largest: largest number of chips in the search [1].
        temperature: smoothing of maxima [1].

    Returns:
        Chips [1]; infinity if every extra chip up to the largest number returns more.

    Raises:
        ValueError: the share is not positive, or the range empty.
    """
    if not (share > 0.0 and 1.0 <= reference < largest):
        raise ValueError(f"share {share:g}, reference {reference:g}, largest {largest:g}: expected share > 0, a range")
    low, high = reference, largest
    full = None
    for _ in range(5):  # each pass narrows the bracket by the number of points
        n = np.geomspace(low, high, GRID)
        returns = marginal_returns(deployment, layout, batch, n, temperature)
        # R(n_0) / n_0 of the first pass.
        full = float(returns.average[0]) if full is None else full
        below = np.flatnonzero(np.asarray(returns.per_chip) < share * full)
        if not len(below):
            return float("inf")
        low, high = float(n[max(below[0] - 1, 0)]), float(n[below[0]])
    return high


LAYOUTS: Mapping[str, ParallelLayout] = {
    "FSDP": ParallelLayout(),
    "FSDP, tp 2": ParallelLayout(tp=2),
    "FSDP, tp 4": ParallelLayout(tp=4),
    "FSDP, tp 8": ParallelLayout(tp=8),
    "pp 2": ParallelLayout(pp=2, n_microbatches=4, zero_stage=1),
    "pp 4": ParallelLayout(pp=4, n_microbatches=8, zero_stage=1),
    "FSDP, cp 2": ParallelLayout(cp=2),
    "FSDP, cp 4": ParallelLayout(cp=4),
    "HSDP, groups of 8": ParallelLayout(shard_group=8),
    "HSDP, groups of 64": ParallelLayout(shard_group=64),
}
"""Layouts that compete for two sequences per chip; a pipeline shards the optimizer alone, with microbatches of one."""

SEARCH = 33
"""Points of a pass over a degree [1]."""

PASSES = 4
"""Passes of the search; each narrows the bracket to a sixteenth [1]."""

STEP = 1e-3
"""Nearness to a bound, in ln t, at which the best degree counts as held by it [1]."""


class BestDegree(NamedTuple):
    """Best relaxed degree on n chips, every leaf [sample, point].

    Attributes:
        degree: t* [1].
        elasticity: d ln t* / d ln n; zero at a bound [1].
        gain: throughput over that of the lower bound, less 1 [1].
    """

    degree: np.ndarray
    elasticity: np.ndarray
    gain: np.ndarray


def log_speed(
    deployment: Deployment,
    layout: ParallelLayout,
    batch: Batch,
    log_chips: ArrayLike,
    temperature: float = RETURN_TEMPERATURE,
) -> Array:
    """Natural logarithm of the throughput on exp(log_chips) chips [token/s]."""
    n = jnp.exp(jnp.asarray(log_chips))
    return jnp.log(outcome_at(deployment, layout, n, batch.at(n), temperature).tokens_per_s)


@filter_jit
def _degree_speeds(
    deployments: Deployment,
    batch: Batch,
    log_degree: Float[Array, "sample trial"],
    log_chips: Float[Array, "sample trial"],
    field: str,
    temperature: float,
) -> Float[Array, "sample trial"]:
    def one(deployment: Deployment, u: Array, log_n: Array) -> Array:
        layout = eqx.tree_at(lambda leaf: getattr(leaf, field), as_arrays(ParallelLayout()), jnp.exp(u))
        return log_speed(deployment, layout, batch, log_n, temperature)

    return jax.vmap(jax.vmap(one, in_axes=(None, 0, 0)))(deployments, log_degree, log_chips)


def best_degrees(
    deployments: Deployment,
    batch: Batch,
    n_chips: np.ndarray,
    field: str = "tp",
    bounds: tuple[float, float] = (1.0, 8.0),
    temperature: float = RETURN_TEMPERATURE,
) -> BestDegree:
    """Relaxed degree of highest throughput on each number of chips, in every sampled deployment.

    Args:
        deployments: sampled deployments, every leaf [sample].
        batch: global batch as a function of n.
        n_chips: n [point].
        field: field of `ParallelLayout` to choose, `tp`, `cp` or `shard_group`.
        bounds: least and largest degree; the least is at least n / B, so that every replica has a sequence [1].
        temperature: smoothing of maxima [1].

    Returns:
        Degree, elasticity in n, and gain.
    """
    samples, rule = host_arrays((deployments, batch))
    n = np.asarray(n_chips, float)
    log_chips, (low, high) = np.log(n), np.log(bounds)
    # A replica needs a sequence: t >= n / B.
    least = np.clip(log_chips - np.log(np.asarray(batch.at(n))), low, high)

    def speeds(log_degree: np.ndarray, log_n: np.ndarray) -> np.ndarray:
        """Of trials [sample, point, trial]; every pass has the same shape and so shares one compilation."""
        u, v = host_arrays([leaf.reshape(len(leaf), -1) for leaf in (log_degree, log_n)])
        return np.asarray(_degree_speeds(samples, rule, u, v, field, temperature)).reshape(log_degree.shape)

    shape = (len(np.asarray(deployments.power_cap)), n.size, SEARCH)
    trials = np.broadcast_to(log_chips[:, None], shape)
    best, at_least = _search(speeds, np.broadcast_to(least, shape[:2]), np.full(shape[:2], high), trials)
    elasticity, top = _elasticity(speeds, best, trials)
    inside = (best > least + STEP) & (best < high - STEP)
    return BestDegree(np.exp(best), np.where(inside, elasticity, 0.0), np.exp(top - at_least) - 1.0)


Speeds = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _search(speeds: Speeds, least: np.ndarray, most: np.ndarray, chips: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Logarithm of the best degree, and of the speed at the least degree [sample, point]."""
    left, right, at_least = least, most, None
    best = least
    for _ in range(PASSES):
        # (sample, point, trial)
        trials = left[..., None] + (right - left)[..., None] * np.linspace(0.0, 1.0, SEARCH)
        log_speeds = speeds(trials, chips)
        # The first trial of the first pass is the least degree.
        at_least = log_speeds[..., 0] if at_least is None else at_least
        best = np.take_along_axis(trials, log_speeds.argmax(axis=-1)[..., None], axis=-1)[..., 0]
        width = (right - left) / (SEARCH - 1)
        # A step to either side: the bracket shrinks to a sixteenth.
        left, right = np.maximum(best - width, least), np.minimum(best + width, most)
    return best, np.asarray(at_least)


def _elasticity(speeds: Speeds, best: np.ndarray, chips: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Elasticity of the best degree in n by second differences, and the speed there [sample, point]."""
    # Second differences lose least at steps of about eps^(1/4).
    step = 8.0 * float(jnp.finfo(jnp.result_type(float)).eps) ** 0.25
    steps = np.zeros((2, SEARCH))
    # Changes of ln t and of ln n; further trials fill the common shape.
    steps[:, :7] = step * np.asarray([[0, 1, -1, 1, 1, -1, -1], [0, 0, 0, 1, -1, 1, -1]])
    near = speeds(best[..., None] + steps[0], chips + steps[1])
    # f_uu
    curvature = (near[..., 1] - 2.0 * near[..., 0] + near[..., 2]) / step**2
    # f_un
    mixed = (near[..., 3] - near[..., 4] - near[..., 5] + near[..., 6]) / (4.0 * step**2)
    is_peak = curvature < 0.0
    # du* / d ln n = -f_un / f_uu
    return np.where(is_peak, -mixed / np.where(is_peak, curvature, -1.0), 0.0), near[..., 0]


@filter_jit
def _speeds(
    deployments: Deployment,
    layouts: ParallelLayout,
    batch: Batch,
    log_chips: Float[Array, " point"],
    temperature: float,
) -> Float[Array, "sample layout point"]:
    def one(deployment: Deployment, layout: ParallelLayout) -> Array:
        return jax.vmap(lambda n: log_speed(deployment, layout, batch, n, temperature))(log_chips)

    return jax.vmap(lambda deployment: jax.vmap(lambda layout: one(deployment, layout))(layouts))(deployments)


def layout_speeds(
    deployments: Deployment,
    batch: Batch,
    n_chips: np.ndarray,
    layouts: Mapping[str, ParallelLayout] = LAYOUTS,
    temperature: float = 0.0,
) -> np.ndarray:
    """Natural logarithm of the throughput of each layout [token/s], [sample, layout, point]."""
    every = stacked(list(layouts.values()))
    samples, each, rule, log_chips = host_arrays((deployments, every, batch, np.log(np.asarray(n_chips, float))))
    return np.asarray(_speeds(samples, each, rule, log_chips, temperature))


class WholeDegree(NamedTuple):
    """Fastest of given whole degrees on n chips, every leaf [sample, point].

    Attributes:
        degree: fastest degree t [1].
        gain: throughput over that of the least valid degree, less 1 [1].
    """

    degree: np.ndarray
    gain: np.ndarray


def best_whole_degrees(
    deployments: Deployment,
    batch: Batch,
    n_chips: np.ndarray,
    degrees: Sequence[float] | np.ndarray,
    field: str = "tp",
) -> WholeDegree:
    """Fastest of given degrees on each number of chips, in every sampled deployment.

    Args:
        deployments: sampled deployments, every leaf [sample].
        batch: global batch as a function of n.
        n_chips: n [point].
        degrees: candidate degrees, ascending; degrees above n, or with less than a sequence per replica, are left out,
            but the last degree stays if all are [1].
        field: field of `ParallelLayout` to choose, `tp`, `cp` or `shard_group`.

    Returns:
        Degree and gain.
    """
    n, choices = np.asarray(n_chips, float), np.asarray(degrees, float)
    log_speeds = layout_speeds(deployments, batch, n, {f"{one:g}": ParallelLayout(**{field: one}) for one in choices})
    is_valid = choices[:, None] <= n
    # A sharding group does not change the number of replicas.
    if field != "shard_group":
        # A replica needs a sequence: t B >= n, up to rounding.
        is_valid &= choices[:, None] * np.asarray(batch.at(n)) >= n * (1.0 - 1e-9)
    # The last degree stays where no degree is valid.
    is_valid[-1] |= ~is_valid.any(axis=0)
    log_speeds = np.where(is_valid, log_speeds, -np.inf)
    least = np.argmax(is_valid, axis=0)
    at_least = np.take_along_axis(log_speeds, np.broadcast_to(least, (len(log_speeds), 1, n.size)), axis=1)[:, 0]
    return WholeDegree(choices[log_speeds.argmax(axis=1)], np.exp(log_speeds.max(axis=1) - at_least) - 1.0)


def overtaking(n_chips: np.ndarray, log_speeds: np.ndarray, first: int, second: int) -> np.ndarray:
    """Number of chips from which a second layout is faster than a first layout at all larger sizes, by interpolation.

    Args:
        n_chips: numbers of chips, ascending [point].
        log_speeds: log throughput of every layout [sample, layout, point].
        first: index of the overtaken layout.
        second: index of the overtaking layout.

    Returns:
        Chips [sample]: the first number if the second layout is always faster, infinity if not faster at the last.
    """
    lead = log_speeds[:, second] - log_speeds[:, first]
    chips = np.full(len(lead), np.inf)
    for sample, values in enumerate(lead):
        # From the last point behind on, the second layout stays faster.
        behind = np.flatnonzero(values <= 0.0)
        if not len(behind):
            chips[sample] = n_chips[0]
        elif behind[-1] + 1 < len(values):
            left = behind[-1]
            # Zero of the lead, linear in ln n.
            share = values[left] / (values[left] - values[left + 1])
            chips[sample] = np.exp(np.interp(share, [0.0, 1.0], np.log(n_chips[left : left + 2])))
    return chips
