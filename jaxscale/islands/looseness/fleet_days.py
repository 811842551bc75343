r"""Days to a loss: tokens that a mode needs, over the pace of its fleet.

$$ t = \frac{D_0 (1 + B / (r B_\mathrm{crit}))}{v}\,s, \qquad L_\text{law}(N, D_0)\,(1 + \rho) = L, $$

with the rise $\rho$ of the loss and the growth r of the critical batch by the law of looseness (both nothing where
islands exchange every step), the pace v, and the slowdown s by failures: islands that train apart fail apart.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from jaxscale._arrays import Number, as_float
from jaxscale.islands.looseness.loose_law import LooseLaw, LossOf, loose_law, tokens_to_loss
from jaxscale.laws.goodput import FailureLaw, failure_law
from jaxscale.laws.loss import batch_law, loss_law
from jaxscale.units import DAY

TOKENS_PER_PARAM = 20.0
"""Tokens per parameter of a compute-efficient run (Hoffmann et al. 2022, table A3), of the default target [1]."""


class LossGoal(eqx.Module):
    """A loss to reach, and the laws that say what it takes.

    Attributes:
        target: L [nat per token].
        n_params: N, parameters that a token passes through [1].
        loose: law of looseness.
        failure: failures and checkpoints.
        loss_of: loss of parameters and small-batch tokens.
        critical_of: critical batch [token] of parameters, small-batch tokens and loss.
    """

    target: Number = eqx.field(converter=as_float)
    n_params: Number = eqx.field(converter=as_float)
    loose: LooseLaw
    failure: FailureLaw
    loss_of: LossOf = eqx.field(static=True)
    critical_of: Callable[..., Any] = eqx.field(static=True)


def _shipped_loss(n_params: Any, n_tokens: Any) -> Array:
    return loss_law().loss(n_params, n_tokens)


def _shipped_critical(n_params: Any, n_tokens: Any, loss: Any) -> Array:
    return batch_law().critical(n_params, n_tokens, loss)


def loss_goal(n_params: float, target: float | None = None) -> LossGoal:
    """Goal by the shipped laws; looseness counts against one replica with the same outer momentum.

    Args:
        n_params: N [1].
        target: L; the loss after 20 tokens per parameter in small batches where None [nat per token].

    Returns:
        The goal.
    """
    loss = float(_shipped_loss(n_params, TOKENS_PER_PARAM * n_params)) if target is None else target
    return LossGoal(loss, n_params, loose_law().looseness_alone(), failure_law(), _shipped_loss, _shipped_critical)


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
    ideal = goal.target / (1.0 + rise)
    small = tokens_to_loss(goal.loss_of, goal.n_params, ideal)
    critical = growth * goal.critical_of(goal.n_params, small, ideal)
    return small * (1.0 + jnp.asarray(batch_tokens) / critical)


def days_to_loss(
    goal: LossGoal,
    speed: ArrayLike,
    batch_tokens: ArrayLike,
    *,
    replicas: ArrayLike,
    inner_steps: ArrayLike,
    chips_together: ArrayLike,
    total_params: ArrayLike,
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
        total_params: parameters in a checkpoint [1].
        hidden_share: share of H during which an exchange is under way [1].

    Returns:
        Days [day]; nan where the goal is out of reach.
    """
    tokens = tokens_needed(goal, batch_tokens, replicas, inner_steps, hidden_share)
    slowdown = goal.failure.slowdown(total_params, chips_together)
    return tokens / jnp.asarray(speed) * slowdown / DAY


def sampled_tokens(goal: LossGoal, samples: LooseLaw, *arguments: Any) -> Array:
    """Tokens of a run that reaches the goal, for each law of looseness [token], [sample].

    Args:
        goal: loss and laws; its own law of looseness is not read.
        samples: laws of looseness, every leaf [sample].
        arguments: of `tokens_needed` after the goal.

    Returns:
        Tokens.
    """

    def one(law: LooseLaw) -> Array:
        return tokens_needed(eqx.tree_at(lambda tree: tree.loose, goal, law), *arguments)

    return jax.vmap(one)(samples)
