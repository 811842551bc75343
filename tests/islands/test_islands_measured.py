"""Measured local updates over shaped links: utilisation with a bandwidth left out, start skew, negative controls."""

import csv

import numpy as np
import pytest
from measured_rounds import (
    LinkLosses,
    bandwidth_left_out,
    fit_link_losses,
    implied_bandwidth,
    measured_rounds,
    predicted_utilisation,
    run_left_out,
)

import jaxscale as js
from jaxscale.islands.fleet import stated_slow_loss


@pytest.fixture(scope="module")
def runs():
    """Measured DiLoCo runs on links of a stated bandwidth."""
    with js.data_path("islands/diloco_measured.csv").open(encoding="utf-8") as file:
        table = [row for row in csv.DictReader(file) if row["algorithm"] == "diloco"]
    every = measured_rounds(table)
    return every.rows(np.isfinite(every.bandwidth))


@pytest.fixture(scope="module")
def unshaped():
    """Measured DiLoCo runs on links that were left as they are."""
    with js.data_path("islands/diloco_measured.csv").open(encoding="utf-8") as file:
        table = [row for row in csv.DictReader(file) if row["algorithm"] == "diloco"]
    every = measured_rounds(table)
    return every.rows(np.isnan(every.bandwidth))


def error(predicted, runs):
    """Relative error of utilisations [run]."""
    return np.abs(np.asarray(predicted) / runs.utilisation - 1.0)


def label(runs):
    """Bandwidths as asked for: those measured, rounded [run]."""
    return np.round(np.log10(runs.bandwidth), 1)


def test_utilisation_with_a_bandwidth_left_out(runs):
    assert len(runs.steps) == 48
    missed = error(bandwidth_left_out(runs, label(runs)), runs)
    assert missed.mean() <= 0.07 and np.median(missed) <= 0.05


def test_utilisation_of_all_runs(runs, unshaped):
    """Runs over unshaped links count too: the others of them tell their bandwidth."""
    losses = fit_link_losses(runs)
    rate = implied_bandwidth(unshaped, losses)
    assert 8.0 * rate == pytest.approx(1.15e10, rel=0.1)
    missed = np.concatenate([
        error(bandwidth_left_out(runs, label(runs)), runs), error(run_left_out(unshaped, losses), unshaped)
    ])  # fmt: skip
    assert len(missed) == 52
    assert missed.mean() <= 0.07 and np.median(missed) <= 0.05


def test_the_shipped_loss_is_the_fitted_one(runs):
    losses = fit_link_losses(runs)
    assert stated_slow_loss() == pytest.approx(losses.slow_loss, rel=0.05)
    assert losses.start_skew == pytest.approx(0.40, abs=0.03)


def test_the_ring_alone_misses_more(runs):
    """Negative control: without losses the error is several times as large."""
    step = float(np.median(runs.compute / runs.steps))
    bare = error(predicted_utilisation(runs, LinkLosses(1e-9, 0.0, step)), runs)
    fitted = error(predicted_utilisation(runs, fit_link_losses(runs)), runs)
    assert bare.mean() > 3.0 * fitted.mean()


def test_nodes_do_not_drift_apart(runs):
    """Runs whose warm-up held an exchange show no skew, however many inner steps; the others wait once."""
    losses = fit_link_losses(runs.rows(~runs.enters_apart))
    assert losses.start_skew == pytest.approx(0.1, rel=1e-3), "nothing tells of the skew: it stays at its start"
    together = error(predicted_utilisation(runs, losses), runs)[~runs.enters_apart]
    assert together.mean() < 0.03
    skews = np.asarray(predicted_utilisation(runs, LinkLosses(losses.slow_loss, 0.0, losses.step_time)))
    waits = runs.compute * (1.0 / runs.utilisation - 1.0 / skews)
    fast = runs.enters_apart & (runs.bandwidth > 1e8)
    assert np.all((waits[fast] > 0.2) & (waits[fast] < 0.6))
    few, many = fast & (runs.inner_steps == 32), fast & (runs.inner_steps == 128)
    assert waits[few].mean() == pytest.approx(waits[many].mean(), rel=0.25)
