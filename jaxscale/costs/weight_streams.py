r"""Memory traffic of weights: casts and gradient accumulation per microbatch, optimizer update per step.

A chip that holds P weights takes $b P / (e W)$ for each microbatch, b bytes per weight. A 32-bit weight is read and a
16-bit copy is written for each pass; a gradient accumulated in 32 bits is read and written; copies into and out of
buckets come on top. Kernels that accumulate during a multiplication need less. A compiled step takes
$(c + s [m > 1]) P / (e W)$, casts and, from two microbatches on, the sum. FSDP needs more: a layer is gathered into a
buffer and copied out for each pass, and gradients are copied into a second buffer. Frozen weights have no gradients and
no 32-bit copy; FSDP gathers frozen weights too, in the stored width. Where frozen weights are stored in fewer bits than
matmuls read, each pass first reads the weights, applies the scale of each block and writes 16-bit weights: traffic per
weight, for any number of tokens (Dettmers et al. 2023, arXiv 2305.14314, equation 5). The effect is largest for
microbatches of few tokens. The update of a step reads and writes parameters, gradients and moments once; ZeRO splits
the update over replicas.
References: Micikevicius et al. 2017, arXiv 1710.03740, section 3.1; Zhao et al. 2023, arXiv 2304.11277, section 3.2.1;
Rajbhandari et al. 2020, arXiv 1910.02054, section 3.
"""

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from jaxscale.base.smooth import Temperature, several
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.costs.machine import Machine
from jaxscale.costs.model_states import gathered_width, is_narrow
from jaxscale.models.transformer import head_params, logits_per_token
from jaxscale.plans.local import LocalPlan

COPIED_WEIGHTS = 12.0 / 22.0
"""Share of weights in the copies of FSDP, the rest being gradients: 16-bit weights written to a buffer, read and
written for each of two passes, against 16-bit gradients read, written in 32 bits and read again (Zhao et al. 2023,
section 3.2.1) [1]."""

COMPILED_COPIES = 0.14
"""Traffic of FSDP's copies in a compiled step over the traffic of PyTorch's flat buffers (authors, 2026) [1]."""

COMPILED_UPDATE = 0.67
"""Traffic of a compiled optimizer update over the traffic of an update by several kernels (authors, 2026) [1]."""

COMPILED_CASTS = 6.0 / 18.0
"""Traffic of casts over the traffic of casts and accumulation: a 32-bit weight read and a 16-bit weight written,
against these casts and `COMPILED_SUM` (counts of the authors, 2026) [1]."""

COMPILED_SUM = 12.0
"""Traffic per weight of a compiled sum of gradients: sum and gradient read in 32 bits, the sum written. XLA does not
accumulate during a multiplication, unlike the kernels of Megatron-LM (counts of the authors, 2026) [byte]."""

ADAM_BYTES = 16.0
"""Bytes per parameter of the update with traffic `optimizer_bytes`: Adam's state, master copy, gradient [byte]."""


def seconds_per_weight(
    local: LocalPlan,
    machine: Machine,
    coefficients: Coefficients,
    sharers: ArrayLike,
    trained: ArrayLike,
    temperature: Temperature = 0.0,
) -> Array:
    """Time of memory traffic per weight and microbatch [s].

    Trained weights are cast and accumulated; under FSDP, all weights are copied in gathers.

    Args:
        sharers: ranks that share a sharded copy of the weights [1].
        trained: share of the weights with gradients, adapters included [1].
    """
    c = coefficients
    summed = COMPILED_SUM * local.plan.compiled * several(local.plan.n_microbatches, temperature)
    # A compiler gathers into the operands of its matmuls, without buffers to copy from.
    by_copies = local.weights_sharded * jnp.power(COMPILED_COPIES, local.plan.compiled)
    # A rank without sharers gathers nothing.
    gathered = by_copies * (1.0 - 1.0 / jnp.asarray(sharers))
    copied = COPIED_WEIGHTS + (1.0 - COPIED_WEIGHTS) * trained
    cast = c.accumulation_bytes * jnp.power(COMPILED_CASTS, local.plan.compiled)
    traffic = (cast + summed) * trained + gathered * c.fsdp_bytes * copied * gathered_width(local) / local.element_bytes
    return traffic / machine.hbm_bandwidth


def accumulation_time(
    local: LocalPlan, machine: Machine, coefficients: Coefficients, temperature: Temperature = 0.0
) -> Array:
    """Time of casts, copies and gradient accumulation for a microbatch, summed over all layers of the model [s]."""
    per_weight, per_expert_weight = (
        seconds_per_weight(local, machine, coefficients, sharers, local.trained_share, temperature)
        for sharers in (local.shard_ranks, local.expert_shard_ranks)
    )
    # Forward, backward, and the recomputed forward pass.
    passes = 2.0 + local.plan.recompute_full * local.plan.recompute_cost
    widened = is_narrow(local) * local.plan.dequantised_bytes * passes / machine.hbm_bandwidth
    return local.dense_params * (per_weight + widened) + local.routed_params * (per_expert_weight + widened)


def head_accumulation_time(
    local: LocalPlan, machine: Machine, coefficients: Coefficients, temperature: Temperature = 0.0
) -> Array:
    """Time of casts, copies and gradient accumulation of the logits head for a microbatch [s]."""
    weights = logits_per_token(local.model) * head_params(local.model) / local.plan.tp
    # The head has no adapters.
    trained = local.model.trainable_share
    return weights * seconds_per_weight(local, machine, coefficients, local.shard_ranks, trained, temperature)


def optimizer_time(local: LocalPlan, machine: Machine, coefficients: Coefficients) -> Array:
    """Time of the parameter update by the optimizer in a step [s]."""
    trained = local.trained_params(local.optimizer_sharded)
    # Relative to the update with traffic `optimizer_bytes`.
    width = (local.plan.optimizer_bytes + local.plan.gradient_bytes) / ADAM_BYTES
    traffic = coefficients.optimizer_bytes * width * jnp.power(COMPILED_UPDATE, local.plan.compiled)
    return traffic * trained / machine.hbm_bandwidth
