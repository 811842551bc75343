"""Time to synchronise the gradients of a layer over the GPUs that share the layer."""

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from jaxscale.burst.networks.layers import FLOAT_BYTES

SYNCHRONISATIONS = ("correct", "released")


def all_reduce_time(weights: ArrayLike, n_chips: ArrayLike, bandwidth: ArrayLike) -> Array:
    r"""Bandwidth term of a ring all-reduce of all gradients of the layer.

    $t = \frac{8 P}{W}\left(1 - \frac1g\right)$: every GPU sends and receives 2 (1 - 1/g) times the 4 P bytes.

    Args:
        weights: P, trainable parameters [1].
        n_chips: g [1].
        bandwidth: W, per GPU and direction [byte/s].

    Returns:
        Seconds [s].
    """
    return 2.0 * FLOAT_BYTES * jnp.asarray(weights) * (1.0 - 1.0 / jnp.asarray(n_chips)) / bandwidth


def released_sync_time(released_elements: ArrayLike, n_chips: ArrayLike, bandwidth: ArrayLike) -> Array:
    r"""Synchronisation time of the released planner, for comparison.

    $t = 4 R / W$ on more than one GPU, with $R = P$ for a linear layer and
    $R = k_w k_h F + k_w k_h$ for a convolution, where the code takes F from the spatial size of the output instead of
    its channels and drops the input channels: the synchronisation of convolutions all but vanishes.

    Args:
        released_elements: R [1].
        n_chips: g [1].
        bandwidth: W, per GPU and direction [byte/s].

    Returns:
        Seconds [s].

    Reference:
        seojinpark/DeepPool@7922cac parallelizationPlanner.py.
    """
    time = FLOAT_BYTES * jnp.asarray(released_elements) / bandwidth
    return jnp.where(jnp.asarray(n_chips) > 1.0, time, 0.0)
