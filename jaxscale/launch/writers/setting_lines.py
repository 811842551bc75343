"""Settings with comments, in the forms of launch files."""

import json
import shlex
from dataclasses import dataclass, field
from typing import Any


@dataclass
class SettingLines:
    """Settings by option, each with a comment, and the parts that no option expresses.

    Attributes:
        entries: option, value and comment of each setting.
        not_expressed: parts of a plan or model without an option.
        missing: parts of the model without which the settings would train a different model.
        environment: variables of the environment.
        facts: numbers that rules need and settings do not state.
        may_miss: required options left out on purpose, so that no different model is trained.
        n_ranks: ranks of the program, where fewer than the chips of the run [1].
    """

    entries: list[tuple[str, Any, str]] = field(default_factory=list)
    not_expressed: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    may_miss: tuple[str, ...] = ()
    n_ranks: int | None = None

    def add(self, key: str, value: Any, comment: str = "") -> None:
        """Add a setting."""
        self.entries.append((key, value, comment))

    def lacks(self, text: str) -> None:
        """Record a part that the settings cannot express."""
        self.not_expressed.append(text)

    def lacks_model(self, text: str) -> None:
        """Record a part of the model that the settings cannot build, so that the settings are refused."""
        self.missing.append(text)
        self.not_expressed.append(f"model: {text}")

    def settings(self) -> dict[str, Any]:
        """Value by option, the environment and the facts included."""
        return {
            **{key: value for key, value, _ in self.entries},
            **{f"env.{name}": value for name, value in self.environment.items()},
            **self.facts,
        }

    def as_options(self) -> list[str]:
        """Options of a command line, a line each; True is written as a flag."""
        return ["  " + _option(key, value) + _comment(comment) for key, value, comment in self.entries]

    def as_yaml(self) -> str:
        """Nested keys of YAML."""
        return "\n".join([*self.remarks(), *self._nested(self.tree(), "")]) + "\n"

    def as_toml(self) -> str:
        """TOML, a table for each first part of a key."""
        lines = self.remarks()
        for table, entries in self.tree().items():
            lines += ["", f"[{table}]"] if lines else [f"[{table}]"]
            lines += [f"{key} = {json.dumps(value)}" + _comment(comment) for key, (value, comment) in entries.items()]
        return "\n".join(lines) + "\n"

    def as_json(self) -> str:
        """JSON document, without the comments."""

        def plain(tree: dict[str, Any]) -> dict[str, Any]:
            return {key: plain(value) if isinstance(value, dict) else value[0] for key, value in tree.items()}

        return json.dumps(plain(self.tree()), indent=2) + "\n"

    def remarks(self) -> list[str]:
        """Comments for parts that are not expressed."""
        return [f"# not expressed: {text}" for text in self.not_expressed]

    def tree(self) -> dict[str, Any]:
        """Value and comment by nested keys."""
        tree: dict[str, Any] = {}
        for key, value, comment in self.entries:
            *tables, last = key.split(".")
            place = tree
            for table in tables:
                place = place.setdefault(table, {})
            place[last] = (value, comment)
        return tree

    def _nested(self, tree: dict[str, Any], indent: str) -> list[str]:
        lines = []
        for key, value in tree.items():
            if isinstance(value, dict):
                lines += [f"{indent}{key}:", *self._nested(value, indent + "  ")]
            else:
                lines.append(f"{indent}{key}: {json.dumps(value[0])}" + _comment(value[1]))
        return lines


def _option(key: str, value: Any) -> str:
    """Option with values, quoted for a shell."""
    if value is True:
        return key
    values = value if isinstance(value, list) else [value]
    return " ".join([key, *(shlex.quote(str(part)) for part in values)])


def _comment(text: str) -> str:
    return f"  # {text}" if text else ""


class Code(str):
    """Value written as Python code, such as `torch.bfloat16`."""


def python_value(value: Any) -> str:
    """A value as Python writes it."""
    return str(value) if isinstance(value, Code) else repr(value)


def keyword_lines(entries: list[tuple[str, Any, str]], indent: str = "    ") -> list[str]:
    """Keyword arguments, a line each, with comments."""
    return [
        f"{indent}{key}={python_value(value)},{f'  # {comment}' if comment else ''}" for key, value, comment in entries
    ]


def refusal(missing: list[str]) -> list[str]:
    """Lines that raise an error where the settings would train a different model."""
    if not missing:
        return []
    return [f"raise SystemExit({'not expressed: ' + '; '.join(missing)!r})", ""]
