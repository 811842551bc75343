"""Spellings of model names: organisation, separators and type of tuning do not matter."""

import functools
import re

_SEPARATORS = re.compile(r"[^a-z0-9]+")
_BEGINNINGS = ("meta-", "nvidia-", "google-", "mistral-ai-", "qwen-", "openai-", "microsoft-", "ibm-", "deepseek-ai-")
_ENDINGS = re.compile(
    r"[-_ ](hf|instruct|it|chat|base|pt|sft|dpo|bf16|fp16|fp8|fp4|nvfp4|mxfp4|kv|gguf|awq|gptq|bnb|nf4|hqq|exl2|marlin|"
    r"int4|int8|w4a16|w4a8|w8a8|w8a16|[48][-_ ]?bit|q\d(_k)?(_[sml])?|qat|quantized|dynamic|unsloth|mlx|"
    # Variants for longer contexts differ in the base of their rotations alone.
    r"\d{1,4}k|1m|thinking|preview|(instruct[-_ ])?v0\.\d|(?:instruct[-_ ])?\d{4}|\d\d-\d{4})$"
)


_VARIANT = re.compile(
    r"[-_ ]((?:fp[48]|nvfp4|mxfp4|awq|gptq|bnb|nf4|gguf|int[48]|w\d+a\d+|[48][-_ ]?bit|kv|\d{1,4}k|1m)(?![a-z0-9]).*)$"
)
"""Endings of variants whose weights are narrower, or whose contexts are longer, than those of the model they vary."""


def variant_ending(name: str) -> str:
    """Ending by which a name tells of narrower weights or a longer context, in lower case; empty for none."""
    found = _VARIANT.search(name.strip().lower().rsplit("/", 1)[-1])
    return found[1] if found else ""


@functools.cache
def model_keys(name: str) -> tuple[str, ...]:
    """Keys of a name in the catalogue, the closest first.

    `meta-llama/Llama-3.1-8B-Instruct` gives `llama318binstruct` and `llama318b`: without the organisation, and then
    without the endings that do not change a shape.
    """
    text = name.strip().lower()
    # What stands before the last slash is an organisation or a folder.
    text = text.rsplit("/", 1)[-1]
    keys: list[str] = []
    for candidate in (text, *(text.removeprefix(start) for start in _BEGINNINGS if text.startswith(start))):
        while True:
            keys.append(_SEPARATORS.sub("", candidate))
            # Endings go successively; each shorter name is a key.
            shorter = _ENDINGS.sub("", candidate)
            if shorter == candidate:
                break
            candidate = shorter
    return tuple(dict.fromkeys(key for key in keys if key))
