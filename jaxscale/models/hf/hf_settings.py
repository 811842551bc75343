"""Reader of config.json files, with the names of a quantity in different families of models."""

import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from jaxscale.base.errors import InputError

INNER = ("text_config", "llm_config", "language_config", "language_model_config")
"""Keys under which models of several modalities keep their language model."""

ENCODER_DECODERS = frozenset("t5 mt5 umt5 bart mbart pegasus marian whisper t5gemma m2m_100 led".split())
"""Families of two stacks, which the package has no shape for."""


@cache
def defaults_of_families() -> Mapping[str, Mapping[str, Any]]:
    """Default sizes of nested configurations without stated sizes, by `model_type`."""
    return tomllib.loads(files("jaxscale.models.hf").joinpath("defaults.toml").read_text(encoding="utf-8"))


class Settings:
    """Keys of a configuration; keys of the nested language model take precedence.

    Args:
        config: content of a config.json.
    """

    def __init__(self, config: Mapping[str, Any]):
        """Find the language model of a configuration."""
        thinker = config.get("thinker_config")
        outer = {**config, **thinker} if isinstance(thinker, Mapping) else config
        inner = next((outer[key] for key in INNER if isinstance(outer.get(key), Mapping)), {})
        nested = {key for key, value in outer.items() if isinstance(value, Mapping)} & set(INNER)
        self.kind = str(inner.get("model_type") or config.get("model_type") or "").lower().removesuffix("_text")
        left_out = defaults_of_families().get(self.kind, {}) if inner else {}
        own = {key: value for key, value in outer.items() if key not in nested}
        # Later keys win: the nested language model.
        self._keys = {**left_out, **own, **{key: value for key, value in inner.items() if value is not None}}
        self.vision = next((config[key] for key in ("vision_config", "vit_config") if config.get(key)), None)

    def get(self, *names: str) -> Any:
        """Value of the first key that is present and not null; None if no key is."""
        for name in names:
            value: Any = self._keys
            for part in name.split("."):
                value = value.get(part) if isinstance(value, Mapping) else None
            if value is not None:
                return value
        return None

    def number(self, *names: str, default: int | float | None = None) -> float:
        """Number of the first key present, else the default.

        Raises:
            InputError: no key and no default, or a value that is no number.
        """
        value = self.get(*names)
        if value is None:
            if default is None:
                raise InputError(f"{names[0]!r} is missing; expected a number, as in a config.json of Hugging Face")
            return float(default)
        return _size(names[0], value)

    def mean(self, *names: str, default: int | float | None = None) -> float:
        """Number of the first key present; the mean of a list over layers.

        Raises:
            InputError: as for `number`.
        """
        value = self.get(*names)
        if not isinstance(value, list) or not value:
            return self.number(*names, default=default)
        return sum(_size(names[0], one) for one in value) / len(value)

    def flag(self, *names: str, default: bool = False) -> bool:
        """Boolean value of the first key present, else the default."""
        value = self.get(*names)
        return default if value is None else bool(value)

    def sequence(self, *names: str) -> Sequence[Any] | None:
        """Value of the first key with a list as value; None if no key has a list."""
        values = (self.get(name) for name in names)
        return next((value for value in values if isinstance(value, list | tuple)), None)


RATIOS = ("block_ffn_dim_multiplier", "expansion_ratio", "expand")
"""Keys of ratios of sizes; all other numbers of a configuration are counts."""


def _size(name: str, value: Any) -> float:
    """Number of a key, a whole number unless the key is a ratio.

    Raises:
        InputError: not a size, or a fractional count.
    """
    # A bool is an int in Python.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value < 1e15:
        raise InputError(f"{name!r} = {value!r} is no size; expected a number >= 0")
    if name not in RATIOS and value != int(value):
        raise InputError(f"{name!r} = {value!r} is no whole number; expected one")
    return float(value)
