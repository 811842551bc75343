"""Fits on synthetic runs: the truth is known, so what a fit finds can be judged."""

import dataclasses
from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array
from synthetic import logs_at, named_runs, start_at_truth, synthetic_runs, true_coefficients

import jaxscale as js
from jaxscale.base.documents import data_path
from jaxscale.calibration.base_record import LevelEffect
from jaxscale.calibration.intervals import Scatter
from jaxscale.calibration.levels import UNNAMED
from jaxscale.fitting.fit_record import base_of, fit_problem, own_scatter
from jaxscale.fitting.fitting import candidates, fit_measured
from jaxscale.fitting.held_out import MIN_GROUPS, groups_to_leave_out
from jaxscale.fitting.objective import (
    FitProblem,
    errors_at,
    log_residuals,
    loss,
    pseudo_residuals,
    residuals,
    reweighted,
)
from jaxscale.fitting.summary import cautions
from jaxscale.runs.arrays import Measured, concatenate
from jaxscale.runs.measured import fold_of, groups_of, measured_runs


@pytest.fixture(scope="module")
def result(measured: Measured) -> js.FitResult:
    return fit_measured(synthetic_runs(measured, noise=0.01), n_starts=2, n_folds=3)


def test_fit_recovers_synthetic_runs(result: js.FitResult):
    assert result.valid
    assert result.mape_train < 1.5  # the noise is 1 %
    assert result.mape_cv < 3.0


def test_intervals_contain_the_truth(result: js.FitResult):
    truth = true_coefficients()
    inside = [
        entry["lo"] * 0.999 <= getattr(truth, name) <= entry["hi"] * 1.001
        for name, entry in result.parameters.items()
        if entry["identified"]
    ]
    assert len(inside) >= 3
    assert np.mean(inside) >= 0.7
    assert result.parameters["layer_time_factor"]["identified"] or result.parameters["residual_passes"]["identified"]
    assert not result.parameters["ep_overlap"]["identified"]  # no mixture of experts among these runs


def test_shuffled_times_cannot_be_predicted(measured: Measured, result: js.FitResult):
    synthetic = synthetic_runs(measured, noise=0.01)
    order = np.random.default_rng(1).permutation(len(measured.batch))
    shuffled = dataclasses.replace(synthetic, step_time=np.asarray(synthetic.step_time)[order])
    control = fit_measured(shuffled, n_starts=2, n_folds=3)
    assert control.mape_cv > 5.0 * result.mape_cv


def test_report_names_what_rests_on_priors(result: js.FitResult):
    assert "held out" in result.summary() and "rest on their prior" in result.summary()
    assert result.parameters["ep_overlap"]["identified"] is False
    assert any("prior" in message for message in result.messages)


def test_saved_fit_predicts_the_same(result: js.FitResult, tmp_path):
    path = tmp_path / "fit.toml"
    result.save(path)
    loaded = js.load_fit(path)
    runs = js.read_runs(data_path("runs") / "bigscience_bloom_a100.csv")
    before, after = (js.predict(runs, fit) for fit in (result.fit, loaded))
    np.testing.assert_allclose(after.step_time, before.step_time, rtol=1e-4)
    np.testing.assert_allclose(after.hi, before.hi, rtol=1e-3)


def test_derivative_of_residuals_matches_differences(measured: Measured):
    problem, _ = fit_problem(measured, js.load_fit("prior"))
    n_parameters = problem.parametrisation.n_parameters
    rng = np.random.default_rng(2)
    at = jnp.asarray(0.1 * rng.normal(size=n_parameters))
    direction = jnp.asarray(rng.normal(size=n_parameters))
    function = jax.jit(lambda p: log_residuals(p, problem))
    _, slope = jax.jvp(lambda p: log_residuals(p, problem), (at,), (direction,))
    step = 1e-6
    difference = (function(at + step * direction) - function(at - step * direction)) / (2.0 * step)
    np.testing.assert_allclose(slope, difference, rtol=1e-4, atol=1e-6)
    assert np.abs(np.asarray(difference)).max() > 0.01, "no parameter moves a residual"


