"""Computations of `jaxscale demo`: fit, predictions of held-out runs, best plan and shape, and the report."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from jaxscale.base.arrays import number as concrete
from jaxscale.base.documents import data_path
from jaxscale.base.errors import InputError
from jaxscale.base.jit import filter_jit
from jaxscale.base.units import GB
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.calibration.record import Fit
from jaxscale.costs.step import step_time
from jaxscale.designs.best_design import best_design
from jaxscale.designs.budgets import Budget
from jaxscale.designs.design_result import DesignChoice
from jaxscale.designs.quantities import depth_of, stretched
from jaxscale.designs.shape_lattice import shape_quantities
from jaxscale.designs.shape_problem import SHAPE_QUANTITIES, ShapeProblem
from jaxscale.fitting.fitting import fit
from jaxscale.fitting.result import FitResult
from jaxscale.hardware.catalogue import Hardware, cluster
from jaxscale.hardware.cluster import Cluster
from jaxscale.hardware.formats import PRECISIONS
from jaxscale.models import model
from jaxscale.models.transformer import Transformer, n_params
from jaxscale.plans.best_plan import best_plan
from jaxscale.plans.choice import PlanChoice, ScoredPlan
from jaxscale.plans.enumerate import PlanSpace
from jaxscale.plans.plan import Plan
from jaxscale.plans.relaxed_search import TEMPERATURE
from jaxscale.plans.sensitivity import elasticity
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
from jaxscale.report.reports import add_coefficients
from jaxscale.report.style import seconds
from jaxscale.runs import Runs, read_runs
from jaxscale.runs.measured import fold_of, groups_of, measured_runs
from jaxscale.runs.predict import Prediction, predict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE = "bigscience_bloom_a100"
"""Shipped table: runs of models of 13 to 200 billion parameters on up to 384 A100, from before BLOOM was trained."""

MODEL, GPU, N_GPUS, BATCH = "bloom-176b", "a100-80gb", 384, 2048
"""The planned run: BLOOM 176B on 384 A100 80 GB, 2,048 sequences per step (Le Scao et al. 2022, section 3.2)."""

SOFTWARE = Plan(flash_attention=False, tp_overlap="backward", vocab_parallel_loss=True)
"""What Megatron-DeepSpeed of 2022 does: collectives beside gradients of weights, a loss on split logits."""

SPACE = PlanSpace(software=SOFTWARE, cp=(1,), zero_stage=(0, 1), schedule=("gpipe", "1f1b"))
"""Plans that later releases of the same software allow; without a flash kernel, which no run of the table has."""

SPACE_THEN = dataclasses.replace(SPACE, sequence_parallel=(False,), recompute=("none", "full"))
"""Plans that the software of the runs allowed: neither sequence parallelism nor selective recomputation (2022)."""

AS_TRAINED = dataclasses.replace(
    SOFTWARE, dp=8, tp=4, pp=12, zero_stage=1, micro_batch_size=2, n_microbatches=128, recompute="full"
)
"""The plan with which BLOOM was trained (Le Scao et al. 2022, section 3.2)."""

N_TOP, N_SHAPED = 400, 6
"""Plans to rank, enough to find several of different degrees; plans under which to search for a shape [plan]."""

LEVELS: Mapping[str, str | None] = {"gpu": GPU, "precision": "bf16"}
"""Levels of the planned run; source and framework are the ones that all fitted runs share."""

N_FOLDS = 5
"""One group of runs in this many is held out [1]."""

Progress = Callable[[str], None]


class DemoCalibration(NamedTuple):
    """Fit of the runs of a shipped table, and predictions of held-out runs of the table.

    Attributes:
        result: fit of the remaining runs.
        held_out: predictions of the held-out runs.
        runs: the held-out runs.
    """

    result: FitResult
    held_out: Prediction
    runs: Runs


class ShapeGrid(NamedTuple):
    """Step times on a grid of widths and depths, and along a curve of equal numbers of parameters.

    Attributes:
        widths: widths of the grid [1], [width].
        depths: depths of the grid [1], [depth].
        step_times: step times of the grid [s], [depth, width].
        curve_widths: widths along the curve of equal parameters [1], [point].
        curve_depths: depths along the curve [1], [point].
        curve_times: step times along the curve [s], [point].
    """

    widths: np.ndarray
    depths: np.ndarray
    step_times: np.ndarray
    curve_widths: np.ndarray
    curve_depths: np.ndarray
    curve_times: np.ndarray


class DemoDesign(NamedTuple):
    """Best plan of the published shape, best shape with as many parameters, and elasticities of the step time.

    Attributes:
        model: the published shape.
        plans: ranked plans of the published shape.
        plans_then: ranked plans possible with the software at the time of the published run.
        as_trained: terms of the step under the published plan [s].
        measured: median of the step times measured under the published plan [s].
        shape: best result of searches over width and depth under a few fast plans.
        shape_plan: plan of the search that found `shape`.
        gain: share of the time to equal loss saved relative to the published shape under the best plan [1].
        grid: step times around the shape.
        elasticities: d ln(step time) / d ln(quantity) by name, published shape, best plan [1].
    """

    model: Transformer
    plans: PlanChoice
    plans_then: PlanChoice
    as_trained: dict[str, float]
    measured: float
    shape: DesignChoice
    shape_plan: Plan
    gain: float
    grid: ShapeGrid
    elasticities: dict[str, float]


def calibrate(hardware: Hardware, progress: Progress) -> DemoCalibration:
    """Fit of four fifths of the groups of runs of a shipped table, with predictions of the last fifth."""
    kept, held_out = split(hardware)
    progress(f"{SOURCE}: {len(kept)} measured runs to fit, {len(held_out)} held out")
    result = fit(kept, start=None, name="demo", hardware=hardware, progress=progress)
    assert isinstance(result, FitResult)  # rows of traced workloads alone give paces
    progress("predicting the runs held out")
    return DemoCalibration(result, predict(held_out, result.fit, hardware), held_out)


def split(hardware: Hardware) -> tuple[Runs, Runs]:
    """Measured runs to fit and measured runs to hold out, split by groups of equal shape, chips, tp and pp."""
    runs = read_runs(data_path(f"runs/{SOURCE}.csv"), hardware=hardware)
    measured, positions = measured_runs(runs, hardware)
    # Groups, not rows: runs of equal shape and chips would give the answer away.
    is_left_out = fold_of(groups_of(measured), N_FOLDS) == 0
    return runs.take(positions[~is_left_out]), runs.take(positions[is_left_out])


def choose(calibrated: Fit, hardware: Hardware, progress: Progress) -> DemoDesign:
    """Best plans of a model on a cluster, and the best width and depth under a few fast plans."""
    machine, template = cluster(GPU, N_GPUS, hardware=hardware), model(MODEL)
    progress(f"searching the plans of {MODEL} on {N_GPUS} {GPU}")
    plans, plans_then = (
        best_plan(template, machine, BATCH, fit=calibrated, levels=LEVELS, space=space, top=N_TOP)
        for space in (SPACE, SPACE_THEN)
    )
    fitted = calibrated.coefficients(LEVELS)
    progress("searching for a better width and depth")
    shapes = shapes_under(distinct(plans, N_SHAPED), template, machine, calibrated)
    # The objective is a log time: the least is best.
    shape = min(shapes, key=lambda choice: choice.rounded.objective)
    # Against the published shape under its own best plan, not under the one that suits the new shape.
    gain = -math.expm1(shape.rounded.objective - log_time_to_loss(template, shapes[0]))
    trained = step_time(template, AS_TRAINED, machine, fitted).terms()
    return DemoDesign(
        model=template,
        plans=plans,
        plans_then=plans_then,
        as_trained={name: float(term) for name, term in trained.items()},
        measured=measured_as_trained(template, hardware),
        shape=shape,
        shape_plan=shape.rounded.plan,
        gain=gain,
        grid=shape_grid(template, shape.rounded.plan, machine, fitted),
        elasticities=elasticities(template, plans.best.plan, machine, fitted),
    )


def shapes_under(
    plans: Sequence[ScoredPlan], template: Transformer, machine: Cluster, calibrated: Fit
) -> list[DesignChoice]:
    """Best shape with the parameters of the template under each plan, without plans of insufficient memory.

    Raises:
        InputError: no plan has enough memory for any shape.
    """
    # Parameters of the published shape.
    budget, shapes, refusals = Budget(params=concrete(n_params(template))), [], []
    for scored in plans:
        try:
            shape = best_design(machine, budget, plan=scored.plan, template=template, fit=calibrated, levels=LEVELS)
        except InputError as refusal:
            # Limits of memory are lower for shapes that no run has measured: a plan for the template may have no room.
            refusals.append(refusal)
        else:
            shapes.append(shape)
    if not shapes:
        raise refusals[0]
    return shapes


def shape_figures(choice: DesignChoice) -> dict[str, float]:
    """Width, depth, parameters, step time [s] and log time to equal loss of the chosen shape, by name."""
    shape, values = choice.rounded.model, choice.relaxed.problem.figures(choice.rounded.values)
    sizes = {"d_model": concrete(shape.d_model), "n_layers": concrete(shape.n_layers), "params": values["params"]}
    return {**sizes, "step_time_s": values["step_time_s"], "objective": choice.rounded.objective}


def log_time_to_loss(shape: Transformer, choice: DesignChoice) -> float:
    """Log of the time of a shape to the loss of the search, under the plan of a choice [1]."""
    problem = choice.relaxed.problem
    if not isinstance(problem, ShapeProblem):
        raise TypeError("expected the choice of a shape under a given plan")
    # `shape_quantities` reads a batch of shapes: (1,) leaves.
    values = shape_quantities(jax.tree.map(lambda leaf: np.asarray([leaf]), shape), problem)
    return float(values[0, SHAPE_QUANTITIES.index("time_to_loss")])


def shapes_along(choice: DesignChoice) -> np.ndarray:
    """Width and depth along the gradient search, for every step and start [step, start, 2]."""

    def sizes(point: Array) -> Array:
        shape = choice.relaxed.problem.design_at(point).model
        return jnp.stack([shape.d_model, shape.n_layers])

    # (step, start, 2)
    return np.asarray(jax.vmap(jax.vmap(sizes))(jnp.asarray(choice.path)))


def measured_as_trained(template: Transformer, hardware: Hardware) -> float:
    """Median of the measured step times of the model under the published plan [s]."""
    wanted = {"n_layers": template.n_layers, "d_model": template.d_model, "global_batch_size_seqs": BATCH}
    wanted |= {name: getattr(AS_TRAINED, name) for name in ("tp", "pp", "dp", "micro_batch_size")}
    rows = read_runs(data_path(f"runs/{SOURCE}.csv"), hardware=hardware)
    times = [row["step_time_s"] for row in rows if all(row[name] == value for name, value in wanted.items())]
    return float(np.median([time for time in times if time is not None]))


def distinct(plans: PlanChoice, most: int = 4) -> list[ScoredPlan]:
    """Fastest plans with distinct degrees of tensor, pipeline and context parallelism, at most `most`."""
    seen: dict[tuple[float, ...], ScoredPlan] = {}
    for scored in plans.top:
        plan = scored.plan
        # `top` is by rank: the first of equal degrees is the fastest.
        seen.setdefault((concrete(plan.tp), concrete(plan.pp), concrete(plan.cp)), scored)
    return list(seen.values())[:most]


def shape_grid(template: Transformer, plan: Plan, machine: Cluster, coefficients: Coefficients) -> ShapeGrid:
    """Step times of the template scaled to many widths and depths.

    As in the search, the number of layers need not be a multiple of the pipeline stages.
    """
    head_dim = concrete(template.head_dim)
    # (36,) widths by (32,) depths, even in ratio as the axes.
    widths = concrete(template.d_model) * np.geomspace(0.55, 1.8, 36)
    depths = concrete(template.n_layers) * np.geomspace(0.35, 2.8, 32)
    curve_widths = np.geomspace(widths[0], widths[-1], 96)
    curve_depths = np.asarray(jax.vmap(lambda d: depth_of(template, d, n_params(template), head_dim))(curve_widths))

    @filter_jit
    def times(width: Array, depth: Array) -> Array:
        def one(d_model: ArrayLike, n_layers: ArrayLike) -> Array:
            shape = stretched(template, d_model, n_layers, head_dim)
            # The exact model jumps at each multiple of the stages.
            return step_time(shape, plan, machine, coefficients, TEMPERATURE).total

        return jax.vmap(one)(width, depth)

    # All points in a single call compile once.
    across, down = (mesh.ravel() for mesh in np.meshgrid(widths, depths))
    everywhere = (jnp.asarray(np.concatenate(pair)) for pair in ((across, curve_widths), (down, curve_depths)))
    log_times = np.asarray(times(*everywhere))
    grid, along = log_times[: across.size].reshape(depths.size, widths.size), log_times[across.size :]
    return ShapeGrid(widths, depths, grid, curve_widths, curve_depths, along)


def elasticities(template: Transformer, plan: Plan, machine: Cluster, coefficients: Coefficients) -> dict[str, float]:
    """Elasticities of the step time with respect to the numbers of chip, network, model and fit, by name [1]."""

    def time(shape: Transformer, where: Cluster, fitted: Coefficients) -> Array:
        return step_time(shape, plan, where, fitted).total

    shape, where, fitted = elasticity(time, (template, machine, coefficients))
    named = {
        "peak flop/s (16 bit)": where.chip.peak_flops[PRECISIONS.index("bf16")],
        "memory bandwidth": where.chip.hbm_bandwidth,
        "bandwidth in the node": where.network.bandwidth[0],
        "bandwidth between nodes": where.network.bandwidth[1],
        "latency in the node": where.network.latency[0],
        "latency between nodes": where.network.latency[1],
        "sequence length": shape.seq_len,
        "vocabulary": shape.vocab_size,
    }
    numbers = {name: getattr(fitted, name) for name in fitted.__dataclass_fields__}
    return {name: float(value) for name, value in {**named, **numbers}.items() if abs(float(value)) > 1e-4}


RESIDUAL_COLUMNS = ("d_model", "n_layers", "n_gpus", "tp", "pp", "dp")


def demo_document(calibration: DemoCalibration, design: DemoDesign) -> dict[str, Any]:
    """JSON-serialisable results of the demonstration."""
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
    """Results of the demonstration as lines of text."""
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
    """One-line label of a plan: degrees above 1, microbatch, sharding and recomputation."""
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
    """Report of the demonstration: calibration, plans and shape."""
    report = Report("Training time, calibrated and used: a demonstration")
    report.sentences(summary_lines(calibration, design))
    add_calibration(report, calibration)
    add_plans(report, design)
    add_shape(report, design)
    return report


def add_calibration(report: Report, calibration: DemoCalibration) -> None:
    """Add the section on calibration: held-out predictions with intervals and errors, and fitted coefficients."""
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
        calibration: fit and predictions.

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
    """Add the section on plans: fastest plans, terms of step times, and elasticities of the best plan."""
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
    """Add the section on the search for a better width and depth."""
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
    """Log time to equal loss along the curve of equal parameters, interpolated from the search [1]."""
    # Every visited point has equal parameters, hence lies on the curve.
    widths, values = shapes_along(design.shape)[..., 0].ravel(), design.shape.trajectory.ravel()
    kept = np.isfinite(values)
    order = np.argsort(widths[kept])
    widths, values = widths[kept][order], values[kept][order]
    # No values beyond the visited widths.
    inside = (design.grid.curve_widths >= widths[0]) & (design.grid.curve_widths <= widths[-1])
    return np.where(inside, np.interp(design.grid.curve_widths, widths, values), np.nan)
