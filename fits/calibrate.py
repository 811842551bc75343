"""Calibrate the shipped coefficients: one fit per source and the pooled default; writes fits/results/*.toml.

Run from the repository: `OPENBLAS_NUM_THREADS=1 python fits/calibrate.py` (an hour and more on 2 cores; each of its two
processes should factorise matrices on one), then `fits/evaluate.py` and `fits/scoreboard.py`. The pooled fit has two
stages (`stages.py`). Runs are then left out in several schemes, each answered by a fit that never saw them;
fits/residuals.csv keeps every residual.
"""

import csv
import dataclasses
import hashlib
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import jax
import numpy as np
from left_out import log_residuals, without
from stages import OF_UNKNOWN, Stages, centre_scatter, solve_stages, stacks_left_out

from jaxscale.base.documents import run_tables
from jaxscale.calibration.intervals import Scatter
from jaxscale.calibration.levels import software_stack, table_of
from jaxscale.calibration.record import Fit, load_fit
from jaxscale.fitting.fit_record import Attempt, fit_record
from jaxscale.fitting.fitting import fit_measured
from jaxscale.fitting.held_out import groups_to_leave_out, scatter_by, typical
from jaxscale.fitting.memory_outcomes import with_memory_limits
from jaxscale.fitting.result import FitResult
from jaxscale.runs.arrays import Measured, classes, concatenate
from jaxscale.runs.defaults import table_facts
from jaxscale.runs.measured import fold_of, measured_runs
from jaxscale.runs.reader import read_runs

FOLDER = Path(__file__).parent
N_STARTS = 4
"""Random starts of each search; the last calibration stands beside them, so that no new one is worse for want of luck
[1]."""

N_FOLDS, N_MODEL_FOLDS = 5, 12


@cache
def load_tables() -> dict[str, tuple[Measured, np.ndarray]]:
    """Measured runs of every table and their positions in it, by source."""
    return {name: measured_runs(read_runs(path)) for name, path in run_tables().items()}


def digest(names: list[str]) -> str:
    """Hash of the tables that went into a fit."""
    contents = b"".join(run_tables()[name].read_bytes() for name in names)
    return hashlib.sha256(contents).hexdigest()[:16]


def last_fit(name: str) -> Fit | None:
    """The fit that is shipped under a name; None for a table that has none yet."""
    return load_fit(name) if (FOLDER / "results" / f"{name}.toml").is_file() else None


def schemes(everything: Measured) -> dict[str, np.ndarray]:
    """Fold of each run, by scheme; fold -1 is never left out [row]."""
    batch = everything.batch
    _, stack = np.unique([software_stack(setup) for setup in everything.levels.column("source")], return_inverse=True)
    return {
        "model": fold_of(classes((batch.model.n_layers, batch.model.d_model), []), N_MODEL_FOLDS),
        "larger": larger_fold(everything),
        "setup": stack,
    }


def largest_kept() -> dict[str, float]:
    """Chips above which runs of a table are left out to test extrapolation, by table [1]."""
    return {name: facts["larger_than"] for name, facts in table_facts().items() if "larger_than" in facts}


def larger_fold(measured: Measured) -> np.ndarray:
    """Fold 0 for the larger clusters of each source, all left out at once, -1 for the runs that stay [row]."""
    most = [largest_kept().get(table_of(setup), np.inf) for setup in measured.levels.column("source")]
    return np.where(np.asarray(measured.batch.cluster.n_chips) > np.asarray(most), 0, -1)


def left_out(result: FitResult, measured: Measured, fold: np.ndarray, name: str) -> np.ndarray:
    """Log residuals of step time and memory of each run under the fit that never saw its fold [row, 2]."""
    residuals = np.full((result.n, 2), np.nan)
    for index in sorted(set(fold) - {-1}):
        print(f"leaving out {name} {index + 1} of {fold.max() + 1}", file=sys.stderr, flush=True)
        fitted = without(measured, result.problem, result.effects, fold != index, result.solution.parameters)
        residuals[fold == index] = log_residuals(measured, fitted)[fold == index]
    return residuals


