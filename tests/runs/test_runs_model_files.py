"""Rows that name the file of their model: its shape, a wrong file, and rows beside it."""

import json
from pathlib import Path

import numpy as np
import pytest

import jaxscale as js
from jaxscale.base.errors import InputError
from jaxscale.models import catalogue_model

HEADER = "model,model_file,gpu,n_gpus,seq_len,tp,pp,micro_batch_size,global_batch_size_seqs"


@pytest.fixture
def folder(tmp_path: Path, llama_config: dict) -> Path:
    """A folder with files of models."""
    (tmp_path / "config.json").write_text(json.dumps(llama_config))
    fields = catalogue_model("mixtral-8x7b") or {}
    lines = (f"{name} = {str(value).lower()}" for name, value in fields.items() if name != "seq_len")
    (tmp_path / "mixture.toml").write_text("\n".join(lines))
    return tmp_path


def table(folder: Path, *rows: str, header: str = HEADER) -> Path:
    """A table beside the files."""
    path = folder / "runs.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_a_file_says_what_the_catalogue_says(folder: Path):
    path = table(
        folder,
        ",config.json,h100-80gb,64,8192,2,1,1,128",
        "llama3-8b,,h100-80gb,64,8192,2,1,1,128",
        ",mixture.toml,h100-80gb,64,4096,1,1,1,128",
        "mixtral-8x7b,,h100-80gb,64,4096,1,1,1,128",
        "llama3-8b,,h100-80gb,64,8192,4,1,1,128",
    )
    found = js.predict(js.read_runs(path), fit="prior")
    np.testing.assert_allclose(found.step_time[[0, 2]], found.step_time[[1, 3]], rtol=1e-6)
    np.testing.assert_allclose(found.memory[[0, 2]], found.memory[[1, 3]], rtol=1e-6)
    assert abs(found.step_time[4] / found.step_time[0] - 1.0) > 0.01  # negative control


def test_cells_of_the_row_come_before_those_of_its_file(folder: Path):
    rows = (",config.json,16,h100-80gb,64,8192,2,1,1,128", ",config.json,,h100-80gb,64,8192,2,1,1,128")
    runs = js.read_runs(table(folder, *rows, header=HEADER.replace("model_file", "model_file,n_layers")))
    assert runs.numbers("n_layers").tolist() == [16.0, 32.0]
    assert runs.numbers("d_model").tolist() == [4096.0, 4096.0]


def test_an_open_row_with_a_file_is_completed(folder: Path):
    found = js.predict(js.read_runs(table(folder, ",mixture.toml,h100-80gb,64,4096,,,,128")), fit="prior")
    assert found.step_time[0] > 0.0 and "micro_batch_size = " in found.assumed[0]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("absent.json", None, "cannot be read (no such file or directory)"),
        ("broken.json", "{", "not valid JSON"),
        ("empty.toml", "", "missing n_layers, d_model, n_heads"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(folder: Path, name: str, content: str | None, expected: str):
    if content is not None:
        (folder / name).write_text(content)
    path = table(folder, f",{name},h100-80gb,64,8192,2,1,1,128", ",config.json,h100-80gb,64,8192,2,1,1,128")
    with pytest.raises(InputError) as error:
        js.read_runs(path)
    assert str(error.value).startswith(f"{path}:2: column 'model_file' = '{name}': ")
    assert expected in str(error.value) and "\n" not in str(error.value)
    assert len(js.read_runs(path, skip_bad=True)) == 1
