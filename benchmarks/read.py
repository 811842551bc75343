"""Throughput of reading a table of runs and of describing it for the model, and the memory that it takes.

Run `python benchmarks/read.py`, or `--rows 1000000`. The table is that of `synthetic_runs.py`, with every column of the
schema. The best of several rounds counts: a busy machine only adds, less to processor time than to wall time.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxscale.runs import read_runs
from jaxscale.runs.measured import describe_runs

WRITER = Path(__file__).parent / "synthetic_runs.py"

TARGETS = {"read": 150e3, "describe": 1e6}
"""Rows per second on two idle cores [1/s]."""


def best_of(rounds: int, work: Callable[[], Any]) -> tuple[float, float, Any]:
    """Shortest wall time and shortest processor time of some rounds [s], and the last result."""
    walls, processors, result = [], [], None
    for _ in range(rounds):
        wall, processor = time.perf_counter(), time.process_time()
        result = work()
        walls.append(time.perf_counter() - wall)
        processors.append(time.process_time() - processor)
    return min(walls), min(processors), result


def tell(what: str, rows: int, wall: float, processor: float) -> None:
    """Say how many rows per second there were."""
    print(
        f"{what}: {rows / wall:,.0f} rows/s, {rows / processor:,.0f} per processor second (target {TARGETS[what]:,.0f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "runs.csv"
        # In a process of its own, whose memory is not counted.
        command = [sys.executable, str(WRITER), str(path), "--rows", str(arguments.rows)]
        subprocess.run(command, check=True)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        wall, processor, runs = best_of(arguments.rounds, lambda: read_runs(path))
        tell("read", arguments.rows, wall, processor)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(f"memory: {peak / 1e6:.2f} GB at most, {before / 1e6:.2f} GB before the first round")
        describe_runs(runs)
        wall, processor, _ = best_of(arguments.rounds, lambda: describe_runs(runs))
        tell("describe", arguments.rows, wall, processor)


if __name__ == "__main__":
    main()
