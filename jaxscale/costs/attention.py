r"""Attention core: scores and weighted values, fused or materialised.

Fused (flash): the flops that a causal mask leaves, at an efficiency of their own. Materialised: full flops and the
traffic of the score matrix, $S$ scores per token and head.
References: Dao et al. 2022, arXiv 2205.14135; Korthikanti et al. 2022, arXiv 2205.05198, section 4.
"""

from jaxtyping import Array

from jaxscale.calibration.coefficients import Coefficients
from jaxscale.hardware.cluster import Chip, Cluster
from jaxscale.plan.plan import Plan, element_bytes, sixteen_bit, tokens_per_microbatch
from jaxscale.workload import Transformer, attended_keys, attention_flops_per_token

FLASH_BACKWARD = 2.5
"""Backward flops of fused attention over its forward ones: five matmuls against two (Dao 2023, arXiv 2307.08691)."""


def core_seconds_per_flop(chip: Chip, plan: Plan) -> Array:
    """Time of one flop of the attention core, or of a scan, at its peak [s/flop]."""
    return chip.seconds_per_flop(sixteen_bit(plan).precision)


def attention_forward(model: Transformer, plan: Plan, cluster: Cluster, coefficients: Coefficients) -> Array:
    """Forward time of the attention core of all layers for one microbatch, as if on one stage [s]."""
    c = coefficients
    tokens = tokens_per_microbatch(model, plan) / plan.tp
    seconds = core_seconds_per_flop(cluster.chip, plan) / c.attention_efficiency
    fused = tokens * attention_flops_per_token(model, model.causal) * seconds
    scores = tokens * model.n_heads * attended_keys(model)
    traffic = scores * 0.5 * element_bytes(plan) * c.score_bytes / (cluster.chip.hbm_bandwidth * c.hbm_efficiency)
    materialised = tokens * attention_flops_per_token(model) * seconds + traffic
    return model.n_attention_layers * (materialised + plan.flash_attention * (fused - materialised))


def attention_backward_factor(plan: Plan) -> Array:
    """Backward over forward time of the attention core: 2.5 fused, 2 materialised [1]."""
    return 2.0 + (FLASH_BACKWARD - 2.0) * plan.flash_attention
