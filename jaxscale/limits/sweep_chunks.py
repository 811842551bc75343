"""Sweeps in chunks: each chunk runs on all devices of this process at once and becomes one file, written whole.

Several processes (`jax.distributed`) share the chunks by turns. A file's bytes depend on nothing but the specification
and the kind of device, so an interrupted sweep that is resumed ends with the same files.
"""

import dataclasses
import io
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from jaxscale.base.errors import InputError
from jaxscale.base.files import check_folder, write_whole
from jaxscale.base.jit import compiler_options
from jaxscale.limits.frontier.frontier_scenario import FrontierScenario
from jaxscale.limits.frontier.overlap_norm import SmoothOverlap
from jaxscale.limits.frontier.scaling_laws import log_ideal_chip_seconds
from jaxscale.limits.scenario_library import FIELDS
from jaxscale.limits.search.frontier_problem import utilisation_problem
from jaxscale.limits.search.integer_plan import rate
from jaxscale.limits.search.relaxed_plan import CHUNK, relaxed_plans
from jaxscale.limits.sweep_spec import PLAN_DEGREES, SIZE, SweepSpec

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
        spec: the sweep.
        folder: where its files go; made if it is not there.
        resume: whether files of an earlier run of the same sweep are kept.

    Returns:
        Chunks that are still to be evaluated.

    Raises:
        InputError: the folder holds another sweep, or one that was not to be resumed.
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
    return [index for index in range(spec.n_chunks) if not (folder / chunk_name(index)).exists()]


def clear_leftovers(folder: str | Path) -> None:
    """Remove temporary files of a sweep that was killed; not while another process writes there."""
    for leftover in Path(folder).glob(".chunk-*.npz"):
        leftover.unlink()


def run_sweep(spec: SweepSpec, folder: str | Path, chunks: Iterable[int]) -> Iterable[int]:
    """Evaluate chunks and write their files.

    Args:
        spec: the sweep.
        folder: set up by `prepare`.
        chunks: numbers of the chunks; of several processes each takes its own share.

    Yields:
        The number of each chunk once its file is there.
    """
    evaluate = evaluator(spec, jax.local_devices())
    own = [index for index in chunks if index % jax.process_count() == jax.process_index()]
    for index in own:
        write_whole(Path(folder) / chunk_name(index), npz_bytes(evaluate(index)))
        yield index


def load_sweep(folder: str | Path) -> dict[str, np.ndarray]:
    """All results of a finished sweep, in the order of its points."""
    files = sorted(Path(folder).glob("chunk-*.npz"))
    tables = [dict(np.load(file)) for file in files]
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
