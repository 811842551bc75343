"""How right jaxscale is for a stranger: each stack left out, alone and with a few of its runs; writes evaluation.csv.

Run from the repository: `OPENBLAS_NUM_THREADS=1 python fits/evaluate.py` (an hour and more on 2 cores). The
centre of the calibration is fitted to all runs but those of one stack, for each stack in turn, and predicts the runs of
that stack: as they are, and after a fit of some of them drawn at random. The structure and the priors of the
calibration are chosen by these errors. `fits/scoreboard.py` shows them.
"""

import csv
import itertools
from pathlib import Path

import jax
import numpy as np
from calibrate import load_tables
from left_out import log_residuals
from stages import is_usual, kinds_of_unknown, quantile_of_stacks, say, solve_centre, tells_width, without_stacks

from jaxscale.calibration.levels import Levels
from jaxscale.calibration.record import Fit
from jaxscale.fitting.fitting import fit_measured
from jaxscale.fitting.multistart import one_blas_thread
from jaxscale.runs.arrays import Measured, concatenate

FOLDER = Path(__file__).parent

SHOTS = (1, 3, 8, 16)
"""Runs of a new stack that are fitted [1]."""

N_DRAWS = 1
"""Random draws of those runs; the median over stacks is what counts [1]."""

LEAST_OTHERS = 8
"""Runs that a stack must have beyond the fitted ones, to tell how well these stand for it [1]."""

REPORTS = "public_reports"


def percent(residuals: np.ndarray) -> float:
    """Median absolute percentage error of log residuals [%]."""
    return float(100.0 * np.median(np.abs(np.expm1(residuals))))


def after_few_runs(runs: Measured, start: Fit, n_shots: int) -> tuple[float, float] | None:
    """Median error of the other runs of a stack after a fit of a few [%], and the worst ratio to that before it [1]."""
    if len(runs.batch) < n_shots + LEAST_OTHERS:
        return None
    errors, ratios = [], []
    for seed in range(N_DRAWS):
        order = np.random.default_rng(seed).permutation(len(runs.batch))
        shots, others = runs.take(np.sort(order[:n_shots])), runs.take(np.sort(order[n_shots:]))
        fitted = fit_measured(shots, start=start, n_starts=1).fit
        before, after = (percent(log_residuals(others, fit)[:, 0]) for fit in (start, fitted))
        errors.append(after)
        ratios.append(after / before)
    return float(np.mean(errors)), max(ratios)


def row_of(name: str, runs: Measured, residuals: np.ndarray, centre: Fit) -> dict[str, float | str]:
    """Errors of one stack left out, before and after a few of its runs."""
    logs, has_peak = residuals[:, 0], np.isfinite(np.asarray(runs.peak_memory))
    row: dict[str, float | str] = {
        "stack": name,
        "n": len(logs),
        "median": percent(logs),
        "bias": 100.0 * float(np.expm1(np.median(logs))),
        "after_pace": percent(logs - np.median(logs)),
        "memory": percent(residuals[has_peak, 1]),
    }
    for n_shots in SHOTS:
        found = None if name.startswith(REPORTS) else after_few_runs(runs, centre, n_shots)
        row[f"after_{n_shots}"], row[f"worst_{n_shots}"] = found or (float("nan"), float("nan"))
    return row


def covered(residuals: np.ndarray, levels: Levels) -> tuple[np.ndarray, np.ndarray]:
    """Whether each run is inside the interval that stacks of its kind but its own make, and its half-width [row]."""
    errors, widths = np.abs(residuals), np.full(len(residuals), np.nan)
    stack, kind, tells = levels.column("stack"), kinds_of_unknown(levels), tells_width(levels)
    for name, group, told in set(zip(stack.tolist(), kind.tolist(), tells.tolist(), strict=True)):
        own, others = (stack == name) & (kind == group), (stack != name) & (kind == group)
        # Of software that may launch each kernel the width is that of all.
        others &= tells if told else True
        widths[own & (tells == told)] = quantile_of_stacks(errors[others], stack[others])
    return errors <= widths, widths


