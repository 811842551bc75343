"""Seconds of `jaxscale` commands, each in a fresh process: with an empty cache of compiled programs, and again.

Run `python benchmarks/commands.py` on an otherwise idle machine; `--repeats 3` takes the best of three warm runs, and
`--only predict plan` a choice of commands. The process is counted whole, from the start of the interpreter to its end;
seconds of all processors, beside, hardly depend on what else the machine does.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TEN_ROWS = 10
"""Rows of the table that `predict` reads [row]."""

COMMANDS = {
    "help": ("--help",),
    "predict": ("predict", "{table}", "--out", "{out}"),
    "plan": (*"plan --model llama3-70b --gpu h100-80gb --n-gpus 512 --global-batch 1024".split(), "--seq-len", "8192"),
    "plan-deepseek-v3": "plan --model deepseek-v3 --gpu h100-80gb --n-gpus 2048 --global-batch 15360".split(),
    "shape": tuple("shape --gpu h100-80gb --n-gpus 1024 --days 30".split()),
    "limits": ("limits",),
    "trends": ("trends",),
}
"""Command lines by name."""

TARGETS = {"predict": 1.8, "plan": 2.5, "plan-deepseek-v3": 6.0, "shape": 7.0, "limits": 3.0, "trends": 3.5}
"""Longest times with a warm cache on two idle cores [s]."""


def ten_rows(folder: Path) -> Path:
    """A table of the first rows of a shipped one."""
    shipped = (ROOT / "data" / "runs" / "mosaic_llm_foundry.csv").read_text(encoding="utf-8").splitlines()
    table = folder / "ten_rows.csv"
    table.write_text("\n".join(shipped[: TEN_ROWS + 1]) + "\n", encoding="utf-8")
    return table


def seconds(arguments: list[str], cache: Path) -> tuple[float, float]:
    """Time of one command in a process of its own, and of all processors together [s].

    Raises:
        SystemExit: the command failed.
    """
    environment = os.environ | {"XDG_CACHE_HOME": str(cache)}
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-m", "jaxscale", *arguments], capture_output=True, env=environment)
    taken = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"jaxscale {' '.join(arguments)}: {done.stderr.decode()}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return taken, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2, help="warm runs, of which the best counts")
    parser.add_argument("--only", nargs="+", choices=COMMANDS, default=list(COMMANDS), help="commands to time")
    options = parser.parse_args()
    print(f"{'command':18s}{'cold [s]':>10s}{'warm [s]':>10s}{'of all processors':>19s}{'target [s]':>12s}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words = {"table": ten_rows(folder), "out": folder / "predicted.csv"}
        for command in options.only:
            arguments = [word.format(**words) for word in COMMANDS[command]]
            cache = folder / command
            cold, _ = seconds(arguments, cache)
            warm, processors = min(seconds(arguments, cache) for _ in range(options.repeats))
            target = f"{TARGETS[command]:12.1f}" if command in TARGETS else ""
            print(f"{command:18s}{cold:10.2f}{warm:10.2f}{processors:19.2f}{target}", flush=True)


if __name__ == "__main__":
    main()
