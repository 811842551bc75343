r"""Forms of the law of the loss, further terms, and priors of the coefficients.

$$ L = E + \left[ (A N^{-a})^{1/k} + (B D^{-b})^{1/k} \right]^k $$

The exponents a and b describe the limits of few parameters and of few tokens. Every further form sets linear
conditions on the logarithms of the coefficients; a single compiled program fits all forms:

| form | conditions | reference |
|---|---|---|
| joint | none | Videau et al. 2026, "Skaling"; Droppo and Elibol 2021 with k = b |
| additive | k = 1 | Hoffmann et al. 2022, equation 10 |
| tied | k = 1, a = b | Gadre et al. 2024; Muennighoff et al. 2023 |
| kaplan | E = 0, k = b | Kaplan et al. 2020, equation 1.5 |

| term | equation | reference |
|---|---|---|
| shape | $L \to L\,(1 + \kappa \ln^2 [(d/L) / r (N/10^9)^\rho])$ | Kaplan et al. 2020, figure 5, at $\rho = 0$ |
| batch | $D \to D_0$ with $D = D_0 (1 + B / c D_0^p)$ | McCandlish et al. 2018, equation 2.11 |
| repetition | $D \to U + U R_D (1 - e^{-(D/U - 1) / R_D})$, and N alike | Muennighoff et al. 2023, equations 5 and 6 |
| experts | $N \to N E^{\gamma + \delta \ln(N/10^9)}$ | Clark et al. 2022, equation 6 |

The priors are in `data/law_priors.toml`, made by `fits/laws.py`: for each form, means and spreads between sources, and
the discrepancy per decade of extrapolation, once from all sources and once without each source, so that a shipped table
is never part of its prior.
"""

import functools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxscale.base.documents import data_path, read_toml
from jaxscale.base.errors import InputError, check_known
from jaxscale.laws.loss import REFERENCE_PARAMS, LossLaw, joint_sum

BASE = ("irreducible", "params_coefficient", "tokens_coefficient", "params_exponent", "tokens_exponent", "joint")
"""Numbers of the joint law, E, A, B, a, b and k, in the order of their logarithms in a vector."""

FORMS = {
    "joint": ({}, {}),
    "additive": ({}, {"joint": 0.0}),
    "tied": ({"tokens_exponent": "params_exponent"}, {"joint": 0.0}),
    # e^-60: no irreducible loss.
    "kaplan": ({"joint": "tokens_exponent"}, {"irreducible": -60.0}),
}
"""Conditions of each form: tied numbers, and fixed logarithms."""


class Form(NamedTuple):
    r"""Linear conditions of a form of the law: $\theta = M \phi + c$ with free logarithms $\phi$ of the coefficients.

    Attributes:
        name: name of the form.
        matrix: M [number, number], with a column of zeros for a fixed number.
        offset: c [number].
        is_free: whether a coefficient is free in the fit [number].
    """

    name: str
    matrix: np.ndarray
    offset: np.ndarray
    is_free: np.ndarray


def form_of(name: str, n_terms: int = 0) -> Form:
    """Linear conditions of a form of the law, by name.

    Args:
        name: `joint`, `additive`, `tied` or `kaplan`.
        n_terms: number of coefficients of further terms, all free [1].

    Raises:
        InputError: an unknown name.
    """
    check_known("form", name, FORMS)
    equal, fixed = FORMS[name]
    size = len(BASE) + n_terms
    matrix, offset = np.eye(size), np.zeros(size)
    for number, other in equal.items():
        row, column = BASE.index(number), BASE.index(other)
        # A tied number follows the free logarithm of the second number.
        matrix[row] = 0.0
        matrix[row, column] = 1.0
    for number, value in fixed.items():
        row = BASE.index(number)
        matrix[row], offset[row] = 0.0, value
    # A column of zeros moves nothing.
    return Form(name, matrix, offset, np.abs(matrix).sum(axis=0) > 0.0)


def holding(form: Form, held: Mapping[str, float], middle: tuple[float, float]) -> Form:
    """Form with coefficients held at given values.

    Args:
        held: values by name; A and B are held together with the exponent of the summand.
        middle: means of ln N and ln D of the table, where the fit defines A and B.

    Raises:
        InputError: an unknown name, a value that is not positive, or a coefficient without exponent.
    """
    matrix, offset = form.matrix.copy(), form.offset.copy()
    pairs = {"params_coefficient": ("params_exponent", middle[0]), "tokens_coefficient": ("tokens_exponent", middle[1])}
    for name, value in held.items():
        if name not in BASE or not value > 0.0:
            raise InputError(f"held number {name!r} = {value:g}; expected a positive one of {', '.join(BASE)}")
        exponent, mean = pairs.get(name, ("", 0.0))
        if exponent and exponent not in held:
            raise InputError(f"{name} is held without {exponent}; expected both")
        row = BASE.index(name)
        # ln A - a ln N: coefficient at the middle of the table.
        matrix[row], offset[row] = 0.0, np.log(value) - (held[exponent] * mean if exponent else 0.0)
    return Form(form.name, matrix, offset, np.abs(matrix).sum(axis=0) > 0.0)