def ordered_pairs(runs: Measured, residuals: np.ndarray, least: float = 0.03) -> tuple[int, int]:
    """Pairs of plans of one report for one model, chip and cluster whose measured times differ, and those put right."""
    batch, levels = runs.batch, runs.levels
    shape = (batch.model.n_layers, batch.model.d_model, batch.model.seq_len, batch.cluster.n_chips)
    keys = zip(levels.column("source"), levels.column("gpu"), *(np.asarray(value) for value in shape), strict=True)
    groups: dict[tuple, list[int]] = {}
    for place, key in enumerate(keys):
        groups.setdefault(tuple(map(str, key)), []).append(place)
    speed = np.log(np.asarray(runs.step_time)) - np.log(np.asarray(batch.plan.global_batch_size_seqs))
    right = told = 0
    for members in groups.values():
        for one, other in itertools.combinations(members, 2):
            measured = speed[one] - speed[other]
            if abs(measured) > np.log1p(least):
                told += 1
                right += bool(np.sign(measured) == np.sign(measured + residuals[one] - residuals[other]))
    return told, right


def totals(runs: Measured, residuals: np.ndarray, rows: list[dict[str, float | str]]) -> dict[str, float]:
    """Figures over all stacks: of those of tables, each counted once, and of public reports, each run counted once.

    Args:
        runs: of all stacks [row].
        residuals: log residuals of step time under the centre that never saw the stack of a run [row].
        rows: errors of each stack.

    Returns:
        Figures by name [%], widths and counts [1].
    """
    stack = runs.levels.column("stack")
    inside, widths = covered(residuals, runs.levels)
    own = [row for row in rows if not str(row["stack"]).startswith(REPORTS)]
    values = {key: np.asarray([row[key] for row in own], dtype=float) for key in own[0] if key != "stack"}
    without_nanotron = np.asarray(["nanotron" not in str(row["stack"]) for row in own])
    found = {
        "stacks": len(own),
        "stacks_median": np.median(values["median"]),
        "stacks_mean": np.mean(values["median"]),
        "stacks_mean_without_nanotron": np.mean(values["median"][without_nanotron]),
        "stacks_after_pace": np.median(values["after_pace"]),
        "stacks_covered": 100.0 * np.mean([inside[stack == row["stack"]].mean() for row in rows]),
        "interval_ratio": np.exp(2.0 * np.median([widths[stack == row["stack"]].mean() for row in rows])),
        **{f"stacks_after_{n}": np.nanmedian(values[f"after_{n}"]) for n in SHOTS},
        **{f"worst_after_{n}": np.nanmax(values[f"worst_{n}"]) for n in SHOTS},
    }
    reports = np.asarray([name.startswith(REPORTS) for name in stack])
    mixture = reports & ~runs.levels.missing("mixture")
    told, right = ordered_pairs(runs.take(reports), residuals[reports])
    return found | {
        "reports": int(reports.sum()),
        "reports_median": percent(residuals[reports]),
        "reports_dense": percent(residuals[reports & ~mixture]),
        "reports_mixtures": percent(residuals[mixture]),
        "reports_too_fast": 100.0 * np.mean(residuals[reports] < 0.0),
        "reports_covered": 100.0 * np.mean(inside[reports]),
        "reports_pairs": told,
        "reports_pairs_right": 100.0 * right / told,
    }


def write(name: str, rows: list[dict[str, float | str]]) -> None:
    """Write rows beside this script as CSV, figures to three digits."""
    with (FOLDER / name).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({key: cell if isinstance(cell, str) else f"{cell:.3g}" for key, cell in row.items()})


@one_blas_thread()
def main() -> None:
    """Leave every stack out in turn."""
    jax.config.update("jax_enable_x64", True)
    centre = solve_centre(concatenate([table for table, _ in load_tables().values()]))
    n, rows = len(centre.runs.batch), []
    # Runs of a faulty release and composed ones stay out of the errors, as they count little in the fit.
    usual = is_usual(centre.runs.levels)
    residuals = np.full((n, 2), np.nan)
    for name, own, solution in without_stacks(centre):
        residuals[own] = np.asarray(solution.log_residuals)[:n][own]
        judged = own & usual
        start = centre.record(~own, solution)
        rows.append(row_of(name, centre.runs.take(judged), residuals[judged], start))
        say("  " + ", ".join(f"{key} {cell:.3g}" for key, cell in list(rows[-1].items())[1:] if np.isfinite(cell)))
    figures = totals(centre.runs.take(usual), residuals[usual, 0], rows)
    write("evaluation.csv", rows)
    write("evaluation_totals.csv", [{"figure": name, "value": value} for name, value in figures.items()])
    print("\n".join(f"{name}: {value:.3g}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
