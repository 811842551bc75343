"""The released DeepPool planner's rule for the amplification limit, for comparison; chains only."""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxscale.base.errors import InputError
from jaxscale.burst.networks.layer_graph import LayerGraph
from jaxscale.burst.networks.measured_layers import AbstractLayerTime
from jaxscale.burst.planners.burst_plan import BurstPlan, evaluate
from jaxscale.burst.planners.dynamic_programme import Choice
from jaxscale.burst.planners.step_costs import BurstJob, StepCosts, step_costs

_CHANGE_PENALTY = 1000.0
"""Factor that the released planner puts on a change of GPUs at an activation [1]."""


def _accept(costs: StepCosts, limit: Array, state, step) -> tuple[tuple[Array, Array], Array]:
    """One layer: predecessors are tried from one GPU upwards and accepted one after another."""
    total, amplification = state
    edge, chips, exempt, legal, single = step
    n_options = edge.shape[0]
    best = jnp.full(n_options, jnp.inf)
    lowest = jnp.full(n_options, jnp.inf)
    chosen = jnp.zeros(n_options, jnp.int32)
    for before in range(n_options):
        candidate = jnp.where(legal[before], total[before] + edge[before], jnp.inf)
        a = amplification[before]
        # The released test reads: the first predecessor, or a faster one below the limit or below the last accepted.
        accept = (candidate < best) & ((a < limit) | (a < lowest))
        best = jnp.where(accept, candidate, best)
        lowest = jnp.where(accept, a, lowest)
        chosen = jnp.where(accept, before, chosen)
    layer = edge[chosen, jnp.arange(n_options)]
    after = jnp.where(exempt, 1.0, layer * chips / jnp.where(exempt, 1.0, single))
    return (best, after), chosen


def plan_released(
    graph: LayerGraph,
    layer_time: AbstractLayerTime,
    job: BurstJob,
    n_options: int,
    synchronisation: str = "released",
) -> BurstPlan:
    r"""Plan of the released planner on a chain.

    As `plan_burst`, but the limit is tested on the layer before, along the best path to it, and only when one
    predecessor replaces another: a predecessor above the limit is still taken where it is the first, or where its
    amplification is lower than that of the one it replaces. The limit can so be exceeded, and the plan need not be the
    fastest below it.

    Args:
        graph: a chain.
        layer_time: time of every layer against samples per GPU.
        job: job and cluster.
        n_options: see `step_costs`.
        synchronisation: `released` or `correct`.

    Returns:
        The plan.

    Raises:
        InputError: the graph has blocks with branches.

    Reference:
        seojinpark/DeepPool@7922cac parallelizationPlanner.py.
    """
    if graph.widths[-1] > 1:
        raise InputError(f"network {graph.name}: the released rule is implemented for chains; expected no branches")
    costs = step_costs(graph, layer_time, job, n_options, synchronisation)
    exists = jnp.diagonal(costs.legal[0])
    change = (jnp.asarray(graph.keeps_layout)[:, None, None]) & ~jnp.eye(n_options, dtype=bool)
    near = costs.edge[:, 0]
    stay = jnp.diagonal(near, axis1=1, axis2=2)[:, None, :]
    edge = jnp.where(change, stay + _CHANGE_PENALTY * (near - stay), near)
    legal = jnp.broadcast_to(exists[:, None] & exists, edge.shape)
    own = jnp.eye(n_options, dtype=bool) & exists
    legal = legal.at[0].set(own)
    single = edge[:, 0, 0]
    start = (jnp.where(exists, 0.0, jnp.inf), jnp.ones(n_options))

    def layer(state, step):
        edge, exempt, legal, single = step
        return _accept(costs, jnp.asarray(job.amplification_limit), state, (edge, costs.chips, exempt, legal, single))

    (total, _), chosen = jax.lax.scan(layer, start, (edge, costs.exempt, legal, single))

    def retreat(option, pointer):
        return pointer[option], (option, pointer[option])

    _, (option, before) = jax.lax.scan(retreat, jnp.argmin(total).astype(jnp.int32), chosen, reverse=True)
    zero = jnp.zeros_like(option)
    return evaluate(graph, costs, Choice(option, before, zero, zero))
