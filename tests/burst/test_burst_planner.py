"""Exact planner: published numbers, brute force, monotonicity, gradients, one compilation, speed."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from burst_graphs import BruteForce, random_block, random_chain, random_job, random_times
from hypothesis import given
from hypothesis import strategies as st

from jaxscale.base.errors import InputError
from jaxscale.burst import BurstJob, load_network, measured_layer_time, plan_burst, plan_data_parallel, plan_released

VGG, TIMES = load_network("vgg16"), measured_layer_time("vgg16", per_shape=True)


@functools.partial(jax.jit, static_argnums=1)
def _plans(job, synchronisation):
    plans = (plan_burst, plan_data_parallel, plan_released)
    return tuple(plan(VGG, TIMES, job, 4, synchronisation) for plan in plans)


@pytest.mark.parametrize(
    ("batch", "limit", "synchronisation", "data_parallel", "burst", "gpu_ms"),
    [
        (32, 2.0, "released", 11.99, 11.59, 57.3),
        (16, 4.0, "released", 9.57, 8.30, 38.3),
        (32, 2.0, "correct", 13.77, 11.95, None),
    ],
)
def test_vgg_reproduces_the_released_planner(batch, limit, synchronisation, data_parallel, burst, gpu_ms):
    """8 GPUs, 266 GB/s, 240 us: exact planner within 1 %, the released rule within 0.1 %."""
    job = BurstJob(batch, 8, 266e9, 240e-6, limit)
    exact, alone, released = _plans(job, synchronisation)
    single = {32: 44.79, 16: 25.27}[batch]
    np.testing.assert_allclose(exact.single_chip_time * 1e3, single, rtol=1e-3)
    np.testing.assert_allclose(alone.time * 1e3, data_parallel, rtol=1e-3)
    np.testing.assert_allclose(exact.time * 1e3, burst, rtol=0.01)
    np.testing.assert_allclose(released.time * 1e3, burst, rtol=1e-3)
    if gpu_ms is not None:
        np.testing.assert_allclose(exact.chip_seconds * 1e3, gpu_ms, rtol=0.01)
        np.testing.assert_allclose(released.chip_seconds * 1e3, gpu_ms, rtol=2e-3)


def test_synchronisation_formulas_differ():
    """Negative control: with the released formula the correct figures are missed by more than 10 %."""
    _, alone, _ = _plans(BurstJob(32, 8), "released")
    assert abs(alone.time * 1e3 / 13.77 - 1) > 0.1


def test_released_rule_breaks_the_limit_and_the_exact_one_does_not():
    exact, _, released = _plans(BurstJob(32, 8), "released")
    assert exact.amplification.max() < 2.0
    assert released.amplification.max() > 2.0


@pytest.fixture(scope="module")
def compiled():
    traces = []

    @eqx.filter_jit
    def run(graph, times, job):
        traces.append(graph.name)
        return plan_burst(graph, times, job, 3)

    return run, traces


def test_chains_equal_brute_force(compiled):
    """200 random chains, one compilation."""
    run, traces = compiled
    traces.clear()
    for seed in range(200):
        graph = random_chain(seed)
        times, job = random_times(graph, seed), random_job(seed)
        expected = BruteForce(graph, times, job, 3).chain()
        plan = run(graph, times, job)
        np.testing.assert_allclose(plan.time, expected, rtol=1e-9)
    assert len(traces) == 1


@pytest.mark.parametrize("branches", [(1, 2), (1, 1, 2), (1, 1, 1, 1)])
def test_blocks_equal_brute_force(compiled, branches):
    """3 x 17 random branch-join graphs."""
    run, _ = compiled
    overlapped = 0
    for seed in range(17):
        graph = random_block(seed, branches)
        times, job = random_times(graph, seed), random_job(seed)
        plan = run(graph, times, job)
        np.testing.assert_allclose(plan.time, BruteForce(graph, times, job, 3).block(), rtol=1e-9)
        overlapped += int(plan.parallel.any())
    assert 0 < overlapped < 17, "both ways to run branches must occur"


def test_brute_force_can_disagree(compiled):
    """Negative control: the plan for one set of layer times is not the optimum of another."""
    graph, job = random_chain(0), random_job(0)
    plan = compiled[0](graph, random_times(graph, 0), job)
    assert abs(plan.time / BruteForce(graph, random_times(graph, 1), job, 3).chain() - 1) > 1e-3


@given(
    bandwidth=st.floats(1e9, 1e12),
    latency=st.floats(1e-6, 1e-3),
    limit=st.floats(1.1, 8.0),
    factor=st.floats(1.0, 10.0),
)
def test_better_networks_and_looser_limits_never_hurt(bandwidth, latency, limit, factor):
    base, *better = (
        _plans(BurstJob(32, 8, *values), "correct")[0].time
        for values in (
            (bandwidth, latency, limit),
            (bandwidth * factor, latency, limit),
            (bandwidth, latency / factor, limit),
            (bandwidth, latency, limit * factor),
        )
    )
    assert max(better) <= base * (1 + 1e-9)


def test_data_parallel_is_a_plan_without_limit():
    exact, alone, _ = _plans(BurstJob(32, 8, amplification_limit=1e6), "correct")
    assert exact.time <= alone.time
    np.testing.assert_allclose(alone.chip_seconds, 8 * alone.time, rtol=1e-12)


def test_vmap_equals_loop_and_gradient_equals_finite_difference():
    limits = jnp.array([1.5, 2.0, 4.0])

    @jax.jit
    def total(job):
        return plan_burst(VGG, TIMES, job, 4).time

    swept = jax.vmap(lambda limit: total(BurstJob(32.0, 8.0, amplification_limit=limit)))(limits)
    looped = [total(BurstJob(32.0, 8.0, amplification_limit=float(limit))) for limit in limits]
    np.testing.assert_allclose(swept, looped, rtol=1e-12)
    # 44 samples: halves of 48 are measured batches, where the curves have kinks.
    job = BurstJob(44.0, 8.0, 2e11, 2e-4, 3.0)
    gradient = jax.jit(jax.grad(total))(job)
    for name in ("batch", "bandwidth", "latency"):
        value = getattr(job, name)
        ends = [total(eqx.tree_at(lambda s, n=name: getattr(s, n), job, value * f)) for f in (1 - 1e-5, 1 + 1e-5)]
        np.testing.assert_allclose(getattr(gradient, name), (ends[1] - ends[0]) / (2e-5 * value), rtol=1e-3)
    assert all(np.isfinite(leaf) for leaf in jax.tree.leaves(gradient))


def test_inception_overlaps_branches_only_where_moving_them_is_cheap():
    graph, times = load_network("inception_v3"), measured_layer_time("inception_v3")
    run = jax.jit(lambda latency: plan_burst(graph, times, BurstJob(32, 8, 266e9, latency, 4.0), 4))
    slow, fast = run(5e-3), run(1e-6)
    assert not slow.parallel.any()
    assert fast.parallel.any()
    assert fast.time < slow.time


def test_bad_choices_are_refused():
    with pytest.raises(InputError, match="correct or released"):
        plan_burst(VGG, TIMES, BurstJob(32, 8), 4, "none")
    with pytest.raises(InputError, match="chains"):
        plan_released(load_network("inception_v3"), measured_layer_time("inception_v3"), BurstJob(32, 8), 4)
