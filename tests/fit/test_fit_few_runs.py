"""Fits of a few runs of a stack: they leave the start as far as left-out runs ask for, and know what they saw."""

import dataclasses

import chex
import jax.numpy as jnp
import numpy as np
import pytest
from synthetic import FRAMEWORK, logs_at, named_runs, start_at_truth, synthetic_runs

import jaxscale as js
from jaxscale.calibration.coefficients import names
from jaxscale.fitting.fit_record import Attempt, about_start, base_of, fit_problem, shared_levels
from jaxscale.fitting.fitting import fit_measured, near_the_best
from jaxscale.fitting.multistart import refine
from jaxscale.runs.arrays import Measured


def test_few_runs_of_a_new_source_do_not_narrow_its_interval(measured: Measured):
    """Three runs cannot tell how far the fourth may be off, although the fit knows their source from then on."""
    start = js.load_fit()
    runs = named_runs(measured.take(np.arange(3)), source="mine/llm-foundry", framework="llm-foundry")
    levels = runs.levels.row(0)
    before, after = (
        fit.interval(levels, 8.0) for fit in (start, fit_measured(runs, start=start, n_starts=1, n_folds=2).fit)
    )
    assert after.time >= before.time and after.memory >= before.memory
    assert after.time > start.interval({"source": "mosaic_llm_foundry/llm-foundry"}).time


@pytest.fixture(scope="module")
def twenty(measured: Measured) -> tuple[dict[str, str], js.Fit]:
    """Levels of runs of a new source, and a fit of twenty of them about the shipped one."""
    runs = named_runs(measured.take(np.arange(0, 60, 3)), source="mine/llm-foundry", framework="llm-foundry")
    return runs.levels.row(0), fit_measured(runs, start=js.load_fit(), n_starts=1, n_folds=3).fit


@pytest.mark.parametrize(("kind", "other"), [("sequences", "s8192"), ("recompute", "none"), ("parallelism", "cp")])
def test_few_runs_tell_nothing_of_settings_that_none_of_them_had(
    twenty: tuple[dict[str, str], js.Fit], kind: str, other: str
):
    start, (levels, record) = js.load_fit(), twenty
    usual, changed = (record.interval(one, 8.0) for one in (levels, {**levels, kind: other}))
    # Of a setting that no run of the table had, the fit says so, and is no surer than of the others.
    assert changed.time >= usual.time
    assert record.notes({**levels, kind: other}, 8.0) == f"not in the fit, pooled values used: {kind} {other!r}"
    assert record.notes(levels, 8.0) == ""
    # A fit of many runs has seen what settings change.
    assert start.notes({**levels, kind: other, "source": "", "framework": "", "architecture": ""}, 8.0) == ""


def test_few_runs_leave_the_start_unless_left_out_runs_confirm_it(measured: Measured):
    """Priors count as alike whose held-out errors are near the best one's."""
    problem, effects = fit_problem(measured.take(np.arange(8)), start_at_truth())
    solution = refine(problem, jnp.zeros(problem.parametrisation.n_parameters))

    def attempts(*errors: float) -> list[Attempt]:
        return [Attempt(problem, effects, solution, np.full((8, 2), error)) for error in errors]

    for errors, alike in (
        ((0.10, 0.15, 0.2), [0]),
        ((0.10, 0.10, 0.085), [0, 1, 2]),
        ((0.2, 0.085, 0.1), [1, 2]),
        ((0.2, np.nan, 0.1), [2]),
        ((np.nan, np.nan), [0, 1]),
    ):
        tried = attempts(*errors)
        assert [id(attempt) for attempt in near_the_best(tried)] == [id(tried[index]) for index in alike]


def test_few_runs_of_a_known_source_stay_nearer_to_the_start_than_those_of_a_new_one(measured: Measured):
    """Runs that the start foretells up to their noise confirm it, whatever the prior."""
    few = synthetic_runs(measured, noise=0.01).take(np.arange(0, 64, 8))
    known = (("source", few.levels.column("source")[0]),)
    tightness = [
        fit_measured(
            few,
            start=start_at_truth(known=places),
            n_starts=1,
            n_folds=2,
        ).tightness
        for places in (known, (("gpu", "theirs"),))
    ]
    assert tightness[0] <= tightness[1]


def test_up_to_five_runs_of_a_new_stack_tell_its_pace_and_more_all_of_its_numbers(measured: Measured):
    problem, _ = fit_problem(measured.take(np.arange(8)), start_at_truth())
    few, more = (
        dict(zip(names(), np.asarray(about_start(problem, n).parametrisation.spread), strict=True)) for n in (5, 6)
    )
    assert few["layer_time_factor"] == more["layer_time_factor"] > 0.05
    assert few["host_time_layer"] < 0.01 < more["matmul_efficiency"] < more["host_time_layer"]


def test_few_runs_of_a_biased_cluster_correct_the_start(measured: Measured):
    """Eight runs that all take 40 % longer than the start says: the other runs are then predicted well."""
    start = start_at_truth()
    synthetic = synthetic_runs(measured, noise=0.01)
    times = 1.4 * np.asarray(synthetic.step_time)
    slower = dataclasses.replace(synthetic, step_time=times, peak_memory=np.full(len(times), np.nan))
    order = np.random.default_rng(3).permutation(len(times))
    shots, others = slower.take(np.sort(order[:8])), slower.take(np.sort(order[8:]))
    fitted = fit_measured(shots, start=start, n_starts=1).fit

    def median_error(fit: js.Fit) -> float:
        log_time, _ = logs_at(others.batch, base_of(others, fit))
        return float(np.median(np.abs(log_time - np.log(np.asarray(others.step_time)))))

    assert median_error(start) > 0.3
    assert median_error(fitted) < 0.06


def test_a_plan_for_the_fitted_cluster_needs_no_name_of_it(measured: Measured):
    """What runs of a stack told is part of the fit, whether or not a planned run names it again."""
    few = measured.take(np.arange(0, 64, 8))
    slower = dataclasses.replace(few, step_time=1.3 * np.asarray(few.step_time))
    fitted = fit_measured(slower, start=js.Fit("start", js.prior_medians()), n_starts=1, n_folds=2).fit
    assert dict(fitted.own) == {"source": few.levels.column("source")[0], "framework": FRAMEWORK}
    unnamed, named = (fitted.coefficients(levels) for levels in ({}, {"framework": FRAMEWORK}))
    chex.assert_trees_all_equal(unnamed, named)
    assert shared_levels([{"source": "a", "framework": "f"}, {"source": "b", "framework": "f"}]) == (
        ("framework", "f"),
    )
