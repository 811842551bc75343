"""Parallel plans: degrees, sharding, schedule, recomputation, precision.

Choices given as words (`recompute="full"`) become switches between 0 and 1, so that all plans stack, sweep under one
`jax.vmap` and differentiate. At 0 and 1 a switch is exact; between, the costs blend linearly.
"""

from collections.abc import Mapping
from dataclasses import KW_ONLY, InitVar
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from jaxscale.base.arrays import Number, PerPrecision, PerTarget, number, number_field, with_properties
from jaxscale.base.documents import data_path, read_toml
from jaxscale.base.domains import Bound, Domain, bounds_of
from jaxscale.base.show import Printout, is_single, leaves_shown, printed
from jaxscale.hardware.formats import PRECISIONS
from jaxscale.plans.adapters import target_shares, target_words
from jaxscale.plans.optimizers import mixed_precision_bytes

_SWITCHES = read_toml(data_path("domains.toml"))["switches"]

FLAGS: tuple[str, ...] = tuple(_SWITCHES["flags"])
"""Fields that are 1 where software has a feature, else 0."""

WORDS: tuple[str, ...] = tuple(_SWITCHES["words"])
"""Switches set by a word, see `plan.SWITCHES`."""

PLAN = Domain(
    "Plan",
    {
        **bounds_of("Plan"),
        **dict.fromkeys(FLAGS, Bound(0.0, 1.0, False, "1 where software does so")),
        **dict.fromkeys(WORDS, Bound(0.0, 1.0, False, "1 where the word of this name is chosen")),
    },
)
"""Valid numbers of a `Plan`."""


SWITCHES: Mapping[str, Mapping[str, str]] = {
    "recompute": {"none": "", "selective": "recompute_selective", "full": "recompute_full"},
    "schedule": {
        "gpipe": "gpipe",
        "1f1b": "",
        "interleaved": "",
        "zero-bubble": "zero_bubble",
        "dualpipe": "dual_pipe",
    },
    "execution": {"eager": "", "compiled": "compiled", "cuda-graphs": "cuda_graphs"},
    "tp_overlap": {"none": "", "backward": "tp_overlap_backward", "full": "tp_overlap_full"},
    "moe_dispatcher": {"alltoall": "", "allgather": "dispatch_allgather", "deepep": "deepep", "hybridep": "hybridep"},
}
"""Words of each choice, in order, with the switch of each word; a word without a switch turns all switches off. A
schedule with all switches off is interleaved where a chip holds several virtual stages, else 1F1B."""

DECISIONS = ("recompute", "schedule")
"""Choices decided by a search for a plan."""

SOFTWARE_CHOICES = tuple(choice for choice in SWITCHES if choice not in DECISIONS)
"""Choices fixed by software: `execution`, `tp_overlap`, `moe_dispatcher`."""

RECOMPUTE, SCHEDULES = tuple(SWITCHES["recompute"]), tuple(SWITCHES["schedule"])
ZERO_STAGES = (1, 2, 3)

END_STAGES = ("first_stage_layers", "last_stage_layers")
"""Fields of a plan with the stated layers of the end stages of the pipeline, 0 where not stated."""

DEGREES = (
    *("dp", "tp", "pp", "vpp", "cp", "ep", "zero_stage", "shard_group", "micro_batch_size", "n_microbatches"),
    *END_STAGES,
)
"""Fields of a plan that are counts."""

DECIDED = (
    *DEGREES,
    "sequence_parallel",
    *(switch for name in DECISIONS for switch in SWITCHES[name].values() if switch),
)
"""Fields of a plan that are decided for each run; all remaining fields are fixed by the software."""

ROUTING = ("expert_skew", "expert_load", "capacity_factor", "balanced_experts")
"""Fields of a plan that set the load of experts."""

