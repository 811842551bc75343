r"""Time of the forward passes of an engine: a decode step, and the prefill of prompts.

Through all stages of the pipeline, on each chip of a stage,

$$ T = \left\| \frac{B_w}{\epsilon_w W}, \frac{F}{\epsilon_C C} \right\|_3 + T_{att} + T_{coll} + L o_L + o + n_s o_s $$

with the bytes of the weights that the tokens use and the flops of their matmuls, which overlap in part (a norm of order
3), the time of attention and cache reads, the collectives, and constant times for launches per layer, for the scheduler
and for sampling per sequence. Of E experts, n tokens with k experts each use $E (1 - (1 - k / E)^n)$. Layers follow
Pope et al. 2022 (arXiv 2211.05102); the logarithmic latency of small all-reduces is that of the all-reduce kernels of
serving frameworks (data/serving).

The key/value cache of grouped-query attention has $2 K h$ elements per token and layer, that of latent attention
$r_{kv} + h_{rope}$ (DeepSeek-V2, arXiv 2405.04434, section 2.1.4). Window layers cache at most a window, state-space
layers a constant state.
"""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from jaxscale.base.arrays import Number, as_arrays
from jaxscale.base.smooth import Temperature, larger, p_norm, several, smaller, smooth_max, smooth_min
from jaxscale.hardware.cluster import Cluster
from jaxscale.hardware.formats import wide_shares
from jaxscale.models.transformer import (
    Heads,
    Transformer,
    attention_layers,
    dense_layer_params,
    expert_params,
    head_kinds,
    head_params,
    is_dense,
    is_latent,
    key_value_numbers,
    mean_over_heads,
    mlp_layers,
    moe_layers,
    router_params,
    ssm_layers,
    total_layers,
)
from jaxscale.serving.engine import Engine
from jaxscale.serving.serving_coefficients import ServingCoefficients

STATE_BYTES = 4.0
"""Stored bytes of an element of the state of a state-space layer (Mamba-2, arXiv 2405.21060: 32 bits) [byte]."""


def over_cached_keys(
    model: Transformer, context: ArrayLike, of: Callable[[Heads, ArrayLike], Number], temperature: Temperature = 0.0
) -> Number:
    """Mean over attention layers of a function of the heads and of the number of cached tokens of a sequence."""
    full, windowed = head_kinds(model)
    # Without a window (0) all tokens are held.
    held = smooth_min(model.window + (1.0 - jnp.clip(model.window, 0.0, 1.0)) * context, context, temperature)
    return full.share * of(full, context) + windowed.share * of(windowed, held)


def cached_keys(model: Transformer, context: ArrayLike, temperature: Temperature = 0.0) -> Array:
    """Cached tokens of a sequence, as the mean over attention layers with and without a window [token]."""
    return over_cached_keys(model, context, lambda _, keys: keys, temperature)


def state_bytes(model: Transformer) -> Number:
    """Size of the state of a sequence, over all state-space layers [byte]."""
    return ssm_layers(model) * model.ssm_d_inner * model.ssm_state / model.ssm_groups * STATE_BYTES


def cached_on_rank(model: Transformer, engine: Engine, kind: Heads, temperature: Temperature = 0.0) -> Array:
    """Cached numbers per token and layer on a tensor-parallel rank; latents are in full on every rank [1]."""
    # Beyond K ranks, keys and values are replicated.
    split = key_value_numbers(kind) / smooth_min(engine.tp, kind.n_kv_heads, temperature)
    return split + is_latent(model) * (model.kv_lora_rank + model.rope_head_dim - split)


def cache_per_sequence(model: Transformer, engine: Engine, context: ArrayLike, temperature: Temperature = 0.0) -> Array:
    """Cache of a sequence that a decode step reads on a chip, over all layers of all pipeline stages [byte].

    Args:
        model: the transformer.
        engine: number format and degrees.
        context: tokens of the sequence [token].
        temperature: smoothing of minima; 0 for exact values [1].
    """
    numbers = over_cached_keys(
        model, context, lambda kind, keys: keys * cached_on_rank(model, engine, kind, temperature), temperature
    )
    # State-space heads split over tp.
    return attention_layers(model) * numbers * engine.cache_bytes + state_bytes(model) / engine.tp


