r"""Marginal returns: throughput added by a further chip, watt or dollar.

With throughput R(n) [token/s], power P(n) [W] and cost C(n) [dollar/s] of all chips,

$$ \frac{dR}{dn}, \qquad \frac{dR}{dP} = \frac{dR/dn}{dP/dn}, \qquad \frac{dR}{dC} = \frac{dR/dn}{dC/dn}, $$

all by differentiating the model in n. A chip returns the share $(dR/dn) / (R(n_0) / n_0)$ of what a chip gave at the
reference size. A higher power cap of all chips spends watts as well: $(dR/dp) / (dP/dp)$.
"""

from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxscale.base.arrays import filled_rows, host_arrays
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
        tokens_per_s: R [token/s].
        system_power: P [W].
        dollars_per_s: C [dollar/s].
    """

    tokens_per_s: Array | np.ndarray
    system_power: Array | np.ndarray
    dollars_per_s: Array | np.ndarray


class Returns(NamedTuple):
    """Totals and marginal returns at a number of chips.

    Attributes:
        totals: throughput, power and cost of all chips.
        per_chip: dR/dn [token/s].
        per_watt: dR/dP along more chips [token/J].
        per_dollar: dR/dC along more chips [token/dollar].
        per_watt_of_cap: dR/dP along a higher power cap on the same chips; 0 where the cap does not bind [token/J].
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
    """Throughput, power and cost of n chips."""
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
    """Marginal returns at many numbers of chips.

    Args:
        deployment: model, chips, coefficients, power, price.
        batch: how the global batch follows n.
        n_chips: n [point].

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
        batch: how the global batch follows n.
        share: least return of a chip [1].
        reference: number of chips of the mean return [1].
        largest: where the search ends [1].

    Returns:
        Chips [1]; infinity where even the last chip returns more.

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
