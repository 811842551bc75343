"""Shape, batch and plan at once: certified optimum, right prices, valid integer design."""

import dataclasses
import json
import math

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

from jaxscale.base.errors import InputError
from jaxscale.calibration.coefficients import prior_medians
from jaxscale.costs.memory import memory
from jaxscale.costs.step import step_time
from jaxscale.designs.best_design import best_design
from jaxscale.designs.budgets import Budget
from jaxscale.designs.design_result import pareto_front, with_more
from jaxscale.designs.quantities import N_COORDINATES, QUANTITIES, DesignProblem, design_at
from jaxscale.designs.shape_report import shape_report
from jaxscale.designs.time_to_loss import default_laws
from jaxscale.hardware.catalogue import cluster
from jaxscale.laws.loss import BatchLaw, shape_law
from jaxscale.models import model
from jaxscale.models.transformer import Transformer, n_params
from jaxscale.optimise.interior_point import best_candidate, certify, polish, promising, rough_search, start_points
from jaxscale.optimise.problems import Problems, goals
from jaxscale.plans.relaxed_search import FAMILIES
from jaxscale.plans.rules import violations

COEFFICIENTS, H100S = prior_medians(), cluster("h100-80gb", 512)
EXCESS = QUANTITIES.index("excess_loss")


@pytest.fixture(scope="module")
def choice():
    return best_design(H100S, Budget(days=60), fit="prior")


def again(choice, problem=None, wanted=None):
    """The optimum of a slightly different problem, from the old one."""
    wanted = wanted or choice.goals
    problems = Problems.of([problem or choice.relaxed.problem])
    optimum = certify(polish(choice.relaxed.point[None], problems, wanted), np.arange(1), problems, wanted)
    assert optimum.residual[0] < 1e-6
    return float(wanted.objective(optimum.values)[0]), optimum


def test_relaxed_optimum_satisfies_kkt(choice):
    assert choice.relaxed.converged and choice.relaxed.residual < 1e-6
    assert choice.goals.residuals(choice.relaxed.values).max() < 1e-6
    assert (choice.relaxed.multipliers >= 0.0).all()


def test_the_residual_of_an_unfinished_point_is_its_steepest_slope(choice):
    problems, loose = Problems.of([choice.relaxed.problem]), goals(QUANTITIES, {"excess_loss": 1.0}, {"time": 1e30})
    # In the middle of the box the multipliers of opposite faces cancel.
    start = polish(np.full((1, N_COORDINATES), 0.5), problems, loose, n_steps=1)
    _, slopes = problems.jacobian(start.point, range(len(QUANTITIES)))
    steepest = np.abs((loose.weights + start.multipliers[0]) @ slopes[0]).max()
    assert start.residual[0] == pytest.approx(steepest, rel=1e-6) and steepest > 0.1


def test_slopes_equal_differences():
    problems = Problems.of(
        [DesignProblem(model("mixtral-8x7b"), H100S, COEFFICIENTS, default_laws(), FAMILIES[0], 128.0)]
    )
    point, step, all_of_them = start_points(3, N_COORDINATES)[2:], 1e-6, range(len(QUANTITIES))
    _, slopes = problems.jacobian(point, all_of_them)
    many = problems.rows(np.zeros(N_COORDINATES, int))
    ahead, behind = (many.values(point + sign * step * np.eye(N_COORDINATES)) for sign in (1, -1))
    np.testing.assert_allclose(slopes[0].T, (ahead - behind) / (2.0 * step), rtol=1e-5, atol=1e-6)


def test_prices_of_bounds_equal_reoptimised_differences(choice):
    for name in ("time", "memory"):
        step = 2e-3
        bound = choice.goals.bound(name)
        ahead, behind = (again(choice, wanted=choice.goals.with_bound(name, bound + s * step))[0] for s in (1, -1))
        assert choice.prices[f"bound_on_{name}"] == pytest.approx((ahead - behind) / (2.0 * step), abs=1e-3)


@pytest.mark.parametrize("name", ["n_chips", "peak_flops", "scale_out_bandwidth"])
def test_prices_of_resources_equal_reoptimised_differences(choice, name):
    step = 2e-3
    ahead, behind = (again(choice, problem=with_more(choice.relaxed.problem, name, s * step))[0] for s in (1, -1))
    assert choice.prices[name] == pytest.approx((ahead - behind) / (2.0 * step), abs=1e-3)


def test_dual_problem_returns_the_same_design(choice):
    """Least time to the loss just found takes the time just allowed."""
    limits = {"memory": math.exp(choice.goals.bound("memory")), "excess_loss": math.exp(choice.relaxed.values[EXCESS])}
    log_time, optimum = again(choice, wanted=goals(QUANTITIES, {"time": 1.0}, limits))
    assert log_time == pytest.approx(choice.goals.bound("time"), abs=1e-5)
    np.testing.assert_allclose(optimum.values[0], choice.relaxed.values, atol=1e-4)


