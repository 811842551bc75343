"""Partitioning degree of a distributed job, and streams of jobs with deadlines, for notebook 06."""

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optimistix as optx
from jax.scipy.stats import norm
from jaxtyping import Array, ArrayLike, Bool, Float, PRNGKeyArray

from jaxscale.base.arrays import as_float
from jaxscale.base.documents import data_path, read_toml
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


POLICIES = ("maximum", "fixed", "fastest", "just_enough")


class Stream(eqx.Module):
    """Random stream of jobs; every field is a float leaf.

    Attributes:
        load: offered work over the capacity of the cluster, jobs unsplit [1].
        mean_work: mean of the step time on one worker (exponential) [s].
        latency: per doubling of the partitions [s].
        exchange: time to exchange the message over the mean work, 2 M / (W w) [1].
        tightest: least acceptable fraction of the time on one worker; fractions are uniform up to 1 [1].
    """

    load: Float[ArrayLike, "*batch"] = eqx.field(converter=as_float)
    mean_work: Float[ArrayLike, "*batch"] = eqx.field(converter=as_float)
    latency: Float[ArrayLike, "*batch"] = eqx.field(converter=as_float)
    exchange: Float[ArrayLike, "*batch"] = eqx.field(converter=as_float)
    tightest: Float[ArrayLike, "*batch"] = eqx.field(converter=as_float)


def stated_stream() -> Stream:
    """The stream of `data/burst/partitioning.toml`."""
    table = partitioning_table()["stream"]
    return Stream(**{name: table[name] for name in Stream.__dataclass_fields__})


class _Jobs(NamedTuple):
    arrival: Float[Array, " job"]
    duration: Float[Array, " job"]
    degree: Float[Array, " job"]
    deadline: Float[Array, " job"]


def choose_degree(policy: str, job: SplitJob, deadline: ArrayLike, n_workers: int, fixed_degree: ArrayLike) -> Array:
    r"""Partitions of one job, a power of two up to the size of the cluster [1].

    `maximum`: all workers; `fixed`: `fixed_degree`; `fastest`: $2^{\mathrm{round}(\log_2 n^*)}$ with the closed form
    n*; `just_enough`: the smallest power of two that meets the deadline, else the fastest.

    Args:
        policy: one of `POLICIES`.
        deadline: acceptable time [s].
        n_workers: size of the cluster [1].
        fixed_degree: degree of the policy `fixed` [1].
    """
    options = 2.0 ** jnp.arange(n_workers.bit_length(), dtype=jnp.result_type(float))
    fastest = jnp.clip(2.0 ** jnp.round(jnp.log2(best_degree(job))), 1.0, n_workers)
    if policy == "maximum":
        return jnp.full_like(fastest, n_workers)
    if policy == "fixed":
        return jnp.full_like(fastest, fixed_degree)
    if policy == "fastest":
        return fastest
    meets = split_step_time(job, options) <= deadline
    return jnp.where(meets.any(), options[jnp.argmax(meets)], fastest)


def _draw(key: PRNGKeyArray, stream: Stream, n_jobs: int, n_workers: int, policy: str, fixed: ArrayLike) -> _Jobs:
    gaps, works, fractions = jax.random.split(key, 3)
    mean_gap = jnp.asarray(stream.mean_work) / (stream.load * n_workers)
    arrival = jnp.cumsum(jax.random.exponential(gaps, (n_jobs,)) * mean_gap)
    work = jax.random.exponential(works, (n_jobs,)) * stream.mean_work
    fraction = jax.random.uniform(fractions, (n_jobs,), minval=stream.tightest, maxval=1.0)

    def one(work: Array, fraction: Array) -> tuple[Array, Array]:
        # A message of half the exchanged time on a unit link: only 2 M / W enters the step time.
        job = SplitJob(work, stream.latency, 0.5 * stream.exchange * work, 1.0)
        degree = choose_degree(policy, job, fraction * work, n_workers, fixed)
        return degree, split_step_time(job, degree)

    degree, duration = jax.vmap(one)(work, fraction)
    return _Jobs(arrival, duration, degree, fraction * work)


def _admit(free_at: Float[Array, " worker"], job: _Jobs) -> tuple[Array, Bool[Array, ""]]:
    """Place a job on the workers that have been free longest, or turn it away."""
    order = jnp.argsort(free_at)
    sorted_free = free_at[order]
    wanted = jnp.arange(len(free_at)) < job.degree
    idle = (sorted_free <= job.arrival).sum() >= job.degree
    accepted = idle & (job.duration <= job.deadline)
    updated = jnp.where(wanted & accepted, job.arrival + job.duration, sorted_free)
    return updated, accepted


def blocking_rate(
    key: PRNGKeyArray,
    stream: Stream,
    policy: str,
    n_jobs: int = 1000,
    n_workers: int = 32,
    fixed_degree: ArrayLike = 4.0,
) -> Float[Array, ""]:
    """Fraction of the jobs that are turned away.

    A job is turned away on arrival if too few workers are idle or if it would end after its acceptable fraction of the
    time on one worker; there is no queue.

    Args:
        key: random key; `jax.vmap` over keys and loads simulates all at once.
        policy: one of `POLICIES`.
        n_jobs: jobs to simulate [1].
        n_workers: size of the cluster, a power of two [1].
        fixed_degree: degree of the policy `fixed` [1].

    Returns:
        Blocking rate [1].

    Reference:
        PAC-ML, arXiv 2301.13799, section 4 (blocking and acceptable fractions).
    """
    jobs = _draw(key, stream, n_jobs, n_workers, policy, fixed_degree)
    _, accepted = jax.lax.scan(_admit, jnp.zeros(n_workers), jobs)
    return 1.0 - accepted.mean(dtype=jobs.arrival.dtype)


class BlockingStudy(eqx.Module):
    """Blocking rate of every policy over repeated streams.

    Attributes:
        rate: mean by policy, in the order of `POLICIES` [1].
        half_width: half of the 95 % confidence interval of the mean [1].
        difference: mean of the paired difference from `maximum` [1].
        difference_half_width: half of its 95 % confidence interval [1].
    """

    rate: Float[Array, " policy"]
    half_width: Float[Array, " policy"]
    difference: Float[Array, " policy"]
    difference_half_width: Float[Array, " policy"]


def study_blocking(
    key: PRNGKeyArray, stream: Stream, n_streams: int = 64, n_jobs: int = 1000, n_workers: int = 32
) -> BlockingStudy:
    """Simulate all policies on the same streams.

    Args:
        n_streams: independent streams [1].
        n_jobs: jobs in each [1].
        n_workers: size of the cluster [1].

    Returns:
        Rates with confidence intervals.
    """
    keys = jax.random.split(key, n_streams)
    runs = [jax.vmap(lambda k, p=policy: blocking_rate(k, stream, p, n_jobs, n_workers))(keys) for policy in POLICIES]
    rates = jnp.stack(runs)
    quantile = norm.ppf(0.975) / jnp.sqrt(n_streams)
    difference = rates - rates[POLICIES.index("maximum")]
    spread, paired = (x.std(1, ddof=1) * quantile for x in (rates, difference))
    return BlockingStudy(rates.mean(1), spread, difference.mean(1), paired)
