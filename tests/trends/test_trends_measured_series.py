"""Measured scaling series: which runs form one, their slopes, how well they are predicted."""

import csv
from pathlib import Path

import numpy as np
import pytest

from jaxscale.base.documents import data_path
from jaxscale.calibration.record import load_fit
from jaxscale.report.figures import ScalingSeries, scaling_series
from jaxscale.runs import read_runs
from jaxscale.runs.predict import predict
from jaxscale.trends.measured_series import (
    SCALING_TABLES,
    held_out_series,
    shipped_series,
    slope,
    summarise,
    table_series,
)

RESIDUALS = Path(__file__).resolve().parents[2] / "fits" / "residuals.csv"


@pytest.fixture(scope="module")
def series():
    return [s for s in shipped_series(load_fit(), SCALING_TABLES) if s.n_sizes >= 4]


def test_slopes_of_four_fifths_of_the_series_are_right_to_two_hundredths(series):
    found = summarise(series)
    assert {s.table for s in series} == set(SCALING_TABLES)
    assert found.n >= 35
    assert found.within >= 0.8


def test_a_fit_to_nothing_misses_more_slopes(series):
    """Negative control: throughput per chip that never falls."""
    flat = [
        held_out_series(s, {(s.table, int(r)): np.log(m) for r, m in zip(s.rows, s.measured, strict=True)})
        for s in series
    ]
    assert summarise([s for s in flat if s is not None]).within < summarise(series).within - 0.1


def test_held_out_slopes_are_close_too(series):
    with RESIDUALS.open(newline="") as file:
        residual = {(row["table"], int(row["row"])): float(row["five_fold"]) for row in csv.DictReader(file)}
    unseen = [s for s in (held_out_series(s, residual) for s in series) if s is not None]
    assert len(unseen) == len(series)
    assert summarise(unseen).median <= 0.02
    assert held_out_series(series[0], {}) is None


def test_a_slope_is_that_of_a_power_law():
    n = np.asarray([8.0, 16.0, 64.0])
    assert slope(n, 5.0 * n**-0.3) == pytest.approx(-0.3)


def test_series_differ_in_size_alone(series):
    for s in series:
        assert len(s.rows) == len(s.n_chips) == len(s.measured) == len(s.predicted)
    weak = [s for s in series if s.kind == "weak"]
    assert weak and all(s.n_chips.max() / s.n_chips.min() >= 8.0 for s in weak)


def test_runs_of_another_shape_form_no_series():
    runs = read_runs(data_path("runs/bigscience_bloom_a100.csv"))
    assert not table_series(runs, predict(runs, load_fit()), "bigscience_bloom_a100")


@pytest.mark.parametrize("kind", ["weak", "strong"])
def test_three_sizes_are_a_series_and_two_are_none(kind):
    """Two sequences per chip, or 64 in all; a further run of a size is no further size."""
    row = {"model": "llama3-8b", "gpu": "h100-80gb", "tp": 1, "pp": 1, "micro_batch_size": 1, "zero_stage": 3}
    row |= {"seq_len": 4096, "framework": "torchtitan"}
    sizes = [8, 16, 16, 32]
    batches = [2 * n if kind == "weak" else 64 for n in sizes]
    rows = [
        {**row, "n_gpus": n, "global_batch_size_seqs": batch, "step_time_s": batch / n * n**0.2}
        for n, batch in zip(sizes, batches, strict=True)
    ]
    runs = read_runs(rows)
    (found,) = table_series(runs, predict(runs, "prior"), "mine")
    assert (found.kind, found.n_sizes, len(found.rows)) == (kind, 3, 4)
    assert found.measured_slope == pytest.approx(-0.2)
    few = read_runs(rows[:3])
    assert not table_series(few, predict(few, "prior"), "mine")


def test_all_series_go_into_one_figure(series):
    drawn = [
        ScalingSeries(s.table, s.n_chips, s.measured, s.predicted, s.half_width, (s.measured_slope, s.predicted_slope))
        for s in series
    ]
    figure = scaling_series(drawn)
    titles = [axes.get_title(loc="left") for axes in figure.axes if axes.axison]
    assert titles[:-1] == list(dict.fromkeys(s.table for s in series))
    assert "within 0.02" in titles[-1]
