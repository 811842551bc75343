"""Weights, gradients and optimizer state on one chip, and what FSDP or a framework's buffers hold beside them.

References: Rajbhandari et al. 2020, arXiv 1910.02054, section 3 (weights, gradients, optimizer); Zhao et al. 2023,
arXiv 2304.11277, section 3.3 (gathered units).
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from jaxscale.base.smooth import larger, several, smaller
from jaxscale.costs.activations import WIDE_BYTES
from jaxscale.models.transformer import expert_params, head_params, widest_matrix
from jaxscale.plans.local import LocalPlan

SCALE_BYTES = 4.0 / 64.0
"""Scale of a block of 64 weights in 4 bits, per weight (Dettmers et al. 2023, arXiv 2305.14314, section 3) [byte]."""


def weight_bytes(local: LocalPlan) -> Array:
    """Stored bytes per weight: `weight_bytes`; of a frozen one that, or as matmuls read it where they read less [byte].

    Where trained weights are kept in 32 bits alone, the master copy of the optimizer is the weight.
    """
    stated, frozen = local.plan.weight_bytes, frozen_bytes(local)
    trained = stated + local.plan.wide_weights * larger(WIDE_BYTES - stated, 0.0)
    return frozen + local.model.trainable_share * (trained - frozen)


def frozen_bytes(local: LocalPlan) -> Array:
    """Stored bytes of a frozen weight, with the scales of its block where it has 4 bits [byte]."""
    stated = local.plan.weight_bytes
    has_scales = jnp.less_equal(stated, 0.5) & jnp.less(stated, local.matmul_bytes)
    # One wider than an element is kept so; what matmuls read in 8 bits may be stored in 8.
    is_wide = jnp.greater(stated, local.element_bytes)
    return jnp.where(is_wide, stated, smaller(stated, local.matmul_bytes)) + jnp.where(has_scales, SCALE_BYTES, 0.0)


def is_narrow(local: LocalPlan) -> Array:
    """Share of the weights that is frozen and stored in fewer bits than matmuls read [1]."""
    missing = larger(local.matmul_bytes - local.plan.weight_bytes, 0.0)
    return (1.0 - local.model.trainable_share) * smaller(missing, 1.0)


def gathered_width(local: LocalPlan) -> Array:
    """Bytes of a weight while it is gathered: of an element, or as a frozen one is stored where that is less [byte]."""
    narrower = is_narrow(local) * larger(local.element_bytes - frozen_bytes(local), 0.0)
    return local.element_bytes - narrower


def optimizer_state_bytes(local: LocalPlan) -> Array:
    """Bytes of the optimizer's state per trained weight on the chip: what the host does not hold of them [byte]."""
    plan = local.plan
    # A 32-bit weight is its own master copy.
    master = plan.wide_weights * 2.0 * larger(WIDE_BYTES - plan.weight_bytes, 0.0)
    return larger(plan.optimizer_bytes - master, 0.0) * (1.0 - jnp.asarray(plan.offload_optimizer))


def quantised_extra_bytes(local: LocalPlan) -> Array:
    """What frozen weights of fewer than 16 bits need beside them: embeddings in 16 bits, one matrix as matmuls read it.

    Returns:
        Bytes, 0 where weights are stored as they are read [byte].
    """
    model, plan = local.model, local.plan
    missing = (1.0 - model.trainable_share) * larger(local.matmul_bytes - plan.weight_bytes, 0.0)
    shards = 1.0 + local.weights_sharded * (local.shard_ranks - 1.0)
    embeddings = missing * local.params.embedding / shards
    return embeddings + is_narrow(local) * local.matmul_bytes * model.d_model * widest_matrix(model) / plan.tp


class WholeUnits(NamedTuple):
    """What FSDP holds whole beside its shards at two moments.

    Attributes:
        at_the_loss: weights [byte].
        reversing: weights and gradients, while a layer is reversed [byte].
    """

    at_the_loss: Array
    reversing: Array


