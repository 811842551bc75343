"""Moving activations between two layers that run on different numbers of GPUs."""

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from jaxscale.base.smooth import larger, smaller
from jaxscale.burst.networks.layers import FLOAT_BYTES


def redistribution_time(
    elements: ArrayLike,
    samples_before: ArrayLike,
    samples_after: ArrayLike,
    bandwidth: ArrayLike,
    latency: ArrayLike,
    *,
    to_other_chips: bool = False,
) -> Array:
    r"""Time to redistribute a tensor, forward and backward.

    $t_x = 2\left[\frac{\max(e, i)}{W} + \alpha\right]$ if $s_a \ne s_b$, else 0. With $x$ elements per sample, a GPU
    sends $e = 4 s_a |x|$ and receives $i = 4 s_b |x|$; the samples that a GPU keeps, $4 \min(s_a, s_b) |x|$, are
    subtracted on the side with fewer GPUs (more samples on each), whose GPUs belong to the other side. Between disjoint
    sets of GPUs nothing is kept, and equal numbers of samples move too.

    Args:
        elements: elements of one sample, |x| [1]; 0 means that there is nothing to move.
        samples_before: samples per GPU before, s_a [1].
        samples_after: samples per GPU after, s_b [1].
        bandwidth: W, per GPU and direction [byte/s].
        latency: alpha, of one redistribution [s].
        to_other_chips: the two layers run on disjoint GPUs.

    Returns:
        Seconds in a training step [s].

    Reference:
        Park et al., arXiv 2112.10065; seojinpark/DeepPool@7922cac parallelizationPlanner.py.
    """
    before, after = jnp.asarray(samples_before), jnp.asarray(samples_after)
    kept = 0.0 if to_other_chips else smaller(before, after)
    egress = before - jnp.where(before > after, kept, 0.0)
    ingress = after - jnp.where(after > before, kept, 0.0)
    moved = FLOAT_BYTES * jnp.asarray(elements) * larger(egress, ingress)
    moves = (moved > 0) & (to_other_chips | (before != after))
    return jnp.where(moves, 2.0 * (moved / bandwidth + latency), 0.0)
