"""Parallel plans: degrees, sharding, schedule, recomputation, precision.

Choices that are words to a person (`recompute="full"`) become switches between 0 and 1, so that plans of every kind
stack, sweep under one `jax.vmap` and differentiate. At 0 and 1 a switch is exact; between, the costs blend linearly.
"""

from collections.abc import Mapping
from dataclasses import KW_ONLY, InitVar
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from jaxscale.base.arrays import Number, PerPrecision, PerTarget, number
from jaxscale.base.fields import number_field, with_properties
from jaxscale.base.show import Printout, is_single, leaves_shown, printed
from jaxscale.hardware.formats import PRECISIONS
from jaxscale.plans.adapters import target_shares, target_words
from jaxscale.plans.optimizers import mixed_precision_bytes
from jaxscale.plans.plan_domain import FLAGS, PLAN

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
"""Words of each choice, in order, and the switch that each turns on; a word without a switch turns all off. A schedule
with all switches off is interleaved where a chip holds several virtual stages, else 1F1B."""

DECISIONS = ("recompute", "schedule")
"""Choices that a search for a plan makes."""

SOFTWARE_CHOICES = tuple(choice for choice in SWITCHES if choice not in DECISIONS)
"""Choices that software has made: `execution`, `tp_overlap`, `moe_dispatcher`."""

RECOMPUTE, SCHEDULES = tuple(SWITCHES["recompute"]), tuple(SWITCHES["schedule"])
ZERO_STAGES = (1, 2, 3)

END_STAGES = ("first_stage_layers", "last_stage_layers")
"""Fields of a plan that state the layers of an end of the pipeline, 0 where they do not."""

DEGREES = (
    *("dp", "tp", "pp", "vpp", "cp", "ep", "zero_stage", "shard_group", "micro_batch_size", "n_microbatches"),
    *END_STAGES,
)
"""Fields of a plan that count something."""

DECIDED = (
    *DEGREES,
    "sequence_parallel",
    *(switch for name in DECISIONS for switch in SWITCHES[name].values() if switch),
)
"""Fields of a plan that are decided anew for each run; all others are those of its software."""

ROUTING = ("expert_skew", "expert_load", "capacity_factor", "balanced_experts")
"""Numbers of a plan that set the load of its experts."""

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
    "host_time_layer",
    "offload_activations",
    "offload_optimizer",
    *ROUTING,
)
"""Further numbers of a plan: sizes, rates and shares."""


def switches_of(choice: str, codes: Any) -> dict[str, Any]:
    """Switches of a choice from its words.

    Args:
        choice: one of `SWITCHES`.
        codes: places of the words in `SWITCHES[choice]`, a number or an array of them.

    Returns:
        Every switch of the choice by name: 1 where its word is chosen, else 0.
    """
    words = SWITCHES[choice]
    return {switch: np.equal(codes, place) * 1.0 for place, switch in enumerate(words.values()) if switch}


