r"""Fastest times and highest rates of serving that the data sheet of a chip allows, whatever the software.

A step reads the weights that one token uses at least once, and the cache of each sequence,

$$ T_{token} \ge \frac{B_w + B_{cache}}{(g + 1) W} , \; T_{first} \ge \max\left(\frac{B_w}{W}, \frac{F}{p C}\right) $$

with the bandwidth W and the peak C of a chip, g draft tokens, all of which may be right, and p pipeline stages.
"""

import jax.numpy as jnp
from jaxtyping import Array

from jaxscale.base.arrays import as_arrays
from jaxscale.base.smooth import larger, smaller
from jaxscale.hardware.cluster import Cluster
from jaxscale.models.transformer import Transformer, is_dense
from jaxscale.serving.engine import Engine, Requests
from jaxscale.serving.forward_pass import WIDE_BYTES, engine_shares
from jaxscale.serving.kv_cache import cache_per_sequence
from jaxscale.serving.under_load import ANSWERS, KINDS, LOADED, QUANTILES

MORE_ARRIVE = 2.0
"""Standard errors by which the arrivals of a run of N requests may exceed their rate [1]."""


def hardware_limits(model: Transformer, engine: Engine, cluster: Cluster, requests: Requests) -> dict[str, Array]:
    """Shortest times [s], and highest rates [token/s] and [1/s], by column of `ANSWERS` and `LOADED`.

    Args:
        engine: copies of the model and their distribution over chips.
        requests: load, lengths and kind of serving.
    """
    model, engine, cluster, r = as_arrays((model, engine, cluster, requests))
    shares, bandwidth = engine_shares(model, engine, cluster), cluster.chip.hbm_bandwidth
    ranks = engine.copies * engine.attention_dp
    yielded = 1.0 + r.draft_tokens
    routed = (1.0 - is_dense(model.n_experts)) * model.moe_top_k * shares.expert
    weights = (shares.dense + routed) * engine.weight_bytes + shares.head * WIDE_BYTES
    read = weights / bandwidth

    def cached(length: Array) -> Array:
        """Time to read the cache of a sequence [s]."""
        return cache_per_sequence(model, engine, length) / bandwidth

    def computed(tokens: Array, n_ranks: Array) -> Array:
        """Time of the matmuls of tokens on each of the ranks that share experts [s]."""
        return 2.0 * tokens * (shares.dense + n_ranks * routed) * shares.peak / engine.pp

    def fastest(input_len: Array, output_len: Array) -> tuple[Array, Array, Array]:
        """Time to the first token, time per token, time of the request [s]."""
        first = larger(read, computed(input_len * (1.0 - r.prefix_hit), jnp.asarray(1.0)))
        token = (read + cached(input_len)) / yielded
        return first, token, first + (output_len - 1.0) * token

    means = fastest(r.input_len, r.output_len)
    # Of unequal requests a percentile may be that of the shortest: one token of prompt, one of answer.
    is_even = (r.length_variance <= 0.0) & (r.lengths_open <= 0.0)
    shortest = fastest(*(jnp.where(is_even, length, 1.0) for length in (r.input_len, r.output_len)))
    percentiles = {f"{kind}_{name}_s": time for kind, time in zip(KINDS, shortest, strict=True) for name in QUANTILES}
    fresh, later = r.input_len * (1.0 - r.prefix_hit), larger(r.output_len - 1.0, 0.0)
    work = computed(later + (1.0 - r.disaggregated) * fresh, engine.attention_dp)
    reads = later * cached(fresh) / yielded / engine.pp
    in_flight = jnp.where(r.at_limit > 0.0, jnp.inf, larger(r.concurrency, ranks))
    most = smaller(ranks / larger(work, reads), in_flight / means[2])
    # Of N requests at constant gaps, which take N - 1 of them, one is more than the rate.
    part = (r.n_requests > 0.0) / larger(r.n_requests, 1.0)
    spread = MORE_ARRIVE * jnp.sqrt((r.gap_variance + part) * part)
    arriving = jnp.where(r.request_rate > 0.0, r.request_rate * (1.0 + spread), jnp.inf)
    rate = smaller(most, arriving) * r.output_len
    return {**dict(zip(ANSWERS, (*means, rate), strict=True)), LOADED[0]: most, **percentiles}
