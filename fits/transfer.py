"""Transfer to a software stack that was never fitted, with none and with a few of its runs; writes fits/transfer.csv.

Run from the repository after `python fits/calibrate.py`: `python fits/transfer.py` (about 5 minutes on 2 cores). For
each setup, the pooled fit is refitted without it. Its runs are predicted as they are (zero-shot), and again after a fit
of eight of them, drawn at random, that starts from the refitted coefficients (few-shot).
"""

import csv
import sys

import jax
import jax.numpy as jnp
import numpy as np
from calibrate import FOLDER, load_tables
from left_out import log_residuals, without

from jaxscale.calibration.record import Fit
from jaxscale.calibration.seen import software_stack
from jaxscale.calibration.store import load_fit
from jaxscale.fit.fit_problem import fit_problem, parameters_of
from jaxscale.fit.fitting import fit_measured
from jaxscale.runs.arrays import Measured, concatenate

N_SHOTS = 8
N_DRAWS = 6
MIN_RUNS = 16


def errors(measured: Measured, fit: Fit) -> np.ndarray:
    """Absolute percentage error of step time of each run [%]."""
    return 100.0 * np.abs(np.expm1(log_residuals(measured, fit)[:, 0]))


def few_shot(measured: Measured, start: Fit) -> list[tuple[float, float]]:
    """Median error of the other runs before and after a fit of a few, for each draw [%]."""
    found = []
    for seed in range(N_DRAWS):
        order = np.random.default_rng(seed).permutation(len(measured.batch))
        shots, others = measured.take(np.sort(order[:N_SHOTS])), measured.take(np.sort(order[N_SHOTS:]))
        fitted = fit_measured(shots, start=start, n_starts=1).fit
        found.append((float(np.median(errors(others, start))), float(np.median(errors(others, fitted)))))
    return found


def main() -> None:
    """Leave every setup out in turn."""
    jax.config.update("jax_enable_x64", True)
    tables = load_tables()
    everything = concatenate([table for table, _ in tables.values()])
    problem, effects = fit_problem(everything, load_fit("prior"))
    shipped = jnp.asarray(parameters_of(load_fit(), problem, effects))
    setups = np.asarray([software_stack(source) for source in everything.levels.column("source")])
    rows = []
    for setup in sorted(set(setups)):
        inside = setups == setup
        start = without(everything, problem, effects, ~inside, shipped)
        runs = everything.take(inside)
        zero = errors(runs, start)
        row = {"setup": setup, "n": int(inside.sum()), "zero_shot_mape": np.mean(zero), "zero_shot": np.median(zero)}
        if len(zero) >= MIN_RUNS:
            draws = few_shot(runs, start)
            row["few_shot"] = np.mean([after for _, after in draws])
            row["worst_ratio"] = max(after / before for before, after in draws)
        rows.append(row)
        print({key: value if isinstance(value, str | int) else round(float(value), 2) for key, value in row.items()})
        sys.stdout.flush()
    with (FOLDER / "transfer.csv").open("w", newline="", encoding="utf-8") as file:
        columns = ("setup", "n", "zero_shot_mape", "zero_shot", "few_shot", "worst_ratio")
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({k: v if isinstance(v, str | int) else f"{v:.2f}" for k, v in row.items()})


if __name__ == "__main__":
    main()
