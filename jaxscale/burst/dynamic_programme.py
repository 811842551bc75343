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

from jaxscale.burst.networks import LayerGraph
from jaxscale.burst.shares import share_tables

Reduction = Callable[[Array, int], Array]
"""Minimum or maximum of an array along an axis; exact, or smooth."""


class Pointers(NamedTuple):
    """Where each minimum came from: what the plan is read off."""

    previous: Int[Array, "step share option option"]
    entry: Int[Array, "step option"]
    mode: Int[Array, "step option option"]


class _State(NamedTuple):
    path: Array
    inside: Array
    serial: Array
    parallel: Array


def _flags(graph: LayerGraph) -> dict[str, Array]:
    names = ("first", "last", "closes", "is_join", "branch", "n_branches")
    return {name: jnp.asarray(getattr(graph, name)) for name in names}


def forward(
    graph: LayerGraph,
    edge: Float[Array, "step option option"],
    gpus: Float[Array, " option"],
    n_gpus: ArrayLike,
    forbidden: ArrayLike,
    minimum: Reduction,
    maximum: Reduction,
) -> tuple[Array, Pointers]:
    r"""Best time from the first step to each option of the last.

    Chain: $S_l(b) = \min_a S_{l-1}(a) + c_l(a, b)$. Block with branches j between options a and b:
    $M(a, b) = \min\big(\sum_j M_j(a, b),\ \min_{d} \max_j M_j^{d_j}(a, b)\big)$, where $M_j^{d}$ uses at most the
    fraction $2^{-d}$ of the GPUs and d runs over the splits of `share_tables`.

    Args:
        graph: structure.
        edge: cost of each step; `forbidden` or more where it may not be taken [s].
        gpus: GPUs of each option [1].
        n_gpus: GPUs of the cluster [1].
        forbidden: cost that stands for infinity [s].
        minimum: of an array along an axis.
        maximum: of an array along an axis.

    Returns:
        Time by option of the last step [s], and the pointers of the exact minimum.
    """
    exponents, valid = share_tables(graph.widest)
    n_options, n_caps = edge.shape[-1], int(exponents.max()) + 1
    identity = jnp.where(jnp.eye(n_options, dtype=bool), 0.0, forbidden)
    too_wide = gpus * 2.0 ** jnp.arange(n_caps)[:, None] > jnp.asarray(n_gpus) * (1 + 1e-6)
    narrow = jnp.where(too_wide & (jnp.arange(n_caps) > 0)[:, None], forbidden, 0.0)
    splits, exists = jnp.asarray(exponents), jnp.asarray(valid)
    zero = jnp.zeros((n_options, n_options), edge.dtype)
    nothing = jnp.zeros((splits.shape[1], n_options, n_options), edge.dtype)
    start = _State(jnp.zeros(n_options, edge.dtype), jnp.zeros((n_caps, *zero.shape), edge.dtype), zero, nothing)

    def advance(state: _State, step):
        cost, flag = step
        inside = jnp.where(flag["first"], identity, state.inside)
        candidates = inside[:, :, :, None] + cost
        inside = minimum(candidates, 2) + jnp.where(flag["is_join"], 0.0, narrow)[:, None, :]
        width = flag["n_branches"] - 1
        shared = inside[splits[width, :, flag["branch"]]]
        serial = state.serial + jnp.where(flag["last"], inside[0], 0.0)
        fresh = flag["branch"] == 0
        longest = jnp.where(fresh, shared, maximum(jnp.stack([state.parallel, shared]), 0))
        parallel = jnp.where(flag["last"], longest, state.parallel)
        modes = jnp.concatenate([serial[None], jnp.where(exists[width][:, None, None], parallel, forbidden)])
        ends = state.path[:, None] + minimum(modes, 0)
        path = jnp.where(flag["closes"], minimum(ends, 0), state.path)
        pointers = Pointers(
            jnp.argmin(candidates, 2).astype(jnp.int8),
            jnp.argmin(ends, 0).astype(jnp.int8),
            jnp.argmin(modes, 0).astype(jnp.int8),
        )
        serial, parallel = (jnp.where(flag["closes"], 0.0, value) for value in (serial, parallel))
        return _State(path, inside, serial, parallel), pointers

    final, pointers = jax.lax.scan(advance, start, (edge, _flags(graph)))
    return final.path, pointers


class Choice(NamedTuple):
    """The path read off the pointers.

    Attributes:
        option: option of each step [1].
        before: option from which the step receives its input [1].
        mode: 0 where the branches of the step's stage run in sequence, else 1 + the split [1].
    """

    option: Int[Array, " step"]
    before: Int[Array, " step"]
    mode: Int[Array, " step"]


def backtrack(graph: LayerGraph, pointers: Pointers, last_option: ArrayLike) -> Choice:
    """Follow the pointers from the last step to the first.

    Args:
        graph: structure.
        pointers: of `forward`.
        last_option: option of the last step [1].

    Returns:
        Options and modes of every step.
    """
    splits = jnp.asarray(share_tables(graph.widest)[0])

    def retreat(state, step):
        end, entry, mode, option = state
        pointer, flag = step
        entry = jnp.where(flag["closes"], pointer.entry[end].astype(int), entry)
        mode = jnp.where(flag["closes"], pointer.mode[entry, end].astype(int), mode)
        option = jnp.where(flag["last"], end, option)
        share = jnp.where(mode == 0, 0, splits[flag["n_branches"] - 1, jnp.maximum(mode - 1, 0), flag["branch"]])
        before = pointer.previous[share, entry, option].astype(int)
        opens = flag["first"] & (flag["branch"] == 0)
        state = (jnp.where(opens, entry, end), entry, mode, before)
        return state, Choice(option, before, mode)

    end = jnp.asarray(last_option, int)
    zero = jnp.zeros((), int)
    _, choice = jax.lax.scan(retreat, (end, zero, zero, end), (pointers, _flags(graph)), reverse=True)
    return choice
