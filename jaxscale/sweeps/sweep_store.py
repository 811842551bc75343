"""Store of a sweep: a Zarr group with an array for each axis and result, written region by region with checksums.

A region is one chunk of every array: each chunk has a single writing process and is written atomically. The bytes of
a chunk depend on the specification and the type of device only.
"""

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxscale.base.errors import InputError
from jaxscale.base.files import check_folder
from jaxscale.sweeps.question import Result, SweepSpec, digest

if TYPE_CHECKING:
    import xarray

ATTRIBUTE = "sweep"
"""Attribute of the group with the specification."""

METADATA = "zarr.json"
"""File of the metadata of a group or an array."""

UNREADABLE = (ValueError, RuntimeError, OSError, TypeError, KeyError, IndexError)
"""Exceptions of Zarr readers for truncated or modified chunks."""


def needs_stores() -> None:
    """Refuse to run without the packages xarray and Zarr.

    Raises:
        InputError: xarray or Zarr is missing; the message says how to install the package.
    """
    for name in ("xarray", "zarr"):
        try:
            __import__(name)
        except ImportError:
            raise InputError(f"{name} is not installed; expected it from: pip install 'jaxscale[sweep]'") from None


def prepare(spec: SweepSpec, store: Any, resume: bool = False, *, is_alone: bool = True) -> tuple[SweepSpec, list[int]]:
    """Create the store of a sweep, or open the store of an earlier run.

    Args:
        spec: the sweep.
        store: folder, created if missing, or a Zarr store in memory.
        resume: whether regions of an earlier run of the sweep are kept; the first axis may have grown at its end.
        is_alone: whether no other process sets up the same store meanwhile.

    Returns:
        The sweep as stored, and numbers of the regions still to be evaluated.

    Raises:
        InputError: the folder holds another sweep, or a sweep without `resume`.
    """
    needs_stores()
    import zarr

    is_folder = isinstance(store, str | Path)
    if is_folder:
        check_folder(store)
    group = _group(store)
    kept = None if group is None else group.attrs.get(ATTRIBUTE)
    if is_folder and kept is None and any((Path(store) / name).exists() for name in spec.question.results(spec)):
        # Regions of an unknown sweep would count as done.
        raise InputError(f"{store}: holds results without the specification of a sweep; expected an empty folder")
    if group is not None and kept is not None:
        spec = _resumed(spec, Path(store), kept, resume)
        if not is_alone and kept["specification"] != spec.document:
            raise InputError(f"{store}: a sweep grows by one process alone; expected that first")
        _give_up_cut_regions(spec, Path(store), group, kept["specification"])
    group = zarr.open_group(store, mode="a", zarr_format=3)
    told = {"specification": spec.document, "block": list(spec.block), "results": list(spec.question.results(spec))}
    group.update_attributes({ATTRIBUTE: told, "of": spec.of, **spec.fixed})
    _arrays(spec, group)
    if not is_folder:
        return spec, list(range(spec.n_regions))
    return spec, np.flatnonzero(~_whole_regions(Path(store), group)).tolist()


def _group(store: Any) -> Any:
    """Group of a store, None if missing.

    Raises:
        InputError: a file of metadata is truncated.
    """
    import zarr

    if isinstance(store, str | Path):
        for path in (Path(store) / METADATA, *sorted(Path(store).glob(f"*/{METADATA}"))):
            try:
                json.loads(path.read_bytes() if path.exists() else "{}")
            except ValueError:
                raise InputError(f"{path}: is cut or damaged; expected a whole sweep, or an empty folder") from None
    try:
        return zarr.open_group(store, mode="r", zarr_format=3)
    except (FileNotFoundError, ValueError):
        return None


def _resumed(spec: SweepSpec, folder: Path, kept: Mapping[str, Any], resume: bool) -> SweepSpec:
    """Sweep with the regions of an earlier run.

    Raises:
        InputError: a different sweep, or a sweep without `resume`.
    """
    if not resume:
        raise InputError(f"{folder}: holds a sweep already; expected an empty folder, or --resume")
    before, now = dict(kept["specification"]), dict(spec.document)
    first = next(iter(spec.axes))
    if list(before["axes"]) == list(now["axes"]):
        count, length = before["axes"][first]["n"], len(spec.axes[first])
        # Equal digest: the axis has grown at the end.
        is_longer = count < length and digest(spec.axes[first][:count]) == before["axes"][first]["digest"]
        if is_longer:
            before["axes"] = {**before["axes"], first: now["axes"][first]}
    if before != now:
        raise InputError(
            f"{folder}: holds another sweep than this one; expected the same specification, or more values at the end"
            " of its first axis"
        )
    # The stored block: regions stay in place.
    return dataclasses.replace(spec, block=tuple(kept["block"]))


