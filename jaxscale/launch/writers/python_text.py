"""Settings as Python: literals, names of code, and assignments."""

from typing import Any


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
