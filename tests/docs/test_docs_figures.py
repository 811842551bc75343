"""Figures that pages quote from commands are those of the stored documents of these commands."""

import json
import math

from pages import ROOT


def document_of(command: str) -> dict:
    """Stored document of the only line of a command, whose wing has its name."""
    stored = json.loads((ROOT / "tests" / "guard" / f"{command}.json").read_text(encoding="utf-8"))
    (found,) = stored.values()
    return found


def rows_of(page: str) -> list[list[str]]:
    """Cells of the rows of the tables of a page."""
    lines = (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]


def quoted(rows: list[list[str]], figure: str) -> bool:
    """Whether a cell of some rows is a figure."""
    return any(figure in row for row in rows)


def test_thresholds_of_the_limits():
    flop, rows = document_of("limits")["thresholds"], rows_of("limits.md")
    figures = [f"10^{math.log10(value):.2f}" for value in flop.values()]
    assert len(figures) == 4 and all(quoted(rows, figure) for figure in figures)
    assert not quoted(rows, f"10^{math.log10(2 * flop['wall']):.2f}")


def test_times_of_the_burst():
    document, rows = document_of("burst"), rows_of("burst.md")
    times = {row[0]: row[1] for row in rows}
    told = [way for way in document["ways"] if way["way"] in times]
    assert len(told) >= 3 and all(times[way["way"]] == f"{1e3 * way['time_s']:.3g} ms" for way in told)
    assert not quoted(rows, f"{2e3 * document['burst']['time_s']:.3g} ms")
