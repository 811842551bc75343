"""Tensor-parallel collectives: two all-reduces per layer and pass, or as many gathers and scatters (Megatron-LM).

Gradients of weights wait for no collective, and a matmul can start on the part of its input that has arrived: see
`overlap` for what stays exposed.
References: Shoeybi et al. 2019, arXiv 1909.08053, section 3; Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.2.
"""

from jaxscale.costs.collectives import Link, gather_time
from jaxscale.costs.overlap import Passes
from jaxscale.plan import Plan, element_bytes, tokens_per_microbatch
from jaxscale.workload import Transformer

REGATHERED = 0.5
"""Further share of a pass's collectives in the backward pass under sequence parallelism: inputs that are stored in
shards are gathered once more for the gradients of weights (Korthikanti et al. 2022, section 4.2.2) [1]."""


def tensor_collectives(model: Transformer, plan: Plan, link: Link, temperature: float = 0.0) -> Passes:
    """Tensor-parallel collectives of one microbatch, hidden or not.

    An all-reduce is a gather and a scatter of `b S d / cp` activations; one follows each attention, MLP or
    state-space block.

    Returns:
        Times; zero for tp = 1 [s].
    """
    volume = element_bytes(plan) * tokens_per_microbatch(model, plan) * model.d_model
    blocks = model.n_attention_layers + model.n_mlp_layers + model.n_ssm_layers
    forward = 2.0 * blocks * gather_time(volume, plan.tp, 1.0, link, temperature)
    again = REGATHERED * plan.sequence_parallel * model.trainable_share
    return Passes(forward, (1.0 + again) * forward)
