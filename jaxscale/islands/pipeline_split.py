r"""Pipelines over islands: division of layers between unequal islands, and order of islands in a chain or ring.

With the time $t_s$ of stage s for a microbatch, hops of $h_s$ seconds in each direction and m microbatches, a step
takes

$$ T = \sum_s t_s + 2 \sum_s (h_s + \alpha_s) + (m - 1) \max_s (t_s, h_s) , $$

since links carry the two directions at the same time and latencies count once. For divisible layers, equal hops and
$\tau_s$ seconds of the whole model on island s, the best division gives k of the fastest islands stages of equal time
and omits the remaining islands,

$$ T = \min_k \frac{m + k - 1}{\sum_{s \le k} 1 / \tau_s} . $$

The slowest hop bounds a ring: the best order is the tour with the shortest longest hop (bottleneck travelling
salesman), or the tour of least sum for messages that pass through all hops.
Reference: Held and Karp 1962, doi 10.1137/0110015.
"""

import itertools
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from jaxscale.base.errors import InputError
from jaxscale.base.smooth import Temperature, is_exact, soft_maximum
from jaxscale.optimise.orders import greedy_order, improved_order


def pipeline_time(
    stages: Float[ArrayLike, "*batch stage"],
    hops: Float[ArrayLike, "*batch hop"],
    n_microbatches: ArrayLike,
    latencies: ArrayLike = 0.0,
    temperature: Temperature = 0.0,
) -> Array:
    """Step time of a pipeline over islands.

    Args:
        stages: t, compute of a microbatch [s], [stage].
        hops: h, transfer time of a microbatch over each hop, in one direction [s], [hop].
        n_microbatches: m, microbatches of a step [1].
        latencies: latency of each hop, in one direction [s], [hop].
        temperature: smoothing of the maximum [1].

    Returns:
        Time [s]; the sum of the stages for a single microbatch, m times the slowest stage or hop for many microbatches.
    """
    times, moves = jnp.asarray(stages), jnp.asarray(hops)
    # Fill and drain: every stage once, every hop in two directions.
    filled = jnp.sum(times, axis=-1) + 2.0 * jnp.sum(moves + latencies, axis=-1)
    # (stages and hops,): links carry two directions at a time.
    both = jnp.concatenate([times, moves], axis=-1)
    if is_exact(temperature):
        slowest = jnp.max(both, axis=-1)
    else:
        slowest = soft_maximum(both, temperature * jnp.mean(times, axis=-1), axis=-1)
    # The slowest stage or hop sets the rhythm of the further microbatches.
    return filled + (jnp.asarray(n_microbatches) - 1.0) * slowest


def divided_at_will(whole: Float[ArrayLike, " island"], n_microbatches: ArrayLike) -> tuple[Array, Array]:
    """Least step time over all divisions of divisible layers, without hops, and the optimal shares.

    Args:
        whole: tau, time of the whole model for a microbatch on each island [s], [island].
        n_microbatches: m, microbatches of a step [1].

    Returns:
        Step time T [s]; share of the layers of each island [1], [island].
    """
    slow = jnp.asarray(whole)
    count = slow.shape[-1]
    order = jnp.argsort(slow)
    rate = jnp.cumsum(1.0 / slow[order])
    # (m + k - 1) / sum 1 / tau over the k fastest islands.
    times = (jnp.asarray(n_microbatches) + jnp.arange(count)) / rate
    used = jnp.argmin(times)
    # Rank of each island by pace.
    chosen = jnp.where(jnp.argsort(order) <= used, 1.0 / slow, 0.0)
    return jnp.min(times), chosen / jnp.sum(chosen)


def least_divided(whole: Float[np.ndarray, " island"], n_microbatches: float) -> float:
    """Least step time over all divisions of divisible layers, as in `divided_at_will`, in numpy [s]."""
    rate = np.cumsum(1.0 / np.sort(np.asarray(whole)))
    return float(np.min((n_microbatches + np.arange(len(rate))) / rate))


