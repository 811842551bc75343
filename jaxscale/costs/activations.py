r"""Activations: what a layer keeps for its backward pass, what stands beside that while it is reversed, how many wait.

Counts of the operations of a decoder layer: every input of a norm, of a matmul with trained weights, of the attention
core, of a gate and of a product is kept, as wide as the program holds it.
References: Korthikanti et al. 2022, arXiv 2205.05198, equations 1 to 6; Narayanan et al. 2021, arXiv 2104.04473,
section 2.2 (microbatches in flight); layers of Llama in transformers (modeling_llama.py, 2024), Megatron-Core
(tensor_parallel/layers.py, fused_bias_swiglu.py, 2025) and nanotron (models/llama.py, 2025).
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from jaxscale.base.smooth import Temperature, larger, several, smaller, smooth_max, smooth_min
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.models.transformer import (
    attention_layers,
    copies_width,
    indicator,
    mean_over_heads,
    mlp_layers,
    mlp_width,
    moe_layers,
    routed_width,
    scores_per_token,
    ssm_layers,
    total_layers,
    widest_matrix,
)
from jaxscale.plans.local import LocalPlan
from jaxscale.plans.plan import Plan

UNFUSED_NORM_BYTES = 4.0
"""Further stored bytes per residual element of a norm that runs operation by operation: a 32-bit copy of its input in
place of the 16-bit one, and the normalised tensor before its gain (count of PyTorch's operations) [byte]."""

MASK_BYTES = 1.0
"""Stored bytes per element of a dropout mask (Korthikanti et al., section 4.1) [byte]."""

SUM_BYTES = 4.0
"""Of the logarithm of a softmax's sum that fused attention keeps per token and head (Dao 2023, arXiv 2307.08691)
[byte]."""

ROUTER_BYTES = 8.0
"""Of a router per token and expert: scores in 32 bits and the map of tokens (Megatron-Core transformer/moe, 2025)
[byte]."""

CHOICE_BYTES = 16.0
"""Of a router per token and chosen expert: weights, places and their order (the same) [byte]."""

WIDE_BYTES = 4.0
"""Of a number in 32 bits [byte]."""


class LayerBytes(NamedTuple):
    """What the average layer keeps of a microbatch, nothing recomputed.

    Attributes:
        attention: norms, residual stream and attention, or a scan [byte].
        mlp: gate, input and product of the MLP, or of its experts [byte].
    """

    attention: Array
    mlp: Array

    @property
    def total(self) -> Array:
        """Both [byte]."""
        return self.attention + self.mlp


def stream_bytes(local: LocalPlan) -> Array:
    """Of an element of the residual stream: as of an activation, 4 where autocasts keep it in 32 bits [byte]."""
    return local.element_bytes + local.plan.autocast * larger(WIDE_BYTES - local.element_bytes, 0.0)


def unfused_norm_bytes(plan: Plan) -> Array:
    """Further stored bytes per residual element of a norm; XLA computes it in one kernel, but keeps 32 bits [byte]."""
    return UNFUSED_NORM_BYTES * larger(1.0 - plan.fused_norm, remakes(plan))


def remakes(plan: Plan) -> Array:
    """Switch: 1 where a compiler chooses what it keeps and what it computes again, as XLA does [1]."""
    return jnp.asarray(plan.compiled * (1.0 - plan.kept_gate))


def checkpoint_bytes(local: LocalPlan) -> Array:
    """What a layer keeps that is recomputed whole: its input [byte]."""
    return stream_bytes(local) * local.tokens * local.model.d_model / local.sequence_split


def layer_bytes(local: LocalPlan, coefficients: Coefficients) -> LayerBytes:
    r"""Stored activations of one layer and microbatch, nothing recomputed.

    $t [(2 s + 2 r) d / q + (2 (H + K) (h + h_v) + 4 H + (2 + 4 g + r) f) / tp]$ bytes with fused attention, s of the
    stream, r of what matmuls read, q = tp with sequence parallelism. Under autocasts each matmul keeps its own copy of
    its input. Materialised scores take $4 S H$, and $S H$ for their dropout mask; for f = 4 d and with dropout this is
    the classic `s b h (10 + 24/t + 5 a s/(h t))` (Korthikanti et al. 2022, equations 1 to 4). Inputs of matmuls are
    kept for weights that are trained. A fused gate keeps 2 f less, a compiler also the product. Ranks that split an
    expert each keep whole the tokens that it takes in.

    Args:
        local: size of a microbatch, degrees, what its software keeps.
        coefficients: `activation_factor`.

    Returns:
        Bytes of the average layer.
    """
    model, plan = local.model, local.plan
    element, kept = local.element_bytes, _adapted_inputs(local)
    # Selective recomputation drops the scores as fused attention does.
    stored = (1.0 - plan.flash_attention * 1.0) * (1.0 - plan.recompute_selective)
    queries = mean_over_heads(model, lambda kind: kind.n_heads * (kind.head_dim + kind.v_head_dim))
    outputs = mean_over_heads(model, lambda kind: kind.n_heads * kind.v_head_dim)
    heads = element * (queries + plan.tp * local.key_value_width) + plan.copied_attention * element * outputs
    # The output of attention is kept as attention's own; adapters read a copy of another width.
    adapters = kept.output * outputs
    sums = SUM_BYTES * mean_over_heads(model, lambda kind: kind.n_heads) * plan.flash_attention
    heads = heads + adapters + sums
    # Compilers keep what softmax puts out in 32 bits, and its narrow copy.
    probabilities = 2.0 * element + remakes(plan) * larger(WIDE_BYTES - element, 0.0)
    scores = (probabilities + MASK_BYTES * plan.dropout) * stored * scores_per_token(model)
    latents = 2.0 * element * (model.q_lora_rank + model.kv_lora_rank) * plan.tp / local.sequence_split
    attention = (heads + scores + latents) * attention_layers(model)
    ssm = 3.0 * element * ssm_layers(model) * model.ssm_d_inner
    split = 1.0 / (total_layers(model) * plan.tp)
    blocks = 0.5 * (attention_layers(model) + mlp_layers(model) + ssm_layers(model)) / total_layers(model)
    # Queries, keys and values read one tensor, gate and input another: under autocasts each its own copy.
    inputs = 2.0 + plan.autocast * (2.0 + model.gated_mlp)
    norms = 2.0 * (stream_bytes(local) + unfused_norm_bytes(plan) + MASK_BYTES * plan.dropout)
    read = inputs * model.trainable_share * local.matmul_bytes + kept.stream
    residual = (norms + read) * model.d_model * blocks / local.sequence_split
    scale = coefficients.activation_factor * local.tokens
    return LayerBytes(scale * (residual + (attention + ssm) * split), scale * _mlp_bytes(local, kept) * split)


class AdaptedInputs(NamedTuple):
    """What adapters keep of the inputs of their matmuls, per element of the input.

    Attributes:
        stream: of the two normalised tensors, which several matmuls read, in all [byte].
        output: of the output of attention [byte].
        product: of what the last matrix of the MLP reads [byte].
        expert: of a token that an expert takes in [byte].
    """

    stream: Array
    output: Array
    product: Array
    expert: Array


def _adapted_inputs(local: LocalPlan) -> AdaptedInputs:
    """Inputs that adapters keep; of frozen weights whose adapters are not stated, each input once.

    Adapters that work in more bits than the stream each cast a copy of their input, with dropout they keep what it
    leaves of that, and its mask; others share one.
    """
    plan, frozen = local.plan, 1.0 - local.model.trainable_share
    stated = indicator(plan.lora_rank)
    q, k, v, o, gate, up, down = jnp.moveaxis(jnp.asarray(plan.lora_targets), -1, 0)
    gate = gate * local.model.gated_mlp
    of_one = plan.adapter_bytes + stated * plan.dropout * (plan.adapter_bytes + MASK_BYTES)
    casts = smaller(larger(plan.adapter_bytes - local.element_bytes, 0.0), 1.0)

    def copies(*targets: Array) -> Array:
        adapters = sum(targets[1:], start=targets[0])
        shared = smaller(adapters, 1.0)
        number = shared + casts * (adapters - shared)
        return frozen * of_one * (1.0 + stated * (number - 1.0))

    return AdaptedInputs(copies(q, k, v) + copies(gate, up), copies(o), copies(down), copies(gate, up))


def _mlp_bytes(local: LocalPlan, kept: AdaptedInputs) -> Array:
    """Kept by the MLPs of all layers per token, as if on one rank [byte]."""
    model, plan, element = local.model, local.plan, local.element_bytes
    trained = model.trainable_share * local.matmul_bytes
    # Tokens are copied for their experts, and the copies kept for the gradients of those.
    inner = mlp_width(model) + routed_width(model) * local.expert_load
    # A compiled step weights what comes back of them apart, and keeps that, too.
    copies = (local.expert_tensor_degree + remakes(plan)) * copies_width(model) * local.expert_load
    router = (ROUTER_BYTES * model.n_experts + CHOICE_BYTES * model.moe_top_k) * moe_layers(model)
    router = router * plan.tp / local.sequence_split
    product = (trained + kept.product) * (1.0 - remakes(plan) * model.gated_mlp)
    gate = model.gated_mlp * (2.0 - larger(plan.fused_glu * 1.0, remakes(plan)))
    inside = element + plan.narrow_gate * (local.matmul_bytes - element)
    return inside * (1.0 + gate) * inner + product * inner + (trained + kept.expert) * copies + router


def reversing_bytes(local: LocalPlan, layer: LayerBytes, temperature: Temperature = 0.0) -> Array:
    """What stands beside the kept activations while a layer is reversed, at the worse of two moments.

    At the gate: the gradient of the product, and that of the last matrix. At its inputs, when what the MLP kept is
    gone: gradients of gate and input, of the stream, and of all matrices of the MLP. Where the stream is split over tp,
    what a matmul reads is gathered again for it, and its gradient and the sum that its output adds to stand whole.

    Args:
        local: size of a microbatch, widths.
        layer: what the layer keeps.
        temperature: smoothing of the maximum [1].

    Returns:
        Bytes beyond what the layer keeps.
    """
    model, plan, element = local.model, local.plan, local.element_bytes
    width = (mlp_width(model) + routed_width(model) * local.expert_load) / (total_layers(model) * plan.tp)
    matrix = model.trainable_share * element * model.d_model * widest_matrix(model) / plan.tp
    gate = element * model.gated_mlp * width * local.tokens + matrix
    stream = 2.0 * element * model.d_model * local.tokens / local.sequence_split
    inputs = element * (1.0 + model.gated_mlp) * width * local.tokens + stream + (2.0 + model.gated_mlp) * matrix
    return smooth_max(gate + layer.mlp, inputs, temperature) - layer.mlp + 3.0 * gathered_stream_bytes(local)


def gathered_stream_bytes(local: LocalPlan) -> Array:
    """One tensor as wide as the stream that a tensor-parallel group gathers, beyond a rank's own part of it [byte]."""
    others = 1.0 - 1.0 / local.sequence_split
    return local.element_bytes * local.tokens * local.model.d_model * others


def queued_activation_bytes(
    local: LocalPlan,
    coefficients: Coefficients,
    in_flight: ArrayLike,
    lead: ArrayLike,
    temperature: Temperature = 0.0,
) -> Array:
    r"""Buffers of tensor-parallel collectives whose work is still queued, whole on every rank.

    $t d b_q (1 - \min(1, 2 / n)(1 - a))$, 0 where tp = 1, $b_q$ `queued_bytes`. Buffers outlive their use while hosts
    launch without waiting, as streams may still read them: where n microbatches in flight let chips wait for each
    other, and where hosts lead slower chips by a share a of their queue. Queues are finite, and so is the growth.

    Args:
        local: size of a microbatch, tp.
        coefficients: `queued_bytes`.
        in_flight: microbatches in flight, at least one [1].
        lead: a, of hosts over their chips as a share of the longest possible one, see `host_lead` [1].
        temperature: smoothing [1].

    Returns:
        Bytes [byte].
    """
    # Ultra-Scale's runs of 3B at tp 8 and 16 hold 8, 72, 94 and 99 byte per element with 2, 4, 8 and 16 microbatches in
    # flight; with 1 or 2 and tp up to 8, 80 more where chips take twice as long as hosts, whatever the layers.
    waiting = smooth_max(1.0 - 2.0 / jnp.asarray(in_flight), 0.0, temperature)
    queued = several(local.plan.tp, temperature) * (1.0 - (1.0 - waiting) * (1.0 - jnp.asarray(lead)))
    return coefficients.queued_bytes * queued * local.tokens * local.model.d_model


def all_with_gpipe(one_f_one_b: ArrayLike, plan: Plan) -> Array:
    """Microbatches held: as many as 1F1B holds, or all of them with GPipe, which turns round once at the end [1]."""
    return one_f_one_b + plan.gpipe * (plan.n_microbatches - jnp.asarray(one_f_one_b))


def microbatches_in_flight(plan: Plan, stages_before: ArrayLike, temperature: Temperature = 0.0) -> Array:
    r"""Microbatches whose activations a stage holds at once, per layer it owns.

    1F1B: $\min(m, p - s)$ with s stages before; interleaved: $2 (p - 1 - s) + (v - 1) p + 1$ chunks, of which a
    microbatch has v, at most m; DualPipe, at either end and between: p + 1 (DeepSeek-AI 2024, arXiv 2412.19437,
    table 2); GPipe: m.

    Args:
        plan: m, p, v, schedule.
        stages_before: s [1].
        temperature: smoothing [1].

    Returns:
        Microbatches [1].
    """
    later = plan.pp - 1.0 - jnp.asarray(stages_before)
    plain = 1.0 + later
    chunked = plan.pp + (1.0 + 2.0 * later - plan.pp) / plan.vpp
    turned = plain + several(plan.vpp, temperature) * (chunked - plain)
    turned = turned + plan.dual_pipe * (plan.pp + 1.0 - turned)
    return all_with_gpipe(smooth_min(plan.n_microbatches, turned, temperature), plan)
