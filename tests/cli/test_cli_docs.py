"""The command lines of the documentation are accepted, and its table of commands is complete."""

import re
import shlex
from pathlib import Path

import pytest

from jaxscale.cli.main import parse

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
BLOCKS = [
    block
    for page in PAGES
    for block in re.findall(r"```bash\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
]
COMMANDS = re.findall(r"^jaxscale (.*?)(?:\s+#.*)?$", "\n".join(BLOCKS), flags=re.MULTILINE)


def test_there_is_a_command_for_each_job():
    assert {"predict", "fit", "plan", "trends"} <= {command.split()[0] for command in COMMANDS}
    assert len(COMMANDS) >= 4


@pytest.mark.parametrize("line", sorted(set(COMMANDS)))
def test_a_command_line_is_accepted(line):
    assert parse(shlex.split(line)) is not None


def test_the_table_of_commands_is_complete(run):
    page = (ROOT / "docs" / "command_line.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `jaxscale (\w+)", page, re.M)
    choices = re.search(r"\{([\w,]+)\}", run("--help").out)
    assert choices is not None
    assert sorted(listed) == sorted(choices.group(1).split(","))
