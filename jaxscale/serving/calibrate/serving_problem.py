"""Measured serving runs as a problem of mixed effects: what was measured of which row, and which effects there are."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxscale.base.arrays import host_arrays
from jaxscale.base.jit import array_jit
from jaxscale.calibration.effects import effects_of
from jaxscale.calibration.levels import Levels
from jaxscale.fitting.statistics.mixed_effects import Block, Evaluate, MixedProblem, MixedSolution
from jaxscale.hardware.catalogue import Hardware
from jaxscale.runs.arrays import padded
from jaxscale.runs.table import Runs
from jaxscale.serving.calibrate.serving_coefficients import SERVING_NAMES, serving_coefficients, serving_spec
from jaxscale.serving.calibrate.serving_record import ServingFit
from jaxscale.serving.calibrate.serving_widths import ServingWidth
from jaxscale.serving.serving_time import serving_time
from jaxscale.serving.tables.serving_rows import ServingBatch, describe_serving

TARGETS = ("ttft_s", "tpot_s", "e2e_latency_s", "output_tokens_per_s_total")
"""Measured columns that a fit explains, in the order of `log_answers`."""


class MeasuredServing(NamedTuple):
    """Measured rows of serving tables.

    Attributes:
        batch: what ran [row].
        levels: of each row.
        measured: what was measured, nan where it was not [row, target].
        sources: table of each row [row].
        groups: rows that differ in load alone share a group: model, chip, chips, degrees [row].
    """

    batch: ServingBatch
    levels: Levels
    measured: np.ndarray
    sources: np.ndarray
    groups: np.ndarray

    def take(self, rows: np.ndarray) -> "MeasuredServing":
        """The given rows, by index or mask."""
        columns = (self.measured, self.sources, self.groups)
        return MeasuredServing(self.batch.take(rows), self.levels.take(rows), *(column[rows] for column in columns))


def measured_serving(tables: Sequence[Runs], hardware: Hardware | None = None) -> MeasuredServing:
    """Rows of tables that may be fitted: status ok or none, with a measured time or rate."""
    parts = []
    for runs in tables:
        rows = describe_serving(runs, hardware)
        if rows.batch is None:
            continue
        measured = np.stack([runs.numbers(name) for name in TARGETS], axis=-1)[rows.index]
        is_ok = runs.categories("status").matches(lambda word: word in (None, "ok"))[rows.index]
        kept = is_ok & np.isfinite(measured).any(axis=1)
        sources = runs.categories("source").map(lambda name, other=runs.path.stem: name or other).array()[rows.index]
        names = [runs.categories(name).array()[rows.index] for name in ("model", "gpu")]
        degrees = [runs.numbers(name)[rows.index] for name in ("n_gpus", "tp", "pp", "dp")]
        groups = np.asarray([" ".join(map(str, key)) for key in zip(*names, *degrees, strict=True)], dtype=object)
        parts.append(MeasuredServing(rows.batch, rows.levels, measured, sources, groups).take(kept))
    batch = jax.tree.map(lambda *leaves: np.concatenate(leaves), *[part.batch for part in parts])
    levels = Levels.concatenated([part.levels for part in parts])
    return MeasuredServing(batch, levels, *(np.concatenate([part[place] for part in parts]) for place in (2, 3, 4)))


def log_answers(row: ServingBatch, logs: Float[Array, " coefficient"]) -> Float[Array, " target"]:
    """Logarithms of the answers of one row, in the order of `TARGETS`."""
    times = serving_time(row.model, row.engine, row.cluster, row.requests, serving_coefficients(logs))
    return jnp.log(jnp.stack([times.ttft, times.tpot, times.e2e, times.throughput]))


@array_jit
def _with_slopes(batch: ServingBatch, logs: Array) -> tuple[Array, Array]:
    def one(row: ServingBatch, own: Array) -> tuple[Array, Array]:
        return log_answers(row, own), jax.jacfwd(lambda these: log_answers(row, these))(own)

    return jax.vmap(one)(batch, logs)


def _measurements(measured: MeasuredServing) -> tuple[np.ndarray, np.ndarray]:
    """Row and target of each measurement that says something of its own.

    Throughput follows from the latency of a static batch, and the whole latency from its two parts.
    """
    there = np.isfinite(measured.measured)
    there[:, 3] &= ~there[:, 2] & ~there[:, 1]
    there[:, 2] &= ~(there[:, 0] & there[:, 1])
    rows, targets = np.nonzero(there)
    return rows, targets


def class_names(levels: Levels, rows: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Class of error of measurements: target, kind of serving, dense or mixture [measurement]."""
    serving, kinds = (levels.column(kind)[rows] for kind in ("serving", "kind"))
    names = [f"{TARGETS[t]} {s} {k.split()[-1]}" for t, s, k in zip(targets, serving, kinds, strict=True)]
    return np.asarray(names, dtype=object)


class ServingProblem(NamedTuple):
    """A problem of mixed effects, and what its measurements are.

    Attributes:
        mixed: the problem.
        row: row of each measurement [measurement].
        target: place of its column among `TARGETS` [measurement].
        class_names: class of error of each [measurement].
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
    """Measured rows as a problem of mixed effects.

    Args:
        measured: the rows.
        base: log coefficients of each row from an earlier fit, whose pooled values then stay; the priors' medians
            where None [row, coefficient].
        spreads: prior spread of the effects by kind of level and coefficient; those of `data/serving.toml` where None.

    Returns:
        The problem.
    """
    spec = serving_spec()
    row, target = _measurements(measured)
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
        is_named = np.asarray([bool(name.strip()) for name in names])
        codes = np.where(is_named[codes], codes, -1)
        for name, spread in by_name.items():
            blocks.append(Block(kind, SERVING_NAMES.index(name), codes, tuple(names.tolist()), float(spread)))
    classes = class_names(measured.levels, row, target)
    codes = np.unique(classes.astype(str), return_inverse=True)[1]
    logs = np.log(measured.measured[row, target])
    mixed = MixedProblem(_evaluator(measured.batch, row, target), base, row, logs, codes, tuple(blocks))
    return ServingProblem(mixed, row, target, classes)


def as_fit(
    name: str,
    problem: ServingProblem,
    solution: MixedSolution,
    widths: tuple[ServingWidth, ...],
    is_counted: np.ndarray,
) -> ServingFit:
    """A solution of a problem as a fit, with the levels of the rows that count [row]."""
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


def _evaluator(batch: ServingBatch, row: np.ndarray, target: np.ndarray) -> Evaluate:
    n_rows = len(batch)
    stacked = padded(host_arrays(batch), n_rows)

    def evaluate(logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        parts = _with_slopes(stacked, padded(host_arrays(logs), n_rows))
        values, slopes = (np.asarray(part, np.float64)[row, target] for part in parts)
        return values, slopes

    return evaluate
