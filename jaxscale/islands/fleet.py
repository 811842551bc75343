"""Fleets: islands of chips and the links between them.

An island is an ordinary `Cluster`. A fleet holds its clusters on a leading axis of every leaf, so that `jax.vmap` of
`js.step_time` runs over islands, and its links as matrices. All numbers are float leaves; names are structure.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxscale.base.arrays import Number, as_float, stacked
from jaxscale.base.errors import InputError
from jaxscale.base.smooth import smaller
from jaxscale.hardware.cluster import Cluster

NO_LIMIT = 1e15
"""Bandwidth of a link that limits nothing [byte/s]."""

if TYPE_CHECKING:
    # As in `jaxscale.base.arrays`: static checkers know no arithmetic between floats and arrays of any backend.
    PerIsland = Any
    PerPair = Any
else:
    PerIsland = Float[ArrayLike, "*batch island"]
    """One number for each island."""

    PerPair = Float[ArrayLike, "*batch island island"]
    """One number for each ordered pair of islands, sender first; the diagonal has no meaning."""

REFERENCE_BANDWIDTH = 1.25e8
"""Bandwidth at which the loss of slow links is stated: 1 Gbit/s [byte/s]."""


class Links(eqx.Module):
    r"""Links between islands.

    A transfer over a link of nominal bandwidth W takes $1 + a \sqrt{W_0 / W}$ times the nominal time, with $W_0$ the
    `REFERENCE_BANDWIDTH`: protocols lose more on slow links (fitted form, see `measured_rounds`).

    Attributes:
        bandwidth: from each island to each other one [byte/s].
        latency: of a message over each link [s].
        uplink: all that an island sends at a time, over whichever links [byte/s].
        slow_loss: a, loss of a link at `REFERENCE_BANDWIDTH`; 0 where links give their nominal bandwidth [1].
    """

    bandwidth: PerPair
    latency: PerPair
    uplink: PerIsland
    slow_loss: Number = eqx.field(converter=as_float, default=0.0)

    @property
    def rate(self) -> Array:
        """Bandwidth that a single transfer gets between each two islands [byte/s], [island, island]."""
        uplink = jnp.asarray(self.uplink)
        ends = smaller(uplink[..., :, None], uplink[..., None, :])
        # The diagonal has no meaning and may be zero.
        itself = jnp.eye(ends.shape[-1], dtype=bool)
        nominal = jnp.where(itself, NO_LIMIT, smaller(jnp.where(itself, NO_LIMIT, self.bandwidth), ends))
        return nominal / (1.0 + self.slow_loss * jnp.sqrt(REFERENCE_BANDWIDTH / nominal))

    @property
    def uplink_rate(self) -> Array:
        """Bandwidth that all transfers of an island get together [byte/s], [island]."""
        uplink = jnp.asarray(self.uplink)
        return uplink / (1.0 + self.slow_loss * jnp.sqrt(REFERENCE_BANDWIDTH / uplink))


class Fleet(eqx.Module):
    """Islands and the links between them.

    Attributes:
        clusters: chips and network of each island; every leaf has the leading axis [island].
        links: bandwidths and latencies between islands.
        names: of the islands.
    """

    clusters: Cluster
    links: Links
    names: tuple[str, ...] = eqx.field(static=True)

    @property
    def n_islands(self) -> int:
        """Number of islands [1]."""
        return len(self.names)

    def cluster(self, island: int) -> Cluster:
        """Chips and network of one island."""
        return jax.tree.map(lambda leaf: leaf[island], self.clusters)

    def part(self, islands: Sequence[int]) -> "Fleet":
        """Fleet of some of the islands, in the given order."""
        kept = np.asarray(islands, int)
        clusters = jax.tree.map(lambda leaf: leaf[kept], self.clusters)
        return Fleet(clusters, part_of_links(self.links, islands), tuple(self.names[island] for island in islands))


def part_of_links(links: Links, islands: Sequence[int] | np.ndarray) -> Links:
    """Links among some of the islands, in the given order."""
    kept = np.asarray(islands, int)
    matrices = (links.bandwidth, links.latency)
    bandwidth, latency = (as_indexable(matrix)[..., kept, :][..., :, kept] for matrix in matrices)
    return Links(bandwidth, latency, as_indexable(links.uplink)[..., kept], links.slow_loss)


def as_indexable(leaf: Any) -> Any:
    """A leaf that takes positions: arrays and tracers as they are, which keeps the host's on the host."""
    return leaf if isinstance(leaf, np.ndarray | jax.Array) else np.asarray(leaf)


