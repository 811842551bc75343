"""Chips of the catalogue against what they are built of, and against published figures of whole systems.

Memory: stacks or chips on a bus, bits per pin and second. Peaks: units, operations per clock, clock. Links: lanes and
their rate. None of these is in the catalogue, whose figures come from data sheets that state the products. Sums over
systems and ratios of generations are those that vendors announce.
"""

import numpy as np
import pytest

import jaxscale as js

TOLERANCE = 0.03
"""Data sheets round, and what is sold clocks a few percent below what the parts would allow [1]."""

MEMORY_BUS = {
    # Width of the bus [bit], rate of a pin [Gbit/s]: JEDEC JESD235 (HBM2: 1024 bits to a stack), JESD238 (HBM3).
    "v100-16gb": (4 * 1024, 1.754),
    "v100-32gb": (4 * 1024, 1.754),
    "a100-40gb": (5 * 1024, 2.430),
    "a100-80gb": (5 * 1024, 3.186),
    "a100-80gb-pcie": (5 * 1024, 3.024),
    "h100-80gb": (5 * 1024, 5.238),
    "h100-96gb": (6 * 1024, 3.2),
    "h200-141gb": (6 * 1024, 6.25),
    "h200-nvl-141gb": (6 * 1024, 6.25),
    "b200": (8 * 1024, 8.0),
    "b300": (8 * 1024, 8.0),
    "gb200": (8 * 1024, 8.0),
    "gb300": (8 * 1024, 8.0),
    "l40s": (384, 18.0),
    "gtx580": (384, 4.008),
    "mi250x": (8 * 1024, 3.2),
    "mi300x": (8 * 1024, 5.2),
    "mi325x": (8 * 1024, 6.0),
    "mi350x": (8 * 1024, 8.0),
    "mi355x": (8 * 1024, 8.0),
    "tpu-v2": (4 * 1024, 1.367),
    "tpu-v3": (4 * 1024, 1.758),
    "tpu-v4": (4 * 1024, 2.4),
    "tpu-v5e": (2 * 1024, 3.2),
    "tpu-v5p": (6 * 1024, 3.6),
    "tpu-v6e": (2 * 1024, 6.4),
    "gaudi2": (6 * 1024, 3.2),
    "a100-40gb-pcie": (5 * 1024, 2.430),
    "a800-80gb": (5 * 1024, 3.186),
    "a800-80gb-pcie": (5 * 1024, 3.024),
    "h100-80gb-pcie": (5 * 1024, 3.186),
    "h100-nvl-94gb": (6 * 1024, 5.126),
    "h800-80gb": (5 * 1024, 5.238),
    "h800-80gb-pcie": (5 * 1024, 3.186),
    "h20-96gb": (6 * 1024, 5.208),
    "h20-141gb": (6 * 1024, 6.25),
    "gh200-96gb": (6 * 1024, 5.208),
    "gh200-144gb": (6 * 1024, 6.38),
    "l40": (384, 18.0),
    "l4": (192, 12.5),
    "t4": (256, 10.0),
    "a10": (384, 12.5),
    "a10g": (384, 12.5),
    "a30": (3 * 1024, 2.430),
    "a40": (384, 14.5),
    "rtx-a5000": (384, 16.0),
    "rtx-a6000": (384, 16.0),
    "rtx3090-24gb": (384, 19.5),
    "rtx4090-24gb": (384, 21.0),
    "rtx5090-32gb": (512, 28.0),
    "rtx6000-ada": (384, 20.0),
    "rtx-pro-6000": (512, 28.0),
    "gb10": (256, 8.533),
    "mi250": (8 * 1024, 3.2),
    "mi250-gcd": (4 * 1024, 3.2),
    "mi250x-gcd": (4 * 1024, 3.2),
    "tpu7x": (8 * 1024, 7.2),
    "trn1": (2 * 1024, 3.2),
    "trn1-core": (1024, 3.2),
    "inferentia2-core": (1024, 3.2),
    "max1550": (8 * 1024, 3.2),
    "sn40l": (4 * 1024, 3.52),
    "trn2": (4 * 1024, 5.66),
    "gaudi3": (8 * 1024, 3.6),
    "ascend-910b": (4 * 1024, 3.125),
}
"""Buses of memory."""

