"""Interface of a log format, and the quantities that a format collects line by line."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from jaxscale.launch.readers.step_series import StepSeries

GIB = 2.0**30 / 1e9
"""One GiB [1e9 byte]."""


@dataclass
class Gathered:
    """Quantities, settings and cells read from a log so far.

    Attributes:
        series: quantities of the steps.
        settings: settings of the run by their key in the log.
        cells: cells of the runs table that the log states directly.
        remarks: warnings about the row.
    """

    series: StepSeries = field(default_factory=StepSeries)
    settings: dict[str, Any] = field(default_factory=dict)
    cells: dict[str, Any] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class LogFormat:
    """Format of a log.

    Attributes:
        name: program that writes the format.
        family: family of frameworks whose settings the log states, empty for logs without settings.
        framework: cell of the runs table, empty where the settings decide the framework.
        take: reads a line into the collected quantities; returns whether the line is of the format.
    """

    name: str
    family: str
    framework: str
    take: Callable[[str, Gathered], bool]


def scaled_number(text: str | None) -> float:
    """Number with thousands separators or a suffix K, M, G, T; nan for an empty text."""
    if not text:
        return float("nan")
    text = text.replace(",", "").strip()
    # nanotron shortens numbers to three digits with K, M and G.
    scale = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "B": 1e9}.get(text[-1:], 1.0)
    try:
        return scale * float(text[:-1] if scale != 1.0 else text)
    except ValueError:
        return float("nan")


_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def without_colours(line: str) -> str:
    """Line without the escape codes of terminal colours."""
    return _COLOURS.sub("", line) if "\x1b" in line else line
