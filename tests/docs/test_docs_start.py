"""The first page is tried as a new user would: its file, its commands in a shell of their own, what they print."""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pages import ROOT

import jaxscale as js
from jaxscale.launch.options import complaints
from jaxscale.plans.plan_questions import framework_space

PAGE = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
LONGEST = 120.0
"""Time for all commands, with nothing compiled before [s]."""


class Tried(NamedTuple):
    """What the commands of the page printed, in order; and how long they took [s]."""

    outputs: list[str]
    duration: float


def part(name: str) -> str:
    """Block of the page under a comment of its name."""
    match = re.search(rf"^<!-- start: {re.escape(name)} -->\n```\w+\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert match is not None
    return match[1]


def commands() -> list[list[str]]:
    """Command lines of the page that call the program."""
    return [shlex.split(line)[1:] for line in re.findall(r"^jaxscale .+$", PAGE, flags=re.MULTILINE)]


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Tried:
    """The commands, run in an empty folder by a user for whom nothing is compiled."""
    folder = tmp_path_factory.mktemp("start")
    (folder / "config.json").write_text(part("config.json"), encoding="utf-8")
    settings = {name: value for name, value in os.environ.items() if not name.startswith(("JAX", "XLA_"))}
    environment = settings | {"XDG_CACHE_HOME": str(folder / "cache"), "PYTHONPATH": str(ROOT)}
    outputs, begin = [], time.monotonic()
    for arguments in commands():
        command = [sys.executable, "-m", "jaxscale", *arguments]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    return Tried(outputs, time.monotonic() - begin)


@pytest.fixture(scope="module")
def best(tmp_path_factory: pytest.TempPathFactory) -> js.PlanChoice:
    """Ranked plans of the page's run by the public function, for Megatron-LM."""
    path: Path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_text(part("config.json"), encoding="utf-8")
    levels = {"gpu": "h100-80gb", "precision": "bf16", "framework": "megatron-lm"}
    question = (js.model(path, seq_len=4096), js.cluster("h100-80gb", 16), 128)
    return js.best_plan(*question, levels=levels, space=framework_space("megatron-lm"), top=50)


def test_three_commands_lead_to_a_launch(tried: Tried):
    assert [arguments[0] for arguments in commands()] == ["plan", "plan", "model"]
    assert tried.duration < LONGEST


def test_the_ranking_is_that_of_the_public_function(tried: Tried, best: js.PlanChoice):
    ranking = tried.outputs[0]
    assert f"{best.searched:,} plans searched" in ranking
    heading, first = re.findall(r"^ *(?:rank|1) .*$", ranking, flags=re.MULTILINE)[:2]
    assert {"rank", "step", "memory"} <= set(heading.split())
    # A degree that all plans have stands above the heading.
    degrees = {name: best.best.plan.words()[name] for name in ("dp", "tp", "pp")}
    assert all(name in heading.split() or f"{name} {value}" in ranking for name, value in degrees.items())
    assert f"{best.best.step_time:.3g} s" in first and f" {best.best.memory / 1e9:.1f}" in first


def script_options(text: str) -> dict[str, Any]:
    """Options of the program in a script, by name: flags, whole numbers, numbers and words."""
    array = re.search(r"^OPTIONS=\(\n(.*?)^\)$", text, flags=re.MULTILINE | re.DOTALL)
    assert array is not None
    found: dict[str, Any] = {}
    for line in array[1].splitlines():
        name, *values = shlex.split(line, comments=True)
        word = " ".join(values)
        is_number = re.fullmatch(r"-?\d+(\.\d+)?(e-?\d+)?", word)
        found[name] = True if not values else (int(word) if word.isdigit() else float(word)) if is_number else word
    return found


def test_the_settings_are_what_the_program_takes(tried: Tried):
    """By the table of its options and rules, as an independent parser reads the script."""
    options = script_options(tried.outputs[1])
    connections = re.search(r"CUDA_DEVICE_MAX_CONNECTIONS=(\d)", tried.outputs[1])
    environment = {"env.CUDA_DEVICE_MAX_CONNECTIONS": int(connections[1])} if connections else {}
    assert complaints("megatron-lm", {**options, **environment}, 16) == ()
    tied = {name: value for name, value in options.items() if name != "--max-position-embeddings"}
    assert complaints("megatron-lm", {**tied, **environment}, 16) != ()
    page = script_options(f"OPTIONS=(\n{part('settings')})\n")
    assert set(page.items()) <= set(options.items())
    assert page["--untie-embeddings-and-output-weights"] is True and page["--vocab-size"] == 151936


def test_the_settings_are_those_of_the_best_plan(tried: Tried, best: js.PlanChoice, tmp_path: Path):
    """The first plan that Megatron-LM has: it shards no gradients while it keeps the weights whole (ZeRO-2)."""
    written = tried.outputs[1]
    words = next(plan for plan in (scored.plan.words() for scored in best.top) if plan["zero_stage"] != 2)
    assert part("settings") in written
    launch = tmp_path / "launch.sh"
    launch.write_text(written, encoding="utf-8")
    command = [sys.executable, "-m", "jaxscale", "read", str(launch), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    (row,) = json.loads(done.stdout)["rows"]
    assert [float(row["cells"][name]) for name in ("tp", "pp", "micro_batch_size")] == [
        words[name] for name in ("tp", "pp", "micro_batch_size")
    ]


def test_the_model_is_read_as_the_page_says(tried: Tried):
    assert tried.outputs[2].startswith(part("model"))
    assert f"{float(js.n_params(js.Transformer(40, 5120, 40))) / 1e9:.2f}e9 parameters" not in part("model")
