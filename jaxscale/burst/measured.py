"""Measured layer times as curves: time of each layer against the samples on the GPU."""

import functools
from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxscale.burst.networks import network_entry, network_steps
from jaxscale.burst.profiles import read_layer_times
from jaxscale.errors import InputError


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
        beyond = jnp.maximum(x - grid[-1], 0.0)
        return jnp.where(idle, 0.0, jnp.exp(inside + beyond))


def _occurrences(profile: str) -> dict[int, dict[tuple, list[float]]]:
    """Times by batch and layer key, in file order; the planner's own table where it has the network."""
    rows = [row for row in read_layer_times() if row.network == profile]
    graph = [row for row in rows if row.regime.endswith("-graph")]
    found: dict[int, dict[tuple, list[float]]] = {}
    for row in graph or rows:
        found.setdefault(row.batch, {}).setdefault(row.layer.key, []).append(row.seconds)
    return found


def _seconds(step, occurrences: dict[tuple, list[float]], seen: int) -> float:
    if step.layer.name == "join":
        return 0.0
    if step.layer.key in occurrences:
        times = occurrences[step.layer.key]
        return times[min(seen, len(times) - 1)]
    if step.layer.parts and all(part in occurrences for part in step.layer.parts):
        return sum(occurrences[part][0] for part in step.layer.parts)
    raise KeyError(step.layer.name)


@functools.cache
def measured_layer_time(name: str, per_shape: bool = True) -> MeasuredLayerTime:
    """Measured curves of a network.

    Args:
        name: a network whose layers were measured: `vgg16`, `wide_resnet101_2`, `inception_v3`, `vit`.
        per_shape: one curve per distinct layer shape, the first in the profile, as the released planner looks layers
            up; else every layer has the curve of its own row. They differ where the profile times equal shapes apart:
            the two 4,096-wide activations of VGG-16, by 1.2 ms.

    Returns:
        The curves.

    Raises:
        InputError: layers of the network were not measured; `layer_time.analytical_layer_time` can serve them.
    """
    profile = network_entry(name).profile
    occurrences = _occurrences(profile) if profile else {}
    steps = network_steps(name)
    batches = sorted(occurrences)
    times = np.zeros((len(steps), len(batches)))
    for column, batch in enumerate(batches):
        seen: dict[tuple, int] = {}
        for row, step in enumerate(steps):
            key = step.layer.key
            try:
                times[row, column] = _seconds(step, occurrences[batch], 0 if per_shape else seen.get(key, 0))
            except KeyError as error:
                raise _not_measured(name, str(error)) from None
            seen[key] = seen.get(key, 0) + 1
    if not batches:
        raise _not_measured(name, "all")
    with np.errstate(divide="ignore"):
        return MeasuredLayerTime(np.log(np.array(batches, float)), np.log(times))


def _not_measured(name: str, what: str) -> InputError:
    return InputError(
        f"network {name}: no measured time for {what}; expected vgg16, wide_resnet101_2, inception_v3, vit"
    )
