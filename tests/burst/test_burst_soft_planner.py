"""Soft planner: close to the exact one when cold, finite gradients, prices with the right sign."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from burst_graphs import random_block, random_chain, random_job, random_times

from jaxscale.burst import BurstJob, load_network, measured_layer_time, plan_burst, plan_soft, prices, soft_plan_time

VGG, TIMES = load_network("vgg16"), measured_layer_time("vgg16", per_shape=True)
EXACT = jax.jit(lambda job: plan_burst(VGG, TIMES, job, 4))
SOFT = jax.jit(lambda job: plan_soft(VGG, TIMES, job, 4, 1e-5))
TIME = jax.jit(lambda job: soft_plan_time(VGG, TIMES, job, 4, 1e-4))


@pytest.fixture(scope="module")
def run():
    @eqx.filter_jit
    def both(graph, times, job, relative_temperature, price):
        temperature = relative_temperature * times(job.batch).sum()
        soft = plan_soft(graph, times, job, 3, temperature, limit_width=1e-3, limit_price=price)
        return soft, plan_burst(graph, times, job, 3)

    return both


def test_cold_soft_plan_is_within_2_percent(run):
    """12 random chains and 4 branch-join graphs at T = 0.1 % of the iteration on one GPU, with a stiff limit."""
    cases = [(random_chain(seed), seed) for seed in range(12)]
    cases += [(random_block(seed, (1, 1, 2)), seed) for seed in range(4)]
    worst = 0.0
    for graph, seed in cases:
        times, job = random_times(graph, seed), random_job(seed)
        soft, exact = run(graph, times, job, jnp.asarray(1e-3), jnp.asarray(1e3))
        worst = max(worst, abs(float(soft.time / exact.time) - 1))
    assert worst <= 0.02, worst


def test_hot_soft_plan_is_not(run):
    """Negative control: at 30 % of the iteration the smooth minimum is far below the exact one."""
    graph = random_chain(1)
    times, job = random_times(graph, 1), random_job(1)
    soft, exact = run(graph, times, job, jnp.asarray(0.3), jnp.asarray(1e3))
    assert soft.time < 0.8 * exact.time


@pytest.mark.parametrize("limit", [2.0, 4.0])
def test_vgg_within_2_percent(limit):
    job = BurstJob(32, 8, amplification_limit=limit)
    exact, soft = EXACT(job), SOFT(job)
    np.testing.assert_allclose(soft.time, exact.time, rtol=0.02)
    np.testing.assert_allclose(soft.chip_seconds, exact.chip_seconds, rtol=0.02)
    np.testing.assert_allclose(soft.usage.sum(1), 1.0, rtol=1e-6)


def test_prices_have_the_right_sign_and_match_finite_differences():
    job = BurstJob(32.0, 8.0, 5e10, 1e-4, 2.0)
    price = jax.jit(lambda s: prices(VGG, TIMES, s, 4, 1e-4))(job)
    assert price.bandwidth < 0 < price.latency
    assert price.amplification_limit < 0 < price.batch
    for name in ("bandwidth", "latency", "amplification_limit"):
        value = getattr(job, name)
        ends = [TIME(eqx.tree_at(lambda s, n=name: getattr(s, n), job, value * f)) for f in (1 - 1e-5, 1 + 1e-5)]
        np.testing.assert_allclose(getattr(price, name), float(np.log(ends[1] / ends[0])) / 2e-5, rtol=1e-3, atol=1e-8)


def test_gradients_are_finite_everywhere():
    jobs = jax.vmap(lambda key: jax.random.uniform(key, (4,)))(jax.random.split(jax.random.key(0), 64))

    def time(x):
        job = BurstJob(2.0 ** (8 * x[0]), 8.0, 10 ** (8 + 5 * x[1]), 10 ** (-8 + 6 * x[2]), 1.01 + 8 * x[3])
        return soft_plan_time(VGG, TIMES, job, 4, 1e-5)

    gradients = jax.jit(jax.vmap(jax.grad(time)))(jobs)
    assert np.isfinite(gradients).all()
