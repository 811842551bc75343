"""The examples of the documentation, in Python and on the command line, run as they are written and print what it says.

Roles of blocks on all pages but those of `worked_examples`: `new FILE` is a file of the page's examples, `run` goes on
from the block above, `columns N` is run on a screen of N letters.
"""

import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest
from pages import PAGES, ROOT, Block, blocks, page_id, with_outputs

from jaxscale.base import table
from jaxscale.cli.main import main

NOT_RUN = {
    "docs/seeds.md": "scripts/seeds.py has run them when it made the page; test_docs_seeds.py runs some again",
    "docs/start.md": "test_docs_start.py runs them in processes of their own, as a new user does",
    "jaxscale explore": "serves a page until it is stopped",
    "jaxscale measure": "times the devices at hand for minutes",
    "my-chip --model": "reads what `jaxscale measure` wrote",
    "my_runs.csv": "a table of the reader's own",
    "my_fit.toml": "a fit of that table",
    "mine.csv": "a table of the reader's own",
    "mine.toml": "a fit of that table",
    "recipe.sh": "a launch file of the reader's own",
    "SPEC.toml": "stands for any file",
    "needs the extra aot": "the compiler of a GPU, which the tests do not install",
}
"""Pages, or parts of a command or a role, that are not run; with the reason."""

SLOW = (
    "jaxscale plan --model llama3-70b",
    "jaxscale islands",
    "jaxscale law compare",
    "jaxscale serving plan",
    "jaxscale trends",
    "decoder_steps.decoder(n_layers=32",
    "other_steps.dit()",
)
"""Parts of the first blocks of examples that are left to the job of slow tests, 5 to 12 s of a core each."""

NUMBER = re.compile(r"(?<!\w)[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?!\w)")
"""A number that is no part of a word, as in `h100-80gb`."""

SHARE = 1e-3
"""Relative difference at which a printed number is still that of a page, beside a unit of the last decimal [1]."""

READ = ("data", "tests")
"""Folders of a clone that examples read."""


class Example(NamedTuple):
    """Blocks of a page that run one after another.

    Attributes:
        name: page and place on it.
        files: text of each file that the page has its reader write.
        steps: each block with the output that the page shows, empty where it shows none.
    """

    name: str
    files: dict[str, str]
    steps: list[tuple[Block, str]]

    @property
    def is_slow(self) -> bool:
        """Whether the example waits for the job of slow tests, as commands do of which the page shows no output."""
        first, _ = self.steps[0]
        is_long = any(part in first.text for part in SLOW)
        return is_long or (first.language == "bash" and not any(printed for _, printed in self.steps))


