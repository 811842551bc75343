"""Host time: launches of kernels, sends and receives between stages, and fixed work per step.

A layer cannot run faster than the host launches the kernels of the layer. Where the chip is faster, the difference is
exposed; where the chip is slower, launches and buffers queue up.
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
"""Host time of a layer over the time of launching each kernel: where a compiler launches whole graphs of fused kernels,
and where recorded graphs are replayed between work that cannot be recorded (counts of the authors, 2026) [1]."""

COMPILED_STEP = 0.35
"""Host time per step of a compiled step over an eager step, which runs norm, clipping and schedule as separate kernels
(authors, 2026) [1]."""

ONE_CHIP_STEP = 0.22
"""Host time per step on one chip over many chips, which agree on norms and losses once a step (authors, 2026) [1]."""


def launch_share(plan: Plan) -> Array:
    """Host time of a layer under the execution mode of the plan, relative to eager launches of every kernel [1]."""
    return jnp.power(COMPILED_HOST, plan.compiled) * jnp.power(GRAPHS_HOST, plan.cuda_graphs)


def launch_gaps_forward(local: LocalPlan, coefficients: Coefficients) -> Array:
    """Idle time of the chip in mixture layers in a forward pass: gaps between small kernels, waits for counts [s].

    The number of gaps is the number of experts of the whole layer, for every placement of the experts: the tokens of
    each expert arrive in a separate chunk, which is sorted separately (Megatron-LM, moe_utils.py,
    `sort_chunks_by_idxs`, 2025). Gaps of dense layers are too short to be distinguished from partly full waves of tiles
    (`matmul`): either costs a matmul a fixed time. Where each step of a dispatch is launched separately, the chip idles
    while the host waits for the counts of tokens, and the host while the chip computes the counts
    (`host_time_mixture`); a recorded or compiled layer does not wait. Where a second microbatch runs at once, kernels
    of the second fill all gaps.
    """
    model, plan, c = local.model, local.plan, coefficients
    eager = (1.0 - plan.compiled) * (1.0 - plan.cuda_graphs)
    waiting = c.host_time_mixture * eager * (1.0 - is_dense(model.n_experts)) / 3.0
    return (1.0 - beside_another(plan)) * (c.moe_expert_time * model.n_experts + waiting) * moe_layers(model)


def host_time(local: LocalPlan, machine: Machine, coefficients: Coefficients, temperature: Temperature = 0.0) -> Array:
    """Host time to launch the kernels of a microbatch, forward and backward, summed over all layers of the model.

    Args:
        local: layers, and tp with collectives launched by the host.
        machine: chips per node; in a job that spans nodes the network takes host threads from every rank, and more
            threads where a tensor-parallel group spans nodes.
        coefficients: host time per layer of tuned software; `host_time_layer` of the plan is added.
        temperature: smoothing [1].

    Returns:
        Time [s].
    """
    c, tp, node = coefficients, local.plan.tp, machine.node_chips
    # 0 within a node, 1 from two nodes on.
    spans_nodes = smooth_min(smooth_max(machine.n_chips / node, 1.0, temperature) - 1.0, 1.0, temperature)
    nodes_of_group = smooth_max(tp / node, 1.0, temperature)
    ranks = tp * several(tp, temperature)  # zero where tp = 1
    network = c.host_time_tp_network * spans_nodes * ranks
    layer = c.host_time_layer + network + c.host_time_tp_node * (nodes_of_group - 1.0)
    return total_layers(local.model) * (layer * launch_share(local.plan) + local.plan.host_time_layer)


def send_receive_time(local: LocalPlan, coefficients: Coefficients, temperature: Temperature = 0.0) -> Array:
    """Host time of the sends and receives of a microbatch between pipeline stages, on the busiest stage.

    Stages work in parallel, hence the busiest stage counts. Such a stage has two neighbours, or one neighbour in a
    pipeline of two stages. Each of the vpp virtual stages sends and receives.

    Args:
        local: pp, vpp of the plan.
        coefficients: host time per slot of a stage with two neighbours.
        temperature: smoothing [1].

    Returns:
        Time [s].
    """
    neighbours = smooth_min(local.plan.pp - 1.0, 2.0, temperature)
    # Half for each of two neighbours.
    return 0.5 * neighbours * coefficients.pp_slot_time * local.plan.vpp


def per_step_host_time(local: LocalPlan, coefficients: Coefficients, temperature: Temperature = 0.0) -> Array:
    """Host time per step: sends and receives of all microbatches, and fixed work per step [s]."""
    slots = send_receive_time(local, coefficients, temperature) * local.plan.n_microbatches
    alone = several(local.plan.n_chips, temperature)
    once = jnp.power(ONE_CHIP_STEP, 1.0 - alone) * jnp.power(COMPILED_STEP, local.plan.compiled)
    return slots + coefficients.step_time * once


def launch_lead(
    local: LocalPlan, coefficients: Coefficients, host: ArrayLike, device: ArrayLike, temperature: Temperature = 0.0
) -> Array:
    r"""Lead of the host over the chip, relative to the longest lead possible with the launch queue [1].

    $\min(1, 2 (1 - \text{host} / \text{device}))$, with the times of host and chip for a microbatch: when the host has
    launched a microbatch, the chip still has the share of the work to do. Zero if no microbatch follows the
    microbatches in flight.

    Args:
        local: pp, microbatches.
        coefficients: host time per slot.
        host: time to launch one microbatch of all layers [s].
        device: time of one microbatch of all layers on the chip [s].
        temperature: smoothing [1].

    Returns:
        Share of the queue [1]; 0 where the host is slower.
    """
    plan = local.plan
    launched, busy = host / plan.pp + send_receive_time(local, coefficients, temperature), device / plan.pp
    # 1 - host / device, 0 where the host is slower.
    left = exposed(busy, launched, temperature) / busy
    follows = smooth_min(exposed(plan.n_microbatches, plan.pp, temperature), 1.0, temperature)
    return follows * smooth_min(2.0 * left, 1.0, temperature)