SIZES = (
    "etp",
    "gradient_bytes",
    "optimizer_bytes",
    "weight_bytes",
    "recompute_cost",
    "attention_rate",
    "loss_bytes",
    "adapter_bytes",
    "lora_rank",
    "dequantised_bytes",
    "gradient_copy_bytes",
    "held_bytes",
    "cached_share",
    "host_time_layer",
    "offload_activations",
    "offload_optimizer",
    *ROUTING,
)
"""Further numbers of a plan: sizes, rates and shares."""


def switches_of(choice: str, codes: Any) -> dict[str, Any]:
    """Switches of a choice, from the index of the chosen word.

    Args:
        choice: name of a choice in `SWITCHES`.
        codes: indices of the words in `SWITCHES[choice]`, a number or an array.

    Returns:
        Every switch of the choice by name: 1 where the word of the switch is chosen, else 0.
    """
    words = SWITCHES[choice]
    # Codes may be arrays: plans stack.
    return {switch: np.equal(codes, place) * 1.0 for place, switch in enumerate(words.values()) if switch}


def codes_of(choice: str, switches: Mapping[str, Any]) -> Any:
    """Index of the chosen word of a choice, from its switches; the inverse of `switches_of`.

    Args:
        choice: name of a choice in `SWITCHES`.
        switches: switches by name, concrete numbers or arrays; further names are ignored.

    Returns:
        Indices of the words in `SWITCHES[choice]`: of the switch that is on, or of the first word without a switch.
    """
    names = list(SWITCHES[choice].values())
    codes: Any = names.index("")
    for place, switch in enumerate(names):
        if switch:
            codes = np.where(np.asarray(switches[switch]) > 0, place, codes)
    return codes


CUSTOMARY = {
    "recompute": "none",
    "schedule": "1f1b",
    "execution": "eager",
    "tp_overlap": "none",
    "moe_dispatcher": "alltoall",
}
"""Default word of each choice, without a stated word or switch: the word of an unknown framework
(`data/frameworks.toml`, table `default`)."""


def _format_shares(precision: Any) -> Any:
    """Share of each number format in the matmuls [1], from the name of a single format; shares pass unchanged."""
    if not isinstance(precision, str):
        return precision
    # A single format has the whole share.
    return np.eye(len(PRECISIONS))[_place("precision", precision, PRECISIONS)]


def _word_property(choice: str) -> property:
    """Property that gives the word of a choice of a concrete plan."""
    return property(lambda plan: plan.word(choice))


