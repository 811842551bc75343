"""Every file, public name, link, option and command that the documentation mentions exists."""

import importlib
import re
import typing
from pathlib import Path

import pytest
from pages import (
    PAGES,
    ROOT,
    anchors,
    links,
    mentioned_modules,
    mentioned_names,
    mentioned_options,
    mentioned_paths,
    new_paths,
    page_id,
    without_blocks,
)

import jaxscale as js
from jaxscale.base.lazy import loaded
from jaxscale.cli.registry import COMMANDS

PACKAGE = ROOT / "jaxscale"


def missing_paths(text: str) -> set[str]:
    """Mentioned paths under which no file lies."""
    return {path for path in mentioned_paths(text) - new_paths(text) if not list(ROOT.glob(path.rstrip("/")))}


def missing_names(text: str) -> set[str]:
    """Mentioned public names that the package does not have."""
    return {name for name in mentioned_names(text) if not resolves(js, name.split("."))}


def options_of(command: type) -> set[str]:
    """Options of a command and its parts: the names of its fields, as a command line has them."""
    fields = typing.get_type_hints(command)
    own = {f"--{name.replace('_', '-')}" for name in fields}
    return own.union(*(options_of(part) for part in typing.get_args(fields.get("action"))))


OPTIONS = {"--from", "--to", "--count", "--help", "--version"}.union(
    *(options_of(loaded(h)) for h in COMMANDS.values())
)
"""Options of all commands; those named here are no fields of their names."""


def missing_options(text: str) -> set[str]:
    """Mentioned options that no command has."""
    return mentioned_options(text, COMMANDS) - OPTIONS


def missing_modules(text: str) -> set[str]:
    """Mentioned modules, or names in them, that do not exist."""
    return {name for name in mentioned_modules(text) if not is_importable(name)}


def broken_links(page: Path, text: str) -> set[str]:
    """Links to files or headings that do not exist."""
    return {target for target in links(text) if not leads_somewhere(page, target)}


def resolves(owner: object, parts: list[str]) -> bool:
    """Whether an attribute of an attribute ... is there; fields of a class count."""
    for part in parts:
        fields = getattr(owner, "__dataclass_fields__", {})
        if not hasattr(owner, part) and part not in fields:
            return False
        owner = getattr(owner, part, fields.get(part))
    return True


def is_importable(dotted: str) -> bool:
    """Whether the longest prefix that is a module has the rest as its attribute."""
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        try:
            return resolves(importlib.import_module(".".join(parts[:end])), parts[end:])
        except ModuleNotFoundError:
            continue
    return False


