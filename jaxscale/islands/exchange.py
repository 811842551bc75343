r"""Exchanges between islands over unequal links: a ring, a hub, or point to point.

A ring of P members passes N bytes on in $2 (P - 1)$ rounds of $N / P$ bytes, each as slow as its slowest hop,

$$ t = 2 (P - 1) \max_{(i, j)} \left(\frac{N}{P W_{ij}} + \alpha_{ij}\right) . $$

A hub takes all copies in and gives the mean out; its own uplink carries $P - 1$ of them each way.
Reference: Patarasuk and Yuan 2009, doi 10.1016/j.jpdc.2008.09.002 (ring).
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Int

from jaxscale.base.smooth import larger
from jaxscale.islands.fleet import Links

Order = Int[ArrayLike, " island"]
"""Islands in the order in which a ring or a chain passes through them."""


class LinkTime(NamedTuple):
    """Time of one exchange.

    Attributes:
        moving: bytes over the links, without latencies [s].
        waiting: latencies [s].
    """

    moving: Array
    waiting: Array

    @property
    def total(self) -> Array:
        """Time of the exchange [s]."""
        return self.moving + self.waiting


def _hops(matrix: Array, order: Array, closed: bool) -> Array:
    """Entries of a matrix along a chain of islands, back to the first one where it is closed [hop]."""
    following = jnp.roll(order, -1) if closed else order[1:]
    sender = order if closed else order[:-1]
    return matrix[..., sender, following]


def ring_time(volume: ArrayLike, links: Links, order: Order | None = None) -> LinkTime:
    """Time of an all-reduce round a ring of islands.

    Args:
        volume: N, size of the reduced tensor [byte].
        links: between the islands.
        order: of the ring; as numbered where None.

    Returns:
        The time [s]; nothing for one island.
    """
    rate, latency = links.rate, jnp.asarray(links.latency)
    count = rate.shape[-1]
    if count == 1:
        return LinkTime(0.0 * jnp.asarray(volume), 0.0 * jnp.asarray(volume))
    ring = jnp.arange(count) if order is None else jnp.asarray(order)
    rounds = 2.0 * (count - 1)
    moving = jnp.asarray(volume)[..., None] / (count * _hops(rate, ring, closed=True))
    slowest = jnp.max(moving + _hops(latency, ring, closed=True), axis=-1)
    alone = jnp.max(moving, axis=-1)
    return LinkTime(rounds * alone, rounds * (slowest - alone))


def hub_time(volumes: ArrayLike, links: Links, hub: int = 0) -> LinkTime:
    """Time until every island has sent its tensor to a hub and got the mean back.

    Args:
        volumes: tensor of each island [byte], [island].
        links: between the islands.
        hub: island that holds the mean.

    Returns:
        The time [s]; nothing for one island.
    """
    sizes = jnp.asarray(volumes)
    count = sizes.shape[-1]
    others = jnp.asarray([island for island in range(count) if island != hub], int)
    if count == 1:
        return LinkTime(0.0 * sizes[..., 0], 0.0 * sizes[..., 0])
    there, back = (jnp.max(sizes[..., others] / rate, axis=-1) for rate in _spokes(links.rate, others, hub))
    # Copies come in over the receiving side of the hub's uplink and leave over its sending side.
    crowded = jnp.sum(sizes[..., others], axis=-1) / links.uplink_rate[..., hub]
    latencies = [jnp.max(spoke, axis=-1) for spoke in _spokes(jnp.asarray(links.latency), others, hub)]
    return LinkTime(larger(there, crowded) + larger(back, crowded), latencies[0] + latencies[1])


def _spokes(matrix: Array, others: Array, hub: int) -> tuple[Array, Array]:
    """Entries of a matrix to the hub and from it, for the other islands [spoke]."""
    return matrix[..., others, hub], matrix[..., hub, others]


def send_times(volume: ArrayLike, links: Links, order: Order | None = None) -> LinkTime:
    """Time of one message over each hop of a chain of islands.

    Args:
        volume: message [byte].
        links: between the islands.
        order: of the chain; as numbered where None.

    Returns:
        Times [s], [hop].
    """
    count = links.rate.shape[-1]
    chain = jnp.arange(count) if order is None else jnp.asarray(order)
    moving = jnp.asarray(volume) / _hops(links.rate, chain, closed=False)
    return LinkTime(moving, _hops(jnp.asarray(links.latency), chain, closed=False))
