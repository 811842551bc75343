"""Parallel plans: degrees, sharding, schedule, recomputation, precision.

Choices that are words to a person (`recompute="full"`) become switches between 0 and 1, so that plans of every kind
stack, sweep under one `jax.vmap` and differentiate. At 0 and 1 a switch is exact; between, the costs blend linearly.
"""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import numpy as np

from jaxscale._arrays import Number, PerPrecision, as_float, number
from jaxscale.hardware.formats import PRECISIONS
from jaxscale.plan.optimizers import mixed_precision_bytes

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

DEGREES = ("dp", "tp", "pp", "vpp", "cp", "ep", "zero_stage", "shard_group", "micro_batch_size", "n_microbatches")
"""Fields of a plan that count something."""

FLAGS = (
    "flash_attention",
    "overlap_gradients",
    "overlap_gathers",
    "balanced_stages",
    "fused_glu",
    "fused_norm",
    "chunked_loss",
    "vocab_parallel_loss",
    "moe_overlap",
)
"""Fields that are 1 where software does something, else 0."""

SIZES = (
    "etp",
    "gradient_bytes",
    "optimizer_bytes",
    "weight_bytes",
    "recompute_cost",
    "attention_rate",
    "offload_activations",
    "offload_optimizer",
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
        recompute_full: share of a layer's activations, beyond its input, that is dropped and computed again [1].
        recompute_cost: share of a layer's forward pass that this takes, over `recompute_full` [1].
        gpipe: 1 where all forwards run before the first backward [1].
        zero_bubble: 1 for the zero-bubble schedule ZB-H1, whose weight gradients fill part of the bubble [1].
        dual_pipe: 1 for DualPipe, which runs two pipelines against each other, exchanges behind compute [1].
        flash_attention: 1 for fused attention, 0 for materialised scores [1].
        overlap_gradients: 1 where gradients are reduced while the last backward pass still runs, 0 after it [1].
        balanced_stages: 1 where pipeline stages get layers by cost, the logits head included, 0 where evenly [1].
        gradient_bytes: of a gradient while replicas reduce it: 4 in 32 bits, 2 in 16 [byte].
        fused_glu: 1 where one kernel gates the MLP and keeps its inputs alone, 0 where also the activated gate [1].
        precision: share of the weight matmuls done in each of `PRECISIONS` [1].
        etp: ways in which each expert is split; 0 where they follow from ep, see `expert_tensor_degree` [1].
        compiled: 1 where a compiler launches whole graphs of fused kernels, as XLA does [1].
        cuda_graphs: 1 where recorded graphs of kernels are replayed [1].
        tp_overlap_backward: 1 where tensor-parallel collectives of the backward pass alone run beside matmuls [1].
        tp_overlap_full: 1 where those of the forward pass do, too, piece by piece [1].
        dispatch_allgather: 1 where every expert rank gathers the tokens of all [1].
        deepep: 1 where a token travels once to each domain that holds experts of it [1].
        hybridep: the same by kernels of fewer multiprocessors [1].
        moe_overlap: 1 where exchanges of experts run beside the compute of another microbatch [1].
        overlap_gathers: 1 where FSDP gathers the next layer while one runs [1].
        fused_norm: 1 where one kernel normalises, 0 where each operation of a norm is a kernel in 32 bits [1].
        chunked_loss: 1 where logits are made and used in chunks of tokens, never all at once [1].
        vocab_parallel_loss: 1 where the loss works on logits that stay split over tp [1].
        attention_rate: rate of the attention kernel over that of FlashAttention-2 [1].
        optimizer_bytes: of an optimizer's state per trained weight, its copy of the weight included [byte].
        weight_bytes: of a stored weight that is trained [byte].
        offload_activations: share of the stored activations that the host's memory holds [1].
        offload_optimizer: share of the optimizer's state that the host's memory holds [1].
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
    recompute_cost: Number
    dual_pipe: Number
    etp: Number
    compiled: Number
    cuda_graphs: Number
    tp_overlap_backward: Number
    tp_overlap_full: Number
    dispatch_allgather: Number
    deepep: Number
    hybridep: Number
    moe_overlap: Number
    overlap_gathers: Number
    fused_norm: Number
    chunked_loss: Number
    vocab_parallel_loss: Number
    attention_rate: Number
    optimizer_bytes: Number
    weight_bytes: Number
    offload_activations: Number
    offload_optimizer: Number

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
        recompute_full: Any = None,
        recompute_cost: Any = 1,
        etp: Any = 0,
        execution: str = "eager",
        tp_overlap: str = "backward",
        moe_dispatcher: str = "alltoall",
        moe_overlap: Any = False,
        overlap_gathers: Any = True,
        fused_norm: Any = True,
        chunked_loss: Any = False,
        vocab_parallel_loss: Any = True,
        attention_rate: Any = 1,
        optimizer_bytes: Any = None,
        weight_bytes: Any = None,
        offload_activations: Any = 0,
        offload_optimizer: Any = 0,
    ):
        """Describe a plan in words and numbers; what is left out is what most software does.

        Raises:
            ValueError: an unknown word or a degree below its range.
        """
        self.dp, self.tp, self.pp, self.vpp = as_float(dp), as_float(tp), as_float(pp), as_float(vpp)
        self.cp, self.ep, self.zero_stage = as_float(cp), as_float(ep), as_float(zero_stage)
        self.shard_group = self.dp if shard_group is None else as_float(shard_group)
        self.micro_batch_size, self.n_microbatches = as_float(micro_batch_size), as_float(n_microbatches)
        words = {
            "recompute": recompute,
            "schedule": schedule,
            "execution": execution,
            "tp_overlap": tp_overlap,
            "moe_dispatcher": moe_dispatcher,
        }
        for choice, word in words.items():
            for switch, value in switches_of(choice, _place(choice, word, tuple(SWITCHES[choice]))).items():
                setattr(self, switch, float(value))
        if recompute_full is not None:
            self.recompute_full = as_float(recompute_full)
        self.recompute_cost, self.etp = as_float(recompute_cost), as_float(etp)
        self.sequence_parallel = as_float(sequence_parallel)
        self.flash_attention, self.attention_rate = as_float(flash_attention), as_float(attention_rate)
        self.overlap_gradients, self.overlap_gathers = as_float(overlap_gradients), as_float(overlap_gathers)
        self.balanced_stages, self.moe_overlap = as_float(balanced_stages), as_float(moe_overlap)
        self.fused_glu, self.fused_norm = as_float(fused_glu), as_float(fused_norm)
        self.chunked_loss, self.vocab_parallel_loss = as_float(chunked_loss), as_float(vocab_parallel_loss)
        usual = mixed_precision_bytes(precision)
        self.gradient_bytes = as_float(gradient_bytes)
        self.optimizer_bytes = as_float(usual.optimizer if optimizer_bytes is None else optimizer_bytes)
        self.weight_bytes = as_float(usual.weight if weight_bytes is None else weight_bytes)
        self.offload_activations, self.offload_optimizer = as_float(offload_activations), as_float(offload_optimizer)
        self.precision = np.eye(len(PRECISIONS))[_place("precision", precision, PRECISIONS)]

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

    def words(self) -> dict[str, Any]:
        """Numbers and words of a concrete plan, by argument: `Plan(**plan.words())` is the same plan.

        Returns:
            Whole degrees as integers, switches as words or flags; a switch between 0 and 1 stays a number.

        Raises:
            ValueError: a mixture of number formats, or of words of one choice, which has no name.
        """
        words: dict[str, Any] = {name: _plain(getattr(self, name)) for name in DEGREES}
        words["sequence_parallel"] = _flag(self.sequence_parallel)
        for choice, switches in SWITCHES.items():
            words[choice] = self._word(choice, [switch for switch in switches.values() if switch])
        words["recompute_full"] = number(self.recompute_full)
        words |= {name: _flag(getattr(self, name)) for name in FLAGS}
        words |= {name: number(getattr(self, name)) for name in SIZES}
        shares = np.asarray(self.precision)
        if not np.any(shares == 1.0):
            raise ValueError(f"Plan.precision = {shares.tolist()} mixes number formats; expected one of them alone")
        words["precision"] = PRECISIONS[int(np.argmax(shares))]
        return words

    def _word(self, choice: str, switches: list[str]) -> str:
        values = {switch: number(getattr(self, switch)) for switch in switches}
        if choice == "recompute":
            # A share of the activations has a number beside the word.
            values["recompute_full"] = float(values["recompute_full"] == 1.0)
        if sorted(values.values()) not in ([0.0] * len(values), [0.0] * (len(values) - 1) + [1.0]):
            raise ValueError(f"Plan.{choice} is between words: {values}; expected at most one of them 1, the others 0")
        word = list(SWITCHES[choice])[int(codes_of(choice, values))]
        return "interleaved" if word == "1f1b" and number(self.vpp) > 1.0 else word


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
