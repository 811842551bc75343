"""Row of a runs table from the log and the launch files of a run, and the cells that remain open.

A CSV history of steps, for example an export of Weights & Biases, gives a row as well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from jaxscale.base.documents import parsed_json
from jaxscale.base.errors import InputError, one_like, unreadable
from jaxscale.launch.readers.launch_rules import framework_family, understood_cells
from jaxscale.launch.readers.log_formats import (
    AUTOMODEL,
    DLLOGGER,
    MAXTEXT,
    MEGATRON,
    MLPERF,
    NANOTRON,
    PLAIN,
    TORCHTITAN,
    TRAINER,
    Gathered,
    LogFormat,
    take_state,
)
from jaxscale.launch.readers.settings_text import (
    FORM,
    plain_number,
    plain_value,
    product,
    product_of_degrees,
    remarks_of,
    settings_of,
)
from jaxscale.launch.readers.step_series import KEPT, StepSeries
from jaxscale.models import catalogue_model
from jaxscale.runs.schema import COLUMNS, REQUIRED
from jaxscale.tables.cells import SHAPE
from jaxscale.tables.reader import csv_table

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
    """Format and content of a training log, read line by line with bounded memory.

    Raises:
        InputError: an unreadable file, a binary file, or a log of an unknown program.
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


MEASURED = {
    "seconds": "step_time_s",
    "tokens_per_s_per_gpu": "tokens_per_s_per_gpu",
    "tflops_per_gpu": "tflops_per_gpu",
}
"""Columns of the runs table by the quantity of a step."""

EMPTY = "", None
LAUNCH_ENDINGS = (".toml", ".yaml", ".yml", ".sh", ".py")


@dataclass(frozen=True)
class RunRow:
    """Row of a runs table read from files, with open cells and settings without a rule.

    Attributes:
        cells: filled cells by column.
        left_open: required columns without a value.
        remarks: warnings about the row.
        unread: keys of the launch files without a rule.
    """

    cells: Mapping[str, Any]
    left_open: tuple[str, ...]
    remarks: tuple[str, ...]
    unread: tuple[str, ...] = ()


def run_of_log(path: Path, configs: Sequence[Path] = (), stated: Mapping[str, Any] | None = None) -> RunRow:
    """Row of a runs table from a log and the launch files of the run.

    Args:
        path: the log.
        configs: launch files of the run, with precedence over settings in the log.
        stated: cells stated by the user, with precedence over log and launch files.

    Raises:
        InputError: an unreadable file, or a file of an unknown program.
    """
    kind, gathered = read_log(path)
    family = kind.family or None
    settings: dict[str, Any] = dict(gathered.settings)
    for config in configs:
        own = settings_of(config)
        family = framework_family(own) or family
        settings |= own
    cells, unread = _understood(settings, family) if family and settings else ({}, ())
    # Settings have finer words than the head of a log, as selective-layer for selective.
    cells |= {name: value for name, value in gathered.cells.items() if cells.get(name) in EMPTY}
    if kind.framework and not cells.get("framework"):
        cells["framework"] = kind.framework
    cells |= dict(stated or {})
    return finished_row(_with_measurements(cells, kind, gathered), gathered.remarks, path, unread)


def run_of_launch(path: Path, more: Sequence[Path] = (), stated: Mapping[str, Any] | None = None) -> RunRow:
    """Row of a runs table from launch files only, without measured quantities.

    Raises:
        InputError: an unreadable file, or settings of an unknown framework.
    """
    settings: dict[str, Any] = {}
    for file in (path, *more):
        settings |= settings_of(file)
    settings |= _deepspeed_file(settings, path)
    family = framework_family(settings)
    if family is None:
        raise InputError(
            f"{path}: settings of no framework that is known; expected a launch file of Megatron-LM, NeMo,"
            " Megatron-Bridge, torchtitan, MaxText, nanotron, DeepSpeed, accelerate, axolotl, LLaMA-Factory, ms-swift,"
            " OpenRLHF, verl or litgpt"
        )
    try:
        cells, unread = _understood(settings, family)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    remarks = [remark for file in (path, *more) for remark in remarks_of(file)]
    return finished_row({**cells, **(stated or {})}, remarks, path, unread)


