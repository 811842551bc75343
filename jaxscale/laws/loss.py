r"""Laws of the loss in parameters and tokens, of critical batch, shape and experts, and the slowdown by failures.

Each law is a module of float leaves, read by name from `data/laws.toml` or built from numbers.

With exponential failures of mean interval M for the whole job, checkpoints of duration $\delta$ every $\tau$ of work
and restarts of duration R, a unit of work takes

$$ \frac{M}{\tau}\, e^{R/M} \left(e^{(\tau + \delta)/M} - 1\right), \qquad \tau = \sqrt{2 \delta M} . $$

References: Young 1974, Communications of the ACM 17(9) (interval); Daly 2006, Future Generation Computer Systems 22(3),
equation 13 (time).
"""

import functools
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from jaxscale.base.arrays import Number, as_float, weak
from jaxscale.base.documents import data_path, read_toml
from jaxscale.base.errors import check_known
from jaxscale.base.smooth import smaller

FLOP_PER_PARAM_TOKEN = 6.0
"""Training flop per parameter and token: one forward and two backward multiply-adds (Kaplan et al. 2020, eq. 2.2)."""

REFERENCE_PARAMS = 1e9
"""Parameters for which the best ratio of a shape law, and the exponent of a law of experts, are stated [1]."""


@functools.cache
def _laws() -> dict[str, Any]:
    return read_toml(data_path("laws.toml"))


def law_table(kind: str, name: str) -> dict[str, Any]:
    """Numbers of a law from the shipped table.

    Args:
        kind: type of law, for example `loss`, `experts`, `batch`, `shape` or `compute`.
        name: name of the law.

    Raises:
        InputError: an unknown name; the message lists the known names.
    """
    known = _laws()[kind]
    check_known(f"{kind} law", name, known)
    return {key: value for key, value in known[name].items() if key not in ("source", "note", "error")}


def law_errors(kind: str, name: str) -> dict[str, float]:
    """Standard errors of the numbers of a law by name, from the shipped table; empty if not published."""
    law_table(kind, name)
    return dict(_laws()[kind][name].get("error", {}))


def joint_sum(log_first: ArrayLike, log_second: ArrayLike, joint: ArrayLike) -> Array:
    r"""Logarithm of a generalised sum of two positive quantities, $\ln (x^{1/k} + y^{1/k})^k$ [1].

    Args:
        log_first: ln x [1].
        log_second: ln y [1].
        joint: k, exponent of the sum; 1 for the plain sum [1].
    """
    return jnp.asarray(joint * jnp.logaddexp(jnp.divide(log_first, joint), jnp.divide(log_second, joint)))


