"""Profile intervals, leverage, influence and information criteria, against cases with a known answer."""

import html

import jax
import numpy as np
import pytest

import jaxscale as js
from jaxscale.calibration.coefficients import names, priors
from jaxscale.calibration.intervals import Z90
from jaxscale.fitting.diagnostics import Diagnostics, crossing, deviance, diagnose, log_likelihood
from jaxscale.fitting.multistart import refine
from jaxscale.fitting.objective import SHARP, log_residuals, loss, reweighted, smoothed
from jaxscale.fitting.statistics.student import DEGREES_OF_FREEDOM


def test_profile_ends_where_the_deviance_has_risen_by_its_quantile(bloom_fit: js.FitResult):
    least = 2.0 * float(loss(bloom_fit.solution.parameters, bloom_fit.problem))
    for name in ("residual_passes", "tp_overlap"):
        index = names().index(name)
        for end in bloom_fit.intervals[index]:
            reached = deviance(index, end, bloom_fit.solution.parameters, bloom_fit.problem)
            assert reached - least == pytest.approx(Z90**2, rel=0.05)


RISES = {
    "parabola": lambda distance: distance**2,
    "narrow": lambda distance: (20.0 * distance) ** 2,
    "steep": lambda distance: distance**6,
    "hidden": lambda distance: 0.02 * distance**2 + 10.0 * max(distance - 2.0, 0.0) ** 2,
    "flattens": lambda distance: np.sqrt(distance**2 + 1.0) ** 1.5 - 1.0,
}
"""Deviances by the distance from the optimum; parabolas alone lead to and fro over the end of the hidden one."""


@pytest.mark.parametrize("name", RISES)
def test_the_end_of_an_interval_is_found_whatever_the_deviance_looks_like(name: str):
    end = crossing(RISES[name])
    assert RISES[name](end) == pytest.approx(Z90**2, rel=0.03)
    assert RISES[name](0.9 * end) < 0.97 * Z90**2 < Z90**2 < RISES[name](1.1 * end)


def test_profile_of_an_unused_coefficient_is_its_prior(bloom_fit: js.FitResult):
    """No mixture of experts among these runs: the interval is that of the standard normal prior."""
    np.testing.assert_allclose(bloom_fit.intervals[names().index("ep_overlap")], [-Z90, Z90], rtol=1e-3)
    assert not bloom_fit.parameters["ep_overlap"]["identified"]


def test_profile_and_curvature_agree_roughly(bloom_fit: js.FitResult):
    index = names().index("matmul_efficiency")
    error = np.sqrt(bloom_fit.diagnostics.covariance[index, index])
    width = np.diff(bloom_fit.intervals[index])[0] / (2.0 * Z90 * error)
    assert 0.7 < width < 1.5


def test_runs_count_by_the_information_of_their_heavy_tails(bloom_fit: js.FitResult):
    """Of errors drawn from Student's t, a mean is as uncertain as many repetitions say; pseudo-residuals deny it."""
    nu, n, draws = DEGREES_OF_FREEDOM, 400, 2000
    sample = np.random.default_rng(0).standard_t(nu, size=(draws, n))
    means = np.zeros(draws)
    for _ in range(50):  # maximum likelihood by reweighting (Lange et al. 1989, section 3)
        weight = (nu + 1.0) / (nu + (sample - means[:, None]) ** 2)
        means = np.sum(weight * sample, axis=1) / np.sum(weight, axis=1)
    stated = 1.0 / np.sqrt(n * (nu + 1.0) / (nu + 3.0))
    assert means.std() == pytest.approx(stated, rel=0.05)
    found, weight = bloom_fit.diagnostics, np.asarray(bloom_fit.problem.weight)
    rows = np.flatnonzero(weight)
    derivative = jax.jacfwd(lambda p: log_residuals(p, smoothed(bloom_fit.problem, SHARP))[:, 0])
    slopes = np.asarray(derivative(bloom_fit.solution.parameters))[rows]
    root = np.sqrt(weight[rows] * (nu + 1.0) / (nu + 3.0)) / np.asarray(bloom_fit.problem.scatter)[rows]
    np.testing.assert_allclose(found.jacobian[rows], root[:, None] * slopes, rtol=1e-6, atol=1e-9)


def test_leverages_count_the_parameters_that_runs_decide(bloom_fit: js.FitResult):
    found = bloom_fit.diagnostics
    assert 3.0 < found.n_effective < len(names())
    assert (found.leverage >= -1e-9).all() and (found.leverage <= 1.0 + 1e-9).all()
    np.testing.assert_allclose(np.diag(bloom_fit.correlation), 1.0)
    assert np.abs(bloom_fit.correlation).max() <= 1.0 + 1e-9


