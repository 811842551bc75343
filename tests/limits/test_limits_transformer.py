"""Transformers on real chips as inner model of the limits: the calibrated step time, and what moves the curve."""

import dataclasses
import math

import numpy as np
import pytest

import jaxscale as js
from jaxscale.limits.scenario_library import scenario
from jaxscale.limits.transformer_curve import TransformerCurve, coarse, design, plan_space, transformer_curve
from jaxscale.plans.enumerate import enumerate_plans

SIZES = np.asarray([1e23, 1e24, 1e25, 1e26])
GPU = "h100-80gb"


@pytest.fixture(scope="module")
def curve():
    """H100, default laws."""
    return transformer_curve(SIZES, GPU)


def test_utilisation_is_that_of_the_step_time(curve):
    wanted, n_chips = design(SIZES[2], scenario()), curve.chips[2]
    table = enumerate_plans(wanted.model, n_chips, wanted.batch, plan_space(n_chips))
    same = np.stack([table.columns[name] for name in ("tp", "pp", "dp")], axis=1) == curve.degrees[2]
    cluster = js.cluster(GPU, int(n_chips))
    fitted = js.load_fit().coefficients({"gpu": GPU, "precision": "bf16"})
    times = [
        float(js.step_time(wanted.model, table.plan(int(row)), cluster, fitted).total)
        for row in np.flatnonzero(same.all(axis=1))
    ]
    shares = wanted.flop / (n_chips * float(cluster.chip.peak("bf16")) * np.asarray(times))
    assert np.isclose(shares, curve.utilisation[2], rtol=1e-6).any()
    assert max(times) > 1.1 * min(times)


def test_designs_follow_the_laws():
    for flop in SIZES:
        wanted = design(flop, scenario())
        params = 12.0 * wanted.model.n_layers * wanted.model.d_model**2
        assert params == pytest.approx(math.sqrt(flop / 120.0), rel=0.35)
        # A run at the deadline of every step takes the training time.
        assert flop / wanted.flop * wanted.deadline == pytest.approx(scenario().training_time)
        assert math.log2(wanted.batch).is_integer()
    assert coarse(100.0) == 96.0 and coarse(3.2) == 3.0 and coarse(0.2) == 1.0


def test_whole_transformers_use_less_than_blocks_and_fall_earlier(curve, solved, row):
    blocks = np.interp(np.log(SIZES), np.log(solved.training_flop), solved.utilisation[row["default"]])
    assert (curve.utilisation < blocks).all() and curve.utilisation[0] > 0.3
    assert curve.utilisation[0] > curve.utilisation[2] > curve.utilisation[3]
    assert curve.thresholds()["half"] < solved.limits.flop(row["default"])["half"]


def test_larger_batches_move_the_wall(curve):
    larger = transformer_curve(SIZES[2:], GPU, dataclasses.replace(scenario(), batch_multiplier=10.0))
    assert (larger.utilisation > curve.utilisation[2:]).all() and larger.utilisation[1] > 0.1
    smaller = transformer_curve(SIZES[2:3], GPU, dataclasses.replace(scenario(), batch_multiplier=0.1))
    assert smaller.utilisation[0] < curve.utilisation[2]


def test_thresholds_of_a_known_curve():
    made = TransformerCurve(np.asarray([1e20, 1e22, 1e24]), np.asarray([0.5, 0.3, 0.0]), np.ones(3), np.ones((3, 3)))
    found = made.thresholds()
    assert found["end_of_linear"] == pytest.approx(1e21) and found["wall"] == pytest.approx(1e22)
    none = dataclasses.replace(made, utilisation=np.zeros(3)).thresholds()
    assert math.isnan(none["wall"])
    whole = dataclasses.replace(made, utilisation=np.full(3, 0.4)).thresholds()
    assert math.isinf(whole["wall"])
