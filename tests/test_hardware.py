"""Chips, networks and clusters as pytrees."""

import jax
import numpy as np
import pytest
from registry import stack

from jaxscale.hardware.catalogue import chip, cluster
from jaxscale.hardware.cluster import Chip, Cluster
from jaxscale.hardware.formats import FORMATS, PRECISIONS


def test_clusters_of_all_kinds_stack_and_sweep():
    clusters = [cluster("h100-80gb", 64), cluster("tpu-v5p", 1024), cluster("v100-32gb", 8, domain_size=4)]
    swept = jax.vmap(lambda one: one.chip.peak("bf16") * one.n_chips)(stack(clusters))
    expected = [one.chip.peak("bf16") * one.n_chips for one in clusters]
    np.testing.assert_allclose(swept, expected)
    assert len(set(np.asarray(swept))) == 3


def test_every_leaf_is_a_float():
    leaves = jax.tree.leaves(cluster("h100-80gb", 64))
    assert all(np.issubdtype(np.asarray(leaf).dtype, np.floating) for leaf in leaves)


def test_precisions_by_name():
    h100 = chip("h100-80gb")
    assert h100.peak("fp8") > h100.peak("bf16") > h100.peak("tf32") > h100.peak("fp32")
    with pytest.raises(ValueError, match="precision 'int8' is unknown; expected one of fp32, tf32"):
        h100.peak("int8")


def test_levels_by_index():
    network = cluster("h100-80gb", 64).network
    size, bandwidth, latency = network.level(0)
    assert (size, bandwidth) == (8.0, 450e9)
    assert 1e-7 < latency < 1e-4
    with pytest.raises(ValueError, match="network level 3 does not exist; expected 0 to 2"):
        network.level(3)


def test_gradients_reach_the_hardware():
    def peak(machine: Cluster) -> jax.Array:
        return machine.chip.peak("bf16") / 1e15

    slope: Chip = jax.grad(peak)(cluster("h100-80gb", 8)).chip
    assert np.count_nonzero(slope.peak_flops) == 1


def test_a_printed_cluster_tells_the_levels_of_its_network():
    """NVLink of an HGX H100: 8 chips, 450 Gbyte/s per direction; levels without an end name no number of chips."""
    domain, outside, spine = str(cluster("h100-80gb", 512)).splitlines()[-3:]
    assert domain.split()[:5] == ["scale-up", "domain", "8", "chips,", "450"]
    assert "chips" not in outside + spine


def test_numbers_take_the_bytes_of_their_bits():
    """Matmuls read as many bits as the name says; what is gathered has 8 bits at least, what is stored 16."""
    bits = {"fp32": 32, "tf32": 32, "bf16": 16, "fp8": 8, "fp4": 4}
    told = {
        entry.name: (8 * entry.element_bytes, 8 * entry.gathered_bytes, 8 * entry.matmul_bytes) for entry in FORMATS
    }
    assert told == {name: (max(width, 16), max(width, 8), width) for name, width in bits.items()}
    assert all(bits[entry.wide] == max(bits[entry.name], 16) for entry in FORMATS)


def test_work_in_several_formats_takes_the_sum_of_its_times():
    """Half of the flop at each of two peaks takes the mean of the times, not the time at the mean of the peaks."""
    h100 = chip("h100-80gb")
    shares = np.asarray([0.5 * (name in ("bf16", "fp8")) for name in PRECISIONS])
    expected = 0.5 / float(h100.peak("bf16")) + 0.5 / float(h100.peak("fp8"))
    assert float(h100.seconds_per_flop(shares)) == pytest.approx(expected, rel=1e-12)
