"""Fit the memory of the shipped fits anew, their step times held; writes fits/results/*.toml, residuals, evaluation.

Run from the repository: `OPENBLAS_NUM_THREADS=1 python fits/memory.py` (3 minutes), then `fits/scoreboard.py`. Memory
is counted, so that a fit has little to say of it: what is left are the coefficients of `MEMORY_COEFFICIENTS`, which no
step time reads. Coefficients, effects, intervals and limits of memory are replaced; all that tells of step times stays.
"""

import csv
import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from calibrate import FOLDER, N_FOLDS, load_tables, new_source_scatter, schemes
from evaluate import percent
from stages import centre_scatter, is_usual, kinds_of_unknown, load_reports, say, spread_of

from jaxscale.base.documents import data_path, read_toml, run_tables
from jaxscale.calibration.base_record import LevelEffect, effects_of
from jaxscale.calibration.coefficients import (
    MEMORY_COEFFICIENTS,
    Coefficients,
    from_values,
    names,
    prior_medians,
    values_of,
)
from jaxscale.calibration.intervals import Z90, Scatter
from jaxscale.calibration.record import Fit, load_fit
from jaxscale.fitting.fit_record import Attempt, base_of, held_at, level_effects, moved, stacks_alike
from jaxscale.fitting.held_out import groups_to_leave_out, scatter_by, typical
from jaxscale.fitting.informed_coefficients import bounds_memory, informed_coefficients
from jaxscale.fitting.memory_outcomes import memory_limits, outcomes
from jaxscale.fitting.multistart import one_blas_thread, refine
from jaxscale.fitting.objective import FitProblem, make_problem, reweighted
from jaxscale.fitting.parameters import CENTRE, OFFSETS, Effect, Stage, find_effects, membership, parametrisation
from jaxscale.runs.arrays import Measured, concatenate
from jaxscale.runs.measured import describe_runs, fold_of, measured_times, run_status
from jaxscale.runs.reader import read_runs
from jaxscale.runs.schema import Runs


@dataclasses.dataclass(frozen=True)
class MemoryFit:
    """Memory coefficients of some runs, solved around a fit whose step times stay.

    Attributes:
        runs: those of which a peak, or a bound of one, is known.
        rows: their positions among all runs.
        start: the fit without what it said of memory.
        problem: of fitting them.
        effects: its effects in parameter order.
        parameters: where the optimiser ended.
    """

    runs: Measured
    rows: np.ndarray
    start: Fit
    problem: FitProblem
    effects: tuple[Effect, ...]
    parameters: jax.Array

    def residuals(self, kept: np.ndarray | None = None) -> np.ndarray:
        """Log residuals of memory, under the fit of some of the runs [run of the fit]."""
        everyone = np.ones(len(self.runs.batch), dtype=bool)
        found = refine(reweighted(self.problem, everyone if kept is None else kept), self.parameters)
        return np.asarray(found.log_residuals)[: len(everyone), 1]

    def record(self) -> Fit:
        """The start with the memory that was fitted."""
        values = np.asarray(self.problem.parametrisation.scale) * np.asarray(self.parameters[len(names()) :])
        solution = refine(self.problem, self.parameters)
        attempt = Attempt(self.problem, self.effects, solution, np.zeros((len(self.runs.batch), 2)))
        pooled = with_memory_of(self.start, moved(self.start.pooled, attempt))
        effects = added(self.start.effects, level_effects(self.effects, values))
        return dataclasses.replace(self.start, centre=pooled, effects=effects)


def with_memory_of(fit: Fit, other: Coefficients) -> Coefficients:
    """Pooled coefficients of a fit, those of memory from others."""
    return from_values(
        [
            new if name in MEMORY_COEFFICIENTS else old
            for name, old, new in zip(names(), values_of(fit.pooled), values_of(other), strict=True)
        ]
    )


def added(*several: Iterable[LevelEffect]) -> tuple[LevelEffect, ...]:
    """Effects of several kinds of coefficients, by level."""
    return effects_of(shift for effect in itertools.chain(*several) for shift in effect.single())


def effects_on(effects: Iterable[LevelEffect], memory: bool) -> tuple[LevelEffect, ...]:
    """Effects on the coefficients of memory alone, or on those of step times alone."""
    shifts = (shift for effect in effects for shift in effect.single())
    return effects_of(shift for shift in shifts if (shift[2] in MEMORY_COEFFICIENTS) == memory)


