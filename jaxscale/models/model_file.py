"""A model by its name in the catalogue, or from a file: TOML with fields of a `Transformer`, or a config.json."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxscale.base.documents import check_keys, parsed_json, read_text, read_toml
from jaxscale.base.errors import InputError
from jaxscale.models.model_catalogue import catalogue_model, unknown_model
from jaxscale.models.transformer import ARGUMENTS, Transformer


@dataclass(frozen=True)
class ModelDescription:
    """Model as arguments of `Transformer`, and parts beyond the arguments.

    Attributes:
        fields: arguments of `Transformer`.
        parts: parameters beyond the fields, by part of the model [1].
        not_modelled: features without a field, with the effect on time and memory.
    """

    fields: Mapping[str, Any]
    parts: Mapping[str, float] = field(default_factory=dict)
    not_modelled: tuple[str, ...] = ()

    def transformer(self, where: str, **changes: Any) -> Transformer:
        """The model, with single fields replaced.

        Raises:
            InputError: a shape that no transformer can have; begins with `where`.
        """
        try:
            return Transformer(**{**self.fields, **changes})
        except (ValueError, TypeError) as error:
            raise InputError(f"{where}: {error}") from None


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
    """Fields of a model by name or file, and parts beyond the fields.

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
        return ModelDescription(_toml_fields(path))
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
    return ModelDescription(result.fields, result.parts, result.not_modelled)


def read_json(path: Path) -> Any:
    """Content of a JSON file.

    Raises:
        InputError: the file is missing, too large, not text or not JSON within the bounds of documents.
    """
    try:
        return parsed_json(read_text(path), finite=True)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON: {error}") from None


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
