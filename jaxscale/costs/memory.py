"""Peak memory of the fullest chip, by cause.

References: Korthikanti et al. 2022, arXiv 2205.05198, equations 1 to 6 (activations); Rajbhandari et al. 2020,
arXiv 1910.02054, section 3 (weights, gradients, optimizer); Narayanan et al. 2021, arXiv 2104.04473, section 2.2
(microbatches in flight).
"""

from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from jaxscale.base.arrays import as_arrays
from jaxscale.base.jit import concrete_jit
from jaxscale.base.show import Printout, leaves_shown, printed, shares
from jaxscale.base.smooth import Temperature, larger, several, smaller, smooth_max, smooth_min
from jaxscale.base.units import quantity
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.calibration.store import AnyFit
from jaxscale.costs.machine import Machine, machine_of
from jaxscale.costs.microbatch import host_lead, microbatch_times
from jaxscale.costs.named_arguments import refuse_broken, resolved
from jaxscale.costs.terms import terms_by_name
from jaxscale.hardware.cluster import Cluster
from jaxscale.models.transformer import (
    Transformer,
    attended_keys,
    attention_layers,
    copies_width,
    head_params,
    logits_per_token,
    mlp_layers,
    mlp_width,
    routed_width,
    ssm_layers,
    total_layers,
)
from jaxscale.models.work import AbstractWork
from jaxscale.plans.local import LocalPlan, local_plan
from jaxscale.plans.plan import Plan

Bytes = Float[Array, "*batch"]

UNFUSED_NORM_BYTES = 12.0
"""Stored bytes per residual element of a layer whose two norms run operation by operation: for each a 32-bit copy of
the input and a 16-bit result (count of PyTorch's operations) [byte]."""

CHUNK_TOKENS = 4096.0
"""Tokens of a chunk of a chunked loss: 2 to 8 thousand in Liger kernels, TRL and torchtitan (2025) [token]."""

GATHERED_LOGIT_BYTES = 8.0
"""Memory per logit that a tensor-parallel group gathers, beside that of the loss: the 16-bit logits of the whole
vocabulary and their gradient, and a 32-bit softmax that is not made in place [byte]."""

MASK_BYTES = 1.0
"""Stored bytes per element of a dropout mask (Korthikanti et al., section 4.1) [byte]."""


@printed(lambda peak: _shown(peak))
class Memory(eqx.Module):
    """Peak memory of one training step on the fullest chip; the terms add up to `total`.

    Attributes:
        weights: parameters in 16 bits, or 32 where matmuls read so many; frozen ones as wide as matmuls read [byte].
        gradients: gradients, as wide as they are reduced, and what else they take [byte].
        optimizer: master weights and moments [byte].
        activations: stored for the backward pass, all microbatches in flight [byte].
        logits: logits, their 32-bit copy and gradient, beyond what the first stage holds [byte].
        buffers: gathered parameters of FSDP, and gradients that it has yet to scatter [byte].
        framework: context, communicators, workspaces [byte].
        capacity: memory of the chip [byte].
    """

    weights: Bytes
    gradients: Bytes
    optimizer: Bytes
    activations: Bytes
    logits: Bytes
    buffers: Bytes
    framework: Bytes
    capacity: Bytes

    @property
    def total(self) -> Array:
        """Peak memory [byte]."""
        terms = list(self.terms().values())
        return sum(terms[1:], start=terms[0])

    @property
    def fits(self) -> Bool[Array, "*batch"]:
        """Whether the peak stays within the chip's memory."""
        return self.total <= self.capacity

    def terms(self) -> dict[str, Array]:
        """Terms by name, in order [byte]."""
        return {name: getattr(self, name) for name in PEAK_TERMS}


PEAK_TERMS = tuple(name for name in Memory.__dataclass_fields__ if name != "capacity")
"""Names of the terms of the peak, in order."""


def _shown(peak: Memory) -> Printout:
    """Terms with their shares; a table of leaves of many peaks, or of a slope."""
    if np.ndim(peak.weights) or not float(peak.total) > 0.0:
        return leaves_shown(peak)
    rows, notes = shares(peak.terms(), lambda value: quantity(value, "byte"))
    fits = "fits" if peak.fits else "does not fit"
    title = f"Memory: {quantity(float(peak.total), 'byte')} of {quantity(float(peak.capacity), 'byte')}, {fits}"
    return Printout(title, ("term", "memory", "share"), rows, notes)