def stored_per_sequence(
    model: Transformer, engine: Engine, context: ArrayLike, temperature: Temperature = 0.0
) -> Array:
    """Cache of a sequence in the memory of a chip, over all layers of all pipeline stages [byte].

    A step of sparse latent attention reads only some keys of a complete cache (DeepSeek-V3.2, 2025-09); other windows
    store no more than a step reads.

    Args:
        model: the transformer.
        engine: number format and degrees.
        context: tokens of the sequence [token].
        temperature: smoothing of minima; 0 for exact values [1].
    """
    unread = jnp.subtract(context, cached_keys(model, context, temperature))
    latents = attention_layers(model) * unread * (model.kv_lora_rank + model.rope_head_dim) * engine.cache_bytes
    return cache_per_sequence(model, engine, context, temperature) + is_latent(model) * latents


WIDE_BYTES = 2.0
"""Stored bytes of 16-bit numbers: activations, and weights of router and logits head [byte]."""

ROOFLINE = 3.0
"""Exponent with which reads and flops of matmuls overlap: 1.26 of the longer where both take equally long.

Measured GEMMs take 1.24 of the longer of their asymptotes there, 1.10 and 1.14 a factor of 2 away (NVIDIA
aiconfigurator-core 0.12.0, 2026-04, medians of kernels on A100 to B200) [1].
"""

EXPERT_TILE = 64.0
"""Rows of a tile of the grouped matmuls of experts; the last tile of each expert is half full on average (128 in
DeepGEMM, DeepSeek 2025; 16 to 128 in the fused kernels of vLLM and SGLang) [token]."""

RAMP_PEERS = 8.0
"""Number of chips at which `link_ramp` is stated, the largest at which growth was observed [1]."""

SEND_LATENCY = 1e-5
"""Latency of a send between pipeline stages: a kernel launch on either side and one hop [s]."""


class PassTime(eqx.Module):
    """Time of a forward pass by cause [s].

    Attributes:
        weights: matmuls, by the time to read weights and the time to compute.
        attention: cache reads or flops of the attention core.
        collectives: latency and bandwidth of tensor and expert parallelism, and sends between stages.
        floors: constant times of launches, scheduler and sampler.
        drafts: generation of draft tokens.
    """

    weights: Number
    attention: Number
    collectives: Number
    floors: Number
    drafts: Number

    @property
    def total(self) -> Array:
        """Sum of the terms [s]."""
        return self.weights + self.attention + self.collectives + self.floors + self.drafts


class Shares(eqx.Module):
    """Quantities of a model on one chip of an engine that do not depend on the tokens of a pass.

    Attributes:
        dense: parameters used by every token, on a chip, over all stages [1].
        expert: parameters of one expert of every mixture layer, on a chip [1].
        head: parameters of the logits head on a chip [1].
        layers: layers of the model [1].
        peak: time per flop at the peak of the engine's format [s/flop].
        wide_peak: time per flop at the peak in 16 bits [s/flop].
        latency: latency of the small collectives of a pass, in units of `collective_latency` [1].
        link: time per token of all collectives of a pass at the full bandwidth of the links [s].
        ramp: square root of the time of a token at full bandwidth, summed over collectives with a weight that grows
            with the number of peers [s^0.5].
        sends: latency of the sends between stages [s].
    """

    dense: Number
    expert: Number
    head: Number
    layers: Number
    peak: Number
    wide_peak: Number
    latency: Number
    link: Number
    ramp: Number
    sends: Number