class LossLaw(eqx.Module):
    r"""Law of the loss in parameters and tokens, $L = E + [(A N^{-\alpha})^{1/k} + (B D^{-\beta})^{1/k}]^k$.

    k = 1 gives the law of Hoffmann et al. 2022, equation 10; for k below 1, the scarcer of parameters and tokens
    dominates (Videau et al. 2026). The exponents describe the limits of few parameters and of few tokens.

    Attributes:
        irreducible: E, irreducible loss [nat per token].
        params_coefficient: A, coefficient of the parameters [nat per token].
        tokens_coefficient: B, coefficient of the tokens [nat per token].
        params_exponent: alpha, exponent of the parameters [1].
        tokens_exponent: beta, exponent of the tokens [1].
        joint: k, exponent of the sum [1].
    """

    irreducible: Number = eqx.field(converter=as_float)
    params_coefficient: Number = eqx.field(converter=as_float)
    tokens_coefficient: Number = eqx.field(converter=as_float)
    params_exponent: Number = eqx.field(converter=as_float)
    tokens_exponent: Number = eqx.field(converter=as_float)
    joint: Number = eqx.field(converter=as_float, default=1.0)

    def reducible(self, n_params: ArrayLike, n_tokens: ArrayLike) -> Array:
        """Reducible loss, L - E, for given parameters and tokens [nat per token]."""
        law = weak(self)
        # ln A - alpha ln N
        params = jnp.log(law.params_coefficient) - law.params_exponent * jnp.log(n_params)
        tokens = jnp.log(law.tokens_coefficient) - law.tokens_exponent * jnp.log(n_tokens)
        return jnp.exp(joint_sum(params, tokens, law.joint))

    def loss(self, n_params: ArrayLike, n_tokens: ArrayLike) -> Array:
        """Loss L for given parameters and tokens [nat per token]."""
        return jnp.add(weak(self.irreducible), self.reducible(n_params, n_tokens))

    def tokens(self, n_params: ArrayLike, loss: ArrayLike) -> Array:
        r"""Tokens needed by a model to reach a loss, $D = (B / y)^{1/\beta}$, $y^{1/k} = (L - E)^{1/k} - x^{1/k}$.

        x is the summand of the parameters, $A N^{-\alpha}$.

        Args:
            n_params: N, parameters [1].
            loss: L, target loss [nat per token].

        Returns:
            D [token]; nan if the loss is out of reach.
        """
        params = jnp.log(self.params_coefficient) - self.params_exponent * jnp.log(n_params)
        reducible = jnp.asarray(loss) - self.irreducible
        positive = reducible > 0.0
        # ln((L - E)^(1/k) / x^(1/k)), positive where the loss can be reached.
        gap = (jnp.log(jnp.where(positive, reducible, 1.0)) - params) / self.joint
        reached = positive & (gap > 0.0)
        # For losses out of reach the logarithm gets a valid argument, so that gradients stay finite.
        open_gap = jnp.where(reached, gap, 1.0)
        # ln y with y^(1/k) = (L - E)^(1/k) - x^(1/k), without cancellation.
        log_summand = params + self.joint * (open_gap + jnp.log(-jnp.expm1(-open_gap)))
        log_tokens = (jnp.log(self.tokens_coefficient) - log_summand) / self.tokens_exponent
        return jnp.where(reached, jnp.exp(log_tokens), jnp.nan)

    def log_balance(self) -> Array:
        r"""Logarithm of $N^\alpha / D^\beta$ at the compute optimum, with $\alpha x = \beta y$ [1].

        x and y are the summands in the bracket: $(\alpha / \beta)^k A / B$.
        """
        ratio = jnp.log(self.params_exponent) - jnp.log(self.tokens_exponent)
        coefficients = jnp.log(self.params_coefficient) - jnp.log(self.tokens_coefficient)
        # ln((alpha / beta)^k A / B)
        return jnp.asarray(self.joint * ratio + coefficients)

    def optimum(self, training_flop: ArrayLike, elasticity: ArrayLike = 0.0) -> tuple[Array, Array]:
        r"""Parameters and tokens of least loss for a given training compute, or for a given time.

        $N^* = G (T/6)^{\beta/(\alpha+\beta)}$, $G = ((\alpha / \beta)^k A / B)^{1/(\alpha+\beta)}$ (Hoffmann et al.,
        equation 4, with k = 1). If larger models have a higher utilisation, so that a time allows
        $D = (T/6) N^{-(1-u)}$ tokens, $\alpha x = (1 - u) \beta y$ and $N^* \sim T^{\beta / (\alpha + \beta (1 - u))}$.

        Args:
            training_flop: T = 6 N D [flop]; with an elasticity, six times the tokens of a model of a single parameter
                in the time.
            elasticity: u, elasticity of the utilisation by N, below 1 [1].

        Returns:
            N [1] and D [token].
        """
        a, b, fall = self.params_exponent, self.tokens_exponent, jnp.subtract(1.0, elasticity)
        # ln(N D)
        work = jnp.log(training_flop) - jnp.log(FLOP_PER_PARAM_TOKEN)
        # alpha x = (1 - u) beta y at the optimum.
        log_params = (self.log_balance() - self.joint * jnp.log(fall) + b * work) / (a + b * fall)
        return jnp.exp(log_params), jnp.exp(work - fall * log_params)


