"""Reader of kernel traces of training steps: PyTorch's profiler (Kineto), JAX and XLA, Nsight Systems.

References: Trace Event Format, Google, 2016; PyTorch Kineto `libkineto/src/output_json.cpp`; XLA
`xla/tsl/profiler/convert`; Nsight Systems 2024, "Exporter SQLite Schema Reference".
"""

import contextlib
import gzip
import math
import re
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from jaxscale.base.documents import json_elements
from jaxscale.base.errors import InputError, unreadable
from jaxscale.explaining.predicted_parts import CollectiveGroup, rule_of

MOST_LETTERS = 8 * 2**30
"""Maximum number of characters of an unpacked trace [1]."""

MOST_KERNELS = 20_000_000
"""Maximum number of kernels of a trace [1]."""

KINDS = (
    "a JSON trace of PyTorch's profiler or of JAX, packed or not (.json, .json.gz), an xplane.pb of JAX, or a .sqlite"
    " that `nsys export --type sqlite` wrote"
)
"""Supported trace formats, for messages."""

STEP_MARK = re.compile(r"(ProfilerStep|train|step|iter|iteration)\w*\W*\d+|ProfilerStep", re.IGNORECASE)
"""Names of ranges that programs record around a step."""

DEVICE_KINDS = ("kernel", "gpu_memcpy", "gpu_memset")
"""Categories of Kineto events on a device."""

LAUNCHES = ("cuda_runtime", "cuda_driver", "hip_runtime", "runtime", "driver")
"""Categories of Kineto events that launch device events."""

MICROSECOND, NANOSECOND = 1e-6, 1e-9


@dataclass(frozen=True)
class KernelTrace:
    """Kernels of a device in a trace, in the order of the start times.

    Attributes:
        where: file and device, for messages.
        start: start time [s], [kernel].
        end: end time [s], [kernel].
        launched: time of the launch by the host; nan where not recorded [s], [kernel].
        kind: type of the kernel, an index in `names` and `groups` [kernel].
        names: kernel name of each type [kind].
        groups: collective group of each type [kind].
        marks: begin and end of each step on the device; empty if the trace names no steps [s], [step].
        host_marks: begin and end of each step on the host, ahead of the device [s], [step].
    """

    where: str
    start: Float[np.ndarray, " kernel"]
    end: Float[np.ndarray, " kernel"]
    launched: Float[np.ndarray, " kernel"]
    kind: Int[np.ndarray, " kernel"]
    names: tuple[str, ...]
    groups: tuple[CollectiveGroup, ...]
    marks: Float[np.ndarray, "step 2"]
    host_marks: Float[np.ndarray, "host_step 2"]


@dataclass
class _Gathered:
    """Events during the read of a trace: kernels by device, types of kernels, ranges of steps."""

    kernels: dict[Any, list[tuple[float, float, float, int]]] = field(default_factory=dict)
    kinds: dict[tuple[str, CollectiveGroup], int] = field(default_factory=dict)
    marks: dict[Any, list[tuple[float, float]]] = field(default_factory=dict)
    host_marks: list[tuple[float, float]] = field(default_factory=list)
    launches: dict[Any, float] = field(default_factory=dict)
    n_kernels: int = 0

    def add(
        self,
        device: Any,
        name: str,
        begin: float,
        length: float,
        stream: Any,
        correlation: Any = None,
        group: CollectiveGroup | None = None,
    ) -> None:
        """Add a kernel [s]; invalid times are ignored.

        Raises:
            ValueError: more kernels than `MOST_KERNELS`.
        """
        if not (math.isfinite(begin) and math.isfinite(length) and length > 0.0):
            return
        self.n_kernels += 1
        if self.n_kernels > MOST_KERNELS:
            raise ValueError(f"more than {MOST_KERNELS:,} kernels; expected a few steps")
        if group is None:
            is_collective = rule_of(name)[0] == "collective"
            group = CollectiveGroup(stream=str(stream)) if is_collective else CollectiveGroup()
        kind = self.kinds.setdefault((name, group), len(self.kinds))
        self.kernels.setdefault(device, []).append((begin, begin + length, correlation or 0, kind))

    def traces(self, path: Path) -> list[KernelTrace]:
        """Trace of each device.

        Raises:
            InputError: no kernel at all.
        """
        if not self.kernels:
            raise InputError(f"{path}: no kernel of a device in it; expected a trace with the activity of a device")
        names, groups = zip(*self.kinds, strict=True)
        several = len(self.kernels) > 1
        return [
            self._trace(f"{path}, device {device}" if several else str(path), device, names, groups)
            for device in sorted(self.kernels, key=str)
        ]

    def _trace(
        self, where: str, device: Any, names: tuple[str, ...], groups: tuple[CollectiveGroup, ...]
    ) -> KernelTrace:
        rows = sorted(self.kernels[device])
        launched = [self.launches.get(correlation, math.nan) for _, _, correlation, _ in rows]
        start, end, kind = (np.asarray([row[place] for row in rows]) for place in (0, 1, 3))
        # Marks without a device hold for every device.
        marks = self.marks.get(device, self.marks.get(None, []))
        told = (np.asarray(sorted(set(ranges)), float).reshape(-1, 2) for ranges in (marks, self.host_marks))
        return KernelTrace(where, start, end, np.asarray(launched, float), kind, names, groups, *told)


