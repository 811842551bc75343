"""Expert parallelism: tokens are sent to the chips of their experts and back, two all-to-alls per pass.

Work on other tokens goes on meanwhile: see `overlap` for what stays exposed.
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
    """Dispatch and combine of all mixture layers, for one microbatch, hidden or not.

    Each rank sends its `t / tp` tokens each way, as wide as experts see them; ranks of a group are `etp` chips apart.
    How often a token travels depends on the dispatcher: `deepep` and `hybridep` send it once to each rank, and over the
    network once to each domain, that holds experts of it; `alltoall` sends each of its k copies by itself; `allgather`
    sends every token to every rank. All wait for the rank that takes in the most, `expert_load` times the mean.

    Returns:
        Times; zero for ep = 1 or a dense model [s].
    """
    model, plan, link = local.model, local.plan, machine.link
    volume = local.element_bytes * local.tokens / plan.tp * expert_input(model)
    group = (plan.ep, local.expert_tensor_degree)
    sent = volume * local.expert_load
    once = dispatch_time(sent, model.moe_top_k, model.n_experts, *group, link, temperature)
    each = dispatch_time(sent * model.moe_top_k, 1.0, model.n_experts, *group, link, temperature)
    everywhere = gather_time(volume * plan.ep, *group, link, temperature)
    by_domain = plan.deepep + plan.hybridep
    one = each + by_domain * (once - each) + plan.dispatch_allgather * (everywhere - each)
    both = 2.0 * moe_layers(model) * one
    return Passes(both, both)


def beside_another(plan: Plan) -> Array:
    """Share of the time in which another microbatch runs beside, as DualPipe and `moe_overlap` arrange [1]."""
    return 1.0 - (1.0 - plan.moe_overlap) * (1.0 - jnp.asarray(plan.dual_pipe))


def exchange_overlap(plan: Plan, usual: ArrayLike) -> Array:
    """Share of the compute behind which exchanges hide: the usual one, or all where another microbatch runs beside.

    Args:
        plan: `moe_overlap`, and DualPipe, which runs a forward pass beside a backward one.
        usual: `ep_overlap` of the coefficients [1].

    Returns:
        The share [1].
    """
    return 1.0 - (1.0 - beside_another(plan)) * (1.0 - jnp.asarray(usual))


def compute_beside_exchanges(local: LocalPlan, matmul: ArrayLike, other: ArrayLike) -> Passes:
    """Kernels on other tokens, which can run beside the all-to-alls: a backward pass has those of two forward passes.

    Within one microbatch these are matmuls; another microbatch has its attention and memory-bound kernels too.

    Args:
        local: a model whose weights may be frozen, which leaves the backward pass without their gradients.
        matmul: time of the matmuls of one forward pass, experts included [s].
        other: time of its other kernels [s].

    Returns:
        Times [s].
    """
    one, whole = jnp.asarray(matmul), beside_another(local.plan) * jnp.asarray(other)
    return Passes(one + whole, (1.0 + local.model.trainable_share) * one + 2.0 * whole)