def test_assembled_jacobian_is_that_of_the_residuals(bloom_fit: js.FitResult):
    """Put together from one gradient per row, with weights and heavy tails; one of another point is not the same."""
    problem, at = bloom_fit.problem, bloom_fit.solution.parameters
    direction = jnp.asarray(np.random.default_rng(3).normal(size=at.shape))
    told = errors_at(at, problem)

    def apart(parameters: Array, problem: FitProblem) -> tuple[Array, Array]:
        return pseudo_residuals(parameters, problem), log_residuals(parameters, problem)

    def slopes(function: Callable[[Array, FitProblem], tuple[Array, Array]], point: Array) -> tuple[Array, Array]:
        return jax.jvp(lambda p: function(p, problem), (point,), (direction,))[1]

    def assembled(parameters: Array, problem: FitProblem) -> tuple[Array, Array]:
        return residuals(parameters, problem, told)

    plain, other = slopes(apart, at), slopes(apart, at + 0.3)
    for of_one, expected, elsewhere in zip(slopes(assembled, at), plain, other, strict=True):
        np.testing.assert_allclose(of_one, expected, rtol=1e-9, atol=1e-9)
        assert np.abs(np.asarray(elsewhere - expected)).max() > 1e-3


def test_padding_rows_count_for_nothing(measured: Measured):
    problem, _ = fit_problem(measured, js.load_fit("prior"))
    n = len(measured.batch)
    values = np.asarray(pseudo_residuals(jnp.zeros(problem.parametrisation.n_parameters), problem))
    size = problem.weight.shape[0]
    assert size > n
    assert not values[n:size].any()
    assert values[:n].any()


def test_runs_composed_of_few_timings_count_as_these(measured: Measured):
    """Every run twice says no more than once if all are composed of as many timings, and more if each was timed."""
    measured = measured.take(np.arange(60))  # twice as many rows are still of the size that other tests compile
    n, twice = len(measured.batch), concatenate([measured, measured])
    composed = dataclasses.replace(twice, parts=np.full(2 * n, float(n)))
    problems = [fit_problem(runs, js.load_fit("prior"))[0] for runs in (measured, composed, twice)]
    # At the priors' centre, where they cost nothing: runs that recur may have effects of their own.
    once, same, more = (float(loss(jnp.zeros(problem.parametrisation.n_parameters), problem)) for problem in problems)
    np.testing.assert_allclose(same, once, rtol=1e-9)
    assert more > 1.5 * once
    fewer = reweighted(problems[1], np.arange(2 * n) < n)
    np.testing.assert_array_equal(np.asarray(fewer.weight)[: 2 * n], 0.5 * (np.arange(2 * n) < n))


def test_folds_keep_groups_whole(measured: Measured):
    groups = groups_of(measured)
    fold = fold_of(groups, 5)
    for group in range(groups.max() + 1):
        assert len(set(fold[groups == group])) == 1
    assert set(fold) == set(range(5))


def test_too_few_rows_or_starts_are_refused(measured: Measured):
    with pytest.raises(js.InputError, match="too few"):
        fit_measured(measured.take(np.arange(0)))
    with pytest.raises(js.InputError, match="n_starts = 0 is out of range; expected at least 1"):
        fit_measured(measured, n_starts=0)


def test_unknown_names_are_refused_with_the_known_ones(result: js.FitResult):
    with pytest.raises(js.InputError, match="'matmul' is unknown; expected one of matmul_efficiency"):
        result.profile("matmul")
    for report in (result.errors_by, result.influence_by):
        with pytest.raises(js.InputError, match="'chip' is unknown; expected one of source, framework"):
            report("chip")