STACKS = {
    # Stacks of memory and what each holds [GiB].
    "gaudi3": (8, 16),
    "h100-80gb-pcie": (5, 16),
    "mi250": (8, 16),
    "tpu7x": (8, 24),
    "trn2": (4, 24),
    "gh200-96gb": (6, 16),
    "h20-96gb": (6, 16),
    "v100-16gb": (4, 4),
    "v100-32gb": (4, 8),
    "a100-40gb": (5, 8),
    "a100-80gb": (5, 16),
    "h100-80gb": (5, 16),
    "h200-141gb": (6, 24),
    "b200": (8, 24),
    "gb200": (8, 24),
    "b300": (8, 36),
    "gb300": (8, 36),
    "mi250x": (8, 16),
    "mi300x": (8, 24),
    "mi325x": (8, 32),
    "mi355x": (8, 36),
    "tpu-v4": (4, 8),
    "tpu-v5p": (6, 16),
    "gaudi2": (6, 16),
}
"""Memory as it is built."""

UNITS = {
    # Precision, units, floating-point operations of each per clock, clock [GHz].
    "v100-32gb": [("bf16", 80, 8 * 64 * 2, 1.53), ("fp32", 80, 64 * 2, 1.53)],
    "a100-80gb": [("bf16", 108, 1024 * 2, 1.41), ("tf32", 108, 512 * 2, 1.41), ("fp32", 108, 64 * 2, 1.41)],
    "h100-80gb": [("bf16", 132, 2048 * 2, 1.83), ("fp8", 132, 4096 * 2, 1.83), ("fp32", 132, 128 * 2, 1.98)],
    "h200-141gb": [("bf16", 132, 2048 * 2, 1.83), ("tf32", 132, 1024 * 2, 1.83)],
    "l40s": [("bf16", 142, 512 * 2, 2.52), ("fp8", 142, 1024 * 2, 2.52), ("fp32", 142, 128 * 2, 2.52)],
    "gtx580": [("fp32", 512, 2, 1.544)],
    "mi250x": [("bf16", 220, 1024, 1.7), ("fp32", 220, 128, 1.7)],
    "mi300x": [("bf16", 304, 2048, 2.1), ("fp8", 304, 4096, 2.1), ("tf32", 304, 1024, 2.1), ("fp32", 304, 256, 2.1)],
    "mi325x": [("bf16", 304, 2048, 2.1), ("fp8", 304, 4096, 2.1)],
    "mi350x": [("bf16", 256, 4096, 2.2), ("fp8", 256, 8192, 2.2), ("fp4", 256, 16384, 2.2)],
    "mi355x": [("bf16", 256, 4096, 2.4), ("fp8", 256, 8192, 2.4), ("fp4", 256, 16384, 2.4)],
    "tpu-v4": [("bf16", 8, 128 * 128 * 2, 1.05)],
    "tpu-v5e": [("bf16", 4, 128 * 128 * 2, 1.5)],
    "tpu-v5p": [("bf16", 8, 128 * 128 * 2, 1.75)],
    "gaudi2": [("bf16", 2, 256 * 256 * 2, 1.65)],
    "gaudi3": [("bf16", 8, 256 * 256 * 2, 1.6)],
    "h100-80gb-pcie": [("bf16", 114, 2048 * 2, 1.62), ("fp8", 114, 4096 * 2, 1.62)],
    "mi250": [("bf16", 208, 1024, 1.7), ("fp32", 208, 128, 1.7)],
    "t4": [("bf16", 40, 8 * 64 * 2, 1.59), ("fp32", 40, 64 * 2, 1.59)],
    "l4": [("bf16", 58, 512 * 2, 2.04), ("fp32", 58, 128 * 2, 2.04)],
    "a10": [("bf16", 72, 512 * 2, 1.695), ("fp32", 72, 128 * 2, 1.695)],
    "a40": [("bf16", 84, 512 * 2, 1.74), ("fp32", 84, 128 * 2, 1.74)],
    "rtx-a6000": [("bf16", 84, 512 * 2, 1.8)],
    "rtx3090-24gb": [("bf16", 82, 256 * 2, 1.695), ("fp32", 82, 128 * 2, 1.695)],
    "rtx4090-24gb": [("bf16", 128, 256 * 2, 2.52), ("fp32", 128, 128 * 2, 2.52)],
    "rtx5090-32gb": [("bf16", 170, 256 * 2, 2.407), ("fp32", 170, 128 * 2, 2.407)],
    "rtx6000-ada": [("bf16", 142, 512 * 2, 2.505)],
}
"""Multiprocessors, compute units or matrix units."""

