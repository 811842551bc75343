"""The search for the best fit: valleys that most starts share, descents only, hidden terms, scatter by table."""

import dataclasses
import importlib

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from synthetic import logs_at
from threadpoolctl import threadpool_info, threadpool_limits

import jaxscale as js
from jaxscale.base.documents import data_path
from jaxscale.calibration.coefficients import names, priors, unconstrain
from jaxscale.calibration.levels import Levels
from jaxscale.fitting.diagnostics import deviance
from jaxscale.fitting.fit_record import fit_problem, parameters_of
from jaxscale.fitting.multistart import (
    POLISHED,
    Held,
    from_exposed,
    minimised,
    one_blas_thread,
    random_starts,
    refine,
    search_starts,
    settled,
    solve,
    standing_at,
)
from jaxscale.fitting.objective import (
    SHARP,
    TEMPERATURE,
    FitProblem,
    compiled_logs_with_gradients,
    errors_at,
    log_residuals,
    loss,
    search_loss,
    smoothed,
    time_scatter,
)
from jaxscale.runs.measured import measured_runs


@pytest.fixture(scope="module")
def starts(bloom_fit: js.FitResult) -> jax.Array:
    """Points at random around the priors' centre [start, parameter]."""
    return random_starts(jr.key(1), 3, bloom_fit.problem.parametrisation.n_parameters)


SAME_VALLEY = 0.5
"""Negative log posterior by which ends of one search may differ; the ends of a 90 % interval are 1.35 up [1]."""

OTHER_VALLEYS = 5.0
"""The same between valleys. Heavy tails make some: in one, a model of few runs has a large effect of its own [1]."""


def test_most_starts_end_in_one_valley_and_none_far_from_it(bloom_fit: js.FitResult, starts: jax.Array):
    ends = np.asarray([float(refine(bloom_fit.problem, start).loss) for start in starts])
    apart = np.abs(ends - float(bloom_fit.solution.loss))
    assert np.median(apart) < SAME_VALLEY
    assert apart.max() < OTHER_VALLEYS
    # Negative control: the starts themselves are far from it.
    assert min(float(loss(start, bloom_fit.problem)) for start in starts) > float(bloom_fit.solution.loss) + 10.0


def test_the_best_fit_is_below_what_every_start_reached(bloom_fit: js.FitResult, starts: jax.Array):
    found = solve(bloom_fit.problem, starts)
    assert found.start_losses.shape == (len(starts),)
    problem = smoothed(bloom_fit.problem, SHARP)
    end = search_loss(found.parameters, problem, errors_at(found.parameters, problem))
    assert float(end) <= float(jnp.min(found.start_losses))


def test_a_solution_is_of_its_own_point(bloom_fit: js.FitResult, starts: jax.Array):
    """The solver evaluates points that it then rejects: neither loss, residuals nor slopes may be of one of those."""
    found = refine(bloom_fit.problem, starts[1])
    alone = standing_at(bloom_fit.problem, found.parameters)
    elsewhere = standing_at(bloom_fit.problem, found.parameters + 0.01)
    for name in ("loss", "log_residuals", "jacobian"):
        own, again, other = (np.asarray(getattr(solution, name)) for solution in (found, alone, elsewhere))
        np.testing.assert_allclose(own, again, rtol=1e-9, atol=1e-9)
        assert np.abs(own - other).max() > 1e-4


def test_a_point_stands_where_it_is(bloom_fit: js.FitResult, starts: jax.Array):
    """However far from an optimum; negative control: a solver that may go moves it at once."""
    for start in starts:
        found = standing_at(bloom_fit.problem, start)
        np.testing.assert_array_equal(found.parameters, start)
        assert not found.converged
        assert float(found.loss) == pytest.approx(float(loss(start, smoothed(bloom_fit.problem, SHARP))), rel=1e-9)
        assert np.abs(np.asarray(refine(bloom_fit.problem, start).parameters - start)).max() > 0.1


def test_a_held_parameter_stays_and_the_others_make_the_best_of_it(bloom_fit: js.FitResult):
    problem, index = smoothed(bloom_fit.problem, SHARP), names().index("matmul_efficiency")
    at = bloom_fit.solution.parameters
    held = minimised(at, problem, POLISHED, Held(index, float(at[index]) + 4.0))
    assert float(held.parameters[index]) == float(at[index]) + 4.0
    alone = float(loss(at.at[index].add(4.0), problem))
    assert float(bloom_fit.solution.loss) + 1.0 < float(held.loss) < alone - 1.0


def test_search_loss_is_the_loss_without_memory_and_has_its_slope(bloom_fit: js.FitResult, starts: jax.Array):
    """The slope by differences along a direction; negative control: errors of another point have another."""
    problem, at = smoothed(bloom_fit.problem, SHARP), starts[1]
    without = dataclasses.replace(problem, has_memory=jnp.zeros_like(problem.has_memory))
    direction, step = jnp.ones_like(at), 1e-5

    def value(point: jax.Array) -> float:
        return float(search_loss(point, problem, errors_at(point, problem)))

    assert value(at) == pytest.approx(float(loss(at, without)), rel=1e-9)
    difference = (value(at + step * direction) - value(at - step * direction)) / (2.0 * step)
    slopes = [
        float(jax.grad(search_loss)(at, problem, errors_at(told, problem)) @ direction) for told in (at, at + 0.3)
    ]
    assert slopes[0] == pytest.approx(difference, rel=1e-5)
    assert slopes[1] != pytest.approx(difference, rel=1e-2)


