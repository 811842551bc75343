"""Measured curves and the fitted roofline: against the profiles, and as functions."""

import hashlib
import tomllib

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxscale.base.documents import data_path, fit_path
from jaxscale.base.errors import InputError
from jaxscale.burst import Device, analytical_layer_time, load_network, measured_layer_time
from jaxscale.burst.layer_graph import kernel_table
from jaxscale.burst.layer_time import REGIMES, a100, layer_times, load_coefficients, read_layer_times


@pytest.fixture(scope="module")
def profile():
    """Distinct layers of all recordings, with the iteration that each belongs to."""
    groups = {}
    for row in read_layer_times():
        key = (row.recording, row.network, row.batch, row.layer.key, row.layer.kernels)
        groups.setdefault(key, []).append(row)
    rows = list(groups.values())
    iterations = sorted({(r[0].recording, r[0].network, r[0].batch) for r in rows})
    kernels = kernel_table([(i, k) for i, r in enumerate(rows) for k in r[0].layer.kernels], len(rows))
    batch = np.array([r[0].batch for r in rows], float)
    regime = np.array([REGIMES.index(r[0].regime) for r in rows])
    return {
        "predict": eqx.filter_jit(lambda coefficients: layer_times(kernels, batch, coefficients, a100(), regime)),
        "seconds": np.array([np.mean([x.seconds for x in r]) for r in rows]),
        "repeats": np.array([len(r) for r in rows]),
        "iteration": np.array([iterations.index((r[0].recording, r[0].network, r[0].batch)) for r in rows]),
        "iterations": iterations,
    }


def _errors(profile, coefficients):
    predicted, seconds, repeats = np.asarray(profile["predict"](coefficients)), profile["seconds"], profile["repeats"]
    layer = np.median(np.repeat(np.abs(predicted / seconds - 1), repeats))
    sums = [np.bincount(profile["iteration"], t * repeats) for t in (predicted, seconds)]
    return layer, dict(zip(profile["iterations"], sums[0] / sums[1] - 1, strict=True))


def test_every_row_of_the_profiles_is_used():
    assert len(read_layer_times()) == 3106 + 5115


def test_layers_within_15_percent_and_iterations_within_8(profile):
    """Measured: median 5.3 %; 110 of 113 iterations within 8 %.

    The three others (11.1, -9.3 and 8.3 %) belong to one recording, ResNet-34 launched kernel by kernel from the host,
    whose host time drifts from 0.55 ms per layer at batch 16 to 0.35 ms at batch 1; the same network with CUDA graphs
    is within 6 %.
    """
    layer, iterations = _errors(profile, load_coefficients())
    assert layer <= 0.06
    worse = {key: error for key, error in iterations.items() if abs(error) > 0.08}
    assert len(iterations) == 113
    assert {key[0] for key in worse} <= {"resnetLayerGpuProfileA100.txt"}
    assert len(worse) <= 3
    assert max(map(abs, iterations.values())) <= 0.12


def test_without_launch_latency_the_fit_fails(profile):
    """Negative control: small batches need the latency."""
    coefficients = load_coefficients()
    bare = eqx.tree_at(lambda c: c.launch, coefficients, np.zeros_like(coefficients.launch))
    layer, iterations = _errors(profile, bare)
    assert layer > 0.15
    assert max(map(abs, iterations.values())) > 0.3


def test_fit_belongs_to_the_data():
    with fit_path("burst_layer_time.toml").open("rb") as file:
        result = tomllib.load(file)
    for name, digest in result["sha256"].items():
        assert hashlib.sha256(data_path(f"companion/{name}").read_bytes()).hexdigest() == digest
    assert result["layer_error"]["held_out_layers"]["median"] <= 0.15


def test_measured_curves_pass_through_the_data():
    times = measured_layer_time("vgg16")
    rows = [r for r in read_layer_times() if r.recording == "vgg" and r.batch == 16]
    np.testing.assert_allclose(times(16.0), [r.seconds for r in rows], rtol=1e-12)
    np.testing.assert_allclose(times(128.0), 2 * times(64.0), rtol=1e-12)
    np.testing.assert_allclose(times(0.5), times(1.0), rtol=1e-12)


def test_lookup_by_shape_misses_part_of_the_iteration():
    """VGG-16, 32 samples: 53.7 ms in the profile; 44.8 ms as the released planner looks layers up."""
    np.testing.assert_allclose(measured_layer_time("vgg16", False)(32.0).sum() * 1e3, 53.73, rtol=1e-3)
    np.testing.assert_allclose(measured_layer_time("vgg16", True)(32.0).sum() * 1e3, 44.79, rtol=1e-3)


def test_unmeasured_networks_are_refused_and_served_analytically():
    with pytest.raises(InputError, match="no measured time"):
        measured_layer_time("unet")
    assert eqx.filter_jit(analytical_layer_time("unet"))(4.0).sum() > 0


ANALYTICAL = analytical_layer_time("resnet50")
RESNET = jax.jit(lambda batch: ANALYTICAL(batch).sum())


@given(batch=st.floats(0.05, 4096.0), factor=st.floats(1.01, 8.0))
def test_more_samples_take_longer_but_less_each(batch, factor):
    one, more = (float(RESNET(b)) for b in (batch, batch * factor))
    assert one < more <= one * factor * (1 + 1e-9)


def test_faster_chips_are_faster_and_everything_has_a_gradient():
    graph, coefficients = load_network("vgg16"), load_coefficients()

    @jax.jit
    def total(device, coefficients, batch):
        return layer_times(graph.kernels, batch, coefficients, device, 0).sum()

    slow = total(a100(), coefficients, 8.0)
    assert total(Device(2 * 156e12, 2 * 1.555e12, 1769472.0), coefficients, 8.0) < slow
    device, coefficient, batch = jax.grad(total, (0, 1, 2))(a100(), jax.tree.map(jnp.asarray, coefficients), 8.0)
    leaves = jax.tree.leaves((device, coefficient, batch))
    assert all(np.isfinite(leaf).all() for leaf in leaves)
    assert device.peak_flops < 0 and device.hbm_bandwidth < 0 and batch > 0
