"""Profile intervals, leverage, influence and information criteria, against cases with a known answer."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxscale as js
from jaxscale._resources import data_path
from jaxscale.calibration import Z90
from jaxscale.coefficients import names
from jaxscale.fit.diagnostics import diagnose, log_likelihood
from jaxscale.fit.fitting import fit_measured
from jaxscale.fit.measured import measured_runs
from jaxscale.fit.objective import loss, reweighted
from jaxscale.fit.profile import deviance
from jaxscale.fit.solve import refine


@pytest.fixture(scope="module")
def result() -> js.FitResult:
    """A fit of the BLOOM table from the priors alone."""
    measured, _ = measured_runs(js.read_runs(data_path("runs") / "bigscience_bloom_a100.csv"))
    with jax.enable_x64(True):
        return fit_measured(measured, n_starts=1, n_folds=2)


def test_profile_ends_where_the_deviance_has_risen_by_its_quantile(result: js.FitResult):
    least = 2.0 * float(loss(result.solution.parameters, result.problem))
    rise = eqx.filter_jit(lambda i, v: deviance(i, v, result.solution.parameters, result.problem)[0])
    for name in ("matmul_efficiency", "matmul_half_tokens"):
        index = names().index(name)
        for end in result.intervals[index]:
            assert float(rise(jnp.asarray(index), jnp.asarray(end))) - least == pytest.approx(Z90**2, rel=0.05)


def test_profile_of_an_unused_coefficient_is_its_prior(result: js.FitResult):
    """No mixture of experts among these runs: the interval is that of the standard normal prior."""
    np.testing.assert_allclose(result.intervals[names().index("ep_efficiency")], [-Z90, Z90], rtol=1e-3)
    assert not result.parameters["ep_efficiency"]["identified"]


def test_profile_and_curvature_agree_roughly(result: js.FitResult):
    index = names().index("matmul_efficiency")
    error = np.sqrt(result.diagnostics.covariance[index, index])
    width = np.diff(result.intervals[index])[0] / (2.0 * Z90 * error)
    assert 0.7 < width < 1.5


def test_leverages_count_the_parameters_that_runs_decide(result: js.FitResult):
    found = result.diagnostics
    assert 3.0 < found.n_effective < len(names())
    assert (found.leverage >= -1e-9).all() and (found.leverage <= 1.0 + 1e-9).all()
    np.testing.assert_allclose(np.diag(result.correlation), 1.0)
    assert np.abs(result.correlation).max() <= 1.0 + 1e-9


def test_the_most_influential_run_moves_the_fit_most(result: js.FitResult):
    """Leaving it out moves the parameters further than leaving out the run of median influence."""
    distance = result.diagnostics.cooks_distance
    inverse = np.linalg.inv(result.diagnostics.covariance)

    def move(row: int) -> float:
        kept = np.arange(result.n) != row
        change = np.asarray(refine(reweighted(result.problem, kept), result.solution.parameters).parameters)
        change = change - np.asarray(result.solution.parameters)
        return float(change @ inverse @ change)

    assert result.influence[0][0] == np.argmax(distance)
    assert move(int(np.argmax(distance))) > 5.0 * move(int(np.argsort(distance)[result.n // 2]))


def test_criteria_prefer_the_better_fit(result: js.FitResult):
    """Negative control: away from the optimum the likelihood is lower and both criteria are higher."""
    moved = result.solution._replace(log_residuals=result.solution.log_residuals + 0.1)
    found, worse = (diagnose(result.problem, solution, result.n) for solution in (result.solution, moved))
    assert log_likelihood(result.problem, moved, result.n) < log_likelihood(result.problem, result.solution, result.n)
    assert worse.aic > found.aic and worse.bic > found.bic
    assert found.bic > found.aic


def test_report_gives_errors_by_level_and_standard_errors(result: js.FitResult):
    by_chip = result.errors_by("gpu")
    assert sum(entry["n"] for entry in by_chip.values()) == result.n
    assert all(entry["median_ape"] <= entry["mape"] * 3.0 for entry in by_chip.values())
    document = result.to_json()
    assert document["parameters"]["matmul_efficiency"]["standard_error"] > 0.0
    assert {"aic", "bic", "n_effective", "influential_runs", "by"} <= set(document)
    assert "AIC" in result.summary()
