"""Progress display of a command on a terminal: stage, and spinner or bar."""

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

PATIENCE = 2.0
"""Time from which on a command shows that it works [s]."""


class Indicator:
    """A line that turns while a command works.

    Attributes:
        console: on a terminal.
    """

    def __init__(self, console: "Console"):
        """Args: console: on a terminal."""
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
        """Wait for a while, then show the line."""
        self._timer.start()

    def show(self) -> None:
        """Show the line."""
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
        """Take the line back; whether it was there."""
        with self._lock:
            shown, self._progress = self._progress, None
            if shown is not None:
                shown.stop()
            return shown is not None

    def end(self) -> None:
        """Take the line back for good."""
        self._timer.cancel()
        with self._lock:
            self._has_ended = True
            self.hide()

    def stage(self, text: str, total: int = 0, done: int = 0) -> None:
        """Name the current stage.

        Args:
            text: a few words.
            total: number of parts of the work, shown as a bar; 0 for a spinner [1].
            done: finished parts [1].
        """
        with self._lock:
            # A new display: spinner and bar have different columns.
            self.hide()
            self._stage, self._total, self._done = text, total, done
            if self._is_late:
                self.show()

    def advance(self, n: int) -> None:
        """Count finished parts of the work."""
        with self._lock:
            self._done += n
            if self._progress is not None:
                self._progress.update(self._progress.task_ids[0], completed=self._done)

    @contextlib.contextmanager
    def aside(self, is_answer: bool) -> Iterator[None]:
        """Hide the display while a text is printed.

        Args:
            is_answer: whether the text is the answer, after which the display returns with the next stage only.
        """
        with self._lock:
            was_there = self.hide()
            yield
            # After the answer the display returns with the next stage.
            if was_there and not is_answer:
                self.show()
