r"""Pipelines over islands: layers divided among unequal islands, activations over their links.

With the time $t_s$ of stage s for one microbatch, hops of $h_s$ seconds each way and m microbatches, a step takes

$$ T = \sum_s t_s + 2 \sum_s (h_s + \alpha_s) + (m - 1) \max_s (t_s, h_s) , $$

since links carry both directions at a time and latencies are passed through once. For layers that divide at will, equal
hops and $\tau_s$ seconds of the whole model on island s, the best division gives k of the fastest islands stages of
equal time and leaves the others out,

$$ T = \min_k \frac{m + k - 1}{\sum_{s \le k} 1 / \tau_s} . $$
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from jaxscale.base.errors import InputError
from jaxscale.base.smooth import Temperature, is_exact, larger, soft_maximum


def pipeline_time(
    stages: Float[ArrayLike, "*batch stage"],
    hops: Float[ArrayLike, "*batch hop"],
    n_microbatches: ArrayLike,
    latencies: ArrayLike = 0.0,
    temperature: Temperature = 0.0,
) -> Array:
    """Time of one step of a pipeline over islands.

    Args:
        stages: t, compute of one microbatch [s], [stage].
        hops: h, bytes of one microbatch over each hop, one way [s], [hop].
        n_microbatches: m [1].
        latencies: of each hop, one way [s], [hop].
        temperature: smoothing of the maximum [1].

    Returns:
        Time [s]; the sum of the stages for one microbatch, m times the slowest stage or hop for many.
    """
    times, moves = jnp.asarray(stages), jnp.asarray(hops)
    filled = jnp.sum(times, axis=-1) + 2.0 * jnp.sum(moves + latencies, axis=-1)
    both = jnp.concatenate([times, moves], axis=-1)
    if is_exact(temperature):
        slowest = jnp.max(both, axis=-1)
    else:
        slowest = soft_maximum(both, temperature * jnp.mean(times, axis=-1), axis=-1)
    return filled + (jnp.asarray(n_microbatches) - 1.0) * slowest


def divided_at_will(whole: Float[ArrayLike, " island"], n_microbatches: ArrayLike) -> tuple[Array, Array]:
    """Least time of a step over all divisions of divisible layers, without hops, and the shares.

    Args:
        whole: tau, time of the whole model for one microbatch on each island [s], [island].
        n_microbatches: m [1].

    Returns:
        T [s] and the share of the layers of each island [1], [island].
    """
    slow = jnp.asarray(whole)
    count = slow.shape[-1]
    order = jnp.argsort(slow)
    rate = jnp.cumsum(1.0 / slow[order])
    times = (jnp.asarray(n_microbatches) + jnp.arange(count)) / rate
    used = jnp.argmin(times)
    chosen = jnp.where(jnp.argsort(order) <= used, 1.0 / slow, 0.0)
    return jnp.min(times), chosen / jnp.sum(chosen)


def least_divided(whole: Float[np.ndarray, " island"], n_microbatches: float) -> float:
    """Least time of a step over all divisions of divisible layers, as `divided_at_will`, on the host [s]."""
    rate = np.cumsum(1.0 / np.sort(np.asarray(whole)))
    return float(np.min((n_microbatches + np.arange(len(rate))) / rate))


BOUNDS_AT_ONCE = 256
"""Bounds on the slowest stage that one pass of the dynamic programme takes, which bounds its memory [1]."""


class LayerCut(NamedTuple):
    """Contiguous layers of each stage.

    Attributes:
        layers: number of layers of each stage [1], [stage].
        time: of one step [s].
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
    """Contiguous cut of layers of least time, exact, by dynamic programme (as AMP, arXiv 2210.07297, section 4.2).

    For each bound on the slowest stage the cut of least sum within it is found; the best of all bounds is the optimum.
    Every stage gets a layer at least: islands without one are left out beforehand.

    Args:
        layer_times: time of each layer on each stage for one microbatch [s], [stage, layer].
        hops: bytes of one microbatch over each hop, one way [s], [hop].
        n_microbatches: m [1].
        latencies: of each hop, one way [s], [hop].
        most_layers: layers that the memory of each stage holds [1], [stage].

    Returns:
        The cut.

    Raises:
        InputError: layers that do not fit into all stages together, or fewer layers than stages.
    """
    times = np.asarray(layer_times, float)
    count, depth = times.shape
    room = np.full(count, depth) if most_layers is None else np.minimum(np.floor(most_layers), depth).astype(int)
    if depth < count:
        raise InputError(f"{depth} layers are fewer than {count} islands; expected a layer for each at least")
    if room.sum() < depth:
        raise InputError(f"{depth} layers do not fit: the islands hold {int(room.sum())}; expected more memory")
    ends = np.concatenate([np.zeros((count, 1)), np.cumsum(times, axis=1)], axis=1)
    # Time of layers first..last-1 on each stage; inf where they are beyond its memory or out of order.
    spans = ends[:, None, :] - ends[:, :, None]
    lengths = np.arange(depth + 1)[None, :] - np.arange(depth + 1)[:, None]
    spans = np.where((lengths >= 1) & (lengths <= room[:, None, None]), np.maximum(spans, 0.0), np.inf)
    slowest_hop = float(np.max(hops, initial=0.0))
    bounds = np.unique(np.maximum(spans[np.isfinite(spans)], slowest_hop))
    through = 2.0 * float(np.sum(hops) + np.sum(0.0 if latencies is None else latencies))
    least, layers = np.inf, room
    for block in np.array_split(bounds, -(-len(bounds) // BOUNDS_AT_ONCE)):
        totals, firsts = _least_sums(spans, block)
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
        options = best[:, :, None] + np.where(stage[None] <= bounds[:, None, None] * (1.0 + 1e-12), stage[None], np.inf)
        firsts.append(np.argmin(options, axis=1))
        best = np.min(options, axis=1)
    return best[:, -1], firsts


def _read_cut(firsts: list[np.ndarray], bound: int, depth: int) -> np.ndarray:
    """Layers of each stage along the best path of one bound [stage]."""
    last, layers = depth, []
    for first in reversed(firsts):
        begin = int(first[bound, last])
        layers.append(last - begin)
        last = begin
    return np.asarray(layers[::-1])


def bytes_over_link(n_params: ArrayLike, tokens: ArrayLike, d_model: ArrayLike, word_bytes: float = 2.0) -> Array:
    """Bytes that a step sends over a link between two islands, one way: data parallel, and as a pipeline.

    A ring of two moves N words, a pipeline B d of them, B tokens wide d: the pipeline moves less exactly if B d < N.

    Args:
        n_params: N [1].
        tokens: B, of a step [token].
        d_model: d [1].
        word_bytes: of a gradient and of an activation [byte].

    Returns:
        Data parallel and pipeline [byte], [mode].
    """
    volumes = jnp.broadcast_arrays(jnp.asarray(n_params), jnp.asarray(tokens) * d_model)
    return word_bytes * jnp.stack(volumes, axis=-1)


def two_stage_shares(first: ArrayLike, second: ArrayLike, n_microbatches: ArrayLike) -> tuple[Array, Array]:
    """Least time of a pipeline of at most two islands, and the share of the first one.

    Args:
        first: time of the whole model for one microbatch on the first island [s].
        second: the same on the second one [s].
        n_microbatches: m [1].

    Returns:
        T = min(m tau_1, m tau_2, (m + 1) tau_1 tau_2 / (tau_1 + tau_2)) [s] and the share [1].
    """
    fast, slow = jnp.minimum(first, second), jnp.maximum(first, second)
    m = jnp.asarray(n_microbatches)
    both = (m + 1.0) * fast * slow / (fast + slow)
    joined = jnp.asarray(second) / (jnp.asarray(first) + second)
    alone = jnp.where(jnp.asarray(first) <= second, 1.0, 0.0)
    return -larger(-both, -m * fast), jnp.where(both <= m * fast, joined, alone)
