"""Mixed-effects problem of measured serving runs, and its errors on left-out folds."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxscale.base.arrays import host_arrays
from jaxscale.base.jit import array_jit
from jaxscale.calibration.base_record import effects_of
from jaxscale.calibration.levels import Levels
from jaxscale.fitting.statistics.group_quantiles import interval_of
from jaxscale.fitting.statistics.mixed_effects import Block, Evaluate, MixedProblem, MixedSolution, solve_mixed
from jaxscale.hardware.catalogue import Hardware
from jaxscale.runs.arrays import padded
from jaxscale.runs.measured import fold_of
from jaxscale.runs.schema import Runs
from jaxscale.serving.serving_coefficients import SERVING_NAMES, serving_coefficients, serving_spec
from jaxscale.serving.serving_record import ARRIVALS, WIDTH_KINDS, ServingFit, ServingWidth, classes_of_width, sign_of
from jaxscale.serving.serving_rows import ServingBatch, describe_serving
from jaxscale.serving.spread import QUANTILES
from jaxscale.serving.under_load import ANSWERS, KINDS, PERCENTILES, answers

NARROW = "pace"
"""Coefficient whose effects have a normal distribution. All others have a Student distribution: a release, a port, the
kernels of a model or the options of a source may be far from the rest; a factor on every time is not."""

TARGETS = (*ANSWERS, *PERCENTILES)
"""Measured columns that a fit explains, in the order of `log_answers`."""


class MeasuredServing(NamedTuple):
    """Measured rows of serving tables.

    Attributes:
        batch: engines, models and loads [row].
        levels: levels of each row.
        measured: measurements, nan if absent [row, target].
        sources: name of the source of each row [row].
        groups: group of each row by model, chip, chips, degrees, so that rows of a group differ only in load; by
            source, model and chip where the table states how requests arrive [row].
        is_loaded: whether the table states how requests arrive [row].
    """

    batch: ServingBatch
    levels: Levels
    measured: np.ndarray
    sources: np.ndarray
    groups: np.ndarray
    is_loaded: np.ndarray

    def take(self, rows: np.ndarray) -> "MeasuredServing":
        """Measured rows of a subset, by index or mask."""
        columns = (self.measured, self.sources, self.groups, self.is_loaded)
        return MeasuredServing(self.batch.take(rows), self.levels.take(rows), *(column[rows] for column in columns))


def measured_serving(tables: Sequence[Runs], hardware: Hardware | None = None) -> MeasuredServing:
    """Rows of tables usable for a fit: status ok or none, with a measured time or rate."""
    parts = []
    for runs in tables:
        rows = describe_serving(runs, hardware)
        if rows.batch is None:
            continue
        measured = np.stack([runs.numbers(name) for name in TARGETS], axis=-1)[rows.index]
        is_ok = runs.categories("status").matches(lambda word: word in (None, "ok"))[rows.index]
        # Rows without a measurement explain nothing.
        kept = is_ok & (measured > 0.0).any(axis=1)
        sources = runs.categories("source").map(lambda name, other=runs.path.stem: name or other).array()[rows.index]
        names = [runs.categories(name).array()[rows.index] for name in ("model", "gpu")]
        degrees = [runs.numbers(name)[rows.index] for name in ("n_gpus", "tp", "pp", "dp")]
        degrees = [np.where(rows.is_loaded, np.nan, degree) for degree in degrees]
        origin = np.where(rows.is_loaded, sources, "")
        keys = zip(*names, *degrees, origin, strict=True)
        groups = np.asarray([" ".join(map(str, key)) for key in keys], dtype=object)
        parts.append(MeasuredServing(rows.batch, rows.levels, measured, sources, groups, rows.is_loaded).take(kept))
    batch = jax.tree.map(lambda *leaves: np.concatenate(leaves), *[part.batch for part in parts])
    levels = Levels.concatenated([part.levels for part in parts])
    return MeasuredServing(batch, levels, *(np.concatenate([part[place] for part in parts]) for place in (2, 3, 4, 5)))


def log_answers(row: ServingBatch, logs: Float[Array, " coefficient"], *, is_loaded: bool) -> Float[Array, " target"]:
    """Natural logarithms of the predictions of a row, by `TARGETS`: means, and percentiles if `is_loaded`."""
    parts = (row.model, row.engine, row.cluster, row.requests, serving_coefficients(logs))
    values = answers(*parts, is_loaded=is_loaded)[0]
    return jnp.log(jnp.stack([values[name] for name in (TARGETS if is_loaded else ANSWERS)]))


def _sloped(batch: ServingBatch, logs: Array, *, is_loaded: bool) -> tuple[Array, Array]:
    def one(row: ServingBatch, own: Array) -> tuple[Array, Array]:
        def of(these: Array) -> Array:
            return log_answers(row, these, is_loaded=is_loaded)

        return of(own), jax.jacfwd(of)(own)

    return jax.vmap(one)(batch, logs)


@array_jit
def _with_slopes(batch: ServingBatch, logs: Array) -> tuple[Array, Array]:
    return _sloped(batch, logs, is_loaded=False)


@array_jit
def _with_slopes_loaded(batch: ServingBatch, logs: Array) -> tuple[Array, Array]:
    return _sloped(batch, logs, is_loaded=True)


def _measurements(measured: MeasuredServing) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Row and target of each measurement, and whether it is independent.

    A fit takes independent measurements alone: throughput follows from the latency of a static batch, the latency of a
    request from the first token and the time per token, and the throughput of a stream is its arrival rate. Beside a
    mean and a 99 % quantile, lower quantiles say little more.
    """
    there = measured.measured > 0.0
    # Rows without stated arrivals have no predicted percentiles.
    there[:, len(ANSWERS) :] &= measured.is_loaded[:, None]
    rows, targets = np.nonzero(there)
    for mean, kind in enumerate(KINDS):
        p50, p90, p99 = (TARGETS.index(f"{kind}_{name}_s") for name in QUANTILES)
        there[:, [p50, p90]] &= ~(there[:, [mean]] & there[:, [p99]])
    is_stream = np.asarray(measured.batch.requests.request_rate) > 0.0
    is_burst = measured.is_loaded & (np.asarray(measured.batch.requests.at_limit) > 0.0)
    # Columns: 0 first token, 1 time per token, 2 latency, 3 throughput.
    there[:, 3] &= ~is_stream & (is_burst | (~there[:, 2] & ~there[:, 1]))
    there[:, 2] &= is_burst | ~(there[:, 0] & there[:, 1])
    return rows, targets, there[rows, targets]


