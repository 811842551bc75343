"""Memory-bound work: norms, residuals, activations, rotary, softmax of the logits.

Each is a number of passes over a tensor at the memory bandwidth. Sequence parallelism splits what works on the residual
stream over tp (Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.2); the rest is split by tp anyway.
"""

from jaxtyping import Array

from jaxscale._smooth import Temperature
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.hardware.cluster import Cluster
from jaxscale.plan.plan import Plan, element_bytes, key_value_heads, sequence_split, tokens_per_microbatch
from jaxscale.workload import Transformer, copies_width, logits_per_token, mlp_width, routed_width


def elementwise_forward(
    model: Transformer, plan: Plan, cluster: Cluster, coefficients: Coefficients, temperature: Temperature = 0.0
) -> Array:
    """Forward memory-bound time of all layers for one microbatch, as if on one stage [s]."""
    c = coefficients
    tokens = tokens_per_microbatch(model, plan)
    blocks = 0.5 * (model.n_attention_layers + model.n_mlp_layers + model.n_ssm_layers)
    residual = c.residual_passes * model.d_model * blocks / sequence_split(plan)
    gate = 1.0 + model.gated_mlp
    mlp = gate * mlp_width(model)
    keys_and_values = plan.tp * key_value_heads(model, plan, temperature) * (model.head_dim + model.v_head_dim)
    heads = model.n_attention_layers * (model.n_heads * model.head_dim + keys_and_values)
    state = model.n_ssm_layers * (2.0 * model.ssm_d_inner + 2.0 * model.ssm_state)
    hidden = c.hidden_passes * (mlp + heads + state)
    # A token is copied for each of its experts, and the copies are gathered again.
    copies = copies_width(model)
    routed = c.routed_passes * (gate * routed_width(model) + copies) + c.bias_passes * model.expert_bias * copies
    passes = residual + (hidden + routed) / plan.tp
    return tokens * element_bytes(plan) * passes / (cluster.chip.hbm_bandwidth * c.hbm_efficiency)


def logits_forward(model: Transformer, plan: Plan, cluster: Cluster, coefficients: Coefficients) -> Array:
    """Memory-bound time of logits, softmax and cross-entropy of one microbatch, its share of a forward pass [s]."""
    c = coefficients
    logits = logits_per_token(model) * tokens_per_microbatch(model, plan) * model.vocab_size / plan.tp
    return logits * c.logit_bytes / (3.0 * cluster.chip.hbm_bandwidth * c.hbm_efficiency)
