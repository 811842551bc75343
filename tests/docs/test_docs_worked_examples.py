"""Each page on adding something is tried by doing it, on a copy of the package."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pages import ROOT, Block
from worked_examples import apply, copy_of_package, printed_by, steps

PAGES = [page for page in sorted((ROOT / "docs").glob("add_*.md")) if steps(page)]
TOUCHED = {
    "add_a_chip": 0,
    "add_a_framework": 1,
    "add_a_kind_of_work": 0,
    "add_a_number_format": 1,
    "add_a_table": 3,
    "add_a_term": 4,
    "add_a_wing": 5,
    "add_a_workload": 1,
}
"""Files of the package and its data that each addition may touch, at most [1]."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_worked_example_works(page: Path, tmp_path: Path):
    folder = copy_of_package(tmp_path)
    outputs, touched = 0, set()
    for block, printed in steps(page):
        if block.role == "run":
            assert printed_by(block, folder) == printed
            outputs += bool(printed)
        else:
            touched.add(apply(block, folder))
    assert outputs, "an example shows what it changes"
    of_the_package = {name for name in touched if name.startswith(("jaxscale/", "data/"))}
    assert len(of_the_package) <= TOUCHED[page.stem]


def test_an_added_table_passes_the_checks_of_tables(tmp_path: Path):
    def failures(folder: Path) -> str:
        (folder / "tests").mkdir()
        shutil.copy(ROOT / "tests" / "test_data.py", folder / "tests")
        command = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "-p", "no:cacheprovider", "--rootdir", "."]
        run = [*command, "-k", "my_cluster or licence", "tests/test_data.py"]
        done = subprocess.run(run, cwd=folder, capture_output=True, text=True, check=False)
        return "" if done.returncode == 0 else done.stdout

    whole, without_licence = (copy_of_package(tmp_path / name) for name in ("whole", "part"))
    for block, _ in steps(ROOT / "docs" / "add_a_table.md"):
        if block.role != "run":
            apply(block, whole)
            if "licences" not in block.role:
                apply(block, without_licence)
    assert not failures(whole)
    assert "test_every_table_has_a_licence" in failures(without_licence)


def test_every_page_has_a_worked_example():
    assert PAGES == sorted((ROOT / "docs").glob("add_*.md"))


def test_a_step_that_does_not_apply_is_told(tmp_path: Path):
    file = tmp_path / "file.py"
    file.write_text("  a = 1\nb = 2\nb = 2\n", encoding="utf-8")
    with pytest.raises(AssertionError, match="2 lines"):
        apply(Block("python", "after file.py: b = 2", "c = 3\n"), tmp_path)
    with pytest.raises(AssertionError, match="0 lines"):
        apply(Block("python", "before file.py: z = 2", "c = 3\n"), tmp_path)
    with pytest.raises(AssertionError, match="exists"):
        apply(Block("python", "new file.py", "c = 3\n"), tmp_path)
    assert apply(Block("python", "after file.py: a = 1", "c = 3\n"), tmp_path) == "file.py"
    assert apply(Block("python", "before file.py: a = 1", "d = 4\n"), tmp_path) == "file.py"
    assert file.read_text(encoding="utf-8") == "  d = 4\n  a = 1\n  c = 3\nb = 2\nb = 2\n"


def test_a_program_that_fails_is_told(tmp_path: Path):
    (tmp_path / "jaxscale.py").write_text("", encoding="utf-8")
    assert printed_by(Block("python", "run", "print(1)\n"), tmp_path) == "1\n"
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        printed_by(Block("python", "run", "1 / 0\n"), tmp_path)