def layer_activation_bytes(local: LocalPlan, coefficients: Coefficients) -> Array:
    r"""Stored activations of one layer and microbatch, nothing recomputed.

    $t [10 d / q + (2 (H + K) (h + h_v) + 4 (1 + g) f + 5 S H (1 - \text{flash})) / tp]$ bytes in 16 bits, q = tp with
    sequence parallelism; the classic `s b h (10 + 24/t + 5 a s/(h t))` for f = 4 d (Korthikanti et al. 2022, equations
    1 to 4). 32-bit activations take twice as much, dropout masks do not. Inputs of matmuls, 4 d and 2 f of it, are kept
    as wide as these read them, and only for weights that are trained. A fused gate keeps 2 f less. Ranks that split an
    expert each keep whole the tokens that it takes in.

    Args:
        local: size of a microbatch, degrees.
        coefficients: `activation_factor`.

    Returns:
        Bytes of the average layer [byte].
    """
    model, plan = local.model, local.plan
    element, read = local.element_bytes, model.trainable_share * local.matmul_bytes
    stored = 1.0 - plan.flash_attention * 1.0
    # Selective recomputation drops the scores as fused attention does.
    stored = stored * (1.0 - plan.recompute_selective)
    n_heads = model.n_heads + plan.tp * local.key_value_heads
    heads = element * n_heads * (model.head_dim + model.v_head_dim)
    scores = (2.0 * element + MASK_BYTES) * stored * model.n_heads * attended_keys(model)
    attention = (heads + scores) * attention_layers(model)
    # Tokens are copied for their experts, and the copies kept for the gradients of those.
    inner = mlp_width(model) + routed_width(model)
    copies = local.expert_tensor_degree * copies_width(model)
    mlp = element * (1.0 + model.gated_mlp * (2.0 - plan.fused_glu)) * inner + read * (inner + copies)
    ssm = 3.0 * element * ssm_layers(model) * model.ssm_d_inner
    split = (attention + mlp + ssm) / (total_layers(model) * plan.tp)
    blocks = 0.5 * (attention_layers(model) + mlp_layers(model) + ssm_layers(model)) / total_layers(model)
    unfused = UNFUSED_NORM_BYTES * (1.0 - plan.fused_norm)
    residual = (2.0 * (element + read + MASK_BYTES) + unfused) * model.d_model * blocks / local.sequence_split
    return coefficients.activation_factor * local.tokens * (residual + split)


def weight_bytes(local: LocalPlan) -> Array:
    """Stored bytes per weight: `weight_bytes` while it is trained, the matmuls' width where it is frozen [byte]."""
    return local.matmul_bytes + local.model.trainable_share * (local.plan.weight_bytes - local.matmul_bytes)


def optimizer_state_bytes(local: LocalPlan) -> Array:
    """Bytes of the optimizer's state per trained weight on the chip: what the host does not hold of them [byte]."""
    return local.plan.optimizer_bytes * (1.0 - jnp.asarray(local.plan.offload_optimizer))


