"""How often the search by gradient finds the best plan: 200 random problems against all valid plans.

Run from the repository: `python fits/choose_study.py` (some minutes on 2 cores). Models of 1e9 to 2e12 parameters,
dense and mixtures of experts, on 8 to 65,536 chips of six kinds; the seed is fixed. Writes fits/choose_study.csv, a row
for each problem, and fits/choose_study.md.
"""

import argparse
import csv
import math
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from markdown_text import markdown_table

from jaxscale.base.arrays import number
from jaxscale.calibration.memory_limit import memory_limit
from jaxscale.calibration.record import Fit, load_fit
from jaxscale.designs.integer_designs import row_of, whole_shapes
from jaxscale.hardware.catalogue import cluster
from jaxscale.models import model
from jaxscale.models.transformer import Transformer, n_params
from jaxscale.plans.enumerate import enumerate_plans, within_domains
from jaxscale.plans.relaxed_search import search_plans
from jaxscale.plans.score import FoundPlans, PlanTask, score_plans

FOLDER = Path(__file__).parent
CHIPS = ("a100-80gb", "h100-80gb", "b200", "mi300x", "tpu-v5p", "gb200")
TEMPLATES = ("llama3-8b", "gpt3-175b", "mixtral-8x7b", "deepseek-v3")
BYTES_PER_PARAM = 20.0
"""Chips are drawn from enough to hold this much per parameter: fewer hold no plan at all [byte]."""

BATCH = 64
"""Problems that are searched at once."""


def draw_model(generator: np.random.Generator) -> tuple[str, Transformer]:
    """A catalogue model stretched to a random size and aspect ratio, in whole numbers."""
    name = str(generator.choice(TEMPLATES))
    template = model(name)
    wanted, ratio = 10 ** generator.uniform(9.0, math.log10(2e12)), 10 ** generator.uniform(1.6, 2.3)
    scale = (wanted / number(n_params(template))) ** (1.0 / 3.0)
    shift = math.sqrt(ratio / number(template.d_model / template.n_layers))
    width, depth = number(template.d_model) * scale * shift, number(template.n_layers) * scale / shift**2
    # Whole depth with many divisors, as published models have.
    depth = 4 * max(round(depth / 4), 1)
    sizes = (1024 * max(round(width / 1024), 1), depth, 128, 8)
    return name, row_of(whole_shapes(template, *(np.full(1, size) for size in sizes)), 0)


def draw_problem(generator: np.random.Generator, fit: Fit) -> tuple[dict[str, Any], PlanTask]:
    """A model, a cluster that may hold it, and a batch."""
    name, shape = draw_model(generator)
    gpu = str(generator.choice(CHIPS))
    memory_bytes = number(cluster(gpu, 8).chip.hbm_bytes)
    params = number(n_params(shape))
    least = max(3.0, math.ceil(math.log2(BYTES_PER_PARAM * params / memory_bytes)))
    n_chips = int(2 ** generator.integers(least, 17))
    if n_chips > 8 and generator.random() < 0.25:
        n_chips = 3 * n_chips // 4
    batch = int(2 ** generator.integers(5, 14)) * int(generator.choice([1, 3]))
    machine, levels = cluster(gpu, n_chips), {"gpu": gpu, "precision": "bf16"}
    limit = memory_limit(memory_bytes, fit.memory_limit(levels), 0.1)
    said = {"template": name, "params": f"{params:.4g}", "n_layers": round(number(shape.n_layers))}
    said |= {"d_model": round(number(shape.d_model)), "gpu": gpu, "n_gpus": n_chips, "batch": batch}
    return said, PlanTask(shape, machine, batch, fit.coefficients(levels), limit, within_domains(None, machine))


def exhaustive(problem: PlanTask) -> tuple[float, int, float]:
    """Least step time of all valid plans that fit, how many plans there are, and the seconds it took."""
    start = time.perf_counter()
    table = enumerate_plans(problem.model, problem.n_chips, problem.batch, problem.space)
    scores = score_plans(problem.model, table, problem.cluster, problem.coefficients)
    fitting = scores.step_time[scores.memory <= problem.memory_limit]
    return float(fitting.min(initial=np.inf)), len(table), time.perf_counter() - start


def draw(count: int, seed: int) -> list[tuple[dict[str, Any], PlanTask]]:
    """Problems for which some plan fits, with the best of all plans."""
    generator, fit, drawn = np.random.default_rng(seed), load_fit(), []
    while len(drawn) < count:
        said, problem = draw_problem(generator, fit)
        best, plans, seconds = exhaustive(problem)
        if np.isfinite(best):
            drawn.append(({**said, "plans": plans, "best_s": best, "exhaustive_s": round(seconds, 3)}, problem))
            print(f"{len(drawn)} of {count}: {plans} plans, {seconds:.1f} s", file=sys.stderr, flush=True)
    return drawn


def answer(said: dict[str, Any], found: FoundPlans) -> dict[str, Any]:
    """The row of a problem."""
    seconds = float(found.scores.step_time[found.best]) if found.fits.any() else math.inf
    figures = {"found_s": seconds, "excess": seconds / said["best_s"] - 1.0, "feasible": bool(found.fits.any())}
    residual = found.relaxed.residual
    return {**said, **figures, "scored": found.searched, "kkt": f"{residual:.1e}", "certified": found.relaxed.converged}


def summary(rows: list[dict[str, Any]], search_seconds: float, work: float) -> str:
    """The table of fits/choose_study.md."""
    excess = np.asarray([row["excess"] for row in rows])
    lines = [
        ("problems", f"{len(rows)}"),
        ("within 1 % of the best of all valid plans", f"{100.0 * np.mean(excess <= 0.01):.1f} %"),
        ("exactly the best", f"{100.0 * np.mean(excess <= 1e-6):.1f} %"),
        ("largest excess", f"{100.0 * excess.max():.2f} %"),
        ("without a plan that fits, though one does", f"{sum(not row['feasible'] for row in rows)}"),
        ("continuous optimum certified (KKT <= 1e-6)", f"{100.0 * np.mean([row['certified'] for row in rows]):.1f} %"),
        (
            "search, seconds for a problem, compiled: elapsed, of a processor",
            f"{search_seconds / len(rows):.2f}, {work / len(rows):.2f}",
        ),
        ("all plans, seconds for a problem, median", f"{np.median([row['exhaustive_s'] for row in rows]):.2f}"),
        (
            "plans of a problem, median and largest",
            f"{np.median([row['plans'] for row in rows]):,.0f}, {max(row['plans'] for row in rows):,}",
        ),
        ("plans scored by the search, median", f"{np.median([row['scored'] for row in rows]):,.0f}"),
    ]
    head = "Plans found by gradient and a window of whole numbers, against all valid plans (`fits/choose_study.py`)."
    return f"{head}\n\n{markdown_table(('', ''), lines)}\n"


def main() -> None:
    """Draw the problems, search them, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    drawn = draw(arguments.count, arguments.seed)
    search_plans([problem for _, problem in drawn[:1]])  # compiles
    rows, seconds, work = [], 0.0, 0.0
    for start in range(0, len(drawn), BATCH):
        batch = drawn[start : start + BATCH]
        clock, busy = time.perf_counter(), time.process_time()
        found = search_plans([problem for _, problem in batch])
        seconds += time.perf_counter() - clock
        work += time.process_time() - busy
        rows += [answer(said, one) for (said, _), one in zip(batch, found, strict=True)]
    with (FOLDER / "choose_study.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)
    text = summary(rows, seconds, work)
    (FOLDER / "choose_study.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
