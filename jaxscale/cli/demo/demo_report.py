"""The report of the demonstration: text, tables and figures."""

from typing import TYPE_CHECKING, Any

import numpy as np

from jaxscale.base.arrays import number as concrete
from jaxscale.base.units import GB
from jaxscale.cli.demo.demo_work import (
    AS_TRAINED,
    BATCH,
    GPU,
    MODEL,
    N_GPUS,
    SOURCE,
    DemoCalibration,
    DemoDesign,
    distinct,
    shape_figures,
    shapes_along,
)
from jaxscale.plans.plan import Plan
from jaxscale.report.document import Report
from jaxscale.report.figures import (
    intervals,
    predicted_against_measured,
    residuals_by_column,
    sensitivity_bars,
    shape_map,
    shape_profile,
    step_breakdown,
)
from jaxscale.report.fit_report import add_coefficients
from jaxscale.report.style import seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RESIDUAL_COLUMNS = ("d_model", "n_layers", "n_gpus", "tp", "pp", "dp")


def demo_document(calibration: DemoCalibration, design: DemoDesign) -> dict[str, Any]:
    """The results as plain data."""
    errors = calibration.held_out.errors()
    return {
        "fit": {
            "source": SOURCE,
            **{name: calibration.result.to_json()[name] for name in ("n", "mape_train", "mape_cv")},
        },
        "held_out": {name: errors[name] for name in ("n", "mape", "median_ape", "p90_ape", "coverage_90")},
        "as_trained_step_time_s": sum(design.as_trained.values()),
        "plan": {"model": MODEL, "gpu": GPU, "n_gpus": N_GPUS, **design.plans.to_json()["best"]},
        "plans_searched": design.plans.searched,
        "plan_of_the_time": {**design.plans_then.to_json()["best"], "searched": design.plans_then.searched},
        "as_trained_measured_s": design.measured,
        "shape": {**shape_figures(design.shape), "plan": plan_label(design.shape_plan), "time_saved": design.gain},
    }


LEAST_GAIN = 5e-4
"""Share of the time below which a shape counts as no faster [1]."""


def summary_lines(calibration: DemoCalibration, design: DemoDesign) -> list[str]:
    """The results in a few lines of text."""
    errors, best = calibration.held_out.errors(), design.plans.best
    rounded, template = design.shape.rounded.model, design.model
    then, trained = design.plans_then, sum(design.as_trained.values())
    is_the_same = then.best.plan.words() == AS_TRAINED.words()
    is_faster = design.gain >= LEAST_GAIN
    saved = f"{100 * design.gain:.1f} % less time" if is_faster else "no faster than the shape that was used"
    return [
        f"fit: {calibration.result.n} runs of {SOURCE}; error {calibration.result.mape_train:.1f} % in sample, "
        f"{calibration.result.mape_cv:.1f} % in cross-validation by group",
        f"held out: {errors['n']} other runs; mean error {errors['mape']:.1f} %, median {errors['median_ape']:.1f} %; "
        f"{100 * errors['coverage_90']:.0f} % inside their 90 % interval",
        f"best of {then.searched:,} plans for {MODEL} on {N_GPUS} {GPU} with the software of the time: "
        f"{plan_label(then.best.plan)}; {seconds(then.best.step_time)} per step"
        + (", the plan that was used" if is_the_same else f"; the plan that was used takes {seconds(trained)}")
        + f" (measured: {seconds(design.measured)})",
        f"best of {design.plans.searched:,} plans with sequence parallelism and selective recomputation: "
        f"{plan_label(best.plan)}; {seconds(best.step_time)}, {100 * (1.0 - best.step_time / trained):.0f} % less; "
        f"MFU {100 * best.mfu:.1f} %, {best.memory / GB:.1f} GB",
        f"shape of least time to the same loss: {concrete(rounded.n_layers):.0f} layers of "
        f"{concrete(rounded.d_model):.0f} instead of {concrete(template.n_layers):.0f} of "
        f"{concrete(template.d_model):.0f}, under {plan_label(design.shape_plan)}; {saved}",
    ]


def plan_label(plan: Plan) -> str:
    """Label of a plan on a line: degrees above 1, microbatch, sharding and recomputation."""
    words = plan.words()
    short = {"tp": "tp", "pp": "pp", "vpp": "vpp", "cp": "cp", "ep": "ep", "dp": "dp", "micro_batch_size": "b"}
    # The size of the microbatch is shown at 1 too.
    parts = [f"{name} {words[key]}" for key, name in short.items() if words[key] > 1 or name == "b"]
    if words["zero_stage"]:
        parts.append(f"ZeRO-{words['zero_stage']}")
    if words["sequence_parallel"]:
        parts.append("SP")
    if words["recompute"] != "none":
        parts.append(f"{words['recompute']} recompute")
    return ", ".join(parts)


def make_report(calibration: DemoCalibration, design: DemoDesign) -> Report:
    """The whole report."""
    report = Report("Training time, calibrated and used: a demonstration")
    report.sentences(summary_lines(calibration, design))
    add_calibration(report, calibration)
    add_plans(report, design)
    add_shape(report, design)
    return report