def engine_shares(model: Transformer, engine: Engine, cluster: Cluster) -> Shares:
    """Quantities of a model on one chip of an engine that do not depend on the tokens of a pass."""
    tp, ranks = engine.tp, engine.tp * engine.attention_dp
    mixtures = moe_layers(model)
    # Router and dense layers are used by every token.
    wide = _split(dense_layer_params(model) + mixtures * router_params(model), tp)
    formats = jnp.asarray(engine.formats)
    attention, mlps = attention_layers(model) + ssm_layers(model), mlp_layers(model) - mixtures
    small, large, slow = _collective(tp, cluster)
    small_moe, large_moe, slow_moe = _collective(ranks, cluster)
    per_token = model.d_model * WIDE_BYTES
    # Each remote expert receives a copy of a token, or all ranks' tokens where fewer.
    copies = smaller(engine.attention_dp, larger(model.moe_top_k, 1.0))
    sent = copies * large_moe + _beyond(model, engine, cluster)
    # Dispatch is in the format of the matmuls, combine in 16 bits (DeepEP, DeepSeek 2025).
    narrow = 0.5 + 0.5 * smaller(larger(engine.weight_bytes, 1.0), WIDE_BYTES) / WIDE_BYTES
    link = (attention + mlps) * large + mixtures * sent * narrow
    return Shares(
        dense=wide,
        expert=mixtures * expert_params(model) / ranks,
        head=head_params(model) / tp,
        layers=jnp.asarray(total_layers(model)),
        peak=cluster.chip.seconds_per_flop(formats),
        # Logits and attention are computed in 16 bits.
        wide_peak=cluster.chip.seconds_per_flop(wide_shares(formats)),
        latency=(attention + mlps) * small + mixtures * small_moe,
        # Stages send the residual stream once.
        link=link * per_token + (engine.pp - 1.0) * per_token / jnp.asarray(cluster.network.bandwidth)[..., 0],
        ramp=((attention + mlps) * slow + mixtures * slow_moe) * jnp.sqrt(per_token),
        sends=(engine.pp - 1.0) * SEND_LATENCY,
    )


def _split(params: ArrayLike, tp: ArrayLike) -> Array:
    return jnp.divide(params, tp)


def _collective(n: ArrayLike, cluster: Cluster) -> tuple[Array, Array, Array]:
    """All-reduce among n chips: latency relative to two chips [1], time of a byte [s/byte], and ramp [s^0.5/byte^0.5].

    The latency grows as (1 + log2 n) / 2, and doubles for a group larger than a domain. Links reach full bandwidth with
    large messages only: a message of m bytes takes an additional time proportional to the root of m and growing with
    the peers (all-reduce times of `data/serving.toml`, 64 kB to 16 MB).
    """
    domain = jnp.asarray(cluster.network.domain_size)[..., 0]
    inside, outside = (jnp.asarray(cluster.network.bandwidth)[..., level] for level in (0, 1))
    peers = larger(cluster.network.link_peers, 1.0)
    # Direct links reach a peer each: fewer peers use fewer links.
    used = smaller(larger(jnp.asarray(n) - 1.0, 1.0) / peers, 1.0)
    crosses = several(larger(jnp.divide(n, domain), 1.0))
    # Bytes are reduced within a domain first: each chip sends 1 / domain over the network.
    per_byte = 1.0 / (inside * used) + crosses / (outside * domain)
    # a(n) = alpha (1 + log2 n) / 2
    latency = several(n) * 0.5 * (1.0 + jnp.log2(n)) * (1.0 + crosses)
    ramp = (smaller(n, RAMP_PEERS) - 1.0) / RAMP_PEERS * jnp.sqrt(2.0 * per_byte)
    # An all-reduce moves 2 (n - 1) / n of the bytes.
    return latency, 2.0 * (1.0 - 1.0 / jnp.asarray(n)) * per_byte, ramp


def _beyond(model: Transformer, engine: Engine, cluster: Cluster) -> Array:
    """Additional time of a byte of tokens with experts in remote domains, there and back [s/byte].

    Of N domains, k experts are in $N (1 - (1 - 1/N)^k)$; a token is sent once to each remote domain.
    """
    network = cluster.network
    domain, outside = jnp.asarray(network.domain_size)[..., 0], jnp.asarray(network.bandwidth)[..., 1]
    n = larger(engine.tp * engine.attention_dp / domain, 1.0)
    # N (1 - (1 - 1 / N)^k) by logarithms, exact for many domains.
    reached = smaller(-n * jnp.expm1(model.moe_top_k * jnp.log1p(-1.0 / (n + 1e-6))), engine.expert_nodes)
    # Dispatch and combine.
    return 2.0 * several(n) * reached * (1.0 - 1.0 / n) / outside * several(engine.attention_dp)


