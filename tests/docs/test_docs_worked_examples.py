"""Each page on adding something is tried by doing it, on a copy of the package."""

from pathlib import Path

import pytest
from pages import ROOT, Block
from worked_examples import apply, copy_of_package, printed_by, steps

PAGES = [page for page in sorted((ROOT / "docs").glob("add_*.md")) if steps(page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_worked_example_works(page: Path, tmp_path: Path):
    folder = copy_of_package(tmp_path)
    outputs = 0
    for block, printed in steps(page):
        if block.role == "run":
            assert printed_by(block, folder) == printed
            outputs += bool(printed)
        else:
            apply(block, folder)
    assert outputs, "an example shows what it changes"


def test_every_page_has_a_worked_example():
    assert PAGES == sorted((ROOT / "docs").glob("add_*.md"))


def test_a_step_that_does_not_apply_is_told(tmp_path: Path):
    file = tmp_path / "file.py"
    file.write_text("a = 1\nb = 2\nb = 2\n", encoding="utf-8")
    with pytest.raises(AssertionError, match="2 lines"):
        apply(Block("python", "after file.py: b = 2", "c = 3\n"), tmp_path)
    with pytest.raises(AssertionError, match="0 lines"):
        apply(Block("python", "replace file.py: z = 2", "c = 3\n"), tmp_path)
    with pytest.raises(AssertionError, match="exists"):
        apply(Block("python", "new file.py", "c = 3\n"), tmp_path)
    assert apply(Block("python", "after file.py: a = 1", "c = 3\n"), tmp_path) == "file.py"
    assert file.read_text(encoding="utf-8") == "a = 1\nc = 3\nb = 2\nb = 2\n"


def test_a_program_that_fails_is_told(tmp_path: Path):
    (tmp_path / "jaxscale.py").write_text("", encoding="utf-8")
    assert printed_by(Block("python", "run", "print(1)\n"), tmp_path) == "1\n"
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        printed_by(Block("python", "run", "1 / 0\n"), tmp_path)