def test_whatever_solves_shares_one_compiled_model(bloom_fit: js.FitResult, monkeypatch: pytest.MonkeyPatch):
    """Search, standing points, intervals, fits of other runs; negative control: 7 rows are a program of theirs."""

    def traced(*arguments: object) -> None:
        raise RuntimeError("traced once more")

    monkeypatch.setattr(importlib.import_module("jaxscale.fitting.objective"), "log_totals", traced)
    at = bloom_fit.solution.parameters
    table, _ = measured_runs(js.read_runs(data_path("runs") / "bigscience_bloom_a100.csv"))
    with jax.enable_x64(True):
        standing_at(bloom_fit.problem, at)
        deviance(0, 0.1, at, bloom_fit.problem)
        search_starts(bloom_fit.problem, at[None])
        few = table.take(np.arange(len(table.batch)) % 2 == 0)
        problem, effects = fit_problem(few, js.load_fit("prior"))
        assert len(few.batch) != bloom_fit.n
        standing_at(problem, jnp.zeros(problem.parametrisation.n_parameters))
        first = jax.tree.map(lambda leaf: leaf[:7], (problem.batch, problem.base))  # no bucket of rows
        with pytest.raises(RuntimeError, match="traced once more"):
            compiled_logs_with_gradients(*first, jnp.asarray(SHARP))


def test_polishing_again_never_raises_the_loss(bloom_fit: js.FitResult, starts: jax.Array):
    best = bloom_fit.solution
    assert float(settled(bloom_fit.problem, best).loss) <= float(best.loss)
    worse = best._replace(parameters=starts[1], loss=loss(starts[1], bloom_fit.problem))
    assert float(settled(bloom_fit.problem, worse).loss) < float(worse.loss) - 10.0


def test_a_fit_gives_its_point_back_as_a_start(bloom_fit: js.FitResult):
    found = jnp.asarray(parameters_of(bloom_fit.fit, bloom_fit.problem, bloom_fit.effects))
    # Effects below a thousandth are dropped from a fit.
    np.testing.assert_allclose(found, bloom_fit.solution.parameters, atol=0.05)
    assert float(loss(found, bloom_fit.problem)) == pytest.approx(float(bloom_fit.solution.loss), abs=0.1)


def test_a_fit_that_knows_an_earlier_one_is_no_worse(bloom_fit: js.FitResult, starts: jax.Array):
    """Negative control: from a poor start alone, a search of the same steps may end anywhere."""
    known = bloom_fit.solution.parameters
    assert float(solve(bloom_fit.problem, starts[1:2], [known]).loss) <= float(bloom_fit.solution.loss)
    lost = solve(bloom_fit.problem, starts[1:2])
    assert lost.start_losses.shape == (1,)
    assert float(loss(starts[1], bloom_fit.problem)) > float(bloom_fit.solution.loss) + 10.0


PRIOR, HOST_TIME = priors()["host_time_layer"].median, 0.002
"""Of one layer: typical, and in synthetic runs, longer than the chip needs for most of them [s]."""


@pytest.fixture(scope="module")
def hosted() -> FitProblem:
    """Runs of small models that wait for a host four times as slow as the priors' centre says."""
    table, _ = measured_runs(js.read_runs(data_path("runs") / "vtrain_a100_ground_truth.csv"))
    few = table.take(np.asarray(table.batch.model.d_model) == 1024.0).take(np.arange(60))
    truth = unconstrain(dataclasses.replace(js.prior_medians(), host_time_layer=HOST_TIME))
    with jax.enable_x64(True):
        times, _ = logs_at(few.batch, np.broadcast_to(truth, (60, len(truth))))
        return fit_problem(dataclasses.replace(few, step_time=np.exp(times)), js.load_fit("prior"))[0]


def test_a_pace_that_hides_at_the_start_is_found_from_where_it_shows(hosted: FitProblem):
    """Negative control: a descent from where it hides never moves it, and puts others in its place."""
    host = names().index("host_time_layer")
    with jax.enable_x64(True):
        hidden = refine(hosted, jnp.zeros(hosted.parametrisation.n_parameters))
        shown = from_exposed(hosted, hidden)
    spread = float(hosted.parametrisation.spread[host])
    assert abs(float(hidden.parameters[host])) * spread < 0.1
    assert PRIOR * np.exp(spread * float(shown.parameters[host])) == pytest.approx(HOST_TIME, rel=0.05)
    assert float(shown.loss) < float(hidden.loss) - 10.0


def test_smooth_step_times_are_close_to_exact_ones(bloom_fit: js.FitResult):
    """The way to the optimum leads through a model that differs a little, and does differ."""
    at = bloom_fit.solution.parameters
    exact = bloom_fit.residuals
    smooth, sharp = (log_residuals(at, smoothed(bloom_fit.problem, t))[: len(exact), 0] for t in (TEMPERATURE, SHARP))
    apart = np.abs(np.asarray(smooth) - exact)
    assert 0.0 < np.median(apart) < TEMPERATURE and np.max(apart) < 4.0 * TEMPERATURE
    np.testing.assert_allclose(sharp, exact, atol=10.0 * SHARP)


def test_runs_scatter_as_their_table_says():
    runs = Levels.of_columns({"source": ["mlperf_llm_training/mlperf", "a-table-of-my-own"]}, 2)
    known, other = time_scatter(runs)
    assert known > other == pytest.approx(0.03)


def test_factorisations_keep_to_one_thread_and_leave_the_setting_as_it_was():
    import scipy.linalg  # noqa: F401  (loads the library whose threads are told)

    def threads() -> list[int]:
        return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]

    with threadpool_limits(2, "blas"):
        with one_blas_thread():
            inside = threads()
        after = threads()
    assert inside and set(inside) == {1}
    assert set(after) == {2}
