r"""State-space layers: the scan of Mamba-2 over the sequence, in chunks.

Per token and channel of the inner width $d_i$ a chunked scan with chunks as long as the state, N, takes 6 N flops:
2 N to update the state, 2 N to read it, and 2 N within the chunk (Dao & Gu 2024, arXiv 2405.21060, section 6).
"""

from jaxtyping import Array

from jaxscale.calibration.coefficients import Coefficients
from jaxscale.costs.attention import core_seconds_per_flop
from jaxscale.hardware.cluster import Cluster
from jaxscale.plan.plan import Plan, tokens_per_microbatch
from jaxscale.workload import Transformer

SCAN_BACKWARD = 2.0
"""Backward over forward time of a scan: gradients of both factors of every product [1]."""


def scan_forward(model: Transformer, plan: Plan, cluster: Cluster, coefficients: Coefficients) -> Array:
    """Forward time of the scans of all layers for one microbatch, as if on one stage [s]."""
    tokens = tokens_per_microbatch(model, plan) / plan.tp
    flops = 6.0 * model.ssm_state / model.ssm_groups * model.ssm_d_inner
    seconds = core_seconds_per_flop(cluster.chip, plan) / coefficients.scan_efficiency
    return model.n_ssm_layers * tokens * flops * seconds
