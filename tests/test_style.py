"""`scripts/style.py`: what it counts, and which changes it refuses."""

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

SOURCE = '''"""It names one thing."""

# A reason.
SIZES = [size for size in (1, 2)]


def f(x):
    """What it is."""
    return x  # not a line of its own
'''


@pytest.fixture(scope="module")
def style():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts"))
        yield importlib.import_module("style")


def test_counts_of_a_module(style):
    counts = style.counts_of(SOURCE)
    assert (counts.lines, counts.comments, counts.functions, counts.comprehensions) == (9, 1, 1, 1)
    assert counts.widths == [33, 9, 33]
    # `return x`: statement, name, context. The other is the assignment.
    assert len(counts.nodes) == 2 and min(counts.nodes) == 3
    assert counts.per_1000(style.PRONOUNS) == pytest.approx(1000 * 4 / 7)
    assert counts.per_1000(style.VAGUE) == pytest.approx(1000 * 3 / 7)


def test_a_budget_binds_large_files_that_grew_worse(style):
    long, short = style.Counts(widths=[60] * 30), style.Counts(widths=[30] * 30)
    measure = style.MEASURES["chars"]
    assert measure.is_broken(long) and not measure.is_broken(short)
    assert not measure.is_broken(style.Counts(widths=[60] * 5))
    assert measure.is_worse(long, short) and not measure.is_worse(short, long) and not measure.is_worse(long, long)
    least = style.MEASURES["comm %"]
    assert least.is_broken(long) and least.is_worse(long, style.Counts(widths=[60] * 30, comments=2))


def test_an_unchanged_tree_is_not_refused(style, monkeypatch):
    monkeypatch.setattr(style, "git", lambda *arguments: "")
    assert not list(style.changed("HEAD"))
    answers = {"diff": "jaxscale/costs/step.py\n", "ls-tree": "jaxscale/costs/step.py", "show": SOURCE}
    monkeypatch.setattr(style, "git", lambda *arguments: answers[arguments[0]])
    refused = list(style.changed("HEAD"))
    assert refused and all(line.startswith("jaxscale/costs/step.py: ") for line in refused)
    answers["show"] = (ROOT / "jaxscale" / "costs" / "step.py").read_text(encoding="utf-8")
    assert not list(style.changed("HEAD"))