def test_batch_is_the_best_of_a_grid(choice):
    """Along the batch alone, the Lagrangian is least at the optimum."""
    index, problem = 7, choice.relaxed.problem
    points = np.repeat(choice.relaxed.point[None], 41, axis=0)
    points[:, index] += np.linspace(-0.01, 0.01, 41)
    values = Problems.of([problem] * 41).values(points)
    lagrangian = choice.goals.objective(values) + choice.goals.residuals(values) @ choice.relaxed.multipliers
    batch = values[:, QUANTITIES.index("batch")]
    assert abs(batch[lagrangian.argmin()] - batch[20]) < 5e-3


def test_more_steps_and_starts_find_nothing_better(choice):
    problems = Problems.of([dataclasses.replace(choice.relaxed.problem, family=family) for family in FAMILIES])
    starts = start_points(120, N_COORDINATES)
    for n_starts, n_steps in ((60, 160), (120, 80)):
        rows = np.arange(n_starts) % len(FAMILIES)
        rough = rough_search(starts[:n_starts], problems.rows(rows), choice.goals, n_steps)
        order = promising(rough.merits, rows)[:5]
        optimum = polish(rough.points[order], problems.rows(rows[order]), choice.goals)
        best = best_candidate(optimum, choice.goals)
        # Other valleys of the memory limit lie within half a percent.
        assert 0.0 <= choice.goals.objective(optimum.values[best]) - choice.relaxed.objective + 1e-6 < 5e-3


def test_slsqp_finds_nothing_better(choice):
    problem, wanted = Problems.of([choice.relaxed.problem]), choice.goals
    kept = wanted.bounded()

    def both(point):
        values, slopes = problem.jacobian(np.clip(point, 0.0, 1.0)[None], range(len(QUANTITIES)))
        return values[0], slopes[0]

    bound = {"type": "ineq", "fun": lambda u: -wanted.residuals(both(u)[0])[kept], "jac": lambda u: -both(u)[1][kept]}
    start = np.clip(choice.relaxed.point + 0.02 * np.cos(np.arange(N_COORDINATES)), 0.0, 1.0)
    found = minimize(
        lambda u: both(u)[0] @ wanted.weights,
        start,
        jac=lambda u: wanted.weights @ both(u)[1],
        bounds=[(0.0, 1.0)] * N_COORDINATES,
        constraints=[bound],
        method="SLSQP",
        options={"maxiter": 200, "ftol": 1e-12},
    )
    assert choice.relaxed.objective <= found.fun + 1e-6
    assert choice.relaxed.objective == pytest.approx(found.fun, abs=1e-3)


def test_integer_design_is_valid_and_exact(choice):
    shape, plan = choice.rounded.model, choice.rounded.plan
    assert violations(shape, plan, 512) == []
    assert shape.d_model % 128 == 0
    assert shape.n_heads * shape.head_dim == shape.d_model
    assert shape.n_heads % 8 == 0 and shape.n_kv_heads == 8.0
    assert shape.n_layers % (plan.pp * plan.vpp) == 0
    arguments = (shape, plan, H100S, choice.relaxed.problem.coefficients)
    document = choice.to_json()
    assert document["step_time_s"] == pytest.approx(float(step_time(*arguments).total), rel=1e-9)
    peak = memory(*arguments)
    assert document["memory_gb"] == pytest.approx(float(peak.total - peak.framework) / 1e9, rel=1e-9)
    assert document["memory_gb"] * 1e9 <= math.exp(choice.goals.bound("memory"))
    assert document["training_days"] == pytest.approx(60.0, rel=1e-6)
    assert abs(choice.gap) < 0.02
    parts = choice.gap_parts
    assert (1.0 + parts["rounding"]) * (1.0 + parts["smoothing"]) == pytest.approx(1.0 + choice.gap)


def test_document(choice):
    document = json.loads(json.dumps(choice.to_json()))
    wanted = {"n_layers", "d_model", "d_ff", "n_heads", "global_batch_tokens", "plan", "step_time_s", "training_days"}
    wanted |= {"loss", "gradient_norm", "relaxed_optimum", "integer_gap", "shadow_prices"}
    assert wanted <= set(document)
    assert "KKT residual" in choice.summary()


def test_pareto_front_is_monotone(choice):
    front = pareto_front(choice.relaxed, choice.goals, "time", [86400.0 * days for days in (50.0, 60.0, 75.0)])
    assert (front.residuals < 1e-6).all()
    assert (np.diff(front.quantities["excess_loss"]) < 0.0).all()
    assert (np.diff(front.quantities["energy"]) > 0.0).all()
    assert (front.prices < 0.0).all()