def codes_of(choice: str, switches: Mapping[str, Any]) -> Any:
    """Words of a choice from its switches, the inverse of `switches_of`.

    Args:
        choice: one of `SWITCHES`.
        switches: by name, concrete numbers or arrays of them; other names are not looked at.

    Returns:
        Places of the words in `SWITCHES[choice]`: that of the switch that is on, or of the first word without one.
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
"""Word of each choice that holds where neither a word nor its switches are given: that of a framework of which nothing
is known (`data/frameworks.toml`, table `default`)."""


def _format_shares(precision: Any) -> Any:
    """Share of each number format in the matmuls [1], from the name of the only one or as it is."""
    if not isinstance(precision, str):
        return precision
    return np.eye(len(PRECISIONS))[_place("precision", precision, PRECISIONS)]


def _word_property(choice: str) -> property:
    """Property of a concrete plan: the word of a choice."""
    return property(lambda plan: plan.word(choice))


@printed(lambda plan: _shown(plan))
@with_properties(**{choice: _word_property(choice) for choice in SWITCHES})
class Plan(eqx.Module):
    """How one training step is laid over the chips: `n_chips = dp * tp * pp * cp`, `B = b * m * dp`.

    All fields are numbers, array leaves that trace and differentiate. Words (`recompute`, `schedule`, `execution`,
    `tp_overlap`, `moe_dispatcher`, `precision`) may be given in place of the switches and shares that they stand for.
    A field that is left out takes the value of a framework of which nothing is known.

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
    """0 to 3: none, optimizer, gradients, parameters sharded (3 is FSDP) [1]."""
    micro_batch_size: Number = number_field(1)
    """b, sequences per microbatch and replica [1]."""
    n_microbatches: Number = number_field(1)
    """m, microbatches per step and replica [1]."""
    sequence_parallel: Number = number_field(False)
    """1 where norms and residuals are split over tp [1]."""
    recompute: InitVar[str | None] = None
    """Word of `SWITCHES`: what is computed again on the way back."""
    _: KW_ONLY
    schedule: InitVar[str | None] = None
    """Word of `SWITCHES`: order of the passes of a pipeline."""
    shard_group: Number = number_field(0)
    """Chips that share one sharded copy: fewer than dp for HSDP; 0 for all of dp [1]."""
    precision: PerPrecision = eqx.field(converter=_format_shares, default="bf16")
    """Share of the weight matmuls done in each of `PRECISIONS`, or the name of one format [1]."""
    flash_attention: Number = number_field(True)
    """1 for fused attention, 0 for materialised scores [1]."""
    first_stage_layers: Number = number_field(0)
    """Layers of the first stage of a pipeline; 0 where it has its share [1]."""
    last_stage_layers: Number = number_field(0)
    """Layers of the last stage, beside the logits head; 0 where it has its share [1]."""
    overlap_gradients: Number = number_field(True)
    """1 where gradients are reduced while the last backward pass still runs, 0 after it [1]."""
    balanced_stages: Number = number_field(False)
    """1 where pipeline stages get layers by cost, the logits head included, 0 where evenly [1]."""
    gradient_bytes: Number = number_field(4)
    """Of a gradient while replicas reduce it: 4 in 32 bits, 2 in 16 [byte]."""
    fused_glu: Number = number_field(False)
    """1 where one kernel gates the MLP and keeps its inputs alone, 0 where also the activated gate [1]."""
    recompute_selective: Number = number_field(None)
    """1 where only the attention core is recomputed [1]."""
    recompute_full: Number = number_field(None)
    """Share of a layer's activations, beyond its input, that is dropped and computed again [1]."""
    recompute_cost: Number = number_field(1)
    """Share of a layer's forward pass that this takes, over `recompute_full` [1]."""
    etp: Number = number_field(0)
    """Ways in which each expert is split; 0 where they follow from ep, see `expert_tensor_degree` [1]."""
    gpipe: Number = number_field(None)
    """1 where all forwards run before the first backward [1]."""
    zero_bubble: Number = number_field(None)
    """1 for the zero-bubble schedule ZB-H1, whose weight gradients fill part of the bubble [1]."""
    dual_pipe: Number = number_field(None)
    """1 for DualPipe, which runs two pipelines against each other, exchanges behind compute [1]."""
    execution: InitVar[str | None] = None
    """Word of `SWITCHES`: how kernels are launched."""
    compiled: Number = number_field(None)
    """1 where a compiler launches whole graphs of fused kernels, as XLA does [1]."""
    cuda_graphs: Number = number_field(None)
    """1 where recorded graphs of kernels are replayed [1]."""
    tp_overlap: InitVar[str | None] = None
    """Word of `SWITCHES`: which tensor-parallel collectives run beside matmuls."""
    tp_overlap_backward: Number = number_field(None)
    """1 where tensor-parallel collectives of the backward pass alone run beside matmuls [1]."""
    tp_overlap_full: Number = number_field(None)
    """1 where those of the forward pass do, too, piece by piece [1]."""
    moe_dispatcher: InitVar[str | None] = None
    """Word of `SWITCHES`: how tokens travel to their experts."""
    dispatch_allgather: Number = number_field(None)
    """1 where every expert rank gathers the tokens of all [1]."""
    deepep: Number = number_field(None)
    """1 where a token travels once to each domain that holds experts of it [1]."""
    hybridep: Number = number_field(None)
    """The same by kernels of fewer multiprocessors [1]."""
    moe_overlap: Number = number_field(False)
    """1 where exchanges of experts run beside the compute of another microbatch [1]."""
    overlap_gathers: Number = number_field(True)
    """1 where FSDP gathers the next layer while one runs [1]."""
    fused_norm: Number = number_field(True)
    """1 where one kernel normalises, 0 where each operation of a norm is a kernel in 32 bits [1]."""
    chunked_loss: Number = number_field(False)
    """1 where logits are made and used in chunks of tokens, never all at once [1]."""
    vocab_parallel_loss: Number = number_field(False)
    """1 where the loss works on logits that stay split over tp [1]."""
    attention_rate: Number = number_field(1)
    """Rate of the attention kernel over that of FlashAttention-2 [1]."""
    loss_bytes: Number = number_field(12)
    """Memory per logit while the loss is taken: logits, what it makes of them in 32 bits, their gradient [byte]."""
    adapter_bytes: Number = number_field(0)
    """Of an element of a matmul's input that is kept for the adapters of frozen weights [byte]."""
    lora_rank: Number = number_field(0)
    """Rank of adapters, beside which all weights are frozen; 0 for none [1]."""
    lora_targets: PerTarget = eqx.field(converter=target_shares, default="all-linear")
    """1 for each of `adapters.MATMULS` that has an adapter, or words for them joined by + [1]."""
    dequantised_bytes: Number = number_field(12)
    """Traffic per frozen weight and pass where it is stored in fewer bits than matmuls read, to widen it [byte]."""
    autocast: Number = number_field(False)
    """1 where the residual stream stays in 32 bits and each matmul casts its inputs [1]."""
    wide_weights: Number = number_field(False)
    """1 where trained weights are kept in 32 bits alone, as the optimizer's master copy [1]."""
    narrow_gate: Number = number_field(False)
    """1 where gate and input of the MLP are kept as narrow as matmuls read them [1]."""
    kept_gate: Number = number_field(False)
    """1 where a compiler keeps the activated gate and the product of the MLP, 0 where it makes them again [1]."""
    copied_attention: Number = number_field(False)
    """1 where the output of attention is copied for the matmul that follows [1]."""
    dropout: Number = number_field(False)
    """1 where masks of dropout are kept [1]."""
    kept_gradients: Number = number_field(False)
    """1 where a buffer holds all gradients through the whole step, 0 where backward passes make them anew [1]."""
    gradient_copy_bytes: Number = number_field(0)
    """Of a second copy of a gradient that replicas reduce [byte]."""
    cached_gradients: Number = number_field(False)
    """1 where a temporary gradient of each shape of a weight stays allocated [1]."""
    held_bytes: Number = number_field(0)
    """What software holds besides through a step, such as buckets of the exchange between replicas [byte]."""
    host_time_layer: Number = number_field(0)
    """Time of the host for a layer and microbatch, forward and backward, beyond that of tuned software [s]."""
    gathered_stages: Number = number_field(False)
    """1 where FSDP under a pipeline keeps a stage's weights gathered and its gradients unreduced [1]."""
    optimizer_bytes: Number = number_field(None)
    """Of an optimizer's state per trained weight, its copy of the weight included; AdamW's where left out [byte]."""
    weight_bytes: Number = number_field(None)
    """Of a stored weight that is trained; that of the precision where left out [byte]."""
    offload_activations: Number = number_field(0)
    """Share of the stored activations that the host's memory holds [1]."""
    offload_optimizer: Number = number_field(0)
    """Share of the optimizer's state that the host's memory holds [1]."""
    expert_skew: Number = number_field(0)
    """s, exponent of the popularity of experts; 0 where all are equally busy, see `expert_load` [1]."""
    expert_load: Number = number_field(0)
    """Copies of tokens on the hottest rank of experts over the mean; 0 where they follow from the skew [1]."""
    capacity_factor: Number = number_field(0)
    """c, copies that an expert takes at most over the mean, beyond which they are dropped; 0 for no limit [1]."""
    balanced_experts: Number = number_field(False)
    """1 where experts are placed by their load, 0 where dealt out in the order of popularity [1]."""

    def __post_init__(self, *words: str | None):
        """Turn words into the switches behind them."""
        usual = mixed_precision_bytes(self.precision if isinstance(self.precision, str) else "bf16")
        for name, value in (("optimizer_bytes", usual.optimizer), ("weight_bytes", usual.weight)):
            if getattr(self, name) is None:
                setattr(self, name, value)
        for choice, word in zip(SWITCHES, words, strict=True):
            self._switch(choice, word)

    def _switch(self, choice: str, word: str | None) -> None:
        """Set the switches of a choice by its word, or by its customary word where no switch is given either."""
        switches = [switch for switch in SWITCHES[choice].values() if switch]
        given = [switch for switch in switches if getattr(self, switch) is not None]
        usual = word or CUSTOMARY[choice]
        values = switches_of(choice, _place(choice, usual, tuple(SWITCHES[choice])))
        for switch in switches:
            # Of a plan that is copied with a new word, all switches are given, and none of them counts.
            if switch not in given or word is not None and given == switches:
                setattr(self, switch, values[switch])

    def __check_init__(self):
        """Refuse numbers that no plan can have; traced values are not looked at."""
        PLAN.check({name: getattr(self, name) for name in PLAN.bounds})

    @property
    def n_chips(self) -> Number:
        """Chips that the plan takes: dp * tp * pp * cp [1]."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def global_batch_size_seqs(self) -> Number:
        """B = b * m * dp [sequence]."""
        return self.micro_batch_size * self.n_microbatches * self.dp

    def words(self) -> dict[str, Any]:
        """Numbers and words of a concrete plan, by argument: `Plan(**plan.words())` is the same plan.

        Returns:
            Whole degrees as integers, switches as words or flags; a switch between 0 and 1 stays a number.

        Raises:
            ValueError: a mixture of number formats, or of words of one choice, which has no name.
        """
        words: dict[str, Any] = {name: _plain(getattr(self, name)) for name in DEGREES}
        words["sequence_parallel"] = _flag(self.sequence_parallel)
        # As `shard_group`, of concrete numbers: without a program to compile.
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
            choice: one of `SWITCHES`.

        Raises:
            ValueError: switches between the words.
        """
        values = {switch: number(getattr(self, switch)) for switch in SWITCHES[choice].values() if switch}
        if choice == "recompute":
            # A share of the activations has a number beside the word.
            values["recompute_full"] = float(values["recompute_full"] == 1.0)
        if sorted(values.values()) not in ([0.0] * len(values), [0.0] * (len(values) - 1) + [1.0]):
            raise ValueError(f"Plan.{choice} is between words: {values}; expected at most one of them 1, the others 0")
        word = list(SWITCHES[choice])[int(codes_of(choice, values))]
        return "interleaved" if word == "1f1b" and number(self.vpp) > 1.0 else word


