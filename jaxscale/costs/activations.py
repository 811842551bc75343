"""Activation memory: stored activations of a layer, extra memory of the backward pass, microbatches in flight.

A layer stores every input of a norm, of a matmul with trained weights, of the attention core, of a gate and of a
product, in the width of the operation (counted for a decoder layer).
References: Korthikanti et al. 2022, arXiv 2205.05198, equations 1 to 6; Narayanan et al. 2021, arXiv 2104.04473,
section 2.2 (microbatches in flight); layers of Llama in transformers (modeling_llama.py, 2024), Megatron-Core
(tensor_parallel/layers.py, fused_bias_swiglu.py, 2025) and nanotron (models/llama.py, 2025).
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from jaxscale.base.arrays import total_of
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
"""Further stored bytes per residual element of a norm that runs operation by operation: a 32-bit instead of a 16-bit
copy of the input, and the normalised tensor before the gain (count of PyTorch's operations) [byte]."""

MASK_BYTES = 1.0
"""Stored bytes per element of a dropout mask (Korthikanti et al., section 4.1) [byte]."""

SUM_BYTES = 4.0
"""Stored bytes per token and head of fused attention: logarithm of the softmax sum (Dao 2023, arXiv 2307.08691)
[byte]."""

ROUTER_BYTES = 8.0
"""Stored bytes of a router per token and expert: scores in 32 bits and token map (Megatron-Core transformer/moe, 2025)
[byte]."""

CHOICE_BYTES = 16.0
"""Stored bytes of a router per token and chosen expert: weights, positions and order (Megatron-Core transformer/moe,
2025) [byte]."""

WIDE_BYTES = 4.0
"""Bytes of a number in 32 bits [byte]."""


class LayerBytes(NamedTuple):
    """Stored activations of the average layer for a microbatch, without recomputation.

    Attributes:
        attention: norms, residual stream and attention, or a scan [byte].
        mlp: gate, input and product of the MLP, or of its experts [byte].
    """

    attention: Array
    mlp: Array

    @property
    def total(self) -> Array:
        """Stored activations of attention and MLP [byte]."""
        return self.attention + self.mlp


def stream_bytes(local: LocalPlan) -> Array:
    """Bytes per element of the residual stream: the width of an activation, or 4 if autocast keeps 32 bits [byte]."""
    return local.element_bytes + local.plan.autocast * larger(WIDE_BYTES - local.element_bytes, 0.0)


def unfused_norm_bytes(local: LocalPlan) -> Array:
    """Extra stored bytes per residual element of a norm that is unfused, or compiled by XLA with 32-bit inputs [byte].

    The gradient of the gain reads the normalised tensor, half of these bytes; a frozen gain has no gradient.
    """
    read = 0.5 * (1.0 + local.model.trainable_share)
    return UNFUSED_NORM_BYTES * read * larger(1.0 - local.plan.fused_norm, remakes(local.plan))


def remakes(plan: Plan) -> Array:
    """Indicator of rematerialisation by XLA, which chooses between storing and recomputing each tensor: 1 or 0 [1]."""
    return jnp.asarray(plan.compiled * (1.0 - plan.kept_gate))


def checkpoint_bytes(local: LocalPlan) -> Array:
    """Stored activations of a layer under full recomputation: the input of the layer [byte]."""
    return stream_bytes(local) * local.tokens * local.model.d_model / local.sequence_split


def layer_bytes(local: LocalPlan, coefficients: Coefficients) -> LayerBytes:
    """Stored activations of the average layer for a microbatch, without recomputation [byte].

    $t [(2 s + 2 r) d / q + (2 (H + K) (h + h_v) + 4 H + (2 + 4 g + r) f) / tp]$ bytes with fused attention: s bytes of
    an element of the residual stream, r bytes of an element that a matmul reads, q = tp with sequence parallelism.
    Under autocast each matmul stores a copy of the input. Materialised scores take $4 S H$, and $S H$ for the dropout
    mask; for f = 4 d and with dropout the sum is the classic `s b h (10 + 24/t + 5 a s/(h t))` (Korthikanti et al.
    2022, equations 1 to 4). Only matmuls with trained weights store inputs. A fused gate stores 2 f less; a compiler
    does not store the product either. Each rank of a split expert stores all input tokens of the expert.

    Args:
        local: size of a microbatch, degrees, switches of the software.
        coefficients: `activation_factor`.

    Returns:
        Stored activations of the average layer [byte].
    """
    model, plan = local.model, local.plan
    element, kept = local.element_bytes, _adapted_inputs(local)
    # Selective recomputation drops the scores as fused attention does.
    stored = (1.0 - plan.flash_attention * 1.0) * (1.0 - plan.recompute_selective)
    # H (h + h_v)
    queries = mean_over_heads(model, lambda kind: kind.n_heads * (kind.head_dim + kind.v_head_dim))
    # H h_v
    outputs = mean_over_heads(model, lambda kind: kind.n_heads * kind.v_head_dim)
    heads = element * (queries + plan.tp * local.key_value_width) + plan.copied_attention * element * outputs
    # Attention stores the attention output; adapters store a copy in the width of the adapters.
    adapters = kept.output * outputs
    sums = SUM_BYTES * mean_over_heads(model, lambda kind: kind.n_heads) * plan.flash_attention
    heads = heads + adapters + sums
    # Compilers store the output of softmax in 32 bits, and a narrow copy.
    probabilities = 2.0 * element + remakes(plan) * larger(WIDE_BYTES - element, 0.0)
    scores = (probabilities + MASK_BYTES * plan.dropout) * stored * scores_per_token(model)
    # Latents follow the split of the sequence: the division by tp below is undone.
    latents = 2.0 * element * (model.q_lora_rank + model.kv_lora_rank) * plan.tp / local.sequence_split
    attention = (heads + scores + latents) * attention_layers(model)
    ssm = 3.0 * element * ssm_layers(model) * model.ssm_d_inner
    split = 1.0 / (total_layers(model) * plan.tp)
    # Half a block for each attention, MLP or scan of a layer.
    blocks = 0.5 * (attention_layers(model) + mlp_layers(model) + ssm_layers(model)) / total_layers(model)
    # Queries, keys and values read one tensor, gate and input a second one: with autocast, a copy for each matmul.
    inputs = 2.0 + plan.autocast * (2.0 + model.gated_mlp)
    norms = 2.0 * (stream_bytes(local) + unfused_norm_bytes(local) + MASK_BYTES * plan.dropout)
    read = inputs * model.trainable_share * local.matmul_bytes + kept.stream
    residual = (norms + read) * model.d_model * blocks / local.sequence_split
    scale = coefficients.activation_factor * local.tokens
    return LayerBytes(scale * (residual + (attention + ssm) * split), scale * _mlp_bytes(local, kept) * split)


class AdaptedInputs(NamedTuple):
    """Stored bytes per input element of the matmuls of adapters.

    Attributes:
        stream: of the two normalised tensors together, each read by several matmuls [byte].
        output: of the attention output [byte].
        product: of the input of the last matrix of the MLP [byte].
        expert: of an input token of an expert [byte].
    """

    stream: Array
    output: Array
    product: Array
    expert: Array


def _adapted_inputs(local: LocalPlan) -> AdaptedInputs:
    """Stored inputs of adapters; for frozen weights with adapters of unstated rank, each input of a target once.

    Adapters that work in more bits than the residual stream each store a cast copy of the input; adapters of at most
    the width of the stream share one copy. Dropout adds the result of dropout and the mask.
    """
    plan, frozen = local.plan, 1.0 - local.model.trainable_share
    stated = indicator(plan.lora_rank)
    q, k, v, o, gate, up, down = jnp.moveaxis(jnp.asarray(plan.lora_targets), -1, 0)
    gate = gate * local.model.gated_mlp
    # The input; with stated adapters, the result of dropout and the mask too.
    of_one = plan.adapter_bytes + stated * plan.dropout * (plan.adapter_bytes + MASK_BYTES)
    casts = smaller(larger(plan.adapter_bytes - local.element_bytes, 0.0), 1.0)

    def copies(*targets: Array) -> Array:
        adapters = total_of(targets)
        shared = smaller(adapters, 1.0)
        return frozen * of_one * (shared + stated * casts * (adapters - shared))

    return AdaptedInputs(copies(q, k, v) + copies(gate, up), copies(o), copies(down), copies(gate, up))


def _mlp_bytes(local: LocalPlan, kept: AdaptedInputs) -> Array:
    """Stored activations of the MLPs of all layers per token, as if on one rank [byte]."""
    model, plan, element = local.model, local.plan, local.element_bytes
    trained = model.trainable_share * local.matmul_bytes
    # Tokens are copied for each chosen expert; the gradients of the expert weights need the copies.
    inner = mlp_width(model) + routed_width(model) * local.expert_load
    # A compiled step weights the expert outputs in a separate operation and stores the outputs too.
    copies = (local.expert_tensor_degree + remakes(plan)) * copies_width(model) * local.expert_load
    router = (ROUTER_BYTES * model.n_experts + CHOICE_BYTES * model.moe_top_k) * moe_layers(model)
    # Routers follow the split of the sequence: the division by tp is undone.
    router = router * plan.tp / local.sequence_split
    product = (trained + kept.product) * (1.0 - remakes(plan) * model.gated_mlp)
    gate = model.gated_mlp * (2.0 - larger(plan.fused_glu * 1.0, remakes(plan)))
    inside = element + plan.narrow_gate * (local.matmul_bytes - element)
    return inside * (1.0 + gate) * inner + product * inner + (trained + kept.expert) * copies + router


def reversing_bytes(local: LocalPlan, layer: LayerBytes, temperature: Temperature = 0.0) -> Array:
    """Memory of the backward pass of a layer beyond the stored activations [byte]: the larger of two moments.

    In the backward pass of the gate: gradients of the product and of the last matrix. At the inputs of the layer, after
    the stored activations of the MLP are freed: gradients of gate and input, of the residual stream, and of all
    matrices of the MLP. If the stream is split over tp, three gathered tensors are added: the input of a matmul, the
    gradient of the input, and the sum to which the matmul adds the output.

    Args:
        local: size of a microbatch, widths.
        layer: stored activations of the layer.
        temperature: smoothing of the maximum [1].

    Returns:
        Memory beyond the stored activations [byte].
    """
    model, plan, element = local.model, local.plan, local.element_bytes
    width = (mlp_width(model) + routed_width(model) * local.expert_load) / (total_layers(model) * plan.tp)
    matrix = model.trainable_share * element * model.d_model * widest_matrix(model) / plan.tp
    # Gradients of the product and of the last matrix.
    gate = element * model.gated_mlp * width * local.tokens + matrix
    stream = 2.0 * element * model.d_model * local.tokens / local.sequence_split
    # Gradients of gate and input, of the stream, and of all matrices.
    inputs = element * (1.0 + model.gated_mlp) * width * local.tokens + stream + (2.0 + model.gated_mlp) * matrix
    # At the inputs, the stored activations of the MLP are freed.
    return smooth_max(gate + layer.mlp, inputs, temperature) - layer.mlp + 3.0 * gathered_stream_bytes(local)


def gathered_stream_bytes(local: LocalPlan) -> Array:
    """Memory of the gathered residual stream of a tensor-parallel group beyond the shard of the rank [byte]."""
    others = 1.0 - 1.0 / local.sequence_split
    return local.element_bytes * local.tokens * local.model.d_model * others


def queued_activation_bytes(
    local: LocalPlan,
    coefficients: Coefficients,
    in_flight: ArrayLike,
    lead: ArrayLike,
    temperature: Temperature = 0.0,
) -> Array:
    r"""Memory of full tensors of tensor-parallel collectives that wait in the launch queue [byte].

    $t d b_q (1 - \min(1, 2 / n)(1 - a))$, 0 where tp = 1, $b_q$ `queued_bytes`. Buffers outlive the last use while
    hosts launch without waiting, as streams may still read the buffers. The queue grows where n microbatches in flight
    let chips wait for each other, and where hosts lead slower chips by a share a of the queue. Queues are finite, and
    so is the growth. Software that keeps references in place of records of streams frees buffers in order (PyTorch's
    TORCH_NCCL_AVOID_RECORD_STREAMS): it queues none.

    Args:
        local: size of a microbatch, tp.
        coefficients: `queued_bytes`.
        in_flight: n, microbatches in flight, at least one [1].
        lead: a, lead of hosts over chips as a share of the longest possible lead, see `host_lead` [1].
        temperature: smoothing [1].

    Returns:
        Memory [byte].
    """
    # Ultra-Scale's runs of 3B at tp 8 and 16 hold 8, 72, 94 and 99 byte per element with 2, 4, 8 and 16 microbatches in
    # flight; with 1 or 2 and tp up to 8, 80 more where chips take twice as long as hosts, whatever the layers.
    waiting = smooth_max(1.0 - 2.0 / jnp.asarray(in_flight), 0.0, temperature)
    queued = several(local.plan.tp, temperature) * (1.0 - (1.0 - waiting) * (1.0 - jnp.asarray(lead)))
    queued = queued * local.plan.queued_collectives
    return coefficients.queued_bytes * queued * local.tokens * local.model.d_model


def all_with_gpipe(one_f_one_b: ArrayLike, plan: Plan) -> Array:
    """Microbatches held by a stage: `one_f_one_b` for 1F1B schedules, all microbatches of the step for GPipe [1]."""
    return one_f_one_b + plan.gpipe * (plan.n_microbatches - jnp.asarray(one_f_one_b))


def microbatches_in_flight(plan: Plan, stages_before: ArrayLike, temperature: Temperature = 0.0) -> Array:
    r"""Microbatches with stored activations on a stage at once, the maximum over a step [1].

    1F1B: $\min(m, p - s)$ with s earlier stages; interleaved: $2 (p - 1 - s) + (v - 1) p + 1$ chunks, v per microbatch,
    at most m microbatches; DualPipe: p + 1 on every chip (DeepSeek-AI 2024, arXiv 2412.19437, table 2);
    GPipe: m.

    Args:
        plan: m microbatches, p stages, v virtual stages per chip, schedule.
        stages_before: s, number of earlier stages [1].
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
