"""Parallel plans: degrees, sharding, schedule, recomputation, precision.

Choices that are words to a person (`recompute="full"`) become switches between 0 and 1, so that plans of every kind
stack, sweep under one `jax.vmap` and differentiate. At 0 and 1 a switch is exact; between, the costs blend linearly.
"""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxscale._arrays import PRECISIONS, Number, PerPrecision, as_float
from jaxscale._smooth import Temperature, degree_within, is_exact, larger, positive_part, several, smaller, smooth_max
from jaxscale.workload import Transformer, attention_params

RECOMPUTE = ("none", "selective", "full")
ZERO_STAGES = (1, 2, 3)
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble")


class Plan(eqx.Module):
    """How one training step is laid over the chips: `n_chips = dp * tp * pp * cp`, `B = b * m * dp`.

    Attributes:
        dp: data-parallel degree [1].
        tp: tensor-parallel degree [1].
        pp: pipeline stages [1].
        vpp: virtual stages per chip (interleaving) [1].
        cp: context-parallel degree [1].
        ep: expert-parallel degree; divides dp * cp * tp [1].
        zero_stage: 0 to 3: none, optimizer, gradients, parameters sharded (3 is FSDP) [1].
        shard_group: chips that share one sharded copy; dp for plain ZeRO, fewer for HSDP [1].
        micro_batch_size: b, sequences per microbatch and replica [1].
        n_microbatches: m, microbatches per step and replica [1].
        sequence_parallel: 1 where norms and residuals are split over tp [1].
        recompute_selective: 1 where only the attention core is recomputed [1].
        recompute_full: 1 where whole layers are recomputed [1].
        gpipe: 1 where all forwards run before the first backward [1].
        zero_bubble: 1 for the zero-bubble schedule ZB-H1, whose weight gradients fill part of the bubble [1].
        flash_attention: 1 for fused attention, 0 for materialised scores [1].
        overlap_gradients: 1 where gradients are reduced while the last backward pass still runs, 0 after it [1].
        balanced_stages: 1 where pipeline stages get layers by cost, the logits head included, 0 where evenly [1].
        gradient_bytes: of a gradient while replicas reduce it: 4 in 32 bits, 2 in 16 [byte].
        fused_glu: 1 where one kernel gates the MLP and keeps its inputs alone, 0 where also the activated gate [1].
        precision: share of the weight matmuls done in each of `PRECISIONS` [1].
    """

    dp: Number
    tp: Number
    pp: Number
    vpp: Number
    cp: Number
    ep: Number
    zero_stage: Number
    shard_group: Number
    micro_batch_size: Number
    n_microbatches: Number
    sequence_parallel: Number
    recompute_selective: Number
    recompute_full: Number
    gpipe: Number
    zero_bubble: Number
    flash_attention: Number
    overlap_gradients: Number
    balanced_stages: Number
    gradient_bytes: Number
    fused_glu: Number
    precision: PerPrecision

    def __init__(
        self,
        dp: Any = 1,
        tp: Any = 1,
        pp: Any = 1,
        vpp: Any = 1,
        cp: Any = 1,
        ep: Any = 1,
        zero_stage: Any = 0,
        micro_batch_size: Any = 1,
        n_microbatches: Any = 1,
        sequence_parallel: Any = False,
        recompute: str = "none",
        *,
        schedule: str = "1f1b",
        shard_group: Any = None,
        precision: str = "bf16",
        flash_attention: Any = True,
        overlap_gradients: Any = True,
        balanced_stages: Any = False,
        gradient_bytes: Any = 4,
        fused_glu: Any = False,
    ):
        """Describe a plan in words and numbers.

        Raises:
            ValueError: an unknown word or a degree below its range.
        """
        self.dp, self.tp, self.pp, self.vpp = as_float(dp), as_float(tp), as_float(pp), as_float(vpp)
        self.cp, self.ep, self.zero_stage = as_float(cp), as_float(ep), as_float(zero_stage)
        self.shard_group = self.dp if shard_group is None else as_float(shard_group)
        self.micro_batch_size, self.n_microbatches = as_float(micro_batch_size), as_float(n_microbatches)
        self.sequence_parallel = as_float(sequence_parallel)
        _check_word("recompute", recompute, RECOMPUTE)
        _check_word("schedule", schedule, SCHEDULES)
        _check_word("precision", precision, PRECISIONS)
        self.recompute_selective = float(recompute == "selective")
        self.recompute_full = float(recompute == "full")
        self.gpipe = float(schedule == "gpipe")
        self.zero_bubble = float(schedule == "zero-bubble")
        self.flash_attention = as_float(flash_attention)
        self.overlap_gradients = as_float(overlap_gradients)
        self.balanced_stages = as_float(balanced_stages)
        self.gradient_bytes = as_float(gradient_bytes)
        self.fused_glu = as_float(fused_glu)
        self.precision = np.asarray([float(name == precision) for name in PRECISIONS])

    def __check_init__(self):
        """Refuse degrees below one; traced values are not looked at."""
        for name in ("dp", "tp", "pp", "vpp", "cp", "ep", "micro_batch_size", "n_microbatches", "shard_group"):
            value = getattr(self, name)
            if isinstance(value, float) and not 1 <= value < float("inf"):
                raise ValueError(f"Plan.{name} = {value:g} is out of range; expected a number of at least 1")
        if isinstance(self.gradient_bytes, float) and not 0 < self.gradient_bytes < float("inf"):
            raise ValueError(
                f"Plan.gradient_bytes = {self.gradient_bytes:g} is out of range; expected bytes above 0, as 2"
            )
        if isinstance(self.zero_stage, float) and not 0 <= self.zero_stage <= 3:
            raise ValueError(f"Plan.zero_stage = {self.zero_stage:g} is out of range; expected 0, 1, 2 or 3")

    @property
    def n_chips(self) -> Number:
        """Chips that the plan takes: dp * tp * pp * cp [1]."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def global_batch_size_seqs(self) -> Number:
        """B = b * m * dp [sequence]."""
        return self.micro_batch_size * self.n_microbatches * self.dp


def _check_word(field: str, word: str, valid: tuple[str, ...]) -> None:
    if word not in valid:
        raise ValueError(f"Plan.{field} = {word!r} is unknown; expected one of {', '.join(valid)}")


def sharding(plan: Plan, stage: int) -> Array:
    """Switch of one ZeRO stage: 1 from that stage on, 0 below, linear between whole stages [1].

    Without bounds at the ends of the domain, stages 0 and 3, so that the slope there is that of the inside.
    """
    begun = jnp.subtract(plan.zero_stage, stage - 1.0)
    begun = begun if stage == ZERO_STAGES[0] else larger(begun, 0.0)
    return begun if stage == ZERO_STAGES[-1] else smaller(begun, 1.0)


def pipelining(plan: Plan) -> Array:
    """Switch of a pipeline: 1 from two stages on, 0 without, linear between one stage and two [1]."""
    return several(plan.pp)


def tokens_per_microbatch(model: Transformer, plan: Plan) -> Number:
    """Tokens that one chip sees in one microbatch: b * S / cp [token]."""
    return plan.micro_batch_size * model.seq_len / plan.cp


def key_value_heads(model: Transformer, plan: Plan, temperature: Temperature = 0.0) -> Array:
    """Key/value heads on a tensor-parallel rank: K / tp, or a copy of one where ranks outnumber them [1]."""
    return smooth_max(model.n_kv_heads / plan.tp, 1.0, temperature)


def attention_rank_params(model: Transformer, plan: Plan, temperature: Temperature = 0.0) -> Array:
    """Matmul parameters of one attention layer on a tensor-parallel rank, copied key/value heads included [1]."""
    return attention_params(model) / plan.tp + copied_params(model, plan, temperature)


def copied_params(model: Transformer, plan: Plan, temperature: Temperature = 0.0) -> Array:
    """Of these what ranks beyond the key/value heads hold copies of: zero up to as many ranks as heads [1]."""
    copied = key_value_heads(model, plan, temperature) - model.n_kv_heads / plan.tp
    return copied * model.d_model * (model.head_dim + model.v_head_dim)


def shard_ranks(plan: Plan) -> Number:
    """Ranks that share one sharded copy of the weights: a context-parallel group holds the same ones [1]."""
    return plan.shard_group * plan.cp


def sequence_split(plan: Plan) -> Array:
    """Ways in which the residual stream is split inside a tensor-parallel group: tp with sequence parallelism [1]."""
    return 1.0 + plan.sequence_parallel * (plan.tp - 1.0)


WIDER_FORMAT = {"fp8": "bf16", "fp4": "bf16"}
"""Format of what stays in 16 bits where weight matmuls use fewer: the attention core, scans, the logits head
(Micikevicius et al. 2022, arXiv 2209.05433, section 4)."""


def sixteen_bit(plan: Plan) -> Plan:
    """The same plan for work that is done in no fewer than 16 bits, see `WIDER_FORMAT`."""
    formats = jnp.asarray([PRECISIONS.index(WIDER_FORMAT.get(name, name)) for name in PRECISIONS])
    share = jnp.asarray(plan.precision)
    wider = share @ jnp.eye(len(PRECISIONS), dtype=share.dtype)[formats]
    return eqx.tree_at(lambda p: p.precision, plan, wider)


ELEMENT_BYTES = {"fp32": 4.0, "tf32": 4.0, "bf16": 2.0, "fp8": 2.0, "fp4": 2.0}
"""Bytes of a weight or activation outside the matmuls, by what these read: 8- and 4-bit inputs are cast from 16 bits
(Micikevicius et al. 2022, arXiv 2209.05433, section 4), tf32 ones are 32-bit numbers (NVIDIA A100 whitepaper, 2020)."""


def element_bytes(plan: Plan) -> Array:
    """Stored bytes of a weight or activation: 2, or 4 where matmuls read 32-bit numbers [byte]."""
    return mean_by_precision(plan, ELEMENT_BYTES)


GATHERED_BYTES = {**ELEMENT_BYTES, "fp8": 1.0, "fp4": 1.0}
"""Bytes of an activation gathered as the input of matmuls, by what these read: 8-bit inputs are quantised before they
are sent; blocks of 4-bit ones bring scales along (Transformer Engine, userbuffers, 2025) [byte]."""


def gathered_bytes(plan: Plan) -> Array:
    """Bytes of an activation that is gathered to be the input of matmuls [byte]."""
    return mean_by_precision(plan, GATHERED_BYTES)


def mean_by_precision(plan: Plan, numbers: Mapping[str, float]) -> Array:
    """Mean of a number over the weight matmuls, by the format in which they are done."""
    share = jnp.asarray(plan.precision)
    return jnp.sum(share * jnp.asarray([numbers[name] for name in PRECISIONS], share.dtype), axis=-1)


def expert_tensor_degree(plan: Plan, temperature: Temperature = 0.0) -> Array:
    """Ways that each expert's matrices are split: tp, or fewer where ep takes chips of the tensor-parallel groups.

    The groups of ep * etp chips lie inside the dp * cp * tp chips of a stage (Megatron-Core's parallel folding,
    arXiv 2504.14960, section 3).

    Args:
        plan: degrees.
        temperature: smoothing of the minimum [1].

    Returns:
        Degree; 1 where ep takes all of dp * cp * tp [1].
    """
    room = plan.dp * plan.cp / plan.ep
    if is_exact(temperature):
        return plan.tp * smaller(room, 1.0)
    # ep = dp * cp is a common choice: a sharper bend than elsewhere keeps one replica of each expert one.
    return degree_within(room * plan.tp, plan.tp, 0.3 * temperature)


def expert_shard(plan: Plan, temperature: Temperature = 0.0) -> Array:
    """Chips of a stage over which its routed experts are spread: ep * etp, see `expert_tensor_degree` [1]."""
    return plan.ep * expert_tensor_degree(plan, temperature)


def expert_replicas(plan: Plan, temperature: Temperature = 0.0) -> Array:
    """Copies of each routed expert in a stage: dp * cp * tp chips over those that share one copy [1]."""
    return plan.dp * plan.cp * plan.tp / expert_shard(plan, temperature)


def expert_shard_ranks(plan: Plan, temperature: Temperature = 0.0) -> Array:
    r"""Ranks that share one sharded copy of each routed expert: its replicas inside one shard group [1].

    The shard group's $s c\,tp$ chips hold $s c\,tp / (ep\,etp)$ replicas, or one where they hold not even one whole
    (Zhao et al. 2023, arXiv 2304.11277, section 3.2.2; torchtitan, 2025, shards experts over as many).
    """
    inside = shard_ranks(plan) * plan.tp / expert_shard(plan, temperature)
    return jnp.exp(positive_part(jnp.log(inside), temperature))
