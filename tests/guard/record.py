"""What the guard holds, predictions of every shipped run and the documents of command lines, and how to store it anew.

Run `python tests/guard/record.py` where figures were meant to move; `test_guard.py` recomputes the same by what stands
here. Only public names of the package are used, so that its inside may be arranged otherwise.
"""

import contextlib
import csv
import io
import json
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import numpy as np

import jaxscale as js
from jaxscale.base.resources import run_tables
from jaxscale.cli import main
from jaxscale.runs.measured import describe_runs
from jaxscale.runs.predict import predict_described

FOLDER = Path(__file__).parent
DATA = FOLDER.parents[1] / "data"
PREDICTIONS, DOCUMENTS = FOLDER / "predictions.npz", FOLDER / "documents.json"

NUMBERS = ("step_time", "lo", "hi", "memory", "memory_lo", "memory_hi", "oom_probability")
"""What is predicted of every run, besides the cost terms of its step and its note."""

COMMANDS = (
    ("shape", "--gpu", "h100-80gb", "--n-gpus", "16", "--flop", "1e20"),
    ("trends", "--from", "64", "--to", "512", "--tp", "4", "--global-batch", "128"),
    ("limits", "--scenario", "default", "--from", "1e26", "--to", "1e31"),
    ("burst", "--network", "vgg16", "--n-gpus", "8", "--global-batch", "32"),
)
"""Command lines whose documents are held, besides `plan` for every published design."""


def predictions() -> dict[str, np.ndarray]:
    """Answers for all runs of all tables by the shipped fit.

    All tables go through one call, so that the model is compiled once; a row is answered without its neighbours.

    Returns:
        By `table/figure`, `table/terms/name` and `table/notes` (which of `table/note_texts`) [row].
    """
    tables = {name: js.read_runs(path) for name, path in run_tables().items()}
    with tempfile.TemporaryDirectory() as folder:
        everything = Path(folder) / "runs.csv"
        with everything.open("w", encoding="utf-8", newline="") as handle:
            writer = csv.writer(handle)
            writer.writerow(next(iter(tables.values())).columns)
            writer.writerows(row.cells for runs in tables.values() for row in runs)
        runs = js.read_runs(everything)
        # Rows as they stand: the completion of open ones has tests of its own.
        found = predict_described(runs, describe_runs(runs), js.load_fit("default"))
    columns = {name: getattr(found, name) for name in NUMBERS}
    columns |= {f"terms/{name}": values for name, values in found.terms.items()}
    answers: dict[str, np.ndarray] = {}
    start = 0
    for table, runs in tables.items():
        rows = slice(start, start := start + len(runs))
        answers |= {f"{table}/{name}": np.float32(values[rows]) for name, values in columns.items()}
        texts, which = np.unique(np.asarray(found.notes[rows], dtype=np.str_), return_inverse=True)
        answers |= {f"{table}/notes": which.astype(np.uint16), f"{table}/note_texts": texts}
    return answers


def command_lines() -> list[tuple[str, ...]]:
    """Command lines whose documents are held."""
    designs = tomllib.loads((DATA / "published_designs.toml").read_text(encoding="utf-8"))["designs"]
    options = {
        "model": "--model",
        "gpu": "--gpu",
        "n_gpus": "--n-gpus",
        "global_batch_size_seqs": "--global-batch",
        "seq_len": "--seq-len",
        "framework": "--framework",
    }
    plans = [
        ("plan", *(word for name, option in options.items() if name in run for word in (option, str(run[name]))))
        for run in designs.values()
    ]
    return [*plans, *COMMANDS]


def document(arguments: Sequence[str]) -> Any:
    """The JSON document that a command line prints, run in this process with the settings of JAX left alone."""
    out = io.StringIO()
    with mock.patch.object(main, "configure_jax", create=True), contextlib.redirect_stdout(out):
        code = main.main([*arguments, "--json"])
    if code:
        raise RuntimeError(f"jaxscale {' '.join(arguments)} --json: exit code {code}")
    return json.loads(out.getvalue())


def documents(command: str) -> dict[str, Any]:
    """Documents of one command, by command line."""
    return {" ".join(arguments): document(arguments) for arguments in command_lines() if arguments[0] == command}


class Recomputed(NamedTuple):
    """What is on its way.

    Attributes:
        predictions: as `predictions` returns them.
        documents: as `documents` returns them, by command.
    """

    predictions: Future
    documents: dict[str, Future]


@contextlib.contextmanager
def recomputed(cache: str | None = None) -> Iterator[Recomputed]:
    """Compute everything in two fresh processes, which compile side by side and without the type checks of the tests.

    Args:
        cache: folder for compiled programs.
    """
    with ProcessPoolExecutor(2, get_context("spawn"), settings, (cache,)) as pool:
        # Those that take longest first.
        commands = dict.fromkeys(arguments[0] for arguments in [*COMMANDS, *command_lines()])
        found = {command: pool.submit(documents, command) for command in commands}
        yield Recomputed(pool.submit(predictions), found)


def settings(cache: str | None) -> None:
    """Double precision, as the command line and the tests have it, and where compiled programs are kept."""
    jax.config.update("jax_enable_x64", True)
    if cache is not None:
        jax.config.update("jax_compilation_cache_dir", cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def record() -> None:
    """Write both files."""
    with recomputed() as answers:
        found = {line: answer for future in answers.documents.values() for line, answer in future.result().items()}
        ordered = {" ".join(arguments): found[" ".join(arguments)] for arguments in command_lines()}
        np.savez_compressed(PREDICTIONS, **answers.predictions.result())
    DOCUMENTS.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
    for path in (PREDICTIONS, DOCUMENTS):
        sys.stdout.write(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB\n")


if __name__ == "__main__":
    record()
