"""Stores of sweeps: what counts as done, what is read, how they grow, and who may write."""

import hashlib
import shutil
from pathlib import Path

import numpy as np
import pytest

from jaxscale.base.errors import InputError
from jaxscale.sweeps.sweep_spec import blocks, read_spec, sweep_spec

pytest.importorskip("zarr")

import zarr
from zarr.storage import LocalStore

from jaxscale.sweeps.question import SweepSpec
from jaxscale.sweeps.run_sweep import run_regions
from jaxscale.sweeps.sweep_store import alone_in, clear_leftovers, open_sweep, prepare, write_region

SPEC = 'scenario = "default"\nchunk = 4\n[axes.training_flop]\nfrom = 1e25\nto = 1e31\nn = 10\n[plan]\npp = 8\n'
FILE = "utilisation/c/1"
AXIS = "training_flop"


def hashes(folder: Path) -> dict[str, str]:
    """Digest of every file of a folder."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Folder of a sweep of ten points in three regions, beside its specification."""
    folder = tmp_path_factory.mktemp("sweeps")
    (folder / "spec.toml").write_text(SPEC)
    spec, missing = prepare(read_spec(folder / "spec.toml"), folder / "out")
    assert missing == [0, 1, 2]
    assert run_regions(spec, folder / "out", missing) == []
    return folder / "out"


@pytest.fixture
def finished(made: Path, tmp_path: Path) -> Path:
    """A copy of that sweep."""
    copied = tmp_path / "out"
    for file in made.rglob("*"):
        if file.is_file():
            target = copied / file.relative_to(made)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
    (tmp_path / "spec.toml").write_text(SPEC)
    return copied


def turned(data: bytes) -> bytes:
    """Bytes with one bit turned."""
    place = len(data) // 3
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


DAMAGE = {
    "absent": lambda data, folder: None,
    "empty": lambda data, folder: b"",
    "cut": lambda data, folder: data[:10],
    "one bit": lambda data, folder: turned(data),
    "of other points": lambda data, folder: (folder / "feasible" / "c" / "1").read_bytes(),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_region_counts_by_its_size_and_checksums(damage: str, finished: Path):
    spec = read_spec(finished.parent / "spec.toml")
    assert prepare(spec, finished, True)[1] == [] and open_sweep(finished).sizes == {"training_flop": 10}  # control
    file, before = finished / FILE, hashes(finished)
    data = DAMAGE[damage](file.read_bytes(), finished)
    file.unlink() if data is None else file.write_bytes(data)
    with pytest.raises(InputError, match="1 of 3 regions are missing or not whole, the first 1"):
        open_sweep(finished)
    spec, missing = prepare(spec, finished, True)
    assert missing == [1] and hashes(finished) != before
    run_regions(spec, finished, missing)
    assert hashes(finished) == before


def test_a_folder_without_a_sweep_is_one_line(tmp_path: Path):
    with pytest.raises(InputError, match="holds no sweep; expected the folder of one"):
        open_sweep(tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "opened", "resumed"),
    [
        ("zarr.json", b'{"attributes": {"swe', "is cut or damaged", "is cut or damaged"),
        ("utilisation/zarr.json", b"", "is cut or damaged", "is cut or damaged"),
        ("zarr.json", None, "holds no sweep", "holds results without the specification"),
        ("utilisation/zarr.json", None, "arrays are not whole", None),
        ("training_flop/c/0", None, "arrays are not whole", None),
        ("training_flop/c/0", b"nothing", "arrays are not whole", None),
    ],
)
def test_damaged_metadata_and_axes_are_not_believed(finished: Path, file: str, content, opened: str, resumed):
    before = hashes(finished)
    (finished / file).unlink()
    if content is not None:
        (finished / file).write_bytes(content)
    with pytest.raises(InputError, match=opened):
        open_sweep(finished)
    spec = read_spec(finished.parent / "spec.toml")
    if resumed:
        with pytest.raises(InputError, match=resumed):
            prepare(spec, finished, True)
    else:
        assert prepare(spec, finished, True)[1] == [] and hashes(finished) == before


def test_two_sweeps_do_not_write_to_one_folder(tmp_path: Path):
    with alone_in(tmp_path):
        with pytest.raises(InputError, match="another sweep writes there"), alone_in(tmp_path):
            pass
    with alone_in(tmp_path):
        pass
    assert not list(tmp_path.iterdir())


