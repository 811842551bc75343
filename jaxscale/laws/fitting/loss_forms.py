r"""Forms of the law of loss: one joint law, of which the others are cases.

$$ L = E + \left[ (A N^{-a})^{1/k} + (B D^{-b})^{1/k} \right]^k $$

a and b are the exponents of the two limits, of few parameters and of few tokens. Every other form sets linear
conditions on the logarithms of the numbers, so that one compiled program fits all forms:

| form | conditions | reference |
|---|---|---|
| joint | none | Videau et al. 2026, "Skaling"; Droppo and Elibol 2021 with k = b |
| additive | k = 1 | Hoffmann et al. 2022, equation 10 |
| tied | k = 1, a = b | Gadre et al. 2024; Muennighoff et al. 2023 |
| kaplan | E = 0, k = b | Kaplan et al. 2020, equation 1.5 |
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxscale.base.errors import InputError
from jaxscale.laws.loss import LossLaw, joint_sum

BASE = ("irreducible", "params_coefficient", "tokens_coefficient", "params_exponent", "tokens_exponent", "joint")
"""Numbers of the joint law, E, A, B, a, b and k, in the order of their logarithms in a vector."""

FORMS = {
    "joint": ({}, {}),
    "additive": ({}, {"joint": 0.0}),
    "tied": ({"tokens_exponent": "params_exponent"}, {"joint": 0.0}),
    "kaplan": ({"joint": "tokens_exponent"}, {"irreducible": -60.0}),
}
"""Conditions of each form: numbers that equal another one, and logarithms that are set."""


class Form(NamedTuple):
    r"""Linear conditions of a form: $\theta = M \phi + c$ with free logarithms $\phi$.

    Attributes:
        name: of the form.
        matrix: M [number, number], a column of zeros where the number is not free.
        offset: c [number].
        is_free: numbers that a fit moves [number].
    """

    name: str
    matrix: np.ndarray
    offset: np.ndarray
    is_free: np.ndarray


def form_of(name: str, n_terms: int = 0) -> Form:
    """Conditions of a form by name.

    Args:
        name: joint, additive, tied or kaplan.
        n_terms: further numbers of terms, all free [1].

    Raises:
        InputError: unknown name.
    """
    if name not in FORMS:
        raise InputError(f"form {name!r} is unknown; expected one of {', '.join(FORMS)}")
    equal, fixed = FORMS[name]
    size = len(BASE) + n_terms
    matrix, offset = np.eye(size), np.zeros(size)
    for number, other in equal.items():
        row, column = BASE.index(number), BASE.index(other)
        matrix[row] = 0.0
        matrix[row, column] = 1.0
    for number, value in fixed.items():
        row = BASE.index(number)
        matrix[row], offset[row] = 0.0, value
    return Form(name, matrix, offset, np.abs(matrix).sum(axis=0) > 0.0)


def holding(form: Form, held: Mapping[str, float], middle: tuple[float, float]) -> Form:
    """The form with some numbers of `BASE` held at values, for a table whose means of ln N and ln D are given.

    Args:
        form: conditions.
        held: values by name; a coefficient is held with its exponent.
        middle: means of ln N and ln D, between which and N = D = 1 the coefficients are moved.

    Raises:
        InputError: an unknown number, a value that is not positive, or a coefficient without its exponent.
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
        matrix[row], offset[row] = 0.0, np.log(value) - (held[exponent] * mean if exponent else 0.0)
    return Form(form.name, matrix, offset, np.abs(matrix).sum(axis=0) > 0.0)


def log_reducible(
    numbers: Float[Array, " number"], log_params: Float[ArrayLike, "*row"], log_tokens: Float[ArrayLike, "*row"]
) -> Array:
    r"""Logarithm of the reducible loss, $k \ln(e^{(\ln A - a \ln N) / k} + e^{(\ln B - b \ln D) / k})$ [1].

    Args:
        numbers: logarithms of `BASE` in front.
        log_params: ln N [1].
        log_tokens: ln D [1].
    """
    a, b, k = (jnp.exp(numbers[place]) for place in (3, 4, 5))
    return joint_sum(numbers[1] - a * log_params, numbers[2] - b * log_tokens, k)


def log_loss(
    numbers: Float[Array, " number"], log_params: Float[ArrayLike, "*row"], log_tokens: Float[ArrayLike, "*row"]
) -> Array:
    """Logarithm of the loss by the joint law [1]."""
    return jnp.logaddexp(numbers[0], log_reducible(numbers, log_params, log_tokens))


def centred(
    numbers: Float[ArrayLike, "*sample number"],
    log_params: Float[ArrayLike, ""],
    log_tokens: Float[ArrayLike, ""],
    sign: float,
) -> Array:
    """Logarithms of A and B moved from N = D = 1 to the middle of a table, sign -1, or back, sign +1.

    Far from the table the coefficients and the exponents are almost one number; in its middle they are nearly
    independent, and a search takes a tenth of the steps.

    Args:
        numbers: logarithms of `BASE` in front.
        log_params: mean of ln N [1].
        log_tokens: mean of ln D [1].
        sign: -1 to the middle, +1 back.
    """
    numbers = jnp.asarray(numbers)
    moved = numbers.at[..., 1].add(sign * jnp.exp(numbers[..., 3]) * log_params)
    return moved.at[..., 2].add(sign * jnp.exp(numbers[..., 4]) * log_tokens)


def law_of(numbers: Float[ArrayLike, "*sample number"]) -> LossLaw:
    """Law of given logarithms of `BASE` in front."""
    values = jnp.exp(jnp.asarray(numbers)[..., : len(BASE)])
    return LossLaw(*jnp.moveaxis(values, -1, 0))


def frontier_params(numbers: Float[Array, " number"], log_tokens: Float[ArrayLike, "*row"]) -> Array:
    """Logarithm of the parameters for which a number of tokens is compute-optimal [1]."""
    return (law_of(numbers).log_balance() + jnp.exp(numbers[4]) * log_tokens) / jnp.exp(numbers[3])


TRAITS = ("params_exponent", "tokens_exponent", "joint", "floor_share", "tokens_per_param")
"""Quantities of a law that differ little between sources, whatever their tokenizer, and that priors are stated for."""

TYPICAL_PARAMS, TYPICAL_TOKENS = 1e9, 2e10
"""Run at which traits are stated: inside the range of most tables [1], [token]."""


def traits(numbers: Float[Array, " number"]) -> Array:
    r"""Logarithms of the traits of a law, and the numbers of its terms behind them [trait].

    a, b and k; the share of the irreducible loss, $E / L(10^9, 2 \times 10^{10})$; and the compute-optimal tokens per
    parameter of a model of $10^9$ parameters. None of them depends on the unit of the loss.

    Args:
        numbers: of the law, those of the terms behind those of `BASE`.
    """
    size, seen = jnp.log(TYPICAL_PARAMS), jnp.log(TYPICAL_TOKENS)
    floor = numbers[0] - log_loss(numbers, size, seen)
    optimal_tokens = (jnp.exp(numbers[3]) * size - law_of(numbers).log_balance()) / jnp.exp(numbers[4])
    return jnp.concatenate([numbers[3:6], jnp.stack([floor, optimal_tokens - size]), numbers[len(BASE) :]])