class BatchLaw(eqx.Module):
    r"""Critical batch size, $B_\mathrm{crit} = c\, D^{d} N^{n} T^{t} L^{l} / o$.

    A run with batch B takes $1 + B / B_\mathrm{crit}$ times the tokens and $1 + B_\mathrm{crit} / B$ times the steps of
    the extremes (McCandlish et al. 2018, equation 2.11).

    Attributes:
        coefficient: c, coefficient [token].
        overhead: o, extra tokens of a run at the law's batch relative to the tokens of small batches [1].
        tokens_exponent: d, exponent of the tokens D [1].
        params_exponent: n, exponent of the parameters N [1].
        flop_exponent: t, exponent of the training compute T [1].
        loss_exponent: l, exponent of the loss L [1].
    """

    coefficient: Number = eqx.field(converter=as_float)
    overhead: Number = eqx.field(converter=as_float, default=1.0)
    tokens_exponent: Number = eqx.field(converter=as_float, default=0.0)
    params_exponent: Number = eqx.field(converter=as_float, default=0.0)
    flop_exponent: Number = eqx.field(converter=as_float, default=0.0)
    loss_exponent: Number = eqx.field(converter=as_float, default=0.0)

    def critical(self, n_params: ArrayLike, n_tokens: ArrayLike, loss: ArrayLike) -> Array:
        """Critical batch of a run with given parameters, tokens and loss [token]."""
        log_params, log_tokens = jnp.log(n_params), jnp.log(n_tokens)
        log_flop = jnp.log(FLOP_PER_PARAM_TOKEN) + log_params + log_tokens
        exponent = self.tokens_exponent * log_tokens + self.params_exponent * log_params
        # c D^d N^n T^t L^l / o in logarithms.
        exponent = exponent + self.flop_exponent * log_flop + self.loss_exponent * jnp.log(loss)
        return jnp.divide(self.coefficient, self.overhead) * jnp.exp(exponent)


class ShapeLaw(eqx.Module):
    r"""Relative rise of the loss with the aspect ratio, $dL/L = \kappa \ln^2[(d/L) / (r (N / 10^9)^\rho)]$.

    Attributes:
        kappa: rise per squared log of the aspect ratio over the best ratio [1].
        ratio: r, width over depth of the best shape of 1e9 parameters [1].
        drift: rho, exponent of the best ratio in the parameters N without embeddings [1].
    """

    kappa: Number = eqx.field(converter=as_float)
    ratio: Number = eqx.field(converter=as_float)
    drift: Number = eqx.field(converter=as_float, default=0.0)

    def best_ratio(self, n_params: ArrayLike) -> Array:
        """Best ratio of width to depth for a number of parameters [1].

        Args:
            n_params: N, parameters without embeddings [1].
        """
        return jnp.asarray(self.ratio * jnp.exp(self.drift * jnp.log(jnp.divide(n_params, REFERENCE_PARAMS))))

    def penalty(self, d_model: ArrayLike, n_layers: ArrayLike, n_params: ArrayLike = REFERENCE_PARAMS) -> Array:
        """Relative rise of the loss of a shape over the best shape [1].

        Args:
            d_model: d, width [1].
            n_layers: L, depth [1].
            n_params: N, parameters without embeddings [1].
        """
        return jnp.multiply(self.kappa, jnp.log(d_model / (n_layers * self.best_ratio(n_params))) ** 2)


class ExpertsLaw(eqx.Module):
    r"""Law of mixtures of experts: dense per active parameters, $\hat A^{a + d \log_{10} C + \gamma g^2 + \beta g}$.

    $g = \log_2 (2 d / d_\mathrm{expert})$, $1 / \hat A = 1 / (A + (1 / A_s - 1 / A_m)^{-1}) + 1 / A_m$, A the share of
    the experts active per token (Tian et al. 2025, arXiv 2507.17702, mixtures of experts). The loss falls with the
    number of experts without limit; memory, traffic or a bound limits the number.

    Attributes:
        exponent: a, constant of the exponent [1].
        flop: d, slope of the exponent in the log of the training compute [1].
        granularity_square: gamma, quadratic coefficient of the granularity g [1].
        granularity: beta, linear coefficient of the granularity g [1].
        least: A_s, lower saturation of the active share [1].
        most: A_m, upper saturation of the active share [1].
        largest_flop: largest training compute of the source; the law is constant beyond [flop].
    """

    exponent: Number = eqx.field(converter=as_float)
    flop: Number = eqx.field(converter=as_float)
    granularity_square: Number = eqx.field(converter=as_float)
    granularity: Number = eqx.field(converter=as_float)
    least: Number = eqx.field(converter=as_float)
    most: Number = eqx.field(converter=as_float)
    largest_flop: Number = eqx.field(converter=as_float)

    def leverage(self, active_share: ArrayLike, fineness: ArrayLike, training_flop: ArrayLike) -> Array:
        """Dense parameters equivalent to an active parameter at equal loss [1].

        Args:
            active_share: A, experts per token over all experts, shared experts in each count [1].
            fineness: G, twice the width of the model over the width of an expert [1].
            training_flop: C, training compute [flop].
        """
        fine = jnp.log2(fineness)
        # Beyond the largest compute of the source, the law is constant.
        work = jnp.log10(smaller(jnp.asarray(training_flop), jnp.asarray(self.largest_flop)))
        power = self.exponent + self.flop * work + self.granularity_square * fine**2 + self.granularity * fine
        # 1 / (1 / A_s - 1 / A_m)
        floor = 1.0 / (1.0 / self.least - 1.0 / self.most)
        share = 1.0 / (1.0 / (active_share + floor) + 1.0 / self.most)
        return jnp.asarray(jnp.exp(power * jnp.log(share)))