def commands(block: Block) -> list[str]:
    """Command lines of a block of the shell that can be run here."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.startswith("jaxscale ") and not any(part in line for part in NOT_RUN)]


def columns(block: Block) -> int:
    """Letters of a line of the screen on which a block is run; 0 where its role states none."""
    stated = re.fullmatch(r"columns (\d+)", block.role)
    return int(stated[1]) if stated else 0


def examples(page: Path) -> list[Example]:
    """Examples of a page, in order."""
    found = blocks(page.read_text(encoding="utf-8"))
    made = [block for block in found if re.fullmatch(r"new [\w.]+", block.role)]
    files = {block.role.split()[1]: block.text for block in made}
    kept: list[Example] = []
    if page_id(page) in NOT_RUN:
        return kept
    for place, (block, printed) in enumerate(with_outputs(found)):
        if block.role == "run" and not page.name.startswith("add_"):
            kept[-1].steps.append((block, printed))
        elif (not block.role or columns(block)) and (block.language == "python" or commands(block)):
            kept.append(Example(f"{page_id(page)}-{place}", files, [(block, printed)]))
    return kept


def ran(block: Block, capsys: pytest.CaptureFixture[str]) -> str:
    """Standard output of a block of Python, or of the commands of a block of the shell."""
    capsys.readouterr()
    if block.language == "python":
        exec(compile(block.text, "example", "exec"), {"__name__": "__main__"})
    for line in commands(block) if block.language != "python" else ():
        assert main(shlex.split(line, comments=True)[1:]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def value(number: str) -> float:
    """Value of a printed number."""
    return float(number.replace(",", ""))


def decimal(number: str) -> float:
    """Unit of the last decimal of a number; 0 of a whole one, which may be a count."""
    digits, _, power = number.partition("e")
    places = len(digits.partition(".")[2])
    return 10.0 ** (int(power or 0) - places) if places else 0.0


def is_same(shown: str, printed: str) -> bool:
    """Whether a line of a page has the words of a printed line, and its numbers within the tolerance."""
    words, others = (re.sub(NUMBER, "0", line).split() for line in (shown, printed))
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=False)
    return words == others and all(
        abs(value(one) - value(other)) <= max(1.001 * decimal(one), SHARE * abs(value(one))) for one, other in pairs
    )


def stale(shown: str, printed: str) -> list[str]:
    """The first line of a page that is not printed where it stands; else printed lines that the page lacks.

    A line `...` of the page leaves out any number of printed lines.
    """
    rest = printed.splitlines()
    is_next = True
    for line in shown.splitlines():
        if line == "...":
            is_next = False
            continue
        place = next((place for place, other in enumerate(rest) if is_same(line, other)), None)
        if place is None or (is_next and place):
            return [line]
        rest, is_next = rest[place + 1 :], True
    return rest if is_next else []


def parameters(found: Iterable[Example]) -> list[object]:
    """Parameters of a test of examples, of which the slow ones are marked."""
    return [pytest.param(one, id=one.name, marks=pytest.mark.slow if one.is_slow else ()) for one in found]


WHOLE = [page for page in PAGES if page_id(page) not in NOT_RUN and not page.name.startswith("add_")]
EXAMPLES = {page_id(page): examples(page) for page in PAGES}
ALL = [example for found in EXAMPLES.values() for example in found]


def test_there_is_an_example_for_each_job():
    languages = {name: [block.language for one in found for block, _ in one.steps] for name, found in EXAMPLES.items()}
    assert languages["README.md"] == ["python", "bash"] and len(ALL) >= 40
    assert all("python" in languages[f"docs/{job}.md"] for job in ("calibrate", "choose", "explore"))
    assert all("bash" in languages[f"docs/{job}.md"] for job in ("calibrate", "choose", "limits", "sweeps", "trends"))


def test_the_front_page_shows_what_its_example_prints():
    ((_, printed),) = EXAMPLES["README.md"][0].steps
    assert printed


def test_what_is_not_run_is_there():
    texts = {page_id(page): page.read_text(encoding="utf-8") for page in PAGES}
    assert all(part in texts or any(part in text for text in texts.values()) for part in (*NOT_RUN, *SLOW))


@pytest.mark.parametrize("page", WHOLE, ids=page_id)
def test_every_block_is_run_unless_a_reason_is_given(page: Path):
    """No block is passed over for a role that nobody knows."""
    rest = [block for block in blocks(page.read_text(encoding="utf-8")) if block.role not in NOT_RUN]
    programs = [block for block in rest if block.language == "python" or commands(block)]
    assert programs == [block for one in EXAMPLES[page_id(page)] for block, _ in one.steps]


@pytest.mark.parametrize("example", parameters(ALL))
def test_an_example_runs(example: Example, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for folder in READ:
        Path(folder).symlink_to(ROOT / folder)
    for name, text in example.files.items():
        Path(name).write_text(text, encoding="utf-8")
    for block, shown in example.steps:
        if columns(block):
            monkeypatch.setattr(table, "WIDE", columns(block))
        printed = ran(block, capsys)
        assert not shown or not stale(shown, printed), printed


def test_a_changed_figure_is_found():
    """Every number of every output that pages show: a digit of it changed, a line more, a line less."""
    outputs = [shown for one in ALL for _, shown in one.steps if shown]
    assert len(outputs) >= 20
    for shown in outputs:
        assert not stale(shown, shown.replace("...\n", "left out\n" * 3))
        for match in NUMBER.finditer(shown):
            digit = str((int(match[0].lstrip("+-")[0]) + 1) % 10)
            place = match.start() + len(match[0]) - len(match[0].lstrip("+-"))
            assert stale(shown[:place] + digit + shown[place + 1 :], shown), match
    assert stale("a\nb\n", "a\nb\nc\n") == ["c"] and stale("a\nc\n", "a\nb\nc\n") == ["c"]
    assert not stale("a\n...\nc\n...\n", "a\nb\nb\nc\nd\n") and stale("...\nc\n", "a\nc\nd\n") == ["d"]


def test_numbers_agree_to_their_last_decimal():
    assert is_same("step 2.97 s, tp 4", "step  2.98 s, tp 4") and not is_same("step 2.97 s", "step 2.99 s")
    assert is_same("100043 tokens", "100,050 tokens") and not is_same("100043 tokens", "100200 tokens")
    assert not is_same("tp 4", "tp 5") and not is_same("h100-80gb", "h100-81gb") and not is_same("1 s", "1 ms")
    assert is_same("7.399e+04", "7.400e+04") and not is_same("7.399e+04", "7.399e+05")
    assert not is_same("-0.034 %", "+0.034 %") and not is_same("pp 2 x 4", "pp 2")
