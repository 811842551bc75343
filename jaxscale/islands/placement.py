r"""NodePlacement of pipelines on nodes whose links were measured one by one.

Nodes of a cluster are many small islands. An order of the nodes, read as rows of pipelines, has the cost

$$ \max_\text{pipelines} \sum_\text{hops} \frac{2 M_\mathrm{pp}}{W_{ij}}
   + \frac{2 (k - 1)}{k} M_\mathrm{dp} \max_\text{stages} \max_\text{ring} \frac{1}{W_{ij}} , $$

k pipelines side by side. Reference: Yim et al. 2024, Pipette, arXiv 2405.18093, section V (annealed there).
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from jaxscale.base.errors import InputError
from jaxscale.islands.ring_order import MOST_PERMUTED, best_permutation, improved_order


class NodePlacement(NamedTuple):
    """Nodes of pipelines.

    Attributes:
        nodes: of each pipeline, in the order of its stages [pipeline, stage].
        cost: communication of a step [s].
        exact: whether no other placement is better.
    """

    nodes: Int[np.ndarray, "pipeline stage"]
    cost: float
    exact: bool


def placement_cost(
    bandwidth: Float[np.ndarray, "node node"], nodes: np.ndarray, stage_bytes: float, gradient_bytes: float
) -> float:
    """Communication of a step of pipelines on given nodes [s].

    Args:
        bandwidth: measured from each node to each other one [byte/s].
        nodes: of each pipeline, in the order of its stages [pipeline, stage].
        stage_bytes: M_pp, activations of a step over one hop, one way [byte].
        gradient_bytes: M_dp, gradients of a stage [byte].

    Returns:
        Time.
    """
    hops = 2.0 * stage_bytes / bandwidth[nodes[:, :-1], nodes[:, 1:]]
    slowest = float(hops.sum(axis=1).max()) if hops.size else 0.0
    count = len(nodes)
    if count == 1:
        return slowest
    rings = 1.0 / bandwidth[nodes, np.roll(nodes, -1, axis=0)]
    return slowest + 2.0 * (count - 1) / count * gradient_bytes * float(rings.max())


def best_placement(
    bandwidth: Float[np.ndarray, "node node"], pipelines: int, stage_bytes: float, gradient_bytes: float
) -> NodePlacement:
    """NodePlacement of least cost: of all of them where nodes are few, else by exchanges and turns from several orders.

    Args:
        bandwidth: measured from each node to each other one [byte/s].
        pipelines: k, side by side; divides the nodes [1].
        stage_bytes: M_pp [byte].
        gradient_bytes: M_dp [byte].

    Returns:
        The placement.

    Raises:
        InputError: nodes that pipelines do not divide.
    """
    count = len(bandwidth)
    if pipelines < 1 or count % pipelines:
        raise InputError(f"{pipelines} pipelines do not divide {count} nodes; expected a divisor")

    def score(order: np.ndarray) -> float:
        return placement_cost(bandwidth, order.reshape(pipelines, -1), stage_bytes, gradient_bytes)

    if count <= MOST_PERMUTED:
        order, cost = best_permutation(score, count)
        return NodePlacement(order.reshape(pipelines, -1), cost, True)
    draws = np.random.default_rng(0)
    starts = [np.arange(count), *(draws.permutation(count) for _ in range(STARTS))]
    improved = [improved_order(score, start, moves=True) for start in starts]
    order, cost = min(improved, key=lambda entry: entry[1])
    return NodePlacement(order.reshape(pipelines, -1), cost, False)


STARTS = 8
"""Random orders from which a search starts, beside that of the nodes as numbered [1]."""
