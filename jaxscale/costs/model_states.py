"""Memory of weights, gradients, optimizer state, gathered units of FSDP and permanent buffers on a chip.

References: Rajbhandari et al. 2020, arXiv 1910.02054, section 3 (weights, gradients, optimizer); Zhao et al. 2023,
arXiv 2304.11277, section 3.3 (gathered units).
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from jaxscale.base.smooth import larger, several, smaller
from jaxscale.costs.activations import WIDE_BYTES
from jaxscale.models.transformer import expert_params, head_params, total_layers, widest_matrix
from jaxscale.plans.local import LocalPlan

SCALE_BYTES = 4.0 / 64.0
"""Bytes per weight of the scale of a block of 64 weights in 4 bits (Dettmers et al. 2023, arXiv 2305.14314, section 3)
[byte]."""


def weight_bytes(local: LocalPlan) -> Array:
    """Stored bytes per weight: `Plan.weight_bytes` for trained weights, `frozen_bytes` for frozen weights [byte].

    If trained weights are stored in 32 bits only, the weight is also the master copy of the optimizer.
    """
    stated, frozen = local.plan.weight_bytes, frozen_bytes(local)
    trained = stated + local.plan.wide_weights * larger(WIDE_BYTES - stated, 0.0)
    return frozen + local.model.trainable_share * (trained - frozen)


def frozen_bytes(local: LocalPlan) -> Array:
    """Stored bytes of a frozen weight, including the block scale of a 4-bit weight [byte]."""
    stated = local.plan.weight_bytes
    # Scales belong to weights of 4 bits.
    has_scales = jnp.less_equal(stated, 0.5) & jnp.less(stated, local.matmul_bytes)
    # A weight wider than an element is stored as stated; weights for 8-bit matmuls may be stored in 8 bits.
    is_wide = jnp.greater(stated, local.element_bytes)
    return jnp.where(is_wide, stated, smaller(stated, local.matmul_bytes)) + jnp.where(has_scales, SCALE_BYTES, 0.0)


def is_narrow(local: LocalPlan) -> Array:
    """Share of frozen weights with fewer stored bits than matmuls read [1]."""
    missing = larger(local.matmul_bytes - local.plan.weight_bytes, 0.0)
    return (1.0 - local.model.trainable_share) * smaller(missing, 1.0)


def gathered_width(local: LocalPlan) -> Array:
    """Bytes per weight in an all-gather: width of an element, or stored width of a narrower frozen weight [byte]."""
    narrower = is_narrow(local) * larger(local.element_bytes - frozen_bytes(local), 0.0)
    return local.element_bytes - narrower


def optimizer_state_bytes(local: LocalPlan) -> Array:
    """Optimizer state per trained weight on the chip, without state offloaded to the host [byte]."""
    plan = local.plan
    # A 32-bit weight serves as master copy.
    master = plan.wide_weights * 2.0 * larger(WIDE_BYTES - plan.weight_bytes, 0.0)
    return larger(plan.optimizer_bytes - master, 0.0) * (1.0 - jnp.asarray(plan.offload_optimizer))


def quantised_extra_bytes(local: LocalPlan) -> Array:
    """Extra memory for frozen weights of fewer than 16 bits: 16-bit embeddings, and a matrix in the width of matmuls.

    Returns:
        Memory, 0 where weights are stored in the width that matmuls read [byte].
    """
    model, plan = local.model, local.plan
    missing = (1.0 - model.trainable_share) * larger(local.matmul_bytes - plan.weight_bytes, 0.0)
    # FSDP divides the embeddings over the ranks.
    shards = 1.0 + local.weights_sharded * (local.shard_ranks - 1.0)
    embeddings = missing * local.params.embedding / shards
    return embeddings + is_narrow(local) * local.matmul_bytes * model.d_model * widest_matrix(model) / plan.tp


class WholeUnits(NamedTuple):
    """Memory of units gathered by FSDP, in excess of the shards, at two moments of a step.

    Attributes:
        at_the_loss: gathered weights at the loss [byte].
        reversing: gathered weights and gradients at the backward pass of a layer [byte].
    """

    at_the_loss: Array
    reversing: Array


def gathered_bytes(local: LocalPlan, head_share: ArrayLike = 1.0) -> WholeUnits:
    """Memory of units gathered by FSDP, in excess of the shards, at two moments of a step; 0 without FSDP.

    Two layers are in memory at a time: weights of the running and of the next layer, in the width of an element;
    gradients of the running layer, and of the preceding layer in the width of the scatter. Embeddings belong to the
    outermost unit, which stays gathered, together with the gradient of the logits head, the first gradient of a
    backward pass. A rank without sharers neither gathers nor scatters. Under a pipeline, some software keeps
    the weights of a stage gathered from the first microbatch to the last.

    Args:
        local: vocabulary, trained share of the weights, sharding, degrees, width of gradients.
        head_share: 1 for a stage with the logits head, else 0 [1].

    Returns:
        Memory at the two moments [byte].
    """
    model, plan, params = local.model, local.plan, local.params
    dense_shared, experts_shared = several(local.shard_ranks), several(local.expert_shard_ranks)
    stage = dense_shared * params.layers + experts_shared * params.experts
    layer = (dense_shared * local.dense_params + experts_shared * local.routed_params) / total_layers(model)
    element, head = local.element_bytes, head_share * head_params(model) / plan.tp
    weights = gathered_width(local) * 2.0 * layer + element * dense_shared * params.embedding
    gradients = (element + plan.gradient_bytes) * layer + element * dense_shared * head
    whole = keeps_stage_whole(local) * element * larger(stage - 2.0 * layer, 0.0)
    # A compiler gathers one matrix at a time and scatters the gradient at once: in memory are the largest and the next
    # matrix.
    mlp = model.d_model * widest_matrix(model) / plan.tp
    of_experts = experts_shared * local.routed_params / (total_layers(model) * (2.0 + model.gated_mlp))
    matrix = 2.0 * element * larger(dense_shared * larger(head, mlp), of_experts)

    def of_program(eager: Array) -> Array:
        return local.weights_sharded * (eager + whole + plan.compiled * (matrix - eager))

    return WholeUnits(of_program(weights), of_program(weights + model.trainable_share * gradients))


def keeps_stage_whole(local: LocalPlan) -> Array:
    """Indicator: 1 if FSDP keeps a pipeline stage gathered, with unreduced gradients, until the end of a step [1]."""
    return local.plan.gathered_stages * several(local.plan.pp) * local.weights_sharded


class Gradients(NamedTuple):
    """Memory of gradients on the fullest chip at three moments of a step.

    Attributes:
        all: gradients of all weights, before the update of the optimizer [byte].
        at_the_loss: gradients at the loss of the last microbatch [byte].
        before_the_last_layer: gradients after the backward pass of all layers but one [byte].
    """

    all: Array
    at_the_loss: Array
    before_the_last_layer: Array


def gradient_memory(local: LocalPlan) -> Gradients:
    """Memory of gradients at three moments of a step.

    Gradients have no memory before the first backward pass; software with a permanent buffer always holds the buffer.

    In a step with several microbatches gradients are in memory from the first microbatch on. Replicas may reduce copies
    of gradients, `gradient_copy_bytes`.

    Args:
        local: trained share of the weights, sharding, widths.

    Returns:
        Memory at three moments [byte].
    """
    plan = local.plan
    # DualPipe holds a stage of each of its two directions (DeepSeek-AI 2024, arXiv 2412.19437, table 2).
    width = (1.0 + plan.dual_pipe) * plan.gradient_bytes
    # ZeRO sends a reduced gradient to the optimizer's state in the memory of the host (Ren et al. 2021, arXiv
    # 2101.06840, section 4).
    on_chip = 1.0 - local.gradients_sharded * plan.offload_optimizer
    held, replica = on_chip * local.trained_params(local.gradients_sharded), local.trained_params(0.0)
    # With sharded gradients and interleaved stages, the gradients of a chunk are whole until pp microbatches have
    # passed.
    chunk = local.gradients_sharded * (1.0 - local.weights_sharded) * several(plan.vpp) / plan.vpp
    unreduced = (keeps_stage_whole(local) + chunk) * (replica - held)
    whole = width * (held + unreduced)
    # Before the last backward pass the layer has no gradient yet.
    layer = width * local.at_stage(1.0, 0.0).trained_params(local.gradients_sharded)
    from_before = several(plan.n_microbatches)
    always = from_before + plan.kept_gradients * (1.0 - from_before)
    copied = (1.0 + plan.dual_pipe) * plan.gradient_copy_bytes * replica
    copies = copied * several(local.replicas) * (1.0 - local.weights_sharded)
    return Gradients(whole + copies, always * whole + copies, whole - (1.0 - always) * layer + copies)


def buffer_bytes(local: LocalPlan) -> Array:
    """Memory of permanent buffers: buffers of collectives, and cached gradients of the weights of each shape [byte].

    Collectives take `held_bytes` of the software. TransformerEngine keeps a 16-bit gradient for each weight shape, and
    for the shapes of experts a gradient of a single expert.
    """
    plan = local.plan
    shapes = local.dense_params / total_layers(local.model) + expert_params(local.model) / local.expert_tensor_degree
    cached = plan.cached_gradients * local.element_bytes * local.model.trainable_share * shapes
    return cached + plan.held_bytes
