"""Measured layer times as curves: time of each layer against the samples on the GPU."""

import functools
from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxscale.base.errors import InputError
from jaxscale.base.smooth import larger
from jaxscale.burst.networks.layer_graph import network_entry, network_steps
from jaxscale.burst.networks.layers import Layer
from jaxscale.burst.networks.profiles import read_layer_times


class AbstractLayerTime(eqx.Module):
    """Time of one training step of every row of a layer graph, against the samples on the GPU."""

    @abstractmethod
    def __call__(self, batch: ArrayLike) -> Float[Array, " step"]:
        """Forward plus backward time of each row for `batch` samples [s]."""


class MeasuredLayerTime(AbstractLayerTime):
    r"""Measured times, interpolated in the logarithms of batch and time.

    Between two measured batches $\ln t$ is linear in $\ln s$. Above the largest the time grows with the batch,
    $t(s) = t(s_{max})\, s / s_{max}$; below the smallest it stays.

    Attributes:
        log_batch: logarithm of the measured batches, increasing [1].
        log_time: logarithm of the measured times [s]; `-inf` where a row does no work (the end of a branch).
    """

    log_batch: Float[np.ndarray, " point"]
    log_time: Float[np.ndarray, "step point"]

    def __call__(self, batch: ArrayLike) -> Float[Array, " step"]:
        """Interpolated time of each row for `batch` samples [s]."""
        x = jnp.log(jnp.asarray(batch, jnp.result_type(float)))
        idle = jnp.isneginf(self.log_time[:, 0])
        curves = jnp.where(idle[:, None], 0.0, jnp.asarray(self.log_time, x.dtype))
        grid = jnp.asarray(self.log_batch, x.dtype)
        inside = jax.vmap(lambda curve: jnp.interp(x, grid, curve))(curves)
        beyond = larger(x - grid[-1], 0.0)
        return jnp.where(idle, 0.0, jnp.exp(inside + beyond))


Occurrences = dict[tuple, list[float]]
"""Times of each layer key, in file order [s]."""


def _occurrences(profile: str) -> dict[int, Occurrences]:
    """Times by batch, with CUDA graphs where the network was recorded with and without."""
    rows = [row for row in read_layer_times() if row.network == profile]
    graph = [row for row in rows if row.regime.endswith("-graph")]
    by_batch: dict[int, Occurrences] = {}
    for row in graph or rows:
        by_batch.setdefault(row.batch, {}).setdefault(row.layer.key, []).append(row.seconds)
    return by_batch


def _lookup(layer: Layer, profiles: list[Occurrences], seen: int) -> float | None:
    """Time of a layer: none for the end of a branch, its own row, or the sum of its parts [s]."""
    if layer.name == "join":
        return 0.0
    for times in profiles:
        if layer.key in times:
            return times[layer.key][min(seen, len(times[layer.key]) - 1)]
        if layer.parts and all(part in times for part in layer.parts):
            return sum(times[part][0] for part in layer.parts)
    return None


@functools.cache
def measured_layer_time(name: str, per_shape: bool = False) -> MeasuredLayerTime:
    """Measured curves of a network.

    Args:
        name: a network whose layers were measured: `vgg16`, `resnet50`, `wide_resnet101_2`, `inception_v3`, `vit`.
        per_shape: one curve per distinct layer shape, the first in the profile, as the released planner looks layers
            up; else every layer has the curve of its own row. The first reproduces published plans; the second adds up
            to the profile. They differ where the profile times equal shapes apart: the activations of VGG-16 carry the
            backward pass of different convolutions, and a look-up by shape misses a sixth of the iteration.

    Returns:
        The curves.

    Raises:
        InputError: layers of the network were not measured; `layer_time.analytical_layer_time` can serve them.
    """
    tables = [_occurrences(profile) for profile in network_entry(name).profiles]
    batches = sorted(set.intersection(*(set(table) for table in tables))) if tables else []
    if not batches:
        raise _not_measured(name, "all layers")
    steps = network_steps(name)
    times = np.zeros((len(steps), len(batches)))
    for column, batch in enumerate(batches):
        seen: dict[tuple, int] = {}
        for row, step in enumerate(steps):
            key = step.layer.key
            seconds = _lookup(step.layer, [table[batch] for table in tables], 0 if per_shape else seen.get(key, 0))
            if seconds is None:
                raise _not_measured(name, step.layer.name)
            times[row, column] = seconds
            seen[key] = seen.get(key, 0) + 1
    with np.errstate(divide="ignore"):
        return MeasuredLayerTime(np.log(np.array(batches, float)), np.log(times))


def _not_measured(name: str, what: str) -> InputError:
    shipped = "vgg16, resnet50, wide_resnet101_2, inception_v3, vit"
    return InputError(f"network {name}: no measured time for {what}; expected one of {shipped}")
