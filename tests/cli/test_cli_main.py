"""Arguments, exit codes, and what goes to which stream."""

import importlib.util
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import jaxscale as js
from jaxscale.base.jit import cache_folder
from jaxscale.cli.console import PAGES
from jaxscale.cli.parsing import one_line, spelled_in_digits

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
        (("nope",), "command 'nope' is unknown; expected one of burst, demo, explain, explore, fit,"),
        (("prdict", "runs.csv"), "command 'prdict' is unknown; expected one like predict"),
        (("predict", "runs.csv", "--nope"), "--nope"),
        (("plan", "--model", "gpt3-175b", "--gpu", "a100-80gb", "--n-gpus", "many", "--global-batch", "8"), "'many'"),
        (("fit", "runs.csv"), "--out"),
        (("hardware", "a100-80gb", "h100-80gb"), "h100-80gb"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(run, arguments, expected):
    outcome = run(*arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    assert expected in outcome.err
    assert outcome.err.count("\n") == 1
    assert outcome.err.startswith("jaxscale: ")


def test_an_unreadable_refusal_still_gives_a_line():
    assert one_line("") == "the arguments are not valid"


def test_a_box_in_colours_is_said_as_the_plain_one():
    words = "Error parsing --tokens: no type matching {None}|FLOAT could be instantiated from ['15T']."
    plain = f"title\n│ {words}  │\n│ ─────── │\n│ Argument helptext: │"
    coloured = plain.replace("│", "\x1b[31m│\x1b[0m").replace("───────", "\x1b[2m───────\x1b[0m")
    assert one_line(coloured) == one_line(plain)
    assert one_line(plain).startswith("--tokens = '15T' is no number; expected")


@pytest.mark.parametrize(
    ("word", "refusal", "digits"),
    [
        ("8k", "--seq-len = '8k' is no whole number", "8192"),
        ("1.5k", "--seq-len = '1.5k' is no whole number", "1536"),
        ("15T", "--seq-len = '15T' is no number", "15000000000000"),
        ("0.3k", "--seq-len = '0.3k' is no whole number", None),
        ("8x", "--seq-len = '8x' is no whole number", None),
        ("8k", "--n-gpus = '16k' is no whole number", None),
    ],
)
def test_numbers_with_a_prefix_are_written_in_digits(word: str, refusal: str, digits: str | None):
    """Counts have prefixes of powers of two where whole numbers are asked, else of powers of ten."""
    written = [] if digits is None else ["plan", "--seq-len", digits, "--plot", word]
    assert spelled_in_digits(["plan", "--seq-len", word, "--plot", word], refusal) == written
    joined = [] if digits is None else ["plan", f"--seq_len={digits}"]
    assert spelled_in_digits(["plan", f"--seq_len={word}"], refusal) == joined


def test_any_other_failure_is_exit_1_and_not_hidden():
    broken = "from jaxscale.cli import catalogue, main; catalogue.HardwareCommand.run = lambda self: 1 / 0"
    code = f"{broken}; raise SystemExit(main.main(['hardware']))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert "ZeroDivisionError" in result.stderr


def test_as_a_process():
    command = [sys.executable, "-m", "jaxscale", "hardware", "no-such-chip"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("jaxscale: gpu 'no-such-chip' is not in the hardware catalogue")
    assert result.stderr.count("\n") == 1


def test_cache_folder_that_cannot_be_made_is_no_error(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.delenv("JAXSCALE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert cache_folder() is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() is not None


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


@pytest.mark.parametrize(("limit", "code"), [(4096, 1), (2**24, 0)], ids=("full", "roomy"))
def test_an_answer_that_a_disk_takes_in_part_is_told(tmp_path, limit, code):
    path = tmp_path / "chips.json"
    limited = f"import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))"
    answering = "from jaxscale.cli.main import main; sys.exit(main(['hardware', '--json']))"
    command = [sys.executable, "-c", f"{limited}; {answering}"]
    with path.open("w") as file:
        result = subprocess.run(command, stdout=file, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert result.returncode == code, result.stderr
    assert path.stat().st_size <= limit
    assert result.stderr == ("jaxscale: the output: file too large\n" if code else "")


STOPPED = """
import atexit, os, signal, sys
from jaxscale.__main__ import run
from jaxscale.base.files import whole_file
from jaxscale.cli import catalogue
path, number = sys.argv.pop(1), int(sys.argv.pop(1))
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
def command(self):
    with whole_file(path) as temporary:
        temporary.write_text("begun")
        if number:
            os.kill(os.getpid(), number)
catalogue.HardwareCommand.run = command
atexit.register(os.abort)
sys.exit(run())
"""


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, 130, "jaxscale: interrupted\n"), (signal.SIGTERM, 143, ""), (0, -signal.SIGABRT, "")],
)
def test_a_command_that_is_stopped_leaves_no_file_and_ends_at_once(tmp_path, number, code, said):
    """What runs at the end of other processes (here an abort) is left out: it crashes where JAX still compiles."""
    path = tmp_path / "out.csv"
    command = [sys.executable, "-c", STOPPED, str(path), str(int(number)), "hardware"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (code, said)
    assert list(tmp_path.iterdir()) == ([path] if number == 0 else [])


def test_an_interruption_while_modules_load_is_one_line():
    interrupted = (
        "import signal, sys\n"
        "from jaxscale.__main__ import run\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Loading:\n"
        "    def find_spec(self, name, *more):\n"
        "        signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Loading())\n"
        "sys.exit(run())\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", interrupted], capture_output=True, text=True, timeout=60, check=False
    )
    assert (result.returncode, result.stderr) == (130, "jaxscale: interrupted\n")
