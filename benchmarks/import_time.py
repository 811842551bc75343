"""Time of the import and of the first prediction, each in a fresh interpreter without a compilation cache.

Run `python benchmarks/import_time.py`. The first prediction is the step time of Llama 3 70B on 512 H100, compilation
included. The best of several interpreters counts: a busy machine only adds.
"""

import argparse
import subprocess
import sys
import time

TARGETS = {"import": 1.5, "first prediction": 5.0}
"""Longest times on 2 cores [s]."""

TIMED = """
import time
start = time.perf_counter()
import jaxscale as js
imported = time.perf_counter()
plan = js.Plan(dp=16, tp=8, pp=4, n_microbatches=32, sequence_parallel=True)
arguments = (js.model("llama3-70b"), plan, js.cluster("h100-80gb", 512), js.prior_medians())
{evaluate}
print(imported - start, time.perf_counter() - imported)
"""

WAYS = {
    "eager": "float(js.step_time(*arguments).total)",
    "jit": "import jax; float(jax.jit(js.step_time)(*arguments).total)",
}


def seconds(code: str) -> tuple[float, ...]:
    """Times that a fresh interpreter prints, and its whole life [s]."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return (*(float(word) for word in done.stdout.split()), time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="interpreters of each kind; the best counts")
    repeats = parser.parse_args().repeats
    seconds("import jaxscale; print(0)")  # bytecode and file caches
    for way, evaluate in WAYS.items():
        runs = [seconds(TIMED.format(evaluate=evaluate)) for _ in range(repeats)]
        imported, first, life = (min(column) for column in zip(*runs, strict=True))
        for name, value in (("import", imported), ("first prediction", first)):
            verdict = "meets" if value <= TARGETS[name] else "misses"
            print(f"{way:6s} {name:18s} {value:6.2f} s ({verdict} {TARGETS[name]:g} s; best of {repeats})")
        print(f"{way:6s} {'whole process':18s} {life:6.2f} s")


if __name__ == "__main__":
    main()
