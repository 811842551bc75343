"""Chips, networks and clusters as modules of numbers, and the valid ranges of the numbers.

All fields are float leaves, for derivatives, stacked clusters and `jax.vmap`. Names are in the
catalogue (`catalogue.py`), not in the modules, to give all chips an equal tree structure.
"""

import math

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxscale.base.arrays import N_LEVELS, Number, PerLevel, PerPrecision, as_float
from jaxscale.base.domains import Bound, Domain, at_most
from jaxscale.base.show import Printout, is_single, leaves_shown, printed
from jaxscale.base.units import quantity
from jaxscale.hardware.formats import PRECISIONS

RATE = Bound(0.0, math.inf, True)

CHIP = Domain(
    "Chip",
    {
        "peak_flops": RATE._replace(meaning="dense peak of each number format [flop/s]"),
        "hbm_bytes": RATE._replace(meaning="memory [byte]"),
        "hbm_bandwidth": RATE._replace(meaning="memory bandwidth [byte/s]"),
        "idle_power": Bound(0.0, 1e6, False, "power where nothing runs [W]"),
        "max_power": Bound(0.0, 1e6, True, "power limit of the board [W]"),
    },
    (at_most("idle_power", "max_power"),),
)
"""Valid numbers of a `Chip`."""

NETWORK = Domain(
    "Network",
    {
        "domain_size": Bound(1.0, math.inf, False, "chips that each level reaches [1]"),
        "bandwidth": RATE._replace(meaning="of each level, one direction and chip [byte/s]"),
        "latency": Bound(0.0, 1e3, False, "of a hop at each level [s]"),
        "link_peers": Bound(1.0, 1e9, False, "chips of a domain among which a chip divides its links [1]"),
    },
)
"""Valid numbers of a `Network`."""

CLUSTER = Domain("Cluster", {"n_chips": Bound(1.0, 1e12, False, "chips [1]")})
"""Valid numbers of a `Cluster`."""


@printed(lambda chip: _shown_chip(chip))
class Chip(eqx.Module):
    """Accelerator chip: peak flop rates, memory and power.

    Attributes:
        peak_flops: dense peak flop rate of each number format, in the order of `PRECISIONS` [flop/s].
        hbm_bytes: memory capacity [byte].
        hbm_bandwidth: memory bandwidth [byte/s].
        idle_power: power of an idle chip [W].
        max_power: power limit of the board [W].
    """

    peak_flops: PerPrecision
    hbm_bytes: Number = eqx.field(converter=as_float)
    hbm_bandwidth: Number = eqx.field(converter=as_float)
    idle_power: Number = eqx.field(converter=as_float)
    max_power: Number = eqx.field(converter=as_float)

    def __check_init__(self):
        """Raise an error for numbers out of range; traced numbers are not checked."""
        CHIP.check(vars(self))

    def peak(self, precision: str) -> Array:
        """Dense peak flop rate of a number format [flop/s].

        Raises:
            ValueError: the number format is not in `PRECISIONS`.
        """
        if precision not in PRECISIONS:
            raise ValueError(f"precision {precision!r} is unknown; expected one of {', '.join(PRECISIONS)}")
        return jnp.asarray(self.peak_flops)[..., PRECISIONS.index(precision)]

    def seconds_per_flop(self, shares: PerPrecision) -> Array:
        """Mean time per flop at peak rate, for work with given shares of the number formats `PRECISIONS` [s/flop]."""
        return jnp.sum(jnp.asarray(shares) / jnp.asarray(self.peak_flops), axis=-1)


