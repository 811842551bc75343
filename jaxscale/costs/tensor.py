"""Tensor-parallel collectives: an all-reduce per block and pass, or an all-gather and a reduce-scatter (Megatron-LM).

Gradients of weights wait for no collective. With sequence parallelism a matmul of the forward pass can start on the
received pieces of the input, and send finished pieces of the output. See `overlap` for the exposed time.
References: Shoeybi et al. 2019, arXiv 1909.08053, section 3; Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.2;
Wang et al. 2023, doi 10.1145/3567955.3567959, section 3.
"""

from jaxtyping import ArrayLike

from jaxscale.base.smooth import Temperature, smooth_max, smooth_min
from jaxscale.costs.collectives import Transfer, gather_time, times_of
from jaxscale.costs.machine import Machine
from jaxscale.costs.overlap import Passes
from jaxscale.models.transformer import attention_layers, dense_layers, expert_input, moe_layers, ssm_layers
from jaxscale.plans.local import LocalPlan


def tensor_collectives(local: LocalPlan, machine: Machine, temperature: Temperature = 0.0) -> Passes:
    """Time of the tensor-parallel collectives of a microbatch, before overlap, summed over all layers.

    An all-reduce is a gather and a scatter of `b S d / cp` activations; each attention, dense MLP or state-space block
    has one all-reduce, and so have the shared experts of a mixture. Routed experts, split `etp` ways, gather and
    scatter the received tokens. Under sequence parallelism inputs are gathered in the format of the matmuls, and once
    more in the backward pass: inputs are stored in shards, and the gradients of weights need whole inputs.

    Returns:
        Times; zero for tp = 1 [s].
    """
    model, plan, split = local.model, local.plan, local.expert_tensor_degree
    mixtures = moe_layers(model)
    # Shared experts of a mixture have an all-reduce.
    shared = mixtures * smooth_min(model.n_shared_experts, 1.0, temperature)
    blocks = attention_layers(model) + dense_layers(model) + shared + ssm_layers(model)
    dense = local.tokens * model.d_model
    sent = local.tokens * expert_input(model) * model.moe_top_k * split / plan.tp * local.expert_load
    stored = local.element_bytes
    read = stored + plan.sequence_parallel * (local.gathered_bytes - stored)
    transfers = {
        "scatter of a block": Transfer(stored * dense, plan.tp, 1.0),
        "scatter of experts": Transfer(stored * sent, split, 1.0),
        "gather of a block": Transfer(read * dense, plan.tp, 1.0),
        "gather of experts": Transfer(read * sent, split, 1.0),
    }
    times = times_of(gather_time, transfers, machine.link, temperature)
    scatter = blocks * times["scatter of a block"] + mixtures * times["scatter of experts"]
    gather = blocks * times["gather of a block"] + mixtures * times["gather of experts"]
    # Inputs are gathered once more for the gradients of weights.
    again = plan.sequence_parallel * model.trainable_share * gather
    return Passes(gather + scatter, gather + scatter + again)


def matmuls_beside(local: LocalPlan, machine: Machine, matmul: ArrayLike, temperature: Temperature = 0.0) -> Passes:
    """Time of the matmuls that can run beside the tensor-parallel collectives of a pass, if the software overlaps.

    Backward pass: matmuls of the gradients of weights, in bulk (`tp_overlap` of the plan `backward` or `full`). Forward
    pass, under sequence parallelism: matmuls that the collectives feed or drain, piece by piece (`full`); all of these
    matmuls for a group within a node, and the node's share of a larger group, where most pieces come over the slower
    links.

    Args:
        local: tp, sequence parallelism, overlap, trained share of the weights.
        machine: chips of a node.
        matmul: time of the dense matmuls of one forward pass [s].
        temperature: smoothing [1].

    Returns:
        Times [s].
    """
    nodes = smooth_max(local.plan.tp / machine.node_chips, 1.0, temperature)
    plan = local.plan
    # The node's share of a larger group.
    by_pieces = plan.tp_overlap_full * plan.sequence_parallel / nodes
    in_bulk = plan.tp_overlap_backward + plan.tp_overlap_full
    return Passes(by_pieces * matmul, in_bulk * local.model.trainable_share * matmul)
