"""Output of the commands: results on stdout; progress, messages and errors on stderr."""

import contextlib
import io
import json
import math
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxscale.base.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console
    from rich.progress import Progress

    from jaxscale.base.table import Table
    from jaxscale.report.document import Report


PATIENCE = 2.0
"""Time from which on a command shows that it works [s]."""


class Indicator:
    """Progress display of a command on a terminal: a spinner or a bar with the current stage.

    Attributes:
        console: console of the terminal.
    """

    def __init__(self, console: "Console"):
        """Args: console: console of the terminal."""
        self.console = console
        self._stage, self._total, self._done = "working", 0, 0
        self._progress: Progress | None = None
        self._is_late = self._has_ended = False
        self._timer = threading.Timer(PATIENCE, self.show)
        # A waiting timer must not keep the process alive.
        self._timer.daemon = True
        # Reentrant: `stage` holds the lock while `hide` and `show` take the lock.
        self._lock = threading.RLock()

    def begin(self) -> None:
        """Start the timer that shows the display after `PATIENCE` seconds."""
        self._timer.start()

    def show(self) -> None:
        """Show the display."""
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        with self._lock:
            # The timer may fire while the command ends.
            if self._has_ended:
                return
            self._is_late = True
            described, elapsed = TextColumn("{task.description}", markup=False), TimeElapsedColumn()
            bar = (described, BarColumn(bar_width=20), TextColumn("{task.percentage:.0f} %"), TimeRemainingColumn())
            columns = bar if self._total else (SpinnerColumn(), described, elapsed)
            self._progress = Progress(
                *columns,
                console=self.console,
                # The line is taken back at the end.
                transient=True,
                refresh_per_second=4,
                # Printed text goes through `aside`.
                redirect_stdout=False,
                redirect_stderr=False,
            )
            # The line must not grow beyond the terminal: it could not be taken back.
            stage = self._stage[: max(self.console.width - 40, 10)]
            self._progress.add_task(stage, total=self._total or None, completed=self._done)
            self._progress.start()

    def hide(self) -> bool:
        """Hide the display; returns whether the display was visible."""
        with self._lock:
            shown, self._progress = self._progress, None
            if shown is not None:
                shown.stop()
            return shown is not None

    def end(self) -> None:
        """Hide the display for the rest of the command."""
        self._timer.cancel()
        with self._lock:
            self._has_ended = True
            self.hide()

    def stage(self, text: str, total: int = 0, done: int = 0) -> None:
        """Set the text and the amount of work of the current stage.

        Args:
            text: description, a few words.
            total: number of units of work, shown as a bar; 0 for a spinner [1].
            done: finished units of work [1].
        """
        with self._lock:
            # A new display: spinner and bar have different columns.
            self.hide()
            self._stage, self._total, self._done = text, total, done
            if self._is_late:
                self.show()

    def advance(self, n: int) -> None:
        """Add finished units of work to the progress of the stage."""
        with self._lock:
            self._done += n
            if self._progress is not None:
                self._progress.update(self._progress.task_ids[0], completed=self._done)

    @contextlib.contextmanager
    def aside(self, is_answer: bool) -> Iterator[None]:
        """Context for printing a text while the display is hidden.

        Args:
            is_answer: whether the text is the result of the command; the display then returns with the next stage.
        """
        with self._lock:
            was_there = self.hide()
            yield
            # After the answer the display returns with the next stage.
            if was_there and not is_answer:
                self.show()


FALLBACK = 80
"""Width of a terminal that does not tell its own [1]."""

PIECE = 4096
"""Letters that are written at once: fewer than the buffer of a file has room for [1]."""

PAGES = {
    "jaxscale.sweeps": "sweeps.md",
    "jaxscale.hardware": "add_a_chip.md",
    "jaxscale.models": "start.md",
    "jaxscale.launch.readers": "start.md",
    "jaxscale.launch.writers": "start.md",
    "jaxscale.burst": "burst.md",
    "jaxscale.explaining": "explain.md",
    "jaxscale.explore": "explore.md",
    "jaxscale.islands": "islands.md",
    "jaxscale.laws": "laws.md",
    "jaxscale.limits": "limits.md",
    "jaxscale.rollouts": "rollouts.md",
    "jaxscale.serving": "serving.md",
    "jaxscale.measuring": "measure.md",
    "jaxscale.tracing": "workloads.md",
    "jaxscale.trends": "trends.md",
    "jaxscale.plans": "choose.md",
    "jaxscale.runs": "command_line.md",
    "jaxscale.fitting": "calibrate.md",
}
"""Pages in docs/ by package. Where an error passed through several, the first counts: names of models are found by
`jaxscale.models` for `jaxscale.runs`. Packages that are not listed have no page that would help."""


