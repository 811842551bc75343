"""Shortest path through a layer graph: a recursion over its steps, with the sum and the minimum passed in.

The state is a matrix: best time from option a at the entry of the stage to option k at the present step. A layer
multiplies it in the (min, +) sense; at the end of a stage the branches are combined, in sequence (sum) or at the same
time on disjoint GPUs (maximum), and the stage is appended to the path before it.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from jaxscale.burst.networks.layer_graph import LayerGraph
from jaxscale.burst.planners.shares import share_table

Reduction = Callable[[Array, int], Array]
"""Minimum or maximum of an array along an axis; exact, or smooth."""


class StageChoices(NamedTuple):
    """Choices of the recursion, from which the plan is read off.

    Attributes:
        inside: time from the entry of the stage to each option in front of the step [s].
        entry: best option at the entry of the stage, by option at its end [1].
        mode: 0 where the branches run in sequence, else 1 + the split, by options at entry and end [1].
    """

    inside: Float[Array, "step flavour option option"]
    entry: Int[Array, "step option"]
    mode: Int[Array, "step option option"]


class _State(NamedTuple):
    path: Array
    inside: Array
    serial: Array
    parallel: Array


def _first_minimum(values: Array, axis: int) -> Array:
    """Index of the minimum; XLA vectorises this form on the CPU, unlike `argmin`."""
    n = values.shape[axis]
    index = jnp.arange(n, dtype=jnp.int8).reshape((n,) + (1,) * (values.ndim - 1 - axis))
    lowest = values.min(axis, keepdims=True)
    return jnp.where(values == lowest, index, jnp.int8(n - 1)).min(axis)


def _flags(graph: LayerGraph) -> dict[str, Array]:
    names = ("first", "last", "closes", "is_join", "branch", "n_branches")
    return {name: jnp.asarray(getattr(graph, name)) for name in names}


def forward(
    graph: LayerGraph,
    edge: Float[Array, "step place option option"],
    chips: Float[Array, " option"],
    n_chips: ArrayLike,
    forbidden: ArrayLike,
    minimum: Reduction,
    maximum: Reduction,
) -> tuple[Array, StageChoices]:
    r"""Best time from the first step to each option of the last.

    Chain: $S_l(b) = \min_a S_{l-1}(a) + c_l(a, b)$. Block with branches j between options a and b:
    $M(a, b) = \min\big(\sum_j M_j(a, b),\ \min_{d} \max_j M_j^{d_j}(a, b)\big)$, where $M_j^{d}$ uses at most the
    fraction $2^{-d}$ of the GPUs, at home or away, and d runs over the splits of `share_table`.

    Args:
        graph: structure.
        edge: cost of each step; `forbidden` or more where it may not be taken [s].
        chips: GPUs of each option [1].
        n_chips: GPUs of the cluster [1].
        forbidden: cost that stands for infinity [s].
        minimum: of an array along an axis.
        maximum: of an array along an axis.

    Returns:
        Time by option of the last step [s], and the record from which `backtrack` reads the exact plan.
    """
    table = share_table(graph.widths)
    n_options, n_flavours = edge.shape[-1], len(table.exponent)
    identity = jnp.where(jnp.eye(n_options, dtype=bool), 0.0, forbidden)
    share = 2.0 ** jnp.asarray(table.exponent)[:, None]
    too_wide = (chips * share > jnp.asarray(n_chips) * (1 + 1e-6)) & (share > 1)
    narrow = jnp.where(too_wide, forbidden, 0.0)
    away, splits, exists = jnp.asarray(table.away), jnp.asarray(table.flavour), jnp.asarray(table.exists)
    zero = jnp.zeros((n_options, n_options), edge.dtype)
    nothing = jnp.zeros((splits.shape[1], n_options, n_options), edge.dtype)
    start = _State(jnp.zeros(n_options, edge.dtype), jnp.zeros((n_flavours, *zero.shape), edge.dtype), zero, nothing)

    def advance(state: _State, step):
        cost, flag = step
        ahead = jnp.where(flag["first"], identity, state.inside)
        crosses = away & (flag["first"] | flag["is_join"])
        inside = minimum(ahead[:, :, :, None] + cost[crosses.astype(jnp.int32)][:, None], 2)
        inside = inside + jnp.where(flag["is_join"], 0.0, narrow)[:, None, :]
        width = flag["n_branches"] - 1
        shared = inside[splits[width, :, flag["branch"]]]
        serial = state.serial + jnp.where(flag["last"], inside[0], 0.0)
        fresh = flag["branch"] == 0
        longest = jnp.where(fresh, shared, maximum(jnp.stack([state.parallel, shared]), 0))
        parallel = jnp.where(flag["last"], longest, state.parallel)
        modes = jnp.concatenate([serial[None], jnp.where(exists[width][:, None, None], parallel, forbidden)])
        ends = state.path[:, None] + minimum(modes, 0)
        path = jnp.where(flag["closes"], minimum(ends, 0), state.path)
        record = StageChoices(ahead, _first_minimum(ends, 0), _first_minimum(modes, 0))
        serial, parallel = (jnp.where(flag["closes"], 0.0, value) for value in (serial, parallel))
        return _State(path, inside, serial, parallel), record

    final, record = jax.lax.scan(advance, start, (edge, _flags(graph)))
    return final.path, record


class Choice(NamedTuple):
    """The path read off the pointers.

    Attributes:
        option: option of each step [1].
        before: option from which the step receives its input [1].
        place: 1 where the input comes from other GPUs, else 0 [1].
        mode: 0 where the branches of the step's stage run in sequence, else 1 + the split [1].
    """

    option: Int[Array, " step"]
    before: Int[Array, " step"]
    place: Int[Array, " step"]
    mode: Int[Array, " step"]


def backtrack(
    graph: LayerGraph, edge: Float[Array, "step place option option"], record: StageChoices, last_option: ArrayLike
) -> Choice:
    """Follow the minima from the last step to the first.

    Args:
        graph: structure.
        edge: cost of each step, as given to `forward` [s].
        record: of `forward`.
        last_option: option of the last step [1].

    Returns:
        Options and modes of every step.
    """
    table = share_table(graph.widths)
    splits, away = jnp.asarray(table.flavour), jnp.asarray(table.away)

    def retreat(state, step):
        end, entry, mode, option = state
        seen, cost, flag = step
        entry = jnp.where(flag["closes"], seen.entry[end].astype(jnp.int32), entry)
        mode = jnp.where(flag["closes"], seen.mode[entry, end].astype(jnp.int32), mode)
        option = jnp.where(flag["last"], end, option)
        split = splits[flag["n_branches"] - 1, jnp.maximum(mode - 1, 0), flag["branch"]]
        flavour = jnp.where(mode == 0, 0, split)
        place = (away[flavour] & (flag["first"] | flag["is_join"])).astype(jnp.int32)
        before = jnp.argmin(seen.inside[flavour, entry] + cost[place, :, option]).astype(jnp.int32)
        opens = flag["first"] & (flag["branch"] == 0)
        state = (jnp.where(opens, entry, end), entry, mode, before)
        return state, Choice(option, before, place, mode)

    end = jnp.asarray(last_option, jnp.int32)
    zero = jnp.zeros((), jnp.int32)
    _, choice = jax.lax.scan(retreat, (end, zero, zero, end), (record, edge, _flags(graph)), reverse=True)
    return choice
