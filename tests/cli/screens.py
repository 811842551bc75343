"""Screens: what a terminal of some width shows, and which numbers stand on it whole."""

import fcntl
import math
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxscale.base.table import Table
from jaxscale.cli import console

WIDTHS = (60, 80, 100, 120, 200)
"""Columns of the terminals [1]."""

UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
"""Units of times, as they stand beside a number [s]."""

NUMBER = re.compile(
    r"(?:10\^(?P<power>\d+\.\d+))|(?P<digits>(?:(?<!\w)[-+])?\d[\d,]*(?:\.\d+)?)(?P<exponent>e[-+]?\d+)?(?:\s+(?P<unit>s|ms|us)\b)?"
)


class Pty:
    """A pseudo-terminal, whose screen is read while it is written to."""

    def __init__(self, width: int):
        """Args: width: columns [1]."""
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
        self._read: list[bytes] = []
        self._reader = threading.Thread(target=self._drain)
        self._reader.start()

    def _drain(self) -> None:
        while True:
            try:
                got = os.read(self.master, 65536)
            except OSError:  # the last writer has gone
                return
            if not got:
                return
            self._read.append(got)

    def close(self) -> str:
        """All that was written, without the escapes of colours, as lines."""
        os.close(self.slave)
        self._reader.join(timeout=60)
        os.close(self.master)
        return plain_text(b"".join(self._read).decode())


def plain_text(written: str) -> str:
    """What a terminal was sent, without escapes of colours and of the cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written).replace("\r\n", "\n")


def screen_of(write: Callable[[], None], width: int, stream: str = "stdout") -> str:
    """What something shows that writes to a stream of this process.

    Args:
        write: prints.
        width: columns of the terminal [1].
        stream: `stdout` or `stderr`.
    """
    terminal, before = Pty(width), getattr(sys, stream)
    with os.fdopen(os.dup(terminal.slave), "w", encoding="utf-8") as file:
        setattr(sys, stream, file)
        try:
            write()
        finally:
            setattr(sys, stream, before)
    return terminal.close()


def screen_of_process(arguments: Sequence[object], width: int, both: bool = False) -> str:
    """What the program shows as a process of its own.

    Args:
        arguments: of the command line.
        width: columns of the terminal [1].
        both: whether stderr is the same terminal; it is left out where not.
    """
    terminal = Pty(width)
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    command = [sys.executable, "-m", "jaxscale", *map(str, arguments)]
    streams = {"stdin": subprocess.DEVNULL, "stdout": terminal.slave}
    streams["stderr"] = terminal.slave if both else subprocess.DEVNULL
    subprocess.run(command, **streams, env={**environment, "TERM": "xterm"}, timeout=240, check=False)
    return terminal.close()


class Token(NamedTuple):
    """A number as it stands on a screen.

    Attributes:
        value: of the digits.
        slack: half a unit of the last digit.
        unit: of a time beside it [s]; 0 where there is none.
        is_power: whether it is the exponent of a power of ten.
    """

    value: float
    slack: float
    unit: float
    is_power: bool


def tokens_of(text: str) -> list[Token]:
    """Numbers of a text, in order."""
    found = []
    for match in NUMBER.finditer(text):
        digits = (match["power"] or match["digits"]).replace(",", "")
        exponent = float((match["exponent"] or "e0")[1:])
        decimals = len(digits.partition(".")[2])
        slack = 0.5 * 10.0 ** (exponent - decimals)
        found.append(Token(float(digits) * 10.0**exponent, slack, UNITS.get(match["unit"], 0.0), bool(match["power"])))
    return found


@dataclass(frozen=True)
class Expected:
    """A number that a screen must show.

    Attributes:
        value: in the unit of the screen; of a time in seconds.
        is_time: whether a unit of time must stand beside it.
        is_power: whether it is shown as a power of ten, whose exponent the value is.
    """

    value: float
    is_time: bool = False
    is_power: bool = False

    def stands_as(self, token: Token) -> bool:
        """Whether a number of the screen is this one, rounded."""
        if self.is_power != token.is_power or (self.is_time and not token.unit):
            return False
        unit = token.unit if self.is_time else 1.0
        return abs(token.value * unit - self.value) <= token.slack * unit * (1.0 + 1e-6) + 1e-12 * abs(self.value)


Cell = tuple[Expected, ...]
Rows = Sequence[Sequence[Cell]]


def shows(values: Iterable[Expected], tokens: Iterable[Token]) -> bool:
    """Whether numbers stand on a screen in their order, with or without others between them."""
    rest = iter(tokens)
    return all(any(value.stands_as(token) for token in rest) for value in values)


def missing(rows: Rows, screen: str, is_ordered: bool = True) -> Iterator[str]:
    """What a screen does not show of a table.

    Args:
        rows: cells of numbers, in the order of rows and columns; a column that is equal in all rows may stand above.
        screen: text of the screen.
        is_ordered: whether the rows stand in this order.
    """
    tokens, captions = tokens_of(screen), re.findall(r"^all: .*\n.*", screen, re.M)
    said = [token for caption in captions for token in tokens_of(caption)]
    shared = {
        place
        for place, cells in enumerate(zip(*rows, strict=True))
        if said and all(shows(cell, said) for cell in cells)
    }
    own = [[value for place, cell in enumerate(row) if place not in shared for value in cell] for row in rows]
    groups = [[value for row in own for value in row]] if is_ordered else own
    for group in groups:
        if not shows(group, tokens):
            yield f"{group}"


def too_long(screen: str, width: int) -> list[str]:
    """Lines that are longer than the terminal."""
    return [line for line in screen.splitlines() if len(line) > width]


def number(value: float | None) -> Cell:
    """Cell of a number; empty where there is none."""
    return () if value is None else (Expected(value),)


def seconds(*values: float) -> Cell:
    """Cell of times."""
    return tuple(Expected(value, is_time=True) for value in values)


def power(value: float | None) -> Cell:
    """Cell of a power of ten."""
    return () if value is None else (Expected(math.log10(value), is_power=True),)


class Promise(NamedTuple):
    """Numbers of a document that a table must show.

    Attributes:
        rows: cells, in the order of rows and columns.
        is_ordered: whether the rows of the table are in this order.
    """

    rows: list[list[Cell]]
    is_ordered: bool = True


Document = Any


class Answer(NamedTuple):
    """A document, and the tables and paragraphs of the same answer."""

    document: Document
    parts: tuple[Any, ...]


def headless(table: Table, screen: str) -> list[str]:
    """Columns of a table of which a screen shows neither a head nor, in a stacked row, the phrase of a cell."""
    shown, words = table.without_equal_columns()[0], " ".join(screen.split())
    lost = []
    for place, column in enumerate(shown.columns):
        phrases = {" ".join(column.phrase(row[place]).split()) for row in shown.rows} - {""}
        heads = (column.heading(), column.heading(is_short=True))
        if not any(head in screen for head in heads) and not any(phrase in words for phrase in phrases):
            lost.append(column.name)
    return lost


def stands_whole(answer: Answer, promises: Iterable[Promise]) -> None:
    """Fail where some terminal does not show a number, a heading or a line whole."""
    assert answer.parts
    promised = list(promises)
    for width in WIDTHS:
        screen = screen_of(lambda: console.print_result(*answer.parts), width)
        assert not too_long(screen, width)
        for part in answer.parts:
            assert not (isinstance(part, Table) and headless(part, screen))
        for promise in promised:
            assert promise.rows, "a promise of nothing is none"
            assert not list(missing(promise.rows, screen, promise.is_ordered)), f"{width} columns:\n{screen}"
