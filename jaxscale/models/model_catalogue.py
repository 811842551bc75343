"""Catalogue of public models: shapes by name and alias, from `data/models.toml`.

Organisation, separators and type of tuning in the spelling of a name do not matter.
"""

import functools
import re
from collections.abc import Mapping
from typing import Any

from jaxscale.base.documents import data_path, read_toml
from jaxscale.base.errors import similar
from jaxscale.models.transformer import ARGUMENTS

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


WHAT_ELSE = "a TOML file with n_layers, d_model, n_heads and so on, or a config.json of Hugging Face"
"""What names a model that the catalogue lacks."""


@functools.cache
def model_entries() -> dict[str, dict[str, Any]]:
    """Entries of the catalogue by name, as in the file."""
    return read_toml(data_path("models.toml"))["models"]


@functools.cache
def _ids() -> dict[str, str]:
    """Catalogue ids by lower-case name and alias."""
    return {
        alias.lower(): name for name, entry in model_entries().items() for alias in (name, *entry.get("aliases", []))
    }


@functools.cache
def _ids_by_key() -> dict[str, str]:
    return {model_keys(name)[0]: own for name, own in _ids().items()}


def model_id(name: str) -> str | None:
    """Catalogue id of a model by a name in any common spelling; None for an unknown name."""
    if (own := _ids().get(name.strip().lower())) is not None:
        return own
    return next((_ids_by_key()[key] for key in model_keys(name) if key in _ids_by_key()), None)


@functools.cache
def _shapes() -> dict[str, dict[str, Any]]:
    return {
        name: {key: value for key, value in entry.items() if key in ARGUMENTS}
        for name, entry in model_entries().items()
    }


@functools.cache
def model_fields() -> dict[str, dict[str, Any]]:
    """Shape fields of every catalogue model, by lower-case name and alias."""
    return {alias: _shapes()[name] for alias, name in _ids().items()}


def catalogue_model(name: str) -> Mapping[str, Any] | None:
    """Shape fields of a catalogue model by a name in any common spelling; None for an unknown name."""
    found = model_id(name)
    return None if found is None else _shapes()[found]


def variant_note(name: str | None) -> str:
    """Note on the features of a variant that its base model, which stands in for the variant, lacks; may be empty."""
    ending, found = variant_ending(name or ""), model_id(name or "")
    if not ending or found is None or ending in found.lower():
        return ""
    return (
        f"model {name} is taken as {found}: {ending} changes no shape; precision, weight_bytes and seq_len are stated"
    )


def unknown_model(name: str) -> str:
    """End of an error message for an unknown model: the nearest valid names."""
    like = similar(name, sorted(model_fields()), lambda other, part: part in other, most=3, likeness=0.75)
    close = f"did you mean {', '.join(like)}? Else give" if like else "`jaxscale model` lists the catalogue; else give"
    return f"is not in the catalogue; {close} {WHAT_ELSE}"
