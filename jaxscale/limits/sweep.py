"""Sweeps over assumptions, training compute and degrees: specification in TOML, and chunks, a file each.

```toml
scenario = "default"          # where the fields without an axis come from
chunk = 65536                 # points in one file
[axes.training_flop]
from = 1e25
to = 1e32
n = 1000
[axes.network_latency]
values = [1e-6, 3e-6, 1e-5]
[plan]                        # left out, every point gets its best plan
tp_ff = 64
pp = 8
```

Several processes (`jax.distributed`) share the chunks by turns. A file's bytes depend on nothing but the specification
and the kind of device, so an interrupted sweep that is resumed ends with the same files.
"""

import contextlib
import dataclasses
import io
import json
import math
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from jaxscale.base.errors import InputError, nearest
from jaxscale.base.files import check_folder, write_whole
from jaxscale.base.jit import compiler_options
from jaxscale.base.keys import check_keys, number_of
from jaxscale.base.resources import read_toml
from jaxscale.hardware.catalogue import Hardware, load_hardware
from jaxscale.limits.batch_time import SmoothOverlap
from jaxscale.limits.frontier_problem import utilisation_problem
from jaxscale.limits.frontier_scenario import (
    FIELDS,
    HIGHEST,
    LARGEST,
    LOWEST,
    FrontierScenario,
    checked_number,
    load_scenarios,
    on_chip,
    scenario_named,
)
from jaxscale.limits.integer_plan import rate
from jaxscale.limits.relaxed_plan import CHUNK, relaxed_plans
from jaxscale.limits.scaling_laws import log_ideal_chip_seconds

PLAN_DEGREES = ("tp_ff", "tp_width", "ep", "dp", "pp", "n_microbatches", "interleave")
SIZE = "training_flop"
KEYS = ("scenario", "gpu", "chunk", "axes", "plan")
DEFAULT_CHUNK = 65536
LARGEST_CHUNK = 2**24
LARGEST_AXIS = 10**7


