r"""Exchanges of published systems, each as numbers of the common formula of a round.

| system | exchanged | hidden |
|---|---|---|
| independent subnetworks (arXiv 1910.02120, 2306.16484) | $x_i N$ each way every H steps | nothing |
| local losses (arXiv 2012.03837) | activations, forward alone | all but the fill |
| graph networks (DistGNN, arXiv 2104.06700) | $2 (\mathrm{RF} - 1) |V| d / P$ words a layer, each way | all if r > 0 |
| compressed activations (FusionLLM, arXiv 2410.12707) | $3 V / r$ of a tensor of V | pipelining |
"""

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from jaxscale.base.smooth import larger
from jaxscale.islands.exchange import LinkTime, hub_time
from jaxscale.islands.fleet import Links
from jaxscale.islands.loose import WORD_BITS, Loose

INDEX_WORDS = 3.0
"""Words of a kept value in a sparse tensor: the value and an index of 64 bits beside 32 bits [1]."""


def subnetwork_plan(batch_share: ArrayLike, param_share: ArrayLike, inner_steps: ArrayLike) -> Loose:
    """Plan of independent subnetworks: each island trains a random part of the neurons for H steps.

    Args:
        batch_share: of each island [1], [island].
        param_share: x, part of the parameters of each island [1], [island].
        inner_steps: H [1].

    Returns:
        The plan.
    """
    ones = jnp.ones_like(jnp.asarray(batch_share))
    return Loose(batch_share, param_share, inner_steps, 1.0, WORD_BITS, 0.0, 0.0, float(ones.shape[-1]))


def subnetwork_exchange(plan: Loose, links: Links, n_params: ArrayLike, hub: int = 0) -> LinkTime:
    """Time of the exchange of subnetworks: every island sends its own part alone, to a hub and back [s]."""
    return hub_time(plan.bytes_per_exchange(n_params), links, hub)


def subnetwork_compute(param_share: ArrayLike, inner: ArrayLike = 1.0) -> Array:
    """Compute of a subnetwork over that of the whole network [1].

    Args:
        param_share: x, part of the neurons [1].
        inner: share of the compute in matrices between two cut layers, which lose both sides [1].

    Returns:
        $x (1 - i) + x^2 i$.
    """
    share = jnp.asarray(param_share)
    return share * (1.0 - jnp.asarray(inner)) + share**2 * inner


def local_loss_time(
    stages: Float[ArrayLike, " stage"], hops: Float[ArrayLike, " hop"], n_microbatches: ArrayLike, head: ArrayLike = 0.0
) -> Array:
    """Time of one step of a pipeline whose stages have losses of their own: no stage waits for a gradient.

    Args:
        stages: compute of one microbatch [s], [stage].
        hops: bytes of one microbatch over each hop, forward alone [s], [hop].
        n_microbatches: m [1].
        head: compute of a local head over that of a stage [1].

    Returns:
        m times the slowest stage or hop [s]; the pipeline is filled once in a run.
    """
    slowest = larger(jnp.max(jnp.asarray(stages)) * (1.0 + jnp.asarray(head)), jnp.max(jnp.asarray(hops)))
    return jnp.asarray(n_microbatches) * slowest


def graph_cut_words(
    vertices: ArrayLike, width: ArrayLike, replication: ArrayLike, parts: ArrayLike, delay: ArrayLike = 0.0
) -> Array:
    r"""Words that a part of a vertex-cut graph sends per layer, direction and epoch [1].

    Args:
        vertices: of the graph [1].
        width: d, of a vertex in the layer [1].
        replication: RF, parts in which a vertex lies on average, at least one [1].
        parts: P [1].
        delay: r, epochs between two exchanges of the same partial sum; 0 in each epoch [1].

    Returns:
        $2 (\mathrm{RF} - 1) |V| d / P$, over r where delayed.
    """
    words = 2.0 * (jnp.asarray(replication) - 1.0) * vertices * width / parts
    return words / larger(delay, 1.0)


def compression_ratios(hops: Float[ArrayLike, " hop"], pace: ArrayLike) -> Array:
    r"""Least ratios by which sparse activations keep every hop within the pace of the pipeline [1], [hop].

    Args:
        hops: time of the whole tensor over each hop [s], [hop].
        pace: time of the slowest stage [s].

    Returns:
        $r = \max(1, 3 R / \max_p C_p)$ where a hop is slower than the pace; 1, nothing dropped, elsewhere: up to there
        dropping would only add indices.
    """
    times, slot = jnp.asarray(hops), jnp.asarray(pace)
    return jnp.where(times <= slot, 1.0, larger(INDEX_WORDS * times / slot, 1.0))