def with_novel_scatter(result: FitResult, everything: Measured, residuals: dict[str, np.ndarray]) -> FitResult:
    """Record the scatter of what a fit never saw: models, larger clusters, whole setups; by source and typical."""
    by_source = {
        kind: scatter_by("source", kind, everything, residuals[scheme])
        for kind, scheme in (("new_model", "model"), ("larger", "larger"))
    }
    found = [entry for entries in by_source.values() for entry in entries]
    found += [typical(kind, entries) for kind, entries in by_source.items()]
    found += new_source_scatter(everything, scatter_by("source", "unseen", everything, residuals["setup"]))
    novel = {entry.kind for entry in found}
    usual = [entry for entry in result.fit.scatter if entry.kind not in novel]
    return dataclasses.replace(result, fit=dataclasses.replace(result.fit, widths=(*usual, *found)))


def new_source_scatter(everything: Measured, left_out_stacks: Sequence[Scatter]) -> list[Scatter]:
    """Scatter of a new source of each framework that has several stacks, as they were left out; and the typical one."""
    stacks: dict[str, set[str]] = {}
    sources, frameworks = (everything.levels.column(kind) for kind in ("source", "framework"))
    for source, framework in zip(sources, frameworks, strict=True):
        stacks.setdefault(framework, set()).add(software_stack(source))
    shared = {framework: members for framework, members in stacks.items() if framework and len(members) > 1}
    of_framework = {
        framework: [entry for entry in left_out_stacks if software_stack(entry.level) in members]
        for framework, members in shared.items()
    }
    found = [dataclasses.replace(typical("new_source", own), level=name) for name, own in of_framework.items()]
    return [*found, typical("new_source", [entry for own in of_framework.values() for entry in own])]


def left_out_of(stages: Stages, fold: np.ndarray, name: str) -> np.ndarray:
    """Log residuals of time and memory of each run under both stages fitted without its fold [row, 2]."""
    residuals = np.full((len(fold), 2), np.nan)
    for index in sorted(set(fold) - {-1}):
        print(f"leaving out {name} {index + 1} of {fold.max() + 1}", file=sys.stderr, flush=True)
        residuals[fold == index] = stages.left_out(fold != index)[fold == index]
    return residuals


def both_stages(
    stages: Stages, five_fold: np.ndarray, of_stacks: np.ndarray, groups: np.ndarray, data_hash: str
) -> FitResult:
    """Both stages as one fit: offsets of known stacks, with the centre as the parent that answers for all others.

    Args:
        stages: both stages, solved.
        five_fold: residuals of held-out runs [row, 2].
        of_stacks: residuals of stacks left out, public reports included [centre row, 2].
        groups: groups of runs that were held out together [row].
        data_hash: of the tables.

    Returns:
        The fit.
    """
    first = stages.centre
    everyone = np.ones(len(first.runs.batch), dtype=bool)
    centre = first.record(everyone, first.solution, centre_scatter(first.runs, of_stacks))
    attempt = Attempt(stages.offsets, stages.offset_effects, stages.at_offsets, five_fold)
    record = fit_record("default", stages.tables, centre, attempt, data_hash)
    record = dataclasses.replace(record, widths=tuple(e for e in record.scatter if e.kind not in OF_UNKNOWN))
    return FitResult(
        fit=record,
        problem=stages.offsets,
        solution=stages.at_offsets,
        effects=stages.offset_effects,
        residuals=np.asarray(stages.at_offsets.log_residuals)[: len(groups), 0],
        held_out=five_fold[:, 0],
        groups=groups,
        levels=stages.tables.levels,
    )


def save(result: FitResult, name: str, tables: list[str]) -> None:
    """Write a fit, with the limits of memory that its tables show."""
    runs = [read_runs(run_tables()[table]) for table in tables]
    with_memory_limits(result, runs).save(FOLDER / "results" / f"{name}.toml")


