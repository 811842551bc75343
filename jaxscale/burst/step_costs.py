"""Time of every step of a layer graph for every number of GPUs of the step and of the preceding step."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float

from jaxscale.base.arrays import as_float
from jaxscale.base.errors import InputError
from jaxscale.base.smooth import larger, smaller
from jaxscale.burst.layer_graph import LayerGraph
from jaxscale.burst.layer_time import AbstractLayerTime
from jaxscale.burst.layers import FLOAT_BYTES

SYNCHRONISATIONS = ("correct", "released")


def all_reduce_time(weights: ArrayLike, n_chips: ArrayLike, bandwidth: ArrayLike) -> Array:
    r"""Bandwidth term of the time of a ring all-reduce of the gradients of a layer [s].

    $t = \frac{8 P}{W}\left(1 - \frac1g\right)$: every GPU sends and receives 2 (1 - 1/g) times the 4 P bytes.

    Args:
        weights: P, trainable parameters [1].
        n_chips: g, GPUs of the layer [1].
        bandwidth: W, bandwidth per GPU and direction [byte/s].

    Returns:
        Time [s].
    """
    # 2 (1 - 1/g) times the 4 P bytes.
    return 2.0 * FLOAT_BYTES * jnp.asarray(weights) * (1.0 - 1.0 / jnp.asarray(n_chips)) / bandwidth


def released_sync_time(released_elements: ArrayLike, n_chips: ArrayLike, bandwidth: ArrayLike) -> Array:
    """Gradient synchronisation time by the formula of the planner released with arXiv 2112.10065, for comparison [s].

    $t = 4 R / W$ on more than one GPU, with $R = P$ for a linear layer and
    $R = k_w k_h F + k_w k_h$ for a convolution, where the code takes F from the spatial size of the output instead of
    the channels and drops the input channels: the synchronisation of convolutions all but vanishes.

    Args:
        released_elements: R, synchronised elements [1].
        n_chips: g, GPUs of the layer [1].
        bandwidth: W, bandwidth per GPU and direction [byte/s].

    Returns:
        Time [s].

    Reference:
        seojinpark/DeepPool@7922cac parallelizationPlanner.py.
    """
    time = FLOAT_BYTES * jnp.asarray(released_elements) / bandwidth
    return jnp.where(jnp.asarray(n_chips) > 1.0, time, 0.0)


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
    subtracted on the side with fewer GPUs (more samples each), which are a subset of the GPUs of the opposite side.

    Args:
        elements: elements of a sample, |x| [1]; 0 if no tensor moves.
        samples_before: samples per GPU before, s_a [1].
        samples_after: samples per GPU after, s_b [1].
        bandwidth: W, bandwidth per GPU and direction [byte/s].
        latency: alpha, latency of a redistribution [s].
        to_other_chips: whether the two layers run on disjoint GPUs.

    Returns:
        Time per training step [s].

    Reference:
        Park et al., arXiv 2112.10065; seojinpark/DeepPool@7922cac parallelizationPlanner.py.
    """
    before, after = jnp.asarray(samples_before), jnp.asarray(samples_after)
    # Between disjoint sets of GPUs no sample is kept.
    kept = 0.0 if to_other_chips else smaller(before, after)
    # The side with fewer GPUs has more samples each, and keeps a subset.
    egress = before - jnp.where(before > after, kept, 0.0)
    ingress = after - jnp.where(after > before, kept, 0.0)
    moved = FLOAT_BYTES * jnp.asarray(elements) * larger(egress, ingress)
    # Equal numbers of samples move too between disjoint sets.
    moves = (moved > 0) & (to_other_chips | (before != after))
    # Once forward, once backward.
    return jnp.where(moves, 2.0 * (moved / bandwidth + latency), 0.0)


class BurstJob(eqx.Module):
    """Training job on a cluster; every field is a float leaf, for stacked jobs and derivatives.

    Attributes:
        batch: global batch of the job [sample].
        n_chips: GPUs of the cluster, a power of two [1].
        bandwidth: bandwidth per GPU and direction [byte/s].
        latency: latency of a redistribution of activations [s].
        amplification_limit: largest GPU-time of a layer relative to the time on a single GPU [1]; above 1.
        exempt_below: largest time on one GPU of a layer that is exempt from the limit [s].
    """

    batch: Float[ArrayLike, "*batch"] = eqx.field(converter=as_float)
    n_chips: Float[ArrayLike, "*batch"] = eqx.field(converter=as_float)
    bandwidth: Float[ArrayLike, "*batch"] = eqx.field(converter=as_float, default=266e9)
    latency: Float[ArrayLike, "*batch"] = eqx.field(converter=as_float, default=240e-6)
    amplification_limit: Float[ArrayLike, "*batch"] = eqx.field(converter=as_float, default=2.0)
    exempt_below: Float[ArrayLike, "*batch"] = eqx.field(converter=as_float, default=300e-6)


