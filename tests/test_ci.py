"""The steps of `.ci/run`: each can be called alone, and the hosted workflow calls the same ones."""

import re
import subprocess
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))


def steps_of(script: str) -> list[str]:
    """Steps that a script lists and defines as functions."""
    (listed,) = re.findall(r"^STEPS=\((.+)\)$", script, re.MULTILINE)
    defined = set(re.findall(r"^(\w+)\(\) \{$", script, re.MULTILINE))
    return [step for step in listed.split() if step in defined]


def test_every_step_is_there_and_tests_come_last():
    steps = steps_of(SCRIPT)
    assert steps == ["main", "lint", "docs", "oldest", "pythons", "slow", "tests"]
    assert "lint" not in steps_of(SCRIPT.replace("\nlint() {", "\nlinting() {"))


def test_an_unknown_step_is_refused_before_any_work():
    done = subprocess.run(
        ["bash", ROOT / ".ci" / "run", "lint", "linting"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and not done.stdout
    assert done.stderr == f"unknown step linting; expected some of: {' '.join(steps_of(SCRIPT))}\n"


def test_the_workflow_runs_the_same_steps_on_the_pythons_of_the_metadata():
    (job,) = WORKFLOW["jobs"].values()
    matrix = job["strategy"]["matrix"]
    # Its jobs are on one Python each, which is what the step `pythons` does on one machine.
    assert matrix["step"] == [step for step in steps_of(SCRIPT) if step != "pythons"]
    assert job["steps"][-1]["run"] == "bash .ci/run ${{ matrix.step }}"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = set(re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"])))
    assert named == {*matrix["python"], *(entry["python"] for entry in matrix["include"] if entry["step"] == "main")}


def commands_of(readme: str) -> list[str]:
    """Parts of the shell commands of the two blocks of a README, options of the environment left out."""
    blocks = re.findall(r"^```bash\n(.*?)^```$", readme.split("## Two commands")[1], re.MULTILINE | re.DOTALL)[:2]
    return [part.strip().removeprefix(".venv/bin/") for block in blocks for part in block.split("&&")]


def test_the_script_installs_what_the_readme_installs():
    _, package, _, pip, tests, run = commands_of((ROOT / "README.md").read_text(encoding="utf-8"))
    assert package == "pip install -c constraints.txt ." and 'environment "$python" user .\n' in SCRIPT
    assert pip == 'pip install "pip>=25.1"' and 'environment "$python" tester "pip>=25.1"\n' in SCRIPT
    assert f"install tester {tests.removeprefix('pip install -c constraints.txt ')}\n" in SCRIPT
    assert run == "python -m pytest"


def test_every_folder_of_tests_is_collected():
    paths = set(
        tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"][
            "testpaths"
        ]
    )
    folders = {f"tests/{path.parent.name}" for path in (ROOT / "tests").glob("*/test_*.py")}
    assert folders == paths - {"tests/test_*.py"}
