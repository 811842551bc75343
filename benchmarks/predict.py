"""Throughput of predicting a table of runs, with notes and intervals, and the memory that it takes.

Run `python benchmarks/predict.py`, or `--rows 1000000`. The table is that of `synthetic_runs.py`; reading it is
timed by `read.py`. The first prediction compiles the model; the best of several further ones counts. Wall time
depends on what else the machine does, processor time, that of all threads together, does less.
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path

import jax
from synthetic_runs import write_synthetic_runs

import jaxscale as js

TARGETS = {"predict": 300e3, "memory": 3.0}
"""Rows per second on two idle cores [1/s], and memory of the process with 200,000 rows [GB]."""


def timed_prediction(runs: js.Runs, fit: js.Fit) -> tuple[float, float, js.Prediction]:
    """Wall time and processor time of one prediction [s], and the prediction."""
    wall, processor = time.perf_counter(), time.process_time()
    prediction = js.predict(runs, fit)
    return time.perf_counter() - wall, time.process_time() - processor, prediction


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "runs.csv"
        write_synthetic_runs(path, arguments.rows)
        runs, fit = js.read_runs(path), js.load_fit()
    print(f"first prediction: {timed_prediction(runs, fit)[0]:.1f} s, with compilation")
    rounds = [timed_prediction(runs, fit) for _ in range(arguments.rounds)]
    wall, processor = (min(column) for column in list(zip(*rounds, strict=True))[:2])
    print(f"predict: {arguments.rows / wall:,.0f} rows/s (target {TARGETS['predict']:,.0f}), {wall:.2f} s")
    print(f"processor time: {processor:.2f} s")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"memory: {peak:.2f} GB at most (target {TARGETS['memory']:.0f})")
    prediction = rounds[-1][2]
    print(f"answered: {(prediction.step_time > 0).sum()} rows, {len(set(prediction.notes))} different notes")


if __name__ == "__main__":
    main()
