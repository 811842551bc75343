"""Overheads that no datasheet names: kernel launches, the host's pace, bookkeeping of handovers and steps.

A layer cannot run faster than the host launches its kernels: where the chip is quicker, the difference is exposed.
Where the chip is slower, launches queue up before it, and buffers with them.
"""

from jaxtyping import Array, ArrayLike

from jaxscale._smooth import Temperature, exposed, several, smooth_max, smooth_min
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.hardware.cluster import Cluster
from jaxscale.plan.plan import Plan
from jaxscale.workload import Transformer, moe_layers


def kernel_gaps_forward(model: Transformer, coefficients: Coefficients) -> Array:
    """Gaps between the many small kernels of mixture layers in one forward pass of all layers [s].

    They are as many as the experts of the whole layer, wherever these are: the tokens of each arrive in a chunk of
    their own, which is sorted by itself (Megatron-LM, moe_utils.py, `sort_chunks_by_idxs`, 2025). Gaps of other layers
    are too short to be told from waves of tiles that are not full (`matmul`): both cost a matmul a fixed time.
    """
    return coefficients.moe_expert_time * model.n_experts * moe_layers(model)


def host_time(
    model: Transformer, plan: Plan, cluster: Cluster, coefficients: Coefficients, temperature: Temperature = 0.0
) -> Array:
    """Time the host needs to launch one microbatch of all layers, forward and backward, as if on one stage.

    Args:
        model: the transformer.
        plan: tp, whose collectives the host launches too.
        cluster: how many chips share a node; the network of a job that spans nodes takes threads of the host from
            every rank, and a group that does more.
        coefficients: host time per layer.
        temperature: smoothing [1].

    Returns:
        Time [s].
    """
    c = coefficients
    node = cluster.network.domain_size[..., 0]
    spans_nodes = smooth_min(smooth_max(cluster.n_chips / node, 1.0, temperature) - 1.0, 1.0, temperature)
    nodes_of_group = smooth_max(plan.tp / node, 1.0, temperature)
    ranks = plan.tp * several(plan.tp, temperature)  # none where tp = 1
    network = c.host_time_tp_network * spans_nodes * ranks
    return model.n_layers * (c.host_time_layer + network + c.host_time_tp_node * (nodes_of_group - 1.0))


def handover_time(plan: Plan, coefficients: Coefficients, temperature: Temperature = 0.0) -> Array:
    """Host time of the handovers of one microbatch between stages.

    Stages work side by side, so the step waits for the busiest one: it has two neighbours, or one where there are two
    stages. Each of its vpp virtual stages hands over.

    Args:
        plan: pp, vpp.
        coefficients: host time per slot of a stage with two neighbours.
        temperature: smoothing [1].

    Returns:
        Time [s].
    """
    neighbours = smooth_min(plan.pp - 1.0, 2.0, temperature)
    return 0.5 * neighbours * coefficients.pp_slot_time * plan.vpp


def bookkeeping_time(plan: Plan, coefficients: Coefficients, temperature: Temperature = 0.0) -> Array:
    """Host time of a step: handovers of its microbatches, and what is done once [s]."""
    return handover_time(plan, coefficients, temperature) * plan.n_microbatches + coefficients.step_time


def launched_ahead(
    plan: Plan, coefficients: Coefficients, host: ArrayLike, device: ArrayLike, temperature: Temperature = 0.0
) -> Array:
    r"""How far the host launches ahead of its chip, of as far as the queue of launches lets it.

    $\min(1, 2 (1 - \text{host} / \text{device}))$, by the time that each needs for a microbatch: when the host has
    launched one, the chip has that share of it left to do. Only where another one follows those in flight.

    Args:
        plan: pp, microbatches.
        coefficients: host time per slot.
        host: time to launch one microbatch of all layers [s].
        device: time the chip needs for the same work [s].
        temperature: smoothing [1].

    Returns:
        Share of the queue [1]; 0 where the host is slower.
    """
    launched, busy = host / plan.pp + handover_time(plan, coefficients, temperature), device / plan.pp
    left = exposed(busy, launched, temperature) / busy
    follows = smooth_min(exposed(plan.n_microbatches, plan.pp, temperature), 1.0, temperature)
    return follows * smooth_min(2.0 * left, 1.0, temperature)
