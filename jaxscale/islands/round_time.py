r"""Time of a round: islands compute for several steps, then exchange gradients or parameters over a ring.

A ring of P members transfers N bytes in $2 (P - 1)$ rounds of $N / P$ bytes, each limited by the slowest hop,

$$ t = 2 (P - 1) \max_{(i, j)} \left(\frac{N}{P W_{ij}} + \alpha_{ij}\right) . $$

Reference: Patarasuk and Yuan 2009, doi 10.1016/j.jpdc.2008.09.002 (ring).

Islands compute for times $A_i$ between two exchanges; an exchange takes e, of which at most w seconds are concurrent
with compute; an exposed tail t follows:

$$ t_\text{round} = A + \max(0,\; e - w) + t, \qquad A = \max_i A_i . $$

With T = A and $e = V / W$ the compute utilisation is $T / t_\text{round}$, and a given utilisation needs the bandwidth

$$ W = \frac{V}{T (1 / \mathrm{CU} - 1) + w} $$

(Douillard et al. 2025, arXiv 2501.18512, simulate their table 4 by these assumptions; the closed form is ours).
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from jaxscale.base.arrays import Number, as_float
from jaxscale.base.smooth import Temperature, exposed, is_exact, larger, smaller, soft_maximum
from jaxscale.islands.fleet import Links, PerIsland
from jaxscale.islands.island_plans import Pace

WORD_BITS = 32.0
"""Bits per uncompressed gradient or parameter difference [bit]."""


class Loose(eqx.Module):
    """Plan of joint training: division of the batch over islands, and period and size of the exchanges.

    Synchronous data parallelism is H = 1 with gradients; local updates (DiLoCo) are H > 1; streaming sends a fragment,
    1/P of the parameters, every H / P steps while tau more steps run.

    Attributes:
        batch_share: batch share of each island, with sum 1 [1], [island].
        param_share: share of the parameters that an island holds and exchanges [1], [island].
        inner_steps: H, steps between two exchanges of a parameter [1].
        fragments: P, exchanges in H steps, each of 1/P of the parameters [1].
        bits: q, bits per transmitted word [bit].
        hidden_steps: tau, steps concurrent with an exchange [1].
        hidden_backward: share of the backward pass of the last microbatch that hides an exchange [1].
        quorum: K, number of islands awaited by an exchange [1].
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
        """Steps between two successive exchanges, H / P [1]."""
        return jnp.asarray(self.inner_steps) / jnp.asarray(self.fragments)

    def bytes_per_exchange(self, n_params: ArrayLike) -> Array:
        """Bytes sent by each island in an exchange [byte], [island]."""
        # Bits to bytes; each exchange has 1 / P of the parameters.
        return jnp.asarray(self.param_share) * jnp.asarray(n_params * self.bits / (8.0 * self.fragments))


def synchronous(batch_share: PerIsland, bits: Any = WORD_BITS, hidden_backward: Any = 1.0) -> Loose:
    """Plan of data parallelism over islands: gradients reduced in every step, beside the last backward pass.

    Args:
        batch_share: batch share of each island [1], [island].
        bits: bits per gradient [bit].
        hidden_backward: share of the backward pass of the last microbatch that hides the reduction [1].
    """
    ones = jnp.ones_like(jnp.asarray(batch_share))
    return Loose(batch_share, ones, 1.0, 1.0, bits, 0.0, hidden_backward, float(ones.shape[-1]))


def local_updates(batch_share: PerIsland, inner_steps: Any, bits: Any = WORD_BITS) -> Loose:
    """Plan of local updates: parameters are averaged every H steps, while all islands wait (DiLoCo, arXiv 2311.08105).

    Args:
        batch_share: batch share of each island [1], [island].
        inner_steps: H, steps between two exchanges [1].
        bits: bits per parameter difference [bit].
    """
    ones = jnp.ones_like(jnp.asarray(batch_share))
    return Loose(batch_share, ones, inner_steps, 1.0, bits, 0.0, 0.0, float(ones.shape[-1]))


def streaming(
    batch_share: PerIsland, inner_steps: Any, fragments: Any, hidden_steps: Any = 1.0, bits: Any = 4.0
) -> Loose:
    """Plan of streaming local updates: fragments are exchanged in turn while steps continue (arXiv 2501.18512).

    Args:
        batch_share: batch share of each island [1], [island].
        inner_steps: H, steps between two exchanges of a parameter [1].
        fragments: P, number of fragments of the parameters [1].
        hidden_steps: tau, steps concurrent with an exchange, of which at most H / P count [1].
        bits: bits per parameter difference [bit].
    """
    ones = jnp.ones_like(jnp.asarray(batch_share))
    return Loose(batch_share, ones, inner_steps, fragments, bits, hidden_steps, 0.0, float(ones.shape[-1]))


