r"""Utilisation of measured local updates: predicted by the round formula, with two numbers fitted to measured runs.

A run of s steps after a warm-up of $s_0$ has $n = \lfloor (s_0 + s) / H \rfloor - \lfloor s_0 / H \rfloor$ exchanges.
Its blocked time is that of n rings over slow links, $1 + a \sqrt{W_0 / W}$ times the nominal time, and a start skew
once: nodes that have not exchanged during the warm-up enter the measured window apart, and the first exchange waits for
all of them.
Nodes of one kind do not drift apart: runs whose warm-up held an exchange show no skew at any number of inner steps.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float
from robust_fit import bounded, least_squares_fit

from jaxscale.base.arrays import Number, as_float
from jaxscale.base.jit import filter_jit
from jaxscale.islands.fleet import REFERENCE_BANDWIDTH

WORD_BYTES = 4.0
"""Bytes of a parameter difference in the measured runs, 32 bits [byte]."""


class LinkLosses(eqx.Module):
    """Losses of links and starts.

    Attributes:
        slow_loss: a, loss of a link at 1 Gbit/s [1].
        start_skew: time by which nodes enter a measured window apart [s].
        step_time: compute of one step, of runs that do not state it [s].
    """

    slow_loss: Number = eqx.field(converter=as_float)
    start_skew: Number = eqx.field(converter=as_float)
    step_time: Number = eqx.field(converter=as_float)


class MeasuredRounds(NamedTuple):
    """Measured runs of local updates, as columns.

    Attributes:
        inner_steps: H [1], [run].
        members: nodes of the ring [1], [run].
        n_params: N [1], [run].
        bandwidth: of the shaped links [byte/s], [run].
        steps: measured, without the warm-up [1], [run].
        exchanges: in the measured window [1], [run].
        enters_apart: whether the warm-up held no exchange, [run].
        compute: time of all measured steps [s], [run].
        utilisation: compute over total time [1], [run].
    """

    inner_steps: Float[np.ndarray, " run"]
    members: Float[np.ndarray, " run"]
    n_params: Float[np.ndarray, " run"]
    bandwidth: Float[np.ndarray, " run"]
    steps: Float[np.ndarray, " run"]
    exchanges: Float[np.ndarray, " run"]
    enters_apart: Bool[np.ndarray, " run"]
    compute: Float[np.ndarray, " run"]
    utilisation: Float[np.ndarray, " run"]

    def rows(self, kept: Any) -> "MeasuredRounds":
        """Some of the runs.

        Args:
            kept: positions or a mask, [run].

        Returns:
            The columns of those runs.
        """
        return MeasuredRounds(*(column[kept] for column in self))


def measured_rounds(table: Sequence[Mapping[str, str]]) -> MeasuredRounds:
    """Columns of a table of measured runs, in the schema of `data/islands/diloco_measured.csv`.

    Args:
        table: rows of cells; the bandwidth asked for stands in where none was measured.

    Returns:
        The runs.
    """

    def column(name: str) -> np.ndarray:
        return np.asarray([float(row[name] or "nan") for row in table])

    inner, warmup = column("H"), column("warmup_steps")
    before = np.floor(warmup / inner)
    asked, got = column("bandwidth_requested_bit_per_s"), column("bandwidth_measured_bit_per_s")
    return MeasuredRounds(
        inner_steps=inner,
        members=column("world_size"),
        n_params=column("n_params"),
        bandwidth=np.where(np.isnan(got), asked, got) / 8.0,
        steps=column("steps") - warmup,
        exchanges=np.floor(column("steps") / inner) - before,
        enters_apart=before == 0.0,
        compute=column("compute_s"),
        utilisation=column("cu_measured"),
    )


def predicted_utilisation(runs: MeasuredRounds, losses: LinkLosses) -> Array:
    """Compute utilisation of runs by the round formula.

    Args:
        runs: their periods, links and sizes; neither measured times nor utilisations are read.
        losses: of links and starts.

    Returns:
        Utilisation [1], [run].
    """
    compute = losses.step_time * jnp.asarray(runs.steps)
    ring = 2.0 * (1.0 - 1.0 / jnp.asarray(runs.members)) * runs.n_params * WORD_BYTES / runs.bandwidth
    ring = ring * (1.0 + losses.slow_loss * jnp.sqrt(REFERENCE_BANDWIDTH / jnp.asarray(runs.bandwidth)))
    blocked = runs.exchanges * ring + losses.start_skew * jnp.where(jnp.asarray(runs.enters_apart), 1.0, 0.0)
    return compute / (compute + blocked)


SCALE = 0.03
"""Relative error of a utilisation from which it counts linearly: scatter of repeats [1]."""


@filter_jit
def _fitted(start: Array, runs: MeasuredRounds, step_time: Array) -> Array:
    def misses(logs: Array, _: Any) -> Array:
        slow_loss, start_skew = jnp.exp(logs)
        miss = jnp.log(predicted_utilisation(runs, LinkLosses(slow_loss, start_skew, step_time)) / runs.utilisation)
        return bounded(miss / SCALE)

    return least_squares_fit(misses, start, None)


def fit_link_losses(runs: MeasuredRounds) -> LinkLosses:
    """Losses of links and starts that describe the utilisation of runs best; the pace is the median of their steps.

    Args:
        runs: measured ones with a stated bandwidth.

    Returns:
        The losses.
    """
    step_time = jnp.asarray(float(np.median(runs.compute / runs.steps)))
    logs = _fitted(jnp.log(jnp.asarray([0.1, 0.1])), runs, step_time)
    return LinkLosses(float(jnp.exp(logs[0])), float(jnp.exp(logs[1])), float(step_time))


def bandwidth_left_out(runs: MeasuredRounds, rounded: ArrayLike) -> Float[np.ndarray, " run"]:
    """Utilisation of runs predicted from the runs at all other bandwidths.

    Args:
        runs: measured ones.
        rounded: label of the bandwidth of each run, equal for runs that are left out together, [run].

    Returns:
        Predictions [1], [run].
    """
    labels, predicted = np.asarray(rounded), np.zeros(len(runs.steps))
    for label in np.unique(labels):
        left_out = labels == label
        losses = fit_link_losses(runs.rows(~left_out))
        predicted[left_out] = np.asarray(predicted_utilisation(runs.rows(left_out), losses))
    return predicted


def implied_bandwidth(runs: MeasuredRounds, losses: LinkLosses) -> float:
    """Bandwidth of links that were not shaped, from the utilisation of runs over them [byte/s].

    Args:
        runs: measured ones over the same links; their bandwidth is not read.
        losses: of links and starts.

    Returns:
        The bandwidth of least squared log error, on a grid of 1 %.
    """
    grid = np.geomspace(1e7, 1e11, 926)
    tried = runs._replace(bandwidth=np.broadcast_to(grid[:, None], (len(grid), len(runs.steps))))
    misses = np.log(np.asarray(_over_bandwidths(tried, losses)) / runs.utilisation)
    return float(grid[int(np.argmin(np.sum(misses**2, axis=1)))])


@filter_jit
def _over_bandwidths(runs: MeasuredRounds, losses: LinkLosses) -> Array:
    """Utilisation of every run at each of several bandwidths [bandwidth, run]."""
    return jax.vmap(lambda rate: predicted_utilisation(runs._replace(bandwidth=rate), losses))(runs.bandwidth)


def run_left_out(runs: MeasuredRounds, losses: LinkLosses) -> Float[np.ndarray, " run"]:
    """Utilisation of runs over links of unknown bandwidth, which the other runs over them tell.

    Args:
        runs: measured ones over the same links.
        losses: of links and starts, fitted to runs over other links.

    Returns:
        Predictions [1], [run].
    """
    predicted = np.zeros(len(runs.steps))
    for row in range(len(predicted)):
        others = runs.rows(np.arange(len(predicted)) != row)
        told = runs.rows([row])._replace(bandwidth=np.asarray([implied_bandwidth(others, losses)]))
        predicted[row] = float(predicted_utilisation(told, losses)[0])
    return predicted
