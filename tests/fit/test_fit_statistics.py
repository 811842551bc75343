"""Statistics that every calibration shares, against cases with a known answer."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxscale.fitting.statistics.group_quantiles import interval_of, shared_variance
from jaxscale.fitting.statistics.mixed_effects import Block, MixedProblem, MixedSolution, effect_covariance, solve_mixed
from jaxscale.fitting.statistics.student import (
    robust,
    robust_slope,
    student_loss,
    student_scale,
    student_weight,
)

ERRORS = np.asarray([-30.0, -2.0, -1e-3, 1e-5, 0.5, 4.0, 100.0])


def test_weights_and_pseudo_residuals_are_those_of_the_loss():
    """rho'(x) / x, and squares of twice the loss; a normal loss has other ones."""
    with jax.enable_x64(True):
        slopes = np.asarray([jax.grad(student_loss)(float(x)) for x in ERRORS])
        assert np.asarray(student_weight(ERRORS)) * ERRORS == pytest.approx(slopes, rel=1e-9)
        residuals = jax.numpy.asarray(ERRORS)
        assert np.asarray(robust(residuals)) ** 2 == pytest.approx(2.0 * np.asarray(student_loss(ERRORS)), rel=1e-6)
        pulls = np.asarray(robust(residuals) * robust_slope(residuals))
        assert pulls == pytest.approx(slopes, rel=1e-6)
    assert slopes[-1] < 0.1 < ERRORS[-1], "a far error pulls less than a near one"


def test_the_scale_of_students_errors_is_found_through_outliers():
    rng = np.random.default_rng(0)
    errors = 0.07 * rng.standard_t(3.0, 20000)
    assert student_scale(errors, 0.15, (0.01, 1.0)) == pytest.approx(0.07, rel=0.03)
    errors[:400] += 50.0
    assert student_scale(errors, 0.15, (0.01, 1.0)) == pytest.approx(0.07, rel=0.1)
    assert errors.std() > 1.0
    assert student_scale(errors, 0.15, (0.2, 1.0)) == 0.2


def test_an_interval_holds_for_runs_of_new_groups():
    """Of G groups that err together, 90 % of new ones fall inside; quantiles of the runs alone hold fewer."""
    rng = np.random.default_rng(0)
    inside, naive, draws = 0, 0, 2000
    for _ in range(draws):
        shared = rng.standard_normal(21) + 0.5
        groups = np.repeat(np.arange(20), 4)
        low, high = interval_of(shared[groups], groups)
        inside += low <= shared[20] <= high
        low, high = np.quantile(shared[groups], [0.05, 0.95])
        naive += low <= shared[20] <= high
    assert inside / draws == pytest.approx(0.9, abs=0.03)
    assert naive / draws < 0.85


def test_an_interval_counts_groups_of_many_runs_once():
    """Runs that share half of their variance, one group of 400 among 20 of 8: the large one does not decide."""
    rng = np.random.default_rng(0)
    inside, by_runs, draws = 0, 0, 1000
    groups = np.concatenate([np.repeat(np.arange(20), 8), np.full(400, 20)])
    for _ in range(draws):
        shared = rng.standard_normal(22)
        errors = shared[groups] + rng.standard_normal(len(groups))
        new = shared[21] + rng.standard_normal(8)
        low, high = interval_of(errors, groups)
        inside += np.mean((low <= new) & (new <= high))
        low, high = np.quantile(errors, [0.05, 0.95])
        by_runs += np.mean((low <= new) & (new <= high))
    assert inside / draws == pytest.approx(0.9, abs=0.03)
    assert by_runs / draws < 0.83


def test_variance_within_and_between_groups_is_told_apart():
    rng = np.random.default_rng(0)
    codes = np.repeat(np.arange(300), 10)
    for share in (0.0, 0.5, 1.0):
        errors = np.sqrt(share) * rng.standard_normal(300)[codes] + np.sqrt(1 - share) * rng.standard_normal(3000)
        assert shared_variance(errors, codes) == pytest.approx(share, abs=0.05)


def linear_problem(true, codes, noise=0.0, seed=0):
    """Logarithms that are a coefficient by level plus noise."""
    rng = np.random.default_rng(seed)
    n = len(codes)

    def evaluate(logs):
        return logs[:, 0] + 0.5 * logs[:, 1], np.tile([1.0, 0.5], (n, 1))

    logs = np.asarray(true)[codes] + noise * rng.normal(size=n)
    names = tuple(map(str, range(len(true))))
    blocks = (
        Block("centre", 0, np.zeros(n, dtype=int), ("",), 1.0, is_free=False),
        Block("stack", 0, codes, names, 0.5),
    )
    base = np.zeros((n, 2))
    return MixedProblem(evaluate, base, np.arange(n), logs, np.zeros(n, dtype=int), blocks)


