"""Throughput of reading a table of runs and of describing it for the model, and the memory that it takes.

Run `python benchmarks/read.py`, or `--rows 1000000`. The table is that of `synthetic_runs.py`, with every column of the
schema. The best of several rounds counts: a busy machine only adds.
"""

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from synthetic_runs import write_synthetic_runs

from jaxscale.runs import read_runs
from jaxscale.runs.measured import describe_runs

TARGETS = {"read": 150e3, "describe": 1e6}
"""Rows per second on two idle cores [1/s]."""


def best_of(rounds: int, work: Callable[[], Any]) -> tuple[float, Any]:
    """Shortest time of some rounds [s], and the last result."""
    seconds, result = float("inf"), None
    for _ in range(rounds):
        start = time.perf_counter()
        result = work()
        seconds = min(seconds, time.perf_counter() - start)
    return seconds, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "runs.csv"
        write_synthetic_runs(path, arguments.rows)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        seconds, runs = best_of(arguments.rounds, lambda: read_runs(path))
        print(f"read: {arguments.rows / seconds:,.0f} rows/s (target {TARGETS['read']:,.0f})")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(f"memory: {peak / 1e6:.2f} GB at most, {before / 1e6:.2f} GB before the first round")
        describe_runs(runs)
        seconds, _ = best_of(arguments.rounds, lambda: describe_runs(runs))
        print(f"describe: {arguments.rows / seconds:,.0f} rows/s (target {TARGETS['describe']:,.0f})")


if __name__ == "__main__":
    main()
