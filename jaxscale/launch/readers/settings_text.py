"""Settings of a launch file as flat keys and values: TOML, YAML, JSON, or options of a command line."""

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxscale.base.errors import InputError

LARGEST_LAUNCH_FILE = 2**20
"""Size beyond which a file is no launch file [byte]."""

_OPTION = re.compile(r"""--([A-Za-z][\w.\-]*)(?:[= ]+("[^"]*"|'[^']*'|(?!--)(?!-[A-Za-z])[^\s\\#]+))?""")
_ASSIGNMENT = re.compile(r"""(?<![\w\-$])([A-Za-z_][\w.]*)=("[^"]*"|'[^']*'|[^\s\\]+)""")


def settings_of(path: Path) -> dict[str, Any]:
    """Settings of a launch file by their dotted keys, in small letters with underscores.

    Raises:
        InputError: a file that cannot be read, or that holds no settings; one line.
    """
    text = _text(path)
    for parse in _parsers(path, text):
        tree = parse(text)
        if isinstance(tree, Mapping) and tree:
            return flat(tree)
    options = command_line_settings(text)
    if not options:
        raise InputError(
            f"{path}: holds no settings; expected TOML, YAML, JSON or options such as --micro-batch-size 1"
        )
    return options


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST_LAUNCH_FILE:
            raise InputError(f"{path}: {path.stat().st_size / 1e6:.0f} MB is too large; expected a launch file")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text; expected a launch file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({(error.strerror or str(error)).lower()})") from None


def _parsers(path: Path, text: str) -> list:
    """Parsers to try, by the ending of the file, or else all."""
    parsers = {".toml": [_toml], ".json": [_json], ".yaml": [_yaml], ".yml": [_yaml]}
    is_command = "--" in text and not re.search(r"^\s*[\w.]+\s*:\s", text, re.MULTILINE)
    return parsers.get(path.suffix.lower(), [] if is_command else [_json, _toml, _yaml])


def _toml(text: str) -> Any:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _yaml(text: str) -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """Loader to which the tags of recipes are plain mappings, and nothing is made of them."""

    def untagged(loader: Any, suffix: str, node: Any) -> Any:
        return loader.construct_mapping(node) if isinstance(node, yaml.MappingNode) else None

    Loader.add_multi_constructor("", untagged)
    try:
        return yaml.load(text, Loader)  # noqa: S506 - a safe loader
    except (yaml.YAMLError, ValueError, RecursionError):
        return None


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Leaves of nested tables by their dotted keys; lists stay values."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}".lower().replace("-", "_")
        if isinstance(value, Mapping):
            found |= flat(value, f"{name}.")
        else:
            found[name] = value
    return found


def command_line_settings(text: str) -> dict[str, Any]:
    """Options `--name value`, `--name=value`, `--flag` and assignments `name=value` of a command line or script."""
    text = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    found: dict[str, Any] = {}
    for name, value in _ASSIGNMENT.findall(text):
        found[name.lower()] = plain_value(value)
    for name, value in _OPTION.findall(text):
        found[name.lower().replace("-", "_")] = plain_value(value) if value else True
    return found


def plain_value(text: str) -> Any:
    """Value of a word: number, truth value, nothing, or text."""
    text = text.strip().strip("\"'").rstrip(",")
    words = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text