def read_traces(path: str | Path) -> list[KernelTrace]:
    """Kernel traces of the devices in a file.

    Args:
        path: JSON of PyTorch's profiler or of JAX, with or without gzip; xplane.pb; SQLite export of Nsight Systems.

    Raises:
        InputError: an unreadable file, a file that is no trace, or a trace without kernels.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            head = file.read(64)
        if not head:
            raise InputError(f"{path}: is empty; expected {KINDS}")
        if head.startswith(b"SQLite format 3"):
            return _of_nsight(path).traces(path)
        # A byte order mark and blanks may precede JSON.
        if head.startswith(b"\x1f\x8b") or head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"["):
            return _of_json(path, head.startswith(b"\x1f\x8b")).traces(path)
        if path.suffix == ".pb":
            return _of_xplane(path).traces(path)
    except InputError:
        raise
    except OSError as error:
        # A damaged archive is an OSError too.
        if not isinstance(error, gzip.BadGzipFile):
            raise unreadable(path, error) from None
        raise InputError(f"{path}: no trace that is known ({error}); expected {KINDS}") from None
    except (ValueError, EOFError, zlib.error, sqlite3.Error, RuntimeError) as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{path}: no trace that is known ({said}); expected {KINDS}") from None
    raise InputError(f"{path}: no trace that is known; expected {KINDS}")


def _of_json(path: Path, is_packed: bool) -> _Gathered:
    """Events of a JSON trace: Kineto events by their categories, JAX events by the names of their threads."""
    gathered = _Gathered()
    others: dict[tuple[Any, Any], list[Mapping[str, Any]]] = {}
    names: dict[tuple[str, Any, Any], str] = {}
    opened = gzip.open if is_packed else open
    with contextlib.closing(opened(path, "rt", encoding="utf-8-sig", errors="replace")) as text:
        for event in json_elements(text.read, "traceEvents", MOST_LETTERS):
            if not isinstance(event, dict):
                raise ValueError("its events are no objects")
            args = event.get("args")
            args = args if isinstance(args, dict) else {}
            phase, category = event.get("ph"), str(event.get("cat", "")).lower()
            if phase == "M":
                names[str(event.get("name")), event.get("pid"), event.get("tid")] = str(args.get("name", ""))
            elif phase != "X":
                continue
            elif category:
                _take_kineto(gathered, event, args, category)
            else:
                others.setdefault((event.get("pid"), event.get("tid")), []).append(event)
    # Events of JAX have no category.
    if not gathered.kernels:
        _take_xla(gathered, others, names)
    return gathered


def _number(value: Any) -> float:
    # A bool is an int in Python.
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def _count(number: float) -> int:
    return int(number) if math.isfinite(number) else 0


def _span(event: Mapping[str, Any]) -> tuple[float, float]:
    """Begin and length of an event [s]."""
    return _number(event.get("ts")) * MICROSECOND, _number(event.get("dur")) * MICROSECOND


def _take_kineto(gathered: _Gathered, event: Mapping[str, Any], args: Mapping[str, Any], category: str) -> None:
    """Add an event with a category: a kernel, a launch, or the range of a step."""
    begin, length = _span(event)
    name = str(event.get("name", ""))
    if category in DEVICE_KINDS:
        device = args.get("device", event.get("pid"))
        stream = args.get("stream", event.get("tid"))
        gathered.add(device, name, begin, length, stream, _hashable(args.get("correlation")), _kineto_group(args))
    elif category in LAUNCHES and "correlation" in args:
        gathered.launches[_hashable(args["correlation"])] = begin
    elif STEP_MARK.match(name) and length > 0.0:
        if category == "gpu_user_annotation":
            gathered.marks.setdefault(args.get("device", event.get("pid")), []).append((begin, begin + length))
        elif category == "user_annotation":
            gathered.host_marks.append((begin, begin + length))


def _hashable(value: Any) -> Any:
    return value if isinstance(value, int | str) else None


def _kineto_group(args: Mapping[str, Any]) -> CollectiveGroup | None:
    """Group of a collective from Kineto arguments; None for a kernel that is no collective."""
    if not any(key in args for key in ("Collective name", "Process Group Name", "Group size", "Process Group Ranks")):
        return None
    ranks = [int(one) for one in re.findall(r"\d+", str(args.get("Process Group Ranks", "")))]
    described = str(args.get("Process Group Description", ""))
    size = _number(args.get("Group size", len(ranks)))
    is_telling = described not in ("", "undefined", "default_pg")
    # Long lists of ranks are cut short with dots.
    stride = ranks[1] - ranks[0] if len(ranks) > 1 and "..." not in str(args.get("Process Group Ranks")) else 0
    operation = str(args.get("Collective name", ""))
    # The name distinguishes groups without a description.
    name = described if is_telling else f"#{args.get('Process Group Name', '')}"
    elements = _number(args.get("In msg nelems", 0))
    return CollectiveGroup(name, _count(size), stride, operation.lstrip("_"), _count(elements))


REPLICAS = re.compile(r"replica_groups=\{\{([\d,]+)\}|replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](T\()?")
"""Ranks of a collective in the text of an HLO instruction, listed or as an iota."""


def _xla_group(args: Mapping[str, Any]) -> CollectiveGroup | None:
    """Group of a collective from the text of its HLO instruction; None if absent."""
    found = REPLICAS.search(str(args.get("long_name", args.get("hlo_text", ""))))
    if found is None:
        return None
    if found[1]:
        ranks = [int(one) for one in found[1].split(",") if one]
        return CollectiveGroup("", len(ranks), ranks[1] - ranks[0] if len(ranks) > 1 else 0)
    # Iota of groups by size; transposed, neighbours are a number of groups apart.
    return CollectiveGroup("", int(found[3]), int(found[2]) if found[5] else 1)


def _take_xla(
    gathered: _Gathered, threads: Mapping[tuple[Any, Any], list[Mapping[str, Any]]], names: Mapping[Any, str]
) -> None:
    """Add events of JAX: device streams, or rows of operations without streams; on a host the events of HLO ops."""
    process = {pid: name for (what, pid, _), name in names.items() if what == "process_name"}
    rows = {key: names.get(("thread_name", *key), "") for key in threads}
    of_devices = {pid for pid, name in process.items() if name.startswith("/device:") and "CUSTOM" not in name}
    for (pid, tid), events in threads.items():
        device, row = process.get(pid, pid), rows[pid, tid]
        if pid in of_devices:
            has_streams = any(other == pid and name.startswith("Stream") for (other, _), name in rows.items())
            if row.startswith("Stream" if has_streams else "XLA Ops"):
                _add_all(gathered, device, events)
            elif row == "Steps" or (row == "XLA Modules" and device not in gathered.marks):
                gathered.marks[device] = _ranges(_longest_of_a_name(events) if row == "XLA Modules" else events)
        else:
            # A CPU has no device plane.
            if not of_devices:
                _add_all(gathered, device, [event for event in events if "hlo_op" in (event.get("args") or {})])
            gathered.host_marks += _ranges(event for event in events if "step_num" in (event.get("args") or {}))


def _add_all(gathered: _Gathered, device: Any, events: Iterable[Mapping[str, Any]]) -> None:
    for event in events:
        args = event.get("args")
        group = _xla_group(args) if isinstance(args, dict) else None
        gathered.add(device, str(event.get("name", "")), *_span(event), event.get("tid"), group=group)


def _ranges(events: Iterable[Mapping[str, Any]]) -> list[tuple[float, float]]:
    spans = (_span(event) for event in events)
    return [(begin, begin + length) for begin, length in spans if math.isfinite(begin) and length > 0.0]


def _longest_of_a_name(events: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Executions of the module with the largest total time: the step."""
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for event in events:
        # Without the number in brackets.
        by_name.setdefault(str(event.get("name", "")).split("(")[0], []).append(event)
    # Shorter modules move batches.
    return max(by_name.values(), key=lambda own: sum(_number(event.get("dur")) for event in own))