class State:
    """Settings of messages and progress display, global to the process.

    Attributes:
        is_quiet: whether messages and progress are left out.
        indicator: progress display of the running command, on a terminal.
        remarks: messages that stand beside the answer of the running command.
    """

    is_quiet = False
    indicator: "Indicator | None" = None
    remarks: tuple[str, ...] = ()


@contextlib.contextmanager
def working(is_quiet: bool) -> Iterator[None]:
    """Context of a running command: messages unless quiet, and on a terminal a line with the stage of long work."""
    State.is_quiet, State.remarks = is_quiet, ()
    # No display where stderr is a file or a pipe.
    if not is_quiet and columns_of(sys.stderr):
        State.indicator = Indicator(console_on(sys.stderr))
        State.indicator.begin()
    try:
        yield
    finally:
        idle()
        State.is_quiet = False


def idle() -> None:
    """End the progress display, for example while a command waits for a person."""
    if State.indicator is not None:
        State.indicator.end()
        State.indicator = None


def aside(is_answer: bool = False) -> "contextlib.AbstractContextManager[None]":
    """Context for printing with the progress display hidden.

    Args:
        is_answer: whether the printed text is the result of the command.
    """
    if is_answer:
        remarks, State.remarks = State.remarks, ()
        for remark in remarks:
            say(remark)
    return contextlib.nullcontext() if State.indicator is None else State.indicator.aside(is_answer)


def stage(text: str, total: int = 0, done: int = 0) -> None:
    """Set the current stage of the progress display; arguments as of `Indicator.stage`."""
    if State.indicator is not None:
        State.indicator.stage(text, total, done)


def advance(n: int) -> None:
    """Add finished units of work to the progress of the current stage."""
    if State.indicator is not None:
        State.indicator.advance(n)


def columns_of(stream: Any) -> int | None:
    """Number of columns of the terminal behind a stream; None for a file or a pipe [1]."""
    try:
        # A terminal may report a width of 0.
        return os.get_terminal_size(stream.fileno()).columns or FALLBACK if stream.isatty() else None
    except (OSError, ValueError, AttributeError):  # a stream without a file, a closed file, or no stream at all
        return None


def console_on(stream: Any) -> "Console":
    """Console of rich on a stream, with the width of the terminal; without colours and `WIDE` columns on a file."""
    from rich.console import Console

    from jaxscale.base.table import WIDE

    width = columns_of(stream)
    plain_words: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False}
    # No terminal: tables at full width.
    return Console(file=stream, width=width or WIDE, force_terminal=width is not None, **plain_words)


def say(text: str) -> None:
    """Print a message on stderr, except with `--quiet`."""
    if not State.is_quiet:
        write_message(text)


def remark(text: str) -> None:
    """Print a message on stderr beside the answer of a command, if there is one: a refusal stands alone."""
    State.remarks += (text,)


def write_message(text: str) -> None:
    """Print a message on stderr, also with `--quiet`."""
    if sys.stderr is not None:  # None where a program is started without it
        with aside():
            _write(sys.stderr, text)


def answer(is_json: bool, document: "Callable[[], Any]", parts: "Callable[[], Iterable[str | Table]]") -> None:
    """Print the result of a command on stdout, as JSON or as text.

    Args:
        is_json: whether to print JSON.
        document: function that returns the JSON document.
        parts: function that returns the tables and paragraphs of the text.
    """
    if is_json:
        # JSON has no nan; `plain` has replaced all.
        print_text(json.dumps(plain(document()), indent=2, allow_nan=False))
    else:
        print_result(*parts())


def print_result(*parts: "str | Table") -> None:
    """Print tables and paragraphs on stdout, wrapped at the width of a terminal; paragraphs to a file are not wrapped.

    Args:
        parts: tables and paragraphs, printed with an empty line around each table.
    """
    with aside(is_answer=True):
        for before, part in zip((None, *parts), parts, strict=False):
            # No blank line between paragraphs.
            if before is not None and not (isinstance(before, str) and isinstance(part, str)):
                sys.stdout.write("\n")
            _write(sys.stdout, part)


