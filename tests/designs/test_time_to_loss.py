"""Time to a loss: extra tokens of large batches, goodput and energy against closed forms."""

import dataclasses
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
    expert_leverage,
    loss_of_template,
    run_figures,
    shape_factor,
)
from jaxscale.hardware.catalogue import cluster
from jaxscale.laws.loss import FailureLaw, experts_law, failure_law, shape_law
from jaxscale.models import model
from jaxscale.models.transformer import n_active_params, n_params
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
    assert float(compute_optimal_flop(LAWS.loss, params)) == pytest.approx(flop, rel=1e-9)
    assert float(compute_optimal_loss(LAWS.loss, flop)) == pytest.approx(
        float(LAWS.loss.loss(params, tokens)), rel=1e-12
    )


def test_shape_factor_is_one_at_the_best_shape():
    laws = dataclasses.replace(LAWS, shape=shape_law("kaplan"))
    best = model("llama3-8b", d_model=64.0 * LLAMA.n_layers, d_ff=3.5 * 64.0 * LLAMA.n_layers)
    assert float(shape_factor(best, LLAMA, laws)) == pytest.approx(1.0, abs=1e-12)
    assert float(shape_factor(LLAMA, LLAMA, laws)) > 1.0


def test_worth_of_experts_is_that_of_its_paper():
    """More than 7 at 3.1 % active, granularity 12 and 1e22 flop; best granularity about 12; Kimi K2's sparsities."""
    law = experts_law()
    assert float(law.leverage(0.031, 12.0, 1e22)) == pytest.approx(7.24, abs=0.01)
    fine = np.geomspace(2.0, 64.0, 401)
    assert fine[np.argmax(np.asarray(law.leverage(0.031, fine, 1e22)))] == pytest.approx(11.3, rel=0.02)
    of = {sparsity: float(law.leverage(9.0 / (8.0 * sparsity + 1.0), 7.0, 1e21)) for sparsity in (16, 32, 48)}
    assert [of[48] / of[other] for other in (16, 32)] == pytest.approx([1.55, 1.16], abs=0.03)
    assert float(law.leverage(0.035, 7.0, 3.3e24)) == float(law.leverage(0.035, 7.0, 1e22))
    assert float(expert_leverage(LLAMA, LAWS, 1e22)) == 1.0


def test_mixtures_at_the_budget_of_deepseek_v3():
    """Active size and total of the least loss of 3.29e24 flop lie about the built 37e9 and 671e9 of experts."""
    deepseek = model("deepseek-v3")
    active, _ = loss_of_template(LAWS, deepseek).optimum(3.29e24)
    total = active * n_params(deepseek) / n_active_params(deepseek)
    assert 20e9 < float(active) < 80e9 and 0.3e12 < float(total) < 1.5e12
    dense, _ = LAWS.loss.optimum(3.29e24)
    assert float(dense) > 1.5e11


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