def test_runs_of_equal_settings_are_left_out_together(measured: Measured):
    """What a run of the same settings took tells what another one takes: it must not answer for it."""
    two_groups = np.flatnonzero(np.isin(groups_of(measured), [0, 1]))
    settings = groups_to_leave_out(measured.take(two_groups))
    assert settings.max() + 1 > 2
    equal = measured.take(np.zeros(5, dtype=int))
    np.testing.assert_array_equal(groups_to_leave_out(equal), 0)
    np.testing.assert_array_equal(groups_to_leave_out(measured), groups_of(measured))


def test_a_fit_whose_settings_were_left_out_says_so(measured: Measured, result: js.FitResult):
    one_group = np.flatnonzero(groups_of(measured) == np.argmax(np.bincount(groups_of(measured))))
    fitted = fit_measured(measured.take(one_group), start=start_at_truth(), n_starts=1, n_folds=2)
    assert fitted.settings_left_out and fitted.groups.max() + 1 >= MIN_GROUPS
    assert any("settings were left out one by one" in message for message in fitted.messages)
    assert not result.settings_left_out


def test_equal_runs_move_the_start_and_keep_its_scatter(measured: Measured):
    unseen = Scatter("unseen", "", 0.4, 0.3)
    start = start_at_truth(widths=(unseen,))
    synthetic = synthetic_runs(measured, noise=0.01)
    five = dataclasses.replace(synthetic, step_time=1.4 * np.asarray(synthetic.step_time)).take(np.zeros(5, dtype=int))
    fitted = fit_measured(five, start=start, n_starts=1)
    assert np.isnan(fitted.held_out).all()
    assert fitted.fit.scatter == (unseen,)
    assert any("too few groups" in message for message in fitted.messages)
    assert fitted.tightness == 1.0
    assert np.abs(fitted.residuals).max() < 0.5 * np.log(1.4)


def test_a_fit_of_one_cluster_leaves_others_to_its_start(measured: Measured):
    """Runs of the start's other clusters are predicted as before, and those of the fitted one as it was found."""
    others = {"source": "theirs/other", "framework": "other"}
    known = tuple((kind, level) for kind, level in others.items())
    start = start_at_truth(known=known, widths=(Scatter("source", "theirs/other", 0.07, 0.1),))
    synthetic = synthetic_runs(measured, noise=0.01)
    slower = dataclasses.replace(synthetic, step_time=1.4 * np.asarray(synthetic.step_time))
    fitted = fit_measured(slower.take(np.arange(0, 64, 8)), start=start, n_starts=1, n_folds=2).fit
    for levels in (others, {"framework": "other"}):
        chex.assert_trees_all_close(fitted.coefficients(levels), start.coefficients(levels), rtol=1e-6)
        assert fitted.interval(levels) == start.interval(levels)
    assert fitted.coefficients({}).matmul_efficiency < 0.9 * start.coefficients({}).matmul_efficiency


@pytest.fixture(scope="module")
def chain(measured: Measured) -> tuple[Measured, js.Fit]:
    """Runs, and a fit of one's own to slower ones, from a start that knows of another cluster."""
    effect = LevelEffect("source", "theirs/other", (("matmul_efficiency", 0.8),))
    known = (("source", "theirs/other"), ("framework", "other"))
    start = start_at_truth(effects=(effect,), known=known)
    runs = synthetic_runs(measured, noise=0.01).take(np.arange(0, 64, 8))
    slower = dataclasses.replace(named_runs(runs, source="mine/f", framework="f"), step_time=1.4 * runs.step_time)
    return runs, fit_measured(slower, start=start, n_starts=1, n_folds=2, name="mine").fit


@pytest.mark.parametrize("levels", [{"source": "theirs/other", "framework": "other"}, {"source": "", "framework": ""}])
def test_a_fit_returns_what_it_fitted_whatever_it_starts_from(chain: tuple[Measured, js.Fit], levels: dict):
    """Its residuals are those of its predictions, for runs that only the start's start knows and for unnamed ones."""
    runs, mine = chain
    named = named_runs(runs, **levels)
    second = fit_measured(named, start=mine, n_starts=1, n_folds=2)
    with jax.enable_x64(True):
        logs = logs_at(named.batch, base_of(named, second.fit))
    np.testing.assert_allclose(logs[0] - np.log(named.step_time), second.residuals, atol=2e-3)
    own = {"source": "mine/f", "framework": "f"}
    if levels["source"]:
        chex.assert_trees_all_close(second.fit.coefficients(own), mine.coefficients(own), rtol=1e-6)


