"""Context parallelism: keys and values travel round a ring while each rank attends to its own queries.

Reference: Liu et al. 2023, arXiv 2310.01889 (ring attention), section 3.
"""

from jaxtyping import Array, ArrayLike

from jaxscale._types import Temperature, exposed, smooth_max
from jaxscale.coefficients import Coefficients
from jaxscale.costs.collectives import Link, gather_time
from jaxscale.plan import Plan, element_bytes
from jaxscale.workload import Transformer


def context_forward(
    model: Transformer,
    plan: Plan,
    link: Link,
    coefficients: Coefficients,
    attention: ArrayLike,
    temperature: Temperature = 0.0,
) -> Array:
    """Exposed time of the key/value ring of one forward pass of all layers, for one microbatch.

    A tensor-parallel rank holds K / tp key/value heads, and copies of one where there are fewer heads than ranks.

    Args:
        model: the transformer.
        plan: degrees.
        link: the network.
        coefficients: how much of the attention time covers the ring.
        attention: forward time of the attention core that the ring hides behind [s].
        temperature: smoothing [1].

    Returns:
        Time [s]; zero for cp = 1.
    """
    heads = smooth_max(model.n_kv_heads / plan.tp, 1.0, temperature)
    width = heads * (model.head_dim + model.v_head_dim)
    volume = element_bytes(plan) * plan.micro_batch_size * model.seq_len * width
    ring = model.n_attention_layers * gather_time(volume, plan.cp, plan.tp, link, temperature)
    # Cover is scaled so that without a ring there is nothing to hide and nothing to expose.
    cover = coefficients.cp_overlap * attention * (1.0 - 1.0 / plan.cp)
    return exposed(ring, cover, temperature)
