"""Files of a sweep: what counts as done, what is read, and who may write."""

from pathlib import Path

import numpy as np
import pytest

from jaxscale.base.errors import InputError
from jaxscale.limits.sweep import alone_in, chunk_name, load_sweep, npz_bytes, prepare, read_spec

SPEC = 'scenario = "default"\nchunk = 4\n[axes.training_flop]\nfrom = 1e25\nto = 1e31\nn = 10\n[plan]\npp = 8\n'


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """Folder of a sweep of ten points in three files."""
    (tmp_path / "spec.toml").write_text(SPEC)
    spec, folder = read_spec(tmp_path / "spec.toml"), tmp_path / "out"
    assert prepare(spec, folder, False) == [0, 1, 2]
    for index in range(3):
        points = spec.columns(index)["training_flop"]
        (folder / chunk_name(index)).write_bytes(npz_bytes({"utilisation": points, "feasible": points > 0.0}))
    return folder


def turned(data: bytes) -> bytes:
    """Bytes with one bit of a stored number turned."""
    place = len(data) // 3
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


DAMAGE = {
    "absent": lambda data: None,
    "empty": lambda data: b"",
    "cut": lambda data: data[:100],
    "one bit": turned,
    "of other points": lambda data: npz_bytes({"utilisation": np.ones(3), "feasible": np.ones(3)}),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_file_counts_by_its_size_and_checksums(damage: str, finished: Path):
    spec = read_spec(finished.parent / "spec.toml")
    assert prepare(spec, finished, True) == [] and len(load_sweep(finished)["utilisation"]) == 10  # negative control
    file = finished / chunk_name(1)
    data = DAMAGE[damage](file.read_bytes())
    file.unlink() if data is None else file.write_bytes(data)
    assert prepare(spec, finished, True) == [1]
    with pytest.raises(InputError, match=rf"1 of 3 files are missing or not whole, the first {file.name}"):
        load_sweep(finished)


def test_a_folder_without_a_sweep_is_one_line(tmp_path: Path):
    with pytest.raises(InputError, match="holds no sweep; expected the folder of one"):
        load_sweep(tmp_path)


def test_two_sweeps_do_not_write_to_one_folder(tmp_path: Path):
    with alone_in(tmp_path):
        with pytest.raises(InputError, match="another sweep writes there"), alone_in(tmp_path):
            pass
    with alone_in(tmp_path):
        pass
