"""Measurement of the devices of the process: times of kernels and collectives, clock drift, and record of the chip."""

import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from jaxscale.base.errors import InputError
from jaxscale.hardware.catalogue import Hardware, load_hardware
from jaxscale.measuring.chip_record import ChipRecord, chip_record
from jaxscale.measuring.timed_kernels import every_kernel
from jaxscale.measuring.timing import CollectiveTiming, Stopwatch, Timing, drift_of, launch_seconds, time_collectives
from jaxscale.tables.table import cell_of, write_table

LEAST_SECONDS = 10.0
"""Minimum time for a sufficient number of kernels [s]."""

SHARE_OF_COLLECTIVES = 0.2
"""Share of the time for collectives, with several devices [1]."""

COLUMNS = (
    *("gpu", "op", "variant", "dtype", "b", "m", "k", "n", "n_groups", "n_heads", "head_dim", "q_len", "n_gpus"),
    *("size_bytes", "median_s", "min_s", "flops", "bytes"),
)
"""Columns of the table of timings."""


@dataclass(frozen=True)
class Measurement:
    """Timings of the devices of the process.

    Attributes:
        record: record of the chip.
        timings: timings of kernels.
        collectives: timings of collectives on groups of devices.
        platform: platform of JAX.
        seconds: total time of the measurement [s].
    """

    record: ChipRecord
    timings: tuple[Timing, ...]
    collectives: tuple[CollectiveTiming, ...]
    platform: str
    seconds: float

    def save_timings(self, path: str | Path) -> None:
        """Write the table of timings as CSV: median and minimum time [s], flop, bytes; inapplicable sizes are empty.

        Raises:
            InputError: the folder is missing or closed to writing.
        """
        rows = []
        for one in self.timings:
            sizes = {key: value or None for key, value in one.kernel._asdict().items()}
            rows.append({**sizes, "median_s": one.median, "min_s": one.least, "flops": one.flop, "bytes": one.bytes})
        for one in self.collectives:
            sizes = {"op": one.collective, "dtype": "fp32", "n_gpus": one.n_gpus, "size_bytes": one.size}
            rows.append({**sizes, "median_s": one.median, "min_s": one.least})
        named = [{"gpu": self.record.id, **row} for row in rows]
        write_table(path, COLUMNS, [[cell_of(row.get(column)) for column in COLUMNS] for row in named])


def chip_id_of(kind: str, hardware: Hardware) -> str:
    """Catalogue id of a device by its JAX name, or a new id from the letters and digits of the name."""
    try:
        return hardware[kind].id
    except InputError:
        return re.sub(r"[^a-z0-9]+", "-", kind.lower()).strip("-") or "my-chip"


def memory_of(devices: Sequence[Any]) -> float:
    """Memory of a device; for CPUs, an equal share of the host's memory [byte]."""
    told = (devices[0].memory_stats() or {}).get("bytes_limit")
    return float(told or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / len(devices))


def measure_devices(
    seconds: float = 240.0,
    *,
    name: str | None = None,
    hardware: Hardware | None = None,
    devices: Sequence[Any] | None = None,
    stage: Callable[[str, int], None] = lambda text, total: None,
    advance: Callable[[int], None] = lambda n: None,
) -> Measurement:
    """Time kernels on a device and collectives among all devices, and derive the record of the chip.

    Args:
        seconds: time for all timings [s]; a started kernel completes, and the fit takes a few seconds more.
        name: id of the chip; where None, the catalogue id, or an id from the JAX name.
        hardware: catalogue to search for the chip; the shipped catalogue where None.
        devices: devices of equal type; all local devices of JAX where None.
        stage: callback with the name of the next stage and its number of steps.
        advance: callback with the number of finished steps.

    Returns:
        Record and timings.

    Raises:
        InputError: too short a time.
    """
    if not seconds >= LEAST_SECONDS:
        raise InputError(f"seconds = {seconds:g} is out of range; expected {LEAST_SECONDS:g} or more")
    begin = time.perf_counter()
    catalogue = hardware or load_hardware()
    devices = jax.local_devices() if devices is None else devices
    first, several = devices[0], len(devices) > 1
    chip_id = name or chip_id_of(first.device_kind, catalogue)
    launch = launch_seconds(first)
    for_kernels = seconds * (1.0 - SHARE_OF_COLLECTIVES * several)
    watch, kernels = Stopwatch(first, for_kernels), every_kernel(first.platform)
    stage(f"timing kernels on {first.device_kind}", len(kernels))
    timings = []
    for one in watch.time_all(kernels):
        advance(1)
        if one is not None:
            timings.append(one)
    collectives: list[CollectiveTiming] = []
    if several:
        stage(f"timing collectives among {len(devices)} devices", 0)
        collectives = list(time_collectives(devices, seconds - for_kernels))
    stage("fitting the record", 0)
    n_timings = len(timings) + len(collectives)
    record = chip_record(
        timings,
        collectives,
        chip_id=chip_id,
        name=f"{first.device_kind}, as measured",
        memory_bytes=memory_of(devices),
        n_devices=len(devices),
        launch=launch,
        drift=drift_of(watch.reference),
        source=f"jaxscale measure, {n_timings} timings, jax {jax.__version__}, {first.platform}",
        attention=watch.attention,
        hardware=catalogue,
    )
    return Measurement(record, tuple(timings), tuple(collectives), first.platform, time.perf_counter() - begin)