Order = Int[ArrayLike, " island"]
"""Islands in the order of a ring or a chain."""


class LinkTime(NamedTuple):
    """Time of an exchange between islands.

    Attributes:
        moving: transfer time, without latencies [s].
        waiting: latencies [s].
    """

    moving: Array
    waiting: Array

    @property
    def total(self) -> Array:
        """Time of the exchange [s]."""
        return self.moving + self.waiting


def _hops(matrix: Array, order: Array, closed: bool) -> Array:
    """Entries of a matrix along a chain of islands, with the return to the first island if closed [hop]."""
    following = jnp.roll(order, -1) if closed else order[1:]
    sender = order if closed else order[:-1]
    return matrix[..., sender, following]


def ring_time(volume: ArrayLike, links: Links, order: Order | None = None) -> LinkTime:
    """Time of an all-reduce on a ring of islands.

    Args:
        volume: N, size of the reduced tensor [byte].
        order: order of the ring; by default as numbered.

    Returns:
        The time [s]; zero for a single island.
    """
    rate, latency = links.rate, jnp.asarray(links.latency)
    count = rate.shape[-1]
    if count == 1:
        return LinkTime(0.0 * jnp.asarray(volume), 0.0 * jnp.asarray(volume))
    ring = jnp.arange(count) if order is None else jnp.asarray(order)
    rounds = 2.0 * (count - 1)
    # N / P bytes per round, limited by the slowest hop.
    moving = jnp.asarray(volume)[..., None] / (count * _hops(rate, ring, closed=True))
    slowest = jnp.max(moving + _hops(latency, ring, closed=True), axis=-1)
    alone = jnp.max(moving, axis=-1)
    # Latencies are the increase of the slowest hop.
    return LinkTime(rounds * alone, rounds * (slowest - alone))


def send_times(volume: ArrayLike, links: Links, order: Order | None = None) -> LinkTime:
    """Time of a message over each hop of a chain of islands.

    Args:
        volume: size of the message [byte].
        order: order of the chain; by default as numbered.

    Returns:
        Times [s], [hop].
    """
    count = links.rate.shape[-1]
    chain = jnp.arange(count) if order is None else jnp.asarray(order)
    moving = jnp.asarray(volume) / _hops(links.rate, chain, closed=False)
    return LinkTime(moving, _hops(jnp.asarray(links.latency), chain, closed=False))


Seconds = Float[Array, "*batch"]