def without_memory(fit: Fit) -> Fit:
    """A fit with the priors' memory."""
    return dataclasses.replace(
        fit, centre=with_memory_of(fit, prior_medians()), effects=effects_on(fit.effects, memory=False)
    )


MOST_RESERVED = 1.15
"""Largest ratio of memory that PyTorch's caching allocator reserves to memory that a program holds: 1.00 with
expandable segments, 1.03 to 1.08 under FSDP, up to 1.15 with blocks of many sizes (reserved and allocated peaks of
torchtitan and torchao, 2024 to 2025) [1]."""


def runs_out_of_memory(runs: Runs) -> Measured | None:
    """Complete rows that ran out of memory, whose peak exceeds the chip's memory over `MOST_RESERVED`.

    A step time of 1 s stands in for the absent one. Rows of an inferred ZeRO stage are left out, since the inference
    assumes that the run fits.

    Args:
        runs: the table.

    Returns:
        The rows; None without any.
    """
    described = describe_runs(runs, None)
    if described.batch is None:
        return None
    ran_out = run_status(runs, measured_times(runs, described)).array()[described.index] == "oom"
    kept = np.flatnonzero(ran_out & described.states_recompute & ~described.is_inferred_fsdp)
    if not len(kept):
        return None
    bound = np.asarray(described.batch.cluster.chip.hbm_bytes) / MOST_RESERVED
    ones, unknown = np.ones(len(bound)), np.full(len(bound), np.nan)
    batch = eqx.tree_at(lambda rows: rows.counted, described.batch, ones)
    return Measured(batch, ones, unknown, bound, ran_out, described.measured_parts, described.levels).take(kept)


def load_failures() -> list[Measured]:
    """Runs out of memory of the tables and of public reports, one entry per file."""
    paths = [*run_tables().values(), data_path("restricted") / "public_reports.csv"]
    found = [runs_out_of_memory(read_runs(path, skip_bad=True)) for path in paths]
    return [runs for runs in found if runs is not None]


def tells_of_memory(measured: Measured, start: Fit) -> np.ndarray:
    """Whether a peak of a run, or a bound of one, is known [row]."""
    return np.isfinite(np.asarray(measured.peak_memory)) | bounds_memory(measured, base_of(measured, start))


def memory_fit(measured: Measured, start: Fit, stage: Stage, is_held: bool = False) -> MemoryFit:
    """Fit memory alone.

    Args:
        measured: the runs.
        start: fit whose step times stay; its memory is where the search begins.
        stage: of the calibration.
        is_held: whether the pooled coefficients stay.
    """
    base = base_of(measured, start)
    bounds = bounds_memory(measured, base)
    rows = np.flatnonzero(tells_of_memory(measured, start))
    runs, base, bounds = measured.take(rows), base[rows], bounds[rows]
    of_memory = np.isin(names(), MEMORY_COEFFICIENTS)
    effects = find_effects(runs.levels, informed_coefficients(runs, bounds) & of_memory, stage)
    mapping = parametrisation(effects, stage)
    spread = jnp.where(of_memory, mapping.spread, 1e-9)
    mapping = dataclasses.replace(mapping, spread=spread)
    problem = make_problem(runs, mapping, base, membership(runs.levels, effects), bounds)
    problem = stacks_alike(problem, runs) if stage.is_centre else problem
    problem = held_at(problem) if is_held else problem
    solution = refine(problem, jnp.zeros(problem.parametrisation.n_parameters))
    return MemoryFit(runs, rows, start, problem, effects, refine(problem, solution.parameters).parameters)


def stacks_left_out(centre: MemoryFit) -> np.ndarray:
    """Log residuals of memory under the centre that never saw the stack of a run [run of the fit]."""
    stack = centre.runs.levels.column("stack")
    known = np.isfinite(np.asarray(centre.runs.peak_memory))
    residuals = np.full(len(stack), np.nan)
    for name in sorted(set(stack[known])):
        own = stack == name
        residuals[own] = centre.residuals(~own)[own]
    return np.where(known, residuals, np.nan)


def folds_left_out(fitted: MemoryFit, fold: np.ndarray) -> np.ndarray:
    """Log residuals of memory of each run under the fit without its fold; nan where it is in none [run of the fit]."""
    residuals = np.full(len(fold), np.nan)
    for index in sorted(set(fold) - {-1}):
        residuals[fold == index] = fitted.residuals(fold != index)[fold == index]
    return residuals