def _understood(settings: dict[str, Any], family: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Cells from settings, and the keys that no rule understands."""
    is_complete = settings.get(FORM) == "options" and "program" not in settings
    return understood_cells(settings, family, is_complete)


def _deepspeed_file(settings: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Settings of the DeepSpeed file that a launch file names; none where the named file is not in the same folder."""
    named = settings.get("deepspeed", settings.get("deepspeed_config_file"))
    if not isinstance(named, str) or not named.endswith(".json"):
        return {}
    # A script names a path of the cluster; a copy beside the script counts too.
    places = [path.parent / named, path.parent / Path(named).name]
    file = next((place for place in places if place.is_file()), None)
    found = settings_of(file) if file is not None else {}
    # DeepSpeed's "auto" means the value of the trainer.
    return {key: value for key, value in found.items() if value != "auto" and key not in settings}


def run_of(path: Path, configs: Sequence[Path] = (), stated: Mapping[str, Any] | None = None) -> RunRow:
    """Row of a runs table from a file, recognised as log or launch file.

    Raises:
        InputError: an unreadable file, or a file of an unknown program.
    """
    if path.suffix.lower() in LAUNCH_ENDINGS:
        return run_of_launch(path, configs, stated)
    try:
        return run_of_log(path, configs, stated)
    # .json and .txt hold logs and launch files alike.
    except InputError:
        try:
            return run_of_launch(path, configs, stated)
        except InputError:
            pass
        raise


def _with_measurements(cells: dict[str, Any], kind: LogFormat, gathered: Gathered) -> dict[str, Any]:
    """Cells with the medians of the steady steps."""
    medians = gathered.series.medians()
    cells |= {MEASURED[name]: value for name, value in medians.items() if name in MEASURED}
    peaks = [medians.get("memory_gb"), gathered.cells.get("peak_mem_gb")]
    # Lines of steps and the summary of a log each state a peak.
    if peak := max((peak for peak in peaks if peak), default=None):
        cells["peak_mem_gb"] = peak
    if "batch" in medians:
        cells.setdefault("global_batch_size_seqs", medians["batch"])
    tokens = cells.pop("tokens_per_step", None)
    if tokens and (seq_len := plain_number(cells.get("seq_len"))) and "global_batch_size_seqs" not in cells:
        cells["global_batch_size_seqs"] = tokens / seq_len
    batch, seq_len, chips, rate = (
        plain_number(cells.get(name))
        for name in ("global_batch_size_seqs", "seq_len", "n_gpus", "tokens_per_s_per_gpu")
    )
    if "step_time_s" not in cells and batch and seq_len and chips and rate:
        # Tokens of a step / chips / (tokens per second of a chip).
        cells["step_time_s"] = batch * seq_len / chips / rate
        cells["step_time_derived"] = True
    n_steady, n_steps = int(gathered.series.is_steady().sum()), len(gathered.series)
    cells["notes"] = f"median of {n_steady} steady steps of {n_steps} in a log of {kind.name}"
    return cells


def finished_row(cells: dict[str, Any], remarks: Sequence[str], path: Path, unread: tuple[str, ...] = ()) -> RunRow:
    """Row with cells in the order of the schema, and the list of open required columns."""
    cells = {"source": "read", "source_row": path.name, **cells}
    if remarks:
        cells["notes"] = "; ".join(filter(None, [cells.get("notes"), *remarks]))
    # B = b * m * dp
    if cells.get("global_batch_size_seqs") in EMPTY and (batch := _batch_of(cells)):
        cells["global_batch_size_seqs"] = batch
    knows_shape = cells.get("model") is not None and catalogue_model(str(cells["model"])) is not None
    wanted = [name for name in REQUIRED if not (knows_shape and name in SHAPE)]
    # b = B / (m * dp)
    fills = {"micro_batch_size": "n_microbatches"}
    left_open = [name for name in wanted if cells.get(name) in EMPTY and cells.get(fills.get(name, name)) in EMPTY]
    order = [column.name for column in COLUMNS]
    known = {name: cells[name] for name in order if cells.get(name) not in EMPTY}
    rest = {name: value for name, value in cells.items() if name not in known and value not in EMPTY}
    return RunRow(
        {name: _text(value) for name, value in (known | rest).items()}, tuple(left_open), tuple(remarks), unread
    )


def _batch_of(cells: Mapping[str, Any]) -> float | None:
    """Global batch from the microbatch, the number of microbatches and the replicas; None where one is open."""
    cells = {name: plain_value(cell) if isinstance(cell, str) else cell for name, cell in cells.items()}
    chips, replicas = (plain_number(cells.get(name)) for name in ("n_gpus", "dp"))
    replicas = replicas or chips and chips / product_of_degrees(cells, "tp", "pp", "cp")
    return product({**cells, "dp": replicas}, "micro_batch_size", "n_microbatches", "dp")


def _text(value: Any) -> str:
    """A cell as a table has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def table_columns(rows: Sequence[RunRow]) -> tuple[str, ...]:
    """Columns of a table of rows: all required columns, and all columns with a value."""
    filled = {name for row in rows for name in row.cells}
    order = [column.name for column in COLUMNS if column.name in filled or column.required or column.name == "model"]
    return (*order, *sorted(filled - set(order)))


FILLED = {**{column: name for name, column in MEASURED.items()}, "peak_mem_gb": "memory_gb", "mfu": "mfu"}
"""Quantities of a step by the column of the runs table that they fill."""


def run_of_history(path: Path, columns: Mapping[str, str], stated: Mapping[str, Any]) -> RunRow:
    """Row of a runs table from a CSV history of steps, with medians over the steady steps.

    Args:
        path: CSV table with a row per step.
        columns: column of the history, by column of the runs table.
        stated: further cells of the row.

    Raises:
        InputError: an unreadable file, a missing column, or a column without any number.
    """
    for name in columns:
        if name not in FILLED:
            raise InputError(f"{name!r} is not measured at each step; expected one of {', '.join(FILLED)}")
    series = StepSeries()
    header, records = csv_table(path)
    for own in columns.values():
        if own not in header:
            raise InputError(f"{path}:1: no column {own!r}; {one_like(own, header)}")
    for place, (_, record) in enumerate(records):
        # A history may end within a row: missing cells count as nan.
        cells = dict(zip(header, record, strict=False))
        series.add(float(place), **{FILLED[name]: _float(cells.get(own)) for name, own in columns.items()})
    medians = series.medians()
    if not medians:
        raise InputError(f"{path}: no number in {', '.join(columns.values())}; expected one row for each step")
    cells = {name: medians[FILLED[name]] for name in columns if FILLED[name] in medians}
    note = f"median of {int(series.is_steady().sum())} steady steps of {len(series)} in a history"
    return finished_row({**stated, **cells, "notes": note}, [], path)


def _float(text: str | None) -> float:
    try:
        return float(text or "nan")
    except ValueError:
        return float("nan")
