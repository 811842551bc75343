"""Partitioning degree of a distributed job: the best number of partitions, in closed form and by gradient."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optimistix as optx
from jaxtyping import Array, ArrayLike, Float

from jaxscale.base.arrays import as_float
from jaxscale.base.resources import data_path, read_toml
from jaxscale.base.smooth import larger


@functools.cache
def partitioning_table() -> dict[str, Any]:
    """Job stream of `data/burst/partitioning.toml`."""
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