class StepCosts(eqx.Module):
    """Times and amplifications for the dynamic programme; option k runs a step on $2^k$ GPUs.

    The place axis is 0 for a step on GPUs that contain, or are contained in, those of the preceding step, and 1 for a
    step with input from or output to a disjoint set of GPUs, as at the ends of concurrent branches.

    Attributes:
        edge: time of a step with option b after a step with option a: transfer, compute and synchronisation [s].
        amplification: GPU-time of the edge over the time of the layer on one GPU [1].
        exempt: whether the step is exempt from the limit.
        legal: whether options a and b exist and the step may change between them, at any amplification.
        chips: GPUs of each option [1].
    """

    edge: Float[Array, "step place option option"]
    amplification: Float[Array, "step place option option"]
    exempt: Bool[Array, " step"]
    legal: Bool[Array, "step option option"]
    chips: Float[Array, " option"]

    def allowed(self, limit: ArrayLike) -> Bool[Array, "step place option option"]:
        """Mask of the legal edges with amplification below the limit; one GPU for every step is always allowed."""
        # One GPU throughout has amplification 1, up to rounding, and stays allowed at any limit.
        within = (self.amplification < limit) | (self.amplification <= 1.0 + 1e-6)
        return self.legal[:, None] & (within | self.exempt[:, None, None, None])


def options_for(n_chips: int) -> int:
    """Number of powers of two 1, 2, 4, ... up to `n_chips` [1].

    Raises:
        InputError: `n_chips` is not a power of two.
    """
    if n_chips < 1 or n_chips & (n_chips - 1):
        raise InputError(f"n_chips = {n_chips} is out of range; expected a power of two, for example 8")
    return n_chips.bit_length()


def step_costs(
    graph: LayerGraph,
    layer_time: AbstractLayerTime,
    job: BurstJob,
    n_options: int,
    synchronisation: str = "correct",
) -> StepCosts:
    r"""Time and amplification of every layer for each number of GPUs of the layer and of its predecessor.

    $c_l(a, b) = t_x(s_a, s_b) + t_l(s_b) + t_{sync}(b)$ with $s_k = B / 2^k$ samples per GPU, and the amplification
    $A_l(a, b) = 2^b c_l(a, b) / t_l(B)$. $t_x$, $t_l$ and $t_{sync}$ are the times of redistribution, computation and
    synchronisation [s].

    Args:
        layer_time: time of every layer as a function of samples per GPU.
        n_options: number of options 1, 2, ..., 2^(n_options - 1) GPUs; a Python integer, so that one compilation serves
            all cluster sizes up to the largest.
        synchronisation: `correct` (ring all-reduce of all weights) or `released` (formula of the released planner).

    Raises:
        InputError: unknown synchronisation.

    Reference:
        Park et al., arXiv 2112.10065, section 4; `exempt_below` and the forbidden changes at activations are from
        seojinpark/DeepPool@7922cac.
    """
    if synchronisation not in SYNCHRONISATIONS:
        raise InputError(f"synchronisation {synchronisation!r} is unknown; expected {' or '.join(SYNCHRONISATIONS)}")
    chips = 2.0 ** jnp.arange(n_options, dtype=jnp.result_type(float))
    # s_k = B / 2^k
    samples = job.batch / chips
    # (step, option)
    compute = jax.vmap(layer_time, out_axes=1)(samples)
    sync_of, amount = (
        (all_reduce_time, graph.weights)
        if synchronisation == "correct"
        else (released_sync_time, graph.released_sync_elements)
    )
    # (step, option)
    sync = sync_of(jnp.asarray(amount, chips.dtype)[:, None], chips, job.bandwidth)
    moved = jnp.asarray(graph.input_elements, chips.dtype)[:, None, None]
    link = (job.bandwidth, job.latency)
    transfers = [
        redistribution_time(moved, samples[:, None], samples, *link, to_other_chips=other) for other in (False, True)
    ]
    # (step, place, before, after)
    edge = jnp.stack(transfers, 1) + (compute + sync)[:, None, None, :]
    single = compute[:, 0]
    exempt = single <= job.exempt_below
    # A_l(a, b) = 2^b c_l(a, b) / t_l(B)
    amplification = edge * chips / jnp.where(exempt, 1.0, single)[:, None, None, None]
    # An option needs a whole sample per GPU; the tolerance guards against rounding of B / 2^k.
    exists = (chips <= job.n_chips * (1 + 1e-6)) & (samples >= 1.0 - 1e-6)
    # An activation stays on the GPUs of the preceding step.
    change = jnp.asarray(graph.keeps_layout)[:, None, None] & ~jnp.eye(n_options, dtype=bool)
    legal = exists[:, None] & exists & ~change
    return StepCosts(edge, amplification, exempt, legal, chips)
