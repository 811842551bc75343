"""Scores every valid plan of GPT-3 175B on 1,024 A100-80GB at a global batch of 1,536 and prints count and time.

Run: python benchmarks/plans.py
"""

import time
from collections.abc import Callable
from typing import Any

from jaxscale.calibration.coefficients import prior_medians
from jaxscale.hardware.catalogue import cluster
from jaxscale.models import model
from jaxscale.plans.enumerate import PlanSpace, enumerate_plans
from jaxscale.plans.plan import SCHEDULES
from jaxscale.plans.score import score_plans

N_CHIPS, BATCH = 1024, 1536
SPACES = {
    "default": PlanSpace(),
    "with zero-bubble": PlanSpace(schedule=SCHEDULES),
    "any chunk sizes": PlanSpace(schedule=SCHEDULES, whole_chunks=False),
}


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    return function(), time.perf_counter() - start


def main() -> None:
    gpt3, a100s, coefficients = model("gpt3-175b"), cluster("a100-80gb", N_CHIPS), prior_medians()
    tables = {
        name: timed(lambda space=space: enumerate_plans(gpt3, N_CHIPS, BATCH, space)) for name, space in SPACES.items()
    }
    _, compiling = timed(lambda: score_plans(gpt3, tables["default"][0], a100s, coefficients))
    print(f"first call, compiling: {compiling:.2f} s")
    for name, (table, listing) in tables.items():
        scoring = min(timed(lambda table=table: score_plans(gpt3, table, a100s, coefficients))[1] for _ in range(3))
        rate = len(table) / scoring / 1e6
        print(
            f"{name}: {len(table):,} plans, listed in {listing:.3f} s, scored in {scoring:.3f} s ({rate:.2f} million/s)"
        )


if __name__ == "__main__":
    main()
