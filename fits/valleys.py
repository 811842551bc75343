"""How much left-out errors depend on where their refits begin; writes fits/valleys.csv.

Run from the repository after `python fits/calibrate.py`: `OPENBLAS_NUM_THREADS=1 python fits/valleys.py` (about 20
minutes on 2 cores). The refits of the calibration are polished from where the fit of all runs ended, which may keep
them in a valley that the runs left out have helped to choose. Here every refit begins at the centre of the priors, as
if nothing had ever been fitted; it may end in a poorer valley for want of luck, so the truth lies between the two.
"""

import csv
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from typing import NamedTuple

import jax
import numpy as np
from calibrate import FOLDER, load_tables, schemes
from left_out import fit_of, log_residuals

from jaxscale.calibration.store import load_fit
from jaxscale.fit.fit_problem import fit_problem
from jaxscale.fit.multistart import random_starts, solve
from jaxscale.fit.objective import FitProblem, reweighted
from jaxscale.fit.parameters import Effect
from jaxscale.runs.arrays import Measured, concatenate
from jaxscale.runs.measured import fold_of, groups_of

N_FOLDS = 5


class Whole(NamedTuple):
    """All measured runs and the problem of fitting them.

    Attributes:
        measured: the runs.
        tables: table of each run.
        problem: of fitting them from the priors.
        effects: its effects in parameter order.
        folds: fold of each run by scheme, as the columns of fits/residuals.csv are called.
    """

    measured: Measured
    tables: np.ndarray
    problem: FitProblem
    effects: tuple[Effect, ...]
    folds: dict[str, np.ndarray]


@cache
def whole() -> Whole:
    """All runs, once for each process."""
    jax.config.update("jax_enable_x64", True)
    tables = load_tables()
    measured = concatenate([table for table, _ in tables.values()])
    names = np.asarray([name for name, (_, index) in tables.items() for _ in index])
    folds = {
        "five_fold": fold_of(groups_of(measured), N_FOLDS),
        "left_out_model": schemes(measured)["model"],
    }
    return Whole(measured, names, *fit_problem(measured, load_fit("prior")), folds)


def residuals_without(scheme: str, fold: int) -> np.ndarray:
    """Log residuals of step time of the runs of a fold, by a fit of the others from the centre of the priors [row]."""
    runs = whole()
    left_out = runs.folds[scheme] == fold
    start = random_starts(jax.random.key(0), 1, runs.problem.parametrisation.n_parameters)
    solution = solve(reweighted(runs.problem, ~left_out), start)
    fitted = fit_of(runs.measured.take(~left_out), runs.problem, runs.effects, solution)
    return log_residuals(runs.measured, fitted)[left_out, 0]


def main() -> None:
    """Refit every fold of both schemes, two at a time."""
    runs = whole()
    tasks = [(scheme, int(fold)) for scheme, folds in runs.folds.items() for fold in np.unique(folds)]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        found = dict(zip(tasks, pool.map(residuals_without, *zip(*tasks, strict=True)), strict=True))
    rows = []
    for scheme, folds in runs.folds.items():
        errors = np.zeros(len(folds))
        for fold in np.unique(folds):
            errors[folds == fold] = 100.0 * np.abs(np.expm1(found[scheme, int(fold)]))
        parts = {name: runs.tables == name for name in sorted(set(runs.tables))} | {"every run": errors >= 0.0}
        rows += [
            (scheme, name, f"{errors[part].mean():.2f}", f"{np.median(errors[part]):.2f}")
            for name, part in parts.items()
        ]
    with (FOLDER / "valleys.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("scheme", "table", "mape", "median_ape"))
        writer.writerows(rows)


if __name__ == "__main__":
    main()
