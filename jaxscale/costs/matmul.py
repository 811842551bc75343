r"""Weight matmuls: roofline, with losses of small local matrices to waves and of thin ones to the memory.

One forward pass of a layer on one chip takes

$$ t = \max\left( \frac{2 t_k P}{u\,C} \left(1 + \left(\frac1d + \frac1w\right) \frac{a_{1/2}}{2 t_k}\right)
   + \left(\frac1d + \frac1w\right) t_k P \frac{b}{e W}, \frac{2 P}{e W} \right) $$

with $t_k$ tokens, P local parameters, w the local inner width (heads or MLP, divided by tp). The output of one matmul
has the area $t_k w$, that of its input's gradient $t_k d$. Tiles that fill the last wave of the chip's processors only
in part lose a fixed area of it, $a_{1/2}$ (NVIDIA, Matrix Multiplication Background User's Guide, wave quantization).
A matmul reads d numbers of a token and writes w, $P (1/d + 1/w)$ over all its matrices; while a tile is filled or
emptied its processor does not multiply (same guide, math and memory bounds), which costs b bytes of traffic for each.
"""

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from jaxscale._arrays import PRECISIONS
from jaxscale._smooth import Temperature, larger, smooth_max
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.hardware.cluster import Chip, Cluster
from jaxscale.plan.plan import (
    Plan,
    attention_rank_params,
    element_bytes,
    expert_tensor_degree,
    sequence_split,
    sixteen_bit,
    tokens_per_microbatch,
)
from jaxscale.workload import (
    Transformer,
    expert_input,
    expert_params,
    head_params,
    logits_per_token,
    merge_params,
    mlp_params,
    moe_layers,
    router_params,
    shared_expert_params,
    ssm_params,
)


def seconds_per_flop(chip: Chip, plan: Plan, coefficients: Coefficients) -> Array:
    """Time of one weight-matmul flop of large matrices: shares of each precision over its peak [s/flop].

    No narrow format is slower than the next wider one: a chip without units for it multiplies in that.
    """
    c = coefficients
    efficiency = {"fp8": c.matmul_efficiency * c.fp8_efficiency, "fp4": c.matmul_efficiency * c.fp4_efficiency}
    rates = {name: chip.peak(name) * efficiency.get(name, c.matmul_efficiency) for name in PRECISIONS}
    rates["fp8"] = larger(rates["fp8"], rates["bf16"])
    rates["fp4"] = larger(rates["fp4"], rates["fp8"])
    return jnp.sum(jnp.asarray(plan.precision) / jnp.stack([*rates.values()], axis=-1), axis=-1)


def matmul_time(
    tokens: ArrayLike,
    params: ArrayLike,
    width: ArrayLike,
    d: ArrayLike,
    plan: Plan,
    cluster: Cluster,
    coefficients: Coefficients,
    temperature: Temperature = 0.0,
) -> Array:
    """Forward time of matmuls with `params` local weights for `tokens` tokens.

    Args:
        tokens: rows of the left matrix [token].
        params: local weights that multiply each row [1].
        width: local inner width, of what is written for a token [1].
        d: width of a token, of what is read [1].
        plan: precision of the matmuls.
        cluster: peak and memory bandwidth.
        coefficients: efficiency, half-efficiency area, exposed traffic.
        temperature: smoothing of the roofline [1].

    Returns:
        Time [s].
    """
    c = coefficients
    thin = params * (1.0 / jnp.asarray(d) + 1.0 / width)
    bandwidth = cluster.chip.hbm_bandwidth * c.hbm_efficiency
    compute = (2.0 * params * tokens + thin * c.matmul_half_area) * seconds_per_flop(cluster.chip, plan, c)
    exposed = tokens * thin * 0.5 * element_bytes(plan) * c.matmul_exposed_bytes / bandwidth
    memory = element_bytes(plan) * params / bandwidth
    return smooth_max(compute + exposed, memory, temperature)


def dense_forward(
    model: Transformer, plan: Plan, cluster: Cluster, coefficients: Coefficients, temperature: Temperature = 0.0
) -> Array:
    """Forward matmul time of all layers of a model for one microbatch, experts left out, as if on one stage [s]."""
    tokens = tokens_per_microbatch(model, plan)
    rest = (model.d_model, plan, cluster, coefficients, temperature)
    heads = model.n_heads * model.head_dim / plan.tp
    attention = matmul_time(tokens, attention_rank_params(model, plan, temperature), heads, *rest)
    mlp = matmul_time(tokens, mlp_params(model, model.d_ff) / plan.tp, model.d_ff / plan.tp, *rest)
    ssm = matmul_time(tokens, ssm_params(model) / plan.tp, (1.0 + model.ssm_d_inner) / plan.tp, *rest)
    merge = matmul_time(tokens, merge_params(model) / plan.tp, model.d_model / plan.tp, *rest)
    return model.n_attention_layers * attention + model.n_dense_layers * mlp + model.n_ssm_layers * ssm + merge


def expert_forward(
    model: Transformer, plan: Plan, cluster: Cluster, coefficients: Coefficients, temperature: Temperature = 0.0
) -> Array:
    """Forward matmul time of all mixture layers for one microbatch, as if on one stage: experts and routers.

    An expert, split `etp` ways, sees `t k ep etp / (E tp)` tokens: all are equally busy. A router works in no fewer
    than 16 bits, on the tokens that a rank keeps.

    Returns:
        Time [s]; zero for a dense model.
    """
    tokens = tokens_per_microbatch(model, plan)
    width, split = model.d_ff_expert, expert_tensor_degree(plan, temperature)
    expert_tokens = tokens * model.moe_top_k * plan.ep * split / (model.n_experts * plan.tp)
    local_experts = model.n_experts / plan.ep
    rest = (plan, cluster, coefficients, temperature)
    each = matmul_time(expert_tokens, expert_params(model) / split, width / split, expert_input(model), *rest)
    routed = local_experts * each
    shared = matmul_time(tokens, shared_expert_params(model) / plan.tp, width / plan.tp, model.d_model, *rest)
    kept, wide = tokens / sequence_split(plan), sixteen_bit(plan)
    router = matmul_time(kept, router_params(model), model.n_experts, model.d_model, wide, *rest[1:])
    return moe_layers(model) * (routed + shared + router)


def head_forward(
    model: Transformer, plan: Plan, cluster: Cluster, coefficients: Coefficients, temperature: Temperature = 0.0
) -> Array:
    """Forward matmul time of the logits of one microbatch on the last stage, in no fewer than 16 bits [s]."""
    tokens = tokens_per_microbatch(model, plan)
    rest = (model.d_model, sixteen_bit(plan), cluster, coefficients, temperature)
    one = matmul_time(tokens, head_params(model) / plan.tp, model.vocab_size / plan.tp, *rest)
    return logits_per_token(model) * one
