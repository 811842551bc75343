"""Peak memory of the fullest chip by cause: the maximum of allocated memory over the moments of a step.

References: Korthikanti et al. 2022, arXiv 2205.05198, equations 1 to 6 (activations); Rajbhandari et al. 2020,
arXiv 1910.02054, section 3 (weights, gradients, optimizer); Narayanan et al. 2021, arXiv 2104.04473, section 2.2
(microbatches in flight).
"""

from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from jaxscale.base.arrays import Number, as_arrays, total_of
from jaxscale.base.jit import concrete_jit
from jaxscale.base.show import Printout, leaves_shown, printed, shares
from jaxscale.base.smooth import Temperature, is_exact, larger, p_norm, several, smaller
from jaxscale.base.units import quantity
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.calibration.record import AnyFit
from jaxscale.costs.activations import (
    WIDE_BYTES,
    all_with_gpipe,
    checkpoint_bytes,
    gathered_stream_bytes,
    layer_bytes,
    microbatches_in_flight,
    queued_activation_bytes,
    reversing_bytes,
    stream_bytes,
    unfused_norm_bytes,
)
from jaxscale.costs.machine import Machine, machine_of
from jaxscale.costs.microbatch import host_lead, microbatch_times
from jaxscale.costs.model_states import (
    Gradients,
    WholeUnits,
    buffer_bytes,
    gathered_bytes,
    gradient_memory,
    optimizer_state_bytes,
    quantised_extra_bytes,
    weight_bytes,
)
from jaxscale.costs.named_arguments import refuse_broken, resolved
from jaxscale.costs.terms import terms_by_name
from jaxscale.hardware.cluster import Cluster
from jaxscale.models.transformer import Transformer, head_params, logits_per_token
from jaxscale.models.work import AbstractWork
from jaxscale.plans.local import LocalPlan, local_plan
from jaxscale.plans.plan import Plan

Bytes = Float[Array, "*batch"]

LOSS_CHUNKS = 8.0
"""Chunks of a chunked loss: eight in torchtitan and torchtune (2025), more in Liger kernels, where chunks shrink with
the vocabulary [1]."""

CHUNK_TOKENS = 4096.0
"""Largest chunk of a loss: 2 to 8 thousand tokens in TRL (2025) [token]."""

GATHERED_LOGIT_BYTES = 4.0
"""Memory per logit that a tensor-parallel group gathers, in addition to the loss: 16-bit logits of the whole vocabulary
and the gradient of the logits [byte]."""


@printed(lambda peak: _shown(peak))
class Memory(eqx.Module):
    """Peak memory of a training step on the fullest chip; the terms at the moment of the peak add up to `total`.

    Attributes:
        weights: parameters in the stored width, frozen parameters included [byte].
        gradients: gradients at the peak, in the width of the reduction, and copies of gradients [byte].
        optimizer: master weights and moments [byte].
        activations: stored activations of all microbatches in flight, memory of the backward pass of a layer [byte].
        logits: logits, intermediate tensors of the loss and gradient of the logits, for a peak at the loss [byte].
        buffers: gathered parameters and unscattered gradients of FSDP, copies of weights, buckets [byte].
        framework: context, communicators, workspaces [byte].
        capacity: memory of the chip [byte].
        first_stage: peak memory of the first pipeline stage, the figure in the log of rank 0 [byte].
        cached: free memory reserved by the caching allocator at the peak; given back before a program
            runs out of memory [byte].
    """

    weights: Bytes
    gradients: Bytes
    optimizer: Bytes
    activations: Bytes
    logits: Bytes
    buffers: Bytes
    framework: Bytes
    capacity: Bytes
    first_stage: Bytes
    cached: Bytes

    @property
    def total(self) -> Array:
        """Peak memory, driver included [byte]."""
        return total_of(self.terms().values())

    @property
    def allocated(self) -> Array:
        """Peak memory allocated by the program, without the `framework` memory of driver and libraries [byte]."""
        return self.measured(0.0)

    def measured(self, counted: ArrayLike) -> Array:
        """Peak memory in the definition of a measurement [byte].

        Args:
            counted: 1 for all memory seen by the driver; on the fullest chip, 0.5 for memory reserved by the program's
                allocator and 0 for memory allocated; -1 for memory allocated on the first pipeline stage [1].
        """
        counted = jnp.asarray(counted)
        held = jnp.where(counted < 0.0, self.first_stage, self.total)
        # An allocator does not count the context of the driver, and the driver counts what the allocator keeps.
        held = held - jnp.where(counted < 1.0, self.framework, 0.0)
        return held + jnp.where(counted > 0.0, self.cached, 0.0)

    @property
    def fits(self) -> Bool[Array, "*batch"]:
        """Whether the peak memory `total` is at most the memory of the chip."""
        return self.total <= self.capacity

    def terms(self) -> dict[str, Array]:
        """Terms of the peak by name, in the order of `PEAK_TERMS` [byte]."""
        return {name: getattr(self, name) for name in PEAK_TERMS}