LANES = {
    # Links to others of the domain, lanes of each and way, rate of a lane [Gbit/s].
    "h800-80gb": (8, 2, 100),
    "a800-80gb": (8, 4, 50),
    "gh200-96gb": (18, 2, 100),
    "gaudi3": (7, 3, 200),
    "v100-32gb": (6, 8, 25),
    "a100-80gb": (12, 4, 50),
    "h100-80gb": (18, 2, 100),
    "h200-141gb": (18, 2, 100),
    "b200": (18, 2, 200),
    "b300": (18, 2, 200),
    "gb200": (18, 2, 200),
    "gb300": (18, 2, 200),
    "mi300x": (7, 16, 32),
    "mi355x": (7, 16, 38.4),
    "gaudi2": (7, 3, 100),
}
"""NVLink, Infinity Fabric and Ethernet links."""

SYSTEMS = {
    # Published sums over a system, tensor rates with sparsity: chips, what, sum.
    "DGX A100": ("a100-80gb", 8, "bf16", 5.0e15),
    "DGX H100": ("h100-80gb", 8, "fp8", 32e15),
    "DGX B200, training": ("b200", 8, "fp8", 72e15),
    "DGX B200, inference": ("b200", 8, "fp4", 144e15),
    "HGX B200": ("b200", 8, "bf16", 36e15),
    "GB200 NVL72, 16 bits": ("gb200", 72, "bf16", 360e15),
    "GB200 NVL72, 8 bits": ("gb200", 72, "fp8", 720e15),
    "GB200 NVL72, 4 bits": ("gb200", 72, "fp4", 1440e15),
    "GB300 NVL72, 8 bits": ("gb300", 72, "fp8", 720e15),
}
MEMORY_OF_SYSTEMS = {
    "DGX A100": ("a100-80gb", 8, 16e12),
    "HGX H200": ("h200-141gb", 8, 38e12),
    "DGX B200": ("b200", 8, 64e12),
    "GB200 NVL72": ("gb200", 72, 576e12),
    "GB300 NVL72": ("gb300", 72, 576e12),
    "MI300X platform": ("mi300x", 8, 42.4e12),
}
LINKS_OF_SYSTEMS = {
    "DGX A100": ("a100-80gb", 8, 4.8e12),
    "DGX H100": ("h100-80gb", 8, 7.2e12),
    "DGX B200": ("b200", 8, 14.4e12),
    "GB200 NVL72": ("gb200", 72, 130e12),
}
"""Both ways."""


def within(value: float, expected: float) -> bool:
    """Whether a figure agrees with another as well as data sheets do."""
    return abs(value / expected - 1.0) <= TOLERANCE


@pytest.mark.parametrize("chip_id", MEMORY_BUS)
def test_memory_is_as_fast_as_its_bus(chip_id: str):
    width, rate = MEMORY_BUS[chip_id]
    bandwidth = float(js.chip(chip_id).hbm_bandwidth)
    assert within(bandwidth, width / 8.0 * rate * 1e9)
    assert not within(0.9 * bandwidth, width / 8.0 * rate * 1e9)
    assert not within(1.1 * bandwidth, width / 8.0 * rate * 1e9)


def test_every_chip_has_its_bus_checked():
    assert set(MEMORY_BUS) == {entry.id for entry in js.load_hardware().chips.values()}


@pytest.mark.parametrize("chip_id", STACKS)
def test_programs_may_allocate_nearly_all_stacks(chip_id: str):
    stacks, gib = STACKS[chip_id]
    assert 0.92 <= float(js.chip(chip_id).hbm_bytes) / (stacks * gib * 2.0**30) <= 1.002