def test_runs_that_two_fits_answer_for_are_not_fitted_together(chain: tuple[Measured, js.Fit]):
    runs, mine = chain
    both = concatenate(
        [named_runs(runs, source="theirs/other", framework="other"), named_runs(runs, source="mine/f", framework="f")]
    )
    with pytest.raises(js.InputError, match="8 of 16 runs are of a source or framework that 'mine' knows"):
        fit_measured(both, start=mine)


def test_runs_that_the_start_has_seen_are_not_held_out(measured: Measured, result: js.FitResult):
    """Their errors are no measure of new ones: they never narrow the start's scatter, and the fit says so."""
    start = result.fit
    again = fit_measured(measured, start=start, n_starts=1, n_folds=2)
    levels = measured.levels.row(0)
    before, after = (fit.interval(levels) for fit in (start, again.fit))
    assert after.time >= before.time and after.memory >= before.memory
    assert any("that it has seen" in message for message in again.messages)
    assert not any("that it has seen" in message for message in result.messages)


@pytest.mark.parametrize(("error", "is_wider"), [(0.001, False), (0.5, True)])
def test_runs_that_the_start_has_seen_may_widen_its_scatter(measured: Measured, error: float, is_wider: bool):
    """An interval that has grown too narrow does not stay so for ever; one that is wide enough does."""
    source = measured.levels.column("source")[0]
    before = start_at_truth(widths=(Scatter("source", source, 0.05, 0.1),), known=(("source", source),))
    found = own_scatter(before, measured, np.full((len(measured.batch), 2), error))
    entry = next(entry for entry in found if (entry.kind, entry.level) == ("source", source))
    assert (entry.time > 0.05) == (entry.memory > 0.1) == is_wider


def test_coefficients_of_a_report_are_those_of_the_runs(measured: Measured):
    """Where all runs share the levels that move a coefficient, its value is theirs and not that of the pool."""
    runs = named_runs(measured.take(np.zeros(4, dtype=int)), source="mine/nemo", framework="nemo")
    result = fit_measured(runs, start=js.load_fit(), n_starts=1, n_folds=2)
    own = result.fit.coefficients(runs.levels.row(0))
    for name, entry in result.parameters.items():
        assert entry["value"] == pytest.approx(float(getattr(own, name)))
        assert entry["lo"] < entry["value"] < entry["hi"]
    pooled = float(result.fit.pooled.matmul_efficiency)
    assert float(own.matmul_efficiency) != pytest.approx(pooled, rel=0.05)


def test_intervals_of_a_fit_from_the_priors_widen_for_new_models_and_larger_clusters(result: js.FitResult):
    record = result.fit
    level = next(level for kind, level in record.known if kind == "source")
    shape = next(level for kind, level in record.known if kind == "architecture")
    usual = record.interval({"source": level, "architecture": shape}, 8.0)
    assert record.interval({"source": level, "architecture": "d1 h1 e1 s0"}, 8.0).time > usual.time
    assert record.interval({"source": level, "architecture": shape}, 1e5).time > usual.time


def test_unnamed_runs_that_the_start_has_seen_are_not_held_out_either(measured: Measured, result: js.FitResult):
    start = js.Fit("start", result.fit.pooled, known=((UNNAMED, "f"),))
    runs = named_runs(measured.take(np.arange(8)), source="", framework="f")
    again = fit_measured(runs, start=start, n_starts=1, n_folds=2)
    assert any("fitted to runs of no named source" in message for message in again.messages)
    assert all(entry.kind != UNNAMED for entry in again.fit.scatter)