def experts_touched(model: Transformer, n_tokens: ArrayLike) -> Array:
    """Number of experts of a layer used by at least one of n tokens, E (1 - (1 - k/E)^n) [1]."""
    # Dense models have k = E: log(0).
    spared = jnp.log1p(-smaller(model.moe_top_k / model.n_experts, 1.0 - 1e-6))
    return -model.n_experts * jnp.expm1(n_tokens * spared)


def weight_times(
    model: Transformer,
    engine: Engine,
    cluster: Cluster,
    shares: Shares,
    coefficients: ServingCoefficients,
    *,
    n_tokens: ArrayLike,
    n_logits: ArrayLike,
    efficiency: ArrayLike,
) -> tuple[Array, Array]:
    """Time to read the used weights, and time of the matmuls with the weights, on a chip.

    Args:
        model: the transformer.
        engine: distribution over chips.
        cluster: chips and network.
        shares: quantities of the model on a chip.
        coefficients: coefficients of the serving software.
        n_tokens: tokens of the pass on each attention rank [token].
        n_logits: tokens whose logits are needed [token].
        efficiency: share of the peak attained by the matmuls [1].

    Returns:
        Time of the reads, and time of the flops [s].
    """
    # Experts serve the tokens of all ranks.
    everywhere = n_tokens * engine.attention_dp
    touched = experts_touched(model, everywhere)
    is_mixture = 1.0 - is_dense(model.n_experts)
    bandwidth = coefficients.weight_bandwidth * cluster.chip.hbm_bandwidth
    experts = is_mixture * touched * shares.expert / coefficients.expert_bandwidth
    # The logits head stays in 16 bits.
    read = (shares.dense + experts) * engine.weight_bytes + shares.head * WIDE_BYTES
    # Half a tile per touched expert is padding.
    rows = everywhere * model.moe_top_k + touched * 0.5 * EXPERT_TILE
    routed = is_mixture * rows * shares.expert / coefficients.expert_bandwidth
    # Matmuls attain a smaller share of the higher peak in narrower formats.
    peak = shares.peak * coefficients.narrow_matmul ** -jnp.log2(shares.wide_peak / shares.peak)
    computed = (n_tokens * shares.dense + routed) * peak + n_logits * shares.head * shares.wide_peak
    # A multiply-add is 2 flop.
    return read / bandwidth, 2.0 * computed / efficiency


def _overlapped(one: Array, other: Array) -> Array:
    """Time of two kinds of work beside each other, such as reads of weights and matmuls, (R^3 + C^3)^(1/3) [s]."""
    return p_norm(jnp.stack([one, other]), ROOFLINE)


def _floors(shares: Shares, coefficients: ServingCoefficients, n_sequences: ArrayLike) -> Array:
    launches = shares.layers * coefficients.layer_floor + coefficients.step_floor
    return launches + n_sequences * coefficients.sequence_floor


def _collectives(
    engine: Engine, shares: Shares, coefficients: ServingCoefficients, n_tokens: ArrayLike, work: Array
) -> Array:
    """Collectives of a pass not hidden behind its work [s]."""
    latency = shares.latency * coefficients.collective_latency + shares.sends
    ramp = shares.ramp * jnp.sqrt(n_tokens * coefficients.link_ramp)
    large = ramp + n_tokens * shares.link / coefficients.link
    # Bandwidth hides behind work, latency does not.
    return latency + large - engine.overlap * smaller(large, work)


