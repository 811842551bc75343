"""Models by name or file: the catalogue of public models, from `data/models.toml`, TOML files and config.json files.

Organisation, separators and type of tuning in the spelling of a name do not matter. `model_figures` gives the output
of `jaxscale model`: parameters, flop and cache per token.
"""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxtyping import Array

from jaxscale.base.documents import check_keys, data_path, not_valid, parsed_json, read_text, read_toml
from jaxscale.base.errors import InputError, similar
from jaxscale.models.transformer import (
    ARGUMENTS,
    Transformer,
    attention_layers,
    embedding_params,
    head_params,
    is_latent,
    key_value_numbers,
    mean_over_heads,
    model_flops,
    n_active_params,
    n_params,
)

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
    """Ending of a model name for narrower weights or a longer context, such as `fp8` or `128k`; empty for none."""
    found = _VARIANT.search(name.strip().lower().rsplit("/", 1)[-1])
    return found[1] if found else ""


@functools.cache
def model_keys(name: str) -> tuple[str, ...]:
    """Catalogue keys for the spelling of a model name, the closest first.

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
    """Note that a variant of a model is predicted as its base model, and on what to state; empty if no variant."""
    ending, found = variant_ending(name or ""), model_id(name or "")
    if not ending or found is None or ending in found.lower():
        return ""
    return (
        f"model {name} is taken as {found}: {ending} changes no shape; precision, weight_bytes and seq_len are stated"
    )


def unknown_model(name: str) -> str:
    """End of an error message for an unknown model: the nearest valid names, or alternatives to a catalogue name."""
    like = similar(name, sorted(model_fields()), lambda other, part: part in other, most=3, likeness=0.75)
    close = f"did you mean {', '.join(like)}? Else give" if like else "`jaxscale model` lists the catalogue; else give"
    return f"is not in the catalogue; {close} {WHAT_ELSE}"


@dataclass(frozen=True)
class ModelDescription:
    """Arguments of `Transformer` of a model, and model components beyond the arguments.

    Attributes:
        fields: arguments of `Transformer`.
        parts: parameters beyond the fields, by name of the component [1].
        not_modelled: features without a field, with the effect on time and memory.
        length: origin of the sequence length, in words.
    """

    fields: Mapping[str, Any]
    parts: Mapping[str, float] = field(default_factory=dict)
    not_modelled: tuple[str, ...] = ()
    length: str = "as the model is made for"

    def transformer(self, where: str, **changes: Any) -> Transformer:
        """The model, with single fields replaced.

        Raises:
            InputError: a shape that no transformer can have; begins with `where`.
        """
        try:
            return Transformer(**{**self.fields, **changes})
        except (ValueError, TypeError) as error:
            raise InputError(f"{where}: {error}") from None

    def length_remark(self, seq_len: Any) -> str:
        """Words about the sequence length that is taken where none is stated."""
        return f"sequences of {float(seq_len):,.0f} tokens, {self.length}"


def model(name: str | Path, **changes: Any) -> Transformer:
    """A model by name or file, `js.model("llama3-8b")`, `js.model("config.json")`; `changes` replace single fields.

    Args:
        name: a catalogue name or Hugging Face id in any spelling, a TOML file with fields of a `Transformer`, or a
            config.json of Hugging Face.
        changes: fields that override catalogue or file.

    Raises:
        InputError: unknown name, or a malformed file.
    """
    return described_model(name).transformer(str(name), **changes)


def described_model(name: str | Path) -> ModelDescription:
    """Fields of a model by name or file, and model components beyond the fields.

    Raises:
        InputError: unknown name, or a malformed file.
    """
    text = str(name)
    if text.lower().endswith((".toml", ".json")) or Path(text).is_file():
        return _from_file(Path(text))
    if (fields := catalogue_model(text)) is not None:
        return ModelDescription(fields)
    if Path(text).is_dir() and (Path(text) / "config.json").is_file():
        return _from_file(Path(text) / "config.json")
    raise InputError(f"model {text!r} {unknown_model(text)}")


def model_file_fields(path: str | Path) -> Mapping[str, Any]:
    """Arguments of `Transformer` from a file: TOML, or a config.json of Hugging Face.

    Raises:
        InputError: an unreadable file, or a file without a model.
    """
    described = _from_file(Path(path))
    # Refuses a shape no transformer can have.
    described.transformer(str(path))
    return described.fields


def _from_file(path: Path) -> ModelDescription:
    if path.suffix.lower() == ".toml":
        fields = _toml_fields(path)
        length = "as the file says" if "seq_len" in fields else "as the file names no seq_len"
        return ModelDescription(fields, length=length)
    # The reader of Hugging Face's configurations is larger than the catalogue.
    from jaxscale.models.hf.hf_model import converted

    config = read_json(path)
    if not isinstance(config, dict):
        raise InputError(f"{path}: is no configuration; expected the config.json of a model, one JSON object")
    try:
        result = converted(config)
    except ArithmeticError:
        raise InputError(f"{path}: a size by which others are divided is 0; expected sizes above 0") from None
    except TypeError as error:
        raise InputError(f"{path}: a value of another kind ({error}); expected numbers as in a config.json") from None
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    return ModelDescription(*result)


def read_json(path: Path) -> Any:
    """Content of a JSON file.

    Raises:
        InputError: the file is missing, too large, not text, or not valid JSON of bounded depth and size.
    """
    try:
        return parsed_json(read_text(path), finite=True)
    except InputError:
        raise
    except ValueError as error:
        raise not_valid(path, "JSON", error) from None


def _toml_fields(path: Path) -> dict[str, Any]:
    """Fields of a TOML file, checked."""
    fields = read_toml(path)
    # Fields under [model], or at the top.
    fields = fields.get("model", fields)
    if not isinstance(fields, dict):
        raise InputError(f"{path}: model = {fields!r} is no table; expected [model] with n_layers and so on")
    check_keys(str(path), fields, ARGUMENTS, "a field of a model")
    for name, value in fields.items():
        if not isinstance(value, int | float):
            raise InputError(f"{path}: {name} = {value!r} is not a number; expected a number, or true or false")
        if not (name.endswith("_share") or float(value).is_integer()):
            raise InputError(f"{path}: {name} = {value!r} is no whole number; expected one")
    missing = [name for name in ("n_layers", "d_model", "n_heads") if name not in fields]
    if missing:
        raise InputError(f"{path}: missing {', '.join(missing)}; expected n_layers, d_model and n_heads at least")
    return fields


CACHE_BYTES = 2.0
"""Width of a key or value kept for later tokens [byte]."""


def cached_width(model: Transformer) -> Array:
    """Cached numbers per token and attention layer [1].

    K (h + h_v), half where keys serve as values; for latent attention the latent of rank r_kv and the rotary dimension
    of a head (DeepSeek-V2, arXiv 2405.04434, section 2.1.4).
    """
    full = mean_over_heads(model, key_value_numbers)
    # No branch: different kinds of attention stack and trace.
    return full + is_latent(model) * (model.kv_lora_rank + model.rope_head_dim - full)


def kv_bytes_per_token(model: Transformer) -> float:
    """Size of the keys and values of a token in all attention layers, in 16 bits [byte].

    Layers with a window cache at most the tokens of the window.
    """
    return float(CACHE_BYTES * attention_layers(model) * cached_width(model))


def model_figures(name: str, description: ModelDescription) -> dict[str, Any]:
    """Parameters, flop per token and key/value cache of a model.

    Args:
        name: name or file of the model.
        description: fields of the model, and components beyond the fields.

    Returns:
        Parameters in all, active per token and of the embeddings [1], flop of a training step and bytes
        of keys and values per token, fields, parameters beyond the fields [1], and features that are not modelled.

    Raises:
        InputError: a shape that no transformer can have.
    """
    model = description.transformer(name)
    tied = float(model.tied_embeddings)
    return {
        "name": name,
        "n_params": float(n_params(model)),
        "n_active_params": float(n_active_params(model)),
        "n_embedding_params": float(embedding_params(model)),
        # A tied matrix also makes the logits, hence counts.
        "n_active_params_without_input_embedding": float(n_active_params(model) - (1.0 - tied) * head_params(model)),
        "flop_per_token": float(model_flops(model)),
        "flop_per_token_causal": float(model_flops(model, causal=True)),
        "kv_bytes_per_token": kv_bytes_per_token(model),
        "fields": dict(description.fields),
        "parts": dict(description.parts),
        "not_modelled": list(description.not_modelled),
    }
