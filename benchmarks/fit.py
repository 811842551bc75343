"""How long a fit of a table from 32 starts takes: the first, which compiles, and one more.

Run `python benchmarks/fit.py [TABLE]`. Prints one line for each: seconds until the best fit is found, with the
cross-validation, and for the intervals by profile likelihood. No cache of compiled code is used.
"""

import sys
import time

import jaxscale as js
from jaxscale.base.documents import data_path

STARTS = 32
"""Starting points of the search [1]."""

TABLE = "vtrain_a100_ground_truth"


def timed(runs: js.Runs) -> str:
    """Fit a table, and say how long each part took."""
    start, found = time.perf_counter(), []

    def note(text: str) -> None:
        if "fold 1 " in text:
            found.append(time.perf_counter() - start)

    result = js.fit(runs, start=None, n_starts=STARTS, progress=note)
    validated = time.perf_counter() - start
    _ = result.intervals
    profiled = time.perf_counter() - start - validated
    return (
        f"{result.n} runs with {len(result.effects)} effects: best of {STARTS} starts after {found[0]:.1f} s, "
        f"cross-validated after {validated:.1f} s; intervals in {profiled:.1f} s more"
    )


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else TABLE
    runs = js.read_runs(data_path("runs") / f"{name}.csv")
    for when in ("first fit", "one more"):
        print(f"{when} of {timed(runs)}", flush=True)


if __name__ == "__main__":
    main()