def leads_somewhere(page: Path, target: str) -> bool:
    """Whether the file of a link exists, and the heading in it."""
    name, _, heading = target.partition("#")
    file = (page.parent / name).resolve() if name else page
    if not file.exists():
        return False
    return not heading or heading in anchors(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_what_a_page_mentions_exists(page: Path):
    text = page.read_text(encoding="utf-8")
    assert not missing_paths(text)
    assert not missing_names(text)
    assert not missing_options(text)
    assert not missing_modules(text)
    assert not broken_links(page, text)


@pytest.mark.parametrize("folder", ["data", "fits"])
def test_long_pages_list_their_sections(folder: str):
    page = ROOT / folder / "README.md"
    text = page.read_text(encoding="utf-8")
    assert not missing_paths(text)
    sections = anchors("\n".join(re.findall(r"^## .+$", text, flags=re.MULTILINE)))
    assert sections and sections <= {target.removeprefix("#") for target in links(text)}
    assert not broken_links(page, text)


def test_the_checks_can_fail():
    text = "`jaxscale/costs/nothing.py`, `js.no`, `js.Plan.nothing`, `jaxscale.costs.step.no`, [a](no.md), [b](#no)"
    assert missing_paths(text) == {"jaxscale/costs/nothing.py"}
    assert missing_names(text) == {"no", "Plan.nothing"}
    assert missing_options("`--no`, `plan --nor X`, `nsys --type X`, `jaxscale fit R --out F`") == {"--no", "--nor"}
    assert missing_modules(text) == {"jaxscale.costs.step.no"}
    assert broken_links(ROOT / "README.md", text) == {"no.md", "#no"}
    real = (
        "`jaxscale/costs/step.py`, `data/runs/<name>.csv`, `js.Plan.dp`, `jaxscale.costs.step.step_time`, [a](LICENSE)"
    )
    assert not missing_paths(real) | missing_names(real) | missing_modules(real) | broken_links(ROOT / "x.md", real)


def test_the_front_page_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 900


def test_every_page_is_in_the_index():
    index = ROOT / "docs" / "index.md"
    listed = links(index.read_text(encoding="utf-8"))
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"} <= listed


def test_the_accuracy_of_the_front_page_is_that_of_the_scoreboard():
    scoreboard = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    row = re.search(
        r"^\| every run \| (\d+) \| ([\d.]+) / ([\d.]+) \| [\d. /]+ \| (\d+ %) \|$", scoreboard, re.MULTILINE
    )
    assert row is not None
    n, mean, median, inside = row.groups()
    front = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    sentence = f"On {int(n):,} measured runs the mean error of step time is {mean} % and the median {median} %"
    assert sentence in front and f"{inside} of the runs lie inside the 90 % interval" in front


def test_the_share_of_well_chosen_plans_is_that_of_the_study():
    text = (ROOT / "fits" / "regret.md").read_text(encoding="utf-8")
    study = text.split("Predictions by a fit with the model shape left out")[1]
    row = re.search(r"^\| all \| (\d+) \| \d+ \| (\d+ %) \|", study, re.MULTILINE)
    assert row is not None
    page = " ".join((ROOT / "docs" / "choose.md").read_text(encoding="utf-8").split())
    assert f"within 5 % of the measured best in {row[2]} of {row[1]} groups" in page


def test_the_columns_of_predictions_are_described():
    text = without_blocks((ROOT / "docs" / "command_line.md").read_text(encoding="utf-8"))
    row = {"model": "llama3-8b", "gpu": "h100-80gb", "n_gpus": 8, "seq_len": 4096}
    added = {name for name in js.predict(row, fit="prior").columns() if name.startswith("predicted_")}
    assert added == set(re.findall(r"`(predicted_\w+)`", text))


def missing_modules_of_rows(text: str) -> set[str]:
    """Modules `name.py` of the rows of a table that lie in no folder of their row."""
    found = set()
    for where, what in re.findall(r"^\| (`jaxscale/.*?) \| (.*) \|$", text, flags=re.MULTILINE):
        folders = [ROOT / folder for folder in re.findall(r"`(jaxscale/[\w/]*)", where)]
        modules = re.findall(r"`(\w+\.py)`", what)
        found |= {module for module in modules if not any((folder / module).exists() for folder in folders)}
    return found


def test_the_page_of_the_structure_is_complete():
    text = (ROOT / "docs" / "structure.md").read_text(encoding="utf-8")
    assert not missing_modules_of_rows(text)
    assert missing_modules_of_rows("| `jaxscale/fitting/` | a (`nothing.py`), b (`result.py`) |\n") == {"nothing.py"}
    listed = {path.rstrip("/") for path in mentioned_paths(text)}
    parts = [path for path in PACKAGE.iterdir() if not path.name.startswith(("_", "."))]
    services = {"jaxscale/base/errors.py", "jaxscale/base/files.py", "jaxscale/base/units.py"}
    assert {path.relative_to(ROOT).as_posix() for path in parts} - services <= listed


def test_the_page_of_equations_has_every_term():
    text = (ROOT / "docs" / "equations.md").read_text(encoding="utf-8")
    headings = set(re.findall(r"`(\w+)`", "\n".join(re.findall(r"^### .+$", text, flags=re.MULTILINE))))
    assert headings == set(js.StepTime.__dataclass_fields__)
    rows = set(re.findall(r"^\| `(\w+)` \|", text, flags=re.MULTILINE))
    assert rows == set(js.Memory.__dataclass_fields__) - {"capacity", "first_stage", "cached"}