def spread(fitted: MemoryFit, values: np.ndarray, n_rows: int) -> np.ndarray:
    """Values of the runs of a fit among all runs; nan elsewhere [row]."""
    column = np.full(n_rows, np.nan)
    column[fitted.rows] = np.where(np.isfinite(np.asarray(fitted.runs.peak_memory)), values, np.nan)
    return column


def renewed(entries: Sequence[Scatter], found: Sequence[Scatter]) -> tuple[Scatter, ...]:
    """Scatters with the memory of others of their kind and level, nan where these say nothing."""
    memory = {(entry.kind, entry.level): (entry.memory, entry.above) for entry in found}
    nothing = (float("nan"), float("nan"))
    of_each = [memory.get((entry.kind, entry.level), nothing) for entry in entries]
    return tuple(
        dataclasses.replace(entry, memory=both, above=above)
        for entry, (both, above) in zip(entries, of_each, strict=True)
    )


def coverage(runs: Measured, residuals: np.ndarray) -> str:
    """How wide the interval of stacks left out is, by kind and by what runs state, and how much of each is inside."""
    stack, kind = runs.levels.column("stack"), kinds_of_unknown(runs.levels)
    kind = np.where(runs.levels.missing("unstated"), kind, runs.levels.column("unstated"))
    told, usual = [], is_usual(runs.levels)
    for name in sorted(set(kind[np.isfinite(residuals)])):
        known = (kind == name) & np.isfinite(residuals) & usual
        width = Z90 * spread_of(residuals[known], stack[known])
        inside = [np.mean(np.abs(residuals[known & (stack == one)]) <= width) for one in sorted(set(stack[known]))]
        told.append(f"{name}: interval x{np.exp(2.0 * width):.2f}, {100.0 * np.mean(inside):.0f} % of a stack inside")
    return "; ".join(told)


def beside_times(values: np.ndarray) -> np.ndarray:
    """Residuals of memory beside such of step times as count nowhere [row, 2]."""
    return np.stack([np.zeros(len(values)), values], axis=1)


def held_out_scatter(everything: Measured, residuals: dict[str, np.ndarray]) -> list[Scatter]:
    """Scatter of memory of runs, models, larger clusters and stacks that were left out, by level and typical."""
    found = [
        entry
        for kind, column, scheme in (
            ("source", "source", "five_fold"),
            ("framework", "framework", "five_fold"),
            ("new_model", "source", "model"),
            ("larger", "source", "larger"),
        )
        for entry in scatter_by(column, kind, everything, beside_times(residuals[scheme]))
    ]
    for kind in ("new_model", "larger"):
        own = [entry for entry in found if entry.kind == kind]
        found += [typical(kind, own)] if own else []
    stacks = scatter_by("source", "unseen", everything, beside_times(residuals["setup"]))
    return [*found, *new_source_scatter(everything, stacks)]


def save(fit: Fit, name: str) -> None:
    """Write a fit in place of the one of its name, whose table of parameters it keeps."""
    path = FOLDER / "results" / f"{name}.toml"
    told = read_toml(path)["coefficients"]
    values = dict(zip(names(), values_of(fit.pooled), strict=True))
    parameters = {}
    for key, value in values.items():
        entry = {kind: told[key][kind] for kind in ("lo", "hi", "unit", "identified") if kind in told.get(key, {})}
        if key in MEMORY_COEFFICIENTS and entry:
            width = np.sqrt(entry["hi"] / entry["lo"])
            entry |= {"lo": float(f"{value / width:.6g}"), "hi": float(f"{value * width:.6g}")}
        parameters[key] = entry
    comment = path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
    fit.save(path, parameters, comment)


def with_limits(fit: Fit, tables: Iterable[str]) -> Fit:
    """A fit that knows how much memory the runs of some tables could use, by its own peaks."""
    found = [outcomes(read_runs(run_tables()[table]), fit) for table in tables]
    limits = [limit for runs in found if runs is not None for limit in memory_limits(runs, fit)]
    return dataclasses.replace(fit, limits=tuple(limits))


