"""Seconds of `jaxscale` commands and calls, each in a fresh process: with no compiled programs kept, and again.

Run `python benchmarks/commands.py` on an otherwise idle machine; `--repeats 5` takes the best of five warm runs, and
`--only predict calls` a choice of them. A process is counted whole, from the start of the interpreter to its end; the
seconds of all processors, beside, depend less on what else the machine does. Programs are kept in the folder that
`JAXSCALE_CACHE` names; Python keeps its bytecode, as of any installed package.
"""

import argparse
import csv
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROWS, SPREAD = 50_000, 0.03
"""Rows of the table that `predict` reads, and spread of the step times of those that repeat a run [row], [1]."""

ONE_RUN = "predict --model llama3-8b --gpu h100-80gb --n-gpus 64 --global-batch 512"
"""A run whose degrees are open: it searches plans."""

COMMANDS = {
    "help": "--help",
    "predict": ONE_RUN,
    "predict-stated": f"{ONE_RUN} --set tp=2 pp=1 dp=32 micro_batch_size=1",
    "predict-table": "predict {table}",
    "plan": "plan --model llama3-70b --gpu h100-80gb --n-gpus 512 --global-batch 1024 --seq-len 8192",
    "plan-deepseek-v3": "plan --model deepseek-v3 --gpu h100-80gb --n-gpus 2048 --global-batch 15360",
    "shape": "shape --gpu h100-80gb --n-gpus 1024 --days 30",
    "limits": "limits",
    "trends": "trends",
}
"""Command lines by name."""

TARGETS = {
    **{"predict": 1.1, "predict-stated": 1.1, "predict-table": 4.0},
    **{"plan": 2.5, "plan-deepseek-v3": 6.0, "shape": 7.0, "limits": 3.0, "trends": 3.5},
}
"""Longest times with programs kept, on one idle core [s]."""

CALLS = """
import time
import jaxscale as js

def least(call, times):
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return min(taken)

arguments = (js.model("llama3-8b"), js.Plan(dp=32, tp=2), js.cluster("h100-80gb", 64), js.prior_medians())
step = lambda: float(js.step_time(*arguments).total)
print(least(step, 1), least(step, 200), least(js.load_fit, 1), least(js.load_fit, 200))
"""
"""Calls of a process that has imported the package: the first, and the best of many."""

CALL_TARGETS = {"first step_time": 0.5, "step_time": 1e-3, "first load_fit": None, "load_fit": 1e-3}
"""What `CALLS` prints, and the longest times [s]."""


def repeated_runs(folder: Path) -> Path:
    """A table of `ROWS` measured runs: those of a shipped one again and again, with step times that differ a little."""
    with (ROOT / "data" / "runs" / "mosaic_llm_foundry.csv").open(encoding="utf-8", newline="") as shipped:
        runs = [run for run in csv.DictReader(shipped) if run["step_time_s"]]
    table, draw = folder / "repeated_runs.csv", random.Random(0)
    with table.open("w", encoding="utf-8", newline="") as written:
        writer = csv.DictWriter(written, runs[0])
        writer.writeheader()
        for row in range(ROWS):
            run = runs[row % len(runs)]
            time = float(run["step_time_s"]) * draw.lognormvariate(0.0, SPREAD)
            writer.writerow({**run, "step_time_s": f"{time:.5g}"})
    return table


def finished(arguments: list[str], cache: Path) -> tuple[float, float, str]:
    """Time of one process of Python, and of all processors together [s]; what it printed.

    Raises:
        SystemExit: the process failed.
    """
    environment = os.environ | {"JAXSCALE_CACHE": str(cache)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, *arguments], capture_output=True, env=environment, text=True)
    taken = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}: {done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return taken, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def print_command(name: str, arguments: list[str], cache: Path, repeats: int) -> None:
    """Time a command and print a line."""
    cold, *_ = finished(["-m", "jaxscale", *arguments], cache)
    warm, processors, _ = min(finished(["-m", "jaxscale", *arguments], cache) for _ in range(repeats))
    target = f"{TARGETS[name]:12.1f}" if name in TARGETS else ""
    print(f"{name:18s}{cold:10.2f}{warm:10.2f}{processors:19.2f}{target}", flush=True)


def print_calls(cache: Path, repeats: int) -> None:
    """Time calls and print a line for each."""
    texts = [finished(["-c", CALLS], cache)[-1] for _ in range(1 + repeats)]
    cold, *warm = [[float(word) for word in text.split()] for text in texts]
    for place, (name, target) in enumerate(CALL_TARGETS.items()):
        best = min(times[place] for times in warm)
        shown = "" if target is None else f"{target:12.4f}"
        print(f"{name:18s}{cold[place]:10.4f}{best:10.4f}{'':19s}{shown}")


def main() -> None:
    names = [*COMMANDS, "calls"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="warm runs, of which the best counts")
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="what to time")
    options = parser.parse_args()
    print(f"{'command':18s}{'cold [s]':>10s}{'warm [s]':>10s}{'of all processors':>19s}{'target [s]':>12s}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table = repeated_runs(folder) if "predict-table" in options.only else None
        for command in options.only:
            if command == "calls":
                print_calls(folder / command, options.repeats)
            else:
                arguments = COMMANDS[command].format(table=table).split()
                print_command(command, arguments, folder / command, options.repeats)


if __name__ == "__main__":
    main()
