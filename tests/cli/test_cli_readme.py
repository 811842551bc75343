"""The README's Python examples run as they are written, and its commands exist."""

import re
from pathlib import Path

import pytest

from jaxscale.cli.main import parse

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
COMMANDS = re.findall(
    r"^jaxscale (.*?)(?:\s+#.*)?$", "\n".join(re.findall(r"```bash\n(.*?)```", README, re.DOTALL)), re.M
)


def test_there_is_an_example_for_each_job():
    assert len(EXAMPLES) == 4
    assert len(COMMANDS) == 4


@pytest.mark.parametrize("example", EXAMPLES, ids=["calibrate", "choose", "explore", "scale"])
def test_an_example_runs(example, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    exec(compile(example, "README.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_line_is_accepted(line):
    assert parse(line.split()) is not None


def test_the_table_of_commands_is_complete(run):
    listed = re.findall(r"^\| `jaxscale (\w+)", README, re.M)
    choices = re.search(r"\{([\w,]+)\}", run("--help").out)
    assert choices is not None
    assert sorted(listed) == sorted(choices.group(1).split(","))


def test_the_figures_of_the_readme_exist():
    for path in re.findall(r"\]\(([\w/.]+\.(?:png|ipynb|md|cff))\)", README):
        assert (ROOT / path).is_file()