def test_coefficients_of_no_fit_are_the_priors(measured: Measured):
    """They hold as tightly as the prior of each coefficient, not as loosely as levels differ."""
    problem, _ = fit_problem(measured, js.load_fit("prior"))
    assert candidates(problem, js.load_fit("prior"), 10) == candidates(problem, None, 10) == {1.0: problem}
    assert len(candidates(problem, js.load_fit(), 10)) > 1


def test_models_and_chips_of_the_start_are_new_to_a_cluster_that_never_ran_them(measured: Measured):
    shape, other = measured.levels.column("architecture")[0], "d1 h1 e1 s0"
    foreign = (("architecture", other), ("gpu", "theirs"), ("precision", "fp4"))
    start = start_at_truth(known=(*foreign, ("framework", "other")))
    known = fit_measured(synthetic_runs(measured, noise=0.01), start=start, n_starts=1, n_folds=2).fit
    assert ("architecture", shape) in known.known and ("framework", "other") in known.known
    assert ("gpu", measured.levels.column("gpu")[0]) in known.known
    assert not set(foreign) & set(known.known)


def test_a_fold_of_all_runs_leaves_nothing_out(measured: Measured):
    with pytest.raises(js.InputError, match="n_folds = 1 is out of range; expected at least 2"):
        fit_measured(measured, n_folds=1)


def test_an_absurd_fit_says_so(measured: Measured, result: js.FitResult):
    """Every third step time in another unit: no fit foretells which."""
    assert not any("check the units" in message for message in result.messages)
    scale = np.where(np.arange(len(measured.batch)) % 3, 1.0, 1e-3)
    mixed = dataclasses.replace(measured, step_time=scale * np.asarray(measured.step_time))
    messages = fit_measured(mixed, n_starts=1, n_folds=2).messages
    assert any("check the units" in message for message in messages)


@pytest.mark.parametrize(("most", "is_named"), [(40.0, True), (9.0, False)])
def test_a_run_that_decides_the_fit_is_named(result: js.FitResult, monkeypatch, most: float, is_named: bool):
    monkeypatch.setattr(js.FitResult, "influence", property(lambda _: ((3, most), (1, 2.0))))
    said = [message for message in result.messages if "decides more than any other run" in message]
    assert [message.startswith(result.name_of(3)) for message in said] == ([True] if is_named else [])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (lambda found: {"tightness": 0.5}, "stays near its start, with priors of 0.5 times their spread"),
        (lambda found: {"settings_left_out": True}, "settings were left out one by one"),
        (lambda found: {"held_out": np.full_like(found.held_out, np.nan)}, "too few groups of runs"),
        (lambda found: {"held_out": np.full_like(found.held_out, 1.0)}, "held-out runs are 172 % off"),
        (lambda found: {"fit": dataclasses.replace(found.fit, parent=js.load_fit())}, "fitted to runs of bigscience"),
    ],
    ids=["tightness", "settings", "groups", "errors", "parent"],
)
def test_a_caution_is_told_where_its_cause_is_alone(bloom_fit: js.FitResult, changes, said: str):
    other = dataclasses.replace(bloom_fit, **changes(bloom_fit))
    assert [said in message for message in cautions(other)].count(True) == 1
    assert not any(said.split(" %")[0][:20] in message for message in cautions(bloom_fit))


def test_a_table_without_step_times_says_what_is_missing(tmp_path):
    columns = "n_layers,d_model,n_heads,seq_len,gpu,n_gpus,tp,pp,micro_batch_size,global_batch_size_seqs,step_time_s"
    planned = "32,4096,32,4096,h100-80gb,64,4,1,1,256,"
    path = tmp_path / "runs.csv"
    for rows, said in (
        ([planned] * 2, "none has one"),
        ([planned, "32,4096,32,,h100-80gb,64,4,1,1,256,9"], "line 3: .*seq_len"),
    ):
        path.write_text("\n".join([columns, *rows]) + "\n", encoding="utf-8")
        with pytest.raises(js.InputError, match=f"no row can be fitted.*{said}"):
            measured_runs(js.read_runs(path))
