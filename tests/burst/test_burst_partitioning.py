"""Partitioning degree: closed form, gradient, blocking study."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from job_streams import (
    POLICIES,
    SplitJob,
    best_degree,
    best_degree_by_gradient,
    split_step_time,
    stated_stream,
    study_blocking,
)


def _jobs(n: int) -> SplitJob:
    rng = np.random.default_rng(0)
    return SplitJob(
        10 ** rng.uniform(-3, 2, n), 10 ** rng.uniform(-6, -3.5, n), 10 ** rng.uniform(3, 6, n), np.full(n, 1e11)
    )


def test_gradient_equals_closed_form():
    """500 jobs: relative difference below 1e-6 (measured 4e-16)."""
    jobs = _jobs(500)
    exact, found = jax.vmap(best_degree)(jobs), jax.vmap(best_degree_by_gradient)(jobs)
    assert exact.min() > 1
    np.testing.assert_allclose(found, exact, rtol=1e-6)


def test_closed_form_can_disagree():
    """Negative control: another latency has another optimum."""
    job = SplitJob(1.0, 0.02, 0.01, 1.0)
    other = eqx.tree_at(lambda j: j.latency, job, 0.0201)
    assert abs(best_degree_by_gradient(other) / best_degree(job) - 1) > 1e-3


def test_price_of_latency_by_implicit_differentiation():
    job = SplitJob(1.0, 0.02, 0.01, 1.0)
    found, exact = jax.grad(best_degree_by_gradient)(job), jax.grad(best_degree)(job)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(exact), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@jax.jit
def best_and_others(job):
    return split_step_time(job, best_degree(job)), split_step_time(job, jnp.geomspace(1.0, 1e6, 200)).min()


@given(work=st.floats(1e-3, 1e3), latency=st.floats(1e-6, 1.0), exchange=st.floats(0.0, 2.0))
def test_no_other_degree_is_faster(work, latency, exchange):
    best, others = best_and_others(SplitJob(work, latency, 0.5 * exchange * work, 1.0))
    assert best <= others * (1 + 1e-9)


@pytest.fixture(scope="module")
def study():
    return eqx.filter_jit(study_blocking)(jax.random.key(1), stated_stream())


def test_maximum_partitioning_is_not_optimal(study):
    """64 streams of 1,000 jobs: measured 0.746 (maximum), 0.698 (fastest), 0.365 (fixed at 4), 0.276 (just enough)."""
    rate, width = (dict(zip(POLICIES, np.asarray(x), strict=True)) for x in (study.rate, study.half_width))
    difference = dict(zip(POLICIES, np.asarray(study.difference + study.difference_half_width), strict=True))
    assert all(w < 0.01 for w in width.values())
    assert all(difference[policy] < 0 for policy in ("fixed", "fastest", "just_enough"))
    assert rate["just_enough"] == min(rate.values())
    np.testing.assert_allclose(rate["maximum"], 0.746, atol=0.01)
    np.testing.assert_allclose(rate["just_enough"], 0.276, atol=0.01)


def test_interval_is_not_a_sure_thing():
    """Negative control: on one worker all policies are the same, and the difference is not below 0."""
    alone = eqx.filter_jit(study_blocking)(jax.random.key(1), stated_stream(), n_streams=8, n_jobs=100, n_workers=1)
    policies = [POLICIES.index(p) for p in ("fastest", "just_enough")]
    np.testing.assert_array_equal(np.asarray(alone.difference)[policies], 0.0)
