"""Rules from the settings of trainers to cells of adapters (LoRA) and of quantised frozen weights."""

from typing import Any

from jaxscale.launch.options import option_table, programs
from jaxscale.launch.readers.settings_text import Cells, ReadSettings
from jaxscale.tables.cells import parse_words, vocabularies

LORA_BY_DEFAULT = ("llama-factory", "ms-swift")
"""Trainers that train adapters unless told otherwise."""

WIDTHS = ("load_in_4bit", "load_in_8bit", "load_in_16bit", "load_in_fp8")
"""Switches of the width of frozen weights."""

PARTS = {"lora_query": "q", "lora_key": "k", "lora_value": "v", "lora_projection": "o", "lora_mlp": "mlp"}
"""Switches of litgpt, and the matmuls that each adapts; those of queries and values are on by default."""


def adapter_cells(read: ReadSettings, kind: str, word: str | None = None) -> Cells:
    """Cells of adapters and of the width of frozen weights; no cells for full fine-tuning.

    Args:
        read: settings of the run.
        kind: name of the trainer.
        word: type of adapter, for a trainer with a separate setting; None to search the settings.
    """
    word = word or _kind_of(read, kind)
    # QLoRA is LoRA on weights of 4 bits, whether or not a switch says so.
    bits = 4 if read.value("load_in_4bit", "quantize_base") or word == "qlora" else None
    bits = 8 if bits is None and read.value("load_in_8bit") else bits
    if not read.has(*WIDTHS) and not read.value("full_finetuning") and _is_narrow_by_default(kind):
        bits = 4
    quantised = str(read.value("quantize") or "")
    # Names of bitsandbytes for litgpt's --quantize.
    bits = 4 if quantised.startswith(("bnb.nf4", "bnb.fp4")) else 8 if quantised.startswith("bnb.int8") else bits
    bits = read.number("quantization_bit", "quant_bits") or bits
    if word is None and bits is None:
        return {}
    # NF4 has 4 bits and a scale per block: 0.55 byte per weight.
    weight = {"weight_bytes": 0.55 if bits == 4 else 1} if bits else {}
    # Scale and biases cost no time: the keys are read to count as understood.
    for name in ("lora_alpha", "lora_bias", "bias", "peft.alpha", "use_rslora"):
        read.value(name)
    # Quantised weights without adapters are frozen.
    if word is None:
        return {"trainable_share": 0, **weight}
    rank = read.number("lora_r", "lora_rank", "peft.dim", "peft.r", "r")
    found: Cells = {"adapter": "qlora" if bits == 4 else "lora", "lora_rank": rank, "lora_targets": _targets(read)}
    if read.number("lora_dropout", "peft.dropout"):
        found["dropout"] = True
    return {**found, **weight}


def _is_narrow_by_default(kind: str) -> bool:
    """Whether a trainer loads frozen weights in 4 bits unless told otherwise, by the trainer's option table."""
    options = option_table(kind).options if kind in programs() else {}
    return any(option.default is True for key, option in options.items() if key.endswith("load_in_4bit"))


def _kind_of(read: ReadSettings, kind: str) -> str | None:
    """Word of the adapters, None where there are none."""
    word = read.value("adapter", "finetuning_type", "tuner_type", "train_type", "sft_type", "peft_type", "peft_method")
    if word is not None:
        word = str(word).lower()
        # Variants of LoRA with the matmuls of LoRA.
        return word if word in ("lora", "qlora") else "lora" if word in ("longlora", "lora_llm") else None
    if read.value("use_peft") or read.has("peft.dim", "peft.r") or str(read.value("program")).endswith("lora"):
        return "lora"
    if kind in LORA_BY_DEFAULT or kind in ("litgpt", "openrlhf", "verl"):
        # Adapters by a rank alone; without a word these trainers have them where a fine-tuning is asked for.
        if kind in LORA_BY_DEFAULT or read.number("lora_rank", "lora_r"):
            return "lora"
    is_unsloth = kind == "unsloth" and not read.value("full_finetuning")
    return "lora" if is_unsloth and read.number("r") else None


def _targets(read: ReadSettings) -> str | None:
    """Matmuls with adapters, joined by +; None where the settings do not say, or name others."""
    if read.value("lora_target_linear", "match_all_linear"):
        return "all-linear"
    named: Any = read.value("lora_target_modules", "lora_target", "target_modules", "lora_attn_modules")
    if isinstance(named, list | tuple):
        named = "+".join(str(name).rsplit(".", 1)[-1] for name in named)
    if read.value("apply_lora_to_mlp") and named:
        named = f"{named}+mlp"
    if any(read.value(name) is not None for name in PARTS):
        # litgpt adapts queries and values unless told otherwise.
        usual = {"lora_query": True, "lora_value": True}
        is_on = {name: read.value(name) for name in PARTS}
        on = [part for name, part in PARTS.items() if (usual.get(name, False) if is_on[name] is None else is_on[name])]
        named = "+".join(on)
    if not named:
        return None
    # A star is a wildcard of module paths: `*q_proj` means q_proj in every layer.
    words = parse_words("lora_targets", str(named).replace("*", ""))
    return "+".join(words) if all(word in vocabularies()["lora_targets"] for word in words) else None