def decode_pass(
    model: Transformer,
    engine: Engine,
    cluster: Cluster,
    coefficients: ServingCoefficients,
    *,
    n_sequences: ArrayLike,
    context: ArrayLike,
    tokens_each: ArrayLike = 1.0,
    shares: Shares | None = None,
    temperature: Temperature = 0.0,
) -> PassTime:
    """Time of a decode step, in which every sequence of an attention rank gets a token.

    Args:
        model: the transformer.
        engine: distribution over chips.
        cluster: chips and network.
        coefficients: coefficients of the serving software.
        n_sequences: sequences on each attention rank [1].
        context: tokens of a sequence, prompt included [token].
        tokens_each: tokens of each sequence in the step, more than one with draft tokens [token].
        shares: quantities of the model on a chip, if already computed.
        temperature: smoothing of maxima; 0 for exact values [1].

    Returns:
        The step by cause [s].
    """
    model, engine, cluster, coefficients = as_arrays((model, engine, cluster, coefficients))
    shares = shares or engine_shares(model, engine, cluster)
    tokens = jnp.multiply(n_sequences, tokens_each)
    read, computed = weight_times(
        model, engine, cluster, shares, coefficients,
        n_tokens=tokens, n_logits=tokens, efficiency=coefficients.matmul,
    )  # fmt: skip
    cache = n_sequences * cache_per_sequence(model, engine, context, temperature)
    fetched = cache / (coefficients.cache_bandwidth * cluster.chip.hbm_bandwidth)
    # Absorbed latent attention multiplies by the cached latent vectors (arXiv 2405.04434, section 2.1.2).
    # Scores and values over the latent width, scores over the rotary width.
    latent = 2.0 * model.kv_lora_rank + model.rope_head_dim

    def scored(kind: Heads, keys: ArrayLike) -> Array:
        width = kind.head_dim + kind.v_head_dim
        return keys * kind.n_heads * (width + is_latent(model) * (latent - width))

    each = over_cached_keys(model, context, scored, temperature)
    flops = 2.0 * tokens * attention_layers(model) * each / engine.tp
    scores = flops * shares.wide_peak / coefficients.matmul
    weights, attention = _overlapped(read, computed), smooth_max(fetched, scores, temperature)
    collectives = _collectives(engine, shares, coefficients, tokens, weights + attention)
    # A draft token takes a layer and the logits head (EAGLE, arXiv 2401.15077; DeepSeek-V3, arXiv 2412.19437).
    layer = (weights + attention + collectives) / shares.layers + coefficients.layer_floor
    head = shares.head * WIDE_BYTES / (coefficients.weight_bandwidth * cluster.chip.hbm_bandwidth)
    return PassTime(
        weights=weights,
        attention=attention,
        collectives=collectives,
        floors=_floors(shares, coefficients, n_sequences),
        drafts=(tokens_each - 1.0) * (layer + head),
    )


def prefill_pass(
    model: Transformer,
    engine: Engine,
    cluster: Cluster,
    coefficients: ServingCoefficients,
    *,
    n_sequences: ArrayLike,
    input_len: ArrayLike,
    cached_len: ArrayLike = 0.0,
    shares: Shares | None = None,
    temperature: Temperature = 0.0,
) -> PassTime:
    """Time of the prefill of prompts in a single pass.

    Args:
        model: the transformer.
        engine: distribution over chips.
        cluster: chips and network.
        coefficients: coefficients of the serving software.
        n_sequences: prompts on each attention rank [1].
        input_len: uncached tokens of a prompt [token].
        cached_len: preceding tokens of a prompt with cached keys and values [token].
        shares: quantities of the model on a chip, if already computed.
        temperature: smoothing of maxima; 0 for exact values [1].

    Returns:
        The pass by cause [s].
    """
    model, engine, cluster, coefficients = as_arrays((model, engine, cluster, coefficients))
    shares = shares or engine_shares(model, engine, cluster)
    tokens = jnp.multiply(n_sequences, input_len)
    read, computed = weight_times(
        model, engine, cluster, shares, coefficients,
        n_tokens=tokens, n_logits=n_sequences, efficiency=coefficients.prefill_matmul,
    )  # fmt: skip
    # Keys per token: w - w^2 / (2 S) for a window of w tokens, S / 2 for full causal attention.
    held = cached_keys(model, input_len, temperature)
    keys = held * (1.0 - 0.5 * held / input_len) + cached_len
    widths = mean_over_heads(model, lambda kind: kind.n_heads * (kind.head_dim + kind.v_head_dim))
    flops = 2.0 * tokens * keys * attention_layers(model) * widths / engine.tp
    weights, attention = _overlapped(read, computed), flops * shares.wide_peak / coefficients.prefill_attention
    collectives = _collectives(engine, shares, coefficients, tokens, weights + attention)
    # Launches run ahead of the kernels of long prompts; the floor per sequence is of decode steps.
    work, launches = weights + attention + collectives, shares.layers * coefficients.layer_floor
    return PassTime(
        weights=weights,
        attention=attention,
        collectives=collectives,
        floors=coefficients.step_floor + _overlapped(work, launches) - work,
        drafts=jnp.zeros_like(weights),
    )


