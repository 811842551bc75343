"""Partitioning degree of a distributed job: the best number of partitions, in closed form and by gradient."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optimistix as optx
from jaxtyping import Array, ArrayLike, Float

from jaxscale._arrays import as_float
from jaxscale._resources import data_path, read_toml
from jaxscale._smooth import larger


@functools.cache
def partitioning_table() -> dict[str, Any]:
    """Fabric and job stream of `data/burst/partitioning.toml`."""
    return read_toml(data_path("burst/partitioning.toml"))


class SplitJob(eqx.Module):
    """One step of a job that can be split; every field is a float leaf.

    Attributes:
        work: time of the step on one worker [s].
        latency: per doubling of the partitions (a tree collective) [s].
        message: bytes that every worker exchanges, M [byte].
        bandwidth: of a worker, W [byte/s].
    """

    work: Float[ArrayLike, "*batch"] = eqx.field(converter=as_float)
    latency: Float[ArrayLike, "*batch"] = eqx.field(converter=as_float)
    message: Float[ArrayLike, "*batch"] = eqx.field(converter=as_float)
    bandwidth: Float[ArrayLike, "*batch"] = eqx.field(converter=as_float)


def split_step_time(job: SplitJob, degree: ArrayLike) -> Array:
    r"""Time of a step on n partitions.

    $t(n) = \frac{w}{n} + \alpha \log_2 n + \frac{2 M}{W}\left(1 - \frac1n\right)$.

    Args:
        job: the job.
        degree: n, any number from 1 [1].

    Returns:
        Seconds [s]; `work` at n = 1.

    Reference:
        After PAC-ML (arXiv 2301.13799) and its simulator cwfparsonson/ddls; the continuous form is ours.
    """
    n = jnp.asarray(degree)
    exchange = 2.0 * jnp.asarray(job.message) / job.bandwidth
    return jnp.asarray(job.work) / n + job.latency * jnp.log2(n) + exchange * (1.0 - 1.0 / n)


def best_degree(job: SplitJob) -> Array:
    r"""Degree of least step time in closed form.

    $dt/dn = 0$ at $n^* = \frac{\ln 2}{\alpha}\left(w - \frac{2 M}{W}\right)$, at least 1: a job whose exchange takes
    longer than its work stays whole.

    Args:
        job: the job.

    Returns:
        n* [1].
    """
    gain = jnp.asarray(job.work) - 2.0 * jnp.asarray(job.message) / job.bandwidth
    return larger(jnp.log(2.0) * gain / job.latency, 1.0)


def best_degree_by_gradient(job: SplitJob, start: ArrayLike = 2.0) -> Array:
    r"""Degree of least step time by gradient: root of $n^2\, dt/dn$ with Newton steps, `jax.grad` for the slope.

    The factor $n^2$ makes the slope nearly a straight line, so that the first step lands close. The implicit function
    theorem differentiates the result: `jax.grad` gives the price of latency and bandwidth.

    Args:
        job: the job, with more work than exchange.
        start: first guess [1].

    Returns:
        n* [1].
    """

    def slope(degree: Array, job: SplitJob) -> Array:
        return jax.grad(lambda n: split_step_time(job, n))(degree) * degree**2 / job.work

    solver = optx.Newton(rtol=1e-6, atol=1e-6)
    guess = jnp.asarray(start, jnp.result_type(float))
    return optx.root_find(slope, solver, guess, job, max_steps=64).value


class Fabric(eqx.Module):
    """Optical fabric of PAC-ML (RAMP): communication groups of racks of servers.

    Attributes:
        propagation: of light between servers [s].
        io_latency: into or out of a server [s].
        bandwidth: of one server, over all transceivers [byte/s].
        memory_bandwidth: of one worker, for the sum in the reduction [byte/s].
        peak_flops: of one worker [flop/s].
    """

    propagation: Float[ArrayLike, "*batch"] = eqx.field(converter=as_float)
    io_latency: Float[ArrayLike, "*batch"] = eqx.field(converter=as_float)
    bandwidth: Float[ArrayLike, "*batch"] = eqx.field(converter=as_float)
    memory_bandwidth: Float[ArrayLike, "*batch"] = eqx.field(converter=as_float)
    peak_flops: Float[ArrayLike, "*batch"] = eqx.field(converter=as_float)


def ramp_fabric() -> Fabric:
    """The fabric of the published study (`data/burst/partitioning.toml`)."""
    table = partitioning_table()["fabric"]
    return Fabric(**{name: table[name] for name in Fabric.__dataclass_fields__})


def fabric_all_reduce(message: ArrayLike, subgroups: Float[ArrayLike, " level"], fabric: Fabric) -> Array:
    r"""All-reduce over sub-groups one after another, each on a message divided by the sizes before it.

    $t = 2 \sum_k \left[l + 2 l_{io} + \frac{m_k (d_k - 1)}{d_k W}\right] + \sum_k t_{sum}(m_k, d_k)$ with
    $m_{k+1} = m_k / d_k$, levels of size 1 left out, and the sum of $d_k$ parts at
    $\min(I\,W_{mem}, C)$ flop/s, $I = \lceil \log_2 d_k \rceil / (2 (d_k + 1))$ flop per byte.

    Args:
        message: m, bytes of each worker [byte].
        subgroups: d_k, sizes of the levels [1].
        fabric: latencies and rates.

    Returns:
        Seconds [s].

    Reference:
        cwfparsonson/ddls (PAC-ML, arXiv 2301.13799), RAMP all-reduce.
    """
    sizes = jnp.asarray(subgroups, jnp.result_type(float))
    parts = jnp.asarray(message) / jnp.concatenate([jnp.ones(1), jnp.cumprod(sizes)[:-1]])
    used = sizes > 1.0
    wire = fabric.propagation + 2.0 * jnp.asarray(fabric.io_latency) + parts * (sizes - 1.0) / sizes / fabric.bandwidth
    depth = jnp.ceil(jnp.log2(jnp.maximum(sizes, 2.0)))
    rate = jnp.minimum(depth / (2.0 * (sizes + 1.0)) * fabric.memory_bandwidth, fabric.peak_flops)
    return jnp.where(used, 2.0 * wire + parts / 4.0 * depth / rate, 0.0).sum()
