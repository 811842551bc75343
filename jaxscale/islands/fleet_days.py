r"""Days to a loss: tokens required by a mode of joint training, over the throughput of the fleet.

$$ L = L_\text{law}(N, D_0)\,(1 + \rho), \qquad
   \rho = c \left(\frac{N}{10^9}\right)^{-g} (M - 1)^p \left(\frac{H}{30}\right)^h - \mu + \sigma\,\frac{\tau}{H} $$

Looseness is training of M replicas with an exchange only every H steps: the loss rises by the share $\rho$, with a gain
$\mu$ of the outer momentum, present for a single replica too, and a rise with the share of H concurrent with an
exchange. The critical batch grows by $r(M) = r_1 M^b$. For data parallelism $\rho = 0$ and r = 1. Numbers:
`data/islands.toml`.

$$ t = \frac{D_0 (1 + B / (r B_\mathrm{crit}))}{v}\,s, \qquad
   L_\text{law}(N, D_0)\,(1 + p_\mathrm{shape})\,(1 + \rho) = L, $$

with the throughput v and the slowdown s by failures: islands that train apart fail apart. The laws of loss, batch,
shape and failures are defined in `jaxscale.designs.time_to_loss`.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from jaxscale.base.arrays import Number, as_float, host_arrays, number, number_field, stacked, with_fields
from jaxscale.base.jit import small_jit
from jaxscale.calibration.base_record import NUMBER, Record
from jaxscale.calibration.spec import Spec, spec_from
from jaxscale.designs.time_to_loss import Laws, laws_of, shape_factor
from jaxscale.laws.fitted_law import FittedLaw
from jaxscale.laws.loss import BatchLaw, FailureLaw, LossLaw
from jaxscale.models.transformer import Transformer, embedding_params, n_active_params, n_params

TINY_REPLICAS = 1e-9
"""Added to M - 1, to keep gradients finite at one replica [1]."""


class LooseLaw(eqx.Module):
    """Law of looseness: rise of the loss and growth of the critical batch under infrequent exchange between replicas.

    Attributes:
        coefficient: c, relative rise of the loss of two replicas of 1e9 parameters at H = 30 [1].
        params_exponent: g, exponent of the rise in the parameters [1].
        replicas_exponent: p, exponent of the rise in the replicas [1].
        steps_exponent: h, exponent of the rise in the inner steps [1].
        outer_gain: mu, relative fall of the loss by the outer momentum [1].
        hidden_rise: sigma, relative rise of the loss if an exchange takes a whole period [1].
        batch_ratio: r_1, critical batch of a single replica over the critical batch of data parallelism [1].
        batch_exponent: b, exponent of the critical batch in the replicas [1].
    """

    coefficient: Number = number_field()
    params_exponent: Number = number_field()
    replicas_exponent: Number = number_field()
    steps_exponent: Number = number_field()
    outer_gain: Number = number_field()
    hidden_rise: Number = number_field(0.0)
    batch_ratio: Number = number_field(1.0)
    batch_exponent: Number = number_field(0.0)

    def over_one_replica(self, n_params: ArrayLike, replicas: ArrayLike, inner_steps: ArrayLike) -> Array:
        """Relative rise of the loss over a single replica with equal outer momentum [1]."""
        # (N / 1e9)^-g
        size = jnp.power(jnp.asarray(n_params) / 1e9, -jnp.asarray(self.params_exponent))
        # (M - 1)^p has an infinite slope at M = 1 for p < 1.
        apart = jnp.power(jnp.asarray(replicas) - 1.0 + TINY_REPLICAS, self.replicas_exponent)
        # (H / 30)^h
        period = jnp.power(jnp.asarray(inner_steps) / 30.0, self.steps_exponent)
        return self.coefficient * size * apart * period

    def rise(
        self, n_params: ArrayLike, replicas: ArrayLike, inner_steps: ArrayLike, hidden_share: ArrayLike = 0.0
    ) -> Array:
        """Relative rise rho of the loss over data parallelism; negative if the outer momentum gains more [1].

        Args:
            n_params: N, parameters [1].
            replicas: M, replicas that train apart [1].
            inner_steps: H, steps between two exchanges [1].
            hidden_share: share of H concurrent with an exchange [1].
        """
        apart = self.over_one_replica(n_params, replicas, inner_steps)
        return apart - self.outer_gain + self.hidden_rise * jnp.asarray(hidden_share)

    def looseness_alone(self) -> "LooseLaw":
        """Copy of the law without the gain and batch growth of the outer momentum for a single replica."""
        # Products keep host numbers on the host; an eager JAX operation would compile a program.
        zero, one = 0.0 * self.outer_gain, 1.0 + 0.0 * self.batch_ratio
        return with_fields(self, {"outer_gain": zero, "batch_ratio": one})

    def batch_growth(self, replicas: ArrayLike) -> Array:
        """Critical batch of M replicas together over the critical batch of data parallelism, r(M) [1]."""
        return self.batch_ratio * jnp.power(jnp.asarray(replicas), self.batch_exponent)


@dataclass(frozen=True)
class LooseFit(Record):
    """Fit of the law of looseness.

    Attributes:
        rms: root mean square error of the rise [1].
    """

    rms: float = 0.0

    tables = {**Record.tables, "rms": ("rms", NUMBER)}

    @classmethod
    @functools.cache
    def spec(cls) -> Spec:
        """Central values, uncertainties and ranges of the numbers of the law of looseness (`data/islands.toml`)."""
        return spec_from("islands.toml", LooseLaw.__dataclass_fields__, table="looseness")

    @property
    def law(self) -> LooseLaw:
        """Law of looseness at the central values."""
        return LooseLaw(**self.centre)

    @property
    def deviation(self) -> Mapping[str, float]:
        """Standard deviation of each fitted number by name (of the log for `coefficient`); 0 for a given number."""
        return self.spreads["centre"]


def _shipped() -> LooseFit:
    """Law of looseness fitted to published runs."""
    priors = LooseFit.spec().priors
    # Given numbers have no spread and are equal in all draws.
    spreads = {name: prior.spread for name, prior in priors.items() if prior.spread > 0.0}
    return LooseFit("shipped", LooseFit.spec().medians, spreads={"centre": spreads})


def loose_law() -> LooseLaw:
    """Shipped law of looseness, fitted to published runs."""
    return _shipped().law


def loose_law_samples(count: int) -> LooseLaw:
    """Random laws within the uncertainty of the shipped law of looseness, stacked [sample].

    Args:
        count: number of samples [1].

    Returns:
        The laws; numbers without a stated spread are equal in all draws.
    """
    return LooseLaw(**_shipped().draws(count))


TOKENS_PER_PARAM = 20.0
"""Tokens per parameter of a compute-efficient run (Hoffmann et al. 2022, table A3), of the default target [1]."""

MOST_TOKENS = 1e20
"""Largest number of tokens; a loss that needs more counts as out of reach [token]."""


class LossGoal(eqx.Module):
    """Target loss of a model, with the laws for tokens, batch and failures.

    Attributes:
        target: L, target loss [nat per token].
        n_params: N, parameters active per token, as counted by the law of the loss [1].
        total_params: parameters in a checkpoint [1].
        shape_factor: loss of the model's shape over the loss of the best shape of equal size [1].
        loose: law of looseness.
        loss: law of the loss.
        batch: law of the critical batch.
        failure: failures and checkpoints.
    """

    target: Number = eqx.field(converter=as_float)
    n_params: Number = eqx.field(converter=as_float)
    total_params: Number = eqx.field(converter=as_float)
    shape_factor: Number = eqx.field(converter=as_float)
    loose: LooseLaw
    loss: LossLaw
    batch: BatchLaw
    failure: FailureLaw


@small_jit
def _model_figures(model: Transformer, laws: Laws) -> tuple[Any, Any, Any, Any]:
    """Loss after 20 tokens per parameter, parameters in the count of the law, total parameters, shape factor."""
    counted = n_active_params(model) - (1.0 - laws.embeddings) * embedding_params(model)
    factor = shape_factor(model, model, laws)
    # The law counts with or without embeddings, tokens follow active parameters.
    loss = factor * laws.loss.loss(counted, TOKENS_PER_PARAM * n_active_params(model))
    return loss, counted, n_params(model), factor


def loss_goal(model: Transformer, target: float | None = None, laws: Laws | FittedLaw | None = None) -> LossGoal:
    """Target loss of a model with default laws; looseness is relative to a single replica with equal outer momentum.

    Args:
        target: L; by default the loss after 20 tokens per parameter in small batches [nat per token].
        laws: laws of loss, batch, shape and failures, or a fitted law of the loss; by default `default_laws`.

    Raises:
        InputError: a fitted law with an unsupported count of parameters.
    """
    rules = laws_of(laws)
    usual, counted, total, factor = (number(value) for value in _model_figures(*host_arrays((model, rules))))
    aim = usual if target is None else target
    # Relative to a replica with equal outer momentum.
    loose = loose_law().looseness_alone()
    return LossGoal(aim, counted, total, factor, loose, rules.loss, rules.batch, rules.failure)


def sampled_goals(goal: LossGoal, laws: Laws | FittedLaw | None, count: int) -> LossGoal:
    """Target loss with the best laws, followed by random draws of the laws, stacked [1 + sample].

    Laws of looseness are drawn within the uncertainty. A fitted law of the loss contributes its draws in
    rotation, and the target loss has the error of the law beyond the range of the fitted runs.

    Args:
        goal: target loss with the best laws.
        laws: laws of the goal.
        count: number of samples [1].

    Returns:
        Goals, as numpy arrays.
    """
    loose = loose_law_samples(count).looseness_alone()
    samples = [
        with_fields(goal, {"loose": jax.tree.map(lambda leaf, row=sample: leaf[row], loose)}) for sample in range(count)
    ]
    if isinstance(laws, FittedLaw):
        samples = _under_draws(samples, goal, laws)
    return stacked([goal, *samples])


SEED_OF_ERRORS = 1
"""Seed of the errors beyond the range of a law, another than that of the draws of laws [1]."""


def _under_draws(samples: Sequence[LossGoal], goal: LossGoal, law: FittedLaw) -> list[LossGoal]:
    """Samples of a goal under the draws of a fitted loss law in rotation, with the error of extrapolation."""
    count, errors = len(law.fitted.draws), np.random.default_rng(SEED_OF_ERRORS).standard_normal(len(samples))
    # Error of the law beyond the range of the runs, normal in the log loss.
    targets = number(goal.target) * np.exp(_extrapolation(goal, law) * errors)
    moved = []
    for place, sample in enumerate(samples):
        # Draws in rotation: samples may be more than draws.
        rules = laws_of(law, place % count if count else None)
        moved.append(with_fields(sample, {"target": targets[place], "loss": rules.loss, "batch": rules.batch}))
    return moved


def _extrapolation(goal: LossGoal, law: FittedLaw) -> float:
    """Standard deviation of the log loss by the error of a fitted law beyond the range of its runs [1]."""
    tokens = number(goal.loss.tokens(goal.n_params, goal.target / goal.shape_factor))
    if not np.isfinite(tokens):
        return 0.0
    beyond = law.span.decades_beyond(np.log([number(goal.n_params)]), np.log([tokens]))
    return law.discrepancy * float(beyond[0])


def tokens_needed(
    goal: LossGoal, batch_tokens: ArrayLike, replicas: ArrayLike, inner_steps: ArrayLike, hidden_share: ArrayLike = 0.0
) -> Array:
    """Number of training tokens to reach a target loss [token].

    Args:
        batch_tokens: B, tokens per step [token].
        replicas: M, islands that train apart; 0 for exchange in every step [1].
        inner_steps: H, steps between two exchanges [1].
        hidden_share: share of H concurrent with an exchange [1].

    Returns:
        Tokens; nan if the loss is out of reach.
    """
    # M = 0 stands for exchange in every step.
    apart = jnp.asarray(replicas) > 0.5
    # A valid number in the unused branch.
    count = jnp.where(apart, replicas, 1.0)
    rise = jnp.where(apart, goal.loose.rise(goal.n_params, count, inner_steps, hidden_share), 0.0)
    growth = jnp.where(apart, goal.loose.batch_growth(count), 1.0)
    # L / ((1 + p_shape) (1 + rho)): loss required of the law.
    ideal = goal.target / (goal.shape_factor * (1.0 + rise))
    small = goal.loss.tokens(goal.n_params, ideal)
    critical = growth * goal.batch.critical(goal.n_params, small, ideal)
    # D_0 (1 + B / (r B_crit))
    needed = small * (1.0 + jnp.asarray(batch_tokens) / critical)
    return jnp.where(needed < MOST_TOKENS, needed, jnp.nan)
