r"""Latency of the requests of a burst, which all arrive at once.

Of N requests of a rank, the first $m = \min(N, B)$ fill the B places of the batch. Their prompts take $m q$ in all,
with the time q per prompt of the chips or, if slower, of the engine's front end; request u has its first token after
$u q$. Each later request u waits for a place, $(u - B) / X_B$ more. An answer of l tokens is generated while the batch
shrinks from m sequences to n(x),

$$ \int_0^l T_{dec}(n(x)) dx = T_0 l + (T_{dec}(m) - T_0) \int_0^l P(\text{length} > x) dx . $$

A first request keeps its place while the prompts behind it are read, so that its time per token is $(m - u) q / l$
longer, a large delay for a short answer. With mixed passes of prompts and running sequences the delay is at most one
step with a full token budget.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from jaxscale.base.smooth import Temperature, larger, positive_part, smaller, smooth_min
from jaxscale.serving.engine import Engine, Requests
from jaxscale.serving.serving_coefficients import ServingCoefficients
from jaxscale.serving.serving_time import ServingTime, tokens_yielded
from jaxscale.serving.spread import (
    Percentiles,
    gamma_quantile,
    half_difference,
    length_variance,
    percentiles_of,
    shortness,
)

SHORT = 0.65
"""Growth of the mean inverse length of unequal answers with the logarithm of the mean length S: E[S / l] is 1 + 0.65
sqrt(v) ln S within 10 % for uniform and exponential lengths of 50 to 1,000 tokens [1]."""


class Burst(NamedTuple):
    """Mean and percentiles of latency over the requests of a burst [s].

    Attributes:
        ttft: time to the first token.
        tpot: time per token after the first.
        e2e: time from arrival to the last token.
    """

    ttft: Percentiles
    tpot: Percentiles
    e2e: Percentiles


def burst_time(
    engine: Engine,
    requests: Requests,
    coefficients: ServingCoefficients,
    times: ServingTime,
    *,
    places: Array,
    each: Array,
    start: Array,
    temperature: Temperature,
) -> Burst:
    """Mean and percentiles of latency over the requests of a burst.

    Args:
        engine: copies of the model.
        requests: lengths, and the number of requests.
        coefficients: coefficients of the serving software.
        times: times of the batch model with the batch of the burst.
        places: requests of a rank that memory and scheduler admit [1].
        each: time per answered request of a rank with a full batch [s].
        start: time to the first token of a request alone [s].
        temperature: smoothing of minima and corners; 0 for exact values [1].
    """
    # No division by zero without a burst.
    own = requests.n_requests / (engine.copies * engine.attention_dp) + 1e-9
    placed = smooth_min(own, places, temperature)
    first = placed / own
    yielded, pace, varied = tokens_yielded(requests), coefficients.pace, length_variance(requests, coefficients)
    # The first token is in the time to the first token.
    answers = larger(requests.output_len - 1.0, 1.0)
    least, most = pace * times.alone / yielded, pace * times.decode.total / yielded
    beside = larger(times.tpot - most, 0.0) * (1.0 - first)
    # Steps that take prompts give the running sequences a token too.
    steps = times.fresh / engine.token_budget
    between = engine.mixed_passes * steps * 0.5 * pace * (times.alone + times.decode.total)
    # Stages of a pipeline read as many prompts at a time; the ranks of a copy share its front end.
    read, admitted = pace / engine.pp * times.in_line + between, coefficients.request_floor * engine.attention_dp
    fill = placed * jnp.sqrt(read**2 + admitted**2)
    # Tokens of an answer for each step of the fill, without bound where prompts have passes of their own.
    slowest = answers / (engine.mixed_passes * placed * steps + (1.0 - engine.mixed_passes) + 1e-9)
    # Mean part of the fill that follows the first token: a half, or less where answers end before.
    seen = smaller(slowest, 1.0)
    after = seen - 0.5 * seen**2

    def late(share: float) -> Array:
        """Wait for a place of the request at a share of the line [s]."""
        return placed * positive_part(share * own / placed - 1.0, temperature) * each

    def in_batch(length: Array, together: Array) -> Array:
        """Time of an answer of a length relative to the mean, with the integral of the others' lengths up to it [s]."""
        shared = first * together + (1.0 - first) * length
        return answers * ((least + beside) * length + (most - least) * shared)

    waited = 0.5 * larger(own - placed, 0.0) ** 2 / own * each
    stay = in_batch(jnp.asarray(1.0), 1.0 - half_difference(varied))
    whole = start + fill * (first * (0.5 + after) + 1.0 - first) + waited + stay
    density = shortness(varied)

    def e2e(share: float) -> Array:
        length = gamma_quantile(varied, share)
        # Integral up to the quantile: the share for exponential lengths, 2 q - q^2 for uniform ones, 1 for equal ones.
        own_stay = in_batch(length, 1.0 - (1.0 - share) ** (1.0 / density))
        apart = (late(share) - waited, own_stay - stay, stay * (gamma_quantile(coefficients.jitter**2, share) - 1.0))
        # Independent deviations above the mean add by their squares.
        above = jnp.sqrt(sum(larger(part, 0.0) ** 2 for part in apart) + 1e-12)
        return larger(whole + above + sum(smaller(part, 0.0) for part in apart), start + late(share))

    def per_token(share: float) -> Array:
        tail = (1.0 - share) / first
        rank = larger(1.0 - tail, 0.0)
        # Uniform waits over lengths of a density at 0: a tail of t / (2 x).
        ratio = rank * (1.0 - density + 0.5 * density / tail)
        return stay / answers + fill / answers * smaller(ratio, slowest)

    ratio = first * after * (1.0 + SHORT * jnp.sqrt(varied + 1e-12) * jnp.log(larger(slowest, 1.0)))
    return Burst(
        percentiles_of(
            start + fill * (1.0 - 0.5 * first) + waited,
            lambda share: start + fill * smaller(share / first, 1.0) + late(share),
        ),
        percentiles_of(stay / answers + fill / answers * ratio, per_token),
        percentiles_of(whole, e2e),
    )
