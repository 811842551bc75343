"""Cost of every step of a layer graph for every choice of GPUs before and in the step."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float

from jaxscale.base.arrays import as_float
from jaxscale.base.errors import InputError
from jaxscale.burst.networks.layer_graph import LayerGraph
from jaxscale.burst.networks.measured_layers import AbstractLayerTime
from jaxscale.burst.planners.gradient_sync import SYNCHRONISATIONS, all_reduce_time, released_sync_time
from jaxscale.burst.planners.transfer import redistribution_time


class BurstJob(eqx.Module):
    """One job on one cluster; every field is a float leaf, so jobs stack and differentiate.

    Attributes:
        batch: global batch of the job [sample].
        n_chips: GPUs of the cluster, a power of two [1].
        bandwidth: per GPU and direction [byte/s].
        latency: of one redistribution of activations [s].
        amplification_limit: most GPU-time that a layer may take, in units of its time on one GPU [1]; above 1.
        exempt_below: layers that take no longer on one GPU are exempt from the limit [s].
    """

    batch: Float[ArrayLike, "*batch"] = eqx.field(converter=as_float)
    n_chips: Float[ArrayLike, "*batch"] = eqx.field(converter=as_float)
    bandwidth: Float[ArrayLike, "*batch"] = eqx.field(converter=as_float, default=266e9)
    latency: Float[ArrayLike, "*batch"] = eqx.field(converter=as_float, default=240e-6)
    amplification_limit: Float[ArrayLike, "*batch"] = eqx.field(converter=as_float, default=2.0)
    exempt_below: Float[ArrayLike, "*batch"] = eqx.field(converter=as_float, default=300e-6)


class StepCosts(eqx.Module):
    """Costs in front of the dynamic programme; option k runs a step on $2^k$ GPUs.

    The place axis tells a step that runs beside or inside the GPUs of the step before it (0) from one whose input comes
    from or goes to a disjoint set of GPUs (1): the ends of a branch that runs at the same time as its siblings.

    Attributes:
        edge: time of a step on option b after a step on option a: transfer, compute and synchronisation [s].
        amplification: GPU-time of that edge over the time of the layer on one GPU [1].
        exempt: the limit does not bind the step.
        legal: options exist and the step may change the number of GPUs so (without regard to the limit).
        chips: GPUs of each option [1].
    """

    edge: Float[Array, "step place option option"]
    amplification: Float[Array, "step place option option"]
    exempt: Bool[Array, " step"]
    legal: Bool[Array, "step option option"]
    chips: Float[Array, " option"]

    def allowed(self, limit: ArrayLike) -> Bool[Array, "step place option option"]:
        """Edges that are legal and whose amplification is below the limit; one GPU throughout always is."""
        within = (self.amplification < limit) | (self.amplification <= 1.0 + 1e-6)
        return self.legal[:, None] & (within | self.exempt[:, None, None, None])


def options_for(n_chips: int) -> int:
    """Number of options 1, 2, 4, ... up to `n_chips` [1].

    Raises:
        InputError: `n_chips` is not a power of two.
    """
    if n_chips < 1 or n_chips & (n_chips - 1):
        raise InputError(f"gpus = {n_chips}: expected a power of two, for example 8")
    return n_chips.bit_length()


def step_costs(
    graph: LayerGraph,
    layer_time: AbstractLayerTime,
    job: BurstJob,
    n_options: int,
    synchronisation: str = "correct",
) -> StepCosts:
    r"""Cost tensors of a graph.

    $c_l(a, b) = t_x(s_a, s_b) + t_l(s_b) + t_{sync}(b)$ with $s_k = B / 2^k$ samples per GPU, and the amplification
    $A_l(a, b) = 2^b c_l(a, b) / t_l(B)$.

    Args:
        graph: the network.
        layer_time: time of every layer against samples per GPU.
        job: job and cluster.
        n_options: options 1, 2, ..., 2^(n_options - 1) GPUs; a Python integer, so that one compilation serves all
            cluster sizes up to the largest.
        synchronisation: `correct` (ring all-reduce of all weights) or `released` (the released planner's formula).

    Returns:
        The tensors.

    Raises:
        InputError: unknown synchronisation.

    Reference:
        Park et al., arXiv 2112.10065, section 4; `exempt_below` and the forbidden changes at activations are those of
        seojinpark/DeepPool@7922cac.
    """
    if synchronisation not in SYNCHRONISATIONS:
        raise InputError(f"synchronisation {synchronisation!r} is unknown; expected {' or '.join(SYNCHRONISATIONS)}")
    chips = 2.0 ** jnp.arange(n_options, dtype=jnp.result_type(float))
    samples = job.batch / chips
    compute = jax.vmap(layer_time, out_axes=1)(samples)
    sync_of, amount = (
        (all_reduce_time, graph.weights)
        if synchronisation == "correct"
        else (released_sync_time, graph.released_sync_elements)
    )
    sync = sync_of(jnp.asarray(amount, chips.dtype)[:, None], chips, job.bandwidth)
    moved = jnp.asarray(graph.input_elements, chips.dtype)[:, None, None]
    link = (job.bandwidth, job.latency)
    transfers = [
        redistribution_time(moved, samples[:, None], samples, *link, to_other_chips=other) for other in (False, True)
    ]
    edge = jnp.stack(transfers, 1) + (compute + sync)[:, None, None, :]
    single = compute[:, 0]
    exempt = single <= job.exempt_below
    amplification = edge * chips / jnp.where(exempt, 1.0, single)[:, None, None, None]
    # An option needs a whole sample on each GPU; rounding of B / 2^k must not take it away.
    exists = (chips <= job.n_chips * (1 + 1e-6)) & (samples >= 1.0 - 1e-6)
    change = jnp.asarray(graph.keeps_layout)[:, None, None] & ~jnp.eye(n_options, dtype=bool)
    legal = exists[:, None] & exists & ~change
    return StepCosts(edge, amplification, exempt, legal, chips)