@dataclass(frozen=True)
class SweepSpec:
    """A product of axes.

    Attributes:
        scenario: fields without an axis.
        axes: values of each axis; the last axis runs fastest.
        plan: degrees without an axis; None where every point gets its best plan.
        chunk: points in a file [1].
    """

    scenario: FrontierScenario
    axes: Mapping[str, np.ndarray]
    plan: Mapping[str, float] | None
    chunk: int

    @property
    def n_points(self) -> int:
        """Points in all [1]."""
        return int(np.prod([len(values) for values in self.axes.values()], dtype=object))

    @property
    def n_chunks(self) -> int:
        """Files in all [1]."""
        return -(-self.n_points // self.chunk)

    def columns(self, index: int) -> dict[str, np.ndarray]:
        """Values of every axis at the points of a chunk [point]."""
        first = index * self.chunk
        index_left = np.arange(first, min(first + self.chunk, self.n_points))
        columns: dict[str, np.ndarray] = {}
        for name, values in reversed(list(self.axes.items())):
            index_left, position = np.divmod(index_left, len(values))
            columns[name] = values[position]
        return columns

    def to_text(self) -> str:
        """The whole specification as text, equal for equal sweeps."""
        document = {
            "scenario": dataclasses.asdict(self.scenario),
            "axes": {name: values.tolist() for name, values in self.axes.items()},
            "plan": None if self.plan is None else dict(self.plan),
            "chunk": self.chunk,
        }
        return json.dumps(document, indent=1) + "\n"


def read_spec(path: str | Path, hardware: Hardware | None = None) -> SweepSpec:
    """A sweep from its file.

    Raises:
        InputError: the file is missing or malformed; one line.
    """
    table = read_toml(Path(path))
    hardware = hardware or load_hardware()
    check_keys(str(path), table, KEYS, "known")
    chosen = scenario_named(str(table.get("scenario", "default")), load_scenarios(hardware=hardware))
    if "gpu" in table:
        chosen = on_chip(chosen, hardware[str(table["gpu"])])
    chunk = table.get("chunk", DEFAULT_CHUNK)
    if not isinstance(chunk, int) or not 1 <= chunk <= LARGEST_CHUNK:
        raise InputError(
            f"{path}: chunk = {chunk!r} is out of range; expected a whole number from 1 to {LARGEST_CHUNK}"
        )
    axes = table.get("axes")
    if not isinstance(axes, dict) or SIZE not in axes:
        raise InputError(f"{path}: no table [axes.{SIZE}]; expected one, with from, to and n or with values")
    values = {name: _axis(f"{path}: axes.{name}", name, axis) for name, axis in axes.items()}
    plan = table.get("plan")
    if plan is not None and not isinstance(plan, dict):
        raise InputError(f"{path}: plan = {plan!r} is no table; expected [plan] with degrees such as tp = 8")
    if plan is not None:
        check_keys(f"{path}: plan", plan, PLAN_DEGREES, "a degree of a plan")
        plan = {name: _degree(f"{path}: plan", name, value) for name, value in plan.items()}
    elif any(name in PLAN_DEGREES for name in values):
        plan = {}
    return SweepSpec(chosen, values, plan, chunk)


def _degree(where: str, name: str, value: Any) -> float:
    return number_of(f"{where}: {name}", value, "a number of at least 1", 1.0, LARGEST)


def _axis(where: str, name: str, axis: Any) -> np.ndarray:
    """Values of an axis: listed, or evenly spread over a logarithmic scale."""
    names = (SIZE, *FIELDS, *PLAN_DEGREES)
    if name not in names:
        raise InputError(f"{where}: not a field, a degree or {SIZE}; {nearest(name, names)}")
    if not isinstance(axis, dict) or not ({"from", "to", "n"} == set(axis) or {"values"} == set(axis)):
        raise InputError(f"{where}: expected either from, to and n, or values")
    if "values" in axis:
        values = axis["values"]
        if not isinstance(values, list) or not 1 <= len(values) <= LARGEST_AXIS:
            raise InputError(f"{where}.values: expected a list of numbers")
        return np.asarray([_value(where, name, value) for value in values])
    low, high, count = _value(where, name, axis["from"]), _value(where, name, axis["to"]), axis["n"]
    if not isinstance(count, int) or not 2 <= count <= LARGEST_AXIS:
        raise InputError(f"{where}.n = {count!r} is out of range; expected a whole number from 2 to {LARGEST_AXIS:,}")
    if not 0.0 < low < high:
        raise InputError(f"{where}: from {low:g} to {high:g} is no range; expected 0 < from < to")
    return np.geomspace(low, high, count)


def _value(where: str, name: str, value: Any) -> float:
    if name in PLAN_DEGREES:
        return _degree(where, name, value)
    if name == SIZE:
        return number_of(f"{where}: {name}", value, f"a number from {LOWEST:g} to {HIGHEST:g}", LOWEST, HIGHEST)
    return checked_number(where, name, value)


AXIS = "device"
SPEC_FILE = "sweep.json"
Columns = dict[str, Array]


def chunk_name(index: int) -> str:
    """File of a chunk."""
    return f"chunk-{index:07d}.npz"


def _scenario(spec: SweepSpec, point: Columns) -> FrontierScenario:
    varied = {name: point[name] for name in FIELDS if name in point}
    fixed = jax.tree.map(lambda leaf: jnp.asarray(leaf, point[SIZE].dtype), spec.scenario)
    return dataclasses.replace(fixed, **varied)


def evaluate_plan(spec: SweepSpec, point: Columns) -> Columns:
    """Utilisation and time of a batch on the plan of a point; utilisation counts whether or not it is in time."""
    scenario = _scenario(spec, point)
    problem = utilisation_problem(jnp.log(point[SIZE]), scenario)
    plan = dict.fromkeys(PLAN_DEGREES, 1.0) | dict(spec.plan or {})
    degrees = jnp.stack([jnp.asarray(point.get(name, plan[name]), point[SIZE].dtype) for name in PLAN_DEGREES])
    rating = rate(degrees, problem, SmoothOverlap(scenario.overlap_exponent))
    return {
        "utilisation": jnp.exp(log_ideal_chip_seconds(problem.work, scenario) - rating.cost),
        "batch_time": jnp.exp(rating.log_time),
        "feasible": jnp.all(rating.missed == 0.0),
    }


def evaluate_best_plans(spec: SweepSpec, points: Columns) -> Columns:
    """Utilisation, chips and certificate of the best relaxed plan of every point."""
    problems = jax.vmap(lambda point: utilisation_problem(jnp.log(point[SIZE]), _scenario(spec, point)))(points)
    plans = relaxed_plans(problems, jnp.ones(points[SIZE].shape, bool))
    return {
        "utilisation": plans.utilisation,
        "batch_time": jnp.exp(plans.log_time),
        "log_chips": jnp.sum(plans.degrees.groups, axis=-1),
        "feasible": plans.feasible,
        "residual": plans.residual,
    }


def evaluator(spec: SweepSpec, devices: Iterable[Any]) -> Callable[[int], dict[str, np.ndarray]]:
    """Function of a chunk's number, compiled once for all chunks and spread over the devices."""
    mesh = Mesh(np.asarray(list(devices)), (AXIS,))
    sharding = NamedSharding(mesh, PartitionSpec(AXIS))
    per_device = -(-spec.chunk // mesh.size)
    side_by_side = min(CHUNK, per_device)
    per_device = side_by_side * -(-per_device // side_by_side)
    dtype = jnp.result_type(float)

    def on_device(columns: Columns) -> Columns:
        if spec.plan is not None:
            return jax.vmap(lambda point: evaluate_plan(spec, point))(columns)
        parts = jax.tree.map(lambda column: column.reshape(-1, side_by_side), columns)
        plans = jax.lax.map(lambda points: evaluate_best_plans(spec, points), parts)
        return jax.tree.map(lambda column: column.reshape(-1), plans)

    spread = jax.shard_map(
        on_device, mesh=mesh, in_specs=PartitionSpec(AXIS), out_specs=PartitionSpec(AXIS), check_vma=False
    )
    compiled: Any = jax.jit(spread, compiler_options=compiler_options())  # pyright: ignore[reportArgumentType]

    def run(index: int) -> dict[str, np.ndarray]:
        columns = spec.columns(index)
        count = len(columns[SIZE])
        # The last chunk is filled up with copies of its last point, so that all have one shape.
        fill = per_device * mesh.size - count
        padded = {
            name: jax.device_put(np.pad(values, (0, fill), mode="edge").astype(dtype), sharding)
            for name, values in columns.items()
        }
        return {name: np.asarray(values)[:count] for name, values in compiled(padded).items()}

    return run


def npz_bytes(arrays: dict[str, np.ndarray]) -> bytes:
    """The arrays as an NPZ file; equal arrays give equal bytes."""
    buffer = io.BytesIO()
    np.savez(buffer, **{name: arrays[name] for name in sorted(arrays)})  # pyright: ignore[reportArgumentType]
    return buffer.getvalue()


def prepare(spec: SweepSpec, folder: str | Path, resume: bool) -> list[int]:
    """Set up the folder of a sweep.

    Args:
        folder: where its files go; made if it is not there.
        resume: whether files of an earlier run of the sweep are kept.

    Returns:
        Chunks that are still to be evaluated.

    Raises:
        InputError: the folder holds another sweep, or a sweep without `resume`.
    """
    folder = check_folder(folder)
    kept, text = folder / SPEC_FILE, spec.to_text()
    if kept.exists():
        if not resume:
            raise InputError(f"{folder}: holds a sweep already; expected an empty folder, or --resume")
        if kept.read_text() != text:
            raise InputError(f"{folder}: holds another sweep than this one; expected the same specification")
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(kept, text)
    counts = [min(spec.chunk, spec.n_points - index * spec.chunk) for index in range(spec.n_chunks)]
    return [index for index, count in enumerate(counts) if not is_whole(folder / chunk_name(index), count)]


def clear_leftovers(folder: str | Path) -> None:
    """Remove temporary files of a sweep that was killed; not while another process writes there."""
    for leftover in Path(folder).glob(".chunk-*.npz"):
        leftover.unlink()


def run_sweep(spec: SweepSpec, folder: str | Path, chunks: Iterable[int]) -> Iterable[int]:
    """Evaluate chunks and write their files.

    Args:
        folder: set up by `prepare`.
        chunks: numbers of the chunks; several processes divide the chunks.

    Yields:
        The number of each chunk once its file is there.
    """
    evaluate = evaluator(spec, jax.local_devices())
    own = [index for index in chunks if index % jax.process_count() == jax.process_index()]
    for index in own:
        write_whole(Path(folder) / chunk_name(index), npz_bytes(evaluate(index)))
        yield index


@contextlib.contextmanager
def alone_in(folder: str | Path) -> Iterator[None]:
    """A folder that no other sweep writes to meanwhile; the system frees it when the process ends, however it does.

    Raises:
        InputError: another sweep writes there.
    """
    try:
        import fcntl
    except ImportError:  # systems without such locks
        yield
        return
    # The folder itself is locked: a file for it would be one more than several processes leave.
    opened = os.open(check_folder(folder), os.O_RDONLY)
    try:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"{folder}: another sweep writes there; expected another folder, or its end") from None
        yield
    finally:
        os.close(opened)


def is_whole(file: Path, n_points: int) -> bool:
    """Whether a file of a sweep is there, agrees with its checksums and has all its points."""
    try:
        with zipfile.ZipFile(file) as archive:
            if archive.testzip() is not None:
                return False
        with np.load(file) as arrays:
            return len(arrays.files) > 0 and all(len(arrays[name]) == n_points for name in arrays.files)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        return False


def load_sweep(folder: str | Path) -> dict[str, np.ndarray]:
    """All results of a finished sweep, in the order of its points.

    Args:
        folder: of the sweep.

    Raises:
        InputError: no sweep, or one of which files are missing, cut or changed.
    """
    kept = Path(folder) / SPEC_FILE
    if not kept.is_file():
        raise InputError(f"{folder}: holds no sweep; expected the folder of one")
    document = json.loads(kept.read_text(encoding="utf-8"))
    chunk, n_points = document["chunk"], math.prod(len(values) for values in document["axes"].values())
    counts = [min(chunk, n_points - first) for first in range(0, n_points, chunk)]
    files = [Path(folder) / chunk_name(index) for index in range(len(counts))]
    bad = [file.name for file, count in zip(files, counts, strict=True) if not is_whole(file, count)]
    if bad:
        told = f"{len(bad)} of {len(files)} files are missing or not whole, the first {bad[0]}"
        raise InputError(f"{folder}: {told}; expected a finished sweep: end it with --resume")
    tables = [dict(np.load(file)) for file in files]
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
