"""Draws from the posterior agree with profile intervals; what was not measured keeps its prior."""

import sys

import numpy as np
import pytest

import jaxscale as js
from jaxscale.calibration.coefficients import names
from jaxscale.calibration.intervals import Z90
from jaxscale.fitting.posterior import Posterior, sample_posterior


@pytest.fixture(scope="module")
def posterior(bloom_fit: js.FitResult) -> Posterior:
    return sample_posterior(bloom_fit, n_draws=200, n_warmup=60)


@pytest.mark.slow
def test_draws_agree_with_the_profile(bloom_fit: js.FitResult, posterior: Posterior):
    assert posterior.n_divergent <= 4
    index = names().index("matmul_efficiency")
    ends = bloom_fit.intervals[index]
    draws = np.quantile(posterior.standardised[:, index], [0.05, 0.95])
    assert np.diff(draws) == pytest.approx(np.diff(ends), rel=0.4)
    assert draws.mean() == pytest.approx(ends.mean(), abs=0.25 * float(np.diff(ends)[0]))


@pytest.mark.slow
def test_an_unused_coefficient_keeps_its_prior(posterior: Posterior):
    draws = posterior.standardised[:, names().index("ep_overlap")]
    assert draws.std() == pytest.approx(1.0, abs=0.2)
    assert np.quantile(draws, 0.95) == pytest.approx(Z90, abs=0.35)


@pytest.mark.slow
def test_intervals_are_in_the_unit_of_the_coefficient(bloom_fit: js.FitResult, posterior: Posterior):
    low, high = posterior.interval("matmul_efficiency")
    assert low < bloom_fit.fit.pooled.matmul_efficiency < high


@pytest.mark.slow
def test_a_wrong_optimum_would_show(bloom_fit: js.FitResult, posterior: Posterior):
    """Negative control: intervals of another fit lie elsewhere."""
    index = names().index("matmul_efficiency")
    elsewhere = float(bloom_fit.solution.parameters[index]) + 2.0
    draws = posterior.standardised[:, index]
    assert not np.quantile(draws, 0.05) < elsewhere < np.quantile(draws, 0.95)


def test_refusals(bloom_fit: js.FitResult, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(js.InputError, match="n_draws = 0 is out of range"):
        sample_posterior(bloom_fit, n_draws=0)
    monkeypatch.setitem(sys.modules, "numpyro.infer", None)
    with pytest.raises(js.InputError, match="jaxscale\\[bayes\\]"):
        sample_posterior(bloom_fit)
