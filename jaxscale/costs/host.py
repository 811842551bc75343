"""Host time: launches of kernels, sends and receives between stages, work once per step.

A layer cannot run faster than the host launches its kernels: where the chip is quicker, the difference is exposed.
Where the chip is slower, launches queue up before it, and buffers with them.
"""

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from jaxscale.base.smooth import Temperature, exposed, several, smooth_max, smooth_min
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.costs.expert import beside_another
from jaxscale.costs.machine import Machine
from jaxscale.models.transformer import is_dense, moe_layers, total_layers
from jaxscale.plans.local import LocalPlan
from jaxscale.plans.plan import Plan

COMPILED_HOST, GRAPHS_HOST = 0.05, 0.35
"""Host time of a layer over that of launching each kernel: where a compiler launches whole graphs of fused kernels, and
where recorded graphs are replayed between work that cannot be recorded (counts of the authors, 2026) [1]."""

COMPILED_STEP = 0.35
"""Host time per step of a compiled step over that of an eager one, whose norm, clipping and schedule are kernels of
their own (authors, 2026) [1]."""

ONE_CHIP_STEP = 0.22
"""Host time per step on one chip over that on many, which agree on norms and losses once a step (authors, 2026) [1]."""


def launch_share(plan: Plan) -> Array:
    """Host time of a layer over that of launching each of its kernels, by the execution of the plan [1]."""
    return jnp.power(COMPILED_HOST, plan.compiled) * jnp.power(GRAPHS_HOST, plan.cuda_graphs)


def launch_gaps_forward(local: LocalPlan, coefficients: Coefficients) -> Array:
    """Gaps of mixture layers in one forward pass: between small kernels, and while the host waits for counts [s].

    They are as many as the experts of the whole layer, wherever these are: the tokens of each arrive in a chunk of
    their own, which is sorted by itself (Megatron-LM, moe_utils.py, `sort_chunks_by_idxs`, 2025). Gaps of other layers
    are too short to be told from waves of tiles that are not full (`matmul`): both cost a matmul a fixed time.
    Where each step of a dispatch is launched by itself, the chip idles while the host waits for the counts of tokens,
    and the host while the chip makes them (`host_time_mixture`); a recorded or compiled layer does not wait. Where
    another microbatch runs beside, its kernels fill all gaps.
    """
    model, plan, c = local.model, local.plan, coefficients
    eager = (1.0 - plan.compiled) * (1.0 - plan.cuda_graphs)
    waiting = c.host_time_mixture * eager * (1.0 - is_dense(model.n_experts)) / 3.0
    return (1.0 - beside_another(plan)) * (c.moe_expert_time * model.n_experts + waiting) * moe_layers(model)


def host_time(local: LocalPlan, machine: Machine, coefficients: Coefficients, temperature: Temperature = 0.0) -> Array:
    """Time the host needs to launch one microbatch of all layers, forward and backward, as if on one stage.

    Args:
        local: layers; tp, whose collectives the host launches too.
        machine: how many chips share a node; the network of a job that spans nodes takes threads of the host from
            every rank, and a group that does more.
        coefficients: host time per layer of tuned software, to which the plan's own `host_time_layer` adds.
        temperature: smoothing [1].

    Returns:
        Time [s].
    """
    c, tp, node = coefficients, local.plan.tp, machine.node_chips
    spans_nodes = smooth_min(smooth_max(machine.n_chips / node, 1.0, temperature) - 1.0, 1.0, temperature)
    nodes_of_group = smooth_max(tp / node, 1.0, temperature)
    ranks = tp * several(tp, temperature)  # none where tp = 1
    network = c.host_time_tp_network * spans_nodes * ranks
    layer = c.host_time_layer + network + c.host_time_tp_node * (nodes_of_group - 1.0)
    return total_layers(local.model) * (layer * launch_share(local.plan) + local.plan.host_time_layer)


def send_receive_time(local: LocalPlan, coefficients: Coefficients, temperature: Temperature = 0.0) -> Array:
    """Host time of the sends and receives of one microbatch between stages.

    Stages work side by side, so the step waits for the busiest one: it has two neighbours, or one where there are two
    stages. Each of its vpp virtual stages sends and receives.

    Args:
        local: pp, vpp.
        coefficients: host time per slot of a stage with two neighbours.
        temperature: smoothing [1].

    Returns:
        Time [s].
    """
    neighbours = smooth_min(local.plan.pp - 1.0, 2.0, temperature)
    return 0.5 * neighbours * coefficients.pp_slot_time * local.plan.vpp


def per_step_host_time(local: LocalPlan, coefficients: Coefficients, temperature: Temperature = 0.0) -> Array:
    """Host time of a step: sends and receives of its microbatches, and work that is done once [s]."""
    slots = send_receive_time(local, coefficients, temperature) * local.plan.n_microbatches
    alone = several(local.plan.n_chips, temperature)
    once = jnp.power(ONE_CHIP_STEP, 1.0 - alone) * jnp.power(COMPILED_STEP, local.plan.compiled)
    return slots + coefficients.step_time * once


def launch_lead(
    local: LocalPlan, coefficients: Coefficients, host: ArrayLike, device: ArrayLike, temperature: Temperature = 0.0
) -> Array:
    r"""Lead of the host over its chip, as a share of the longest one that the queue of launches allows.

    $\min(1, 2 (1 - \text{host} / \text{device}))$, by the time that each needs for a microbatch: when the host has
    launched one, the chip has that share of it left to do. Only where another one follows those in flight.

    Args:
        local: pp, microbatches.
        coefficients: host time per slot.
        host: time to launch one microbatch of all layers [s].
        device: time the chip needs for the same work [s].
        temperature: smoothing [1].

    Returns:
        Share of the queue [1]; 0 where the host is slower.
    """
    plan = local.plan
    launched, busy = host / plan.pp + send_receive_time(local, coefficients, temperature), device / plan.pp
    left = exposed(busy, launched, temperature) / busy
    follows = smooth_min(exposed(plan.n_microbatches, plan.pp, temperature), 1.0, temperature)
    return follows * smooth_min(2.0 * left, 1.0, temperature)