def host_rate(links: Links) -> Float[np.ndarray, "island island"]:
    """Bandwidth that a single transfer gets between each two islands, `Links.rate` on the host [byte/s]."""
    uplink = np.asarray(links.uplink)
    nominal = np.minimum(np.asarray(links.bandwidth), np.minimum(uplink[:, None], uplink[None, :]))
    # The diagonal has no meaning and may be zero.
    nominal = np.where(np.eye(len(nominal), dtype=bool), NO_LIMIT, nominal)
    return nominal / (1.0 + np.asarray(links.slow_loss) * np.sqrt(REFERENCE_BANDWIDTH / nominal))


def uniform_links(
    n_islands: int,
    bandwidth: ArrayLike,
    latency: ArrayLike = 0.0,
    *,
    uplink: ArrayLike = NO_LIMIT,
    slow_loss: ArrayLike = 0.0,
) -> Links:
    """Equal links between all islands.

    Args:
        n_islands: number of islands [1].
        bandwidth: of every link [byte/s].
        latency: of every link [s].
        uplink: of every island [byte/s].
        slow_loss: loss of a link at `REFERENCE_BANDWIDTH` [1].

    Returns:
        The links.
    """
    square = jnp.ones((n_islands, n_islands))
    return Links(square * bandwidth, square * latency, jnp.ones(n_islands) * uplink, slow_loss)


def fleet_of(clusters: Sequence[Cluster], links: Links, names: Sequence[str] = ()) -> Fleet:
    """Fleet of clusters.

    Args:
        clusters: one for each island.
        links: between them.
        names: of the islands; `island 1` and so on where left out.

    Returns:
        The fleet.

    Raises:
        InputError: no island, matrices of another size, links that are not positive, or names that repeat.
    """
    count = len(clusters)
    if not count:
        raise InputError("a fleet has no islands; expected at least one")
    given = tuple(names) or tuple(f"island {place + 1}" for place in range(count))
    if len(set(given)) != count:
        raise InputError(f"names of islands = {', '.join(given)}; expected {count} different names")
    check_links(links, given)
    return Fleet(stacked(clusters), links, given)


def check_links(links: Links, names: Sequence[str], where: str = "links") -> None:
    """Check sizes and signs of concrete links.

    Args:
        links: between the islands.
        names: of the islands.
        where: source of the links, for the message.

    Raises:
        InputError: a matrix that is not square over the islands, or an entry out of range; names the entry.
    """
    count = len(names)
    for label, matrix in (("bandwidth", links.bandwidth), ("latency", links.latency)):
        if np.shape(matrix) != (count, count):
            shape = " x ".join(map(str, np.shape(matrix)))
            raise InputError(f"{where}: {label} is {shape}; expected {count} x {count}, a row for each island")
    if np.shape(links.uplink) != (count,):
        raise InputError(f"{where}: uplink has {np.size(links.uplink)} numbers; expected {count}, one for each island")
    bandwidth, latency = np.asarray(links.bandwidth, float), np.asarray(links.latency, float)
    for row, sender in enumerate(names):
        for column, receiver in enumerate(names):
            if row == column:
                continue
            if not 0.0 < bandwidth[row, column] < np.inf:
                value = bandwidth[row, column]
                raise InputError(f"{where}: bandwidth {sender} -> {receiver} = {value:g}; expected a number above 0")
            if not 0.0 <= latency[row, column] < np.inf:
                value = latency[row, column]
                raise InputError(f"{where}: latency {sender} -> {receiver} = {value:g}; expected at least 0")
        if not np.asarray(links.uplink)[row] > 0.0:
            raise InputError(f"{where}: uplink of {sender} = {links.uplink[row]:g}; expected a number above 0")
