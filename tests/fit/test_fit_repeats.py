"""Runs of equal settings tell how much single runs scatter."""

import numpy as np
import pytest

import jaxscale as js
from jaxscale.base.documents import data_path
from jaxscale.calibration.levels import Levels
from jaxscale.runs.arrays import Measured, classes
from jaxscale.runs.measured import measured_runs
from jaxscale.runs.table_checks import deviations


@pytest.fixture(scope="module")
def bloom() -> Measured:
    measured, _ = measured_runs(js.read_runs(data_path("runs") / "bigscience_bloom_a100.csv"))
    return measured


def test_classes_are_equal_in_every_number_and_word():
    numbers = (np.asarray([1.0, 1.0, 1.0, 2.0]), np.asarray([[0.0, 1.0], [0.0, 1.0], [0.0, 2.0], [0.0, 1.0]]))
    assert len(set(classes(numbers, [("a", "a", "a", "a")]))) == 3
    first, second, *_ = classes(numbers, [("a", "a", "a", "a")])
    assert first == second
    assert len(set(classes(numbers, [("a", "b", "a", "a")]))) == 4


@pytest.mark.parametrize("copies", [2, 5])
def test_scatter_is_that_of_single_runs_however_often_settings_repeat(bloom: Measured, copies: int):
    sigma, n = 0.05, 2000
    batch = bloom.take(np.zeros(n * copies, dtype=int)).batch
    release = np.repeat(np.arange(n), copies)
    levels = Levels.of_columns({"release": tuple(map(str, release))}, n * copies)
    log_time = 3.0 + 0.01 * release + sigma * np.random.default_rng(0).normal(size=n * copies)
    found = deviations(log_time, batch, levels)
    assert np.std(found) == pytest.approx(sigma, rel=0.05)
    assert np.std(deviations(log_time, batch, levels, kinds=("source",))) > 10.0 * sigma  # settings taken as one


def test_a_run_that_nothing_repeats_has_no_deviation(bloom: Measured):
    found = deviations(np.log(bloom.step_time), bloom.batch, bloom.levels)
    assert np.isnan(found).any() and np.isfinite(found).any()
    alone = bloom.take(np.asarray([0, int(np.flatnonzero(np.isnan(found))[-1])]))
    assert np.isnan(deviations(np.log(alone.step_time), alone.batch, alone.levels)[1])


def test_a_fit_names_the_scatter_of_its_repeats(bloom_fit: js.FitResult):
    noise = bloom_fit.to_json()["repeats"]
    assert noise["n"] == np.isfinite(bloom_fit.repeats).sum() > 0
    assert 0.0 < noise["median_ape"] < noise["mape"] < 10.0
    assert f"{noise['n']} runs repeat the settings of others" in bloom_fit.summary()
