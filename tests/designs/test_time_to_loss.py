"""Time to a loss: extra tokens of large batches, goodput and energy against closed forms."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxscale.calibration.coefficients import prior_medians
from jaxscale.costs.power import mean_chip_power
from jaxscale.costs.step import step_time
from jaxscale.designs.time_to_loss import (
    compute_optimal_flop,
    compute_optimal_loss,
    default_laws,
    run_figures,
    shape_factor,
)
from jaxscale.hardware.catalogue import cluster
from jaxscale.laws.loss import FailureLaw, failure_law
from jaxscale.models import model
from jaxscale.plans.plan import Plan

LAWS, LLAMA = default_laws(), model("llama3-8b")


def run(batch: float):
    return run_figures(
        LLAMA, LLAMA, LAWS, small_batch_tokens=1e12, batch_tokens=batch, step_seconds=2.0, n_chips=1024.0
    )


def test_a_batch_of_the_critical_size_doubles_the_tokens():
    critical = float(run(1e6).critical_batch)
    at = run(critical)
    assert float(at.tokens) == pytest.approx(2e12, rel=1e-12)
    assert float(at.seconds) == pytest.approx(2e12 / critical * 2.0 * float(at.slowdown), rel=1e-12)
    assert float(run(2.0 * critical).seconds) < float(at.seconds)
    assert float(run(2.0 * critical).loss) == float(at.loss)


@pytest.mark.parametrize("flop", [1e20, 1e25, 1e30])
def test_compute_optimal_flop_inverts_the_optimum(flop):
    params, tokens = LAWS.loss.optimum(flop)
    assert float(compute_optimal_flop(LAWS, params)) == pytest.approx(flop, rel=1e-9)
    assert float(compute_optimal_loss(LAWS, flop)) == pytest.approx(float(LAWS.loss.loss(params, tokens)), rel=1e-12)


def test_shape_factor_is_one_at_the_best_shape():
    best = model("llama3-8b", d_model=64.0 * LLAMA.n_layers, d_ff=3.5 * 64.0 * LLAMA.n_layers)
    assert float(shape_factor(best, LLAMA, LAWS)) == pytest.approx(1.0, abs=1e-12)
    assert float(shape_factor(LLAMA, LLAMA, LAWS)) > 1.0


def test_slowdown_of_rare_failures_is_first_order():
    """Young: sqrt(2 delta / M) for checkpoints and lost work, R / M for restarts."""
    law, params, chips = FailureLaw(1e-12, 1.22e8, 900.0), 7e10, 1000.0
    mean_interval = 1.0 / (1e-12 * chips)
    expected = math.sqrt(2.0 * float(law.checkpoint_time(params, chips)) / mean_interval) + 900.0 / mean_interval
    assert float(law.slowdown(params, chips)) - 1.0 == pytest.approx(expected, rel=0.01)


def test_young_interval_is_near_the_best():
    """No other interval makes the run more than a few parts in a thousand faster."""
    law, params, chips = failure_law(), 4.05e11, 16384.0
    failures, checkpoint = law.failures_per_chip_second * chips, float(law.checkpoint_time(params, chips))
    interval = float(law.checkpoint_interval(params, chips)) * np.geomspace(0.2, 5.0, 401)
    others = np.exp(law.restart_time * failures) * np.expm1((interval + checkpoint) * failures) / (interval * failures)
    assert 0.0 <= float(law.slowdown(params, chips)) - others.min() < 3e-3


def test_llama3_goodput_is_above_ninety_per_cent():
    """Section 3.3.4 of the Llama 3 paper: more than 90 % effective training time on 16,384 chips."""
    assert 0.9 < 1.0 / float(failure_law().slowdown(4.05e11, 16384.0)) < 1.0


def test_power_lies_between_idle_and_maximum():
    machine = cluster("h100-80gb", 64)
    arguments = (LLAMA, Plan(dp=64, zero_stage=3), machine, prior_medians())
    power = float(mean_chip_power(step_time(*arguments), machine.chip, default_laws().power))
    assert machine.chip.idle_power < power < machine.chip.max_power


def test_run_differentiates():
    slope = jax.grad(lambda batch: jnp.log(run(batch).seconds))(1e6)
    assert np.isfinite(float(slope)) and float(slope) < 0.0
