"""Critical batch: steps and samples, and the planner's survey."""

import numpy as np

from jaxscale.burst import BurstJob, Convergence, best_chips, load_network, measured_layer_time, survey_batches

GPUS = 2.0 ** np.arange(0, 9)


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
    few, many = best_chips(small, GPUS, 0.7), best_chips(large, GPUS, 0.7)
    assert 1 < few < many
