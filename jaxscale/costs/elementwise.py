"""Memory-bound work: norms, residuals, activations, rotary embedding, softmax of the logits.

Time is a number of passes over a tensor at the memory bandwidth. Sequence parallelism splits operations on the residual
stream over tp (Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.2); the remaining operations are always split by
tp.
"""

import jax.numpy as jnp
from jaxtyping import Array

from jaxscale.calibration.coefficients import Coefficients
from jaxscale.costs.machine import Machine
from jaxscale.models.transformer import (
    attention_layers,
    copies_width,
    logits_per_token,
    mean_over_heads,
    mlp_layers,
    mlp_width,
    routed_width,
    ssm_layers,
)
from jaxscale.plans.local import LocalPlan

UNFUSED_NORM_PASSES = 44.0
"""Further passes over the residual stream, in one forward pass of a layer, of two norms that run operation by operation
in 32 bits: 36 byte per element forward and 84 backward against 4 and 6 of fused norms (counts of PyTorch's operations)
are 37 passes, at 0.85 of the bandwidth of streaming kernels [1]."""

COMPILED_PASSES = 0.6
"""Passes over the memory of fused kernels of a compiler, over the passes of single operations (XLA against eager
PyTorch, steps of one H100, 2026) [1]."""

COMPILED_LOSS = 14.0 / 34.0
"""Traffic per logit of a compiled loss over the traffic of single operations. Compiled: logits in 32 bits read for the
maximum, the sum and the gradient, which is written in 16. Single operations: a cast, a logarithm of the softmax, a
gradient, all in 32 bits, and a cast back, about 34 bytes (counts of the authors, 2026) [1]."""


ADAPTER_PASSES = 1.5
"""Passes over input and output of an adapted matmul, each in the width of an element and in the width of the adapter:
the input is read and cast; the output is scaled and added, read and written twice (counts of peft's operations, 2025)
[1]."""


def elementwise_forward(local: LocalPlan, machine: Machine, coefficients: Coefficients) -> Array:
    """Forward time of memory-bound work for a microbatch, summed over all layers of the model [s]."""
    c, model, plan = coefficients, local.model, local.plan
    # Half a block for each attention, MLP or scan.
    blocks = 0.5 * (attention_layers(model) + mlp_layers(model) + ssm_layers(model))
    norms = c.residual_passes + UNFUSED_NORM_PASSES * (1.0 - plan.fused_norm)
    residual = norms * model.d_model * blocks / local.sequence_split
    gate = 1.0 + model.gated_mlp
    mlp = gate * mlp_width(model)
    queries = mean_over_heads(model, lambda kind: kind.n_heads * kind.head_dim)
    heads = attention_layers(model) * (queries + plan.tp * local.key_value_width)
    state = ssm_layers(model) * (2.0 * model.ssm_d_inner + 2.0 * model.ssm_state)
    hidden = c.hidden_passes * (mlp + heads + state)
    # A token is copied for each of its experts, and the copies are gathered again.
    copies = copies_width(model)
    routed = (
        c.routed_passes * (gate * routed_width(model) * local.expert_load + copies)
        + c.bias_passes * model.expert_bias * copies
    )
    passes = residual + (hidden + routed) / plan.tp
    widths = 1.0 + plan.adapter_bytes / local.element_bytes
    passes = passes + ADAPTER_PASSES * widths * local.adapter_width
    fused = jnp.power(COMPILED_PASSES, plan.compiled)
    return fused * local.tokens * local.element_bytes * passes / machine.hbm_bandwidth


def logits_forward(local: LocalPlan, machine: Machine, coefficients: Coefficients) -> Array:
    """Forward time of memory-bound work on logits, softmax and cross-entropy for a microbatch [s]."""
    model = local.model
    logits = logits_per_token(model) * local.tokens * model.vocab_size / local.loss_split
    fused = jnp.power(COMPILED_LOSS, local.plan.compiled)
    # A third of the traffic is forward.
    return fused * logits * coefficients.logit_bytes / (3.0 * machine.hbm_bandwidth)
