"""The page of published systems says what its script prints."""

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def seeds():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts"))
        yield importlib.import_module("seeds")


def test_every_row_stands_on_the_page_with_its_command_and_figures(seeds):
    sections = seeds.written()
    assert set(sections) == {row.system for row in seeds.ROWS} | {"What no command answers"}
    for row in seeds.ROWS:
        told = sections[row.system]
        assert row.question in told and row.command in told and row.note in told
        assert all(f"| {figure.name} | " in told for figure in row.figures)
    assert seeds.PAGE.read_text(encoding="utf-8").startswith(seeds.HEAD.strip())


def test_no_system_is_both_answered_and_open(seeds):
    papers = {word for row in seeds.ROWS for word in row.system.replace(")", " ").split() if word[:4].isdigit()}
    assert papers and not [paper for paper in papers if paper in seeds.OPEN]


def test_errors_are_relative_in_points_or_in_decades(seeds):
    document = {"value": 1.1}
    figure = seeds.Figure("f", seeds.at("value"), 1.0)
    assert figure.row(document) == "| f | 1.00 | 1.10 | +10 % |"
    assert figure._replace(told=(1.0, 1.2)).row(document).endswith("| inside |")
    assert figure._replace(told=(1.2, 2.0)).row(document).endswith("| -8 % |")
    assert figure._replace(told=None).row(document) == "| f | none could be read | 1.10 | - |"
    assert figure._replace(miss="points").row(document).endswith("| +0.1 points |")


@pytest.mark.slow
@pytest.mark.parametrize(
    "word",
    ["trains llama-13b", "trains llama-65b", "inception_v3 with 16", "DLRM-A on 128 A100, dense layers copied"],
)
def test_a_row_is_what_its_command_prints_now(seeds, word):
    (row,) = (row for row in seeds.ROWS if word in row.question)
    assert seeds.section(row).strip() in seeds.PAGE.read_text(encoding="utf-8")
    changed = row._replace(command=row.command.replace("64", "32").replace("batch 16", "batch 32"))
    if changed.command != row.command:
        assert seeds.section(changed) not in seeds.PAGE.read_text(encoding="utf-8")
