"""What the reader of one kind of log gathers line by line."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from jaxscale.launch.readers.step_series import StepSeries

GIB = 2.0**30 / 1e9
"""One GiB [1e9 byte]."""


@dataclass
class Gathered:
    """What one log has told so far.

    Attributes:
        series: quantities of the steps.
        settings: settings of the run by their key in the log.
        cells: cells of the runs table that the log tells itself.
        remarks: what a reader of the row should know.
    """

    series: StepSeries = field(default_factory=StepSeries)
    settings: dict[str, Any] = field(default_factory=dict)
    cells: dict[str, Any] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class LogFormat:
    """One kind of log.

    Attributes:
        name: program that writes it.
        family: family of frameworks whose settings it states, empty where none.
        framework: cell of the runs table, empty where the settings tell it.
        take: takes one line; whether the line is one of this kind.
    """

    name: str
    family: str
    framework: str
    take: Callable[[str, Gathered], bool]


def scaled_number(text: str | None) -> float:
    """A number with separators of thousands or with K, M, G, T at its end; nan for nothing."""
    if not text:
        return float("nan")
    text = text.replace(",", "").strip()
    scale = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "B": 1e9}.get(text[-1:], 1.0)
    try:
        return scale * float(text[:-1] if scale != 1.0 else text)
    except ValueError:
        return float("nan")


_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def without_colours(line: str) -> str:
    """A line without the escape codes by which terminals colour it."""
    return _COLOURS.sub("", line) if "\x1b" in line else line
