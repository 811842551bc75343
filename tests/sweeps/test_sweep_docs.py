"""The page on sweeps: its specifications run as they are written, and what is read from them is what it prints."""

import sys
from pathlib import Path

import pytest

from jaxscale.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "docs"))
from pages import blocks  # noqa: E402

pytest.importorskip("zarr")

FOUND = blocks((ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8"))
SPECS = {block.role: block.text for block in FOUND if block.language == "toml"}
READ = {
    name: (program.text, printed.text)
    for name, (program, printed) in zip(
        SPECS,
        [pair for pair in zip(FOUND, FOUND[1:], strict=False) if pair[0].role == "run"],
        strict=True,
    )
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "plans" else ()) for name in SPECS]
)
def test_an_example_prints_what_the_page_says(name: str, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path(f"{name}.toml").write_text(SPECS[name], encoding="utf-8")
    assert main(["sweep", f"{name}.toml", "--out", name, "--quiet"]) == 0
    capsys.readouterr()
    program, printed = READ[name]
    exec(compile(program, name, "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == printed


def test_there_are_three_examples():
    assert len(SPECS) == 3 and all(program for program, _ in READ.values())