def experts_law(name: str = "tian") -> ExpertsLaw:
    """Shipped law of mixtures of experts by name: `tian`."""
    return ExpertsLaw(**law_table("experts", name))


def loss_law(name: str = "besiroglu-joint") -> LossLaw:
    """Shipped law of the loss by name: `hoffmann`, `besiroglu`, `besiroglu-refit` or `besiroglu-joint`."""
    return LossLaw(**law_table("loss", name))


def batch_law(name: str = "bergsma") -> BatchLaw:
    """Shipped critical-batch law: `kaplan`, `zhang`, `zhang-refit`, `bergsma`, `deepseek`, `step-law`, `erdil`."""
    return BatchLaw(**law_table("batch", name))


def shape_law(name: str = "gemstones-built") -> ShapeLaw:
    """Shipped shape law: `kaplan`, `gemstones` or `gemstones-built`; best ratio varies in the last two."""
    return ShapeLaw(**law_table("shape", name))


def compute_exponent(name: str = "kaplan") -> float:
    """Exponent of the total loss in training compute at compute-optimal size, by name of a shipped law [1]."""
    return float(law_table("compute", name)["exponent"])


CHECKPOINT_BYTES = 14.0
"""Bytes per parameter in a checkpoint: 16-bit weight, 32-bit master weight and two moments of Adam [byte]."""


class FailureLaw(eqx.Module):
    """Law of failures: rate per chip, and times of checkpoints and restarts.

    Attributes:
        failures_per_chip_second: rate of interruptions per chip [1/s].
        storage_bytes_per_second: checkpoint bandwidth per chip [byte/s].
        restart_time: time from a failure to resumed training [s].
    """

    failures_per_chip_second: Number = eqx.field(converter=as_float)
    storage_bytes_per_second: Number = eqx.field(converter=as_float)
    restart_time: Number = eqx.field(converter=as_float)

    def checkpoint_time(self, n_params: ArrayLike, n_chips: ArrayLike) -> Array:
        """Time to write a checkpoint, with equal shares written by all chips [s]."""
        # All chips write at once.
        return jnp.asarray(CHECKPOINT_BYTES * n_params / (self.storage_bytes_per_second * n_chips))

    def checkpoint_interval(self, n_params: ArrayLike, n_chips: ArrayLike) -> Array:
        """Optimal training time between checkpoints, sqrt(2 delta M) (Young) [s]."""
        # M = 1 / (rate n)
        mean_interval = 1.0 / (self.failures_per_chip_second * n_chips)
        return jnp.sqrt(2.0 * self.checkpoint_time(n_params, n_chips) * mean_interval)

    def slowdown(self, n_params: ArrayLike, n_chips: ArrayLike) -> Array:
        """Duration of a run with failures and checkpoints over the time of all steps; inverse of the goodput [1].

        Args:
            n_params: parameters in the checkpoint [1].
            n_chips: chips of the job [1].

        Returns:
            The ratio, at least 1; diverges if failures are more frequent than restarts allow.
        """
        failures = self.failures_per_chip_second * jnp.asarray(n_chips)
        work = self.checkpoint_interval(n_params, n_chips)
        cycle = work + self.checkpoint_time(n_params, n_chips)
        # e^(R / M) (e^((tau + delta) / M) - 1) M / tau
        return jnp.exp(self.restart_time * failures) * jnp.expm1(cycle * failures) / (work * failures)


def failure_law(name: str = "llama3") -> FailureLaw:
    """Shipped law of failures by name: `llama3`."""
    return FailureLaw(**law_table("failure", name))