def test_effects_of_levels_are_recovered_and_shrunk():
    true = np.asarray([0.3, -0.2, 0.5])
    codes = np.repeat([0, 1, 2], [100, 100, 1])
    problem = linear_problem(true, codes, noise=0.05)
    found = solve_mixed(problem, np.ones(201, dtype=bool))
    centre, levels = found.effects[0], found.effects[1:]
    assert centre + levels[:2] == pytest.approx(true[:2], abs=0.02)
    # A single row moves its level part of the way only.
    assert abs(levels[2]) < abs(true[2] - centre)
    assert found.noise[0] == pytest.approx(0.05, rel=0.25)


def test_measurements_that_are_not_fitted_are_predicted():
    """Half of the rows say 1.0 and do not count: the fit is that of the others, and their error is seen."""
    codes = np.zeros(100, dtype=int)
    problem = linear_problem(np.asarray([0.2]), codes, noise=0.02)
    logs = np.where(np.arange(100) < 50, 1.0, problem.log_measured)
    misled = dataclasses.replace(problem, log_measured=logs)
    told = dataclasses.replace(misled, is_fitted=np.arange(100) >= 50)
    found = {name: solve_mixed(one, np.ones(100, dtype=bool)) for name, one in {"told": told, "misled": misled}.items()}
    assert found["told"].effects.sum() == pytest.approx(0.2, abs=0.02)
    assert found["told"].log_errors[:50] == pytest.approx(-0.8, abs=0.02)
    assert found["misled"].effects.sum() > 0.3


def test_heavy_effects_let_a_far_level_be():
    """Student effects leave a far level where its rows are; normal ones pull it, and see its rows as wrong."""
    codes = np.repeat([0, 1, 2], [30, 30, 1])
    problem = linear_problem(np.asarray([0.02, -0.02, 1.5]), codes, noise=0.02)
    centre, levels = problem.blocks
    far = {}
    for is_heavy in (False, True):
        blocks = (centre, dataclasses.replace(levels, spread=0.05, is_heavy=is_heavy))
        changed = dataclasses.replace(problem, blocks=blocks)
        begin = MixedSolution(
            np.asarray([0.0, 0.0, 0.0, 1.5]), np.asarray([1.0, 0.05]), np.asarray([0.03]), np.zeros(61)
        )
        found = solve_mixed(changed, np.ones(61, dtype=bool), begin, learns_spreads=False)
        far[is_heavy] = found.effects[0] + found.effects[3]
        assert found.effects[0] + found.effects[1:3] == pytest.approx([0.02, -0.02], abs=0.02)
    assert far[True] == pytest.approx(1.5, abs=0.05) and far[False] < 0.5


def test_the_covariance_of_effects_is_that_of_normal_levels():
    """Level by level: a prior of 1 / s^2 and n measurements of weight (nu + 1) / nu / noise^2 about their mean."""
    codes = np.repeat([0, 1], [100, 1])
    problem = linear_problem(np.zeros(2), codes, noise=0.0)
    found = solve_mixed(problem, np.ones(101, dtype=bool), learns_spreads=False)
    covariance = effect_covariance(problem, found, np.ones(101, dtype=bool))
    weights = np.asarray([100.0, 1.0]) * (4.0 / 3.0) / found.noise[0] ** 2
    precision = np.diag([1.0, 4.0, 4.0])
    precision[0, 0] += weights.sum()
    precision[0, 1:] = precision[1:, 0] = weights
    precision[1:, 1:] += np.diag(weights)
    assert covariance == pytest.approx(np.linalg.inv(precision), rel=1e-5)
    # Without measurements what is not known of an effect is its spread.
    nothing = effect_covariance(problem, found, np.zeros(101, dtype=bool))
    assert np.diag(nothing) == pytest.approx([1.0, 0.25, 0.25])


def test_a_level_without_rows_stays_at_its_prior():
    codes = np.repeat([0, 1], 50)
    problem = linear_problem([0.4, -0.4], codes, noise=0.02)
    found = solve_mixed(problem, codes == 0, steps=6)
    assert found.effects[2] == pytest.approx(0.0, abs=1e-9)
    assert abs(found.effects[1] + found.effects[0] - 0.4) < 0.02


def test_outliers_do_not_decide():
    codes = np.zeros(100, dtype=int)
    problem = linear_problem([0.2], codes, noise=0.03)
    problem.log_measured[:10] += 5.0
    found = solve_mixed(problem, np.ones(100, dtype=bool))
    assert found.effects.sum() == pytest.approx(0.2, abs=0.05)
    assert problem.log_measured.mean() > 0.6
