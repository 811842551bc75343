"""The Python examples of the documentation run as they are written, and print what the page says."""

from pathlib import Path

import pytest
from pages import PAGES, ROOT, Block, blocks, page_id


def examples(page: Path) -> list[tuple[str, str]]:
    """Python blocks of a page that stand for themselves, each with the output that the page shows, or none."""
    found = blocks(page.read_text(encoding="utf-8"))
    after = [*found[1:], Block("", "", "")]
    pairs = zip(found, after, strict=False)  # a page without blocks has no pairs
    return [
        (block.text, following.text if following.language == "text" else "")
        for block, following in pairs
        if block.language == "python" and not block.role
    ]


EXAMPLES = [pytest.param(*pair, id=f"{page_id(page)}-{i}") for page in PAGES for i, pair in enumerate(examples(page))]


def test_there_is_an_example_for_each_job():
    numbers = {page_id(page): len(examples(page)) for page in PAGES}
    assert numbers["README.md"] == 1
    assert all(numbers[f"docs/{job}.md"] for job in ("calibrate", "choose", "explore"))
    assert sum(numbers.values()) >= 5


def test_the_front_page_shows_what_its_example_prints():
    ((_, printed),) = examples(ROOT / "README.md")
    assert printed


@pytest.mark.parametrize(("code", "printed"), EXAMPLES)
def test_an_example_runs(code: str, printed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(ROOT)
    exec(compile(code, "example", "exec"), {"__name__": "__main__"})
    out = capsys.readouterr().out
    assert out
    if printed:
        assert out == printed
