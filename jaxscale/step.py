"""The step: cost terms put together into the time of one optimizer step."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from jaxscale._arrays import as_arrays
from jaxscale._smooth import Temperature, exposed
from jaxscale.calibration.coefficients import Coefficients, checked
from jaxscale.costs import (
    accumulation,
    attention,
    context,
    data,
    elementwise,
    expert,
    matmul,
    optimizer,
    overhead,
    pipeline,
    state_space,
    tensor,
)
from jaxscale.costs.collectives import effective_link
from jaxscale.costs.overlap import not_hidden
from jaxscale.costs.straggler import straggler_time
from jaxscale.hardware.cluster import Cluster
from jaxscale.plan.plan import Plan
from jaxscale.workload import Transformer, model_flops

Seconds = Float[Array, "*batch"]


class StepTime(eqx.Module):
    """Time of one training step, by cause; the terms add up to `total` exactly.

    Attributes:
        matmul: weight matmuls of layers, forward and backward [s].
        attention: attention core, and scans of state-space layers [s].
        memory_bound: norms, activations, residuals, casts and gradient accumulation [s].
        head: logits and cross-entropy, matmul and traffic [s].
        recompute: forward work done again [s].
        kernel_gaps: gaps between the small kernels of mixture layers [s].
        host: waiting for the host to launch [s].
        tensor_parallel: exposed collectives of tp [s].
        context_parallel: exposed key/value ring [s].
        expert_parallel: all-to-alls [s].
        data_parallel: exposed gradient reduction and parameter gathers [s].
        pipeline_bubble: fill and drain [s].
        pipeline_imbalance: waiting for the busiest stage [s].
        pipeline_transfer: exposed sends between stages [s].
        optimizer: parameter update [s].
        bookkeeping: per handover between stages and per step [s].
        straggler: waiting for the slowest node [s].
    """

    matmul: Seconds
    attention: Seconds
    memory_bound: Seconds
    head: Seconds
    recompute: Seconds
    kernel_gaps: Seconds
    host: Seconds
    tensor_parallel: Seconds
    context_parallel: Seconds
    expert_parallel: Seconds
    data_parallel: Seconds
    pipeline_bubble: Seconds
    pipeline_imbalance: Seconds
    pipeline_transfer: Seconds
    optimizer: Seconds
    bookkeeping: Seconds
    straggler: Seconds

    @property
    def total(self) -> Array:
        """Time of the step [s]."""
        terms = list(self.terms().values())
        return sum(terms[1:], start=terms[0])

    def terms(self) -> dict[str, Array]:
        """Terms by name, in order [s]."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


class MicrobatchTimes(eqx.Module):
    """Time of one microbatch through all layers, by cause, as if one stage held the whole model [s]."""

    matmul: Seconds
    attention: Seconds
    memory_bound: Seconds
    recompute: Seconds
    kernel_gaps: Seconds
    tensor_parallel: Seconds
    context_parallel: Seconds
    expert_parallel: Seconds
    forward: Seconds

    @property
    def total(self) -> Array:
        """Forward, recomputation and backward of all layers [s]."""
        return (
            self.matmul
            + self.attention
            + self.memory_bound
            + self.recompute
            + self.kernel_gaps
            + self.tensor_parallel
            + self.context_parallel
            + self.expert_parallel
        )


def microbatch_times(
    model: Transformer, plan: Plan, cluster: Cluster, coefficients: Coefficients, temperature: Temperature = 0.0
) -> MicrobatchTimes:
    """Forward, backward and recomputation of one microbatch through all layers.

    The backward pass costs two forward passes of matmuls (one without weight gradients) and of memory-bound work, and
    2.5 of fused attention. Full recomputation repeats the forward pass with its collectives, selective recomputation
    the attention core alone.
    """
    model, plan, cluster, coefficients = compute = as_arrays((model, plan, cluster, checked(coefficients)))
    link = effective_link(cluster.network, coefficients)
    dense = matmul.dense_forward(*compute, temperature)
    weights = dense + matmul.expert_forward(*compute, temperature)
    core = attention.attention_forward(*compute)
    scan = state_space.scan_forward(*compute)
    streams = elementwise.elementwise_forward(*compute, temperature)
    gaps = overhead.kernel_gaps_forward(model, coefficients)
    tensors = tensor.tensor_collectives(model, plan, link, temperature)
    beside = tensor.matmuls_beside(model, plan, link, dense, temperature)
    tp = not_hidden(tensors, beside, coefficients.tp_overlap, temperature)
    tokens = expert.expert_exchange(model, plan, link, temperature)
    ep = not_hidden(tokens, expert.matmuls_beside(model, weights), coefficients.ep_overlap, temperature)
    ring = context.key_value_ring(model, plan, link, temperature)
    cp = not_hidden(ring, context.attention_beside(plan, core), coefficients.cp_overlap, temperature)
    again = plan.recompute_full
    selective = plan.recompute_selective * (1.0 - plan.flash_attention)
    return MicrobatchTimes(
        matmul=weights * (2.0 + model.trainable_share),
        attention=core * (1.0 + attention.attention_backward_factor(plan)) + scan * (1.0 + state_space.SCAN_BACKWARD),
        memory_bound=streams * 3.0 + accumulation.accumulation_time(*compute, temperature),
        recompute=again * (weights + core + scan + streams + gaps) + selective * core,
        kernel_gaps=gaps * 3.0,
        tensor_parallel=tp.forward * (1.0 + again) + tp.backward,
        context_parallel=cp.forward * (1.0 + again) + cp.backward,
        expert_parallel=ep.forward * (1.0 + again) + ep.backward,
        forward=weights + core + scan + streams + gaps + tp.forward + cp.forward + ep.forward,
    )


