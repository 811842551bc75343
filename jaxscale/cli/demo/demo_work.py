"""Work of the demonstration: calibrate, predict held-out runs, choose a plan and a shape."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from jaxscale.base.arrays import number as concrete
from jaxscale.base.documents import data_path
from jaxscale.base.errors import InputError
from jaxscale.base.jit import filter_jit
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
from jaxscale.runs import Runs, read_runs
from jaxscale.runs.measured import fold_of, groups_of, measured_runs
from jaxscale.runs.predict import Prediction, predict

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
    """A fit, and predictions of held-out runs.

    Attributes:
        result: fit of the remaining runs.
        held_out: predictions of the held-out runs.
        runs: the runs held out.
    """

    result: FitResult
    held_out: Prediction
    runs: Runs


class ShapeGrid(NamedTuple):
    """Step times over widths and depths, and along shapes of equal numbers of parameters.

    Attributes:
        widths: [1], [width].
        depths: [1], [depth].
        step_times: [s], [depth, width].
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
    """The best plan, a better shape, and elasticities of the step time.

    Attributes:
        model: the published shape.
        plans: ranked plans of the published shape.
        plans_then: ranked plans restricted to the software of the time.
        as_trained: terms of the step under the published plan [s].
        measured: median of the step times measured under the published plan [s].
        shape: best result of searches over width and depth under a few fast plans.
        shape_plan: the plan of that search.
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
    """Fit four fifths of the groups of runs of a shipped table and predict the last fifth."""
    kept, held_out = split(hardware)
    progress(f"{SOURCE}: {len(kept)} measured runs to fit, {len(held_out)} held out")
    result = fit(kept, start=None, name="demo", hardware=hardware, progress=progress)
    assert isinstance(result, FitResult)  # rows of traced workloads alone give paces
    progress("predicting the runs held out")
    return DemoCalibration(result, predict(held_out, result.fit, hardware), held_out)


def split(hardware: Hardware) -> tuple[Runs, Runs]:
    """Measured runs to fit and to hold out, split by groups of equal shape, chips, tp and pp."""
    runs = read_runs(data_path(f"runs/{SOURCE}.csv"), hardware=hardware)
    measured, positions = measured_runs(runs, hardware)
    # Groups, not rows: runs of equal shape and chips would give the answer away.
    is_left_out = fold_of(groups_of(measured), N_FOLDS) == 0
    return runs.take(positions[~is_left_out]), runs.take(positions[is_left_out])


def choose(calibrated: Fit, hardware: Hardware, progress: Progress) -> DemoDesign:
    """Rank the plans of a model on a cluster, then search width and depth under the best plan."""
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
    """Best shapes with the parameters of the template under each plan with memory for such a shape.

    Raises:
        InputError: no plan has memory for a shape.
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
    """Sizes, step time [s] and log time to equal loss of the chosen shape."""
    shape, values = choice.rounded.model, choice.relaxed.problem.figures(choice.rounded.values)
    sizes = {"d_model": concrete(shape.d_model), "n_layers": concrete(shape.n_layers), "params": values["params"]}
    return {**sizes, "step_time_s": values["step_time_s"], "objective": choice.rounded.objective}


def log_time_to_loss(shape: Transformer, choice: DesignChoice) -> float:
    """Log time to the same loss of any shape under the plan of a choice [1]."""
    problem = choice.relaxed.problem
    if not isinstance(problem, ShapeProblem):
        raise TypeError("expected the choice of a shape under a given plan")
    # `shape_quantities` reads a batch of shapes: (1,) leaves.
    values = shape_quantities(jax.tree.map(lambda leaf: np.asarray([leaf]), shape), problem)
    return float(values[0, SHAPE_QUANTITIES.index("time_to_loss")])


def shapes_along(choice: DesignChoice) -> np.ndarray:
    """Width and depth of every start along the rough search [step, start, 2]."""

    def sizes(point: Array) -> Array:
        shape = choice.relaxed.problem.design_at(point).model
        return jnp.stack([shape.d_model, shape.n_layers])

    # (step, start, 2)
    return np.asarray(jax.vmap(jax.vmap(sizes))(jnp.asarray(choice.path)))


def measured_as_trained(template: Transformer, hardware: Hardware) -> float:
    """Median of the measured step times of the model under the plan that was used [s]."""
    wanted = {"n_layers": template.n_layers, "d_model": template.d_model, "global_batch_size_seqs": BATCH}
    wanted |= {name: getattr(AS_TRAINED, name) for name in ("tp", "pp", "dp", "micro_batch_size")}
    rows = read_runs(data_path(f"runs/{SOURCE}.csv"), hardware=hardware)
    times = [row["step_time_s"] for row in rows if all(row[name] == value for name, value in wanted.items())]
    return float(np.median([time for time in times if time is not None]))


def distinct(plans: PlanChoice, most: int = 4) -> list[ScoredPlan]:
    """The fastest plans that differ in their degrees."""
    seen: dict[tuple[float, ...], ScoredPlan] = {}
    for scored in plans.top:
        plan = scored.plan
        # `top` is by rank: the first of equal degrees is the fastest.
        seen.setdefault((concrete(plan.tp), concrete(plan.pp), concrete(plan.cp)), scored)
    return list(seen.values())[:most]


def shape_grid(template: Transformer, plan: Plan, machine: Cluster, coefficients: Coefficients) -> ShapeGrid:
    """Step times of the template stretched to many widths and depths, in a single compiled call.

    As in the search, layers need not divide evenly over the stages.
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
    """Elasticity of the step time in each number of the chip, the network and the calibration [1]."""

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