@printed(lambda plan: _shown(plan))
@with_properties(**{choice: _word_property(choice) for choice in SWITCHES})
class Plan(eqx.Module):
    """Parallel plan of a training step: `n_chips = dp * tp * pp * cp`, `B = b * m * dp`.

    All fields are numbers, array leaves that trace and differentiate. Words (`recompute`, `schedule`, `execution`,
    `tp_overlap`, `moe_dispatcher`, `precision`) may be given instead of the corresponding switches and shares. A
    missing field takes the value of an unknown framework.

    Raises:
        ValueError: an unknown word, or a degree below its range.
    """

    dp: Number = number_field(1)
    """Data-parallel degree [1]."""
    tp: Number = number_field(1)
    """Tensor-parallel degree [1]."""
    pp: Number = number_field(1)
    """Pipeline stages [1]."""
    vpp: Number = number_field(1)
    """Virtual stages per chip (interleaving) [1]."""
    cp: Number = number_field(1)
    """Context-parallel degree [1]."""
    ep: Number = number_field(1)
    """Expert-parallel degree; divides dp * cp * tp [1]."""
    zero_stage: Number = number_field(0)
    """ZeRO stage, 0 to 3: none, optimizer, gradients, parameters sharded (3 is FSDP) [1]."""
    micro_batch_size: Number = number_field(1)
    """b, sequences per microbatch and replica [1]."""
    n_microbatches: Number = number_field(1)
    """m, microbatches per step and replica [1]."""
    sequence_parallel: Number = number_field(False)
    """1 where norms and residuals are split over tp [1]."""
    recompute: InitVar[str | None] = None
    """Word of `SWITCHES`: activations recomputed in the backward pass."""
    _: KW_ONLY
    schedule: InitVar[str | None] = None
    """Word of `SWITCHES`: order of the passes of a pipeline."""
    shard_group: Number = number_field(0)
    """Chips of one sharded copy: fewer than dp for HSDP; 0 for all of dp [1]."""
    precision: PerPrecision = eqx.field(converter=_format_shares, default="bf16")
    """Share of each of `PRECISIONS` in the weight matmuls, or the name of one format [1]."""
    flash_attention: Number = number_field(True)
    """1 for fused attention, 0 for materialised scores [1]."""
    first_stage_layers: Number = number_field(0)
    """Layers of the first stage of a pipeline; 0 for the equal share [1]."""
    last_stage_layers: Number = number_field(0)
    """Layers of the last stage, beside the logits head; 0 for the equal share [1]."""
    overlap_gradients: Number = number_field(True)
    """1 where gradients are reduced during the last backward pass, 0 afterwards [1]."""
    balanced_stages: Number = number_field(False)
    """1 where pipeline stages get layers by cost, the logits head included, 0 for an even split [1]."""
    gradient_bytes: Number = number_field(4)
    """Bytes of a gradient in the reduction over replicas: 4 in 32 bits, 2 in 16 [byte]."""
    fused_glu: Number = number_field(False)
    """1 where one kernel gates the MLP and stores only the inputs, 0 where the activated gate is stored too [1]."""
    recompute_selective: Number = number_field(None)
    """1 where only the attention core is recomputed [1]."""
    recompute_full: Number = number_field(None)
    """Share of a layer's activations, beyond the input of the layer, that is recomputed [1]."""
    recompute_cost: Number = number_field(1)
    """Recomputed share of a layer's forward pass, over `recompute_full` [1]."""
    etp: Number = number_field(0)
    """Shards of each expert; 0 to derive the number from ep, see `expert_tensor_degree` [1]."""
    gpipe: Number = number_field(None)
    """1 where all forward passes run before the first backward pass [1]."""
    zero_bubble: Number = number_field(None)
    """1 for the zero-bubble schedule ZB-H1, where weight gradients fill the bubble in part [1]."""
    dual_pipe: Number = number_field(None)
    """1 for DualPipe, which runs two pipelines in opposite directions and hides exchanges behind compute [1]."""
    execution: InitVar[str | None] = None
    """Word of `SWITCHES`: launch mode of kernels."""
    compiled: Number = number_field(None)
    """1 where a compiler, such as XLA, launches whole graphs of fused kernels [1]."""
    cuda_graphs: Number = number_field(None)
    """1 where recorded graphs of kernels are replayed [1]."""
    tp_overlap: InitVar[str | None] = None
    """Word of `SWITCHES`: tensor-parallel collectives that run beside matmuls."""
    tp_overlap_backward: Number = number_field(None)
    """1 where tensor-parallel collectives of the backward pass alone run beside matmuls [1]."""
    tp_overlap_full: Number = number_field(None)
    """1 where tensor-parallel collectives run beside matmuls backward and, piece by piece, forward [1]."""
    moe_dispatcher: InitVar[str | None] = None
    """Word of `SWITCHES`: dispatcher of tokens to experts."""
    dispatch_allgather: Number = number_field(None)
    """1 where every expert-parallel rank gathers the tokens of all ranks [1]."""
    deepep: Number = number_field(None)
    """1 where a token travels once to each domain with a chosen expert [1]."""
    hybridep: Number = number_field(None)
    """1 for the transfers of `deepep` by kernels on fewer multiprocessors [1]."""
    moe_overlap: Number = number_field(False)
    """1 where exchanges of experts run beside the compute of a second microbatch [1]."""
    overlap_gathers: Number = number_field(True)
    """1 where FSDP gathers the next layer while the present layer runs [1]."""
    fused_norm: Number = number_field(True)
    """1 where one kernel computes a norm, 0 where each operation of a norm is a kernel in 32 bits [1]."""
    chunked_loss: Number = number_field(False)
    """1 where logits are computed and consumed in chunks of tokens, never all at once [1]."""
    vocab_parallel_loss: Number = number_field(False)
    """1 where the loss is computed from logits split over tp [1]."""
    attention_rate: Number = number_field(1)
    """Rate of the attention kernel over that of FlashAttention-2 [1]."""
    loss_bytes: Number = number_field(12)
    """Memory per logit during the loss: logits, intermediate tensors in 32 bits, gradient of the logits [byte]."""
    adapter_bytes: Number = number_field(0)
    """Bytes per element of a matmul's input stored for the adapters of frozen weights [byte]."""
    lora_rank: Number = number_field(0)
    """Rank of adapters, with all weights of the model frozen; 0 for no adapters [1]."""
    lora_targets: PerTarget = eqx.field(converter=target_shares, default="all-linear")
    """1 for each of `adapters.MATMULS` with an adapter, or names of matmuls joined by + [1]."""
    dequantised_bytes: Number = number_field(12)
    """Traffic per frozen weight and pass for widening a weight stored in fewer bits than matmuls read [byte]."""
    autocast: Number = number_field(False)
    """1 where the residual stream stays in 32 bits and each matmul casts its inputs [1]."""
    wide_weights: Number = number_field(False)
    """1 where trained weights are stored in 32 bits alone, and serve as the optimizer's master copy [1]."""
    narrow_gate: Number = number_field(False)
    """1 where gate and input of the MLP are stored in the narrow width of matmuls [1]."""
    kept_gate: Number = number_field(False)
    """1 where a compiler stores the activated gate and the product of the MLP, 0 for recomputation [1]."""
    copied_attention: Number = number_field(False)
    """1 where the output of attention is copied for the following matmul [1]."""
    dropout: Number = number_field(False)
    """1 where masks of dropout are stored [1]."""
    kept_gradients: Number = number_field(False)
    """1 where a buffer holds all gradients during the whole step, 0 where backward passes allocate gradients [1]."""
    gradient_copy_bytes: Number = number_field(0)
    """Bytes of a second copy of a gradient, for the reduction over replicas [byte]."""
    cached_gradients: Number = number_field(False)
    """1 where one temporary gradient per weight shape stays allocated [1]."""
    held_bytes: Number = number_field(0)
    """Further memory of the software during a step, such as buckets of the exchange between replicas [byte]."""
    queued_collectives: Number = number_field(True)
    """1 where buffers of tensor-parallel collectives stay allocated while hosts launch ahead of chips [1]."""
    cached_share: Number = number_field(0)
    """Memory that the caching allocator keeps beyond a peak, over activations and logits at the peak [1]."""
    host_time_layer: Number = number_field(0)
    """Host time per layer and microbatch, forward and backward, beyond the host time of tuned software [s]."""
    gathered_stages: Number = number_field(False)
    """1 where FSDP under a pipeline keeps the weights of a stage gathered and the gradients unreduced [1]."""
    optimizer_bytes: Number = number_field(None)
    """Bytes of optimizer state per trained weight, master copy included; AdamW's where not stated [byte]."""
    weight_bytes: Number = number_field(None)
    """Bytes of a stored trained weight; by default the width of the precision [byte]."""
    offload_activations: Number = number_field(0)
    """Share of the stored activations in the memory of the host [1]."""
    offload_optimizer: Number = number_field(0)
    """Share of the optimizer state in the memory of the host [1]."""
    expert_skew: Number = number_field(0)
    """s, exponent of the popularity of experts; 0 for equally popular experts, see `expert_load` [1]."""
    expert_load: Number = number_field(0)
    """Copies of tokens on the hottest rank of experts over the mean; 0 to derive the load from the skew [1]."""
    capacity_factor: Number = number_field(0)
    """c, largest number of copies of an expert over the mean, with further copies dropped; 0 for no limit [1]."""
    balanced_experts: Number = number_field(False)
    """1 where experts are placed by load, 0 where dealt to ranks in the order of popularity [1]."""

    def __post_init__(self, *words: str | None):
        """Turn words into switches."""
        # Mixed shares of formats take the bytes of 16 bits.
        usual = mixed_precision_bytes(self.precision if isinstance(self.precision, str) else "bf16")
        for name, value in (("optimizer_bytes", usual.optimizer), ("weight_bytes", usual.weight)):
            if getattr(self, name) is None:
                setattr(self, name, value)
        for choice, word in zip(SWITCHES, words, strict=True):
            self._switch(choice, word)

    def _switch(self, choice: str, word: str | None) -> None:
        """Set the switches of a choice by a word, or by the customary word where no switch is given either."""
        switches = [switch for switch in SWITCHES[choice].values() if switch]
        given = [switch for switch in switches if getattr(self, switch) is not None]
        usual = word or CUSTOMARY[choice]
        values = switches_of(choice, _place(choice, usual, tuple(SWITCHES[choice])))
        for switch in switches:
            # In a plan copied with a new word all switches are given, so that none of the switches counts.
            if switch not in given or word is not None and given == switches:
                setattr(self, switch, values[switch])

    def __check_init__(self):
        """Raise an error for numbers that no plan can have; traced numbers are not checked."""
        PLAN.check({name: getattr(self, name) for name in PLAN.bounds})

    @property
    def n_chips(self) -> Number:
        """Number of chips of the plan: dp * tp * pp * cp [1]."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def global_batch_size_seqs(self) -> Number:
        """Global batch: B = b * m * dp [sequence]."""
        return self.micro_batch_size * self.n_microbatches * self.dp

    def words(self) -> dict[str, Any]:
        """Numbers and words of a concrete plan, by argument: `Plan(**plan.words())` is an equal plan.

        Returns:
            Whole degrees as integers, switches as words or flags; a switch between 0 and 1 stays a number.

        Raises:
            ValueError: a mixture of number formats, or of words of one choice.
        """
        words: dict[str, Any] = {name: _plain(getattr(self, name)) for name in DEGREES}
        words["sequence_parallel"] = _flag(self.sequence_parallel)
        # Same value as `shard_group`, without a program to compile.
        words["shard_group"] = _plain(self.shard_group) or words["dp"]
        words |= {choice: self.word(choice) for choice in SWITCHES}
        words["recompute_full"] = number(self.recompute_full)
        words |= {name: _flag(getattr(self, name)) for name in FLAGS}
        words |= {name: number(getattr(self, name)) for name in SIZES}
        shares = np.asarray(self.precision)
        if not np.any(shares == 1.0):
            raise ValueError(f"Plan.precision = {shares.tolist()} mixes number formats; expected one of them alone")
        words["precision"] = PRECISIONS[int(np.argmax(shares))]
        words["lora_targets"] = target_words(self.lora_targets)
        return words

    def word(self, choice: str) -> str:
        """Word of a choice of a concrete plan.

        Args:
            choice: name of a choice in `SWITCHES`.

        Raises:
            ValueError: switches between the words.
        """
        values = {switch: number(getattr(self, switch)) for switch in SWITCHES[choice].values() if switch}
        if choice == "recompute":
            # A partial share of the activations is stated as a number, beside the word.
            values["recompute_full"] = float(values["recompute_full"] == 1.0)
        if sorted(values.values()) not in ([0.0] * len(values), [0.0] * (len(values) - 1) + [1.0]):
            raise ValueError(f"Plan.{choice} is between words: {values}; expected at most one of them 1, the others 0")
        word = list(SWITCHES[choice])[int(codes_of(choice, values))]
        return "interleaved" if word == "1f1b" and number(self.vpp) > 1.0 else word


def shard_group(plan: Plan) -> Number:
    """Chips of one sharded copy under ZeRO: the stated number, or all of dp [1]."""
    return jnp.where(jnp.greater(plan.shard_group, 0.0), plan.shard_group, plan.dp)


def _shown(plan: Plan) -> Printout:
    """Printout: the plan in short form, and software choices that differ from an unknown framework."""
    if not is_single(plan, ("dp", "tp", "pp", "micro_batch_size", "n_microbatches")):
        return leaves_shown(plan)
    try:
        words, usual = plan.words(), Plan().words()
    except ValueError:  # between words, as in a search by gradient
        return leaves_shown(plan)
    told = (*DECIDED, *DECISIONS)
    rows = [(name, str(word)) for name, word in words.items() if name not in told and word != usual[name]]
    return Printout(f"Plan: {in_short(words)} on {number(plan.n_chips):g} chips", ("", ""), rows)


def decided_words(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers and words of the decisions of a run, by argument of `Plan`.

    Args:
        fields: concrete numbers of the fields in `DECIDED`.
    """
    words: dict[str, Any] = {name: _plain(fields[name]) for name in DEGREES}
    words["shard_group"] = words["shard_group"] or words["dp"]
    words["sequence_parallel"] = _flag(fields["sequence_parallel"])
    # A partial share of the activations is stated as a number, beside the word.
    share = float(fields["recompute_full"])
    switches = {**fields, "recompute_full": float(share == 1.0)}
    words |= {choice: list(SWITCHES[choice])[int(codes_of(choice, switches))] for choice in DECISIONS}
    words["recompute_full"] = share
    if words["schedule"] == "1f1b" and words["vpp"] > 1:
        words["schedule"] = "interleaved"
    return words