def fit_alone(name: str, measured: Measured) -> None:
    """Fit the memory of the fit of one table."""
    old = load_fit(name)
    if not tells_of_memory(measured, without_memory(old)).any():
        save(without_memory(old), name)
        return
    fitted = memory_fit(measured, without_memory(old), OFFSETS)
    groups = groups_to_leave_out(fitted.runs)
    n_folds = min(N_FOLDS, int(groups.max()) + 1)
    five_fold = folds_left_out(fitted, fold_of(groups, n_folds)) if n_folds > 1 else fitted.residuals()
    residuals = spread(fitted, five_fold, len(measured.batch))
    found = [
        entry for kind in ("source", "framework") for entry in scatter_by(kind, kind, measured, beside_times(residuals))
    ]
    own = {(entry.kind, entry.level) for entry in found}
    kept = [entry for entry in old.scatter if (entry.kind, entry.level) not in own]
    told = renewed([entry for entry in old.scatter if (entry.kind, entry.level) in own], found)
    novel = {(e.kind, e.level): e.memory for e in load_fit("default").scatter}
    kept = [dataclasses.replace(e, memory=novel.get((e.kind, e.level), e.memory)) for e in kept]
    save(with_limits(dataclasses.replace(fitted.record(), widths=(*told, *kept)), [name]), name)


def rewrite(path: Path, key: str, columns: dict[str, np.ndarray | dict[str, str]]) -> None:
    """Write columns of a CSV anew: by the row's key where a column is a mapping, else in the order of the rows."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for place, row in enumerate(rows):
        for name, values in columns.items():
            row[name] = values.get(row[key], row[name]) if isinstance(values, dict) else f"{values[place]:.4f}"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


@one_blas_thread()
def main() -> None:
    """Fit the centre, the offsets around it, and each table alone."""
    jax.config.update("jax_enable_x64", True)
    tables = load_tables()
    everything = concatenate([table for table, _ in tables.values()])
    n, old = len(everything.batch), load_fit("default")
    assert old.parent is not None
    both = concatenate([everything, load_reports(), *load_failures()])
    centre = memory_fit(both, without_memory(old.parent), CENTRE)
    say(f"centre: {len(centre.rows)} runs, {len(centre.effects)} effects")
    of_stacks = stacks_left_out(centre)
    stack = centre.runs.levels.column("stack")
    is_known = np.isfinite(of_stacks)
    errors = {name: percent(of_stacks[(stack == name) & is_known]) for name in sorted(set(stack[is_known]))}
    for name, error in errors.items():
        print(f"  {name}: {error:.1f} %")
    print(coverage(centre.runs, of_stacks))
    first = centre.record()
    unknown = centre_scatter(centre.runs, beside_times(of_stacks))
    times = [entry for entry in first.scatter if entry.kind != "unstated"]
    guessed = [entry for entry in unknown if entry.kind == "unstated"]
    first = dataclasses.replace(first, widths=(*renewed(times, unknown), *guessed))
    # Effects of stacks are those of the centre, which the offsets start from.
    begun, kinds = without_memory(old), {effect.kind for effect in old.effects}
    of_centre = [effect for effect in effects_on(first.effects, memory=True) if effect.kind in kinds]
    begun = dataclasses.replace(
        begun,
        centre=with_memory_of(begun, first.pooled),
        effects=added(begun.effects, of_centre),
        parent=first,
    )
    offsets = memory_fit(everything, begun, OFFSETS, is_held=True)
    say(f"offsets: {len(offsets.rows)} runs, {len(offsets.effects)} effects")
    folds = schemes(everything)
    left_out = {name: folds[name][offsets.rows] for name in ("model", "larger")}
    left_out["five_fold"] = fold_of(groups_to_leave_out(offsets.runs), N_FOLDS)
    residuals = {name: spread(offsets, folds_left_out(offsets, fold), n) for name, fold in left_out.items()}
    residuals["setup"] = spread(centre, of_stacks, len(both.batch))[:n]
    record = offsets.record()
    found = [*held_out_scatter(everything, residuals), *unknown]
    record = dataclasses.replace(record, widths=renewed(record.scatter, found))
    save(with_limits(record, sorted(tables)), "default")
    in_sample = spread(offsets, offsets.residuals(), n)
    rewrite(FOLDER / "residuals.csv", "", {"memory_in_sample": in_sample, "memory_left_out_model": residuals["model"]})
    rewrite(FOLDER / "evaluation.csv", "stack", {"memory": {name: f"{error:.3g}" for name, error in errors.items()}})
    for name in (table for table in tables if (FOLDER / "results" / f"{table}.toml").is_file()):
        say(name)
        fit_alone(name, tables[name][0])


if __name__ == "__main__":
    main()