def test_influential_runs_move_the_fit_most(bloom_fit: js.FitResult):
    """Leaving one out moves the parameters further than leaving out a run of little influence, single kinks apart."""
    distance = bloom_fit.diagnostics.cooks_distance
    inverse = np.linalg.inv(bloom_fit.diagnostics.covariance)
    settled = bloom_fit.solution.parameters

    def move(row: int) -> float:
        kept = np.arange(bloom_fit.n) != row
        change = np.asarray(refine(reweighted(bloom_fit.problem, kept), settled).parameters) - np.asarray(settled)
        return float(change @ inverse @ change)

    assert bloom_fit.influence[0][0] == np.argmax(distance)
    order = np.argsort(distance)
    most, least = (np.median([move(int(row)) for row in rows]) for rows in (order[-5:], order[:5]))
    assert most > 5.0 * least


def test_influence_of_several_runs_is_that_of_a_refit():
    """Exact where residuals are linear; the distances of single runs do not add up to it."""
    random = np.random.default_rng(0)
    design, measured = random.normal(size=(30, 4)), random.normal(size=30)
    inverse = design.T @ design
    whole = np.linalg.solve(inverse, design.T @ measured)
    errors, covariance = design @ whole - measured, np.linalg.inv(inverse)
    found = Diagnostics(covariance, np.zeros(30), np.zeros(30), 4.0, 0.0, 0.0, design, errors, np.arange(30))
    rows = np.arange(6)
    change = np.linalg.lstsq(design[6:], measured[6:], rcond=None)[0] - whole
    assert found.without(rows) == pytest.approx(change @ inverse @ change, rel=1e-9)
    assert found.without(rows) != pytest.approx(sum(found.without(rows[[row]]) for row in rows), rel=0.05)


def test_influence_of_one_run_is_its_distance(bloom_fit: js.FitResult):
    """Of a run without a measured memory, whose time is its only part."""
    found = bloom_fit.diagnostics
    only_timed = [row for row in range(bloom_fit.n) if np.sum(found.owner == row) == 1]
    assert only_timed
    for row in only_timed[:3]:
        assert found.without(np.asarray([row])) == pytest.approx(found.cooks_distance[row], rel=1e-6)


def test_influence_by_level_grows_with_its_runs(bloom_fit: js.FitResult):
    (everything,) = bloom_fit.influence_by("source").values()
    assert everything > bloom_fit.influence[0][1]


def test_profile_crosses_its_quantile_at_the_ends_of_the_interval(bloom_fit: js.FitResult):
    profile, entry = bloom_fit.profile("matmul_half_area"), bloom_fit.parameters["matmul_half_area"]
    assert (np.diff(profile.values) > 0.0).all()
    optimum = np.argmin(np.abs(profile.values - entry["value"]))
    assert profile.values[optimum] == pytest.approx(entry["value"], rel=1e-6)
    assert profile.rises[optimum] == pytest.approx(0.0, abs=1e-3)
    crossed = np.interp([entry["lo"], entry["hi"]], profile.values, profile.rises)
    np.testing.assert_allclose(crossed, Z90**2, rtol=0.15)


def test_profile_of_an_unused_coefficient_is_a_parabola(bloom_fit: js.FitResult):
    """Negative control: that of a coefficient which the runs identify is not."""
    unused, identified = bloom_fit.profile("ep_overlap"), bloom_fit.profile("residual_passes")
    np.testing.assert_allclose(unused.rises, unused.parabola, atol=1e-5)
    assert np.abs(identified.rises - identified.parabola).max() > 0.1


def test_criteria_prefer_the_better_fit(bloom_fit: js.FitResult):
    """Negative control: away from the optimum the likelihood is lower and both criteria are higher."""
    moved = bloom_fit.solution._replace(log_residuals=bloom_fit.solution.log_residuals + 0.1)
    found, worse = (diagnose(bloom_fit.problem, solution, bloom_fit.n) for solution in (bloom_fit.solution, moved))
    assert log_likelihood(bloom_fit.problem, moved) < log_likelihood(bloom_fit.problem, bloom_fit.solution)
    assert worse.aic > found.aic and worse.bic > found.bic
    assert found.bic > found.aic


def test_report_gives_errors_by_level_and_standard_errors(bloom_fit: js.FitResult):
    by_chip = bloom_fit.errors_by("gpu")
    assert sum(entry["n"] for entry in by_chip.values()) == bloom_fit.n
    for level, entry in by_chip.items():
        own = np.asarray(bloom_fit.levels.column("gpu"), dtype=object) == level
        errors = 100.0 * np.abs(np.expm1(bloom_fit.tested[own]))
        found = (entry["mape"], entry["median_ape"])
        assert found == (pytest.approx(np.mean(errors)), pytest.approx(np.median(errors)))
    document = bloom_fit.to_json()
    assert document["parameters"]["matmul_efficiency"]["standard_error"] > 0.0
    assert {"aic", "bic", "n_effective", "influential_runs", "influence_by", "by"} <= set(document)
    assert "AIC" in bloom_fit.summary()


def test_report_in_html_says_what_each_coefficient_means(bloom_fit: js.FitResult):
    page = bloom_fit._repr_html_()
    assert page.count("<tr>") == 1 + len(names())
    assert all(html.escape(prior.meaning) in page for prior in priors().values())
    assert f"run {bloom_fit.influence[0][0]} (" in page