class ChainWay(NamedTuple):
    """Coupling of the stages of a pipeline over islands: synchronisation and compression.

    Attributes:
        waits: whether the update waits for all stages, with fill and drain of the pipeline.
        words: share of the activations that cross a cut [1].
        backward_words: share of the activation gradients that cross a cut [1].
        least_words: least share of the activations sent over a link; 1 without compression [1].
    """

    waits: bool = True
    words: float = 1.0
    backward_words: float = 1.0
    least_words: float = 1.0

    def sent(self, stages: np.ndarray, hops: np.ndarray) -> np.ndarray:
        """Share of the activations sent over each link: the largest without delay of the slowest stage [1], [hop]."""
        # The lower bound avoids a division by zero for hops without transfer time.
        free = np.max(stages) / np.maximum(self.words * np.asarray(hops), 1e-30)
        return np.clip(free, self.least_words, 1.0)

    def time(self, stages: np.ndarray, hops: np.ndarray, n_microbatches: float, latencies: np.ndarray) -> float:
        """Step time, as in `pipeline_time`, with the compressed activations [s].

        Args:
            stages: t, compute of a microbatch [s], [stage].
            hops: h, transfer time of an uncompressed microbatch over each hop, in one direction [s], [hop].
            n_microbatches: m, microbatches of a step [1].
            latencies: latency of each hop, in one direction [s], [hop].
        """
        moved = self.sent(stages, hops) * hops
        slowest = max(np.max(stages), np.max(max(self.words, self.backward_words) * moved, initial=0.0))
        if not self.waits:
            # Without waiting the chain never drains.
            return float(n_microbatches * slowest)
        crossed = sum(np.sum(share * moved + (share > 0.0) * latencies) for share in (self.words, self.backward_words))
        return float(np.sum(stages) + crossed + (n_microbatches - 1.0) * slowest)


PLAIN = ChainWay()
"""Synchronous pipeline of whole activations."""

BOUNDS_AT_ONCE = 256
"""Bounds on the slowest stage per pass of the dynamic programme, which limits memory [1]."""


class LayerCut(NamedTuple):
    """Division of the layers of a model into contiguous stages.

    Attributes:
        layers: number of layers of each stage [1], [stage].
        time: time of a step [s].
    """

    layers: Int[np.ndarray, " stage"]
    time: float


