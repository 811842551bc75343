r"""Answers of one step of reinforcement learning: their number and the distribution of their lengths.

Lengths are lognormal, $\ln l \sim N(\mu, \sigma^2)$ with $\sigma^2 = \ln(1 + c^2)$ and $\mu = \ln m - \sigma^2 / 2$ for
a mean m and a coefficient of variation c, and are cut off at a maximum M.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr, ndtr
from jaxtyping import Array, ArrayLike, Float

from jaxscale.base.arrays import Number, as_float
from jaxscale.base.domains import Bound, Domain
from jaxscale.base.errors import InputError
from jaxscale.base.smooth import larger, smaller

NO_LIMIT = 1e9
"""Maximum of answers without a maximum [token]."""

COUNT = Bound(1.0, 1e9)

ROLLOUT_BATCH = Domain(
    "RolloutBatch",
    {
        "prompts": COUNT._replace(meaning="prompts of a step"),
        "answers": COUNT._replace(meaning="answers to each prompt"),
        "input_len": Bound(1.0, 1e8, meaning="prompt [token]"),
        "output_len": Bound(1.0, 1e8, meaning="mean answer without a maximum [token]"),
        "length_cv": Bound(0.0, 10.0, meaning="coefficient of variation of the lengths of answers"),
        "max_output_len": Bound(1.0, NO_LIMIT, meaning="longest answer allowed [token]"),
    },
)
"""Valid numbers of a `RolloutBatch`."""

SHORTEST, LONGEST = -6.0, 8.0
"""Ends of the quadrature over lengths, in standard deviations of their logarithm [1]."""

LEAST_VARIANCE = 1e-12
"""Variance of the logarithm of equal lengths, above zero so that slopes stay finite [1]."""

POINTS, WEIGHTS = np.polynomial.legendre.leggauss(96)
"""Gauss-Legendre rule on [-1, 1], for the lengths that answers reach [1]."""

FEW_POINTS, FEW_WEIGHTS = np.polynomial.legendre.leggauss(8)
"""Gauss-Legendre rule on [-1, 1], for the positions that all answers reach [1]."""


class Positions(eqx.Module):
    """Quadrature over token positions in the answers.

    Attributes:
        place: tokens before the position [token].
        weight: quadrature weight, decode steps represented by the position [token].
        z: position on the scale of the log length, in standard deviations above the mean [1].
    """

    place: Float[Array, " position"]
    weight: Float[Array, " position"]
    z: Float[Array, " position"]


class RolloutBatch(eqx.Module):
    """Prompts and answers of one step of reinforcement learning; every number traces.

    Attributes:
        prompts: number of prompts of a step [1].
        answers: number of answers to each prompt [1].
        input_len: length of a prompt [token].
        output_len: m, mean length of an answer without a maximum [token].
        length_cv: c, coefficient of variation of the lengths of answers [1].
        max_output_len: M, maximum length of an answer [token].
    """

    prompts: Number = eqx.field(converter=as_float)
    answers: Number = eqx.field(converter=as_float)
    input_len: Number = eqx.field(converter=as_float)
    output_len: Number = eqx.field(converter=as_float)
    length_cv: Number = eqx.field(converter=as_float, default=1.0)
    max_output_len: Number = eqx.field(converter=as_float, default=NO_LIMIT)

    def __check_init__(self):
        """Refuse impossible numbers; traced values are not checked."""
        try:
            ROLLOUT_BATCH.check(vars(self))
        except ValueError as error:
            raise InputError(str(error)) from None

    @property
    def n_answers(self) -> Number:
        """Number of answers of a step [1]."""
        return self.prompts * self.answers

    @property
    def log_spread(self) -> Array:
        """Standard deviation of the logarithm of the length, sigma [1]."""
        return jnp.sqrt(jnp.log1p(jnp.square(self.length_cv)) + LEAST_VARIANCE)

    @property
    def log_centre(self) -> Array:
        """Mean of the logarithm of the length, mu [1]."""
        return jnp.log(self.output_len) - 0.5 * self.log_spread**2

    @property
    def limit_z(self) -> Array:
        """Maximum length on the scale of the log length, in standard deviations above the mean [1]."""
        return (jnp.log(self.max_output_len) - self.log_centre) / self.log_spread

    @property
    def mean_len(self) -> Array:
        r"""Mean length of an answer that is cut off at the maximum, $m \Phi(z - \sigma) + M \Phi(-z)$ [token]."""
        z = self.limit_z
        return self.output_len * ndtr(z - self.log_spread) + self.max_output_len * ndtr(-z)

    @property
    def mean_square_len(self) -> Array:
        r"""Mean square of the cut-off length, $m^2 e^{\sigma^2} \Phi(z - 2 \sigma) + M^2 \Phi(-z)$ [token^2]."""
        z, spread = self.limit_z, self.log_spread
        whole = (self.output_len * jnp.exp(0.5 * spread**2)) ** 2
        # The square of a maximum that no answer reaches leaves the range of small floats.
        return whole * ndtr(z - 2.0 * spread) + (self.max_output_len * jnp.sqrt(ndtr(-z) + 1e-37)) ** 2

    def positions(self) -> Positions:
        """Quadrature over the decode steps of all answers.

        The first positions, up to six standard deviations below the mean log length, are reached by every answer; the
        further positions are spread over the logarithm of the length, up to the maximum.
        """
        end = jnp.clip(self.limit_z, SHORTEST, LONGEST)
        first = smaller(jnp.exp(self.log_centre + SHORTEST * self.log_spread), self.max_output_len)
        z = SHORTEST + 0.5 * (end - SHORTEST) * (1.0 + POINTS)
        place = jnp.exp(self.log_centre + self.log_spread * z)
        weight = 0.5 * (end - SHORTEST) * WEIGHTS * self.log_spread * place
        return Positions(
            place=jnp.concatenate([even_positions(first)[0], place]),
            weight=jnp.concatenate([even_positions(first)[1], weight]),
            z=jnp.concatenate([jnp.full(len(FEW_POINTS), SHORTEST), z]),
        )


def even_positions(length: ArrayLike) -> tuple[Array, Array]:
    """Gauss-Legendre positions and weights for answers of one length [token], [position]."""
    half = 0.5 * jnp.asarray(length)
    return half * (1.0 + FEW_POINTS), half * FEW_WEIGHTS


def any_running(z: Float[Array, " position"], n_answers: ArrayLike) -> Float[Array, " position"]:
    r"""Probability that at least one of n answers reaches a position, $1 - \Phi(z)^n$ [1], [position]."""
    return -jnp.expm1(n_answers * log_ndtr(z))


def running_beside_longest(
    z: Float[Array, " position"], n_answers: ArrayLike, on_rank: ArrayLike
) -> Float[Array, " position"]:
    r"""Answers still running at a position on the rank with the longest answer, given that any answer runs.

    Of n answers in all, $n \Phi(-z)$ reach the position. All except the longest answer are spread evenly over ranks:
    $1 + (b - 1) (n \Phi(-z) / P - 1) / (n - 1)$ of b answers on a rank, with P of `any_running`.

    Args:
        z: position on the scale of the log length, in standard deviations above the mean [1], [position].
        n_answers: n, answers of all ranks [1].
        on_rank: b, answers of one rank at the start [1].

    Returns:
        Running answers [1], [position].
    """
    others = n_answers * ndtr(-z) / any_running(z, n_answers) - 1.0
    share = jnp.clip(others / larger(jnp.subtract(n_answers, 1.0), 1.0), 0.0, 1.0)
    return 1.0 + jnp.subtract(on_rank, 1.0) * share