def recomputed(plan: Mapping[str, Any]) -> str:
    """Recomputation of a plan as text: the word, or a partial share of a layer's activations in per cent.

    Args:
        plan: numbers and words by argument, from `Plan.words`.
    """
    share = plan.get("recompute_full", 0.0)
    return f"{share:.0%}".replace("%", " %") if 0.0 < share < 1.0 else str(plan["recompute"])


def in_short(plan: Mapping[str, Any]) -> str:
    """Short form of a plan, such as `dp 4  tp 4  pp 4 x 2  mb 1 x 128  ZeRO-1  SP`.

    Degrees of 1 and unused features are left out. The number of virtual stages per chip follows pp; mb is followed by
    the sequences of a microbatch and by the microbatches of a step.

    Args:
        plan: numbers and words by argument, from `Plan.words`.
    """
    parts = [f"dp {plan['dp']:g}", *(f"{name} {plan[name]:g}" for name in ("tp",) if plan[name] != 1)]
    if plan["pp"] != 1:
        parts.append(f"pp {plan['pp']:g}" + (f" x {plan['vpp']:g}" if plan["vpp"] != 1 else ""))
    if any(ends := [plan.get(name, 0) for name in END_STAGES]):
        parts.append("ends " + "/".join(f"{layers:g}" if layers else "-" for layers in ends))
    parts += [f"{name} {plan[name]:g}" for name in ("cp", "ep") if plan[name] != 1]
    parts.append(f"mb {plan['micro_batch_size']:g} x {plan['n_microbatches']:g}")
    if plan["zero_stage"]:
        is_whole = plan["shard_group"] in (0, plan["dp"])
        parts.append(f"ZeRO-{plan['zero_stage']:g}" + ("" if is_whole else f" in {plan['shard_group']:g}s"))
    parts += ["SP"] if plan["sequence_parallel"] and plan["tp"] != 1 else []
    parts += [f"recompute {word}"] if (word := recomputed(plan)) != "none" else []
    parts += [plan["schedule"]] if plan["pp"] != 1 and plan["schedule"] not in ("1f1b", "interleaved") else []
    return "  ".join(parts)


def _place(field: str, word: str, valid: tuple[str, ...]) -> int:
    """Index of a word among the valid words."""
    if word not in valid:
        raise ValueError(f"Plan.{field} = {word!r} is unknown; expected one of {', '.join(valid)}")
    return valid.index(word)


def _plain(leaf: Any) -> int | float:
    """Concrete leaf as a number, an integer where whole."""
    value = number(leaf)
    return round(value) if value == round(value) else value


def _flag(leaf: Any) -> bool | float:
    """Concrete switch as true or false, or as a number where between 0 and 1."""
    value = number(leaf)
    return bool(value) if value in (0.0, 1.0) else value