def best_cut(
    layer_times: Float[np.ndarray, "stage layer"],
    hops: Float[np.ndarray, " hop"],
    n_microbatches: float,
    latencies: Float[np.ndarray, " hop"] | None = None,
    most_layers: np.ndarray | None = None,
) -> LayerCut:
    """Fastest division of layers into contiguous stages, by dynamic programming (AMP, arXiv 2210.07297, section 4.2).

    For each bound on the slowest stage, the division with the least sum of stage times is found; the best is optimal.
    Every stage gets at least one layer: islands without a layer are removed beforehand.

    Args:
        layer_times: time of each layer on each stage for a microbatch [s], [stage, layer].
        hops: transfer time of a microbatch over each hop, in one direction [s], [hop].
        n_microbatches: m, microbatches of a step [1].
        latencies: latency of each hop, in one direction [s], [hop].
        most_layers: largest number of layers in the memory of each stage [1], [stage].

    Raises:
        InputError: too little memory on all stages together, or fewer layers than stages.
    """
    times = np.asarray(layer_times, float)
    count, depth = times.shape
    room = np.full(count, depth) if most_layers is None else np.minimum(np.floor(most_layers), depth).astype(int)
    if depth < count:
        raise InputError(f"{depth} layers are fewer than {count} islands; expected a layer for each at least")
    if room.sum() < depth:
        raise InputError(f"{depth} layers do not fit: the islands hold {int(room.sum())}; expected more memory")
    # (stages, layers + 1): time of the first layers.
    ends = np.concatenate([np.zeros((count, 1)), np.cumsum(times, axis=1)], axis=1)
    # Time of layers first..last-1 on each stage; inf if beyond the stage's memory or out of order.
    # (stages, first, last)
    spans = ends[:, None, :] - ends[:, :, None]
    lengths = np.arange(depth + 1)[None, :] - np.arange(depth + 1)[:, None]
    spans = np.where((lengths >= 1) & (lengths <= room[:, None, None]), np.maximum(spans, 0.0), np.inf)
    slowest_hop = float(np.max(hops, initial=0.0))
    # The slowest time of a cut is that of a stage or a hop, so no further bounds need a trial.
    bounds = np.unique(np.maximum(spans[np.isfinite(spans)], slowest_hop))
    through = 2.0 * float(np.sum(hops) + np.sum(0.0 if latencies is None else latencies))
    least, layers = np.inf, room
    for block in np.array_split(bounds, -(-len(bounds) // BOUNDS_AT_ONCE)):
        totals, firsts = _least_sums(spans, block)
        # Sum of the stages plus (m - 1) times the bound.
        scores = totals + (n_microbatches - 1.0) * block
        place = int(np.argmin(scores))
        if scores[place] < least:
            least, layers = float(scores[place]), _read_cut(firsts, place, depth)
    starts = np.concatenate([[0], np.cumsum(layers)])
    chosen = np.asarray([spans[stage, starts[stage], starts[stage + 1]] for stage in range(count)])
    slowest = max(float(chosen.max()), slowest_hop)
    return LayerCut(layers, float(chosen.sum()) + through + (n_microbatches - 1.0) * slowest)


def _least_sums(spans: np.ndarray, bounds: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Least sum of stage times within each bound [bound], and the first layer of each stage [stage][bound, layer]."""
    size = spans.shape[1]
    best = np.full((len(bounds), size), np.inf)
    best[:, 0] = 0.0
    firsts = []
    for stage in spans:
        # The tolerance admits stage times that equal the bound up to rounding.
        # (bounds, first, last)
        options = best[:, :, None] + np.where(stage[None] <= bounds[:, None, None] * (1.0 + 1e-12), stage[None], np.inf)
        firsts.append(np.argmin(options, axis=1))
        best = np.min(options, axis=1)
    return best[:, -1], firsts


def _read_cut(firsts: list[np.ndarray], bound: int, depth: int) -> np.ndarray:
    """Layers of each stage on the best path of a bound [stage]."""
    last, layers = depth, []
    for first in reversed(firsts):
        begin = int(first[bound, last])
        layers.append(last - begin)
        last = begin
    return np.asarray(layers[::-1])


MOST_EXACT = 14
"""Largest number of islands for the dynamic programme: $2^{14} \\cdot 14^2$ steps take a second [1]."""

MOST_PERMUTED = 7
"""Largest number of islands with all permutations tried, 5,040 permutations [1]."""

Goal = Literal["slowest", "sum"]
"""Objective of an order of islands: the slowest hop, or the sum of the hops."""


class RingOrder(NamedTuple):
    """Order of islands in a ring or chain.

    Attributes:
        order: indices of the islands in order [island].
        cost: cost of the slowest hop, or sum over all hops, in the unit of the costs.
        exact: whether the order is proven optimal.
    """

    order: Int[np.ndarray, " island"]
    cost: float
    exact: bool


def order_cost(costs: Float[np.ndarray, "island island"], order: np.ndarray, goal: Goal, closed: bool = True) -> float:
    """Cost of an order of islands: the slowest hop, or the sum over all hops.

    Args:
        costs: cost of each hop by sender and receiver [island, island].
        order: indices of the islands in order [island].
        goal: `slowest` for the slowest hop, `sum` for the sum.
        closed: whether the last island sends to the first, as in a ring.

    Returns:
        The cost; zero for a single island.
    """
    following = np.roll(order, -1) if closed else order[1:]
    hops = costs[order if closed else order[:-1], following]
    if len(order) < 2:
        return 0.0
    return float(hops.max() if goal == "slowest" else hops.sum())


def best_order(costs: np.ndarray, goal: Goal = "slowest", closed: bool = True) -> RingOrder:
    """Order of islands in a ring or chain with the least cost.

    Args:
        costs: cost of each hop by sender and receiver, in any unit [island, island].
        goal: `slowest` for the least slowest hop, `sum` for the least sum.
        closed: whether the last island sends to the first, as in a ring.

    Returns:
        The order: optimal up to `MOST_EXACT` islands, beyond by exchanges of two islands from a greedy start.

    Raises:
        InputError: the costs are not a square matrix.
    """
    matrix = np.asarray(costs, float)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"costs of hops have the shape {matrix.shape}; expected a square matrix over islands")
    count = len(matrix)
    if count <= 2:
        order = np.arange(count)
        back = not closed and count == 2 and matrix[1, 0] < matrix[0, 1]
        order = order[::-1] if back else order
        return RingOrder(order, order_cost(matrix, order, goal, closed), True)
    if count <= MOST_EXACT:
        order = _held_karp(matrix, goal, closed)
        return RingOrder(order, order_cost(matrix, order, goal, closed), True)
    order, cost = improved_order(lambda tried: order_cost(matrix, tried, goal, closed), greedy_order(matrix))
    return RingOrder(order, cost, False)


def best_permutation(score: Callable[[np.ndarray], float], count: int) -> tuple[np.ndarray, float]:
    """Order with the least score, over all permutations of a few islands.

    Args:
        score: function from an order [island] to a score.
        count: number of islands, at most `MOST_PERMUTED` [1].

    Returns:
        Order [island]; score.

    Raises:
        InputError: too many islands.
    """
    if count > MOST_PERMUTED:
        raise InputError(f"{count} islands have too many orders; expected at most {MOST_PERMUTED}")
    orders = [np.asarray(order) for order in itertools.permutations(range(count))]
    scores = [score(order) for order in orders]
    place = int(np.argmin(scores))
    return orders[place], scores[place]


def _held_karp(costs: np.ndarray, goal: Goal, closed: bool) -> np.ndarray:
    """Best order by dynamic programming over sets of visited islands (Held and Karp)."""
    count = len(costs)
    # Bottleneck: the slowest hop; else the sum.
    join = np.maximum if goal == "slowest" else np.add
    # A ring may start at any island; for a chain, an extra island with zero costs represents a free start.
    matrix = costs if closed else np.pad(costs, ((0, 1), (0, 1)))
    size = len(matrix)
    start, others = size - 1, size - 1
    sets = 1 << others
    best = np.full((sets, others), np.inf)
    came = np.zeros((sets, others), np.int8)
    best[1 << np.arange(others), np.arange(others)] = matrix[start, :others]
    # (sets, islands): bit i of a set is island i.
    members = (np.arange(sets)[:, None] >> np.arange(others)) & 1
    sizes = members.sum(axis=1)
    for length in range(2, others + 1):
        rows = np.flatnonzero(sizes == length)
        for last in range(others):
            here = rows[members[rows, last] == 1]
            # The set without the last island.
            options = join(best[here ^ (1 << last)], matrix[:others, last][None, :])
            came[here, last] = np.argmin(options, axis=1)
            best[here, last] = np.min(options, axis=1)
    ends = join(best[-1], matrix[:others, start])
    last, chosen = int(np.argmin(ends)), sets - 1
    order = [last]
    while len(order) < others:
        before = int(came[chosen, last])
        chosen ^= 1 << last
        last = before
        order.append(last)
    # A chain drops the extra island.
    return np.asarray([start, *order[::-1]] if count == size else order[::-1])
