r"""Terms of a law of loss besides parameters and tokens: shape, batch, repetition and experts.

| term | equation | reference |
|---|---|---|
| shape | $L \to L\,(1 + \kappa \ln^2 [(d/L) / r (N/10^9)^\rho])$ | Kaplan et al. 2020, figure 5, at $\rho = 0$ |
| batch | $D \to D_0$ with $D = D_0 (1 + B / c D_0^p)$ | McCandlish et al. 2018, equation 2.11 |
| repetition | $D \to U + U R_D (1 - e^{-(D/U - 1) / R_D})$, and N alike | Muennighoff et al. 2023, equations 5 and 6 |
| experts | $N \to N E^{\gamma + \delta \ln(N/10^9)}$ | Clark et al. 2022, equation 6 |
"""

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from jaxscale.laws.fitting.loss_forms import BASE, frontier_params, log_loss
from jaxscale.laws.loss import REFERENCE_PARAMS

if TYPE_CHECKING:
    # Static checkers take numpy arrays for no arrays of JAX; the run-time check does.
    PerRow = Pair = Any
else:
    PerRow = Float[ArrayLike, " row"]
    """One number for each row of a table."""

    Pair = Float[ArrayLike, "2"]
    """Two numbers."""

TERMS = {
    "shape": ("shape_kappa", "shape_ratio", "shape_drift"),
    "batch": ("batch_coefficient", "batch_exponent"),
    "repetition": ("repeated_params", "repeated_tokens"),
    "experts": ("experts_exponent", "experts_drift"),
}
"""Numbers of each term."""

SIGNED = ("shape_drift", "batch_exponent", "experts_exponent", "experts_drift")
"""Numbers that may be negative: held as they are, all others as logarithms."""

START_OF = {
    "shape_kappa": math.log(0.005),
    "shape_ratio": math.log(40.0),
    "shape_drift": 0.3,
    "batch_coefficient": math.log(96.46),
    "batch_exponent": 0.462,
    "repeated_params": math.log(5.31),
    "repeated_tokens": math.log(15.39),
    "experts_exponent": 0.2,
    "experts_drift": -0.05,
}
"""Numbers of the terms at which a search starts: Kaplan et al. 2020, Bergsma et al. 2025, Muennighoff et al. 2023."""

BATCH_STEPS = 6
"""Newton steps from the tokens of a run to those of small batches: exact to 1e-12 up to a thousand critical batches."""


class Covariates(NamedTuple):
    """What a law of loss reads of each run.

    Attributes:
        log_params: ln N [row].
        log_tokens: ln D [row].
        middle: means of ln N and ln D of the table.
        log_aspect: ln of width over depth, for `shape` [row].
        log_batch: ln B [token], for `batch` [row].
        log_unique: ln U, tokens seen at least once, for `repetition` [row].
        log_experts: ln E, for `experts` [row].
    """

    log_params: PerRow
    log_tokens: PerRow
    middle: Pair
    log_aspect: PerRow
    log_batch: PerRow
    log_unique: PerRow
    log_experts: PerRow


def number_names(terms: tuple[str, ...]) -> tuple[str, ...]:
    """Names of the numbers of a law in the order of its vector."""
    return (*BASE, *(name for term in terms for name in TERMS[term]))


def log_loss_with(numbers: Float[Array, " number"], runs: Covariates, terms: tuple[str, ...]) -> Array:
    """Logarithm of the loss with all terms [row].

    Args:
        numbers: in the order of `number_names`, logarithms except those of `SIGNED`.
        runs: covariates of the rows.
        terms: names of `TERMS`.
    """
    named = dict(zip(number_names(terms), numbers, strict=True))
    log_params, log_tokens, factor = runs.log_params, runs.log_tokens, jnp.zeros_like(runs.log_params)
    if "experts" in terms:
        size = log_params - jnp.log(REFERENCE_PARAMS)
        log_params = log_params + (named["experts_exponent"] + named["experts_drift"] * size) * runs.log_experts
    if "batch" in terms:
        log_tokens = small_batch_tokens(log_tokens, runs.log_batch, named["batch_coefficient"], named["batch_exponent"])
    if "repetition" in terms:
        log_params, log_tokens = effective_data(numbers, log_params, log_tokens, runs.log_unique, named)
    if "shape" in terms:
        drift = named["shape_drift"] * (runs.log_params - jnp.log(REFERENCE_PARAMS))
        distance = runs.log_aspect - named["shape_ratio"] - drift
        factor = jnp.log1p(jnp.exp(named["shape_kappa"]) * distance**2)
    return log_loss(numbers, log_params, log_tokens) + factor


def small_batch_tokens(log_tokens: Array, log_batch: Array, log_coefficient: Array, exponent: Array) -> Array:
    r"""Logarithm of the tokens $D_0$ that small batches would need: $D = D_0 (1 + B / (c D_0^p))$ [row]."""
    small = log_tokens
    for _ in range(BATCH_STEPS):
        excess = log_batch - log_coefficient - exponent * small
        share = 1.0 / (1.0 + jnp.exp(-excess))
        miss = small + jnp.logaddexp(0.0, excess) - log_tokens
        small = small - miss / jnp.maximum(1.0 - exponent * share, 0.05)
    return small


def effective_data(
    numbers: Array, log_params: Array, log_tokens: Array, log_unique: Array, named: dict[str, Array]
) -> tuple[Array, Array]:
    """Logarithms of the effective parameters and tokens where data repeat [row].

    Tokens beyond the unique ones, and parameters beyond those that the unique ones deserve, count less and less.
    """
    unique = jnp.minimum(log_unique, log_tokens)
    deserved = jnp.minimum(frontier_params(numbers, unique), log_params)
    params = deserved + _worth(log_params - deserved, named["repeated_params"])
    return params, unique + _worth(log_tokens - unique, named["repeated_tokens"])


def _worth(log_ratio: Array, log_half_life: Array) -> Array:
    """Logarithm of the worth of a multiple, $1 + R (1 - e^{-(x - 1) / R})$."""
    repeats, life = jnp.expm1(log_ratio), jnp.exp(log_half_life)
    return jnp.log1p(life * -jnp.expm1(-repeats / life))
