"""Time of the attention core and of the scans of state-space layers.

The core computes scores and weighted values in a fused kernel, or with the scores stored in memory (materialised).

Fused (flash attention): the unmasked flops only, at a separate efficiency. Materialised: all flops and the traffic
of the score matrix, $S$ scores per token and head.

A scan of Mamba-2 runs over the sequence in chunks. Per token and channel of the inner width $d_i$ a scan with chunks as
long as the state, N, takes 6 N flops: 2 N to update the state, 2 N to read it, and 2 N within the chunk (Dao & Gu 2024,
arXiv 2405.21060, section 6).
References: Dao et al. 2022, arXiv 2205.14135; Korthikanti et al. 2022, arXiv 2205.05198, section 4.
"""

from jaxtyping import Array

from jaxscale.calibration.coefficients import Coefficients
from jaxscale.costs.machine import Machine
from jaxscale.models.transformer import attention_flops_per_token, attention_layers, scores_per_token, ssm_layers
from jaxscale.plans.local import LocalPlan
from jaxscale.plans.plan import Plan

FLASH_BACKWARD = 2.5
"""Backward over forward flops of fused attention: five matmuls against two (Dao 2023, arXiv 2307.08691) [1]."""

SCAN_BACKWARD = 2.0
"""Backward over forward time of a scan: every product has two factors, each with a gradient [1]."""


def core_seconds_per_flop(local: LocalPlan, machine: Machine) -> Array:
    """Time per flop of the attention core or of a scan at the peak rate of the chip [s/flop]."""
    return machine.chip.seconds_per_flop(local.wide)


def attention_forward(local: LocalPlan, machine: Machine, coefficients: Coefficients) -> Array:
    """Forward time of the attention core for a microbatch, summed over all layers of the model [s]."""
    model, plan = local.model, local.plan
    tokens = local.tokens / plan.tp
    seconds = core_seconds_per_flop(local, machine) / coefficients.attention_efficiency
    # Fused kernels skip the masked half of the scores.
    fused = tokens * attention_flops_per_token(model, model.causal) * seconds / plan.attention_rate
    scores = tokens * scores_per_token(model)
    traffic = scores * 0.5 * local.element_bytes * coefficients.score_bytes / machine.hbm_bandwidth
    # Materialised scores include the masked half.
    materialised = tokens * attention_flops_per_token(model) * seconds + traffic
    return attention_layers(model) * (materialised + plan.flash_attention * (fused - materialised))


def attention_backward_factor(plan: Plan) -> Array:
    """Ratio of backward to forward time of the attention core: 2.5 fused, 2 materialised [1]."""
    return 2.0 + (FLASH_BACKWARD - 2.0) * plan.flash_attention


def scan_forward(local: LocalPlan, machine: Machine, coefficients: Coefficients) -> Array:
    """Forward time of the state-space scans for a microbatch, summed over all layers of the model [s]."""
    model, tokens = local.model, local.tokens / local.plan.tp
    # 2 N each for update, reading and the chunk.
    flops = 6.0 * model.ssm_state / model.ssm_groups * model.ssm_d_inner
    seconds = core_seconds_per_flop(local, machine) / coefficients.scan_efficiency
    return ssm_layers(model) * tokens * flops * seconds