PEAK_TERMS = tuple(name for name in Memory.__dataclass_fields__ if name not in ("capacity", "first_stage", "cached"))
"""Names of the terms of the peak, in order."""


def _shown(peak: Memory) -> Printout:
    """Printed terms with shares; a table of leaves for many peaks, or for a slope."""
    if np.ndim(peak.weights) or not float(peak.total) > 0.0:
        return leaves_shown(peak)
    rows, notes = shares(peak.terms(), lambda value: quantity(value, "byte"))
    fits = "fits" if peak.fits else "does not fit"
    title = f"Memory: {quantity(float(peak.total), 'byte')} of {quantity(float(peak.capacity), 'byte')}, {fits}"
    return Printout(title, ("term", "memory", "share"), rows, notes)


def memory(
    model: Transformer | AbstractWork | str | Path,
    plan: Any,
    cluster: Cluster | str,
    coefficients: Coefficients | AnyFit = "default",
    temperature: Temperature = 0.0,
) -> Memory:
    """Peak memory of the fullest chip: `js.memory("llama3-8b", js.Plan(dp=8), "h100-80gb")`.

    Args:
        model: the transformer, or name or file of a transformer, or a traced workload.
        plan: a `Plan`: degrees, sharding, recomputation; of a traced workload a `ClassPlan`.
        cluster: capacity of a chip, and rates of chip and host, which decide the length of the launch queue; or the
            name of a chip, for a cluster of the size of the plan.
        coefficients: fitted coefficients; or a fit, or name or file of a
            fit, for the fitted values of the chip.
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
    """Peak memory of a traced workload, from the workload's terms; absent terms are zero."""
    terms = terms_by_name(work.memory_terms(plan, cluster, coefficients), PEAK_TERMS)
    capacity, total = jnp.asarray(cluster.chip.hbm_bytes), sum(terms.values(), start=jnp.zeros(()))
    return Memory(**terms, capacity=capacity, first_stage=total, cached=jnp.zeros_like(total))


@concrete_jit
def _memory(
    model: Transformer, plan: Plan, cluster: Cluster, coefficients: Coefficients, *, temperature: Temperature
) -> Memory:
    """Peak memory of a training step of a transformer."""
    model, plan, cluster, coefficients = as_arrays((model, plan, cluster, coefficients))
    local, machine = local_plan(model, plan, temperature), machine_of(cluster, coefficients)
    layers = microbatch_times(local, machine, coefficients, temperature)
    lead = host_lead(local, coefficients, layers, temperature)
    return memory_with_lead(local, machine, coefficients, lead, temperature)


def logits_held(local: LocalPlan) -> Array:
    """Number of logits in memory on the last stage, for a microbatch or a chunk of the loss [1]."""
    model, plan = local.model, local.plan
    tokens = local.tokens + plan.chunked_loss * (smaller(local.tokens / LOSS_CHUNKS, CHUNK_TOKENS) - local.tokens)
    return logits_per_token(model) * tokens * model.vocab_size / local.loss_split


MOMENTS = (
    *("loss", "reversing, first stage", "reversing, middle", "reversing, last stage"),
    *("last layer", "optimizer, first stage", "optimizer, middle"),
)
"""Moments of a step at which memory can be fullest: at the loss, on the last stage; at the first backward pass of a
layer, on the first, second and last stage; at the last backward pass of a layer, on the first stage; and in the update
of the optimizer."""

OF_FIRST_STAGE = tuple(
    place for place, name in enumerate(MOMENTS) if name == "last layer" or name.endswith("first stage")
)
"""Positions of the moments of the first stage of a pipeline."""

SHARPNESS = 4.0
"""Exponent of the norm that replaces the maximum over moments, times the temperature: for two equal moments the norm
exceeds the maximum by less than `smooth_max` does [1]."""


