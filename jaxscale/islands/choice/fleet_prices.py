r"""Prices of links and islands, and the bandwidth from which a fleet is worth having.

A price is the elasticity of the pace, $\partial \ln v / \partial \ln x$, with all shares optimal: by the envelope
theorem the gradient at fixed shares is that of the re-optimised pace.
"""

import math
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxscale.base.arrays import host_arrays, with_fields
from jaxscale.base.jit import small_jit
from jaxscale.islands.choice.islands_choice import BandwidthSweep
from jaxscale.islands.choice.mode_scores import FLEETS_AT_A_TIME, mode_index, surveyed, with_scaled_links
from jaxscale.islands.fleet import PerIsland, PerPair, host_rate
from jaxscale.islands.modes import LOOSE_MODES, MODES, IslandJob, mode_speed, pipeline_step

BANDWIDTH_FACTORS = np.geomspace(1e-4, 1e4, FLEETS_AT_A_TIME)
"""Factors on the bandwidth of all links for a sweep [1]."""


class _Scales(eqx.Module):
    """Logarithms of factors: on bandwidths and latencies of links, uplinks, and paces of islands."""

    bandwidth: PerPair
    latency: PerPair
    uplink: PerIsland
    pace: PerIsland


def _no_change(count: int) -> _Scales:
    square, row = np.zeros((count, count)), np.zeros(count)
    return _Scales(square, square, row, row)


def _scaled(job: IslandJob, scales: _Scales) -> IslandJob:
    """The job with factors on its links and islands."""
    links = with_fields(
        job.links,
        {
            "bandwidth": job.links.bandwidth * jnp.exp(scales.bandwidth),
            "latency": job.links.latency * jnp.exp(scales.latency),
            "uplink": job.links.uplink * jnp.exp(scales.uplink),
        },
    )
    faster = jnp.exp(-scales.pace)
    changes = {name: getattr(job.pace, name) * faster for name in ("base_time", "seconds_per_sequence")}
    pace = with_fields(job.pace, changes)
    fields = {name: getattr(job, name) for name in job.__dataclass_fields__}
    return IslandJob(**{**fields, "links": links, "pace": pace})


@small_jit
def _elasticities(job: IslandJob, scales: _Scales, mode: str, inner_steps: Any, layer_share: Any) -> _Scales:
    def log_speed(point: _Scales) -> Array:
        moved = _scaled(job, point)
        if mode == "alone":
            return jnp.log(moved.tokens / moved.pace.step(moved.sequences)[0])
        if layer_share is not None:
            return jnp.log(moved.tokens / pipeline_step(moved, layer_share))
        return jnp.log(mode_speed(moved, mode, inner_steps))

    return jax.grad(log_speed)(scales)


def price_table(
    job: IslandJob, mode: str, inner_steps: float, layer_share: np.ndarray | None, names: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Prices of the links, latencies, uplinks and islands that a mode uses.

    Args:
        job: model and the islands that take part, in their order.
        mode: one of `MODES`, or `alone`.
        inner_steps: H [1].
        layer_share: of each island of a pipeline; None in other modes [1], [island].
        names: of the islands.

    Returns:
        Relative gain in pace for a relative gain in bandwidth, latency or pace, by kind and name [1]; links without a
        price are left out.
    """
    job = host_arrays(job)
    arguments = (np.asarray(inner_steps), None if layer_share is None else np.asarray(layer_share))
    prices = jax.tree.map(np.asarray, _elasticities(job, _no_change(len(names)), mode, *arguments))
    table: dict[str, dict[str, float]] = {"links": {}, "latencies": {}, "uplinks": {}, "islands": {}}
    for row, sender in enumerate(names):
        table["islands"][sender] = float(prices.pace[row])
        if prices.uplink[row]:
            table["uplinks"][sender] = float(prices.uplink[row])
        for column, receiver in enumerate(names):
            for kind, matrix in (("links", prices.bandwidth), ("latencies", prices.latency)):
                if row != column and matrix[row, column]:
                    table[kind][f"{sender} -> {receiver}"] = float(matrix[row, column])
    return table


def break_even_sweep(
    job: IslandJob, inner_steps: Sequence[float], synchronous_work: float, loose_work: np.ndarray, alone: float
) -> BandwidthSweep:
    """Paces and days of a fleet against the bandwidth of all its links, and where it beats its best island.

    Args:
        job: model and fleet.
        inner_steps: H [1], [period].
        synchronous_work: tokens of a run, times slowdown, over the seconds of a day, of modes that exchange every step.
        loose_work: the same of the loose modes, by inner steps [mode, period].
        alone: days of the best island alone [day].

    Returns:
        The sweep.
    """
    speeds = surveyed([with_scaled_links(job, factor) for factor in BANDWIDTH_FACTORS], inner_steps)
    work = np.full(speeds.shape[1:], synchronous_work)
    for place, mode in enumerate(LOOSE_MODES):
        work[mode_index(mode)] = np.where(np.isfinite(loose_work[place]), loose_work[place], np.inf)
    days = work / speeds
    best_period = np.argmin(days, axis=2)
    paces = np.take_along_axis(speeds, best_period[:, :, None], axis=2)[:, :, 0]
    fewest = days.min(axis=(1, 2))
    rate = host_rate(job.links)
    slowest = rate[~np.eye(len(rate), dtype=bool)].min()
    bandwidth = BANDWIDTH_FACTORS * slowest
    lines = {mode: paces[:, place] for place, mode in enumerate(MODES)}
    gain = {mode: alone / days[:, place].min(axis=1) for place, mode in enumerate(MODES)}
    return BandwidthSweep(bandwidth, lines, gain, fewest, _crossing(bandwidth, fewest, alone))


def _crossing(bandwidth: np.ndarray, days: np.ndarray, alone: float) -> float:
    """Bandwidth at which falling days reach those of the best island alone [byte/s]."""
    better = days < alone
    if not better.any():
        return math.inf
    if better.all():
        return 0.0
    first = int(np.argmax(better))
    if first == 0:
        return 0.0
    logs = np.log(days[first - 1 : first + 1] / alone)
    share = logs[0] / (logs[0] - logs[1])
    return float(bandwidth[first - 1] * (bandwidth[first] / bandwidth[first - 1]) ** share)
