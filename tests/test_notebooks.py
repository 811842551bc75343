"""Every notebook runs from scratch, and its two halves, `.py` and `.ipynb`, say the same."""

import os
from pathlib import Path

import jupytext
import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
PAIRS = sorted(FOLDER.glob("[0-9]*.py"))
LARGEST = 300_000
WATCH = f"import sys; sys.path.append({str(Path(__file__).parent)!r}); import figure_boxes; figure_boxes.watch()"
"""First cell of a notebook that is run: its figures are looked at as those of all tests are."""

TIME_LIMIT = 300
"""Most that one cell may take, on a machine that is busy with other things [s]."""


def sources(notebook: nbformat.NotebookNode) -> list[tuple[str, str]]:
    """Kind and text of each cell."""
    return [(cell.cell_type, cell.source.strip()) for cell in notebook.cells]


def test_there_are_notebooks():
    assert PAIRS


@pytest.fixture(params=PAIRS, ids=lambda path: path.stem)
def script(request: pytest.FixtureRequest) -> Path:
    """One notebook, as a script."""
    return request.param


def test_the_pair_agrees(script):
    stored = nbformat.read(script.with_suffix(".ipynb"), as_version=4)
    assert sources(jupytext.read(script)) == sources(stored), "run: python notebooks/build.py"


def test_a_changed_cell_would_be_noticed(script):
    changed = jupytext.read(script)
    changed.cells[-1].source += "\n1"
    assert sources(changed) != sources(jupytext.read(script))


def test_the_stored_notebook_has_outputs_and_is_small(script):
    stored = script.with_suffix(".ipynb")
    assert stored.stat().st_size < LARGEST
    code = [cell for cell in nbformat.read(stored, as_version=4).cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    outputs = [output for cell in code for output in cell.outputs]
    assert outputs
    assert not [output for output in outputs if output.output_type == "error"]
    assert not [output for output in outputs if output.get("name") == "stderr"]


def test_it_ends_in_assertions(script):
    assert "assert " in jupytext.read(script).cells[-1].source


# The kernel's sockets warn of a loop policy on some platforms; that is no concern of the notebook.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning", "ignore::ResourceWarning")
def test_it_runs(script, tmp_path, monkeypatch):
    monkeypatch.setenv("JAXSCALE_FIGURES", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FOLDER.parent), os.environ.get("PYTHONPATH", "")]))
    notebook = jupytext.read(script)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(WATCH))
    NotebookClient(
        notebook, timeout=TIME_LIMIT, kernel_name="python3", resources={"metadata": {"path": FOLDER}}
    ).execute()
