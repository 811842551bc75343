"""Loose plans: how islands divide the work, and how seldom and how coarsely they exchange it."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from jaxscale.base.arrays import Number, as_float
from jaxscale.islands.fleet import PerIsland

WORD_BITS = 32.0
"""Bits of a gradient or a difference of parameters that is sent as it is [bit]."""


class Loose(eqx.Module):
    """Division of the work over islands, and their exchange.

    Synchronous data parallelism is H = 1 with gradients; local updates (DiLoCo) are H > 1; streaming sends one of P
    fragments every H / P steps while tau more steps run.

    Attributes:
        batch_share: of each island, adding up to one [1], [island].
        param_share: part of the parameters that an island holds and exchanges [1], [island].
        inner_steps: H, steps between two exchanges of the same parameter [1].
        fragments: P, exchanges in H steps, each of 1/P of the parameters [1].
        bits: q, of a word that is sent [bit].
        hidden_steps: tau, steps that run on while an exchange is under way [1].
        hidden_backward: share of the backward pass of the last microbatch that hides an exchange [1].
        quorum: K, islands that an exchange waits for [1].
    """

    batch_share: PerIsland
    param_share: PerIsland
    inner_steps: Number = eqx.field(converter=as_float)
    fragments: Number = eqx.field(converter=as_float)
    bits: Number = eqx.field(converter=as_float)
    hidden_steps: Number = eqx.field(converter=as_float)
    hidden_backward: Number = eqx.field(converter=as_float)
    quorum: Number = eqx.field(converter=as_float)

    @property
    def n_islands(self) -> int:
        """Number of islands [1]."""
        return jnp.asarray(self.batch_share).shape[-1]

    @property
    def period(self) -> Array:
        """Steps between two exchanges of any parameter, H / P [1]."""
        return jnp.asarray(self.inner_steps) / jnp.asarray(self.fragments)

    def bytes_per_exchange(self, n_params: ArrayLike) -> Array:
        """Size of what each island gives to one exchange [byte], [island]."""
        return jnp.asarray(self.param_share) * jnp.asarray(n_params * self.bits / (8.0 * self.fragments))


def synchronous(batch_share: PerIsland, bits: Any = WORD_BITS, hidden_backward: Any = 1.0) -> Loose:
    """Data parallelism over islands: gradients are reduced in every step, beside the last backward pass.

    Args:
        batch_share: of each island [1], [island].
        bits: of a gradient [bit].
        hidden_backward: share of the backward pass of the last microbatch that hides the reduction [1].

    Returns:
        The plan.
    """
    ones = jnp.ones_like(jnp.asarray(batch_share))
    return Loose(batch_share, ones, 1.0, 1.0, bits, 0.0, hidden_backward, float(ones.shape[-1]))


def local_updates(batch_share: PerIsland, inner_steps: Any, bits: Any = WORD_BITS) -> Loose:
    """Local updates: parameters are averaged every H steps, while all islands wait (DiLoCo, arXiv 2311.08105).

    Args:
        batch_share: of each island [1], [island].
        inner_steps: H [1].
        bits: of a difference of parameters [bit].

    Returns:
        The plan.
    """
    ones = jnp.ones_like(jnp.asarray(batch_share))
    return Loose(batch_share, ones, inner_steps, 1.0, bits, 0.0, 0.0, float(ones.shape[-1]))


def streaming(
    batch_share: PerIsland, inner_steps: Any, fragments: Any, hidden_steps: Any = 1.0, bits: Any = 4.0
) -> Loose:
    """Streaming local updates: fragments go one after another while steps run on (arXiv 2501.18512).

    Args:
        batch_share: of each island [1], [island].
        inner_steps: H [1].
        fragments: P [1].
        hidden_steps: tau; at most H / P hide an exchange before the next one begins [1].
        bits: of a difference of parameters [bit].

    Returns:
        The plan.
    """
    ones = jnp.ones_like(jnp.asarray(batch_share))
    return Loose(batch_share, ones, inner_steps, fragments, bits, hidden_steps, 0.0, float(ones.shape[-1]))
