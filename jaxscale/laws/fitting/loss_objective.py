r"""Objective of a fit of losses: a robust likelihood of the log loss, and priors of the traits of the law.

With residuals $r = \ln L_\mathrm{measured} - \ln L_\mathrm{law}$ and weights w the objective is one of

- Student-t, of $\nu$ degrees of freedom and free scale $\sigma$:
  $\sum w \left[\tfrac{\nu + 1}{2} \ln(1 + r^2 / \nu \sigma^2) + \ln \sigma\right]$, and
- Huber, of a fixed $\delta$: $\tfrac{1}{\delta} \sum w\, h_\delta(r)$ (Hoffmann et al. 2022, appendix D.2),

each plus $\tfrac12 \sum p\, (q - m)^2$ over the traits q of the law (`loss_forms.traits`), with prior means m and
precisions p.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from jaxscale.fitting.statistics.student import student_loss
from jaxscale.laws.fitting.loss_forms import centred, traits
from jaxscale.laws.fitting.loss_terms import Covariates, PerRow, log_loss_with

if TYPE_CHECKING:
    Square = Numbers = Scalar = Any
else:
    Square = Float[ArrayLike, "number number"]
    """A number for each pair of numbers of the law."""

    Numbers = Float[ArrayLike, " _"]
    """A number for each number, or trait, of the law."""

    Scalar = Float[ArrayLike, ""]
    """One number."""

HUBER_DELTA = 1e-3
"""Residual of the log loss from which it counts linearly (Hoffmann et al. 2022, appendix D.2) [1]."""

STUDENT_DEGREES = 4.0
"""Degrees of freedom of the Student-t likelihood: normal near zero, a power law far out (Lange et al. 1989) [1]."""

LEAST_SCALE = 1e-5
"""Scale of the noise below which a fit counts as exact, so that a likelihood has a maximum [1]."""


class LossProblem(NamedTuple):
    """All that a fit of one table depends on; every leaf traces.

    Attributes:
        covariates: of the rows.
        log_loss: measured [row].
        weights: of the rows, 0 for rows that fill a bucket [row].
        matrix: of the form [number, number].
        offset: of the form [number].
        prior_mean: of the traits of the law and the numbers of its terms [trait].
        prior_precision: inverse variance, 0 without a prior [trait].
        is_huber: 1 for Huber's objective, 0 for Student's.
    """

    covariates: Covariates
    log_loss: PerRow
    weights: PerRow
    matrix: Square
    offset: Numbers
    prior_mean: Numbers
    prior_precision: Numbers
    is_huber: Scalar


def numbers_of(free: Float[Array, " number"], problem: LossProblem) -> Array:
    """Logarithms of all numbers of the law, at N = D = 1, from free ones in the middle of the table [number]."""
    inside = problem.matrix @ free + problem.offset
    first, second = problem.covariates.middle
    return centred(inside, first, second, 1.0)


def huber_loss(residual: Float[Array, "*row"]) -> Array:
    """Huber's loss of a residual, of `HUBER_DELTA` [1]."""
    size = jnp.abs(residual)
    return jnp.where(size < HUBER_DELTA, 0.5 * size**2, HUBER_DELTA * (size - 0.5 * HUBER_DELTA))


def loss_residuals(free: Float[Array, " number"], problem: LossProblem, terms: tuple[str, ...]) -> Array:
    """Measured log loss less that of the law [row]."""
    return problem.log_loss - log_loss_with(numbers_of(free, problem), problem.covariates, terms)


def objective(point: Float[Array, " coordinate"], problem: LossProblem, terms: tuple[str, ...]) -> Array:
    """Objective of a fit at one point [1].

    Args:
        point: free logarithms of the numbers, and ln sigma last [1].
        problem: table, form and priors.
        terms: of the law, names.
    """
    free, log_scale = point[:-1], point[-1]
    miss = loss_residuals(free, problem, terms)
    floored = jnp.logaddexp(2.0 * log_scale, 2.0 * jnp.log(LEAST_SCALE))
    student = student_loss(miss * jnp.exp(-0.5 * floored), STUDENT_DEGREES) + 0.5 * floored
    huber = huber_loss(miss) / HUBER_DELTA + 0.5 * log_scale**2 / miss.size
    data = jnp.sum(problem.weights * jnp.where(problem.is_huber > 0.5, huber, student))
    distance = traits(numbers_of(free, problem)) - problem.prior_mean
    return data + 0.5 * jnp.sum(problem.prior_precision * distance**2)