def test_compute_alone_gives_the_closed_form():
    """Without network, memory traffic, batch penalty or failures, N and D are those of Hoffmann's equation 4."""
    tiny = {name: 1e-30 for name in TIMES}
    ideal = dataclasses.replace(COEFFICIENTS, **tiny, matmul_efficiency=1.0, layer_time_factor=1.0)
    single = eqx.tree_at(lambda c: (c.chip.hbm_bandwidth, c.chip.hbm_bytes), cluster("h100-80gb", 1), (1e40, 1e30))
    laws = dataclasses.replace(default_laws(), batch=BatchLaw(1e40), shape=shape_law("kaplan"))
    laws = eqx.tree_at(lambda r: r.failure.failures_per_chip_second, laws, 1e-30)
    template = Transformer(32, 4096, 32, 2, vocab_size=1)
    wanted = goals(QUANTITIES, {"excess_loss": 1.0}, {"time": 1e9})
    problems = Problems.of([DesignProblem(template, single, ideal, laws, FAMILIES[0], 128.0)] * 24)
    rough = rough_search(start_points(24, N_COORDINATES), problems, wanted, 120)
    optimum = polish(rough.points[np.argsort(rough.merits)[:2]], problems.rows(np.arange(2)), wanted)
    best = best_candidate(optimum, wanted)
    assert optimum.residual[best] < 1e-6
    design = design_at(jnp.asarray(optimum.point[best]), template, FAMILIES[0], 1.0, 128.0)
    params, tokens = float(n_params(design.model)), float(design.small_batch_tokens)
    closed_params, closed_tokens = laws.loss.optimum(6.0 * params * tokens)
    assert params == pytest.approx(float(closed_params), rel=1e-3)
    assert tokens == pytest.approx(float(closed_tokens), rel=1e-3)
    assert 6.0 * params * tokens == pytest.approx(1e9 * float(single.chip.peak("bf16")), rel=2e-3)


TIMES = (
    "host_time_layer",
    "host_time_tp_network",
    "host_time_tp_node",
    "collective_launch",
    "moe_expert_time",
    "pp_slot_time",
    "step_time",
    "straggler",
    "matmul_half_area",
    "matmul_exposed_bytes",
)
"""Coefficients of everything that is not a matmul."""


def test_report_of_a_small_mixture():
    """A mixture of experts to a size, by name; every bound is kept by the exact model."""
    budget = Budget(params=2e10)
    document = shape_report("a100-80gb", 64, budget, fit="prior", template="mixtral-8x7b", price_per_chip_hour=2.0)
    assert document["params"] == pytest.approx(2e10, rel=0.0301)
    assert document["money"] == pytest.approx(2.0 * document["chip_hours"])
    assert document["plan"]["dp"] * document["plan"]["tp"] * document["plan"]["pp"] * document["plan"]["cp"] == 64


def test_each_objective_is_best_at_what_it_minimises():
    """To the same loss: least time and least energy."""
    days, energy = {}, {}
    for objective in ("time", "energy"):
        document = best_design(H100S, Budget(loss=2.1), fit="prior", objective=objective).to_json()
        assert document["loss"] <= 2.1 + 1e-6
        days[objective], energy[objective] = document["training_days"], document["energy_mwh"]
    # Whole numbers cost up to a few per cent, so that a tie may go either way.
    assert days["time"] <= 1.02 * days["energy"]
    assert energy["energy"] <= 1.02 * energy["time"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((Budget(days=1.0), "energy"), "does not go with days"),
        ((Budget(loss=2.0), "tokens_per_second"), "expected a budget of params"),
        ((Budget(loss=2.0), "beauty"), "expected one of time, energy, tokens_per_second"),
    ],
)
def test_objectives_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        best_design(H100S, arguments[0], fit="prior", objective=arguments[1])


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ({}, "expected exactly one of days, loss, flop, params"),
        ({"days": 1.0, "loss": 2.0}, "days, loss given"),
        ({"days": -1.0}, "out of range"),
        ({"loss": 1.0}, "irreducible"),
        ({"loss": 30.0}, "the smallest run reaches"),
        ({"flop": 1e-300}, "the smallest run takes"),
        ({"params": 1e3}, "the smallest run takes"),
        ({"days": 1.0, "n_gpus": 1.5}, "whole number"),
    ],
)
def test_bad_budgets_get_one_line(budget, message):
    chips = budget.pop("n_gpus", 8)
    with pytest.raises(InputError, match=message) as error:
        best_design(cluster("h100-80gb", chips), Budget(**budget), fit="prior")
    assert "\n" not in str(error.value)
