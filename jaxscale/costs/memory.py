"""Peak memory of the fullest chip, by cause: an account of what stands at each moment of a step, the largest counts.

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

from jaxscale.base.arrays import Number, as_arrays
from jaxscale.base.jit import concrete_jit
from jaxscale.base.show import Printout, leaves_shown, printed, shares
from jaxscale.base.smooth import Temperature, is_exact, larger, p_norm, several, smaller
from jaxscale.base.units import quantity
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.calibration.store import AnyFit
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
"""Chunks of a chunked loss: eight in torchtitan and torchtune (2025), more in Liger kernels, whose chunks shrink with
the vocabulary [1]."""

CHUNK_TOKENS = 4096.0
"""Most tokens of a chunk: 2 to 8 thousand in TRL (2025) [token]."""

GATHERED_LOGIT_BYTES = 4.0
"""Memory per logit that a tensor-parallel group gathers, beside that of the loss: the 16-bit logits of the whole
vocabulary and their gradient [byte]."""


@printed(lambda peak: _shown(peak))
class Memory(eqx.Module):
    """Peak memory of one training step on the fullest chip: what stands at its fullest moment adds up to `total`.

    Attributes:
        weights: parameters as wide as they are stored, frozen ones too [byte].
        gradients: those that stand at the peak, as wide as they are reduced, and copies of them [byte].
        optimizer: master weights and moments [byte].
        activations: stored for the backward pass, all microbatches in flight, and of the layer that is reversed [byte].
        logits: logits, what the loss makes of them and their gradient, where the peak is at the loss [byte].
        buffers: gathered parameters of FSDP, gradients that it has yet to scatter, copies of weights, buckets [byte].
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
    def allocated(self) -> Array:
        """Peak of what a program allocates, which results print: without `framework` [byte]."""
        return self.measured(0.0)

    def measured(self, counts_driver: ArrayLike) -> Array:
        """Peak as it is measured: without `framework` where the measurement counts what a program allocates [byte].

        Args:
            counts_driver: 1 for a measurement by the driver, 0 for one of the program's allocator [1].
        """
        return self.total - (1.0 - jnp.asarray(counts_driver)) * self.framework

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
        coefficients: factors of activations and queued buffers; rates of chip and host. Or a fit, or its name
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
    tokens = local.tokens + plan.chunked_loss * (smaller(local.tokens / LOSS_CHUNKS, CHUNK_TOKENS) - local.tokens)
    return logits_per_token(model) * tokens * model.vocab_size / local.loss_split


MOMENTS = (
    *("loss", "reversing, first stage", "reversing, middle", "reversing, last stage"),
    *("last layer", "optimizer, first stage", "optimizer, middle"),
)
"""Moments of a step at which memory can be fullest: at the loss, on the last stage; when a layer is first reversed, on
the first stage, the one behind it and the last one; when a layer is last reversed, on the first stage; and in the
optimizer's step."""

SHARPNESS = 4.0
"""Exponent of the norm that stands for the maximum over moments, times the temperature: two equal ones then exceed the
maximum by less than `smooth_max` does [1]."""


def memory_with_lead(
    local: LocalPlan, machine: Machine, coefficients: Coefficients, lead: ArrayLike, temperature: Temperature = 0.0
) -> Memory:
    """Peak memory of the fullest chip, where the lead of its host is given.

    Args:
        local: a model under a plan.
        machine: capacity of a chip.
        coefficients: `activation_factor`, `queued_bytes`, `framework_bytes`.
        lead: of hosts over their chips, as a share of the longest possible one [1].
        temperature: smoothing of the maxima [1].

    Returns:
        The terms of the peak [byte].
    """
    held = held_at_moments(local, coefficients, lead, temperature)
    capacity = jnp.asarray(machine.chip.hbm_bytes)
    return Memory(**_at_the_fullest(held, temperature), capacity=capacity)