def shard_group(plan: Plan) -> Number:
    """Chips that share one sharded copy of what ZeRO shards: the stated ones, or all of dp [1]."""
    return jnp.where(jnp.greater(plan.shard_group, 0.0), plan.shard_group, plan.dp)


def _shown(plan: Plan) -> Printout:
    """The plan in a few words, and what of its software differs from a framework of which nothing is known."""
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
    """Numbers and words of what is decided for a run, by argument of `Plan`.

    Args:
        fields: concrete numbers of `DECIDED`.
    """
    words: dict[str, Any] = {name: _plain(fields[name]) for name in DEGREES}
    words["shard_group"] = words["shard_group"] or words["dp"]
    words["sequence_parallel"] = _flag(fields["sequence_parallel"])
    words |= {choice: list(SWITCHES[choice])[int(codes_of(choice, fields))] for choice in DECISIONS}
    if words["schedule"] == "1f1b" and words["vpp"] > 1:
        words["schedule"] = "interleaved"
    return words


def in_short(plan: Mapping[str, Any]) -> str:
    """A plan in a few words, such as `dp 4  tp 4  pp 4 x 2  mb 1 x 128  ZeRO-1  SP`.

    Degrees of 1 and what is not done are left out; behind pp stand the virtual stages of a chip, behind mb, the
    sequences of a microbatch, the microbatches of a step.

    Args:
        plan: numbers and words by argument, as `Plan.words` gives them.
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
    parts += [f"recompute {plan['recompute']}"] if plan["recompute"] != "none" else []
    parts += [plan["schedule"]] if plan["pp"] != 1 and plan["schedule"] not in ("1f1b", "interleaved") else []
    return "  ".join(parts)


def _place(field: str, word: str, valid: tuple[str, ...]) -> int:
    """Place of a word among the valid ones."""
    if word not in valid:
        raise ValueError(f"Plan.{field} = {word!r} is unknown; expected one of {', '.join(valid)}")
    return valid.index(word)


def _plain(leaf: Any) -> int | float:
    """A concrete leaf as an integer where it is whole."""
    value = number(leaf)
    return round(value) if value == round(value) else value


def _flag(leaf: Any) -> bool | float:
    """A concrete switch as true or false, or its number where it is between."""
    value = number(leaf)
    return bool(value) if value in (0.0, 1.0) else value
