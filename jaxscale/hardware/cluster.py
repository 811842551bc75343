"""Chips and the networks that join them.

Everything is a float leaf, so clusters stack, differentiate and sweep under `jax.vmap`. Names live in the catalogue
(`catalogue.py`), not in these modules: two chips always have the same tree structure.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from jaxscale._arrays import N_LEVELS, Number, PerLevel, PerPrecision, as_float
from jaxscale.hardware.formats import PRECISIONS


class Chip(eqx.Module):
    """One accelerator.

    Attributes:
        peak_flops: dense peak per precision, in the order of `PRECISIONS` [flop/s].
        hbm_bytes: memory capacity [byte].
        hbm_bandwidth: memory bandwidth [byte/s].
        idle_power: power drawn when nothing runs [W].
        max_power: power limit of the board [W].
    """

    peak_flops: PerPrecision
    hbm_bytes: Number = eqx.field(converter=as_float)
    hbm_bandwidth: Number = eqx.field(converter=as_float)
    idle_power: Number = eqx.field(converter=as_float)
    max_power: Number = eqx.field(converter=as_float)

    def peak(self, precision: str) -> Array:
        """Dense peak of one named precision [flop/s].

        Raises:
            ValueError: the precision is not one of `PRECISIONS`.
        """
        if precision not in PRECISIONS:
            raise ValueError(f"precision {precision!r} is unknown; expected one of {', '.join(PRECISIONS)}")
        return jnp.asarray(self.peak_flops)[..., PRECISIONS.index(precision)]

    def seconds_per_flop(self, shares: PerPrecision) -> Array:
        """Time of one flop at the peak, of work of which each of `PRECISIONS` does a share [s/flop]."""
        return jnp.sum(jnp.asarray(shares) / jnp.asarray(self.peak_flops), axis=-1)


class Network(eqx.Module):
    """Hierarchy of network levels: scale-up domain, scale-out, spine.

    Attributes:
        domain_size: chips reachable without leaving each level [1]; the last level reaches all.
        bandwidth: per chip and direction at each level [byte/s].
        latency: per hop at each level [s].
        link_peers: chips of a scale-up domain among which a chip divides its links: 1 where a switch gives all of
            them to whichever group talks, n - 1 where each of the n - 1 others has its own links [1].
    """

    domain_size: PerLevel
    bandwidth: PerLevel
    latency: PerLevel
    link_peers: Number = eqx.field(converter=as_float, default=1.0)

    def level(self, index: int) -> tuple[Array, Array, Array]:
        """Domain size [1], bandwidth [byte/s] and latency [s] of one level."""
        if not 0 <= index < N_LEVELS:
            raise ValueError(f"network level {index} does not exist; expected 0 to {N_LEVELS - 1}")
        fields = (self.domain_size, self.bandwidth, self.latency)
        size, bandwidth, latency = (jnp.asarray(field)[..., index] for field in fields)
        return size, bandwidth, latency


class Cluster(eqx.Module):
    """Chips of one kind on one network.

    Attributes:
        chip: the accelerator.
        network: the levels that join the chips.
        n_chips: how many there are [1].
    """

    chip: Chip
    network: Network
    n_chips: Number = eqx.field(converter=as_float)