def held_at_moments(
    local: LocalPlan, coefficients: Coefficients, lead: ArrayLike, temperature: Temperature = 0.0
) -> dict[str, Float[Array, "moment ..."]]:
    """What stands at each of `MOMENTS`, by the names of the terms of `Memory`.

    Args:
        local: a model under a plan.
        coefficients: `activation_factor`, `queued_bytes`, `framework_bytes`.
        lead: of hosts over their chips, as a share of the longest possible one [1].
        temperature: smoothing of the maxima inside a moment [1].

    Returns:
        Terms [byte], [moment, ...].
    """
    plan, layers = local.plan, local.layers
    layer = layer_bytes(local, coefficients)
    kept = layer.total + plan.recompute_full * (checkpoint_bytes(local) - layer.total)
    kept = kept * (1.0 - plan.offload_activations)
    # A layer is whole while it is reversed, whatever is kept of it before.
    beside = layer.total - kept + reversing_bytes(local, layer, temperature)

    def stage(n_layers: Number, ends: float, before: ArrayLike, head_share: ArrayLike) -> _Stage:
        n = microbatches_in_flight(plan, before, temperature)
        held = kept * n_layers * n + queued_activation_bytes(local, coefficients, n, lead, temperature)
        own = local.at_stage(n_layers, ends)
        return _Stage(own, held, gradient_memory(own), gathered_bytes(own, head_share), coefficients)

    first = stage(layers.first, 1.0, 0.0, 1.0 - several(plan.pp))
    middle = stage(layers.middle, 0.0, several(plan.pp), 0.0)
    last = stage(layers.last, 1.0, plan.pp - 1.0, 1.0)
    # The microbatch that is reversed has nothing left in its later layers.
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
    """What a stage holds, and its terms of memory at moments of a step.

    Attributes:
        local: the plan with the weights of the stage.
        activations: of the microbatches in flight [byte].
        gradients: over a step.
        gathered: what FSDP holds whole.
        coefficients: `framework_bytes`.
    """

    local: LocalPlan
    activations: Array
    gradients: Gradients
    gathered: WholeUnits
    coefficients: Coefficients

    def _terms(self, gradients: Array, activations: ArrayLike, whole: ArrayLike, logits: ArrayLike = 0.0) -> dict:
        """Terms of `Memory` where some of them are given [byte]."""
        local = self.local
        both_ways = 1.0 + local.plan.dual_pipe
        trained = local.trained_share * local.held_params(local.optimizer_sharded)
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
        """While the loss of the last microbatch is taken."""
        local = self.local
        # The last norm keeps its input and its output, and the logits head gathers that.
        norm = 2.0 * stream_bytes(local) + unfused_norm_bytes(local.plan)
        ends = norm * local.tokens * local.model.d_model / local.sequence_split
        activations = self.activations + ends + gathered_stream_bytes(local)
        whole = self.gathered.at_the_loss + _casts(local)
        return self._terms(self.gradients.at_the_loss, activations, whole, _loss_bytes(local))

    def reversing(self, beside: ArrayLike) -> dict[str, Array]:
        """While the first layer is reversed, with what stands beside the activations that are kept."""
        whole = self.gathered.reversing + _compiled_casts(self.local, 0.0)
        return self._terms(self.gradients.at_the_loss, self.activations + beside, whole)

    def in_the_last_layer(self, beside: ArrayLike) -> dict[str, Array]:
        """While the last layer is reversed."""
        gradients = self.gradients.before_the_last_layer
        return self._terms(gradients, self.activations + beside, self.gathered.reversing)

    def in_the_optimizer(self) -> dict[str, Array]:
        """While the optimizer steps."""
        return self._terms(self.gradients.all, 0.0, 0.0)


def _loss_bytes(local: LocalPlan) -> Array:
    """Logits, what the loss makes of them, and the gradient of the logits head where that is made apart [byte]."""
    plan = local.plan
    gathered = GATHERED_LOGIT_BYTES * (1.0 - local.loss_split / plan.tp)
    # 1F1B turns round at the last stage; GPipe holds all microbatches there too, with their logits.
    turned = all_with_gpipe(1.0, plan)
    head = local.element_bytes * local.model.trainable_share * head_params(local.model) / plan.tp
    # Software that accumulates gradients in its own buffer makes that of the head in 16 bits first.
    return (plan.loss_bytes + gathered) * logits_held(local) * turned + plan.kept_gradients * head


def _casts(local: LocalPlan) -> Array:
    """Copies of weights as matmuls read them, which autocasts keep until the forward pass ends [byte]."""
    head = local.matmul_bytes * head_params(local.model) / local.plan.tp
    layers = local.matmul_bytes * (local.params.layers + local.params.experts)
    return local.plan.autocast * (layers + head) * (1.0 - local.weights_sharded) + _compiled_casts(local, 1.0)


def _compiled_casts(local: LocalPlan, head_share: ArrayLike) -> Array:
    """Copies of 32-bit weights that a compiled step keeps until their layer is reversed [byte].

    Args:
        local: the plan with the weights of a stage.
        head_share: of the logits head that is still there [1].
    """
    plan, params, sharded = local.plan, local.params, local.weights_sharded
    layers = params.layers / (1.0 + sharded * (local.shard_ranks - 1.0))
    layers = layers + params.experts / (1.0 + sharded * (local.expert_shard_ranks - 1.0))
    head = head_share * head_params(local.model) / (plan.tp * (1.0 + sharded * (local.shard_ranks - 1.0)))
    # Layers that are computed again keep their weights as they are stored, not their casts.
    again = larger(WIDE_BYTES - local.matmul_bytes, 0.0) * plan.recompute_full
    return plan.compiled * plan.wide_weights * ((local.matmul_bytes + again) * layers + local.matmul_bytes * head)


def _at_the_fullest(held: dict[str, Array], temperature: Temperature) -> dict[str, Array]:
    """Terms at the fullest moment; smooth ones are a mean over moments that adds up to a norm of their totals."""
    parts = list(held.values())
    totals = sum(parts[1:], start=parts[0])
    if is_exact(temperature):
        # Equal moments share the gradient, as in `larger`.
        is_fullest = jnp.greater_equal(totals, jnp.max(totals, axis=0)).astype(totals.dtype)
        fullest = is_fullest / jnp.sum(is_fullest, axis=0)
        return {name: jnp.sum(fullest * terms, axis=0) for name, terms in held.items()}
    exponent = SHARPNESS / temperature
    # As they stand in the gradient of the norm: the mean of the totals itself moves nothing.
    share = jax.lax.stop_gradient(jax.nn.softmax(exponent * jnp.log(totals), axis=0))
    scale = p_norm(totals, exponent) / jnp.sum(share * totals, axis=0)
    return {name: scale * jnp.sum(share * terms, axis=0) for name, terms in held.items()}
