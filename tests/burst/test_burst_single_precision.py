"""Single precision, JAX's default, in a process of its own: same plans, finite gradients, finite sweeps."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxscale.burst import BurstJob, analytical_layer_time, load_network, measured_layer_time, plan_burst

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import json
import jax, jax.numpy as jnp, numpy as np
from jaxscale import burst

vgg, times = burst.load_network("vgg16"), burst.measured_layer_time("vgg16", per_shape=True)
job = burst.BurstJob(32, 8)
plan = jax.jit(lambda s: burst.plan_burst(vgg, times, s, 4))(job)
gradient = jax.jit(jax.grad(lambda s: burst.soft_plan_time(vgg, times, s, 4, 1e-5)))(job)
layers = jax.jit(lambda b: burst.analytical_layer_time("inception_v3")(b))

graph, curves = burst.load_network("inception_v3"), burst.measured_layer_time("inception_v3")
axes = (np.geomspace(256, 8192, 5), np.geomspace(5e9, 5e11, 8), np.geomspace(3e-6, 3e-4, 5), [1.5, 2, 3, 4, 6])
batch, bandwidth, latency, limit = (jnp.asarray(x.ravel(), jnp.float32) for x in np.meshgrid(*axes, indexing="ij"))
jobs = burst.BurstJob(batch, 1024 + 0 * batch, bandwidth, latency, limit, 3e-4 + 0 * batch)
one = lambda s: burst.plan_burst(graph, curves, s, 11).time
sweep = jax.jit(lambda s: jax.lax.map(one, s, batch_size=100))
swept = sweep(jobs)
print(json.dumps({
    "dtype": str(plan.time.dtype),
    "time": float(plan.time),
    "gradient": [float(x) for x in jax.tree.leaves(gradient)],
    "layers": layers(4.0).tolist(),
    "jobs": int(np.isfinite(swept).sum()),
}))
"""


@pytest.fixture(scope="module")
def single():
    environment = {**os.environ, "JAX_ENABLE_X64": "0", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", "-c", SCRIPT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_plan_agrees(single):
    job = BurstJob(32, 8)
    vgg, times = load_network("vgg16"), measured_layer_time("vgg16", per_shape=True)
    exact = jax.jit(lambda s: plan_burst(vgg, times, s, 4).time)(job)
    assert single["dtype"] == "float32"
    np.testing.assert_allclose(single["time"], exact, rtol=1e-5)


def test_layer_times_agree(single):
    double = jax.jit(lambda b: analytical_layer_time("inception_v3")(b))(4.0)
    np.testing.assert_allclose(single["layers"], double, rtol=1e-4, atol=1e-12)


def test_gradients_are_finite(single):
    assert np.isfinite(single["gradient"]).all()
    assert np.any(np.array(single["gradient"]) != 0)


def test_thousand_scenarios_at_1024_gpus(single):
    """Inception-v3, bandwidth x latency x batch x limit in one program; its speed is in benchmarks/burst.py."""
    assert single["jobs"] == 1000
