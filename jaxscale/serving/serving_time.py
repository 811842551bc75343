r"""Latency and throughput of engines under load: static and continuous batching, maximum load, disaggregation.

A static batch of b requests takes $T = T_{prefill}(b, S_{in}) + \sum_{i=1}^{S_{out}-1} T_{dec}(b, S_{in} + i)$, which
is $T_{prefill} + (S_{out} - 1) T_{dec}(b, S_{in} + S_{out} / 2)$ for $T_{dec}$ affine in the context.

In the steady state of continuous batching, every step includes the arriving prompts, $b / S_{out}$ per step,
$T_{step} = T_{dec} + (b / S_{out}) T_{prompt}$ with the time that a prompt adds to a step. Little's law relates the
concurrency c to the rate X of requests, $c = X (TTFT + (S_{out} - 1) TPOT)$.

A run of N requests ends with the longest answer: while the batch drains, steps read the weights for few sequences. The
run takes $T_{dec}(1) S_{out} (H - 1)$ longer than at the rate of a full batch, with H the longest of the last answers
relative to their mean.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxscale.base.arrays import Number, as_arrays, host_arrays, in_blocks_of, with_fields
from jaxscale.base.jit import array_jit
from jaxscale.base.smooth import Temperature, larger, smaller, smooth_max, smooth_min
from jaxscale.hardware.cluster import Cluster
from jaxscale.models.transformer import Transformer
from jaxscale.serving.engine import Engine, Requests
from jaxscale.serving.forward_pass import (
    PassTime,
    cache_per_sequence,
    decode_pass,
    engine_shares,
    prefill_pass,
    prompts_in_step,
    stored_per_sequence,
)
from jaxscale.serving.serving_coefficients import ServingCoefficients
from jaxscale.serving.serving_memory import SharedPrefixes, cache_room, max_batch
from jaxscale.serving.spread import length_variance, longest

ROUNDS = 10.0
"""Requests of a benchmark by those that its client keeps in flight, where the table does not say: the custom of the
benchmarks of serving frameworks (ten prompts for each client) [1]."""

LEAST_BATCH = 1.0
"""Minimum number of sequences of a rank: with less load, some ranks serve one request while others idle [1]."""

NO_LIMIT = 1e6
"""Sequences of a rank whose memory holds none: the time is then the time of chips with more memory [1]."""


class ServingTime(eqx.Module):
    """Latency and throughput of requests on engines.

    Attributes:
        ttft: time to the first token, waiting included [s].
        tpot: time per token after the first [s].
        throughput: answer tokens of all copies [token/s].
        n_sequences: sequences in flight in all copies [1].
        max_batch: maximum number of sequences in the memory of all copies; 0 where weights leave no room [1].
        waiting: queueing delay of a request before it joins the batch [s].
        behind: subsequent delay by the prompts of further requests and by the step in progress [s].
        rush: share of `behind` due to the requests that the client of a closed loop sends at once at its start [s].
        rushed: share of the requests that are sent at once at the start [1].
        decode: terms of a decode step [s].
        alone: decode step of a single sequence [s].
        prefill: terms of the prefill of a prompt on an otherwise idle engine, or of all prompts of a static batch [s].
        in_line: time that each of many waiting prompts adds [s].
        output_len: length of an answer [token].
        fresh: tokens of a prompt that are not cached [token].
    """

    ttft: Number
    tpot: Number
    throughput: Number
    n_sequences: Number
    max_batch: Number
    waiting: Number
    behind: Number
    rush: Number
    rushed: Number
    decode: PassTime
    alone: Number
    prefill: PassTime
    in_line: Number
    output_len: Number
    fresh: Number

    @property
    def e2e(self) -> Array:
        """Time of a request from arrival to last token, TTFT + (S_out - 1) TPOT [s]."""
        return self.ttft + (self.output_len - 1.0) * self.tpot


def tokens_yielded(requests: Requests) -> Array:
    """Tokens per sequence and step with draft tokens, (1 - p^(g + 1)) / (1 - p) [token].

    g is the number of draft tokens and p their acceptance probability. Source: Leviathan et al., arXiv 2211.17192,
    equation 1.
    """
    # p = 1 divides by zero.
    p = jnp.minimum(requests.acceptance, 1.0 - 1e-4)
    # (1 - p^(g+1)) / (1 - p)
    return -jnp.expm1((requests.draft_tokens + 1.0) * jnp.log(p)) / (1.0 - p)


def serving_time(
    model: Transformer,
    engine: Engine,
    cluster: Cluster,
    requests: Requests,
    coefficients: ServingCoefficients,
    temperature: Temperature = 0.0,
) -> ServingTime:
    """Latency and throughput of requests on engines.

    Args:
        model: the transformer.
        engine: copies of the model and their distribution over chips.
        cluster: chips and network.
        requests: load, lengths and kind of serving.
        coefficients: coefficients of the serving software.
        temperature: smoothing of maxima and minima; 0 for exact values [1].
    """
    model, engine, cluster, r, coefficients = as_arrays((model, engine, cluster, requests, coefficients))
    shares = engine_shares(model, engine, cluster)
    ranks = engine.copies * engine.attention_dp
    end = r.input_len + r.output_len
    # Mean context over the life of a request.
    middle = r.input_len + 0.5 * r.output_len
    # Continuous batching: mean length, as pages fill over time; static batch: all at full length together.
    resident = end + r.continuous * (middle - end)
    prefixes = SharedPrefixes(r.input_len * r.prefix_hit, r.prefix_groups)
    held = max_batch(model, engine, cluster, resident, temperature, prefixes)
    # A static batch is as large as stated, whatever schedulers admit to a running one.
    admitted = engine.max_sequences + (1.0 - r.continuous) * NO_LIMIT
    room = held + (1.0 - jnp.clip(held, 0.0, 1.0)) * NO_LIMIT
    room = smooth_min(room, admitted, temperature)
    wanted = _wanted(r, ranks, room, coefficients, temperature)
    batch = smooth_min(wanted, room, temperature)
    # Continuous batching fills every pipeline stage; a static batch occupies one stage at a time.
    stages = 1.0 + r.continuous * (engine.pp - 1.0)
    in_step = batch / stages

    def decoded(n_sequences: Array) -> PassTime:
        return decode_pass(
            model, engine, cluster, coefficients,
            n_sequences=n_sequences, context=middle, tokens_each=1.0 + r.draft_tokens, shares=shares,
            temperature=temperature,
        )  # fmt: skip

    decode, alone = decoded(in_step), decoded(smaller(in_step, 1.0)).total
    found = prefixes.found(
        prefixes.bytes_each(model, engine, temperature), cache_room(model, engine, cluster), batch,
        stored_per_sequence(model, engine, resident, temperature),
    )  # fmt: skip
    fresh = r.input_len * (1.0 - r.prefix_hit * found)
    # A static batch prefills all prompts at once, a running batch each prompt alone.
    prompts = batch + r.continuous * (1.0 - batch)
    prefill = prefill_pass(
        model, engine, cluster, coefficients,
        n_sequences=prompts, input_len=fresh, cached_len=r.input_len - fresh, shares=shares, temperature=temperature,
    )  # fmt: skip
    guessed = tokens_yielded(r)
    # A request of a Poisson stream meets one more than the mean, itself: the others bring the prompts.
    others = in_step * (1.0 - r.is_open * smaller(r.gap_variance / batch, 1.0))
    # b / S_out prompts arrive per step.
    joined = r.continuous * (1.0 - r.disaggregated) * others * guessed / r.output_len
    beside = r.continuous * (1.0 - r.disaggregated) * in_step * larger(1.0 - 1.0 / batch, 0.0)

    def added(n_sequences: Array, n_prompts: Array) -> Array:
        return prompts_in_step(
            model, engine, cluster, coefficients,
            n_sequences=n_sequences, n_prompts=n_prompts, input_len=fresh, cached_len=r.input_len - fresh,
            tokens_each=1.0 + r.draft_tokens, shares=shares, temperature=temperature,
        )  # fmt: skip

    # No graph replays the launches of a pass that takes prompts.
    launched = prefill.floors
    # Of steps with a mean of j prompts, min(j, 1) have any; of Poisson arrivals 1 - exp(-j).
    spread_out = smaller(joined, 1.0)
    any_prompt = spread_out - r.is_open * smaller(r.gap_variance, 1.0) * (jnp.expm1(-joined) + spread_out)
    shared_work = any_prompt * (added(in_step, larger(joined / larger(any_prompt, 1e-9), 1.0)) + launched)
    # Of waiting prompts, a step takes as many as its budget of tokens.
    filling = larger(engine.token_budget / fresh, 1.0)
    in_line = (added(in_step, filling) + launched) / filling
    another = added(beside, jnp.ones_like(beside)) + launched
    # The pass of a prompt beside running sequences is a step with a prompt.
    joins = r.continuous * engine.mixed_passes * smaller(beside, 1.0)
    own = prefill.total + r.continuous * (another - launched + prefill.floors - prefill.total)
    own = own + joins * (decode.total - prefill.floors)
    pace = coefficients.pace
    step = pace * (decode.total + shared_work)
    tpot = step / guessed
    # Share of the step taken by prompts: utilisation of prefill.
    busy = shared_work / (decode.total + shared_work)
    # Keys and values of a prompt travel to the decoding engine.
    moved = (
        r.disaggregated
        * cache_per_sequence(model, engine, r.input_len)
        / jnp.asarray(cluster.network.bandwidth)[..., 1]
    )
    # A step of ranks with shared experts ends when the last rank has finished its prompts.
    met = in_step * (1.0 + coefficients.lockstep * (engine.attention_dp - 1.0))
    # M/D/1: rho / (2 (1 - rho)), bounded near saturation, and by the other requests in flight.
    queue = smaller(0.5 * busy / larger(1.0 - busy, 0.05), larger(met - 1.0, 0.0))
    # Of N requests of a closed loop, the first c come at once.
    is_counted = (1.0 - r.at_limit) * smaller(r.n_requests, 1.0)
    rushed = smaller(is_counted * r.concurrency / larger(r.n_requests, 1.0) + (1.0 - is_counted) / ROUNDS, 1.0)
    is_open = r.is_open
    # A request of an open stream waits for the current step; further arrivals share the next step.
    meanwhile = joined * r.gap_variance + (1.0 - r.gap_variance) * larger(joined - 1.0, 0.0)
    # Half a step on average, if a step runs: probability 1 - exp(-b).
    sharing = meanwhile * in_line - 0.5 * jnp.expm1(-batch) * (step / pace)
    rush = pace * r.continuous * (1.0 - is_open) * in_line * coefficients.queue * met * ROUNDS * rushed
    behind = rush + pace * r.continuous * (is_open * sharing + (1.0 - is_open) * another * queue)
    first = pace * (own + r.continuous * decode.total + moved) + behind + coefficients.first_token
    latency = first + (r.output_len - 1.0) * tpot
    # Little's law: requests per second of one rank.
    # With separate engines for prompts, a request occupies a place from its second token on.
    steady = batch / (latency - r.disaggregated * (first - step))
    queued = larger(wanted - batch, 0.0) + (1.0 - is_open) * r.continuous * coefficients.waiting / engine.attention_dp
    waiting = queued / steady * (1.0 - r.at_limit)
    occupied = ranks * _occupied(r, ranks, temperature)
    total = r.output_len * steady * occupied
    # As the last requests of a run end, steps of the running batch get few sequences.
    last = longest(batch, length_variance(r, coefficients)) - 1.0
    drain = (1.0 - is_open) * smaller(r.n_requests, 1.0) * last * pace * alone * r.output_len / guessed
    finite = 1.0 / (1.0 + drain * total / larger(r.n_requests * r.output_len, 1.0))
    static = wanted / (latency + waiting) * r.output_len * occupied
    throughput = r.continuous * total * finite + (1.0 - r.continuous) * static
    return ServingTime(
        ttft=first + waiting,
        tpot=tpot,
        throughput=throughput,
        n_sequences=batch * occupied,
        max_batch=held * ranks,
        waiting=waiting,
        behind=behind,
        rush=rush,
        rushed=rushed,
        decode=decode,
        alone=alone,
        prefill=prefill,
        in_line=in_line,
        output_len=r.output_len,
        fresh=fresh,
    )


def _wanted(
    r: Requests, ranks: Number, room: Array, coefficients: ServingCoefficients, temperature: Temperature
) -> Array:
    """Sequences of a rank requested by the client, or admitted by the scheduler at maximum load [1]."""
    asked = smooth_max(r.concurrency / ranks, LEAST_BATCH, temperature)
    most = smooth_min(coefficients.batch_limit, room, temperature)
    # Without a number of requests, the engine stays full.
    queued = r.n_requests / ranks + (1.0 - jnp.clip(r.n_requests, 0.0, 1.0)) * most
    return asked + r.at_limit * (smooth_min(most, queued, temperature) - asked)


def _occupied(r: Requests, ranks: Number, temperature: Temperature) -> Array:
    """Share of the ranks that have a request [1]."""
    asked = r.concurrency / ranks
    return r.at_limit + (1.0 - r.at_limit) * asked / smooth_max(asked, LEAST_BATCH, temperature)


BUCKET = 64
"""Number of loads evaluated at a time [1]."""


@array_jit
def _curve(
    model: Transformer, engine: Engine, cluster: Cluster, requests: Requests, coefficients: ServingCoefficients,
    concurrency: Array,
) -> ServingTime:  # fmt: skip
    def one(load: Array) -> ServingTime:
        return serving_time(model, engine, cluster, with_fields(requests, {"concurrency": load}), coefficients)

    return jax.vmap(one)(concurrency)


def load_curve(
    model: Transformer,
    engine: Engine,
    cluster: Cluster,
    requests: Requests,
    coefficients: ServingCoefficients,
    concurrency: Float[np.ndarray, " load"],
) -> ServingTime:
    """Latency and throughput of an engine at several loads, each leaf [load].

    Args:
        model: the transformer.
        engine: copies of the model and their distribution over chips.
        cluster: chips and network.
        requests: lengths and kind of serving.
        coefficients: coefficients of the serving software.
        concurrency: requests in flight over all copies [1], [load].
    """
    arrays = jax.device_put(host_arrays((model, engine, cluster, requests, coefficients)))
    weights, copies, chips, lengths, rates = arrays  # transferred once for all blocks
    loads = np.asarray(concurrency, float)
    return in_blocks_of(BUCKET, lambda block: _curve(weights, copies, chips, lengths, rates, block), loads)
