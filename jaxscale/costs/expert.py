"""Expert parallelism: all-to-all of tokens to the experts (dispatch) and back (combine) in each pass.

Compute on different tokens can hide the all-to-alls: see `overlap` for the exposed time.
Reference: Lepikhin et al. 2020, arXiv 2006.16668 (GShard), section 3.
"""

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from jaxscale.base.smooth import Temperature
from jaxscale.costs.collectives import dispatch_time, gather_time
from jaxscale.costs.machine import Machine
from jaxscale.costs.overlap import Passes
from jaxscale.models.transformer import expert_input, moe_layers
from jaxscale.plans.local import LocalPlan
from jaxscale.plans.plan import Plan


def expert_exchange(local: LocalPlan, machine: Machine, temperature: Temperature = 0.0) -> Passes:
    """Time of dispatch and combine of tokens for a microbatch, before overlap, summed over all mixture layers.

    Each rank sends `t / tp` tokens in each direction, in the input width of experts; ranks of a group are `etp` chips
    apart. The dispatcher sets the number of transfers of a token: `deepep` and `hybridep` send a token once to each
    rank with a chosen expert, and over the network once to each domain with a chosen expert; `alltoall` sends each of
    the k copies separately; `allgather` sends every token to every rank. All ranks wait for the rank that receives the
    most, `expert_load` times the mean.

    Returns:
        Times; zero for ep = 1 or a dense model [s].
    """
    model, plan, link = local.model, local.plan, machine.link
    volume = local.element_bytes * local.tokens / plan.tp * expert_input(model)
    group = (plan.ep, local.expert_tensor_degree)
    sent = volume * local.expert_load
    once = dispatch_time(sent, model.moe_top_k, model.n_experts, *group, link, temperature)
    # k separate copies, each to a single expert.
    each = dispatch_time(sent * model.moe_top_k, 1.0, model.n_experts, *group, link, temperature)
    everywhere = gather_time(volume * plan.ep, *group, link, temperature)
    by_domain = plan.deepep + plan.hybridep
    one = each + by_domain * (once - each) + plan.dispatch_allgather * (everywhere - each)
    # Dispatch and combine.
    both = 2.0 * moe_layers(model) * one
    return Passes(both, both)


def beside_another(plan: Plan) -> Array:
    """Share of the time with two microbatches running at once, under DualPipe or `moe_overlap` [1]."""
    return 1.0 - (1.0 - plan.moe_overlap) * (1.0 - jnp.asarray(plan.dual_pipe))


def exchange_overlap(plan: Plan, usual: ArrayLike) -> Array:
    """Share of the compute time that hides all-to-alls: the fitted share, or 1 if two microbatches run at once [1].

    Args:
        plan: `moe_overlap`, or DualPipe, which runs a forward pass of a microbatch beside a backward pass.
        usual: fitted share, `ep_overlap` of the coefficients [1].

    Returns:
        The share [1].
    """
    return 1.0 - (1.0 - beside_another(plan)) * (1.0 - jnp.asarray(usual))


def compute_beside_exchanges(local: LocalPlan, matmul: ArrayLike, other: ArrayLike) -> Passes:
    """Compute time that can run beside the all-to-alls of a microbatch [s].

    The backward pass has the kernels of two forward passes. Within a microbatch only the matmuls can run beside the
    exchanges; a second microbatch adds attention and memory-bound kernels.

    Within one microbatch, only the matmuls can run beside; a second microbatch adds attention and memory-bound kernels.

    Args:
        local: a model; for frozen weights the backward pass has no weight gradients.
        matmul: time of the matmuls of one forward pass, experts included [s].
        other: time of the remaining kernels of one forward pass [s].

    Returns:
        Times [s].
    """
    one, whole = jnp.asarray(matmul), beside_another(local.plan) * jnp.asarray(other)
    # Backward: gradients of activations, and of trained weights.
    return Passes(one + whole, (1.0 + local.model.trainable_share) * one + 2.0 * whole)