def write_residuals(columns: dict[str, list]) -> None:
    """Write fits/residuals.csv."""
    with (FOLDER / "residuals.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        rows = zip(*columns.values(), strict=True)
        writer.writerows([f"{cell:.4f}" if isinstance(cell, float) else cell for cell in row] for row in rows)


def _said(name: str, result: FitResult) -> str:
    return f"{name}: {result.n} runs, {result.mape_train:.2f} % in sample, {result.mape_cv:.2f} % held out"


def fit_each() -> np.ndarray:
    """Fit every table on its own and save the fits.

    Returns:
        Log residuals of step time, of 5-fold and with larger clusters left out, table after table [row, 2].
    """
    jax.config.update("jax_enable_x64", True)
    residuals = []
    for name, (table, _) in load_tables().items():
        result = fit_measured(table, n_starts=N_STARTS, name=name, data_hash=digest([name]), resumed=last_fit(name))
        save(result, name, [name])
        larger = left_out(result, table, larger_fold(table), f"larger clusters of {name}")
        residuals.append(np.stack([result.held_out, larger[:, 0]], axis=1))
        print(_said(name, result), flush=True)
    return np.concatenate(residuals)


def main() -> None:
    """Fit all runs together and leave runs out; fit every source on its own beside it."""
    jax.config.update("jax_enable_x64", True)
    # Fits of single tables compile most of the time, on one core; those of all tables multiply matrices.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as beside:
        own = beside.submit(fit_each)
        fit_together(own)


def fit_together(own: Future[np.ndarray]) -> None:
    """Fit all runs together in two stages, leave runs out, and write down the residuals.

    Args:
        own: held-out residuals of the fits of single tables, still to come [row, 2].
    """
    tables = load_tables()
    everything = concatenate([table for table, _ in tables.values()])
    stages = solve_stages(everything)
    groups = groups_to_leave_out(everything)
    five_fold = left_out_of(stages, fold_of(groups, N_FOLDS), "folds")
    folds = schemes(everything)
    residuals = {name: left_out_of(stages, folds[name], name) for name in ("model", "larger")}
    of_stacks = stacks_left_out(stages.centre)
    residuals["setup"] = of_stacks[: len(everything.batch)]
    pooled = both_stages(stages, five_fold, of_stacks, groups, digest(sorted(tables)))
    print(_said("default", pooled), flush=True)
    for setup, error in pooled.errors_by("source").items():
        print(f"  {setup}: {error['mape']:.2f} / {error['median_ape']:.2f} %", flush=True)
    pooled = with_novel_scatter(pooled, everything, residuals)
    save(pooled, "default", sorted(tables))
    memory = np.where(np.isfinite(np.asarray(everything.peak_memory)), 1.0, np.nan)
    in_sample = np.asarray(pooled.solution.log_residuals)[: pooled.n]
    write_residuals(
        {
            "table": [name for name, (_, index) in tables.items() for _ in index],
            "setup": list(pooled.levels.column("source")),
            "row": [int(row) for _, index in tables.values() for row in index],
            "model_is_moe": (np.asarray(everything.batch.model.n_experts) > 1.0).astype(int).tolist(),
            "n_chips": np.asarray(everything.batch.cluster.n_chips).astype(int).tolist(),
            "group": pooled.groups.tolist(),
            "in_sample": pooled.residuals.tolist(),
            "five_fold": pooled.held_out.tolist(),
            "five_fold_own": own.result()[:, 0].tolist(),
            "left_out_larger_own": own.result()[:, 1].tolist(),
            **{f"left_out_{name}": values[:, 0].tolist() for name, values in residuals.items()},
            "memory_in_sample": (in_sample[:, 1] * memory).tolist(),
            "memory_left_out_model": residuals["model"][:, 1].tolist(),
        }
    )


if __name__ == "__main__":
    main()