def transient_activation_bytes(
    local: LocalPlan,
    coefficients: Coefficients,
    in_flight: ArrayLike,
    lead: ArrayLike,
    temperature: Temperature = 0.0,
) -> Array:
    r"""Activations besides those stored for the backward pass, whole on every tensor-parallel rank.

    $t d (b_w + b_q (1 - \min(1, 2 / n)(1 - a)))$, $b_q = 0$ where tp = 1: $b_w$ `working_bytes` of the microbatch that
    runs, $b_q$ `queued_bytes` of collectives whose work is still queued. Buffers of collectives outlive their use while
    hosts launch without waiting, as streams may still read them: where n microbatches in flight let chips wait for each
    other, and where hosts lead slower chips by a share a of their queue. Queues are finite, and so is the growth.

    Args:
        local: size of a microbatch, tp.
        coefficients: `working_bytes`, `queued_bytes`.
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
    per_element = coefficients.working_bytes + coefficients.queued_bytes * queued
    return per_element * local.tokens * local.model.d_model


def all_with_gpipe(one_f_one_b: ArrayLike, plan: Plan) -> Array:
    """Microbatches held: as many as 1F1B holds, or all of them with GPipe, which turns round once at the end [1]."""
    return one_f_one_b + plan.gpipe * (plan.n_microbatches - jnp.asarray(one_f_one_b))


def microbatches_in_flight(plan: Plan, temperature: Temperature = 0.0) -> Array:
    """Microbatches whose activations the first stage holds at once, per layer it owns [1].

    1F1B: min(m, pp), times `1 + (pp - 1) / (pp vpp)` when interleaved; GPipe: m.
    """
    is_interleaved = several(plan.vpp, temperature)
    interleaved = 1.0 + is_interleaved * (plan.pp - 1.0) / (plan.pp * plan.vpp)
    one_f_one_b = smooth_min(plan.n_microbatches, plan.pp * interleaved, temperature)
    return all_with_gpipe(one_f_one_b, plan)


def microbatches_at_the_end(plan: Plan, temperature: Temperature = 0.0) -> Array:
    """Microbatches whose activations the last stage holds at once, per layer it owns [1].

    1F1B: one; interleaved, where all but the last chunk of the next microbatches wait: `1 + (pp - 1)(1 - 1/vpp)`, at
    most m; GPipe: m.
    """
    turned = 1.0 + (plan.pp - 1.0) * (1.0 - 1.0 / plan.vpp)
    one_f_one_b = smooth_min(plan.n_microbatches, turned, temperature)
    return all_with_gpipe(one_f_one_b, plan)


def unsharded_bytes(local: LocalPlan) -> Array:
    """What FSDP holds whole beside its shards, 0 without it.

    Layers come two at a time: weights of the one that runs and of the next, as wide as an element; gradients of the one
    that runs, and of the one before it in the width in which they are scattered. Embeddings belong to the outermost
    unit, which stays whole, and with it the gradient of the logits head, the first to be known (Zhao et al. 2023, arXiv
    2304.11277, section 3.3). A rank that shares its weights with no other has nothing to gather or to scatter.

    Args:
        local: vocabulary, share of the weights that is trained, sharding, degrees, width of gradients.

    Returns:
        Bytes [byte].
    """
    model, plan, params = local.model, local.plan, local.params
    dense_shared, experts_shared = several(local.shard_ranks), several(local.expert_shard_ranks)
    layer = (dense_shared * params.layers + experts_shared * params.experts) / local.first_layers
    element, head = local.element_bytes, head_params(model) / plan.tp
    weights = element * (2.0 * layer + dense_shared * params.embedding)
    gradients = (element + plan.gradient_bytes) * layer + element * dense_shared * head
    whole_layers = weights + model.trainable_share * gradients
    # A compiler gathers a matrix at a time, and scatters its gradient at once: the largest one, and the next.
    mlp = model.d_model * model.d_ff / plan.tp
    of_experts = experts_shared * params.experts / (local.first_layers * (2.0 + model.gated_mlp))
    matrix = 2.0 * element * larger(dense_shared * larger(head, mlp), of_experts)
    return local.weights_sharded * (whole_layers + plan.compiled * (matrix - whole_layers))


def memory(
    model: Transformer | AbstractWork | str | Path,
    plan: Any,
    cluster: Cluster | str,
    coefficients: Coefficients | AnyFit = "default",
    temperature: Temperature = 0.0,
) -> Memory:
    """Peak memory of the fullest chip: `js.memory("llama3-8b", js.Plan(dp=8), "h100-80gb")`.

    Args:
        model: the transformer or its name or file, or a traced workload.
        plan: a `Plan`: degrees, sharding, recomputation; of a traced workload a `ClassPlan`.
        cluster: capacity of a chip; how fast it and its host are decides how far launches queue up. Or the name of a
            chip, of which as many are taken as the plan uses.
        coefficients: factors of activations, buffers, logits, gradients; rates of chip and host. Or a fit, or its name
            or file, which gives those of the chip.
        temperature: smoothing of the maxima [1].

    Returns:
        The terms of the peak [byte].

    Raises:
        InputError: an unknown name, or a concrete plan that breaks a rule of `js.violations`.
    """
    given = resolved(model, plan, cluster, coefficients)
    if isinstance(given.model, AbstractWork):
        return _of_own_terms(*given)
    refuse_broken(given.model, given.plan, given.cluster)
    return _memory(*given, temperature=temperature)


def _of_own_terms(work: AbstractWork, plan: Any, cluster: Cluster, coefficients: Coefficients) -> Memory:
    """Peak memory of work that brings its own terms; those that it lacks are nothing."""
    terms = terms_by_name(work.memory_terms(plan, cluster, coefficients), PEAK_TERMS)
    return Memory(**terms, capacity=jnp.asarray(cluster.chip.hbm_bytes))


@concrete_jit
def _memory(
    model: Transformer, plan: Plan, cluster: Cluster, coefficients: Coefficients, *, temperature: Temperature
) -> Memory:
    """Peak memory of a step of a transformer."""
    model, plan, cluster, coefficients = as_arrays((model, plan, cluster, coefficients))
    local, machine = local_plan(model, plan, temperature), machine_of(cluster, coefficients)
    layers = microbatch_times(local, machine, coefficients, temperature)
    lead = host_lead(local, coefficients, layers, temperature)
    return memory_with_lead(local, machine, coefficients, lead, temperature)


def logits_held(local: LocalPlan) -> Array:
    """Logits that the last stage holds at once, of all tokens of a microbatch or of a chunk of them [1]."""
    model, plan = local.model, local.plan
    tokens = local.tokens + plan.chunked_loss * (smaller(local.tokens, CHUNK_TOKENS) - local.tokens)
    return logits_per_token(model) * tokens * model.vocab_size / local.loss_split


def memory_with_lead(
    local: LocalPlan, machine: Machine, coefficients: Coefficients, lead: ArrayLike, temperature: Temperature = 0.0
) -> Memory:
    """Peak memory of the fullest chip, where the lead of its host is given.

    Args:
        local: a model under a plan.
        machine: capacity of a chip.
        coefficients: factors of activations, buffers, logits, gradients.
        lead: of hosts over their chips, as a share of the longest possible one [1].
        temperature: smoothing of the maxima [1].

    Returns:
        The terms of the peak [byte].
    """
    c, model, plan = coefficients, local.model, local.plan
    whole = layer_activation_bytes(local, c)
    checkpoint = local.element_bytes * local.tokens * model.d_model / local.sequence_split
    per_layer = whole + plan.recompute_full * (checkpoint - whole)
    in_flight = microbatches_in_flight(plan, temperature)
    on_chip = 1.0 - plan.offload_activations
    stored = on_chip * per_layer * local.first_layers * in_flight
    stored = stored + transient_activation_bytes(local, c, in_flight, lead, temperature)
    activations = stored + plan.recompute_full * whole  # the layer being recomputed is whole while its backward runs
    gathered = GATHERED_LOGIT_BYTES * (1.0 - local.loss_split / plan.tp)
    logit_bytes = (c.logit_memory_bytes + gathered) * logits_held(local)
    # 1F1B turns round at the last stage; GPipe holds all microbatches there too, with their logits.
    turned = all_with_gpipe(1.0, plan)
    last_in_flight = microbatches_at_the_end(plan, temperature)
    last_stored = on_chip * per_layer * local.last_layers * last_in_flight
    last_stored = last_stored + transient_activation_bytes(local, c, last_in_flight, lead, temperature)
    # Logits are gone before the first layer is recomputed.
    last_stage = last_stored + smooth_max(plan.recompute_full * whole, logit_bytes * turned, temperature)
    trainable = model.trainable_share
    # DualPipe holds a stage of each of its two directions (DeepSeek-AI 2024, arXiv 2412.19437, table 2).
    stages = 1.0 + plan.dual_pipe
    gradients = stages * trainable * local.held_params(local.gradients_sharded)
    return Memory(
        weights=stages * weight_bytes(local) * local.held_params(local.weights_sharded),
        gradients=c.gradient_memory_factor * plan.gradient_bytes * gradients,
        optimizer=optimizer_state_bytes(local) * trainable * local.held_params(local.optimizer_sharded),
        activations=activations,
        logits=smooth_max(last_stage, activations, temperature) - activations,
        buffers=unsharded_bytes(local),
        framework=jnp.asarray(c.framework_bytes),
        capacity=jnp.asarray(machine.chip.hbm_bytes),
    )
