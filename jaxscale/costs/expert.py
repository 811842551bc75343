"""Expert parallelism: tokens are sent to the chips of their experts and back, two all-to-alls per pass.

Work on other tokens goes on meanwhile: see `overlap` for what stays exposed.
Reference: Lepikhin et al. 2020, arXiv 2006.16668 (GShard), section 3.
"""

import jax.numpy as jnp
from jaxtyping import ArrayLike

from jaxscale._smooth import Temperature
from jaxscale.costs.collectives import dispatch_time
from jaxscale.costs.machine import Machine
from jaxscale.costs.overlap import Passes
from jaxscale.plan.local import LocalPlan
from jaxscale.workload import expert_input, moe_layers


def expert_exchange(local: LocalPlan, machine: Machine, temperature: Temperature = 0.0) -> Passes:
    """Dispatch and combine of all mixture layers, for one microbatch, hidden or not.

    Each rank sends its `t / tp` tokens each way, as wide as experts see them; ranks of a group are `etp` chips apart.

    Returns:
        Times; zero for ep = 1 or a dense model [s].
    """
    model, plan = local.model, local.plan
    volume = local.element_bytes * local.tokens / plan.tp * expert_input(model)
    among = (model.moe_top_k, model.n_experts, plan.ep, local.expert_tensor_degree)
    one = 2.0 * moe_layers(model) * dispatch_time(volume, *among, machine.link, temperature)
    return Passes(one, one)


def matmuls_beside_exchanges(local: LocalPlan, matmul: ArrayLike) -> Passes:
    """Matmuls on other tokens, which can run beside the all-to-alls: a backward pass has those of two forward passes.

    Args:
        local: a model whose weights may be frozen, which leaves the backward pass without their gradients.
        matmul: time of the matmuls of one forward pass, experts included [s].

    Returns:
        Times [s].
    """
    return Passes(jnp.asarray(matmul), (1.0 + local.model.trainable_share) * matmul)
