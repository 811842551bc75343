"""Expert parallelism: tokens are sent to the chips of their experts and back, two all-to-alls per pass.

Reference: Lepikhin et al. 2020, arXiv 2006.16668 (GShard), section 3.
"""

from jaxtyping import Array

from jaxscale.coefficients import Coefficients
from jaxscale.costs.collectives import Link, all_to_all_time
from jaxscale.plan import Plan, element_bytes, expert_tensor_degree, tokens_per_microbatch
from jaxscale.workload import Transformer, moe_layers


def expert_exchange_forward(
    model: Transformer, plan: Plan, link: Link, coefficients: Coefficients, temperature: float = 0.0
) -> Array:
    """Dispatch and combine of one forward pass of all mixture layers, for one microbatch.

    Each rank sends `t k d / tp` activations each way; ranks of a group are `etp` chips apart.

    Returns:
        Time [s]; zero for ep = 1 or a dense model.
    """
    tokens = tokens_per_microbatch(model, plan) * model.moe_top_k / plan.tp
    volume = element_bytes(plan) * tokens * model.d_model / coefficients.ep_efficiency
    stride = expert_tensor_degree(plan, temperature)
    return 2.0 * moe_layers(model) * all_to_all_time(volume, plan.ep, stride, link, temperature)
