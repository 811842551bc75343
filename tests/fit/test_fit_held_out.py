"""Intervals from held-out runs."""

import dataclasses

import numpy as np
import pytest

import jaxscale as js
from jaxscale.base.documents import data_path
from jaxscale.calibration.intervals import Scatter
from jaxscale.calibration.levels import UNNAMED
from jaxscale.calibration.record import Fit
from jaxscale.fitting.held_out import level_scatter, measured_scatter
from jaxscale.fitting.statistics.group_quantiles import half_width
from jaxscale.runs.measured import measured_runs


def test_runs_of_a_new_group_fall_inside_as_often_as_stated():
    """Errors that a group shares: the quantile of all runs alone covers too few, with the groups counted enough."""
    rng = np.random.default_rng(0)
    inside, naive, draws = 0, 0, 2000
    for _ in range(draws):
        shared = np.abs(rng.standard_normal(13))
        groups = np.repeat(np.arange(12), 10)
        errors = shared[groups]
        inside += shared[12] <= half_width(errors, groups)
        naive += shared[12] <= np.quantile(errors, 0.9)
    assert inside / draws == pytest.approx(0.9, abs=0.03)
    assert naive / draws < 0.87


def test_few_groups_take_the_largest_error():
    assert half_width(np.asarray([1.0, 2.0, 3.0]), np.asarray([0, 1, 1])) == 3.0


@pytest.mark.parametrize(("n", "width"), [(3, 0.05), (8, 0.05), (9, 0.01), (40, 0.01)])
def test_few_groups_do_not_tell_of_less_than_single_runs_scatter(n: int, width: float):
    assert half_width(np.full(n, 0.01), np.arange(n), least=0.05) == width
    assert half_width(np.full(n, 0.1), np.arange(n), least=0.05) == 0.1


def test_only_runs_that_name_nothing_tell_of_such_runs():
    """Those of named clusters say as little of a run of no name as of one of another framework."""
    measured = measured_runs(js.read_runs(data_path("runs") / "bigscience_bloom_a100.csv"))[0]
    n = len(measured.batch)
    held_out = np.full((n, 2), 0.05)
    assert {entry.kind for entry in measured_scatter(measured, held_out)} == {"source", "framework"}
    half = np.arange(n) < n // 2
    blank = measured.levels.replace(half, {"source": "", "framework": ""})
    held_out[half, 0] = 0.3
    found = {entry.kind: entry for entry in measured_scatter(dataclasses.replace(measured, levels=blank), held_out)}
    assert found["unnamed"].time == pytest.approx(0.3)
    assert found["source"].time == pytest.approx(0.05)


@pytest.mark.parametrize(("known", "scatter"), [(4, np.nan), (5, 0.2), (9, 0.2)])
def test_memory_scatters_as_the_runs_that_state_it(known: int, scatter: float):
    """Root mean square over runs with a measured peak; none from fewer than five."""
    measured = measured_runs(js.read_runs(data_path("runs") / "bigscience_bloom_a100.csv"))[0]
    peaks = np.where(np.arange(len(measured.batch)) < known, 6e10, np.nan)
    held_out = np.tile([0.05, 0.7], (len(peaks), 1))
    held_out[:known, 1] = 0.2 * (-1.0) ** np.arange(known)
    (found,) = level_scatter("source", "mine", dataclasses.replace(measured, peak_memory=peaks), held_out)
    assert found.memory == pytest.approx(scatter, nan_ok=True)


def test_runs_of_a_framework_without_a_source_tell_of_such_runs():
    """Whatever others of the framework did, and whether or not what was fitted before knows it."""
    measured = measured_runs(js.read_runs(data_path("runs") / "bigscience_bloom_a100.csv"))[0]
    n = len(measured.batch)
    framework = measured.levels.column("framework")[0]
    unnamed = dataclasses.replace(measured, levels=measured.levels.with_columns({"source": ("",) * n}))
    found = measured_scatter(unnamed, np.full((n, 2), 0.3))
    own = next(entry for entry in found if entry.kind == UNNAMED)
    assert (own.level, own.time) == (framework, pytest.approx(0.3))
    known = (("framework", framework),)
    before = (Scatter("framework", framework, 0.1, 0.1), Scatter("new_source", "", 0.2, 0.1))
    levels = {"source": "", "framework": framework}
    priors = js.prior_medians()
    assert Fit("mine", priors, widths=(own, *before), known=known).interval(levels).time == pytest.approx(0.3)
    assert Fit("start", priors, widths=before, known=known).interval(levels).time == before[1].time
