r"""Time of weight matmuls: roofline with losses of small matrices (partly filled waves) and thin matrices (traffic).

One forward pass of a layer on one chip takes

$$ t = \max\left( \frac{2 t_k P + T a_{1/2}}{u\,C} + t_k T \frac{b}{e W}, \frac{2 P}{e W} \right) $$

with $t_k$ tokens, P local parameters and T numbers read and written per token by all matrices: for each matrix the sum
of input and output width. The output of one matmul of widths d and w has the area $t_k w$, the gradient of the input
$t_k d$. A last wave of tiles that occupies only some processors of the chip loses a fixed area, $a_{1/2}$ (NVIDIA,
Matrix Multiplication Background User's Guide, wave quantization). A matmul reads d numbers of a token and writes w
numbers; a processor does not multiply while a tile is filled or emptied (NVIDIA guide, math and memory bounds), which
costs b bytes of traffic per number.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from jaxscale.base.arrays import Number, PerPrecision
from jaxscale.base.smooth import Temperature, larger, smooth_max
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.costs.machine import Machine
from jaxscale.hardware.cluster import Chip
from jaxscale.hardware.formats import FORMATS
from jaxscale.models.transformer import (
    Transformer,
    attention_layers,
    dense_layers,
    expert_input,
    expert_params,
    head_params,
    is_latent,
    logits_per_token,
    mean_over_heads,
    merge_params,
    mlp_params,
    moe_layers,
    router_params,
    shared_expert_params,
    ssm_layers,
    ssm_params,
)
from jaxscale.plans.local import LocalPlan


class MatmulRates(NamedTuple):
    """Time per flop, weight and traffic of the matmuls of a plan on a machine.

    Attributes:
        seconds_per_flop: time per flop of large matrices [s/flop].
        half_area: a_1/2, output area lost by a matmul to partly filled waves, in elements [1].
        seconds_per_weight: time to read a weight from memory [s].
        seconds_per_thin: time of exposed traffic per number read or written for a token [s].
    """

    seconds_per_flop: Array
    half_area: Number
    seconds_per_weight: Array
    seconds_per_thin: Array


def seconds_per_flop(chip: Chip, shares: PerPrecision, coefficients: Coefficients) -> Array:
    """Time per flop of large weight matmuls: sum over number formats of share / (peak * efficiency).

    Args:
        chip: peaks of the number formats.
        shares: share of the matmuls in each number format [1].
        coefficients: efficiencies of the number formats.

    Returns:
        Time [s/flop]; a narrow format is at least as fast as the next wider format.
    """
    rates: dict[str, Array] = {}
    for entry in FORMATS:
        efficiency = coefficients.matmul_efficiency
        if entry.efficiency:
            efficiency = efficiency * getattr(coefficients, entry.efficiency)
        rate = chip.peak(entry.name) * efficiency
        # A chip without units for a format multiplies in the next wider format.
        rates[entry.name] = larger(rate, rates[entry.without_units]) if entry.without_units else rate
    return jnp.sum(jnp.asarray(shares) / jnp.stack([*rates.values()], axis=-1), axis=-1)


def matmul_rates(
    shares: PerPrecision, element_bytes: Number, machine: Machine, coefficients: Coefficients
) -> MatmulRates:
    """Rates of matmuls with given shares of number formats.

    Args:
        shares: share of the matmuls in each number format [1].
        element_bytes: stored bytes of a weight or activation [byte].
        machine: peaks and memory bandwidth.
        coefficients: efficiency, half-efficiency area, exposed traffic.

    Returns:
        The rates.
    """
    per_weight = element_bytes / machine.hbm_bandwidth
    return MatmulRates(
        seconds_per_flop=seconds_per_flop(machine.chip, shares, coefficients),
        half_area=coefficients.matmul_half_area,
        seconds_per_weight=per_weight,
        # The exposed traffic is stated for elements of two bytes.
        seconds_per_thin=0.5 * coefficients.matmul_exposed_bytes * per_weight,
    )


def matmul_time(
    tokens: ArrayLike,
    params: ArrayLike,
    thin: ArrayLike,
    rates: MatmulRates,
    temperature: Temperature = 0.0,
) -> Array:
    """Forward time of matmuls of `tokens` tokens with `params` local weights.

    Args:
        tokens: rows of the left matrix [token].
        params: local weights that multiply each row [1].
        thin: T, numbers read and written per token, summed over the matrices of the matmuls [1].
        rates: rates of the chip.
        temperature: smoothing of the roofline [1].

    Returns:
        Time [s].
    """
    # (2 t_k P + T a_half) / (u C)
    compute = (2.0 * params * tokens + jnp.asarray(thin) * rates.half_area) * rates.seconds_per_flop
    # t_k T b / (e W)
    exposed = tokens * thin * rates.seconds_per_thin
    # 2 P / (e W): reading the weights.
    return smooth_max(compute + exposed, params * rates.seconds_per_weight, temperature)


def dense_forward(
    local: LocalPlan, machine: Machine, coefficients: Coefficients, temperature: Temperature = 0.0
) -> Array:
    """Forward time of the dense matmuls (without experts) for a microbatch, summed over all layers of the model [s]."""
    model, tp = local.model, local.plan.tp
    rest = (matmul_rates(local.plan.precision, local.element_bytes, machine, coefficients), temperature)
    attention = matmul_time(local.tokens, local.attention_params, _thin_attention(local), *rest)
    mlp = matmul_time(local.tokens, mlp_params(model, model.d_ff) / tp, _thin_mlp(model, model.d_ff / tp), *rest)
    state = 2.0 * model.d_model + (3.0 * model.ssm_d_inner + 2.0 * model.ssm_state) / tp
    ssm = matmul_time(local.tokens, ssm_params(model) / tp, state, *rest)
    merged = (2.0 + 2.0 / tp) * model.d_model * model.n_predict_layers
    merge = matmul_time(local.tokens, merge_params(model) / tp, merged, *rest)
    return attention_layers(model) * attention + dense_layers(model) * mlp + ssm_layers(model) * ssm + merge


def _thin_attention(local: LocalPlan) -> Array:
    """Numbers that the matrices of one attention layer read and write per token on a rank [1].

    Queries $d + H h$, keys and values $2 d + K (h + h_v)$, output $H h_v + d$.
    """
    model, plan = local.model, local.plan
    d = model.d_model
    queries = mean_over_heads(model, lambda kind: kind.n_heads * kind.head_dim) / plan.tp
    values = mean_over_heads(model, lambda kind: kind.n_heads * kind.v_head_dim) / plan.tp
    unrotated = queries - model.n_heads * model.rope_head_dim / plan.tp
    # A low rank counts twice, as output of a matrix and input of the next.
    through_latent = d + 2.0 * model.kv_lora_rank + model.rope_head_dim + unrotated + values
    # 2 d + K (h + h_v)
    full = 2.0 * d + local.key_value_width
    key_value = full + is_latent(model) * (through_latent - full)
    ranks = 2.0 * model.q_lora_rank + 2.0 * model.o_lora_rank / plan.tp
    gate = model.attention_gate * (d + values)
    # Queries d + H h, output H h_v + d.
    return 2.0 * d + queries + values + key_value + ranks + gate


def _thin_mlp(model: Transformer, width: ArrayLike) -> Array:
    """Numbers that the matrices of one MLP of a local width read and write per token [1]."""
    # A matrix reads d and writes the width, or the reverse.
    return (2.0 + model.gated_mlp) * (model.d_model + width)


def expert_forward(
    local: LocalPlan, machine: Machine, coefficients: Coefficients, temperature: Temperature = 0.0
) -> Array:
    """Forward time of the matmuls of experts and routers for a microbatch, summed over all mixture layers of the model.

    An expert, split `etp` ways, receives `t k ep etp / (E tp)` tokens, on the hottest rank `expert_load` times as many.
    A router works in at least 16 bits, on the tokens of the rank's sequence shard.

    Returns:
        Time [s]; zero for a dense model.
    """
    model, plan, split = local.model, local.plan, local.expert_tensor_degree
    rates = matmul_rates(plan.precision, local.element_bytes, machine, coefficients)
    wide_rates = matmul_rates(local.wide, local.element_bytes, machine, coefficients)
    width = model.d_ff_expert
    expert_tokens = local.tokens * model.moe_top_k * plan.ep * split / (model.n_experts * plan.tp) * local.expert_load
    thin = (2.0 + model.gated_mlp) * (expert_input(model) + width / split)
    each = matmul_time(expert_tokens, expert_params(model) / split, thin, rates, temperature)
    # E / ep experts on a rank.
    routed = model.n_experts / plan.ep * each
    seen = model.n_shared_experts * _thin_mlp(model, width / plan.tp)
    # Traffic of the projections to and from the latent, for a latent as wide as the model.
    seen = seen + 4.0 * model.moe_latent_size / plan.tp
    shared = matmul_time(local.tokens, shared_expert_params(model) / plan.tp, seen, rates, temperature)
    kept = local.tokens / local.sequence_split
    router = matmul_time(kept, router_params(model), model.d_model + model.n_experts, wide_rates, temperature)
    return moe_layers(model) * (routed + shared + router)


def adapter_forward(
    local: LocalPlan, machine: Machine, coefficients: Coefficients, temperature: Temperature = 0.0
) -> Array:
    """Forward time of the matmuls of adapters (at least 16 bits) for a microbatch, summed over all layers [s]."""
    rank = local.plan.lora_rank
    rates = matmul_rates(local.wide, local.element_bytes, machine, coefficients)
    # The first matrix of an adapter reads a whole input, the second writes a whole output; the r numbers between are
    # left out.
    return matmul_time(local.tokens, rank * local.adapter_width, local.adapter_width, rates, temperature)


def head_forward(
    local: LocalPlan, machine: Machine, coefficients: Coefficients, temperature: Temperature = 0.0
) -> Array:
    """Forward time of the logits matmul (at least 16 bits) for a microbatch on the last stage [s]."""
    model, tp = local.model, local.plan.tp
    rates = matmul_rates(local.wide, local.element_bytes, machine, coefficients)
    thin = model.d_model + model.vocab_size / tp
    one = matmul_time(local.tokens, head_params(model) / tp, thin, rates, temperature)
    return logits_per_token(model) * one