def step_time(
    model: Transformer, plan: Plan, cluster: Cluster, coefficients: Coefficients, temperature: Temperature = 0.0
) -> StepTime:
    """Time of one optimizer step, term by term.

    Every argument is a module of float leaves: `jax.grad`, `jax.vmap` and `jax.jit` work on each. Whole degrees give
    the exact model; degrees between whole numbers are its continuous relaxation.

    Args:
        model: the transformer.
        plan: degrees, batch, schedule.
        cluster: chips and network.
        coefficients: fitted parameters.
        temperature: 0 for exact maxima and ceilings (prediction); above 0 their smooth forms (design search), off by a
            few times `temperature`, and the mean load of a stage for its whole layers. See `Temperature`.

    Returns:
        The terms of the step [s].
    """
    model, plan, cluster, coefficients = as_arrays((model, plan, cluster, checked(coefficients)))
    layers = microbatch_times(model, plan, cluster, coefficients, temperature)
    link = effective_link(cluster.network, coefficients)
    # A layer cannot run faster than the host launches its kernels.
    host = exposed(overhead.host_time(model, plan, cluster, coefficients, temperature), layers.total, temperature)
    layers, host = jax.tree.map(lambda time: time * coefficients.layer_time_factor, (layers, host))
    logits = matmul.head_forward(model, plan, cluster, coefficients, temperature)
    # A pass forward, one for the gradients of activations, and one for those of weights that are trained.
    head = (2.0 + model.trainable_share) * logits
    head = head + 3.0 * elementwise.logits_forward(model, plan, cluster, coefficients)
    head = head + accumulation.head_accumulation_time(model, plan, cluster, coefficients)
    stages = pipeline.stage_times(model, plan, layers.total + host, head, temperature)
    forward = layers.forward / plan.pp
    backward = (layers.total + host) / plan.pp - forward
    replicas = data.data_parallel(model, plan, link, coefficients, forward, backward, temperature)
    work = plan.n_microbatches / plan.pp  # a chip of mean load does this share of m whole-model microbatches
    terms = StepTime(
        matmul=layers.matmul * work,
        attention=layers.attention * work,
        memory_bound=layers.memory_bound * work,
        head=head * work,
        recompute=layers.recompute * work,
        kernel_gaps=layers.kernel_gaps * work,
        host=host * work,
        tensor_parallel=layers.tensor_parallel * work,
        context_parallel=layers.context_parallel * work,
        expert_parallel=layers.expert_parallel * work,
        data_parallel=replicas.step + replicas.microbatch * plan.n_microbatches,
        pipeline_bubble=pipeline.bubble_time(plan, stages),
        pipeline_imbalance=pipeline.imbalance_time(plan, stages),
        pipeline_transfer=pipeline.transfer_time(model, plan, link, coefficients, temperature),
        optimizer=optimizer.optimizer_time(model, plan, cluster, coefficients, temperature),
        bookkeeping=overhead.bookkeeping_time(plan, coefficients, temperature),
        straggler=layers.matmul * 0.0,
    )
    return eqx.tree_at(lambda t: t.straggler, terms, straggler_time(cluster, coefficients, terms.total, temperature))


def tokens_per_step(model: Transformer, plan: Plan) -> Array:
    """Tokens of one step: B * S [token]."""
    return jnp.asarray(plan.global_batch_size_seqs * model.seq_len)


def model_flops_utilisation(
    model: Transformer, plan: Plan, cluster: Cluster, seconds: ArrayLike, causal: bool = False
) -> Array:
    """MFU: model flops per second over the dense 16-bit peak of the cluster.

    Args:
        model: the transformer.
        plan: batch.
        cluster: peak.
        seconds: step time [s].
        causal: flop convention, see `model_flops`.

    Returns:
        Utilisation [1].
    """
    flops = model_flops(model, causal) * tokens_per_step(model, plan)
    return flops / (seconds * cluster.n_chips * cluster.chip.peak("bf16"))
