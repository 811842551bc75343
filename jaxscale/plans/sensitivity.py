r"""Elasticities of predictions, and clusters with a resource changed.

The elasticity $\partial \ln f / \partial \ln x$ of every leaf comes from a reverse pass.
"""

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxscale.base.arrays import number
from jaxscale.base.errors import InputError
from jaxscale.base.jit import filter_jit
from jaxscale.hardware.cluster import Cluster


def elasticity(fn: Callable[..., Any], args: Any) -> Any:
    r"""Elasticity of a positive function with respect to every leaf of the arguments.

    $\partial \ln f / \partial \ln x = (x / f) \, \partial f / \partial x$; a leaf at zero has elasticity zero.

    Args:
        fn: function that returns one positive number.
        args: arguments of the function: a tuple, or a single argument.

    Returns:
        Elasticities in the structure of `args` [1]; leaves that are not numbers are unchanged.

    Raises:
        InputError: the function is not positive and finite at `args`.
    """
    arguments = args if type(args) is tuple else (args,)
    numbers, rest = eqx.partition(arguments, _is_number)
    # The slope at the default precision, for every mixture of number types in the arguments.
    numbers = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(float)), numbers)
    value, slopes = _value_and_slopes(fn, numbers, rest)
    if not (np.isfinite(number(value)) and number(value) > 0.0):
        raise InputError(f"elasticity: the function is {number(value):g} here; expected a positive finite number")
    # (x / f) df / dx; 0 at x = 0, where 0 * inf has no value.
    scaled = jax.tree.map(lambda leaf, slope: jnp.where(leaf == 0.0, 0.0, leaf * slope / value), numbers, slopes)
    result = eqx.combine(scaled, rest)
    return result if type(args) is tuple else result[0]


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, int | float | np.ndarray | jax.Array | np.number) and not isinstance(leaf, bool)


@filter_jit
def _value_and_slopes(fn: Callable[..., Any], numbers: Any, rest: Any) -> tuple[Array, Any]:
    return jax.value_and_grad(lambda leaves: fn(*eqx.combine(leaves, rest)))(numbers)


def named_elasticities(elasticities: Any, names: tuple[str, ...] = ()) -> list[tuple[str, float]]:
    """Elasticities as a flat list for a bar plot, the largest magnitude first.

    Args:
        elasticities: result of `elasticity`.
        names: names of the arguments, for a tuple of arguments.

    Returns:
        Pairs such as `("cluster.chip.hbm_bandwidth", -0.08)` [1].
    """
    pairs = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(elasticities)[0]:
        if not _is_number(leaf):
            continue
        steps = [_step(key) for key in path]
        if names and isinstance(path[0], jax.tree_util.SequenceKey):
            steps[0] = names[path[0].idx]
        values = np.atleast_1d(np.asarray(leaf))
        for index, value in np.ndenumerate(values):
            suffix = "".join(f"[{i}]" for i in index) if np.ndim(leaf) else ""
            pairs.append((".".join(steps) + suffix, float(value)))
    return sorted(pairs, key=lambda pair: -abs(pair[1]))


def _step(key: Any) -> str:
    for attribute in ("name", "key", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


CLUSTER_RESOURCES: Mapping[str, tuple[Callable[[Cluster], Any], int | None]] = {
    "peak flop/s": (lambda c: c.chip.peak_flops, None),
    "memory bandwidth": (lambda c: c.chip.hbm_bandwidth, None),
    "memory capacity": (lambda c: c.chip.hbm_bytes, None),
    "scale-up bandwidth": (lambda c: c.network.bandwidth, 0),
    "scale-out bandwidth": (lambda c: c.network.bandwidth, 1),
    "spine bandwidth": (lambda c: c.network.bandwidth, 2),
    "scale-up latency": (lambda c: c.network.latency, 0),
    "scale-out latency": (lambda c: c.network.latency, 1),
    "spine latency": (lambda c: c.network.latency, 2),
}
"""Resources of a cluster that can be changed: accessor, and network level where there are several."""


def with_resource(cluster: Cluster, what: str, factor: Any) -> Cluster:
    """Cluster with one resource multiplied by a factor, which may be traced.

    Args:
        cluster: chips and network.
        what: name of the resource in `CLUSTER_RESOURCES`.
        factor: factor of the resource [1].
    """
    path, index = CLUSTER_RESOURCES[what]

    def changed(leaf: Any) -> Any:
        if index is None:
            return leaf * factor
        # Numbers of a network have one entry per level.
        return leaf * (1.0 + (factor - 1.0) * (np.arange(np.shape(leaf)[-1]) == index))

    return eqx.tree_at(path, cluster, replace_fn=changed)
