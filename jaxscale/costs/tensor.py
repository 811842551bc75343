"""Tensor-parallel collectives: two all-reduces per layer and pass, or as many gathers and scatters (Megatron-LM).

Reference: Shoeybi et al. 2019, arXiv 1909.08053, section 3; Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.2.
"""

from jaxtyping import Array

from jaxscale.coefficients import Coefficients
from jaxscale.costs.collectives import Link, gather_time
from jaxscale.plan import Plan, element_bytes, tokens_per_microbatch
from jaxscale.workload import Transformer


def tensor_forward(
    model: Transformer, plan: Plan, link: Link, coefficients: Coefficients, temperature: float = 0.0
) -> Array:
    """Exposed tensor-parallel time of one forward pass of all layers, for one microbatch, as if on one stage.

    An all-reduce is a gather and a scatter of `b S d / cp` activations; one follows each attention, MLP or
    state-space block.

    Returns:
        Time [s]; zero for tp = 1.
    """
    volume = element_bytes(plan) * tokens_per_microbatch(model, plan) * model.d_model
    blocks = model.n_attention_layers + model.n_mlp_layers + model.n_ssm_layers
    return 2.0 * blocks * coefficients.tp_exposed * gather_time(volume, plan.tp, 1.0, link, temperature)
