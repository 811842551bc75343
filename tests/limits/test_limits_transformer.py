"""Transformers on real chips as inner model of the limits: the calibrated step time, and what moves the curve."""

import dataclasses
import math
import re

import numpy as np
import pytest

import jaxscale as js
from jaxscale.limits.frontier_scenario import scenario
from jaxscale.limits.limits_report import law_line
from jaxscale.limits.transformer_curve import TransformerCurve, coarse, designs, plan_space, transformer_curve
from jaxscale.plans.enumerate import enumerate_plans

SIZES = np.asarray([1e23, 1e24, 1e25, 1e26])
GPU = "h100-80gb"


@pytest.fixture(scope="module")
def curve():
    """H100, default laws."""
    return transformer_curve(SIZES, GPU)


def test_utilisation_is_that_of_the_step_time(curve):
    n_chips, batch = curve.chips[2], curve.batch[2]
    (wanted,) = (one for one in designs(SIZES[2], scenario()) if one.batch == batch)
    whole = js.Transformer(float(wanted.model.n_layers), 128 * 1024, 1024, 8192, vocab_size=128256)
    table = enumerate_plans(whole, n_chips, batch, plan_space(wanted.factor))
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
    laws = scenario()
    for flop in SIZES:
        law_batch = laws.reference_batch * (flop / laws.reference_flop) ** laws.batch_exponent / 8192.0
        for wanted in designs(flop, laws):
            params = 12.0 * float(wanted.model.n_layers) * float(wanted.model.d_model) ** 2
            assert params == pytest.approx(math.sqrt(flop / 120.0), rel=1e-6)
            # A run at the deadline of every step takes the training time.
            assert flop / wanted.flop * wanted.deadline == pytest.approx(laws.training_time)
            assert math.log2(wanted.batch / wanted.factor).is_integer()
            assert 0.5 * law_batch < wanted.batch <= law_batch
    assert coarse(100.0) == 96.0 and coarse(102.0) == 104.0 and coarse(3.2) == 3.0 and coarse(0.2) == 1.0


def test_the_clause_on_the_laws_states_days_and_the_batch_that_designs_have():
    laws = dataclasses.replace(scenario(), batch_multiplier=4.0, training_time=30.0 * 86400.0, batch_exponent=0.25)
    numbers = [float(word) for word in re.findall(r"[\d.]+(?:e\d+)?", law_line(laws))]
    days, batch, flop, exponent = numbers
    (wanted, *_) = designs(flop, laws)
    assert days == 30.0 and exponent == 0.25
    # At the compute of the clause, the largest power of two times the design's factor below its batch.
    assert 0.5 * 1e6 * batch < 8192.0 * wanted.batch <= 1e6 * batch


@pytest.mark.parametrize(("factor", "odd"), [(1.0, 1), (0.5, 1), (1.25, 5), (1.5, 3), (1.75, 7), (0.75, 3), (3.0, 3)])
def test_stages_are_powers_of_two_or_these_times_the_odd_part_of_the_chips(factor: float, odd: int):
    stages, powers = plan_space(factor).pp, {2**k for k in range(10)}
    assert stages is not None and set(stages) == powers | {odd * power for power in powers}
    assert list(stages) == sorted(stages)


def test_neighbours_differ_by_no_saw_tooth(curve):
    """The curve falls in steps where a degree doubles; between two of them it rises by a few per cent at most."""
    near = transformer_curve(np.geomspace(1e25, 4e25, 6), GPU).utilisation
    rise = np.diff(np.log(near))
    assert rise.max() < 0.06 and rise.sum() < -0.2
    # The law's batch of 413 sequences, rounded down to 256 as a power of two, would cost a fifth.
    rounded = dataclasses.replace(scenario(), batch_multiplier=256.0 / 413.0)
    assert transformer_curve(SIZES[2:3], GPU, rounded).utilisation[0] < 0.85 * curve.utilisation[2]


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
    made = TransformerCurve(
        np.asarray([1e20, 1e22, 1e24]), np.asarray([0.5, 0.3, 0.0]), np.ones(3), np.ones(3), np.ones((3, 3))
    )
    found = made.thresholds()
    assert found["end_of_linear"] == pytest.approx(1e21) and found["wall"] == pytest.approx(1e22)
    none = dataclasses.replace(made, utilisation=np.zeros(3)).thresholds()
    assert math.isnan(none["wall"])
    whole = dataclasses.replace(made, utilisation=np.full(3, 0.4)).thresholds()
    assert math.isinf(whole["wall"])
