"""Training logs, read line by line: program, steps and settings."""

from pathlib import Path
from typing import BinaryIO

from jaxscale.base.documents import parsed_json
from jaxscale.base.errors import InputError, unreadable
from jaxscale.launch.readers.logs.json_lines_log import AUTOMODEL, DLLOGGER, MLPERF
from jaxscale.launch.readers.logs.log_format import Gathered, LogFormat
from jaxscale.launch.readers.logs.megatron_log import MEGATRON
from jaxscale.launch.readers.logs.plain_logs import MAXTEXT, NANOTRON, PLAIN
from jaxscale.launch.readers.logs.torchtitan_log import TORCHTITAN
from jaxscale.launch.readers.logs.trainer_log import TRAINER, take_state
from jaxscale.launch.readers.step_series import KEPT

FORMATS: tuple[LogFormat, ...] = (
    *(MEGATRON, TORCHTITAN, MAXTEXT, NANOTRON, DLLOGGER, AUTOMODEL, MLPERF),
    *PLAIN,
    TRAINER,
)
"""Formats in the order in which a line is shown to them."""

LONGEST_LINE = 1 << 20
"""Part of a line that is looked at [byte]."""

FIRST_STEP = 64 * 2**20
"""Part of a log within which its first step must stand [byte]."""

STATE_FILE = 64 * 2**20
"""Size up to which a file is read as one JSON document [byte]."""

HF_TRAINER = LogFormat("transformers.Trainer", "deepspeed", "", lambda line, gathered: False)


def read_log(path: Path) -> tuple[LogFormat, Gathered]:
    """Format and content of a log; memory does not grow with the length of the log.

    Raises:
        InputError: an unreadable file, a binary file, or a log of no known program.
    """
    try:
        with path.open("rb") as file:
            head = file.read(4096)
            # Text holds no zero byte.
            if b"\0" in head:
                raise InputError(f"{path}: not text; expected a training log")
            # trainer_state.json is a single document, read whole within the bound on size.
            if head.lstrip().startswith(b"{") and path.stat().st_size <= STATE_FILE and (state := _state(path)):
                return HF_TRAINER, state
            file.seek(0)
            return _read_lines(path, file)
    except OSError as error:
        raise unreadable(path, error) from None


def _state(path: Path) -> Gathered | None:
    """Content of a trainer_state.json; None for any different file."""
    try:
        state = parsed_json(path.read_text(encoding="utf-8"))
    except ValueError:
        return None
    gathered = Gathered()
    return gathered if isinstance(state, dict) and take_state(state, gathered) else None


def _read_lines(path: Path, file: BinaryIO) -> tuple[LogFormat, Gathered]:
    """Offer each line to all formats until a format has found steps, then to that format alone."""
    gathered = {entry.name: Gathered() for entry in FORMATS}
    open_formats: tuple[LogFormat, ...] = FORMATS
    while line := file.readline(LONGEST_LINE):
        is_open = len(open_formats) > 1
        # A huge file without a step is no log; a known format is read until enough steps are kept.
        if file.tell() > FIRST_STEP if is_open else _is_full(open_formats, gathered):
            break
        text = line.decode("utf-8", errors="replace").rstrip("\n")
        for entry in open_formats:
            if entry.take(text, gathered[entry.name]) and len(open_formats) > 1 and _is_sure(gathered[entry.name]):
                open_formats = (entry,)
                break
    if len(open_formats) == 1:
        return open_formats[0], gathered[open_formats[0].name]
    # The format with most settings names the program of a run without a finished step.
    best = max(FORMATS, key=lambda entry: len(gathered[entry.name].cells) + len(gathered[entry.name].settings))
    if gathered[best.name].cells or gathered[best.name].settings:
        raise InputError(f"{path}: a log of {best.name} without a finished step; expected one with lines of steps")
    names = ", ".join(entry.name for entry in FORMATS)
    raise InputError(f"{path}: no line of a training log that is known; expected a log of {names}")


def _is_sure(gathered: Gathered) -> bool:
    """Whether a format has met a step."""
    return len(gathered.series) > 0


def _is_full(formats: tuple[LogFormat, ...], gathered: dict[str, Gathered]) -> bool:
    """Whether a log has more steps than are kept."""
    return len(gathered[formats[0].name].series) >= KEPT