def prompts_in_step(
    model: Transformer,
    engine: Engine,
    cluster: Cluster,
    coefficients: ServingCoefficients,
    *,
    n_sequences: ArrayLike,
    n_prompts: ArrayLike,
    input_len: ArrayLike,
    cached_len: ArrayLike = 0.0,
    tokens_each: ArrayLike = 1.0,
    shares: Shares | None = None,
    temperature: Temperature = 0.0,
) -> Array:
    r"""Time that prompts add to a decode step [s].

    With `mixed_passes`, a pass of the running sequences and of the prompts reads the weights once,

    $$ \Delta T_w = \| R(n_d + n_p), C_d + C_p \|_3 - \| R(n_d), C_d \|_3 , $$

    with the reads R and the matmuls C of the tokens $n_d$ of running sequences and $n_p$ of prompts. Otherwise, and
    without running sequences, prompts have a pass of their own.

    Args:
        model: the transformer.
        engine: distribution over chips.
        cluster: chips and network.
        coefficients: coefficients of the serving software.
        n_sequences: running sequences on each attention rank [1].
        n_prompts: prompts on each attention rank [1].
        input_len: uncached tokens of a prompt [token].
        cached_len: preceding tokens of a prompt with cached keys and values [token].
        tokens_each: tokens of each running sequence in the step, more than one with draft tokens [token].
        shares: quantities of the model on a chip, if already computed.
        temperature: smoothing of maxima; 0 for exact values [1].

    Returns:
        Added time without launches [s].
    """
    model, engine, cluster, coefficients = as_arrays((model, engine, cluster, coefficients))
    shares = shares or engine_shares(model, engine, cluster)
    # The share of steps in which a sequence runs.
    joined = engine.mixed_passes * smaller(n_sequences, 1.0)
    alone = prefill_pass(
        model, engine, cluster, coefficients,
        n_sequences=n_prompts, input_len=input_len, cached_len=cached_len, shares=shares, temperature=temperature,
    )  # fmt: skip
    # The root of the ramp of links has no finite slope at no token.
    running = larger(jnp.multiply(n_sequences, tokens_each), 1e-6)
    tokens, logits = running + jnp.multiply(n_prompts, input_len), running + n_prompts

    def times(tokens: Array, logits: Array, efficiency: Array) -> tuple[Array, Array]:
        return weight_times(
            model, engine, cluster, shares, coefficients, n_tokens=tokens, n_logits=logits, efficiency=efficiency
        )

    step_read, step_computed = times(running, running, coefficients.matmul)
    read, together = times(tokens, logits, coefficients.prefill_matmul)
    further = together - times(running, running, coefficients.prefill_matmul)[1]
    step = _overlapped(step_read, step_computed)
    whole = _overlapped(read, step_computed + further)
    sent = _collectives(engine, shares, coefficients, tokens, whole + alone.attention)
    added = whole - step + sent - _collectives(engine, shares, coefficients, running, step)
    apart = alone.weights + alone.collectives
    return alone.attention + apart + joined * (added - apart)