def log_reducible(
    numbers: Float[Array, " number"], log_params: Float[ArrayLike, "*row"], log_tokens: Float[ArrayLike, "*row"]
) -> Array:
    r"""Log of the reducible loss, $k \ln(e^{(\ln A - a \ln N) / k} + e^{(\ln B - b \ln D) / k})$ [1].

    Args:
        numbers: coefficients of the law, with the logarithms of `BASE` first.
        log_params: ln N [1].
        log_tokens: ln D [1].
    """
    a, b, k = (jnp.exp(numbers[place]) for place in (3, 4, 5))
    return joint_sum(numbers[1] - a * log_params, numbers[2] - b * log_tokens, k)


def log_loss(
    numbers: Float[Array, " number"], log_params: Float[ArrayLike, "*row"], log_tokens: Float[ArrayLike, "*row"]
) -> Array:
    """Log of the loss by the joint form, without further terms; arguments as `log_reducible` [1]."""
    return jnp.logaddexp(numbers[0], log_reducible(numbers, log_params, log_tokens))


def centred(
    numbers: Float[ArrayLike, "*sample number"],
    log_params: Float[ArrayLike, ""],
    log_tokens: Float[ArrayLike, ""],
    sign: float,
) -> Array:
    """Coefficients of a law with ln A and ln B converted between N = D = 1 and the middle of a table.

    Args:
        numbers: coefficients of the law, with the logarithms of `BASE` first.
        log_params: mean of ln N [1].
        log_tokens: mean of ln D [1].
        sign: -1 for a conversion to the middle of the table, +1 for the reverse.
    """
    numbers = jnp.asarray(numbers)
    # In the middle coefficients and exponents are nearly independent: a tenth of the search steps.
    # ln A at the middle is ln A - a ln N.
    moved = numbers.at[..., 1].add(sign * jnp.exp(numbers[..., 3]) * log_params)
    return moved.at[..., 2].add(sign * jnp.exp(numbers[..., 4]) * log_tokens)


def law_of(numbers: Float[ArrayLike, "*sample number"]) -> LossLaw:
    """`LossLaw` from coefficients with the logarithms of `BASE` first."""
    values = jnp.exp(jnp.asarray(numbers)[..., : len(BASE)])
    return LossLaw(*jnp.moveaxis(values, -1, 0))


def frontier_params(numbers: Float[Array, " number"], log_tokens: Float[ArrayLike, "*row"]) -> Array:
    """Log of the compute-optimal parameters for a number of tokens [1]."""
    # alpha ln N - beta ln D is constant along the optimum.
    return (law_of(numbers).log_balance() + jnp.exp(numbers[4]) * log_tokens) / jnp.exp(numbers[3])


TRAITS = ("params_exponent", "tokens_exponent", "joint", "floor_share", "tokens_per_param")
"""Quantities of a law that vary little between sources with different tokenizers, used for priors."""

TYPICAL_PARAMS, TYPICAL_TOKENS = 1e9, 2e10
"""Run for which traits are stated, inside the range of most tables [1], [token]."""


def traits(numbers: Float[Array, " number"]) -> Array:
    r"""Logarithms of the traits of a law (quantities with priors), followed by the coefficients of the terms [trait].

    Traits are a, b and k; the share of the irreducible loss, $E / L(10^9, 2 \times 10^{10})$; and the compute-optimal
    tokens per parameter for $10^9$ parameters. No trait depends on the unit of the loss.

    Args:
        numbers: coefficients of the law, `BASE` first, then terms.
    """
    size, seen = jnp.log(TYPICAL_PARAMS), jnp.log(TYPICAL_TOKENS)
    # E / L of the typical run.
    floor = numbers[0] - log_loss(numbers, size, seen)
    # D* of the typical size, from the balance.
    optimal_tokens = (jnp.exp(numbers[3]) * size - law_of(numbers).log_balance()) / jnp.exp(numbers[4])
    return jnp.concatenate([numbers[3:6], jnp.stack([floor, optimal_tokens - size]), numbers[len(BASE) :]])


if TYPE_CHECKING:
    # Static checkers do not accept numpy arrays as JAX arrays; run-time checks do.
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
"""Numbers that may be negative, fitted without a logarithm."""

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
"""Start values of the terms' numbers: Kaplan et al. 2020, Bergsma et al. 2025, Muennighoff et al. 2023."""

BATCH_STEPS = 6
"""Newton steps from the tokens of a run to those of small batches; exact to 1e-12 up to a thousand critical batches."""


class Covariates(NamedTuple):
    """Covariates of the runs of a table for a law of the loss.

    Attributes:
        log_params: ln N, log of the parameters [row].
        log_tokens: ln D, log of the tokens [row].
        middle: means of ln N and ln D of the table.
        log_aspect: ln of width over depth, for `shape` [row].
        log_batch: ln B, log of the batch in tokens, for `batch` [row].
        log_unique: ln U, tokens seen at least once, for `repetition` [row].
        log_experts: ln E, log of the number of experts, for `experts` [row].
    """

    log_params: PerRow
    log_tokens: PerRow
    middle: Pair
    log_aspect: PerRow
    log_batch: PerRow
    log_unique: PerRow
    log_experts: PerRow