def memory_with_lead(
    local: LocalPlan, machine: Machine, coefficients: Coefficients, lead: ArrayLike, temperature: Temperature = 0.0
) -> Memory:
    """Peak memory of the fullest chip for a given lead of the host over the chip.

    Args:
        local: a model under a plan.
        machine: capacity of a chip.
        coefficients: `activation_factor`, `queued_bytes`, `framework_bytes`.
        lead: lead of hosts over chips, as a share of the longest possible lead [1].
        temperature: smoothing of the maxima [1].

    Returns:
        The terms of the peak [byte].
    """
    held = held_at_moments(local, coefficients, lead, temperature)
    fullest = _at_the_fullest(held, temperature)
    of_first = {name: terms[np.asarray(OF_FIRST_STAGE)] for name, terms in held.items()}
    total, first = (
        sum(terms.values(), start=jnp.zeros(())) for terms in (fullest, _at_the_fullest(of_first, temperature))
    )
    # Without a pipeline the first stage takes the loss too.
    first = total + several(local.plan.pp) * (first - total)
    capacity = jnp.asarray(machine.chip.hbm_bytes)
    # On a full chip the allocator gives back what is free.
    cached = local.plan.cached_share * (fullest["activations"] + fullest["logits"])
    cached = smaller(cached, larger(capacity - total, 0.0))
    return Memory(**fullest, capacity=capacity, first_stage=first, cached=cached)


def held_at_moments(
    local: LocalPlan, coefficients: Coefficients, lead: ArrayLike, temperature: Temperature = 0.0
) -> dict[str, Float[Array, "moment ..."]]:
    """Terms of memory at each moment of a step (`MOMENTS`), by the names of `Memory`.

    Args:
        local: a model under a plan.
        coefficients: `activation_factor`, `queued_bytes`, `framework_bytes`.
        lead: lead of hosts over chips, as a share of the longest possible lead [1].
        temperature: smoothing of the maxima inside a moment [1].

    Returns:
        Terms [byte], [moment, ...].
    """
    plan, layers = local.plan, local.layers
    layer = layer_bytes(local, coefficients)
    # Full recomputation keeps the input of a layer alone.
    kept = layer.total + plan.recompute_full * (checkpoint_bytes(local) - layer.total)
    kept = kept * (1.0 - plan.offload_activations)
    # The backward pass of a layer needs all activations of the layer, also those recomputed or offloaded before.
    beside = layer.total - kept + reversing_bytes(local, layer, temperature)

    def stage(n_layers: Number, ends: float, before: ArrayLike, head_share: ArrayLike) -> _Stage:
        n = microbatches_in_flight(plan, before, temperature)
        held = kept * n_layers * n + queued_activation_bytes(local, coefficients, n, lead, temperature)
        own = local.at_stage(n_layers, ends)
        return _Stage(own, held, gradient_memory(own), gathered_bytes(own, head_share), coefficients)

    # A single stage is the last stage too, and has the head.
    first = stage(layers.first, 1.0, 0.0, 1.0 - several(plan.pp))
    middle = stage(layers.middle, 0.0, several(plan.pp), 0.0)
    last = stage(layers.last, 1.0, plan.pp - 1.0, 1.0)
    # The microbatch of the last backward pass has freed the activations of the later layers.
    moments = (
        last.at_the_loss(),
        *(part.reversing(beside) for part in (first, middle, last)),
        first.in_the_last_layer(beside - kept * (layers.first - 1.0)),
        *(part.in_the_optimizer() for part in (first, middle)),
    )
    columns = jnp.broadcast_arrays(*(moment[name] for name in PEAK_TERMS for moment in moments))
    n = len(MOMENTS)
    return {name: jnp.stack(columns[place * n : (place + 1) * n]) for place, name in enumerate(PEAK_TERMS)}


class _Stage(NamedTuple):
    """Memory of one stage at moments of a step.

    Attributes:
        local: the plan with the weights of the stage.
        activations: stored activations of the microbatches in flight [byte].
        gradients: gradients over a step [byte].
        gathered: gathered units of FSDP [byte].
        coefficients: `framework_bytes`.
    """

    local: LocalPlan
    activations: Array
    gradients: Gradients
    gathered: WholeUnits
    coefficients: Coefficients

    def _terms(self, gradients: Array, activations: ArrayLike, whole: ArrayLike, logits: ArrayLike = 0.0) -> dict:
        """Terms of `Memory` for given gradients, activations, gathered units and logits [byte]."""
        local = self.local
        # DualPipe holds a stage of each direction.
        both_ways = 1.0 + local.plan.dual_pipe
        trained = local.trained_params(local.optimizer_sharded)
        return {
            "weights": weight_bytes(local) * local.held_params(local.weights_sharded) * both_ways
            + quantised_extra_bytes(local),
            "gradients": gradients,
            "optimizer": optimizer_state_bytes(local) * trained,
            "activations": activations,
            "logits": logits,
            "buffers": buffer_bytes(local) + whole,
            "framework": jnp.asarray(self.coefficients.framework_bytes),
        }

    def at_the_loss(self) -> dict[str, Array]:
        """Memory at the loss of the last microbatch [byte]."""
        local = self.local
        # The last norm stores input and output; the logits head gathers the output.
        norm = 2.0 * stream_bytes(local) + unfused_norm_bytes(local)
        ends = norm * local.tokens * local.model.d_model / local.sequence_split
        activations = self.activations + ends + gathered_stream_bytes(local)
        whole = self.gathered.at_the_loss + _casts(local)
        return self._terms(self.gradients.at_the_loss, activations, whole, _loss_bytes(local))

    def reversing(self, beside: ArrayLike) -> dict[str, Array]:
        """Memory at the first backward pass of a layer, with `beside` on top of the stored activations [byte]."""
        whole = self.gathered.reversing + _compiled_casts(self.local, 0.0)
        return self._terms(self.gradients.at_the_loss, self.activations + beside, whole)

    def in_the_last_layer(self, beside: ArrayLike) -> dict[str, Array]:
        """Memory at the last backward pass of a layer [byte]."""
        gradients = self.gradients.before_the_last_layer
        return self._terms(gradients, self.activations + beside, self.gathered.reversing)

    def in_the_optimizer(self) -> dict[str, Array]:
        """Memory at the update of the optimizer [byte]."""
        return self._terms(self.gradients.all, 0.0, 0.0)


