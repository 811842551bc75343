"""Time of a microbatch by cause: forward pass, backward pass and recomputation of all layers."""

import equinox as eqx
from jaxtyping import Array, Float

from jaxscale.base.smooth import Temperature
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.costs import attention, context, elementwise, expert, host, matmul, tensor, weight_streams
from jaxscale.costs.machine import Machine
from jaxscale.costs.overlap import left_over, not_hidden
from jaxscale.plans.local import LocalPlan

Seconds = Float[Array, "*batch"]


class MicrobatchTimes(eqx.Module):
    """Time of a microbatch by cause, summed over all layers of the model.

    Attributes:
        matmul: weight matmuls [s].
        attention: attention core and scans [s].
        memory_bound: passes over the memory, and accumulation of gradients [s].
        recompute: recomputed forward work, without collectives [s].
        launch_gaps: gaps between small kernels of mixture layers [s].
        tensor_parallel: exposed collectives of tp [s].
        context_parallel: exposed key/value ring [s].
        expert_parallel: exposed all-to-alls [s].
        forward: forward pass alone, sum over all causes [s].
        host: host time to launch the microbatch, not included in `total` [s].
    """

    matmul: Seconds
    attention: Seconds
    memory_bound: Seconds
    recompute: Seconds
    launch_gaps: Seconds
    tensor_parallel: Seconds
    context_parallel: Seconds
    expert_parallel: Seconds
    forward: Seconds
    host: Seconds

    @property
    def total(self) -> Array:
        """Time of forward pass, recomputation and backward pass on the chip, summed over all layers [s]."""
        return (
            self.matmul
            + self.attention
            + self.memory_bound
            + self.recompute
            + self.launch_gaps
            + self.tensor_parallel
            + self.context_parallel
            + self.expert_parallel
        )


def microbatch_times(
    local: LocalPlan, machine: Machine, coefficients: Coefficients, temperature: Temperature = 0.0
) -> MicrobatchTimes:
    """Time of a microbatch by cause: forward pass, backward pass and recomputation, summed over all layers.

    The backward pass costs two forward passes of matmuls (one pass for frozen weights) and of memory-bound work, and
    2.5 of fused attention. Full recomputation repeats the forward pass with its collectives, selective recomputation
    the attention core alone.

    Args:
        local: a model under a plan.
        machine: chips and network.
        coefficients: fitted parameters.
        temperature: smoothing [1].

    Returns:
        Times [s].
    """
    compute = (local, machine, coefficients)
    plan, trainable = local.plan, local.model.trainable_share
    dense = matmul.dense_forward(*compute, temperature)
    weights = dense + matmul.expert_forward(*compute, temperature)
    core = attention.attention_forward(*compute)
    scan = attention.scan_forward(*compute)
    adapters = matmul.adapter_forward(*compute, temperature)
    streams = elementwise.elementwise_forward(*compute)
    gaps = host.launch_gaps_forward(local, coefficients)
    tensors = tensor.tensor_collectives(local, machine, temperature)
    beside = tensor.matmuls_beside(local, machine, dense, temperature)
    tp = not_hidden(tensors, beside, coefficients.tp_overlap, temperature)
    tokens = expert.expert_exchange(local, machine, temperature)
    overlap = expert.exchange_overlap(plan, coefficients.ep_overlap)
    # Compute hides a collective once.
    free = left_over(expert.compute_beside_exchanges(local, weights, core + scan + streams), tensors, tp)
    ep = not_hidden(tokens, free, overlap, temperature)
    ring = context.key_value_ring(local, machine, temperature)
    cp = not_hidden(ring, context.attention_beside(local, core), coefficients.cp_overlap, temperature)
    again = plan.recompute_full * plan.recompute_cost
    # Fused attention recomputes the scores anyway.
    selective = plan.recompute_selective * (1.0 - plan.flash_attention)
    return MicrobatchTimes(
        # Forward, gradients of activations, gradients of trained weights.
        matmul=weights * (2.0 + trainable) + 3.0 * adapters,
        attention=core * (1.0 + attention.attention_backward_factor(plan)) + scan * (1.0 + attention.SCAN_BACKWARD),
        memory_bound=streams * 3.0 + weight_streams.accumulation_time(*compute, temperature),
        recompute=again * (weights + adapters + core + scan + streams + gaps) + selective * core,
        launch_gaps=gaps * 3.0,
        # Full recomputation repeats the collectives of the forward pass.
        tensor_parallel=tp.forward * (1.0 + again) + tp.backward,
        context_parallel=cp.forward * (1.0 + again) + cp.backward,
        expert_parallel=ep.forward * (1.0 + again) + ep.backward,
        forward=weights + adapters + core + scan + streams + gaps + tp.forward + cp.forward + ep.forward,
        host=host.host_time(*compute, temperature),
    )


def host_lead(
    local: LocalPlan, coefficients: Coefficients, layers: MicrobatchTimes, temperature: Temperature = 0.0
) -> Array:
    """Lead of the host over the chip, relative to the longest possible lead; see `host.launch_lead` [1]."""
    return host.launch_lead(local, coefficients, layers.host, layers.total, temperature)
