"""Report of a fit: plain text, HTML for notebooks, JSON, and cautions."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxscale.base.table import Table, TableColumn, html_of, make_table, text_column
from jaxscale.calibration.coefficients import constrain_values, names, priors
from jaxscale.calibration.levels import UNNAMED
from jaxscale.fitting.fit_estimates import FitEstimates
from jaxscale.fitting.informed_coefficients import informs
from jaxscale.fitting.objective import loss

ABSURD_ERROR = 70.0
"""Held-out error above the error of any shipped table, even by a fit without its framework (fits/README.md) [%]."""

OUTSTANDING = 5.0
"""Ratio of the largest influence of a run to the next largest, from which the report names the run for inspection
[1]."""

REPORTED_KINDS = ("source", "framework", "gpu", "precision", "release")
"""Kinds of level by which errors and influence are reported."""

PARAMETER_COLUMNS = (
    text_column("coefficient"),
    TableColumn("value", says="{}", stays=True),
    TableColumn("90 % interval", "90 %", says="{}", stays=True),
    text_column("unit"),
    text_column("known from", "from", says="by {}"),
)
ERROR_COLUMNS = (
    text_column("runs of"),
    TableColumn("runs", says="{} runs", stays=True),
    TableColumn("mean error", "mean %", "%", stays=True),
    TableColumn("median error", "median %", "%", stays=True),
    TableColumn("bias", "bias %", "%", stays=True),
    TableColumn("influence"),
)


def headlines(result: FitEstimates) -> list[str]:
    """Lines of text with size, errors, information criteria and most influential runs of a fit."""
    found = result.diagnostics
    return [
        f"fit of {result.n} runs in {result.groups.max() + 1} groups, {len(result.effects)} effects of levels",
        f"error of step time: {result.mape_train:.2f} % in sample, {held_out_words(result)}",
        *memory_lines(result),
        *floor_lines(result),
        f"AIC {found.aic:.1f}, BIC {found.bic:.1f}, {found.n_effective:.1f} parameters decided by the runs",
        "most influential runs: "
        + ", ".join(f"{result.name_of(row)} ({distance:.2g})" for row, distance in result.influence),
    ]


def held_out_words(result: FitEstimates) -> str:
    """Text with mean and median error of held-out runs."""
    if not np.isfinite(result.held_out).any():
        return "no run held out"
    return f"{result.mape_cv:.2f} % held out (median {result.median_cv:.2f} %)"


def memory_error(result: FitEstimates) -> dict[str, Any]:
    """Number of runs with a measured peak memory, and mean absolute error in sample [%]; None without peaks."""
    found = 100.0 * np.abs(np.expm1(result.memory_errors))
    return {"n": len(found), "mape": float(np.mean(found)) if len(found) else None}


def memory_lines(result: FitEstimates) -> list[str]:
    """Line of text with the error of peak memory; empty if no run states a peak."""
    found = memory_error(result)
    return [f"error of peak memory: {found['mape']:.2f} % in sample, {found['n']} runs"] if found["n"] else []


def floor_lines(result: FitEstimates) -> list[str]:
    """Line of text with the scatter of runs of equal settings; empty without repeated runs."""
    noise = repeat_noise(result)
    if not noise["n"]:
        return []
    return [
        f"{noise['n']} runs repeat the settings of others and scatter by {noise['mape']:.2f} % "
        f"(median {noise['median_ape']:.2f} %), which is what any prediction from settings errs by on further ones"
    ]


def repeat_noise(result: FitEstimates) -> dict[str, Any]:
    """Number of runs that repeat settings, and mean and median scatter [%]; None without repeats."""
    known = result.repeats[np.isfinite(result.repeats)]
    scatter = 100.0 * np.abs(np.expm1(known))
    middle = (float(np.mean(scatter)), float(np.median(scatter))) if len(known) else (None, None)
    return {"n": len(known), "mape": middle[0], "median_ape": middle[1]}


def remarks(result: FitEstimates) -> list[str]:
    """Sentences on memory limits shown by the runs, and cautions."""
    limits = [
        f"half of the runs of {limit.source or 'no named source'} run out of memory where {limit.usable:.0%} of a "
        f"chip's is predicted, with a scatter of {limit.scatter:.0%}"
        for limit in result.memory_limits
    ]
    return [*limits, *cautions(result)]


MOST_OPEN = 8
"""Open coefficients that a summary names one by one [1]."""


def parameter_table(result: FitEstimates, *, decided: bool = False) -> Table:
    """Table of the coefficients, of all or of those that the runs decide."""
    rows = [
        (
            name,
            f"{entry['value']:.3g}",
            f"[{entry['lo']:.3g}, {entry['hi']:.3g}]",
            entry["unit"],
            "the runs" if entry["identified"] else "prior",
        )
        for name, entry in result.parameters.items()
        if entry["identified"] or not decided
    ]
    return make_table("Coefficients that the runs decide" if decided else "Coefficients", PARAMETER_COLUMNS, rows)


def open_lines(result: FitEstimates) -> list[str]:
    """Runs that would tell the first open coefficients that act in the fitted runs, and a count of the others."""
    told = telling_runs(result)
    acting = [name for name in told if informs(result.batch, name).any()][:MOST_OPEN]
    lines = [f"{name} is not identified; {told[name]} would tell it" for name in acting]
    left = len(told) - len(acting)
    return [*lines, f"{left} more are not identified: --json and --report list all"] if left else lines


def error_table(result: FitEstimates) -> Table:
    """Table of errors by level, for factors with several levels; may be empty."""
    rows = []
    for kind in REPORTED_KINDS:
        errors = result.errors_by(kind)
        if len(errors) < 2:
            continue
        influence = result.influence_by(kind)
        rows += [
            (
                f"{kind} {level}",
                f"{entry['n']}",
                f"{entry['mape']:.1f}",
                f"{entry['median_ape']:.1f}",
                f"{entry['bias']:+.1f}",
                f"{influence[level]:.2g}",
            )
            for level, entry in errors.items()
        ]
    return make_table("Errors by level", ERROR_COLUMNS, rows)


def summary_parts(result: FitEstimates) -> list[str | Table]:
    """Lines and tables of the report, in order: errors, coefficients, remarks, and paces of workloads."""
    errors = error_table(result)
    tables = [table for table in (errors, parameter_table(result, decided=True)) if table.rows]
    parts = [*headlines(result), *tables, *remarks(result), *open_lines(result)]
    return [*parts, *(["", *result.paces.parts()] if result.paces is not None else [])]


def summary_html(result: FitEstimates) -> str:
    """Report as HTML, with the meaning of each coefficient."""
    meanings = [prior.meaning for prior in priors().values()]
    table = parameter_table(result)
    explained = make_table(
        table.title,
        (*table.columns, TableColumn("meaning", is_text=True)),
        [(*row, meaning) for row, meaning in zip(table.rows, meanings, strict=True)],
    )
    decided = parameter_table(result, decided=True)
    return html_of([*(part for part in summary_parts(result) if part != decided), explained])


def summary_json(result: FitEstimates) -> dict[str, Any]:
    """Report as JSON data; nan becomes None."""
    found = result.diagnostics
    return {
        "n": result.n,
        "mape_train": _finite(result.mape_train),
        "mape_cv": _finite(result.mape_cv),
        "median_cv": _finite(result.median_cv),
        "memory": memory_error(result),
        "repeats": repeat_noise(result),
        "valid": result.valid,
        "messages": list(cautions(result)),
        "aic": found.aic,
        "bic": found.bic,
        "n_effective": found.n_effective,
        "influential_runs": [
            {"run": row, "line": result.lines[row] if result.lines else None, "cooks_distance": distance}
            for row, distance in result.influence
        ],
        "influence_by": {kind: result.influence_by(kind) for kind in REPORTED_KINDS},
        "by": {kind: result.errors_by(kind) for kind in REPORTED_KINDS},
        "parameters": result.parameters,
        "told_by": telling_runs(result),
        "memory_limits": [asdict(limit) for limit in result.memory_limits],
        "effects": [{"kind": e.kind, "level": e.level, "shifts": dict(e.shifts)} for e in result.fit.effects],
        "workloads": result.paces.to_json() if result.paces is not None else None,
    }


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def cautions(result: FitEstimates) -> tuple[str, ...]:
    """Sentences on failed convergence, coefficients not identified, influential runs, missing groups, and so on."""
    sentences = (
        _absurd_error(result),
        *impossible_rates(result),
        _stopped_early(result),
        _shared_levels(result),
        _resting_on_priors(result),
        _deciding_run(result),
        _near_parent(result),
        _seen_by_parent(result),
        _settings_left_out(result),
        _no_groups(result),
    )
    return tuple(sentence for sentence in sentences if sentence)


def _absurd_error(result: FitEstimates) -> str:
    if not result.mape_cv > ABSURD_ERROR:
        return ""
    return f"held-out runs are {result.mape_cv:.0f} % off: check the units of the table, then its plans"


IN_SWITCH = 1.75
"""Largest bandwidth of all-reduces over the bandwidth of a link, possible with in-network reduction by switches of
eight chips: a ring would move 2 (n - 1) / n of the data (Klenk et al. 2020, ISCA, section 2) [1]."""

MARGIN = 1.02
"""Tolerance for rounding: factor on the largest possible rate [1]."""

RATES: Mapping[str, tuple[tuple[str, ...], float, str]] = {
    "matmul_efficiency": (("matmul_efficiency",), 1.0, "matmuls run at {:.2f} of the peak flop rate"),
    "fp8_efficiency": (("matmul_efficiency", "fp8_efficiency"), 1.0, "8-bit matmuls run at {:.2f} of the 8-bit peak"),
    "fp4_efficiency": (("matmul_efficiency", "fp4_efficiency"), 1.0, "4-bit matmuls run at {:.2f} of the 4-bit peak"),
    "attention_efficiency": (("attention_efficiency",), 1.0, "attention runs at {:.2f} of the peak flop rate"),
    "scan_efficiency": (("scan_efficiency",), 1.0, "scans run at {:.2f} of the peak flop rate"),
    "scale_up_efficiency": (
        ("scale_up_efficiency",),
        IN_SWITCH,
        "collectives reach {:.2f} of the scale-up peak",
    ),
    "scale_out_efficiency": (("scale_out_efficiency",), IN_SWITCH, "collectives reach {:.2f} of the network's peak"),
}
"""By the coefficient that runs must inform: factors of a rate, largest possible value of the rate [1], and its text."""

TIMES_OF_LAYERS = ("matmul", "fp8", "fp4", "attention", "scan")
"""Rates reduced by the ratio of the time of a layer to its terms, by the beginning of their names."""


def impossible_rates(result: FitEstimates) -> list[str]:
    """Sentences on fitted rates above the possible rate of the hardware."""
    # (rows, coefficients)
    rows = constrain_values(result.fit.unconstrained(result.levels))
    values = dict(zip(names(), np.moveaxis(np.asarray(rows), -1, 0), strict=True))
    found = []
    for name, (factors, most, said) in RATES.items():
        rate = np.prod([values[factor] for factor in factors], axis=0)
        if name.startswith(TIMES_OF_LAYERS):
            # Rates count the time of the whole layer.
            rate = rate / values["layer_time_factor"]
        beyond = informs(result.batch, name) & (rate > MARGIN * most)
        if beyond.any():
            found.append(
                f"{said.format(rate[beyond].max())} in {beyond.sum()} runs, at most {most:g} is possible: check units, "
                "chip, network and plans of the table"
            )
    return found


def telling_runs(result: FitEstimates) -> dict[str, str]:
    """Most informative run, in words, for each coefficient not identified by the runs."""
    return {
        name: prior.told_by
        for (name, prior), known in zip(priors().items(), result.identified, strict=True)
        if not known
    }


def _stopped_early(result: FitEstimates) -> str:
    if result.valid:
        return ""
    with jax.enable_x64(True):
        slope = jax.grad(loss)(result.solution.parameters, result.problem)
    return f"the optimiser stopped before its tolerance; largest gradient {jnp.max(jnp.abs(slope)):.2g}"


def _shared_levels(result: FitEstimates) -> str:
    """Levels common to all runs with an effect on the coefficients, as `gpu h100-80gb`."""
    moving = {(effect.kind, effect.level) for effect in result.fit.effects if effect.shifts}
    columns = {kind: result.levels.column(kind) for kind in result.levels.codes}
    single = {kind: levels[0] for kind, levels in columns.items() if len(set(levels)) == 1}
    shared = [f"{kind} {level}" for kind, level in single.items() if (kind, level) in moving]
    return f"coefficients are those of the runs: of {', '.join(shared)}, which all of them share" if shared else ""


def _resting_on_priors(result: FitEstimates) -> str:
    n_loose = int(np.sum(~result.identified))
    if not n_loose:
        return ""
    return f"{n_loose} of {len(result.identified)} coefficients rest on their prior: on what the fit started from"


def _deciding_run(result: FitEstimates) -> str:
    (run, most), (_, next_most), *_ = result.influence
    if not most > OUTSTANDING * max(1.0, next_most):
        return ""
    return (
        f"{result.name_of(run)} decides more than any other run, with an influence of {most:.2g} against "
        f"{next_most:.2g}: see what a fit without it says"
    )


def _near_parent(result: FitEstimates) -> str:
    if not result.tightness < 1.0:
        return ""
    return (
        f"the fit stays near its start, with priors of {result.tightness:g} times their spread: intervals of "
        "coefficients are as narrow as these"
    )


def _seen_by_parent(result: FitEstimates) -> str:
    """Sources of the runs in the data of the parent fit, not held out of the parent."""
    parent = result.fit.parent
    if parent is None:
        return ""
    stacks = zip(result.levels.column("source"), result.levels.column("framework"), strict=True)
    is_unnamed = any((UNNAMED, framework) in parent.known for source, framework in stacks if not source)
    sources = sorted(parent.known_sources & set(result.levels.column("source"))) + ["no named source"] * is_unnamed
    if not sources:
        return ""
    return (
        f"the start was fitted to runs of {', '.join(sources)}: held-out errors may be of runs that it has seen, "
        "and intervals are as wide as its own at least"
    )


def _settings_left_out(result: FitEstimates) -> str:
    if not result.settings_left_out:
        return ""
    return (
        "too few groups of equal shape, chips, tp and pp: settings were left out one by one, and other shapes "
        "and plans may be further off than held-out runs"
    )


def _no_groups(result: FitEstimates) -> str:
    if np.isfinite(result.held_out).any():
        return ""
    return "too few groups of runs for a cross-validation: intervals are those of a new source"
