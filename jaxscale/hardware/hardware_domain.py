"""Domains of chips, networks and clusters: valid numbers, wherever they come from."""

import math

from jaxscale.base.domains import Bound, Domain, at_most

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
