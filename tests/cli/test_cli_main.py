"""Arguments, exit codes, and what goes to which stream."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import jaxscale as js
from jaxscale.cli.console import PAGES, plain
from jaxscale.cli.entry.parsing import listed_in, one_line
from jaxscale.cli.main import NAMES
from jaxscale.cli.startup import cache_folder

DOCS = Path(__file__).parents[2] / "docs"
COMMANDS = ("demo", "fit", "predict", "plan", "hardware")


@pytest.mark.parametrize("arguments", [(), ("--help",)])
def test_help_lists_the_commands(run, arguments):
    outcome = run(*arguments)
    assert outcome.code == 0
    assert outcome.err == ""
    assert all(name in outcome.out for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_names_the_hardware_option(run, command):
    outcome = run(command, "--help")
    assert outcome.code == 0
    assert "--hardware FILE.toml" in outcome.out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("predict",), "RUNS.csv"),
        (("nope",), "command 'nope' is unknown; expected one of burst, demo, explore, fit,"),
        (("prdict", "runs.csv"), "command 'prdict' is unknown; expected one like predict"),
        (("predict", "runs.csv", "--nope"), "--nope"),
        (("plan", "--model", "gpt3-175b", "--gpu", "a100-80gb", "--n-gpus", "many", "--global-batch", "8"), "'many'"),
        (("fit", "runs.csv"), "--out"),
        (("hardware", "a100-80gb", "h100-80gb"), "h100-80gb"),
        (("plan", "--gpus", "8"), "--gpus is unknown; did you mean --n-gpus? (see jaxscale plan --help)"),
        (("burst", "--batch", "8"), "--batch is unknown; did you mean --global-batch?"),
        (("burst", "--gpus=8"), "--gpus is unknown; did you mean --n-gpus?"),
        (("predict", "--modle", "llama3-8b"), "--modle is unknown; did you mean --model?"),
        (("law", "fit", "--tabel", "gemstones"), "--tabel is unknown; did you mean --table?"),
        (("law", "fitt"), "command 'law fitt' is unknown; expected one like fit"),
        (("law",), "law needs a command; expected one of fit, predict, optimum, compare"),
        (("plan", "--gpu", "b200"), "plan needs --model NAME|FILE, --n-gpus N, --global-batch B (see"),
        (("trends", "--from", "eight"), "--from = 'eight' is no number"),
        (("limits", "--model", "mamba"), "--model = 'mamba'; expected one of 'blocks', 'transformer'"),
        (("predict", "runs.csv", "--gpu", "b200"), "expected --gpu or runs.csv, not both"),
        (("--hlep",), "--hlep is unknown; did you mean --help?"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(run, arguments, expected):
    outcome = run(*arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    assert expected in outcome.err
    assert outcome.err.count("\n") == 1
    assert outcome.err.startswith("jaxscale: ")


def leaves(run) -> list[tuple[str, ...]]:
    """All commands, those of `law` and `serving` by themselves."""
    found: list[tuple[str, ...]] = []
    for name in NAMES:
        usage = run(name, "--help").out.partition("\n\n")[0]
        parts = usage.partition("{")[2].partition("}")[0]
        found += [(name, part) for part in parts.split(",")] if parts else [(name,)]
    return found


def test_help_of_every_command(run):
    """Every argument has a text, nothing has the default None, and what all commands share is there."""
    for command in leaves(run):
        text = run(*command, "--help").out
        assert "--json" in text and "-q, --quiet" in text, command
        arguments = list(listed_in(text))
        assert len(arguments) > 2 and all(one.text for one in arguments), command
        assert not any("None" in one.label + one.text for one in arguments), command


def test_a_help_without_texts_fails():
    rows = ("--gpu ID   chip; see the", "           list", "--top K")
    with_text, without = listed_in("\n".join(f"│ {row:30} │" for row in rows))
    assert with_text.text == "chip; see the list" and not without.text


def test_settings_together_or_one_by_one(run):
    """`--set a=1 b=2` in every command that states settings; what follows a setting and is none is an argument."""
    one = ("predict", "--model", "llama3-8b", "--gpu", "h100-80gb", "--n-gpus", 8, "--fit", "prior", "--json")
    together = run(*one, "--set", "tp=2", "pp=1", "global_batch_size_seqs=8", "micro_batch_size=1")
    alone = run(*one, "--set", "tp=2", "--set", "pp=1", "--set=global_batch_size_seqs=8", "--set", "micro_batch_size=1")
    assert together.code == 0 and together.json == alone.json
    refused = run("read", "--set", "gpu=b200", "n_gpus=8", "no-such-file.log")
    assert "no-such-file.log" in refused.err and refused.code == 2


def test_version(run):
    outcome = run("--version")
    assert (outcome.code, outcome.out, outcome.err) == (0, f"jaxscale {js.__version__}\n", "")


def test_quiet_commands_say_nothing_but_refusals(run, tmp_path):
    own = tmp_path / "own.toml"
    own.write_text('[chips."c"]\nmemory_gb = 64\nmemory_gb_per_s = 2000\npeak_tflops_bf16 = 300\n')
    assert "valid; 1 chips" in run("hardware", "c", "--hardware", own).err
    assert run("hardware", "c", "--hardware", own, "--quiet").err == ""
    assert run("hardware", "d", "-q").err.count("\n") == 1


def test_whole_numbers_of_a_document_have_no_point():
    assert repr(plain({"n": 8030261248.0, "t": 0.5, "big": 1e26, "none": float("nan"), "flag": True})) == repr(
        {"n": 8030261248, "t": 0.5, "big": 1e26, "none": None, "flag": True}
    )


def test_no_absurd_name_is_offered(run):
    assert "did you mean" not in run("hardware", "no-such-chip").err
    assert "did you mean a100-80gb" in run("hardware", "a100-80bg").err


def test_an_unreadable_refusal_still_gives_a_line():
    assert one_line("") == "the arguments are not valid"


def test_any_other_failure_is_exit_1_and_not_hidden():
    broken = "import jaxscale.cli.main as m; m.HardwareCommand.run = lambda self: 1 / 0"
    code = f"{broken}; raise SystemExit(m.main(['hardware']))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert "ZeroDivisionError" in result.stderr


def test_as_a_process(tmp_path):
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "jaxscale", "hardware", "no-such-chip"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("jaxscale: gpu 'no-such-chip' is not in the hardware catalogue")
    assert result.stderr.count("\n") == 1
    assert (tmp_path / "cache" / "jaxscale").is_dir()


def test_cache_folder_that_cannot_be_made_is_no_error(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert cache_folder() is None


def test_input_errors_are_value_errors():
    assert issubclass(js.InputError, ValueError)


@pytest.mark.parametrize(
    ("arguments", "page"),
    [
        (("plan", "--model", "llama3-8b", "--gpu", "h1000", "--n-gpus", "8", "--global-batch", "8"), "add_a_chip.md"),
        (("model", "no-such-model"), "start.md"),
        (("law", "fit", "no-such-table.csv"), "laws.md"),
        (("serving", "predict", "no-such-table.csv"), "serving.md"),
        (("predict", "no-such-table.csv"), "command_line.md"),
        (("plan", "--model", "llama3-8b", "--gpu", "h100-80gb", "--n-gpus", "0", "--global-batch", "8"), None),
    ],
)
def test_refusals_name_the_page_that_helps(run, arguments, page):
    """One line still; what no page explains, such as a number out of range, names none."""
    outcome = run(*arguments)
    assert outcome.code == 2 and outcome.err.count("\n") == 1
    assert outcome.err.endswith(f"(see docs/{page})\n") if page else "docs/" not in outcome.err


def test_pages_that_refusals_name_exist():
    assert all((DOCS / page).is_file() for page in PAGES.values())
    assert all(importlib.util.find_spec(package) for package in PAGES)
