"""Record of a fit to measured runs: coefficients, effects, scatter and levels, merged with the record of the parent."""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import NamedTuple

import jax
import numpy as np

from jaxscale.calibration.base_record import LevelEffect, effects_of
from jaxscale.calibration.coefficients import Coefficients, constrain_values, from_values, names, unconstrain
from jaxscale.calibration.intervals import Scatter
from jaxscale.calibration.record import Fit, load_fit
from jaxscale.calibration.seen import SETTINGS, UNNAMED
from jaxscale.fitting.fit_problem import answering
from jaxscale.fitting.held_out import measured_scatter, wider
from jaxscale.fitting.multistart import Solution
from jaxscale.fitting.objective import FitProblem
from jaxscale.fitting.parameters import FEW_RUNS, Effect
from jaxscale.runs.arrays import Measured

OWN_KINDS = ("architecture", "mixture", "gpu", "precision", "attention_kernel")
"""Kinds of level recorded for the fitted runs alone; levels of the start's sources stay in the record of the start."""


class Attempt(NamedTuple):
    """Fit with one tightness of the priors.

    Attributes:
        problem: the fitted problem.
        effects: effects of levels, in parameter order.
        solution: optimum of the problem.
        held_out: log residuals of step time and memory of held-out runs; nan without groups [row, 2].
        tightness: factor on the prior spreads [1].
    """

    problem: FitProblem
    effects: tuple[Effect, ...]
    solution: Solution
    held_out: np.ndarray
    tightness: float = 1.0

    @property
    def error(self) -> float:
        """Mean absolute log error of step time of held-out runs; nan without held-out runs [1]."""
        return float(np.mean(np.abs(self.held_out[:, 0])))


def fit_record(name: str, measured: Measured, start: Fit, best: Attempt, data_hash: str) -> Fit:
    """Fit of measured runs: effects, scatter and levels of an attempt, merged with the record of the start."""
    before = answering(start, measured)
    # Standardised effects times the scale of the prior.
    scale = np.asarray(best.problem.parametrisation.scale)
    values = scale * np.asarray(best.solution.parameters[len(names()) :])
    held_out = best.held_out
    effects = level_effects(best.effects, values)
    levels = (measured.levels.row(place) for place in range(len(measured.levels)))
    rows = [{kind: level or "" for kind, level in row.items()} for row in levels]
    ape = np.abs(np.expm1(held_out[:, 0]))
    passed_on = {level for level in start.known if level[0] not in (*OWN_KINDS, *SETTINGS)}
    shown = {level for level in level_kinds(rows) if level[0] not in SETTINGS or len(rows) <= FEW_RUNS}
    unnamed = {(UNNAMED, row["framework"]) for row in rows if not row["source"]}
    provenance = {
        "runs": str(len(rows)),
        "data_sha256": data_hash,
        "held_out_mape_percent": f"{100 * np.nanmean(ape):.2f}" if np.isfinite(ape).any() else "none",
        "jaxscale": version("jaxscale"),
        "jax": jax.__version__,
    }
    return Fit(
        name=name,
        centre=moved(before.pooled, best),
        effects=kept_effects(before, rows) + effects,
        widths=own_scatter(before, measured, held_out) + (before.scatter or novel_scatter()),
        known=tuple(sorted(passed_on | shown | unnamed)),
        largest=largest_clusters(before, measured),
        provenance=tuple(provenance.items()),
        limits=before.limits,
        own=shared_levels(rows),
        fitted=level_kinds([{kind: row[kind] for kind in ("source", "framework")} for row in rows]),
        parent=start if start.known else None,
        anchors=start.anchors,
        paces=start.paces,
    )


def moved(pooled: Coefficients, best: Attempt) -> Coefficients:
    """Pooled coefficients moved by the standardised parameters of an attempt."""
    shift = np.asarray(best.problem.parametrisation.spread * best.solution.parameters[: len(names())])
    return from_values(constrain_values(unconstrain(pooled) + shift).tolist())


def level_kinds(levels: Sequence[Mapping[str, str | None]]) -> tuple[tuple[str, str], ...]:
    """Kind and name of every level present, sorted."""
    return tuple(sorted({(kind, level) for row in levels for kind, level in row.items() if level}))


def own_scatter(before: Fit, measured: Measured, held_out: np.ndarray) -> tuple[Scatter, ...]:
    """Scatter of the fitted runs by source and framework.

    Runs from the data of the start are not held out: their scatter may widen the known scatter of a level but never
    narrow it.
    """
    known = before.scatter_by_level
    return tuple(
        wider(entry, known.get(place, entry))
        for entry in measured_scatter(measured, held_out)
        # Runs known to the start are not held out: the scatter may only widen.
        if (place := (entry.kind, entry.level)) in known or place not in before.known
    )


def novel_scatter() -> tuple[Scatter, ...]:
    """Scatter of new models, larger clusters and new sources in the shipped fit, for a fit without a start."""
    novel = ("new_model", "larger", "new_source")
    return tuple(entry for entry in load_fit("default").scatter if entry.kind in novel and not entry.level)


def shared_levels(rows: Sequence[Mapping[str, str]]) -> tuple[tuple[str, str], ...]:
    """Source and framework common to all runs, where all runs name one and only one."""
    named = {kind: {row[kind] for row in rows} for kind in ("source", "framework")}
    return tuple((kind, max(levels)) for kind, levels in named.items() if len(levels) == 1 and levels != {""})


def largest_clusters(before: Fit, measured: Measured) -> tuple[tuple[str, float], ...]:
    """Largest number of chips of any run of each source, sources of the start included [1]."""
    largest = dict(before.largest)
    for source, count in zip(measured.levels.column("source"), np.asarray(measured.batch.cluster.n_chips), strict=True):
        largest[source] = max(largest.get(source, 0.0), float(count))
    return tuple(sorted(largest.items()))


def level_effects(effects: Sequence[Effect], values: np.ndarray) -> tuple[LevelEffect, ...]:
    """Effects grouped by level; shifts below a thousandth are dropped."""
    pairs = zip(effects, values, strict=False)
    return effects_of((e.kind, e.level, e.coefficient, value) for e, value in pairs if abs(value) > 1e-3)


def kept_effects(before: Fit, rows: Sequence[Mapping[str, str]]) -> tuple[LevelEffect, ...]:
    """Effects of the start that the fit keeps; of effects by source only the sources of the fitted runs.

    The start itself predicts runs of further sources.
    """
    own = {row["source"] for row in rows if row["source"]}
    return tuple(effect for effect in before.effects if effect.kind != "source" or effect.level in own)
