"""Time of collectives among the devices of the process, by operation, size and group."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxscale.measuring.timing import PART, WINDOW, again_and_again, chain_of_turns, times_of_repeats

SIZES = tuple(2**power for power in range(16, 31, 2))
"""Sizes of the whole array of a collective [byte]."""

COLLECTIVES: dict[str, Callable[[jax.Array], jax.Array]] = {
    "all_reduce": lambda x: lax.psum(x, "chips"),
    "all_gather": lambda x: lax.all_gather(x, "chips", tiled=True),
    "reduce_scatter": lambda x: lax.psum_scatter(x, "chips", tiled=True),
    "all_to_all": lambda x: lax.all_to_all(x, "chips", 0, 0, tiled=True),
}
"""Collectives by name, on the shard of a chip."""


class CollectiveTiming(NamedTuple):
    """Collective and its time.

    Attributes:
        collective: a name of `COLLECTIVES`.
        n_gpus: chips of the group [1].
        size: size of the array of each chip, after a gather or before a scatter [byte].
        seconds: representative time, see `Timing` [s].
        median: median over the repeats [s].
        least: minimum over the repeats [s].
    """

    collective: str
    n_gpus: int
    size: int
    seconds: float
    median: float
    least: float

    @property
    def bus_bandwidth(self) -> float:
        """Bus bandwidth as defined by nccl-tests: rate at which data leave a chip of a ring [byte/s]."""
        rounds = 2.0 if self.collective == "all_reduce" else 1.0
        return rounds * (self.n_gpus - 1.0) / self.n_gpus * self.size / self.seconds


def group_sizes(n: int) -> list[int]:
    """Sizes of the timed groups: powers of two, and all devices."""
    return sorted({2**power for power in range(1, int(math.log2(n)) + 1)} | {n}) if n > 1 else []


def time_collective(name: str, devices: Sequence[Any], size: int, seconds: float) -> CollectiveTiming:
    """Time of a collective of 32-bit numbers.

    Args:
        name: name in `COLLECTIVES`.
        devices: devices of the group.
        size: see `CollectiveTiming` [byte].
        seconds: total time of all repeats [s].
    """
    n = len(devices)
    mesh = Mesh(np.asarray(devices, dtype=object), ("chips",))
    count = max(size // 4 // (n * n), 1) * n  # elements of a shard
    parts = PartitionSpec("chips")
    turns = max(math.ceil(WINDOW / (1e-5 + size / 1e11)), 1)

    def on_all(function: Callable[..., Any]) -> Callable[..., Any]:
        return jax.shard_map(function, mesh=mesh, in_specs=parts, out_specs=parts, check_vma=False)

    local = count if name == "all_gather" else count * n
    x = jax.device_put(jnp.ones(local * n, jnp.float32), NamedSharding(mesh, parts))
    result = jax.jit(on_all(COLLECTIVES[name]))(x)
    call = again_and_again(on_all(chain_of_turns(COLLECTIVES[name], turns)), ((x,), result))
    times = times_of_repeats(call, seconds) / turns
    median, least = float(np.median(times)), float(np.min(times))
    told = least if devices[0].platform == "cpu" else median
    return CollectiveTiming(name, n, 4 * count * n, told, median, least)


def time_collectives(devices: Sequence[Any], seconds: float) -> Iterator[CollectiveTiming]:
    """Timings of all collectives and groups, small sizes first, within a time budget.

    Args:
        devices: devices of the process.
        seconds: total time budget [s].
    """
    begin = time.perf_counter()
    cases = [(name, n) for n in group_sizes(len(devices)) for name in COLLECTIVES]
    for size in SIZES:
        for name, n in cases:
            if time.perf_counter() - begin > seconds:
                return
            yield time_collective(name, devices[:n], size, PART * seconds)