def _give_up_cut_regions(spec: SweepSpec, folder: Path, group: Any, before: Mapping[str, Any]) -> None:
    """Remove regions truncated by the former end of the first axis, if the axis has grown."""
    count, length = next(iter(before["axes"].values()))["n"], spec.shape[0]
    if count == length or not count % spec.block[0]:
        return
    for index in range(spec.n_regions):
        # Regions at the former end were cut short.
        if (place := spec.place(index))[0] == count // spec.block[0]:
            for name in spec.question.results(spec):
                if name in group:
                    _file(folder, group[name], place).unlink(missing_ok=True)


def _arrays(spec: SweepSpec, group: Any) -> None:
    """Create the missing arrays of the axes and of the results."""
    for name, values in spec.axes.items():
        asked = spec.inputs[name]
        attributes: dict[str, Any] = {"long_name": asked.what, "units": asked.unit}
        if asked.is_word:
            attributes, values = _words(asked.what, values.tolist()), np.arange(len(values), dtype=np.int32)
        # A grown axis is written anew.
        if name in group and group[name].shape != values.shape:
            del group[name]
        array = _array(group, name, values.dtype, values.shape, values.shape, (name,), attributes)
        array[:] = values
    dimensions = tuple(spec.axes)
    for name, result in spec.question.results(spec).items():
        dtype, attributes = _kind(spec, result)
        array = _array(group, name, dtype, spec.shape, spec.block, dimensions, attributes)
        if array.shape != spec.shape:
            # Chunks of earlier regions stay.
            array.resize(spec.shape)


def _words(what: str, words: Any) -> dict[str, Any]:
    return {"long_name": what, "words": list(words)}


def _kind(spec: SweepSpec, result: Result) -> tuple[Any, dict[str, Any]]:
    """Type and attributes of the array of a result."""
    if result.words:
        return np.dtype(np.int32), _words(result.what, result.words)
    if not result.unit:
        return np.dtype(bool), {"long_name": result.what}
    dtype = np.float64 if spec.document["double"] else np.float32
    return np.dtype(dtype), {"long_name": result.what, "units": result.unit}


def _array(group: Any, name: str, dtype: Any, shape: Any, chunks: Any, dimensions: Any, attributes: Any) -> Any:
    """Array of the group, created if missing."""
    from zarr.codecs import Crc32cCodec, ZstdCodec
    from zarr.errors import ContainsArrayError

    if name not in group:
        # A concurrent process may have created the same array.
        with contextlib.suppress(ContainsArrayError):
            return group.create_array(
                name, shape=shape, chunks=chunks, dtype=dtype, dimension_names=dimensions, attributes=attributes,
                fill_value=np.nan if np.issubdtype(dtype, np.floating) else dtype.type(0),
                # Empty chunks too: a missing file is a missing region.
                compressors=[ZstdCodec(level=1), Crc32cCodec()], config={"write_empty_chunks": True},
            )  # fmt: skip
    return group[name].with_config({"write_empty_chunks": True})


def write_region(spec: SweepSpec, group: Any, index: int, results: Mapping[str, np.ndarray]) -> None:
    """Write the results of a region, one chunk of each array.

    Args:
        spec: the sweep.
        group: group set up by `prepare`.
        index: number of the region.
        results: values of each result [point].
    """
    region = spec.region(index)
    shape = [part.stop - part.start for part in region]
    for name in spec.question.results(spec):
        array = group[name]
        array.with_config({"write_empty_chunks": True})[region] = np.asarray(results[name], array.dtype).reshape(shape)


def _file(folder: Path, array: Any, place: tuple[int, ...]) -> Path:
    """File of a chunk of an array."""
    return folder / array.path / array.metadata.chunk_key_encoding.encode_chunk_key(place)


