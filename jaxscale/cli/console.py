"""Output of the commands: results on stdout; progress, messages and refusals on stderr."""

import json
import math
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxscale.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from jaxscale.report.document import Report

WIDTH = 140
"""Columns of a table that goes to a file or a pipe [1]."""

PAGES = {
    "jaxscale.hardware": "add_a_chip.md",
    "jaxscale.models": "start.md",
    "jaxscale.readers": "start.md",
    "jaxscale.writers": "start.md",
    "jaxscale.burst": "burst.md",
    "jaxscale.explore": "explore.md",
    "jaxscale.islands": "islands.md",
    "jaxscale.laws": "laws.md",
    "jaxscale.limits": "limits.md",
    "jaxscale.serving": "serving.md",
    "jaxscale.tracing": "workloads.md",
    "jaxscale.trends": "trends.md",
    "jaxscale.plans": "choose.md",
    "jaxscale.runs": "command_line.md",
    "jaxscale.fit": "calibrate.md",
}
"""Pages in docs/ by package. Where an error passed through several, the first counts: tables of losses are read by
`jaxscale.runs` for `jaxscale.laws`. Packages that are not listed have no page that would help."""


def messages() -> "Console":
    """Console on the present stderr."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """Print a message on stderr, as it is."""
    messages().print(text, markup=False)


def print_result(renderable: Any) -> None:
    """Print a result on stdout: text as it is, tables by rich."""
    if isinstance(renderable, str):
        sys.stdout.write(renderable + "\n")
        return
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDTH)
    console.print(renderable)


def save_report(draw: "Callable[[], Report]", folder: Path) -> None:
    """Draw a report, save it in a folder, and say where it is."""
    say("drawing the figures")
    say(f"wrote {draw().save(folder)} and the figures beside it")


def emit_json(document: Any) -> None:
    """Print one JSON document on stdout; numbers that JSON lacks (nan, infinity) become null."""
    sys.stdout.write(json.dumps(plain(document), indent=2, allow_nan=False) + "\n")


def plain(value: Any) -> Any:
    """A value in terms of JSON: arrays and numpy numbers become lists and numbers, nan and infinity None."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def page_of(error: InputError) -> str | None:
    """Path of the page about what an error refuses, None where no page would help.

    Args:
        error: as it was caught, with its traceback.

    Returns:
        The path in the repository, such as `docs/add_a_chip.md`.
    """
    modules = [str(frame.f_globals.get("__name__", "")) for frame, _ in traceback.walk_tb(error.__traceback__)]
    packages = {".".join(module.split(".")[:2]) for module in modules}
    return next((f"docs/{page}" for package, page in PAGES.items() if package in packages), None)