@pytest.mark.parametrize("chip_id", UNITS)
def test_peaks_are_units_times_operations_times_clock(chip_id: str):
    for precision, units, operations, clock in UNITS[chip_id]:
        peak = float(js.chip(chip_id).peak(precision))
        assert within(peak, units * operations * clock * 1e9), precision
        assert not within(0.9 * peak, units * operations * clock * 1e9)


@pytest.mark.parametrize("chip_id", LANES)
def test_links_are_lanes_times_their_rate(chip_id: str):
    links, lanes, rate = LANES[chip_id]
    bandwidth = float(np.asarray(js.cluster(chip_id, 8).network.bandwidth)[0])
    assert within(bandwidth, links * lanes * rate / 8.0 * 1e9)
    assert not within(0.9 * bandwidth, links * lanes * rate / 8.0 * 1e9)


@pytest.mark.parametrize("system", SYSTEMS)
def test_peaks_add_up_to_those_of_published_systems(system: str):
    chip_id, chips, precision, total = SYSTEMS[system]
    assert within(2.0 * chips * float(js.chip(chip_id).peak(precision)), total)


@pytest.mark.parametrize("system", MEMORY_OF_SYSTEMS)
def test_memory_bandwidths_add_up_to_those_of_published_systems(system: str):
    chip_id, chips, total = MEMORY_OF_SYSTEMS[system]
    assert within(chips * float(js.chip(chip_id).hbm_bandwidth), total)


@pytest.mark.parametrize("system", LINKS_OF_SYSTEMS)
def test_links_add_up_to_those_of_published_systems(system: str):
    chip_id, chips, total = LINKS_OF_SYSTEMS[system]
    bandwidth = float(np.asarray(js.cluster(chip_id, chips).network.bandwidth)[0])
    assert within(2.0 * chips * bandwidth, total)


def test_generations_differ_as_announced():
    """Trillium: 4.7 times the peak of TPU v5e, twice its memory's bandwidth and its links' (Google, 2024-05).

    B200: 2.4 times the memory bandwidth of H100; NVLink twice as fast each other generation (NVIDIA, 2024-03). H200:
    1.4 times that of H100 (NVIDIA, 2023-11).
    """
    bandwidth = {chip_id: float(js.chip(chip_id).hbm_bandwidth) for chip_id in MEMORY_BUS}
    links = {chip_id: float(np.asarray(js.cluster(chip_id, 8).network.bandwidth)[0]) for chip_id in MEMORY_BUS}
    assert within(float(js.chip("tpu-v6e").peak("bf16") / js.chip("tpu-v5e").peak("bf16")), 4.7)
    assert within(bandwidth["tpu-v6e"] / bandwidth["tpu-v5e"], 2.0)
    assert within(links["tpu-v6e"] / links["tpu-v5e"], 2.0)
    assert within(bandwidth["b200"] / bandwidth["h100-80gb"], 2.4)
    assert within(bandwidth["h200-141gb"] / bandwidth["h100-80gb"], 1.43)
    assert within(links["b200"] / links["h100-80gb"], 2.0)


def test_narrower_formats_are_faster_by_whole_powers_of_two():
    """Each halving of the width doubles the peak of a chip with units for it; 4 bits triple it on B300 and GB300."""
    for chip_id in ("h100-80gb", "h200-141gb", "b200", "b300", "gb200", "gb300", "mi300x", "mi325x", "mi355x", "l40s"):
        chip = js.chip(chip_id)
        assert within(float(chip.peak("fp8") / chip.peak("bf16")), 2.0), chip_id
        assert within(float(chip.peak("bf16") / chip.peak("tf32")), 2.0) or chip_id.startswith("mi355"), chip_id
    for chip_id, ratio in (("b200", 2.0), ("gb200", 2.0), ("b300", 3.0), ("gb300", 3.0), ("mi355x", 2.0)):
        chip = js.chip(chip_id)
        assert within(float(chip.peak("fp4") / chip.peak("fp8")), ratio), chip_id
