"""Critical batch: closed forms against calculus, and the planner's survey."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxscale.burst import (
    BurstJob,
    Convergence,
    IdealJob,
    best_gpus,
    load_network,
    measured_layer_time,
    survey_batches,
    time_to_accuracy,
)

GPUS = 2.0 ** np.arange(0, 9)


@jax.jit
def _around_best(job, convergence, gpus):
    def time(log_batch):
        batch = jnp.exp(log_batch)
        return jnp.log(time_to_accuracy(job.iteration_time(batch, gpus), batch, convergence))

    best = jnp.log(job.best_batch(gpus, convergence))
    times = (time(best + shift) for shift in (-0.1, 0.0, 0.1))
    return jax.grad(time)(best), *times, job.best_time(gpus, convergence)


@given(
    sample=st.floats(1e-4, 1e-1), overhead=st.floats(1e-5, 1e-1), critical=st.floats(10, 1e5), gpus=st.floats(1, 1e4)
)
def test_best_batch_is_stationary_and_least(sample, overhead, critical, gpus):
    slope, below, best, above, closed = _around_best(IdealJob(sample, overhead), Convergence(1000, critical), gpus)
    assert abs(slope) < 1e-9
    assert below > best < above
    np.testing.assert_allclose(jnp.exp(best), closed, rtol=1e-9)


@given(efficiency=st.floats(0.05, 0.95), critical=st.floats(10, 1e5))
def test_gpus_at_efficiency_matches_the_derivative(efficiency, critical):
    job, convergence = IdealJob(0.01, 0.002), Convergence(1000, critical)
    gpus = job.gpus_at_efficiency(efficiency, convergence)
    slope = jax.grad(lambda x: jnp.log(job.best_time(jnp.exp(x), convergence)))(jnp.log(gpus))
    np.testing.assert_allclose(-slope, efficiency, rtol=1e-9)


def test_critical_batch_doubles_steps_and_samples():
    convergence = Convergence(500, 256)
    assert convergence.steps(256.0) == 1000
    assert convergence.steps(1e12) < 501


def test_strong_scaling_begins_where_batches_stop_paying():
    """Inception-v3: the best batch grows more slowly than the cluster, and more GPUs pay less and less."""
    graph, times = load_network("inception_v3"), measured_layer_time("inception_v3")
    batches = 2.0 ** np.arange(5, 14)
    small, large = (
        survey_batches(graph, times, BurstJob(1.0, 1.0), Convergence(1000, critical), GPUS, batches, 9)
        for critical in (256.0, 4096.0)
    )
    assert np.all(np.diff(small.time) < 0)
    assert 0.3 < small.growth.mean() < 0.7, "the square root of the cluster, in powers of two"
    assert np.all(large.batch >= small.batch)
    assert small.marginal[0] > 0.8 > small.marginal[-1]
    few, many = best_gpus(small, GPUS, 0.7), best_gpus(large, GPUS, 0.7)
    assert 1 < few < many
