"""Evaluation of the regions of a sweep on all devices of all processes or by Dask workers, and writes to its store."""

import functools
import json
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxscale.base.errors import InputError
from jaxscale.base.jit import compiler_options
from jaxscale.sweeps.question import ArrayFunction, Columns, Search, SweepSpec
from jaxscale.sweeps.sweep_spec import sweep_spec
from jaxscale.sweeps.sweep_store import alone_in, clear_leftovers, dataset_of, needs_stores, prepare, write_region

if TYPE_CHECKING:
    import xarray

AXIS = "device"

SIDE_BY_SIDE = 2048
"""Number of points that a device evaluates at a time: their intermediate values stay in its caches [1]."""


class RegionResults(NamedTuple):
    """Results at the points of a region of a sweep.

    Attributes:
        values: values of each result [point].
        refusals: reason for each point without an answer.
    """

    values: Mapping[str, np.ndarray]
    refusals: list[str]


Started = Callable[[], RegionResults]
"""Function that waits for the results of a started region."""

Told = Callable[[int], None]
"""Callback with the number of finished points."""


def sweep(
    axes: Mapping[str, Any],
    *,
    of: str,
    fixed: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    chunk: int | None = None,
    hardware: str | Path | None = None,
    dask: str | None = None,
) -> "xarray.Dataset":
    """Evaluate any question of the package over a product of axes.

    `js.sweep({"dp": [1, 2, 4], "network_bandwidth": [1e10, 1e11]}, of="step_time", fixed={"model": "llama3-8b", "gpu":
    "h100-80gb"})`

    Args:
        axes: values of each axis by the name of an input, numbers in SI units or words; the last axis runs fastest.
        of: the question: `step_time`, `best_plan`, `best_design`, `limits`, `serving` or `islands`.
        fixed: values of inputs without an axis.
        out: folder for the results, a Zarr store; where None, the results stay in memory.
        resume: whether to continue an interrupted run of the same sweep in its folder, or to add the regions of further
            values at the end of the first axis.
        chunk: maximum number of points of a region, evaluated and written together; where None, 65536, for searches
            16 [1].
        hardware: file with the user's chips.
        dask: address of the scheduler of a Dask cluster whose workers evaluate the regions and share the folder.

    Returns:
        A variable for each result over the axes, with `units` and `long_name`.

    Raises:
        InputError: an unknown question or input, a value out of range, or a folder with another sweep.
    """
    needs_stores()
    if jax.process_count() > 1:
        raise InputError(f"{jax.process_count()} processes share no sweep in Python; expected `jaxscale sweep`")
    from zarr.storage import MemoryStore

    spec = sweep_spec(axes, of, fixed, chunk=chunk, hardware=hardware)
    if out is None:
        if dask is not None:
            raise InputError("dask without a folder; expected out, which all workers share")
        store = MemoryStore()
        spec, missing = prepare(spec, store)
        run_regions(spec, store, missing)
        return dataset_of(store).load()
    with alone_in(out):
        spec, missing = prepare(spec, out, resume)
        clear_leftovers(out)
        run_on_workers(spec, out, missing, dask) if dask else run_regions(spec, out, missing)
    return dataset_of(out)


def run_regions(spec: SweepSpec, store: Any, regions: Iterable[int], told: Told = lambda count: None) -> list[str]:
    """Evaluate regions and write their results; several processes divide the regions by their numbers.

    Args:
        spec: the sweep.
        store: store set up by `prepare`.
        regions: numbers of the regions.
        told: callback with the number of finished points.

    Returns:
        Reason for each point without an answer.
    """
    import zarr

    group = zarr.open_group(store, mode="r+", zarr_format=3)
    start = region_function(spec, jax.local_devices(), told)
    refusals: list[str] = []
    waiting = None
    # Processes take regions by turns.
    own = [index for index in regions if index % jax.process_count() == jax.process_index()]
    # A device works on the next region while the host writes the current region.
    for index in [*own, None]:
        started = None if index is None else (index, start(index))
        if waiting is not None:
            found = waiting[1]()
            write_region(spec, group, waiting[0], found.values)
            refusals += found.refusals
        waiting = started
    return refusals


def region_function(
    spec: SweepSpec, devices: Iterable[Any], told: Told = lambda count: None
) -> Callable[[int], Started]:
    """Function that starts the evaluation of a region by its number, and returns a function that awaits the results."""
    evaluation = spec.question.evaluation(spec)
    if isinstance(evaluation, Search):
        return functools.partial(_searched, spec, evaluation, told)
    return _spread(spec, evaluation, devices, told)


def _searched(spec: SweepSpec, search: Search, told: Told, index: int) -> Started:
    """Results of a region, point after point."""

    def run() -> RegionResults:
        columns, results = spec.columns(index), spec.question.results(spec)
        rows: list[Mapping[str, Any]] = []
        refusals: list[str] = []
        for place in range(spec.size_of(index)):
            values = {name: column[place].item() for name, column in columns.items()}
            words = {
                name: spec.axes[name][int(value)].item() for name, value in values.items() if spec.inputs[name].is_word
            }
            try:
                rows.append(search.point({**spec.fixed, **values, **words}))
            except InputError as error:
                rows.append({})
                refusals.append(str(error))
            told(1)
        found = {}
        for name, result in results.items():
            if result.words:
                # -1: no answer
                found[name] = np.asarray([result.words.index(row[name]) if name in row else -1 for row in rows])
            else:
                found[name] = np.asarray([row.get(name, np.nan) for row in rows], float)
        return RegionResults(found, refusals)

    return run