def gathered_bytes(local: LocalPlan) -> WholeUnits:
    """What FSDP holds whole beside its shards, 0 without it.

    Layers come two at a time: weights of the one that runs and of the next, as wide as an element; gradients of the one
    that runs, and of the one before it in the width in which they are scattered. Embeddings belong to the outermost
    unit, which stays whole, and with it the gradient of the logits head, the first to be known. A rank that shares its
    weights with no other has nothing to gather or to scatter. Under a pipeline some software keeps the weights of its
    stage whole from the first microbatch to the last.

    Args:
        local: vocabulary, share of the weights that is trained, sharding, degrees, width of gradients.

    Returns:
        Bytes at either moment.
    """
    model, plan, params = local.model, local.plan, local.params
    dense_shared, experts_shared = several(local.shard_ranks), several(local.expert_shard_ranks)
    stage = dense_shared * params.layers + experts_shared * params.experts
    layer = stage / local.first_layers
    element, head = local.element_bytes, head_params(model) / plan.tp
    weights = gathered_width(local) * 2.0 * layer + element * dense_shared * params.embedding
    gradients = (element + plan.gradient_bytes) * layer + element * dense_shared * head
    whole = keeps_stage_whole(local) * element * larger(stage - 2.0 * layer, 0.0)
    # A compiler gathers a matrix at a time, and scatters its gradient at once: the largest one, and the next.
    mlp = model.d_model * widest_matrix(model) / plan.tp
    of_experts = experts_shared * params.experts / (local.first_layers * (2.0 + model.gated_mlp))
    matrix = 2.0 * element * larger(dense_shared * larger(head, mlp), of_experts)

    def of_program(eager: Array) -> Array:
        return local.weights_sharded * (eager + whole + plan.compiled * (matrix - eager))

    return WholeUnits(of_program(weights), of_program(weights + model.trainable_share * gradients))


def keeps_stage_whole(local: LocalPlan) -> Array:
    """Switch: 1 where FSDP keeps a stage of a pipeline gathered, and its gradients unreduced, until a step ends [1]."""
    return local.plan.gathered_stages * several(local.plan.pp) * local.weights_sharded


class Gradients(NamedTuple):
    """Gradients on the fullest chip over a step.

    Attributes:
        all: of all weights, as they stand before the optimizer's step [byte].
        at_the_loss: while the loss of the last microbatch is taken [byte].
        before_the_last_layer: when all layers but one have been reversed [byte].
    """

    all: Array
    at_the_loss: Array
    before_the_last_layer: Array


def gradient_memory(local: LocalPlan) -> Gradients:
    """Gradients over a step: none until the first backward pass where they are made anew, all of them in a buffer.

    Where a step has several microbatches they stand from the first on; software that owns a buffer of them holds it
    always. Replicas may reduce them in copies, `gradient_copy_bytes`.

    Args:
        local: share of the weights that is trained, sharding, widths.

    Returns:
        Bytes at three moments.
    """
    plan = local.plan
    # DualPipe holds a stage of each of its two directions (DeepSeek-AI 2024, arXiv 2412.19437, table 2).
    trained = (1.0 + plan.dual_pipe) * local.trained_share
    held = local.held_params(local.gradients_sharded)
    unreduced = keeps_stage_whole(local) * (local.held_params(0.0) - held)
    whole = plan.gradient_bytes * trained * (held + unreduced)
    layer = plan.gradient_bytes * trained * (held - local.params.embedding) / local.first_layers
    from_before = several(plan.n_microbatches)
    always = from_before + plan.kept_gradients * (1.0 - from_before)
    last = larger(layer, 0.0)
    copies = plan.gradient_copy_bytes * trained * several(local.replicas) * (1.0 - local.weights_sharded)
    copies = copies * local.held_params(0.0)
    return Gradients(whole + copies, always * whole + copies, whole - (1.0 - always) * last + copies)


def buffer_bytes(local: LocalPlan) -> Array:
    """Buffers that stand through a whole step: of collectives, and of gradients of weights by shape.

    `held_bytes` of its software; TransformerEngine keeps one 16-bit gradient of each shape of a weight, of
    experts that of one alone.
    """
    plan = local.plan
    shapes = local.params.layers / local.first_layers + expert_params(local.model) / local.expert_tensor_degree
    cached = plan.cached_gradients * local.element_bytes * local.model.trainable_share * shapes
    return cached + plan.held_bytes