def _of_xplane(path: Path) -> _Gathered:
    """Events of an xplane.pb, read by `jax.profiler`."""
    from jax.profiler import ProfileData

    threads: dict[tuple[Any, Any], list[Mapping[str, Any]]] = {}
    names: dict[tuple[str, Any, Any], str] = {}
    for plane in ProfileData.from_file(str(path)).planes:
        names["process_name", plane.name, None] = plane.name
        for place, line in enumerate(plane.lines):
            names["thread_name", plane.name, place] = line.name
            threads[plane.name, place] = [
                # Nanoseconds to microseconds, as in JSON traces.
                {"name": one.name, "ts": one.start_ns / 1e3, "dur": one.duration_ns / 1e3, "args": dict(one.stats)}
                for one in line.events
            ]
    if not names:
        raise ValueError("no plane in it")
    gathered = _Gathered()
    _take_xla(gathered, threads, names)
    return gathered


COPIES = {1: "Memcpy HtoD", 2: "Memcpy DtoH", 8: "Memcpy DtoD", 10: "Memcpy PtoP"}
"""Copy types of CUPTI (`CUpti_ActivityMemcpyKind`)."""


def _of_nsight(path: Path) -> _Gathered:
    """Events of a SQLite export of Nsight Systems."""
    gathered = _Gathered()
    # Neither lock nor journal beside the file.
    uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as base:
        tables = {name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not tables & {"CUPTI_ACTIVITY_KIND_KERNEL", "StringIds"}:
            raise ValueError("none of its tables is of Nsight Systems")
        texts = dict(base.execute("SELECT id, value FROM StringIds")) if "StringIds" in tables else {}
        if "CUPTI_ACTIVITY_KIND_KERNEL" in tables:
            query = (
                "SELECT deviceId, start, end, streamId, correlationId, demangledName, shortName"
                " FROM CUPTI_ACTIVITY_KIND_KERNEL"
            )
            for device, start, end, stream, correlation, name, short in base.execute(query):
                said = str(texts.get(name) or texts.get(short) or "")
                gathered.add(device, said, *_nanoseconds(start, end), stream, correlation)
        if "CUPTI_ACTIVITY_KIND_MEMCPY" in tables:
            query = "SELECT deviceId, start, end, streamId, correlationId, copyKind FROM CUPTI_ACTIVITY_KIND_MEMCPY"
            for device, start, end, stream, correlation, kind in base.execute(query):
                gathered.add(device, COPIES.get(kind, "Memcpy"), *_nanoseconds(start, end), stream, correlation)
        if "CUPTI_ACTIVITY_KIND_MEMSET" in tables:
            query = "SELECT deviceId, start, end, streamId, correlationId FROM CUPTI_ACTIVITY_KIND_MEMSET"
            for device, start, end, stream, correlation in base.execute(query):
                gathered.add(device, "Memset", *_nanoseconds(start, end), stream, correlation)
        if "CUPTI_ACTIVITY_KIND_RUNTIME" in tables:
            query = "SELECT correlationId, start FROM CUPTI_ACTIVITY_KIND_RUNTIME"
            gathered.launches |= {correlation: start * NANOSECOND for correlation, start in base.execute(query)}
        if "NVTX_EVENTS" in tables:
            gathered.host_marks += _nvtx_steps(base.execute("SELECT text, textId, start, end FROM NVTX_EVENTS"), texts)
    return gathered


def _nanoseconds(start: Any, end: Any) -> tuple[float, float]:
    """Begin and length [s] of a record in nanoseconds."""
    return _number(start) * NANOSECOND, (_number(end) - _number(start)) * NANOSECOND


def _nvtx_steps(rows: Iterable[tuple[Any, ...]], texts: Mapping[Any, Any]) -> Iterator[tuple[float, float]]:
    """Ranges of steps among the NVTX ranges."""
    for text, place, start, end in rows:
        begin, length = _nanoseconds(start, end)
        if STEP_MARK.match(str(text or texts.get(place) or "")) and length > 0.0:
            yield begin, begin + length