def class_names(levels: Levels, rows: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Class of error of each measurement: target, kind of serving, dense or mixture [measurement]."""
    serving, kinds = (levels.column(kind)[rows] for kind in ("serving", "kind"))
    names = [f"{TARGETS[t]} {s} {k.split()[-1]}" for t, s, k in zip(targets, serving, kinds, strict=True)]
    return np.asarray(names, dtype=object)


class ServingProblem(NamedTuple):
    """Mixed-effects problem of serving, with a description of its measurements.

    Attributes:
        mixed: the problem.
        row: row of each measurement [measurement].
        target: index of its column in `TARGETS` [measurement].
        class_names: class of error of each measurement [measurement].
    """

    mixed: MixedProblem
    row: np.ndarray
    target: np.ndarray
    class_names: np.ndarray


def serving_problem(
    measured: MeasuredServing,
    base: np.ndarray | None = None,
    spreads: Mapping[str, Mapping[str, float]] | None = None,
) -> ServingProblem:
    """Mixed-effects problem of measured rows.

    Args:
        measured: the rows.
        base: log coefficients of each row from an earlier fit, with fixed pooled values; the priors' medians where None
            [row, coefficient].
        spreads: prior spread of the effects by factor and coefficient; from `data/serving.toml` where None, with
            effects of clients for runs under load only, because a framework known from a single source would share
            the effect.
    """
    spec = serving_spec()
    row, target, is_fitted = _measurements(measured)
    n_rows = len(measured.groups)
    blocks = []
    if base is None:
        medians = spec.unconstrained(list(spec.medians.values()))
        base = np.broadcast_to(medians, (n_rows, len(SERVING_NAMES))).copy()
        zeros = np.zeros(n_rows, dtype=int)
        blocks = [
            Block("centre", place, zeros, ("",), prior.spread, is_free=False)
            for place, prior in enumerate(spec.priors.values())
        ]
    for kind, by_name in (spreads or spec.effect_spreads()).items():
        names, codes = np.unique(measured.levels.column(kind).astype(str), return_inverse=True)
        # A release that is not stated, or a pair without a model, is any.
        is_named = np.asarray([bool(name) and not name.endswith(" ") for name in names])
        is_open = spreads is not None or kind != "client"
        # Rows without a name take no effect of the factor.
        codes = np.where(is_named[codes] & (is_open | measured.is_loaded), codes, -1)
        known = tuple(names.tolist())
        for name, spread in by_name.items():
            place = SERVING_NAMES.index(name)
            blocks.append(Block(kind, place, codes, known, float(spread), is_heavy=name != NARROW))
    classes = class_names(measured.levels, row, target)
    codes = np.unique(classes.astype(str), return_inverse=True)[1]
    # Errors are relative: the fit works on logarithms.
    logs = np.log(measured.measured[row, target])
    mixed = MixedProblem(_evaluator(measured, row, target), base, row, logs, codes, tuple(blocks), is_fitted)
    return ServingProblem(mixed, row, target, classes)


def as_fit(
    name: str,
    problem: ServingProblem,
    solution: MixedSolution,
    widths: tuple[ServingWidth, ...],
    is_counted: np.ndarray,
) -> ServingFit:
    """Fit from the solution of a mixed-effects problem, with the levels of the counted rows.

    Args:
        name: name of the fit.
        problem: the problem.
        solution: its solution.
        widths: widths of intervals.
        is_counted: mask of the rows of the fit [row].
    """
    mixed = problem.mixed
    centre = dict(zip(SERVING_NAMES, np.exp(mixed.base[0]).tolist(), strict=True))
    shifts: list[tuple[str, str, str, float]] = []
    spreads: dict[str, dict[str, float]] = {}
    for place, block in enumerate(mixed.blocks):
        coefficient = SERVING_NAMES[block.coefficient]
        values = solution.effects[mixed.offsets[place] : mixed.offsets[place + 1]]
        if block.kind == "centre":
            centre[coefficient] *= float(np.exp(values[0]))
            continue
        spreads.setdefault(block.kind, {})[coefficient] = float(solution.spreads[place])
        codes = np.unique(block.codes[is_counted])
        for code in codes[codes >= 0].tolist():
            shifts.append((block.kind, block.levels[code], coefficient, float(values[code])))
    return ServingFit(name, centre, effects_of(shifts), spreads, widths, n_rows=int(is_counted.sum()))


def _evaluator(measured: MeasuredServing, row: np.ndarray, target: np.ndarray) -> Evaluate:
    """Logarithms and slopes of the measurements; rows with stated arrivals have a separate program."""
    n_rows = len(measured.groups)
    kinds = (
        (_with_slopes, np.flatnonzero(~measured.is_loaded)),
        (_with_slopes_loaded, np.flatnonzero(measured.is_loaded)),
    )
    # Padded: a program serves several numbers of rows.
    parts = [(of, rows, padded(host_arrays(measured.batch.take(rows)), len(rows))) for of, rows in kinds if len(rows)]

    def evaluate(logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, slopes = np.full((n_rows, len(TARGETS)), np.nan), np.zeros((n_rows, len(TARGETS), logs.shape[1]))
        for of, rows, stacked in parts:
            found, along = (np.asarray(part) for part in of(stacked, padded(host_arrays(logs[rows]), len(rows))))
            # Rows without stated arrivals have no percentiles.
            values[rows, : found.shape[1]] = found[: len(rows)]
            slopes[rows, : found.shape[1]] = along[: len(rows)]
        return values[row, target], slopes[row, target]

    return evaluate


FOLDS = {"seen": 10, "model": 10, "stack": 8, "chip": 8, "framework": 8}
"""Folds of the rows, by novelty [1]."""

LEAST_RUNS = 25
"""Minimum number of errors for quantiles of a class; smaller classes are pooled [1]."""

LEAST_GROUPS = 19
"""Minimum number of groups of runs for quantiles: the smallest and the largest error of G groups cover (G - 1) / (G
+ 1) of new groups, which is 90 % at the minimum [1]."""

FEW_GROUPS = 5
"""Minimum number of groups of runs of a stack in a kind of serving for separate intervals; stacks with fewer groups are
pooled, since the fit rests on few runs [1]."""

LEAST_SPARSE_GROUPS = 9
"""Minimum number of groups of runs of pooled stacks, and of runs under load, for quantiles [1]."""

LEAST_UNITS = 4
"""Minimum number of left-out models, stacks, chips or frameworks for quantiles [1]."""

HELD_STEPS = 6
"""Gauss-Newton steps from the fit of all rows to the fit without a fold [1]."""


class HeldOutServing(NamedTuple):
    """Errors of held-out rows in the cross-validation of a fit.

    Attributes:
        measured: the rows.
        problem: problem of their measurements.
        log_errors: log predicted minus log measured by left-out factor, `fit` for none [novelty][measurement].
        few_rows: error of each stack under a fit without the stack, refined by ten of its rows; nan for the ten rows
            and for stacks of few rows [measurement].
    """

    measured: MeasuredServing
    problem: ServingProblem
    log_errors: Mapping[str, np.ndarray]
    few_rows: np.ndarray


def folds(names: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
    """Cross-validation fold of each row, equal for rows of equal name; folds of about equal size [row]."""
    codes = np.unique(names.astype(str), return_inverse=True)[1]
    return fold_of(codes, min(count, int(codes.max()) + 1), seed)


def names_left_out(measured: MeasuredServing, novelty: str) -> np.ndarray:
    """Group of each row for cross-validation by a novelty: rows of a group are left out together [row]."""
    return measured.groups if novelty == "seen" else measured.levels.column(novelty)


def fits_without(
    problem: ServingProblem, solution: MixedSolution, parts: np.ndarray
) -> Iterator[tuple[np.ndarray, MixedSolution]]:
    """Mask of the rows of each fold [row], and the fit of the remaining rows, fold by fold."""
    for part in range(int(parts.max()) + 1):
        is_kept = parts != part
        # Effects of levels without a row return to zero.
        effects = problem.mixed.without_levels_of(solution.effects, is_kept)
        start = MixedSolution(effects, solution.spreads, solution.noise, solution.log_errors)
        yield ~is_kept, solve_mixed(problem.mixed, is_kept, start, steps=HELD_STEPS, learns_spreads=False)


def errors_left_out(problem: ServingProblem, solution: MixedSolution, parts: np.ndarray) -> np.ndarray:
    """Log error of each measurement under the fit without its fold [measurement]."""
    errors = np.full(len(problem.row), np.nan)
    for is_out, held in fits_without(problem, solution, parts):
        mine = is_out[problem.row]
        errors[mine] = held.log_errors[mine]
    return errors


def widths_of(
    log_errors: Mapping[str, np.ndarray],
    targets: np.ndarray,
    levels: Levels,
    groups: np.ndarray,
) -> tuple[ServingWidth, ...]:
    """Interval widths from the errors of held-out runs.

    Rows left out together count as one: groups of runs, models, stacks, chips and frameworks.

    Args:
        log_errors: log predicted minus log measured by left-out factor, nan for rows not left out
            [novelty][measurement].
        targets: column of each measurement [measurement].
        levels: `arrivals`, `serving`, `kind`, `stack` and the novelties of each measurement [measurement].
        groups: group of runs of each measurement [measurement].

    Returns:
        Widths of every class with enough errors, and of unions of classes.
    """
    levels = classes_of_width(levels)
    columns = (targets, *(levels.column(kind) for kind in WIDTH_KINDS))
    classes = {tuple(key) for key in zip(*columns, strict=True)}
    # A class, then without stack, without density, without serving.
    unions = {key for t, s, d, k in classes for key in ((t, s, d, k), (t, s, d, ""), (t, s, "", ""), (t, "", "", ""))}
    widths = []
    for novelty, errors in log_errors.items():
        units = groups if novelty == "seen" else levels.column(novelty).astype(str)
        for place in sorted({*unions, ("", "", "", "")}):
            if place[3] and novelty != "seen":
                continue
            mask = np.isfinite(errors) & _is_in(place, columns)
            # Few groups state arrivals.
            is_loaded = place[1] in ARRIVALS or place[0] in PERCENTILES
            least = LEAST_SPARSE_GROUPS if is_loaded else LEAST_GROUPS
            if mask.sum() >= LEAST_RUNS and _count(groups[mask]) >= least and _count(units[mask]) >= LEAST_UNITS:
                # log measured - log predicted.
                widths.append(_width(place, novelty, -errors[mask], units[mask]))
    if "seen" in log_errors:
        widths += _sparse_widths(log_errors["seen"], columns, classes, groups)
    return tuple(widths)


def _sparse_widths(
    errors: np.ndarray, columns: Sequence[np.ndarray], classes: Collection[tuple[str, ...]], groups: np.ndarray
) -> list[ServingWidth]:
    """Widths of stacks with few groups of runs, pooled over such stacks, by kind of serving where groups suffice."""
    served = np.asarray([" ".join(names) for names in zip(columns[1], columns[3], strict=True)])
    pairs, codes = np.unique(served, return_inverse=True)
    is_few = np.asarray([_count(groups[codes == code]) < FEW_GROUPS for code in range(len(pairs))])
    is_sparse = is_few[codes] & np.isfinite(errors)
    signs = np.asarray([sign_of(target) for target in columns[0]])
    widths = []
    for target, serving, density, stack in sorted(classes):
        if not is_few[np.searchsorted(pairs, f"{serving} {stack}")]:
            continue
        # Targets are not pooled: first tokens scatter ten times as far as throughputs.
        for place in ((target, serving, density, ""), (target, serving, "", ""), (target, "", "", "")):
            mask = is_sparse & _is_in(place, columns)
            if mask.sum() >= LEAST_RUNS and _count(groups[mask]) >= LEAST_SPARSE_GROUPS:
                # A rate above the prediction is a time below.
                ratios = -sign_of(target) * signs[mask] * errors[mask]
                widths.append(_width((target, serving, density, stack), "seen", ratios, groups[mask]))
                break
    return widths


def _is_in(place: Sequence[str], columns: Sequence[np.ndarray]) -> np.ndarray:
    """Whether each measurement belongs to a class; empty words match any value [measurement]."""
    mask = np.ones(len(columns[0]), dtype=bool)
    for column, word in zip(columns, place, strict=True):
        mask &= (column == word) | (word == "")
    return mask


def _count(names: np.ndarray) -> int:
    return len(np.unique(names))


def _width(place: Sequence[str], novelty: str, ratios: np.ndarray, units: np.ndarray) -> ServingWidth:
    lo, hi = interval_of(ratios, units)
    target, serving, density, stack = place
    return ServingWidth(target, serving, density, stack, novelty, lo, hi, len(ratios))
