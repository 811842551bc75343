"""Runs that ended bound the memory that a fit predicts for them, and pull no more once they fit."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

import jaxscale as js
from jaxscale.base.documents import data_path
from jaxscale.calibration.coefficients import names
from jaxscale.fitting.diagnostics import diagnose, log_likelihood
from jaxscale.fitting.fit_record import base_of, fit_problem
from jaxscale.fitting.informed_coefficients import bounds_memory, log_use
from jaxscale.fitting.multistart import Solution, refine, standing_at
from jaxscale.fitting.objective import FitProblem, errors_at, log_residuals, pseudo_residuals, residuals
from jaxscale.runs.arrays import Measured
from jaxscale.runs.measured import measured_runs

START = js.Fit("start", dataclasses.replace(js.prior_medians(), activation_factor=1.3))
"""Coefficients by which runs close to what their chips hold should not have fitted."""


@pytest.fixture(scope="module")
def measured() -> Measured:
    """MosaicML's runs of small models: no peak is stated, and what they recompute is."""
    runs = js.read_runs(data_path("runs") / "mosaic_llm_foundry.csv")
    return measured_runs(runs)[0].take(np.arange(0, 239, 5))


@pytest.fixture(scope="module")
def problem(measured: Measured) -> FitProblem:
    return fit_problem(measured, START)[0]


def use(measured: Measured, problem: FitProblem, parameters: Array) -> np.ndarray:
    """Predicted peak over the chip's memory of each run [1], [row]."""
    rows = problem.rows(parameters)[: len(measured.batch)]
    return np.exp(log_use(measured.batch, np.asarray(rows)))


def at_start(problem: FitProblem) -> Solution:
    """The start as a solution of a problem."""
    return standing_at(problem, jnp.zeros(problem.parametrisation.n_parameters))


def test_only_runs_near_capacity_whose_table_says_what_they_keep_are_bounds(measured: Measured, problem: FitProblem):
    base = base_of(measured, START)
    near = bounds_memory(measured, base)
    held = use(measured, problem, jnp.zeros(problem.parametrisation.n_parameters))
    np.testing.assert_array_equal(near, held > 0.5)
    assert 0 < near.sum() < len(near)
    assert not bounds_memory(dataclasses.replace(measured, peak_bound=np.full(len(near), np.inf)), base).any()
    known = dataclasses.replace(measured, peak_memory=np.full(len(near), 1e9))
    assert not bounds_memory(known, base).any()


def test_a_table_that_leaves_recomputation_open_bounds_nothing():
    runs = js.read_runs(data_path("runs") / "nvidia_nemo_perf_summary.csv")
    assert np.isinf(np.asarray(measured_runs(runs)[0].peak_bound)).all()


def test_an_error_counts_beyond_the_bound_alone(measured: Measured, problem: FitProblem):
    parameters = jnp.zeros(problem.parametrisation.n_parameters)
    of_memory = slice(len(problem.log_time), len(problem.log_time) + len(problem.with_memory))
    errors = np.asarray(pseudo_residuals(parameters, problem))[of_memory]
    bounded = np.flatnonzero(bounds_memory(measured, base_of(measured, START)))
    np.testing.assert_array_equal(errors[: len(bounded)] > 0.0, use(measured, problem, parameters)[bounded] > 1.0)
    assert (errors > 0.0).any() and (errors[: len(bounded)] == 0.0).any() and (errors >= 0.0).all()


def test_the_assembled_jacobian_knows_bounds(problem: FitProblem):
    at = jnp.asarray(0.1 * np.random.default_rng(0).normal(size=problem.parametrisation.n_parameters))
    direction = jnp.asarray(np.random.default_rng(1).normal(size=at.shape))
    assembled = jax.jvp(lambda p: residuals(p, problem, errors_at(at, problem)), (at,), (direction,))[1]
    for function, slope in zip((pseudo_residuals, log_residuals), assembled, strict=True):
        expected = jax.jvp(lambda p, f=function: f(p, problem), (at,), (direction,))[1]
        np.testing.assert_allclose(slope, expected, rtol=1e-9, atol=1e-9)


def test_a_fit_makes_room_for_runs_that_ended(measured: Measured, problem: FitProblem):
    before = use(measured, problem, jnp.zeros(problem.parametrisation.n_parameters))
    found = refine(problem, jnp.zeros(problem.parametrisation.n_parameters)).parameters
    after = use(measured, problem, found)
    assert np.mean(before > 1.05) > 0.1 and np.mean(after > 1.05) < 0.05
    # Without the bounds the start stays as it is.
    silent = fit_problem(dataclasses.replace(measured, peak_bound=np.full(len(before), np.inf)), START)[0]
    parameters = refine(silent, jnp.zeros(silent.parametrisation.n_parameters)).parameters
    assert float(parameters[names().index("activation_factor")]) == pytest.approx(0.0, abs=1e-6)


def test_bounds_that_are_kept_change_no_likelihood(measured: Measured, problem: FitProblem):
    """A bound that is broken lowers it, and none counts as a datum."""
    n = len(measured.batch)
    silent = fit_problem(dataclasses.replace(measured, peak_bound=np.full(n, np.inf)), START)[0]
    roomy = fit_problem(dataclasses.replace(measured, peak_bound=np.full(n, 1e15)), START)[0]
    alone, kept, broken = (log_likelihood(each, at_start(each)) for each in (silent, roomy, problem))
    assert kept == pytest.approx(alone, rel=1e-12)
    assert broken < alone - 1.0
    data = [diagnose(each, at_start(each), n) for each in (silent, roomy)]
    assert data[0].bic - data[0].aic == pytest.approx(data[1].bic - data[1].aic, rel=1e-6)


def test_a_run_out_of_memory_bounds_its_peak_from_below(measured: Measured, problem: FitProblem):
    """The error of a failed run is minus that of a completed one: 0 above the bound, and pulls below."""
    parameters = jnp.zeros(problem.parametrisation.n_parameters)
    failed = fit_problem(dataclasses.replace(measured, ran_out=np.ones(len(measured.batch), dtype=bool)), START)[0]
    ended, out = (np.asarray(log_residuals(parameters, one))[:, 1] for one in (problem, failed))
    assert (ended > 0.0).any() and (out < 0.0).any()
    assert (ended >= 0.0).all() and (out <= 0.0).all()
    logs = np.log(use(measured, problem, parameters))
    near = bounds_memory(measured, base_of(measured, START))
    np.testing.assert_allclose((ended + out)[: len(logs)][near], logs[near], atol=1e-4)


def test_runs_out_of_memory_are_those_that_state_their_recomputation(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "fits"))
    from memory import MOST_RESERVED, runs_out_of_memory

    row = {"model": "llama3-8b", "seq_len": 8192, "gpu": "h100-80gb", "n_gpus": 8, "precision": "bf16", "tp": 1}
    row |= {"pp": 1, "dp": 8, "zero_stage": 3, "micro_batch_size": 8, "global_batch_size_seqs": 64, "source": "x"}
    rows = [{**row, "status": word, "activation_recompute": cell} for word in ("oom", "ok") for cell in ("none", None)]
    failed = runs_out_of_memory(js.read_runs(rows))
    assert failed is not None and failed.ran_out.tolist() == [True]
    assert float(failed.peak_bound[0]) == pytest.approx(float(js.chip("h100-80gb").hbm_bytes) / MOST_RESERVED)
    assert runs_out_of_memory(js.read_runs(rows[2:])) is None