def _whole_regions(folder: Path, group: Any) -> np.ndarray:
    """Whether each region of every result exists and agrees with its checksum [region]."""
    arrays: list[Any] = [group[name] for name in group.attrs[ATTRIBUTE]["results"]]
    grid = [-(-count // size) for count, size in zip(arrays[0].shape, arrays[0].chunks, strict=True)]
    return np.asarray([all(_is_whole(folder, array, place) for array in arrays) for place in np.ndindex(*grid)])


def _is_whole(folder: Path, array: Any, place: tuple[int, ...]) -> bool:
    """Whether a chunk exists and agrees with its checksum."""
    if not _file(folder, array, place).is_file():
        return False
    try:
        # Reading verifies the checksum.
        array[tuple(slice(at * size, (at + 1) * size) for at, size in zip(place, array.chunks, strict=True))]
    except UNREADABLE:
        return False
    return True


def clear_leftovers(folder: str | Path) -> None:
    """Remove temporary files of an interrupted sweep; not for use while another process writes to the folder."""
    for leftover in Path(folder).rglob("*.partial"):
        leftover.unlink()


@contextlib.contextmanager
def alone_in(folder: str | Path, waits: bool = False) -> Iterator[None]:
    """Lock on a folder, created if missing, against writes by another sweep.

    Args:
        folder: the folder.
        waits: whether to wait for another sweep to release the lock.

    Raises:
        InputError: another sweep writes to the folder.
    """
    check_folder(folder).mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # systems without such locks
        yield
        return
    # The folder itself is locked: a lock file would be an additional file in the store.
    opened = os.open(folder, os.O_RDONLY)
    try:
        try:
            # The operating system releases the lock at any end of the process.
            fcntl.flock(opened, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"{folder}: another sweep writes there; expected another folder, or its end") from None
        yield
    finally:
        os.close(opened)


def open_sweep(folder: str | Path) -> "xarray.Dataset":
    """Open a finished sweep: `js.open_sweep("folder").step_time.sel(tp=8)`.

    Args:
        folder: folder of the sweep.

    Returns:
        A variable for each result over the axes, with `units` and `long_name`; fixed inputs are attributes. Values are
        read on access.

    Raises:
        InputError: no sweep, or missing, truncated or modified regions.
    """
    needs_stores()
    group = _group(Path(folder)) if Path(folder).is_dir() else None
    kept = None if group is None else group.attrs.get(ATTRIBUTE)
    if group is None or kept is None:
        raise InputError(f"{folder}: holds no sweep; expected the folder of one")
    if not _is_set_up(group, kept):
        raise InputError(f"{folder}: its arrays are not whole; expected a finished sweep: end it with --resume")
    whole = _whole_regions(Path(folder), group)
    if bad := np.flatnonzero(~whole).tolist():
        told = f"{len(bad)} of {len(whole)} regions are missing or not whole, the first {bad[0]}"
        raise InputError(f"{folder}: {told}; expected a finished sweep: end it with --resume")
    return dataset_of(folder)


def _is_set_up(group: Any, kept: Mapping[str, Any]) -> bool:
    """Whether axes have the values, and results the shape, that the specification states."""
    axes = kept["specification"]["axes"]
    shape = tuple(axis["n"] for axis in axes.values())
    if not all(name in group and group[name].shape == shape for name in kept["results"]):
        return False
    return all(name in group and _digest_of(group[name]) == axis["digest"] for name, axis in axes.items())


def _digest_of(array: Any) -> str | None:
    """Digest of the values of an axis in a store; None where they cannot be read."""
    try:
        return digest(np.asarray(array.attrs.get("words", array[:])))
    except UNREADABLE:
        return None


def dataset_of(store: Any) -> "xarray.Dataset":
    """Labelled results of a store, with words in place of their indices."""
    import xarray

    found = xarray.open_zarr(store, consolidated=False, chunks=None)
    found = found[found.attrs.pop(ATTRIBUTE)["results"]]
    for name, variable in list(found.variables.items()):
        if "words" in variable.attrs:
            # Index -1 stands for no answer.
            words = np.asarray(["", *variable.attrs["words"]])[np.asarray(variable.values, int) + 1]
            found[name] = (variable.dims, words, {"long_name": variable.attrs["long_name"]})
    return found
