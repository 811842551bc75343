r"""Days to a loss: tokens that a mode needs, over the pace of its fleet.

$$ t = \frac{D_0 (1 + B / (r B_\mathrm{crit}))}{v}\,s, \qquad
   L_\text{law}(N, D_0)\,(1 + p_\mathrm{shape})\,(1 + \rho) = L, $$

with the rise $\rho$ of the loss and the growth r of the critical batch by the law of looseness (both nothing where
islands exchange every step), the pace v, and the slowdown s by failures: islands that train apart fail apart. Laws of
loss, batch, shape and failures are those of designs (`jaxscale.designs.time_to_loss`).
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from jaxscale.base.arrays import Number, as_float, host_arrays, number, stacked, with_fields
from jaxscale.base.jit import small_jit
from jaxscale.base.units import DAY
from jaxscale.designs.time_to_loss import Laws, laws_of, shape_factor
from jaxscale.islands.looseness.loose_law import LooseLaw, loose_law, loose_law_samples
from jaxscale.laws.fitting.fitted_law import FittedLaw
from jaxscale.laws.goodput import FailureLaw
from jaxscale.laws.loss import BatchLaw, LossLaw
from jaxscale.models.transformer import Transformer, embedding_params, n_active_params, n_params

TOKENS_PER_PARAM = 20.0
"""Tokens per parameter of a compute-efficient run (Hoffmann et al. 2022, table A3), of the default target [1]."""

MOST_TOKENS = 1e20
"""Tokens beyond which a loss counts as out of reach [token]."""


class LossGoal(eqx.Module):
    """A loss to reach, and the laws that say what it takes.

    Attributes:
        target: L [nat per token].
        n_params: N in the count of the law of the loss, parameters that a token passes through [1].
        total_params: parameters in a checkpoint [1].
        shape_factor: loss of the model's shape over that of the best shape of its size [1].
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
    """Loss after 20 tokens per parameter, parameters in the count of the law, all of them, factor of the shape."""
    counted = n_active_params(model) - (1.0 - laws.embeddings) * embedding_params(model)
    factor = shape_factor(model, model, laws)
    loss = factor * laws.loss.loss(counted, TOKENS_PER_PARAM * n_active_params(model))
    return loss, counted, n_params(model), factor


def loss_goal(model: Transformer, target: float | None = None, laws: Laws | FittedLaw | None = None) -> LossGoal:
    """Goal of a model; looseness counts against one replica with the same outer momentum.

    Args:
        model: the transformer.
        target: L; the loss after 20 tokens per parameter in small batches where None [nat per token].
        laws: of loss, batch, shape and failures, or a fitted law of the loss; the defaults where None.

    Returns:
        The goal.

    Raises:
        InputError: a fitted law that counts parameters in a way that a model does not tell.
    """
    rules = laws_of(laws)
    usual, counted, total, factor = (number(value) for value in _model_figures(*host_arrays((model, rules))))
    aim = usual if target is None else target
    loose = loose_law().looseness_alone()
    return LossGoal(aim, counted, total, factor, loose, rules.loss, rules.batch, rules.failure)


def sampled_goals(goal: LossGoal, laws: Laws | FittedLaw | None, count: int, seed: int = 0) -> LossGoal:
    """The goal, followed by samples of it under other laws, every leaf [1 + sample].

    Laws of looseness are drawn from their uncertainty. Of a fitted law of the loss, its resampled laws take turns, and
    the loss at the goal has the error of the law beyond the range of its runs.

    Args:
        goal: under the best laws.
        laws: from which it was made.
        count: samples [1].
        seed: of the draws.

    Returns:
        Goals on the host.
    """
    loose = loose_law_samples(count, seed).looseness_alone()
    samples = [
        with_fields(goal, {"loose": jax.tree.map(lambda leaf, row=sample: leaf[row], loose)}) for sample in range(count)
    ]
    if isinstance(laws, FittedLaw):
        samples = _under_draws(samples, goal, laws, seed + 1)
    return stacked([goal, *samples])


def _under_draws(samples: Sequence[LossGoal], goal: LossGoal, law: FittedLaw, seed: int) -> list[LossGoal]:
    """Samples of a goal under the draws of a fitted law of the loss, which take turns, and its error far out."""
    count, errors = len(law.fitted.draws), np.random.default_rng(seed).standard_normal(len(samples))
    targets = number(goal.target) * np.exp(_extrapolation(goal, law) * errors)
    moved = []
    for place, sample in enumerate(samples):
        rules = laws_of(law, place % count if count else None)
        moved.append(with_fields(sample, {"target": targets[place], "loss": rules.loss, "batch": rules.batch}))
    return moved


def _extrapolation(goal: LossGoal, law: FittedLaw) -> float:
    """Standard deviation of the logarithm of the loss by the error of a fitted law beyond the range of its runs [1]."""
    tokens = number(goal.loss.tokens(goal.n_params, goal.target / goal.shape_factor))
    if not np.isfinite(tokens):
        return 0.0
    beyond = law.span.decades_beyond(np.log([number(goal.n_params)]), np.log([tokens]))
    return law.discrepancy * float(beyond[0])


def tokens_needed(
    goal: LossGoal, batch_tokens: ArrayLike, replicas: ArrayLike, inner_steps: ArrayLike, hidden_share: ArrayLike = 0.0
) -> Array:
    """Tokens of a run that reaches the goal [token].

    Args:
        goal: loss and laws.
        batch_tokens: B [token].
        replicas: M, islands that train apart; 0 where all exchange every step [1].
        inner_steps: H [1].
        hidden_share: share of H during which an exchange is under way [1].

    Returns:
        Tokens; nan where no number of tokens reaches the goal.
    """
    apart = jnp.asarray(replicas) > 0.5
    count = jnp.where(apart, replicas, 1.0)
    rise = jnp.where(apart, goal.loose.rise(goal.n_params, count, inner_steps, hidden_share), 0.0)
    growth = jnp.where(apart, goal.loose.batch_growth(count), 1.0)
    ideal = goal.target / (goal.shape_factor * (1.0 + rise))
    small = goal.loss.tokens(goal.n_params, ideal)
    critical = growth * goal.batch.critical(goal.n_params, small, ideal)
    needed = small * (1.0 + jnp.asarray(batch_tokens) / critical)
    return jnp.where(needed < MOST_TOKENS, needed, jnp.nan)


def days_to_loss(
    goal: LossGoal,
    speed: ArrayLike,
    batch_tokens: ArrayLike,
    *,
    replicas: ArrayLike,
    inner_steps: ArrayLike,
    chips_together: ArrayLike,
    hidden_share: ArrayLike = 0.0,
) -> Array:
    """Days until a fleet reaches the goal.

    Args:
        goal: loss and laws.
        speed: v, pace of the fleet [token/s].
        batch_tokens: B [token].
        replicas: M; 0 where all islands exchange every step [1].
        inner_steps: H [1].
        chips_together: chips that one failure stops [1].
        hidden_share: share of H during which an exchange is under way [1].

    Returns:
        Days [day]; nan where the goal is out of reach.
    """
    tokens = tokens_needed(goal, batch_tokens, replicas, inner_steps, hidden_share)
    slowdown = goal.failure.slowdown(goal.total_params, chips_together)
    return tokens / jnp.asarray(speed) * slowdown / DAY