def _spread(spec: SweepSpec, evaluation: ArrayFunction, devices: Iterable[Any], told: Told) -> Callable[[int], Started]:
    """Function of a region's number, compiled once for all regions and spread over the devices."""
    mesh = Mesh(np.asarray(list(devices)), (AXIS,))
    sharding = NamedSharding(mesh, PartitionSpec(AXIS))
    size = int(np.prod(spec.block))
    per_device = -(-size // mesh.size)
    side_by_side = min(SIDE_BY_SIDE, per_device)
    # Whole blocks of side_by_side points.
    per_device = side_by_side * -(-per_device // side_by_side)
    dtype = jnp.result_type(float)

    def on_device(columns: Columns) -> Columns:
        parts = jax.tree.map(lambda column: column.reshape(-1, side_by_side), columns)
        return jax.tree.map(lambda column: column.reshape(-1), jax.lax.map(evaluation.points, parts))

    spread = jax.shard_map(
        on_device, mesh=mesh, in_specs=PartitionSpec(AXIS), out_specs=PartitionSpec(AXIS), check_vma=False
    )
    compiled: Any = jax.jit(spread, compiler_options=compiler_options())  # pyright: ignore[reportArgumentType]

    def start(index: int) -> Started:
        count = spec.size_of(index)
        # A region at an end is padded with copies of its last point: all regions have equal shape.
        fill = per_device * mesh.size - count
        padded = {
            name: jax.device_put(np.pad(values, (0, fill), mode="edge").astype(dtype), sharding)
            for name, values in spec.columns(index).items()
        }
        running = compiled(padded)
        valid = None if evaluation.valid is None else evaluation.valid(index)

        def finish() -> RegionResults:
            found = {name: np.asarray(values)[:count] for name, values in running.items()}
            told(count)
            if valid is not None:
                found = {**{name: np.where(valid, values, np.nan) for name, values in found.items()}, "valid": valid}
            return RegionResults(found, [])

        return finish

    return start


_LOCK = threading.Lock()
_OF_WORKER: dict[str, tuple[SweepSpec, Callable[[int], Started]]] = {}
"""Sweeps in progress on the process as a Dask worker, by their text."""


def _region_of_worker(index: int, asked: tuple[Any, ...], folder: str, double: bool) -> tuple[int, list[str]]:
    """Evaluate a region and write the results: number of points, and reasons for points without an answer."""
    import zarr

    text, axes, of, fixed, chunk, hardware, block = asked
    # The precision of the client holds on workers.
    with jax.enable_x64(double):
        # A single thread compiles; further threads wait.
        with _LOCK:
            if text not in _OF_WORKER:
                spec = replace(sweep_spec(axes, of, fixed, chunk=chunk, hardware=hardware or None), block=block)
                _OF_WORKER[text] = (spec, region_function(spec, jax.local_devices()))
            spec, start = _OF_WORKER[text]
        found = start(index)()
    write_region(spec, zarr.open_group(folder, mode="r+", zarr_format=3), index, found.values)
    return spec.size_of(index), found.refusals


def run_on_workers(
    spec: SweepSpec, folder: str | Path, regions: Iterable[int], address: str, told: Told = lambda count: None
) -> list[str]:
    """Evaluate regions by the workers of a Dask cluster; each worker writes its regions to the shared folder.

    Args:
        spec: the sweep.
        folder: folder set up by `prepare`.
        regions: numbers of the regions.
        address: address of the scheduler.
        told: callback with the number of finished points.

    Returns:
        Reason for each point without an answer.

    Raises:
        InputError: Dask is not installed, or no scheduler answers.
    """
    try:
        from dask.distributed import Client, as_completed
    except ImportError:
        raise InputError("dask is not installed; expected it from: pip install 'jaxscale[sweep-dask]'") from None
    try:
        client = Client(address, timeout="10s")
    except (OSError, ValueError) as error:
        raise InputError(f"dask = {address!r}: no scheduler answers ({error}); expected HOST:PORT of one") from None
    with client:
        double = spec.document["double"]
        asked = (json.dumps(spec.document), dict(spec.axes), spec.of, dict(spec.fixed), spec.chunk, spec.hardware)
        shared = client.scatter((*asked, spec.block), broadcast=True, hash=False)
        named = {"asked": shared, "folder": str(Path(folder).resolve()), "double": double}
        refusals: list[str] = []
        # Regions have side effects: no result is reused by key.
        for done in as_completed(client.map(_region_of_worker, list(regions), **named, pure=False)):
            points, refused = done.result()
            refusals += refused
            told(points)
    return refusals