@printed(lambda network: _shown_network(network))
class Network(eqx.Module):
    """Network hierarchy of three levels: scale-up domain, scale-out network, spine.

    Attributes:
        domain_size: chips of a domain at each level [1]; the last level connects all chips.
        bandwidth: bandwidth per chip and direction at each level [byte/s].
        latency: latency per hop at each level [s].
        link_peers: chips of a scale-up domain between which the links of a chip are divided: 1 with a switch,
            n - 1 with dedicated links for each pair of n chips [1].
    """

    domain_size: PerLevel
    bandwidth: PerLevel
    latency: PerLevel
    link_peers: Number = eqx.field(converter=as_float, default=1.0)

    def __check_init__(self):
        """Raise an error for numbers out of range; traced numbers are not checked."""
        NETWORK.check(vars(self))

    def level(self, index: int) -> tuple[Number, Number, Number]:
        """Domain size [1], bandwidth [byte/s] and latency [s] of a network level, 0 to 2."""
        if not 0 <= index < N_LEVELS:
            raise ValueError(f"network level {index} does not exist; expected 0 to {N_LEVELS - 1}")
        return self.domain_size[..., index], self.bandwidth[..., index], self.latency[..., index]


@printed(lambda cluster: _shown_cluster(cluster))
class Cluster(eqx.Module):
    """Cluster of equal chips on a network.

    Attributes:
        chip: accelerator chip.
        network: network of the chips.
        n_chips: number of chips [1].
    """

    chip: Chip
    network: Network
    n_chips: Number = eqx.field(converter=as_float)

    def __check_init__(self):
        """Raise an error for an invalid number of chips; traced numbers are not checked."""
        CLUSTER.check({"n_chips": self.n_chips})


LEVELS = ("scale-up domain", "scale-out", "spine")
"""Names of the levels of a network, in order."""

REAL = 1e6
"""Fewest bytes, and bytes and flop per second, of a real chip: slopes and elasticities are smaller [SI]."""


def _shown_chip(chip: Chip) -> Printout:
    """Peaks, memory and power with their units."""
    if not is_single(chip, ("hbm_bytes", "hbm_bandwidth"), REAL):
        return leaves_shown(chip)
    return Printout(f"Chip: {quantity(float(chip.hbm_bytes), 'byte')}", ("", ""), _chip_rows(chip))


def _chip_rows(chip: Chip) -> list[tuple[str, str]]:
    peaks = zip(PRECISIONS, np.asarray(chip.peak_flops, float).tolist(), strict=True)
    return [
        *((f"peak {name}", quantity(peak, "flop/s")) for name, peak in peaks),
        ("memory", quantity(float(chip.hbm_bytes), "byte")),
        ("memory bandwidth", quantity(float(chip.hbm_bandwidth), "byte/s")),
        ("power", f"{float(chip.idle_power):.3g} W idle, {float(chip.max_power):.3g} W at most"),
    ]


def _shown_network(network: Network) -> Printout:
    """Bandwidth and latency of each level."""
    bandwidth = np.asarray(network.bandwidth, float)
    if bandwidth.ndim != 1 or (bandwidth < REAL).any():
        return leaves_shown(network)
    return Printout("Network, per chip and direction", ("", ""), _network_rows(network))


def _network_rows(network: Network) -> list[tuple[str, str]]:
    sizes, bandwidths, latencies = (
        np.asarray(column, float).tolist() for column in (network.domain_size, network.bandwidth, network.latency)
    )
    rows = []
    for name, size, bandwidth, latency in zip(LEVELS, sizes, bandwidths, latencies, strict=True):
        chips = f"{size:.0f} chips, " if size < 1e9 else ""
        rows.append((name, f"{chips}{quantity(bandwidth, 'byte/s')}, {quantity(latency, 's')}"))
    return rows


def _shown_cluster(cluster: Cluster) -> Printout:
    """Text of a cluster: chip and network levels."""
    if not is_single(cluster.chip, ("hbm_bytes", "hbm_bandwidth"), REAL):
        return leaves_shown(cluster)
    rows = [*_chip_rows(cluster.chip), *_network_rows(cluster.network)]
    return Printout(f"Cluster of {float(cluster.n_chips):g} chips", ("", ""), rows)
