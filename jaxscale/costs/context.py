"""Context parallelism: ring exchange of keys and values, while each rank computes attention for the local queries.

Reference: Liu et al. 2023, arXiv 2310.01889 (ring attention), section 3.
"""

from jaxtyping import Array

from jaxscale.base.smooth import Temperature
from jaxscale.costs.attention import attention_backward_factor
from jaxscale.costs.collectives import gather_time
from jaxscale.costs.machine import Machine
from jaxscale.costs.overlap import Passes
from jaxscale.models.transformer import attention_layers
from jaxscale.plans.local import LocalPlan


def key_value_ring(local: LocalPlan, machine: Machine, temperature: Temperature = 0.0) -> Passes:
    """Time of the ring exchange of keys and values for a microbatch, summed over all layers of the model.

    The gradients of keys and values travel along in the backward pass.

    Args:
        local: degrees, heads.
        machine: the network.
        temperature: smoothing [1].

    Returns:
        Times before overlap [s]; zero for cp = 1.
    """
    model, plan = local.model, local.plan
    width = local.key_value_width
    # Keys and values of a microbatch, gathered [byte].
    volume = local.element_bytes * plan.micro_batch_size * model.seq_len * width
    ring = attention_layers(model) * gather_time(volume, plan.cp, plan.tp, machine.link, temperature)
    # Gradients travel along in the backward pass.
    return Passes(ring, 2.0 * ring)


def attention_beside(local: LocalPlan, attention: Array) -> Passes:
    """Time of the attention core that can hide the key-value ring: all blocks except the first, local block [s]."""
    # The first block is local.
    later = attention * (1.0 - 1.0 / local.plan.cp)
    return Passes(later, later * attention_backward_factor(local.plan))
