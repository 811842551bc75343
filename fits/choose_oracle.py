"""The continuous search for a plan against an independent solver: scipy's SLSQP on 20 random problems.

Run from the repository: `python fits/choose_oracle.py` (a minute). SLSQP starts from two random points in every kind of
sharding and recomputation; the least step time within the bounds counts. Writes fits/choose_oracle.md.
"""

import math
from pathlib import Path

import jax
import numpy as np
from choose_study import draw
from markdown_text import markdown_table
from scipy.optimize import minimize

from jaxscale.optimise.interior_point import start_points
from jaxscale.optimise.problems import Problems
from jaxscale.plans.relaxed_search import (
    PLAN_COORDINATES,
    PLAN_QUANTITIES,
    PlanProblem,
    plan_goals,
    relax_plans,
    relaxed_problems,
)
from jaxscale.plans.score import PlanTask

SIZE, KEPT = len(PLAN_COORDINATES), [1, 2]
"""Coordinates of a plan; bounded quantities."""

NEAR = 1e-3
"""Difference of log step time up to which two answers are the same [1]."""

ALLOWED = 1e-6
"""Violation up to which an answer counts [1]."""


def slsqp(task: PlanTask, n_starts: int) -> float:
    """Least log step time that SLSQP finds within the bounds; infinite where it finds none."""
    starts = start_points(n_starts, SIZE, seed=1)
    return min(_least(task, problem, start) for problem in relaxed_problems(task) for start in starts)


def _least(task: PlanTask, problem: PlanProblem, start: np.ndarray) -> float:
    problems = Problems.of([problem])
    upper = plan_goals([task]).upper[0]
    known: dict[bytes, tuple[np.ndarray, np.ndarray]] = {}

    def both(point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if point.tobytes() not in known:
            values, slopes = problems.jacobian(np.clip(point, 0.0, 1.0)[None], range(len(PLAN_QUANTITIES)))
            known[point.tobytes()] = values[0], slopes[0]
        return known[point.tobytes()]

    found = minimize(
        lambda u: both(u)[0][0],
        start,
        jac=lambda u: both(u)[1][0],
        bounds=[(0.0, 1.0)] * SIZE,
        constraints=[{"type": "ineq", "fun": lambda u: (upper - both(u)[0])[KEPT], "jac": lambda u: -both(u)[1][KEPT]}],
        method="SLSQP",
        options={"maxiter": 200, "ftol": 1e-10},
    )
    return float(found.fun) if (both(found.x)[0] - upper)[KEPT].max() <= ALLOWED else math.inf


def summary(ours: np.ndarray, theirs: np.ndarray, certified: np.ndarray) -> str:
    """The table of fits/choose_oracle.md, from log step times [problem]."""
    excess = ours - theirs
    lines = [
        ("problems", f"{len(ours)}"),
        ("continuous optimum certified (KKT <= 1e-6)", f"{certified.sum()}"),
        ("equal within 0.1 %", f"{(np.abs(excess) <= NEAR).sum()}"),
        ("SLSQP better by more than 0.1 %", f"{(excess > NEAR).sum()}"),
        ("SLSQP worse by more than 0.1 %, or without an answer", f"{(excess < -NEAR).sum()}"),
        ("SLSQP better by at most", f"{100.0 * max(float(excess.max()), 0.0):.2g} %"),
    ]
    head = "Continuous optimum of a plan against scipy's SLSQP, two starts of every family (`fits/choose_oracle.py`)."
    return f"{head}\n\n{markdown_table(('', ''), lines)}\n"


def main() -> None:
    """Solve the problems both ways and write how they compare."""
    jax.config.update("jax_enable_x64", True)
    problems = [problem for _, problem in draw(20, 0)]
    optima = [found[0] for found in relax_plans(problems)]
    ours = np.log([optimum.step_time for optimum in optima])
    theirs = np.asarray([slsqp(problem, 2) for problem in problems])
    for optimum, excess in zip(optima, ours - theirs, strict=True):
        print(f"KKT {optimum.residual:.1e}, ln of our time over SLSQP's {excess:+.1e}")
    text = summary(ours, theirs, np.asarray([optimum.converged for optimum in optima]))
    (Path(__file__).parent / "choose_oracle.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