def number_names(terms: tuple[str, ...]) -> tuple[str, ...]:
    """Names of the coefficients of a law with the given terms, in the order of the vector of coefficients."""
    return (*BASE, *(name for term in terms for name in TERMS[term]))


def log_loss_with(numbers: Float[Array, " number"], runs: Covariates, terms: tuple[str, ...]) -> Array:
    """Log of the loss with all terms [row].

    Args:
        numbers: coefficients in the order of `number_names`, as logarithms except for `SIGNED`.
        terms: names of terms, from `TERMS`.
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
    """Log of the tokens $D_0$ of an equivalent run with small batches: $D = D_0 (1 + B / (c D_0^p))$ [row]."""
    small = log_tokens
    for _ in range(BATCH_STEPS):
        excess = log_batch - log_coefficient - exponent * small
        share = 1.0 / (1.0 + jnp.exp(-excess))
        # ln D_0 + ln(1 + B / (c D_0^p)) - ln D
        miss = small + jnp.logaddexp(0.0, excess) - log_tokens
        # The slope of `miss` in `small` is 1 - exponent * share; the lower bound limits the step.
        small = small - miss / jnp.maximum(1.0 - exponent * share, 0.05)
    return small


def effective_data(
    numbers: Array, log_params: Array, log_tokens: Array, log_unique: Array, named: dict[str, Array]
) -> tuple[Array, Array]:
    """Logs of the effective parameters and tokens of a run with repeated data [row].

    Tokens beyond the unique tokens, and parameters beyond the optimum for the unique tokens, have decreasing value.
    """
    # Never more unique tokens than tokens.
    unique = jnp.minimum(log_unique, log_tokens)
    # Parameters up to the optimum of the unique tokens have full worth.
    deserved = jnp.minimum(frontier_params(numbers, unique), log_params)
    params = deserved + _worth(log_params - deserved, named["repeated_params"])
    return params, unique + _worth(log_tokens - unique, named["repeated_tokens"])


def _worth(log_ratio: Array, log_half_life: Array) -> Array:
    """Logarithm of the worth of a multiple x, $1 + R (1 - e^{-(x - 1) / R})$."""
    repeats, life = jnp.expm1(log_ratio), jnp.exp(log_half_life)
    # ln(1 + R (1 - e^(-(x - 1) / R)))
    return jnp.log1p(life * -jnp.expm1(-repeats / life))


ALL = "all"
"""Name of the prior from all sources."""


class LawPrior(NamedTuple):
    """Normal prior of the traits of a law, with the error of extrapolation.

    Attributes:
        name: `shipped`, `without-<family>` or `none`.
        mean: mean of the traits and of the coefficients of the terms [trait].
        spread: standard deviation between sources; infinite without a prior [trait].
        discrepancy: relative error of the law per decade of compute beyond the fitted range [1].
    """

    name: str
    mean: Float[np.ndarray, " trait"]
    spread: Float[np.ndarray, " trait"]
    discrepancy: float

    @property
    def precision(self) -> Float[np.ndarray, " trait"]:
        """Inverse variance of each trait; 0 without a prior [trait]."""
        return 1.0 / self.spread**2


@functools.cache
def _table() -> dict[str, Any]:
    return read_toml(data_path("law_priors.toml"))


def prior_of(name: str | None, form: str, terms: tuple[str, ...] = (), family: str = "") -> LawPrior:
    """Prior of the traits of a form of the law, by name.

    Args:
        name: `shipped`, or None for no prior.
        form: form of the law.
        family: source of the table, excluded from the prior.

    Raises:
        InputError: an unknown name.
    """
    extra = number_names(terms)[len(number_names(())) :]
    size = len(TRAITS) + len(extra)
    entry = _entry(form, family)
    if name is None or name == "none":
        # Without a prior the error of extrapolation still holds.
        return LawPrior("none", np.zeros(size), np.full(size, np.inf), float(entry.get("discrepancy", 0.0)))
    if name != "shipped":
        raise InputError(f"prior {name!r} is unknown; expected shipped or none")
    of_terms = _table().get("terms", {})
    mean = [*(entry["mean"][trait] for trait in TRAITS), *(of_terms.get(x, {}).get("mean", 0.0) for x in extra)]
    spread = [
        *(entry["spread"][trait] for trait in TRAITS),
        *(of_terms.get(x, {}).get("spread", np.inf) for x in extra),
    ]
    told = f"without-{family}" if family in _table()["priors"].get(form, {}) else "shipped"
    return LawPrior(told, np.asarray(mean, float), np.asarray(spread, float), float(entry["discrepancy"]))


def _entry(form: str, family: str) -> dict[str, Any]:
    """Prior of a form without a source family; that of all sources if the family is unknown."""
    of_form = _table().get("priors", {}).get(form, {})
    return of_form.get(family) or of_form.get(ALL, {})
