r"""Partitioned edge learning: shares of parameters and of a common bandwidth, both in closed form.

Device k computes all of the work in $a_k$ seconds and sends all of the result in $c_k$ with all the bandwidth, $o_k$ is
fixed. With shares $x_k$ of the parameters and $r_k$ of the bandwidth,

$$ \min T \quad \text{s.t.} \quad o_k + x_k (a_k + c_k / r_k) = T, \quad \sum_k x_k = \sum_k r_k = 1 . $$

For a given T the bandwidth is filled like water,

$$ r_k = \frac{\left[\sqrt{(T - o_k) c_k}\, s - c_k\right]_+}{a_k}, \qquad
   s = \frac{1 + \sum_k c_k / a_k}{\sum_k \sqrt{(T - o_k) c_k} / a_k} $$

over the active devices, $x_k = (T - o_k) r_k / (a_k r_k + c_k)$; T follows from $\sum_k x_k = 1$ by bisection, and
without fixed times directly, $T = 1 / \sum_k r_k / (a_k r_k + c_k)$.
Reference: Wen et al. 2020, arXiv 2003.04544 (problem); the closed form is ours.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import optimistix as optx
from jaxtyping import Array, ArrayLike, Float

from jaxscale.base.smooth import larger

PerDevice = Float[ArrayLike, " device"]
"""One number for each device."""


class Partition(NamedTuple):
    """Shares of parameters and bandwidth.

    Attributes:
        time: T [s].
        param_share: x [1], [device].
        bandwidth_share: r [1], [device].
    """

    time: Array
    param_share: Array
    bandwidth_share: Array


def bandwidth_shares(compute: Array, send: Array, left: Array) -> Array:
    """Shares of the bandwidth by which most of the work is done in given times [1], [device].

    Args:
        compute: a [s], [device].
        send: c [s], [device].
        left: T - o, time that is left for the work [s], [device].

    Returns:
        r; adding up to one.
    """
    root = jnp.sqrt(larger(left, 0.0) * send)
    # A device is worth bandwidth while root / c exceeds 1 / s: the active ones are the first by that ratio.
    order = jnp.argsort(-root / send)
    level = (1.0 + jnp.cumsum((send / compute)[order])) / jnp.cumsum((root / compute)[order])
    # A device beyond the active ones would raise s; of all prefixes theirs has the least.
    water = jnp.min(jnp.where(jnp.isfinite(level), level, jnp.inf))
    shares = larger(root * water - send, 0.0) / compute
    return shares / jnp.sum(shares)


def params_done(compute: Array, send: Array, left: Array) -> tuple[Array, Array]:
    """Most of the work that devices do in given times, and their bandwidth.

    Args:
        compute: a [s], [device].
        send: c [s], [device].
        left: T - o [s], [device].

    Returns:
        x, not adding up to one, and r [1], [device].
    """
    shares = bandwidth_shares(compute, send, left)
    return larger(left, 0.0) * shares / (compute * shares + send), shares


def best_partition(compute: PerDevice, send: PerDevice, fixed: PerDevice | float = 0.0) -> Partition:
    """Least time over all shares of parameters and of bandwidth.

    Args:
        compute: a, time of all the work on each device [s], [device].
        send: c, time to send all of the result with all of the bandwidth [s], [device].
        fixed: o, time that no share changes [s], [device].

    Returns:
        The partition; differentiates in all times.
    """
    whole, message = jnp.asarray(compute, float), jnp.asarray(send, float)
    offset = jnp.zeros_like(whole) + jnp.asarray(fixed)

    def missing(log_time: Array, times: Any) -> Array:
        work, sent, late = times
        done, _ = params_done(work, sent, jnp.exp(log_time) - late)
        return jnp.sum(done) - 1.0

    # The best device alone bounds the time from above, no device at all the first offset from below.
    alone = jnp.min(offset + whole + message)
    ends = {"lower": jnp.log(jnp.min(offset) + 1e-9 * alone), "upper": jnp.log(alone) + 1e-6}
    solver = optx.Bisection(rtol=1e-14, atol=1e-14, flip=False)
    times = (whole, message, offset)
    root = optx.root_find(missing, solver, jnp.log(alone), args=times, options=ends, max_steps=100, throw=False)
    finish = jnp.exp(root.value)
    done, shares = params_done(whole, message, finish - offset)
    return Partition(finish, done / jnp.sum(done), shares)
