"""Execute every notebook script and store it with its outputs beside it: `python notebooks/build.py [NAME...]`."""

import sys
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent


def build(script: Path) -> None:
    """Execute one script; cell ids count up and times are left out, so that only a change of content shows."""
    notebook = jupytext.read(script)
    NotebookClient(
        notebook, timeout=600, kernel_name="python3", record_timing=False, resources={"metadata": {"path": FOLDER}}
    ).execute()
    for index, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{index:02d}"
    notebook.metadata.pop("language_info", None)
    nbformat.write(notebook, script.with_suffix(".ipynb"))
    print(f"{script.with_suffix('.ipynb').name}: {script.with_suffix('.ipynb').stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    for found in sorted(FOLDER.glob("[0-9]*.py")):
        if len(sys.argv) == 1 or any(name in found.name for name in sys.argv[1:]):
            build(found)