def _loss_bytes(local: LocalPlan) -> Array:
    """Memory of logits and intermediate tensors of the loss, and of a separate gradient of the logits head [byte]."""
    plan = local.plan
    gathered = GATHERED_LOGIT_BYTES * (1.0 - local.loss_split / plan.tp)
    # With 1F1B the last stage holds one microbatch; with GPipe the last stage holds all microbatches and their logits.
    turned = all_with_gpipe(1.0, plan)
    head = local.element_bytes * local.model.trainable_share * head_params(local.model) / plan.tp
    # Software with a gradient buffer first makes the gradient of the head in 16 bits.
    return (plan.loss_bytes + gathered) * logits_held(local) * turned + plan.kept_gradients * head


def _casts(local: LocalPlan) -> Array:
    """Memory of weight copies in the width of matmuls, which autocast keeps until the forward pass ends [byte]."""
    trained = local.model.trainable_share * local.matmul_bytes
    head = trained * head_params(local.model) / local.plan.tp
    layers = trained * (local.params.layers + local.params.experts)
    return local.plan.autocast * (layers + head) * (1.0 - local.weights_sharded) + _compiled_casts(local, 1.0)


def _compiled_casts(local: LocalPlan, head_share: ArrayLike) -> Array:
    """Memory of narrow copies of 32-bit weights, which a compiled step keeps until a layer's backward pass [byte].

    Frozen weights are stored in the width that matmuls read.

    Args:
        local: the plan with the weights of a stage.
        head_share: share of the logits head whose copy is still in memory [1].
    """
    plan, params, sharded = local.plan, local.params, local.weights_sharded
    layers = params.layers / (1.0 + sharded * (local.shard_ranks - 1.0))
    layers = layers + params.experts / (1.0 + sharded * (local.expert_shard_ranks - 1.0))
    head = head_share * head_params(local.model) / (plan.tp * (1.0 + sharded * (local.shard_ranks - 1.0)))
    # Recomputed layers keep weights in the stored width, without casts.
    again = larger(WIDE_BYTES - local.matmul_bytes, 0.0) * plan.recompute_full
    is_cast = plan.compiled * plan.wide_weights * local.model.trainable_share
    return is_cast * ((local.matmul_bytes + again) * layers + local.matmul_bytes * head)


def _at_the_fullest(held: dict[str, Array], temperature: Temperature) -> dict[str, Array]:
    """Terms at the fullest moment; if smoothed, a mean over moments that adds up to a norm of the totals [byte]."""
    parts = list(held.values())
    totals = total_of(parts)
    if is_exact(temperature):
        # Equal moments share the gradient, as in `larger`.
        is_fullest = jnp.greater_equal(totals, jnp.max(totals, axis=0)).astype(totals.dtype)
        fullest = is_fullest / jnp.sum(is_fullest, axis=0)
        return {name: jnp.sum(fullest * terms, axis=0) for name, terms in held.items()}
    exponent = SHARPNESS / temperature
    # Shares are the weights in the gradient of the norm; a change of the shares has no effect on the total.
    share = jax.lax.stop_gradient(jax.nn.softmax(exponent * jnp.log(totals), axis=0))
    scale = p_norm(totals, exponent) / jnp.sum(share * totals, axis=0)
    return {name: scale * jnp.sum(share * terms, axis=0) for name, terms in held.items()}