def add_calibration(report: Report, calibration: DemoCalibration) -> None:
    """Section on calibration: held-out predictions with intervals and errors, and fitted coefficients."""
    fit, held_out = calibration.result, calibration.held_out
    report.heading("Predictions of runs that the fit has not seen")
    report.text(
        f"The runs of {SOURCE} are put into groups of one model shape, number of chips, tp and pp. One group in five "
        "was set aside before the fit: its runs are 'held out' below. The others are predicted by cross-validation, "
        "each by a fit that has not seen its group."
    )
    caption = "Predicted against measured step time; right: the same errors as ratios. No run was seen by its own fit."
    report.figure("predicted_against_measured", held_out_figure(calibration), caption)
    caption = "Predictive intervals of the runs held out, over their measured times."
    report.figure("intervals", intervals(held_out.measured, held_out.lo, held_out.hi), caption)
    columns = {name: calibration.runs.column(name) for name in RESIDUAL_COLUMNS}
    # A constant or incomplete column shows no slope.
    columns = {name: values for name, values in columns.items() if None not in values and len(set(values)) > 1}
    caption = "Errors of the runs held out, by column."
    residuals = np.log(held_out.step_time / held_out.measured)
    report.figure("residuals_by_column", residuals_by_column(residuals, columns), caption)
    add_coefficients(report, fit)


def held_out_figure(calibration: DemoCalibration) -> "Figure":
    """Figure of predicted against measured step times of held-out runs.

    Args:
        calibration: the fit and its predictions.

    Returns:
        The figure.
    """
    fit, held_out = calibration.result, calibration.held_out
    # The problem is padded behind the n rows.
    times = np.exp(np.asarray(fit.problem.log_time)[: fit.n])
    everything = np.concatenate([times, held_out.measured])
    # Column 0 holds the error of time, log of predicted over measured.
    predicted = np.concatenate([times * np.exp(np.asarray(fit.held_out).reshape(fit.n, -1)[:, 0]), held_out.step_time])
    labels = ["cross-validation"] * fit.n + ["held out"] * len(held_out.measured)
    return predicted_against_measured(everything, predicted, labels)


def add_plans(report: Report, design: DemoDesign) -> None:
    """Section on plans: fastest plans, terms of step times, and elasticities of the best plan."""
    plans, shown = design.plans, distinct(design.plans)
    report.heading(f"The best plan for {MODEL} on {N_GPUS} {GPU}")
    report.text(
        f"Batch of {BATCH} sequences; no flash attention, context parallelism or interleaved pipeline, of which the "
        f"runs above tell nothing. All {plans.searched:,} valid plans were scored; {plans.infeasible:,} exceed "
        f"{plans.memory_limit / GB:.1f} GB, the predicted memory at which one run in ten would not fit. The last row "
        f"is the best of the {design.plans_then.searched:,} plans that the software of the time could do."
    )
    shown = [*shown, design.plans_then.best]
    rows = [
        (
            plan_label(scored.plan),
            seconds(scored.step_time),
            f"{100 * scored.mfu:.1f} %",
            f"{scored.memory / GB:.1f} GB",
        )
        for scored in shown
    ]
    report.table(("plan", "step", "MFU", "memory"), rows)
    bars = {f"best: {plan_label(shown[0].plan)}": shown[0].terms}
    # The last of `shown` is the plan of the time.
    bars |= {plan_label(scored.plan): scored.terms for scored in shown[1:-1]}
    bars |= {f"as trained: {plan_label(AS_TRAINED)}": design.as_trained}
    caption = "Where the time of a step goes, under the fastest plans of different degrees and the one that was used."
    report.figure("step_breakdown", step_breakdown(bars), caption)
    report.text("Neighbours of the best plan: " + "; ".join(plans.reasons[:6]) + ".")
    bars = sensitivity_bars(design.elasticities, step_time=plans.best.step_time)
    caption = (
        "Elasticities of the step time under the best plan: per cent of step time for one per cent of each quantity."
    )
    report.figure("sensitivity", bars, caption)


def add_shape(report: Report, design: DemoDesign) -> None:
    """The search for a better width and depth."""
    shape, grid, template = design.shape, design.grid, design.model
    report.heading("A better width and depth")
    report.text(
        "At a fixed number of parameters and under a few fast plans, gradient descent looks for the width and depth "
        "that reach a given loss soonest: wider models run faster, but models far from the usual ratio of width to "
        "depth need more training for the same loss."
    )
    published = (concrete(template.d_model), concrete(template.n_layers))
    best = (concrete(shape.rounded.model.d_model), concrete(shape.rounded.model.n_layers))
    visited = shapes_along(shape)
    # The search begun nearest to 0.7 of the largest width.
    start = int(np.argmin(np.abs(visited[0, :, 0] - 0.7 * grid.widths[-1])))
    marks = {"published shape": published, "best shape": best}
    curve = np.stack([grid.curve_widths, grid.curve_depths], axis=1)
    figure = shape_map(grid.widths, grid.depths, grid.step_times, curve=curve, path=visited[::3, start], marks=marks)
    caption = "Step time over width and depth, with shapes of equal parameters and the path of one gradient search."
    report.figure("shape_map", figure, caption)
    figure = shape_profile(
        grid.curve_widths,
        {"step time": grid.curve_times, "time to the same loss": np.exp(shape_objective(design))},
        marks={"published shape": published[0], "best shape": best[0]},
    )
    report.figure("shape_profile", figure, "Step time and time to the same loss along shapes of equal parameters.")


def shape_objective(design: DemoDesign) -> np.ndarray:
    """Log time to equal loss along the curve of equal parameters, from the points of the search."""
    # Every visited point has equal parameters, hence lies on the curve.
    widths, values = shapes_along(design.shape)[..., 0].ravel(), design.shape.trajectory.ravel()
    kept = np.isfinite(values)
    order = np.argsort(widths[kept])
    widths, values = widths[kept][order], values[kept][order]
    # No values beyond the visited widths.
    inside = (design.grid.curve_widths >= widths[0]) & (design.grid.curve_widths <= widths[-1])
    return np.where(inside, np.interp(design.grid.curve_widths, widths, values), np.nan)
