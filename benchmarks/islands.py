"""Time of a thousand fleets in every mode, of the choice for an example fleet, and of exact solvers.

Run: python benchmarks/islands.py [number of fleets]
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import jaxscale as js
from jaxscale.base.arrays import stacked
from jaxscale.islands.choose_fleet import best_fleet_plan
from jaxscale.islands.fleet import read_fleet, uniform_links
from jaxscale.islands.island_plans import pace_of_rates
from jaxscale.islands.mode_scores import with_scaled_links
from jaxscale.islands.modes import IslandJob, survey_fleets
from jaxscale.islands.pipeline_split import best_cut, best_order

INNER_STEPS = np.geomspace(1.0, 1000.0, 31)
"""Inner steps that are compared [1]."""


def timed(name: str, work: Callable[[], Any], repeats: int = 3) -> None:
    """Print the first time and the shortest of some further ones [s]."""
    times = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        jax.block_until_ready(work())
        times.append(time.perf_counter() - started)
    print(f"{name}: first {times[0]:.2f} s, then {min(times[1:]):.4f} s")


def fleets(count: int, islands: int) -> IslandJob:
    """Jobs over links of many bandwidths, every leaf [fleet]."""
    rates = np.linspace(2e5, 8e5, islands)
    pace = pace_of_rates(rates, 4096.0, np.full(islands, 0.05), granule=np.full(islands, 16.0))
    links = jax.tree.map(np.asarray, uniform_links(islands, 1.25e9, 0.03))
    job = jax.tree.map(np.asarray, IslandJob(pace, links, 7e9, 32.0, 4096.0, 1024.0))
    return stacked([with_scaled_links(job, factor) for factor in np.geomspace(1e-3, 1e3, count)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=1000)
    count = parser.parse_args().count
    jax.config.update("jax_enable_x64", True)
    for islands in (2, 4, 8):
        jobs = fleets(count, islands)
        name = f"{count} fleets of {islands} islands, 4 modes, {len(INNER_STEPS)} inner steps"
        timed(name, lambda jobs=jobs: survey_fleets(jobs, INNER_STEPS))
    draws = np.random.default_rng(0)
    timed("order of 14 islands", lambda: best_order(draws.uniform(0.1, 1.0, (14, 14))).cost)
    timed("cut of 128 layers over 16 islands", lambda: best_cut(np.ones((16, 128)), np.full(15, 0.1), 32.0).time)
    stated = read_fleet(js.data_path("fleets/four_sites.toml"))
    cells = [{"gpu": chip} for chip in stated.chips]
    model = js.model("llama2-7b")
    timed("choice for four sites", lambda: best_fleet_plan(model, stated.fleet, 1024, cells=cells).best.days, repeats=1)


if __name__ == "__main__":
    main()
