"""Spatial split: surface to volume, overlap, memory, hybrids."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxscale.base.errors import InputError
from jaxscale.burst import Device, spatial_network, spatial_step
from jaxscale.burst.layer_time import REGIMES, load_coefficients
from jaxscale.burst.spatial import SpatialMachine, halo_time, spatial_table

NETWORK, TABLE = spatial_network("cosmoflow"), spatial_table()
MACHINE = SpatialMachine(**{k: TABLE["machine"][k] for k in SpatialMachine.__dataclass_fields__})
DEVICE = Device(**{k: TABLE["device"][k] for k in Device.__dataclass_fields__})
REGIME = REGIMES.index("resnet-graph")


@eqx.filter_jit
def _jitted(parts, groups, batch, machine, temperature):
    return spatial_step(NETWORK, parts, groups, batch, machine, load_coefficients(), DEVICE, REGIME, temperature)


def _step(parts, groups, batch, machine=MACHINE, temperature=0.0):
    p, g, b, m = jax.tree.map(lambda x: jnp.asarray(x, float), (np.array(parts, float), groups, batch, machine))
    return _jitted(p, g, b, m, temperature)


def test_halo_of_the_first_layer_by_hand():
    """512^3 voxels of 4 channels in 2 x 2 x 1 parts: two slabs of 256 x 512 voxels in each of two dimensions."""
    time = halo_time(NETWORK, jnp.array([2.0, 2.0, 1.0]), 1.0, MACHINE)[0]
    message = 10e-6 + 4 * 4 * 256 * 512 / 75e9
    np.testing.assert_allclose(time, 2 * 2 * message, rtol=1e-9)


def test_no_split_no_halo():
    assert halo_time(NETWORK, jnp.ones(3), 1.0, MACHINE).sum() == 0
    assert _step((1, 1, 1), 1.0, 4.0).exposed_halo == 0


def test_surface_grows_more_slowly_than_volume():
    """Per GPU, the halo falls by 4 where the volume falls by 8 (two more cuts in each dimension)."""
    free = SpatialMachine(75e9, 0.0, 5e9, 0.0)
    coarse, fine = (halo_time(NETWORK, jnp.full(3, p), 1.0, free)[0] for p in (2.0, 4.0))
    np.testing.assert_allclose(coarse / fine, 4.0, rtol=1e-9)


def test_terms_and_limits():
    split = _step((2, 2, 2), 1.0, 1.0)
    np.testing.assert_allclose(split.total, split.compute + split.exposed_halo + split.exposed_all_reduce, rtol=1e-12)
    slow = _step((2, 2, 2), 1.0, 1.0, SpatialMachine(1e8, 1e-3, 5e9, 3e-6))
    assert slow.exposed_halo > 10 * split.exposed_halo
    assert _step((1, 1, 1), 1.0, 1.0).compute / split.compute > 6.0
    assert split.memory < 0.2 * _step((1, 1, 1), 1.0, 1.0).memory


def test_gradients_are_finite_and_smooth_is_close():
    def time(machine):
        return _step((4, 2, 2), 2.0, 4.0, machine, 1e-3).total

    gradient = jax.grad(time)(MACHINE)
    assert all(np.isfinite(leaf) for leaf in jax.tree.leaves(gradient))
    assert gradient.halo_bandwidth <= 0 <= gradient.halo_latency
    np.testing.assert_allclose(time(MACHINE), _step((4, 2, 2), 2.0, 4.0).total, rtol=0.01)


def test_large_samples_need_the_spatial_split():
    """64 samples of 512^3 on 512 V100: at least 8 parts, or GPUs idle; many parts wait for halos."""
    room = TABLE["machine"]["memory"]
    splits = ((2, 2, 2), (4, 2, 2), (4, 4, 2), (4, 4, 4), (8, 8, 8))
    steps = {parts: _step(parts, 512.0 / np.prod(parts), 64.0) for parts in splits}
    assert all(float(step.memory) <= room for step in steps.values())
    assert np.prod(min(splits, key=lambda parts: float(steps[parts].total))) <= 32
    few = [_step(parts, 64.0 / np.prod(parts), 64.0) for parts in ((1, 1, 1), (4, 4, 4))]
    assert all(float(step.memory) > room for step in few), (
        "26 GB of activations per GPU exceed 16 GB whatever the split"
    )


def test_a_network_with_branches_is_refused():
    with pytest.raises(InputError, match="expects a chain"):
        spatial_network("inception_v3")