class RoundTime(eqx.Module):
    """Time of a round (steps between two exchanges, and an exchange) by cause; the terms add up to `total`.

    Attributes:
        compute: mean compute time of the active islands [s].
        imbalance: mean waiting time for the slowest island [s].
        exchange: exposed transfer time [s].
        latency: exposed latencies [s].
        tail: exchange after the last compute, always exposed [s].
    """

    compute: Seconds
    imbalance: Seconds
    exchange: Seconds
    latency: Seconds
    tail: Seconds

    @property
    def total(self) -> Array:
        """Time of the round, the sum of all terms [s]."""
        return self.compute + self.imbalance + self.exchange + self.latency + self.tail

    @property
    def utilisation(self) -> Array:
        """Compute utilisation: compute time of the slowest island over round time [1]."""
        return (self.compute + self.imbalance) / self.total

    def terms(self) -> dict[str, Array]:
        """Terms by name, in the order of the fields [s]."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def slowest_of(times: PerIsland, quorum: ArrayLike | None = None, temperature: Temperature = 0.0) -> Array:
    """Time at which a number K of islands have finished: the K-th smallest time [s].

    Args:
        times: time of each island [s], [island].
        quorum: K, with interpolation between whole numbers; by default all islands [1].
        temperature: 0 for the exact maximum of all, else relative smoothing of the maximum [1].

    Returns:
        The time.
    """
    finished = jnp.asarray(times)
    if quorum is None and not is_exact(temperature):
        return soft_maximum(finished, temperature * jnp.mean(finished, axis=-1), axis=-1)
    if quorum is None:
        return jnp.max(finished, axis=-1)
    count = finished.shape[-1]
    # Order statistics, linear between whole numbers.
    return jnp.interp(jnp.asarray(quorum) - 1.0, jnp.arange(float(count)), jnp.sort(finished))


def round_of(
    work: PerIsland,
    exchange: LinkTime,
    hidden: ArrayLike = 0.0,
    tail: ArrayLike = 0.0,
    *,
    quorum: ArrayLike | None = None,
    temperature: Temperature = 0.0,
) -> RoundTime:
    """Time of a round by cause, from the compute time of each island and the time of the exchange.

    Args:
        work: A, compute of each island between two exchanges; 0 for an island without work [s], [island].
        exchange: e, time of an exchange [s].
        hidden: w, largest time of the exchange concurrent with compute [s].
        tail: t, exchange after the last compute [s].
        quorum: number of awaited islands; by default all [1].

    Returns:
        The terms [s].
    """
    busy = jnp.asarray(work)
    # Islands without work do not count in the mean.
    active = jnp.sum(jnp.where(busy > 0.0, 1.0, 0.0), axis=-1)
    mean = jnp.sum(busy, axis=-1) / larger(active, 1.0)
    waited = slowest_of(busy, quorum, temperature)
    shown = exposed(exchange.total, jnp.asarray(hidden), temperature)
    # Bytes and latencies are hidden in equal proportion. The floor keeps the ratio finite without an exchange.
    ratio = shown / (exchange.total + 1e-30)
    moving = exchange.moving * ratio
    return RoundTime(mean, waited - mean, moving, shown - moving, jnp.asarray(tail) + 0.0 * mean)


def required_bandwidth(
    volume: ArrayLike, compute: ArrayLike, utilisation: ArrayLike, hidden: ArrayLike = 0.0, tail_volume: ArrayLike = 0.0
) -> Array:
    """Bandwidth needed for a given compute utilisation of a round [byte/s].

    Args:
        volume: V, bytes moved by each member per round [byte].
        compute: T, compute per round [s].
        utilisation: CU, compute utilisation [1].
        hidden: w, time of the exchange concurrent with compute [s].
        tail_volume: V_t, bytes of V moved after the last compute [byte].

    Returns:
        W [byte/s]: the larger root of $T (1 / CU - 1) = max(0, (V - V_t) / W - w) + V_t / W$.
    """
    # T (1 / CU - 1)
    idle = jnp.asarray(compute) * (1.0 / jnp.asarray(utilisation) - 1.0)
    # If the body is fully hidden, the tail alone fills the idle time.
    return larger(jnp.asarray(volume) / (idle + hidden), jnp.asarray(tail_volume) / idle)


def fleet_round(
    pace: Pace,
    links: Links,
    loose: Loose,
    *,
    n_params: ArrayLike,
    sequences: ArrayLike,
    order: Order | None = None,
    temperature: Temperature = 0.0,
) -> RoundTime:
    """Time of a round of H / P steps and an exchange, by cause.

    Args:
        loose: shares, period, bits and hidden steps.
        n_params: N, parameters of the model [1].
        sequences: B, batch of all islands together [sequence].
        order: order of the ring of islands; by default as numbered.

    Returns:
        The terms [s]; for a single island exactly the step time.
    """
    share = jnp.asarray(loose.batch_share)
    step = pace.step(share * sequences)
    # An island without a share is inactive: neither its offset nor its fixed work counts.
    work = jnp.where(share > 0.0, loose.period * step, 0.0)
    # The largest share of parameters sets the size of the ring's message.
    exchange = ring_time(jnp.max(loose.bytes_per_exchange(n_params), axis=-1), links, order)
    # An exchange hides at most behind the steps until the next exchange.
    steps = smaller(loose.hidden_steps, loose.period) * jnp.max(jnp.where(share > 0.0, step, 0.0), axis=-1)
    # The shortest backward window hides the least.
    backward = loose.hidden_backward * jnp.min(pace.gradient_window, axis=-1)
    # A quorum of all islands is the plain maximum, which needs no sort.
    quorum = None if isinstance(loose.quorum, float) and loose.quorum == loose.n_islands else loose.quorum
    return round_of(work, exchange, steps + backward, quorum=quorum, temperature=temperature)


def tokens_per_second(pace: Pace, loose: Loose, round_time: RoundTime, sequences: ArrayLike) -> Array:
    """Throughput of the whole fleet: tokens of a round over the round time [token/s].

    Args:
        sequences: B, batch of all islands together [sequence].

    Returns:
        The throughput.
    """
    return loose.period * jnp.asarray(sequences) * jnp.asarray(pace.seq_len) / round_time.total
