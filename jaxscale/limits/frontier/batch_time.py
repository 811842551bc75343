r"""Time of one batch on a plan: the data-movement model of Erdil and Schneider-Joseph, arXiv 2411.01137.

$$ t_{mat} = \lVert t_{arith}, t_{mem}, t_{link}, t_{net} \rVert + t_{lat}, \quad
   t_{stage} = \lVert \tfrac{2 L}{PP} t_{mat}, t_{send} \rVert + t_{hop}, \quad
   t_{batch} = \lVert s\, t_{stage}, t_{grad} \rVert + t_{tree} $$

with $s$ the stage times that pass from the first microbatch's start to the last one's end.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxscale.limits.frontier import latency
from jaxscale.limits.frontier import matrix_time as matmul
from jaxscale.limits.frontier.degrees import DP, EP, PP, TP_FF, TP_WIDTH, Degrees, place
from jaxscale.limits.frontier.frontier_scenario import FrontierScenario
from jaxscale.limits.frontier.movement import transfer_times
from jaxscale.limits.frontier.overlap_norm import AbstractOverlap
from jaxscale.limits.frontier.scaling_laws import FrontierWork


class BatchTime(NamedTuple):
    """Time of a batch and its parts.

    Attributes:
        busy: arithmetic, DRAM, links and network of one matrix and microbatch, forward and backward, which overlap
            [s], [activity].
        matrix: time of that matrix and microbatch, with latency [s].
        stage: of a stage's part of one microbatch [s].
        slots: stage times in a batch [1].
        gradients: transfers of the gradients, which overlap with the rest [s].
        total: of the batch [s].
    """

    busy: Float[Array, " 4"]
    matrix: Array
    stage: Array
    slots: Array
    gradients: Array
    total: Array


def pipeline_slots(degrees: Degrees, wait: Array, overlap: AbstractOverlap) -> Array:
    r"""Stage times in a batch, $m + (PP - 1) / i + w (PP - \min(m, PP)) (1 - 1/i)$.

    The first two terms are the interleaved schedule with at least as many microbatches as stages (Narayanan et al.
    2021, arXiv 2104.04473, section 2.2). With fewer, each rank waits for the first microbatch to come round: the
    last term, without which a batch would end before one microbatch could pass all stages.
    """
    n_microbatches, n_stages = jnp.exp(degrees.n_microbatches), jnp.exp(degrees.groups[PP])
    fewer = jnp.exp(overlap.smaller(degrees.n_microbatches, degrees.groups[PP]))
    part = jnp.exp(-degrees.interleave)
    return n_microbatches + (n_stages - 1.0) * part + wait * (n_stages - fewer) * (1.0 - part)


def batch_time(degrees: Degrees, work: FrontierWork, scenario: FrontierScenario, overlap: AbstractOverlap) -> BatchTime:
    """Time of one batch.

    Args:
        degrees: the plan.
        work: what is trained.
        scenario: assumptions.
        overlap: smooth or exact.

    Returns:
        The time and its parts.
    """
    placement = place(degrees, jnp.log(scenario.domain_size), overlap)
    local = matmul.local_slice(degrees, work)
    link, network = transfer_times(local, degrees, placement, scenario)
    tree = latency.tree_latencies(placement, scenario)
    busy = jnp.stack(
        [
            matmul.arithmetic_time(local, scenario),
            matmul.memory_time(local, scenario),
            link[TP_FF] + link[TP_WIDTH] + link[EP],
            network[TP_FF] + network[TP_WIDTH] + network[EP],
        ]
    )
    per_matrix = overlap.longest(busy) + latency.matmul_latency(tree, scenario)
    compute = jnp.exp(local.matrices) * per_matrix
    hop = latency.stage_send_latency(degrees, placement, scenario)
    stage = overlap.longest(jnp.stack([compute, link[PP], network[PP]])) + hop
    slots = pipeline_slots(degrees, scenario.pipeline_wait, overlap)
    total = overlap.longest(jnp.stack([slots * stage, link[DP], network[DP]])) + latency.gradient_latency(tree)
    return BatchTime(busy, per_matrix, stage, slots, link[DP] + network[DP], total)