def test_half_written_files_are_cleared(finished: Path):
    before = hashes(finished)
    (finished / "utilisation" / "c" / "1.abcd.partial").write_bytes(b"half a region")
    assert hashes(finished) != before
    clear_leftovers(finished)
    assert hashes(finished) == before


def test_another_sweep_is_refused(finished: Path):
    for change in (("pp = 8", "pp = 4"), ("n = 10", "n = 11"), ("chunk = 4", "chunk = 5"), ('"default"', '"v100"')):
        (finished.parent / "spec.toml").write_text(SPEC.replace(*change))
        with pytest.raises(InputError, match="holds another sweep"):
            prepare(read_spec(finished.parent / "spec.toml"), finished, True)


def test_the_first_axis_grows_at_its_end(finished: Path, tmp_path: Path):
    sizes = np.geomspace(1e25, 1e31, 10).tolist()
    longer = sweep_spec(
        {"training_flop": [*sizes, 2e31, 4e31, 8e31]}, "limits", {"scenario": "default", "pp": 8}, chunk=4
    )
    before = hashes(finished)
    with pytest.raises(InputError, match="grows by one process alone"):
        prepare(longer, finished, True, is_alone=False)
    spec, missing = prepare(longer, finished, True)
    assert missing == [2, 3], "the third region was cut by the end of the axis"
    run_regions(spec, finished, missing)
    whole = tmp_path / "whole"
    fresh, every = prepare(longer, whole)
    run_regions(fresh, whole, every)
    assert open_sweep(finished).identical(open_sweep(whole))
    kept = [name for name in before if name.endswith(("c/0", "c/1")) and "training_flop" not in name]
    assert kept and all(hashes(finished)[name] == before[name] for name in kept)


class Killed(Exception):
    """End of a process before a write."""


def filled(spec: SweepSpec, folder: Path, missing: list[int]) -> None:
    """Write the points of each region as its results."""
    group = zarr.open_group(folder, mode="r+")
    for index in missing:
        write_region(spec, group, index, dict.fromkeys(spec.question.results(spec), spec.columns(index)[AXIS]))


@pytest.mark.parametrize("before", [0, 10, 8], ids=("new", "a region grows", "regions are added"))
def test_any_write_may_be_the_last(before: int, tmp_path: Path, monkeypatch):
    """Nothing unfinished is believed, and the next run ends with the files of an undisturbed one."""
    fixed, sizes = {"scenario": "default", "pp": 8}, np.geomspace(1e25, 1e31, 13).tolist()
    longer = sweep_spec({AXIS: sizes}, "limits", fixed, chunk=4)
    if before:
        spec, missing = prepare(sweep_spec({AXIS: sizes[:before]}, "limits", fixed, chunk=4), tmp_path / "short")
        filled(spec, tmp_path / "short", missing)
    spec, missing = prepare(longer, tmp_path / "whole")
    filled(spec, tmp_path / "whole", missing)
    left, write = [0], LocalStore.set

    async def counted(store: LocalStore, key: str, value) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        await write(store, key, value)

    monkeypatch.setattr(LocalStore, "set", counted)
    for last in range(100):
        folder, left[0] = tmp_path / f"{last}", last
        if before:
            shutil.copytree(tmp_path / "short", folder)
        try:
            spec, missing = prepare(longer, folder, True)
            filled(spec, folder, missing)
            break
        except Killed:
            left[0] = 1000
        if not (before == 8 and last == 0):  # the shorter sweep is still a whole one
            with pytest.raises(InputError):
                open_sweep(folder)
        spec, missing = prepare(longer, folder, True)
        filled(spec, folder, missing)
        assert hashes(folder) == hashes(tmp_path / "whole")
    assert 8 < last < 99


@pytest.mark.parametrize(
    ("shape", "chunk", "expected"),
    [
        ((3, 40, 250), 5000, (1, 20, 250)),
        ((10,), 4, (4,)),
        ((7, 100_000), 65536, (1, 50_000)),
        ((4, 4, 4), 1000, (4, 4, 4)),
        ((5, 6), 1, (1, 1)),
    ],
)
def test_regions_are_as_large_as_they_may_be(shape, chunk, expected):
    assert blocks(shape, chunk) == expected
