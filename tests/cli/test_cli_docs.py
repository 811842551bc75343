"""The command lines of the documentation are accepted, and its table of commands is complete."""

import re
import shlex
from pathlib import Path

import pytest

from jaxscale.calibration.record import load_fit
from jaxscale.cli.main import command_of

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
BLOCKS = [
    block
    for page in PAGES
    for block in re.findall(r"```bash\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
]
COMMANDS = re.findall(r"^jaxscale (.*?)(?:\s+#.*)?$", "\n".join(BLOCKS).replace("\\\n", " "), flags=re.MULTILINE)


def test_there_is_a_command_for_each_job():
    assert {"predict", "fit", "plan", "trends"} <= {command.split()[0] for command in COMMANDS}
    assert len(COMMANDS) >= 4


@pytest.mark.parametrize("line", sorted(set(COMMANDS)))
def test_a_command_line_is_accepted(line):
    assert command_of(shlex.split(line)) is not None


def test_the_table_of_commands_is_complete(run):
    page = (ROOT / "docs" / "command_line.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `jaxscale (\w+)", page, re.M)
    choices = re.search(r"\{([\w,]+)\}", run("--help").out)
    assert choices is not None
    assert sorted(listed) == sorted(choices.group(1).split(","))


def test_the_page_names_the_frameworks_of_the_default_fit():
    page = (ROOT / "docs" / "command_line.md").read_text(encoding="utf-8")
    listed = re.search(r"The default fit knows\s+runs of (.*?)\.", page, re.S)
    assert listed is not None
    named = set(re.findall(r"`([^`]+)`", listed[1]))
    assert named == {level for kind, level in load_fit("default").fitted if kind == "framework" and level}
