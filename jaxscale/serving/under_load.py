r"""Mean and percentiles of latency under load: queueing of requests with stated arrivals, added to the batch model.

A request of an open stream meets b requests in flight, by Little's law for the time of the batch,

$$ b = \lambda T(b + c_a^2) , $$

with the rate $\lambda$ of a rank and the squared coefficient of variation $c_a^2$ of the gaps between arrivals: Poisson
arrivals see the time average plus themselves (Reiser and Lavenberg 1980, JACM 27, 313-322); arrivals at a constant
rate see a constant number. A batch holds at most B requests; further requests wait as in a queue with B servers,

$$ W = \frac{\rho^{\sqrt{2 (B + 1)} - 1}}{1 - \rho} \frac{1}{X_B} \frac{c_a^2 + c_s^2}{2} , \; \rho = \lambda / X_B $$

(Sakasegawa 1977, Ann. Inst. Stat. Math. 29, 67-75; exact for M/M/1 and M/D/1). A share $\rho^{\sqrt{2(B+1)}-1}$ of the
requests waits, with an exponential distribution. Of the N requests of a closed loop with c clients, the first c arrive
at once and wait for each other's prompts. A run of N requests lasts until the last answer.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from jaxscale.base.arrays import Number, as_arrays, with_fields
from jaxscale.base.jit import concrete_jit
from jaxscale.base.smooth import Temperature, larger, p_norm_smaller, positive_part, smaller, smooth_min
from jaxscale.hardware.cluster import Cluster
from jaxscale.models.transformer import Transformer
from jaxscale.serving.bursts import burst_time
from jaxscale.serving.engine import Engine, Requests
from jaxscale.serving.serving_coefficients import ServingCoefficients
from jaxscale.serving.serving_time import ServingTime, serving_time
from jaxscale.serving.spread import (
    QUANTILES,
    Percentiles,
    gamma_percentiles,
    length_variance,
    percentiles_of,
)

ANSWERS = ("ttft_s", "tpot_s", "e2e_latency_s", "output_tokens_per_s_total")
"""Predicted columns of every row."""

KINDS = ("ttft", "tpot", "e2e")
"""Times with percentiles, by the first word of their columns."""

PERCENTILES = tuple(f"{kind}_{percentile}_s" for kind in KINDS for percentile in QUANTILES)
"""Columns of percentiles over requests."""

LOADED = ("saturation_rate", *PERCENTILES)
"""Predicted columns of rows with stated arrivals: maximum rate of the engine [1/s], percentiles."""

STEPS = 12
"""Newton steps to the batch of an open stream [1]."""

FULL = 0.98
"""Utilisation assumed for an endless stream above saturation [1]."""

SHARPNESS = 16
"""Exponent of the bound of the utilisation: 0.8 stays 0.799, 1 becomes 0.95 [1]."""

REMEMBERED = 2.0 / 3.0
"""Fraction of the variance of the batch that remains in its mean over a stay, as its correlation decays [1]."""


class LoadTime(eqx.Module):
    """Latency and throughput of requests with stated arrivals.

    Attributes:
        ttft: time to the first token, waiting included [s].
        tpot: time per token after the first [s].
        e2e: time from arrival to the last token [s].
        throughput: answer tokens of all copies over the run [token/s].
        saturation: maximum rate of requests of all copies [1/s].
        utilisation: rate over saturation [1].
        n_sequences: requests in flight that a request meets, in all copies [1].
        times: times of the batch model at the load.
    """

    ttft: Percentiles
    tpot: Percentiles
    e2e: Percentiles
    throughput: Number
    saturation: Number
    utilisation: Number
    n_sequences: Number
    times: ServingTime


def answers(
    model: Transformer, engine: Engine, cluster: Cluster, requests: Requests, coefficients: ServingCoefficients,
    *, is_loaded: bool,
) -> tuple[dict[str, Array], ServingTime]:  # fmt: skip
    """Predictions for a row of a serving table by column, and the times of the batch model.

    Args:
        model: the transformer.
        engine: copies of the model and their distribution over chips.
        cluster: chips and network.
        requests: load, lengths and kind of serving.
        coefficients: coefficients of the serving software.
        is_loaded: whether the row states its arrivals; without stated arrivals percentiles are nan.
    """
    if not is_loaded:
        times = serving_time(model, engine, cluster, requests, coefficients)
        means = (times.ttft, times.tpot, times.e2e, times.throughput)
        absent = jnp.full_like(times.ttft, jnp.nan)
        return {**dict(zip(ANSWERS, means, strict=True)), **dict.fromkeys(LOADED, absent)}, times
    load = serving_under_load(model, engine, cluster, requests, coefficients)
    kinds = (load.ttft, load.tpot, load.e2e)
    means = (*(kind.mean for kind in kinds), load.throughput)
    further = (load.saturation, *(getattr(kind, percentile) for kind in kinds for percentile in QUANTILES))
    return {**dict(zip(ANSWERS, means, strict=True)), **dict(zip(LOADED, further, strict=True))}, load.times


class Stream(NamedTuple):
    """Batch met by a request of an open stream.

    Attributes:
        met: requests in flight that a request meets on its rank, itself included [1].
        variance: squared coefficient of variation of a request's time due to the variation of the batch [1].
    """

    met: Array
    variance: Array


@concrete_jit
def serving_under_load(
    model: Transformer,
    engine: Engine,
    cluster: Cluster,
    requests: Requests,
    coefficients: ServingCoefficients,
    *,
    temperature: Temperature = 0.0,
) -> LoadTime:
    """Mean and percentiles of latency, throughput and saturation of requests with stated arrivals.

    A `request_rate` makes an open stream with gaps of variation `gap_variance`; `at_limit` with `n_requests` a burst;
    else clients keep `concurrency` in flight.

    Args:
        model: the transformer.
        engine: copies of the model and their distribution over chips; each copy takes an equal share of the rate.
        cluster: chips and network.
        requests: arrivals, lengths and their variation.
        coefficients: coefficients of the serving software.
        temperature: smoothing of minima and corners; 0 for exact values [1].

    Returns:
        Times [s] and rates, differentiable in every number. An endless stream above saturation, with an ever growing
        queue, is evaluated at a utilisation of 0.98.
    """
    model, engine, cluster, r, coefficients = as_arrays((model, engine, cluster, requests, coefficients))
    ranks = engine.copies * engine.attention_dp
    is_open = r.is_open
    is_burst = (1.0 - is_open) * r.at_limit * smaller(r.n_requests, 1.0)

    @jax.jit
    def at(
        concurrency: ArrayLike, at_limit: ArrayLike, n_requests: ArrayLike = 0.0, **further: ArrayLike
    ) -> ServingTime:
        fields = {"concurrency": concurrency, "at_limit": at_limit, "n_requests": n_requests, **further}
        return serving_time(model, engine, cluster, with_fields(r, fields), coefficients, temperature)

    # At saturation memory, scheduler and client limit the requests in flight.
    most = at(1.0, 1.0).n_sequences
    # The client of a stream may hold a maximum too.
    most = most + is_open * (smooth_min(most, r.concurrency, temperature) - most)
    # A full batch has no room for one more than the mean.
    full = at(most, 0.0, gap_variance=0.0)
    capacity = full.throughput / r.output_len
    # Closed loads have no rate: the capacity keeps unused terms finite.
    rate = jnp.where(r.request_rate > 0.0, r.request_rate, capacity)
    # The first token is in the time to the first token.
    answers = larger(r.output_len - 1.0, 1.0)

    def stay(batch: Array) -> Array:
        """Time from the first token to the last, in which a request is in the batch [s]."""
        return answers * at(batch * ranks, 0.0).tpot

    stream = _stream(stay, rate / ranks, r, most / ranks, temperature)
    limit = (1.0 - is_open) * r.at_limit
    load = is_open * stream.met * ranks + (1.0 - is_open) * r.concurrency
    times = at(load, limit, (1.0 - is_open) * r.n_requests)
    varied = length_variance(r, coefficients)
    # Delays in addition to an empty engine: wait for a place, preceding prompts, backlog of a run.
    # (c_a^2 + c_s^2) / 2 of Sakasegawa.
    places = _places(rate / capacity, ranks / capacity, most / ranks, 0.5 * (r.gap_variance + varied))
    own = r.n_requests / ranks
    # A run at a rate above capacity ends with N (1 / X - 1 / rate) of work left.
    backlog = is_open * own * ranks / capacity * positive_part(1.0 - capacity / rate, temperature)
    alone = times.ttft - times.behind - (1.0 - r.is_closed) * times.waiting
    steady, rush = times.behind - times.rush, times.rush
    # The requests of the start wait from 0 to twice their mean.
    longest = 2.0 * rush / times.rushed

    def first(share: float) -> Array:
        own_place = is_open * places.quantile(share, temperature)
        rushing = longest * positive_part(1.0 - (1.0 - share) / times.rushed, temperature)
        # Other waits are about exponential: quantile -mean ln(1 - q).
        queued = rushing - jnp.log1p(-share) * steady
        return alone + queued + own_place + share * backlog

    ttft = alone + times.behind + is_open * places.mean + 0.5 * backlog
    e2e = ttft + times.tpot * answers
    uneven = coefficients.jitter**2 + is_open * stream.variance
    # Mean square of a uniform delay of a share of the requests, less the square of its mean.
    started = times.rushed * longest**2 / 3.0 - rush**2
    # Variance of a uniform delay from 0 to the backlog.
    of_waits = is_open * places.variance + backlog**2 / 12.0 + steady**2 + started
    sent = is_open * smaller(r.n_requests, 1.0)
    kept = smooth_min(rate, capacity, temperature)
    run = sent * r.n_requests / (r.n_requests / kept + e2e - 0.5 * backlog + 1e-9) + (1.0 - sent) * kept
    burst = burst_time(
        engine, r, coefficients, times,
        places=most / ranks, each=ranks / capacity, start=alone, temperature=temperature,
    )  # fmt: skip
    of_answers = (answers * times.tpot) ** 2 * (uneven + varied)
    steady_load = (
        percentiles_of(ttft, first),
        gamma_percentiles(times.tpot, times.tpot**2 * uneven),
        gamma_percentiles(e2e, of_waits + of_answers),
    )
    kinds = jax.tree.map(lambda own, rest: is_burst * own + (1.0 - is_burst) * rest, tuple(burst), steady_load)
    return LoadTime(
        *kinds,
        throughput=is_open * run * r.output_len + (1.0 - is_open) * times.throughput,
        saturation=capacity,
        utilisation=rate / capacity,
        n_sequences=times.n_sequences,
        times=times,
    )


def _stream(
    stay: Callable[[Array], Array], rate: Array, requests: Requests, most: Array, temperature: Temperature
) -> Stream:
    r"""Batch that a request of an open stream meets on its rank.

    Newton's method in the logarithm starts below the solution and converges from below, as $\ln b - \ln \lambda T(b)$
    is increasing and concave.

    Args:
        stay: time of a request in a batch [s].
        rate: requests of a rank [1/s].
        requests: the stream.
        most: largest batch [1].
    """
    others = requests.gap_variance
    count = larger(requests.n_requests, 1.0)

    def excess(log_batch: Array) -> Array:
        batch = jnp.exp(log_batch)
        # Two points at plus and minus a standard deviation represent the Poisson counts.
        # The root has no finite slope at 0.
        apart = jnp.sqrt(others * batch + 1e-12)
        time = 0.5 * (stay(batch + others + apart) + stay(larger(batch + others - apart, 1e-3)))
        endless = rate * time
        # In a run of N requests the batch rises and falls as a trapezoid: mean over the requests.
        sent = count / rate
        short = smooth_min(time, sent, temperature)
        ends = rate * short * (1.0 - short / (3.0 * larger(time, sent)))
        return log_batch - jnp.log(jnp.where(requests.n_requests > 0.0, ends, endless))

    top = jnp.log(most)

    def newton(log_batch: Array) -> Array:
        value, slope = jax.jvp(excess, (log_batch,), (jnp.ones_like(log_batch),))
        # The slope vanishes near saturation.
        return log_batch - value / jax.lax.stop_gradient(larger(slope, 0.02))

    def held(log_batch: Array) -> Array:
        return smaller(log_batch, top)

    # Far below the solution: Newton converges from below.
    start = held(-excess(jnp.full_like(top, -20.0)) - 20.0)
    near = jax.lax.stop_gradient(jax.lax.fori_loop(0, STEPS, lambda _, b: held(newton(b)), start))
    # The last step alone is differentiated, as by the implicit function theorem.
    solved = newton(near)
    batch = smooth_min(jnp.exp(solved), most, temperature)
    slope = jax.jvp(excess, (held(solved),), (jnp.ones_like(near),))[1]
    # d ln T / d ln b
    stretch = 1.0 - slope
    variance = REMEMBERED * others * stretch**2 / ((batch + others) * larger(slope, 0.1))
    # Poisson arrivals see the time average and the arriving request.
    return Stream(smooth_min(batch + others, most, temperature), variance)


class Places(NamedTuple):
    """Waiting time for a place in the batch, in steady state.

    Attributes:
        share: share of requests that wait [1].
        mean: mean waiting time over all requests [s].
    """

    share: Array
    mean: Array

    @property
    def variance(self) -> Array:
        """Variance of the waiting time over requests [s^2]."""
        # Exponential waits of a share s: variance mean^2 (2 / s - 1).
        return self.mean**2 * (2.0 / self.share - 1.0)

    def quantile(self, share: float, temperature: Temperature) -> Array:
        """Quantile of the waiting time over requests [s]."""
        return self.mean / self.share * positive_part(jnp.log(self.share / (1.0 - share)), temperature)


def bounded_utilisation(utilisation: Number) -> Number:
    """Utilisation of a queue, smoothly bounded by `FULL`, because a queue beyond saturation has no steady state [1]."""
    return p_norm_smaller(jnp.asarray(utilisation), jnp.asarray(FULL), SHARPNESS)


def _places(utilisation: Array, each: Array, batch: Array, unevenness: Array) -> Places:
    """Wait for a place in a batch.

    Args:
        utilisation: rate over saturation, bounded here [1].
        each: time per answered request at saturation [s].
        batch: places [1].
        unevenness: mean of the squared coefficients of variation of gaps and of service [1].
    """
    # rho^(sqrt(2 (B + 1)) - 1)
    bounded = bounded_utilisation(utilisation)
    late = bounded ** (jnp.sqrt(2.0 * (batch + 1.0)) - 1.0) + 1e-12
    return Places(late, late * each * unevenness / (1.0 - bounded))
