"""Regret of choosing among measured plans, on a table made by hand."""

import importlib
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def regret(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "fits"))
    return importlib.import_module("regret")


@pytest.fixture
def sweep(regret):
    """Four plans (tp, pp, micro-batch); the third is fastest, and the prediction takes the second for it."""
    plans = np.asarray([[1, 4, 2], [4, 1, 4], [2, 2, 4], [2, 4, 4]], float)
    return regret.Sweep("made up", plans, np.asarray([14.0, 11.0, 10.0, 13.0]), np.asarray([9.0, 7.0, 8.0, 9.5]))


def test_rule_takes_the_largest_micro_batch_then_the_smallest_degrees(regret, sweep):
    assert regret.by_rule(sweep) == 0.0
    # Not the smallest tensor-parallel degree of all, nor the smallest pipeline.
    slower = sweep._replace(measured=np.asarray([9.0, 8.0, 10.0, 13.0]))
    assert regret.by_rule(slower) == pytest.approx(0.25)


def test_prediction_and_chance(regret, sweep):
    assert regret.by_prediction(sweep) == pytest.approx(0.1)
    assert regret.by_prediction(sweep._replace(predicted=sweep.measured)) == 0.0
    assert regret.by_chance(sweep) == pytest.approx(0.2)
