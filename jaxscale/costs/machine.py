"""Effective rates of chips and network: datasheet rates times fitted efficiencies."""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from jaxscale.base.arrays import N_LEVELS, Number
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.hardware.cluster import Chip, Cluster, Network


class Link(NamedTuple):
    """Network of a job at effective rates: catalogue numbers times fitted efficiencies.

    Attributes:
        domain_size: chips per domain, for each level [1].
        bandwidth: bandwidth per chip and direction, for each level [byte/s].
        latency: latency per hop, for each level [s].
        launch: launch time of a collective of any size [s].
        peers: chips of a scale-up domain between which the links of a chip are divided; 1 behind a switch [1].
    """

    domain_size: tuple[Array, ...]
    bandwidth: tuple[Array, ...]
    latency: tuple[Array, ...]
    launch: Array
    peers: Array


def effective_link(network: Network, coefficients: Coefficients) -> Link:
    """Network at effective rates: `scale_up_*` coefficients for level 0, `scale_out_*` for the higher levels."""
    c = coefficients
    efficiency = (c.scale_up_efficiency, c.scale_out_efficiency, c.scale_out_efficiency)
    scale = (c.link_latency_scale, c.network_latency_scale, c.network_latency_scale)
    levels = [network.level(index) for index in range(N_LEVELS)]
    return Link(
        tuple(jnp.asarray(size) for size, _, _ in levels),
        tuple(jnp.asarray(bandwidth * e) for (_, bandwidth, _), e in zip(levels, efficiency, strict=True)),
        tuple(jnp.asarray(latency * s) for (_, _, latency), s in zip(levels, scale, strict=True)),
        jnp.asarray(c.collective_launch),
        jnp.asarray(network.link_peers),
    )


class Machine(eqx.Module):
    """Chips and network of a job at effective rates.

    Attributes:
        chip: datasheet peaks and capacity.
        link: effective network.
        n_chips: chips of the job [1].
        hbm_bandwidth: effective memory bandwidth of a chip [byte/s].
    """

    chip: Chip
    link: Link
    n_chips: Number
    hbm_bandwidth: Number

    @property
    def node_chips(self) -> Array:
        """Number of chips of a scale-up domain [1]."""
        return self.link.domain_size[0]


def machine_of(cluster: Cluster, coefficients: Coefficients) -> Machine:
    """Chips and network at effective rates: memory bandwidth times `hbm_efficiency`, network by `effective_link`."""
    return Machine(
        chip=cluster.chip,
        link=effective_link(cluster.network, coefficients),
        n_chips=cluster.n_chips,
        hbm_bandwidth=cluster.chip.hbm_bandwidth * coefficients.hbm_efficiency,
    )
