"""Settings with comments, in the forms of launch files."""

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass
class SettingLines:
    """Settings by dotted key, each with a comment, and what they cannot say.

    Attributes:
        entries: key, value and comment of each setting.
        not_expressed: parts of a plan that the settings cannot say.
    """

    entries: list[tuple[str, Any, str]] = field(default_factory=list)
    not_expressed: list[str] = field(default_factory=list)

    def add(self, key: str, value: Any, comment: str = "") -> None:
        """Add a setting."""
        self.entries.append((key, value, comment))

    def lacks(self, text: str) -> None:
        """Say what the settings cannot."""
        self.not_expressed.append(text)

    def as_options(self) -> str:
        """Options of a command line, those of one comment on a line; a value of True is a flag."""
        lines = []
        for key, value, comment in self.entries:
            option = key if value is True else f"{key} {value}"
            lines.append(f"  {option}" + (f"  # {comment}" if comment else ""))
        return "\n".join(["OPTIONS=(", *lines, *self._remarks(), ")"]) + "\n"

    def as_yaml(self) -> str:
        """Nested keys of YAML."""
        return "\n".join([*self._nested(self._tree(), ""), *self._remarks()]) + "\n"

    def as_toml(self) -> str:
        """Tables of TOML, one for each first part of a key."""
        lines = []
        for table, entries in self._tree().items():
            lines.append(f"[{table}]")
            lines += [f"{key} = {json.dumps(value)}" + _comment(comment) for key, (value, comment) in entries.items()]
            lines.append("")
        return "\n".join([*lines, *self._remarks()]).rstrip() + "\n"

    def as_json(self) -> str:
        """One JSON document, which has no place for comments."""

        def plain(tree: dict[str, Any]) -> dict[str, Any]:
            return {key: plain(value) if isinstance(value, dict) else value[0] for key, value in tree.items()}

        return json.dumps(plain(self._tree()), indent=2) + "\n"

    def _remarks(self) -> list[str]:
        return [f"# not expressed: {text}" for text in self.not_expressed]

    def _tree(self) -> dict[str, Any]:
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


def _comment(text: str) -> str:
    return f"  # {text}" if text else ""