def _write(stream: Any, part: "str | Table") -> None:
    """Write a table, or a paragraph, which wraps on a terminal alone."""
    if isinstance(part, str) and columns_of(stream) is None:
        _write_all(stream, part + "\n")
        return
    console, shown = console_on(stream), io.StringIO()
    # To memory first, then whole: a full disk is found by `_write_all`.
    console.file = shown
    console.print(part)
    _write_all(stream, shown.getvalue())


def _write_all(stream: Any, text: str) -> None:
    """Write a text whole.

    Raises:
        OSError: the stream takes a part of the text alone, as a file on a full disk does.
    """
    try:
        # Of a text longer than its buffer Python loses the end without an error, where a disk takes the beginning.
        for begin in range(0, len(text), PIECE):
            stream.write(text[begin : begin + PIECE])
        stream.flush()
    except OSError as error:
        # A stream has no file name for the message.
        error.filename = error.filename or "the output"
        with contextlib.suppress(OSError, ValueError):
            # What is left in the buffer would fail once more when the process ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        raise


def print_text(text: str) -> None:
    """Print a text on stdout without wrapping, for copying."""
    with aside(is_answer=True):
        _write_all(sys.stdout, text + "\n")


def check_pictures(plot: Path | None, report: Path | None, *read: "str | Path | None") -> None:
    """Check before a computation that the requested figure and report can be written.

    Args:
        plot: file of the figure, None for no figure.
        report: folder of the report, None for no report.
        read: input files, which must not be overwritten.

    Raises:
        InputError: figure or report cannot be written, or the suffix of the figure names no format.
    """
    from jaxscale.base.files import check_folder, check_writable

    if plot is not None:
        from jaxscale.report.style import checked_picture

        check_writable(checked_picture(plot), *read)
    if report is not None:
        check_folder(report)


def save_pictures(
    plot: Path | None, report: Path | None, figure: "Callable[[], Figure]", document: "Callable[[], Report]"
) -> None:
    """Draw and write the requested figure and report, and print the paths.

    Args:
        plot: file of the figure, None for no figure.
        report: folder of the report, None for no report.
        figure: function that draws the figure.
        document: function that makes the report.
    """
    if plot is None and report is None:
        return
    from jaxscale.report.style import save_figure

    stage("drawing the figures")
    if plot is not None:
        save_figure(figure(), plot)
        say(f"wrote {plot}")
    if report is not None:
        say(f"wrote {document().save(report)} and the figures beside it")


def save_timeline(path: Path | None, run: "Callable[[], tuple[Any, ...]]") -> None:
    """Write the timeline of a training step, if requested, and print the path.

    Args:
        path: file to write, None for no timeline.
        run: function that returns model, plan, cluster and coefficients.
    """
    if path is None:
        return
    from jaxscale.base.lazy import loaded
    from jaxscale.cli.registry import TIMELINE

    stage("drawing the timeline")
    loaded(TIMELINE)(*run()).save(path)
    say(f"wrote {path}: Perfetto (ui.perfetto.dev) or chrome://tracing shows it")


LARGEST_WHOLE = 2**53
"""Whole numbers up to here are exact in every reader of JSON [1]."""


def plain(value: Any) -> Any:
    """Value for JSON: arrays and numpy numbers as lists and numbers, nan and infinity as None."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    # Arrays and numbers of numpy and JAX.
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        # Counts have no point; beyond 2^53 an integer would claim digits unknown to a float.
        return int(value) if value.is_integer() and abs(value) <= LARGEST_WHOLE else value
    return value


def page_of(error: InputError) -> str | None:
    """Path of the documentation page about the subject of an error; None if no page helps.

    Args:
        error: the caught error, with traceback.

    Returns:
        The path in the repository, such as `docs/add_a_chip.md`.
    """
    modules = [str(frame.f_globals.get("__name__", "")) for frame, _ in traceback.walk_tb(error.__traceback__)]
    for package, page in PAGES.items():
        if any(module.startswith(f"{package}.") for module in modules):
            return f"docs/{page}"
    return None
