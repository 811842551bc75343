"""Stored figures: how they are recomputed, and how they are written anew where figures were meant to move.

Run `python tests/guard/record.py`, or with names of wings for their files alone; `test_guard.py` recomputes the same.
"""

import contextlib
import csv
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from wings import DATA, WINGS

import jaxscale as js

FOLDER = Path(__file__).parent
PREDICTIONS = FOLDER / "predictions.npz"

NUMBERS = ("step_time", "lo", "hi", "memory", "memory_lo", "memory_hi", "oom_probability")
"""What is predicted of every run, besides the cost terms of its step and its note."""


def stored_file(wing: str) -> Path:
    """File with the figures of a wing."""
    return FOLDER / f"{wing}.json"


def predictions() -> dict[str, np.ndarray]:
    """Answers for all runs of all tables by the shipped fit.

    All tables go through one call, so that the model is compiled once; a row is answered without its neighbours.

    Returns:
        By `table/figure`, `table/terms/name` and `table/notes` (which of `table/note_texts`) [row].
    """
    paths = [path for folder in ("runs", "restricted/runs") for path in (DATA / folder).glob("*.csv")]
    tables = {path.stem: js.read_runs(path) for path in sorted(paths, key=lambda path: path.stem)}
    with tempfile.TemporaryDirectory() as folder:
        everything = Path(folder) / "runs.csv"
        with everything.open("w", encoding="utf-8", newline="") as handle:
            writer = csv.writer(handle)
            writer.writerow(next(iter(tables.values())).columns)
            writer.writerows(row.cells for runs in tables.values() for row in runs)
        found = js.predict(everything)
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


def wing_figures(wing: str) -> dict[str, Any]:
    """Figures of one wing as they are now."""
    return WINGS[wing]()


class Recomputed(NamedTuple):
    """What is on its way.

    Attributes:
        predictions: as `predictions` returns them.
        wings: as each function of `WINGS` returns them, by wing.
    """

    predictions: Future
    wings: dict[str, Future]


@contextlib.contextmanager
def recomputed(cache: str | None, n_processes: int = 2) -> Iterator[Recomputed]:
    """Compute everything in fresh processes, which compile side by side and without the type checks of the tests.

    Args:
        cache: folder for compiled programs.
        n_processes: that work at a time [1].
    """
    with ProcessPoolExecutor(n_processes, get_context("spawn"), settings, (cache,)) as pool:
        found = {wing: pool.submit(wing_figures, wing) for wing in WINGS}
        yield Recomputed(pool.submit(predictions), found)


def settings(cache: str | None) -> None:
    """Double precision and quick compilation, as the tests have them, and where compiled programs are kept."""
    # The package would keep programs in a folder of its own, which outlives a test.
    os.environ["JAXSCALE_CACHE"] = "off"
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_disable_most_optimizations", True)
    if cache is not None:
        jax.config.update("jax_compilation_cache_dir", cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def rounded(value: Any) -> Any:
    """A document whose numbers have ten digits, ten thousand times finer than any change that counts."""
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items()}
    if isinstance(value, list):
        return [rounded(part) for part in value]
    return float(f"{value:.10g}") if isinstance(value, float) else value


def laid_out(value: Any, margin: str = "\n ") -> str:
    """JSON text with lists of plain values on one line each."""
    if isinstance(value, dict) and value:
        lines = [f"{json.dumps(name)}: {laid_out(part, margin + ' ')}" for name, part in value.items()]
        return "{" + margin + f",{margin}".join(lines) + margin[:-1] + "}"
    if isinstance(value, list) and any(isinstance(part, dict | list) for part in value):
        lines = [laid_out(part, margin + " ") for part in value]
        return "[" + margin + f",{margin}".join(lines) + margin[:-1] + "]"
    return json.dumps(value)


def record(wanted: list[str]) -> None:
    """Write the files of some wings, of `predictions`, or where none is named all of them."""
    unknown = set(wanted) - {*WINGS, "predictions"}
    if unknown:
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}; expected some of predictions, {', '.join(WINGS)}")
    cache = jax.config.jax_compilation_cache_dir
    with ProcessPoolExecutor(1, get_context("spawn"), settings, (cache,)) as pool:
        for name in wanted or [*WINGS, "predictions"]:
            if name == "predictions":
                path = PREDICTIONS
                np.savez_compressed(path, **pool.submit(predictions).result())
            else:
                path = stored_file(name)
                document = rounded(pool.submit(wing_figures, name).result())
                path.write_text(laid_out(document) + "\n", encoding="utf-8")
            sys.stdout.write(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB\n")
            sys.stdout.flush()


if __name__ == "__main__":
    record(sys.argv[1:])
