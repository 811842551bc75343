r"""Placement of a plan on nodes with measured links, to avoid slow links in the rings of stages and between stages.

Chips are numbered with tp innermost, then cp, dp and pp, and D chips share a node, so that a stage of tp cp dp chips
holds consecutive places of an order of nodes. From measured bandwidths $W_{ij}$ from node i to node j

$$ \frac{1}{W_\mathrm{ring}} = \max_s \max_{(i, j) \in \mathrm{ring}(s)} \frac{1}{W_{ij}} $$

$$ \frac{1}{W_\mathrm{hop}} = \frac{1}{2 H} \sum_h \left(\max_{(i, j) \in h} \frac{1}{W_{ij}}
   + \max_{(i, j) \in h} \frac{1}{W_{ji}}\right) $$

replace the bandwidth of the network: the slowest link of any ring for collectives, the mean over the H boundaries
between stages on different nodes for sends. The order of nodes is improved by exchanges from the given order, a greedy
order and random orders. The search over plans starts with the fastest link for all pairs of nodes, a bound on all
plans. Reference: Pipette (Yim et al. 2024), arXiv 2405.18093, section 4, which uses simulated annealing.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from jaxscale.base.arrays import number, with_fields
from jaxscale.base.errors import InputError
from jaxscale.base.units import GB
from jaxscale.calibration.record import Fit
from jaxscale.costs.step import TERM_NAMES
from jaxscale.hardware.cluster import Cluster
from jaxscale.optimise.orders import greedy_order, improved_order
from jaxscale.plans.choice import ScoredPlan
from jaxscale.plans.enumerate import PlanTable
from jaxscale.plans.plan_questions import PlanQuestion
from jaxscale.plans.score import FoundPlans, Judged, judge
from jaxscale.tables.reader import csv_table

SMOOTHED = 30.0
"""Exponent of the norm that stands for the slowest link of a ring in the search, so that each slow link counts [1]."""

RING_WEIGHTS = (0.1, 0.5, 0.9)
"""Weights of the slowest ring link against the mean hop, for one candidate order each [1]."""

STARTED_NODES = 128
"""Nodes of all starts of one search together [1]."""

MOST_SCORED = 20_000
"""Orders that are scored from one start: all exchanges of 64 nodes five times over [1]."""

DIGITS = 9
"""Digits of a step time in seconds that count; among equally fast orders the one with the faster links is taken [1]."""

PLACED = 50
"""Plans that are placed at once [1]."""


class NodeLinks(NamedTuple):
    """Measured bandwidth between nodes.

    Attributes:
        names: names of the nodes, in the given order.
        bandwidth: bandwidth per chip, from the node of the row to the node of the column [byte/s], [node, node].
    """

    names: tuple[str, ...]
    bandwidth: Float[np.ndarray, "node node"]

    @property
    def fastest(self) -> float:
        """Bandwidth of the fastest link [byte/s]."""
        return float(self.bandwidth[~np.eye(len(self.names), dtype=bool)].max())

    def linked(self, question: PlanQuestion) -> PlanQuestion:
        """`PlanQuestion` with the bandwidth of the fastest link between all nodes.

        Raises:
            InputError: the number of nodes differs from that of the cluster.
        """
        chips, node = question.n_chips, number(question.cluster.network.domain_size[0])
        if len(self.names) * node != chips:
            raise InputError(
                f"links of {len(self.names)} nodes: {chips:g} chips, {node:g} in a node, make {chips / node:g} nodes; "
                "expected a link from each node to each"
            )
        return question._replace(cluster=at_bandwidth(question.cluster, self.fastest))

    def placed(
        self, found: FoundPlans, question: PlanQuestion, fit: Fit, top: int
    ) -> "tuple[FoundPlans, dict[int, NodePlacement]]":
        """Step times of the fastest plans on their best placements, until no other plan can be among the fastest.

        Args:
            found: plans of the search with the fastest link everywhere.
            question: model, cluster, batch and open choices.
            fit: calibration.
            top: number of plans to rank [1].

        Returns:
            The plans with the new step times, and the placements by row of the plan.
        """
        placements: dict[int, NodePlacement] = {}
        known: KnownOrders = {}
        while ahead := [row for row in found.ranked(top).tolist() if row not in placements]:
            further = [row for row in found.ranked(len(placements) + PLACED).tolist() if row not in placements]
            rows = list(dict.fromkeys([*ahead, *further]))
            part = PlanTable({name: column[rows] for name, column in found.table.columns.items()}, found.table.space)
            placements |= dict(zip(rows, place_on_nodes(question, fit, self, part, known), strict=True))
            times = np.array(found.scores.step_time, float)
            for row, one in placements.items():
                times[row] = one.step_time
            found = found._replace(scores=found.scores._replace(step_time=times))
        return found, placements


def load_links(path: Path) -> NodeLinks:
    """Measured links from a CSV table, with the receivers in the header and one line per sender, in GB/s per chip.

    Raises:
        InputError: an unreadable file, lines that do not match the header, or a cell that is no bandwidth.
    """
    header, records = csv_table(path)
    names = tuple(name.strip() for name in header[1:])
    if len(names) < 2 or len(set(names)) < len(names):
        raise InputError(f"{path}: header of {len(names)} nodes; expected the distinct names of at least 2 nodes")
    rows = list(records)
    if [record[0].strip() for _, record in rows] != list(names):
        raise InputError(f"{path}: {len(rows)} senders below {len(names)} nodes; expected a line for each, in order")
    bandwidth = np.zeros((len(names), len(names)))
    for sender, (line, record) in enumerate(rows):
        if len(record) != len(header):
            raise InputError(f"{path}:{line}: {len(record)} cells; expected {len(header)}, as the header has")
        for receiver, text in enumerate(record[1:]):
            if receiver != sender:
                bandwidth[sender, receiver] = GB * _bandwidth(f"{path}:{line}: {names[receiver]}", text)
    np.fill_diagonal(bandwidth, bandwidth.max())
    return NodeLinks(names, bandwidth)


def _bandwidth(where: str, text: str) -> float:
    """A cell as a bandwidth [GB/s]."""
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if not 1e-6 <= value <= 1e6:
        raise InputError(f"{where} = {text!r} is no bandwidth; expected GB/s from 1e-6 to 1e6")
    return value


class Routes(NamedTuple):
    """Pairs of places, in an order of nodes, between which a plan communicates.

    Attributes:
        rings: places of sender and receiver of each link of a ring [link, 2].
        hops: places of each pair of nodes of neighbouring stages [pair, 2].
        starts: index in `hops` of the first pair of each boundary between stages [boundary].
    """

    rings: Int[np.ndarray, "link 2"]
    hops: Int[np.ndarray, "pair 2"]
    starts: Int[np.ndarray, " boundary"]

    def times(self, slowness: np.ndarray, order: np.ndarray, norm: float = np.inf) -> tuple[float, float]:
        """Time per byte of the slowest ring link and of the mean hop between stages, for an order of nodes [s/byte].

        Args:
            slowness: time per byte of each link [s/byte], [node, node].
            order: node at each place [place].
            norm: exponent of a p-norm over ring links; infinity for the slowest link [1].

        Returns:
            Ring and hop; zero without a ring, and without a hop between nodes.
        """
        ring, hop = 0.0, 0.0
        if len(self.rings):
            links = slowness[order[self.rings[:, 0]], order[self.rings[:, 1]]]
            top = links.max()
            ring = top if np.isinf(norm) else top * np.mean((links / top) ** norm) ** (1.0 / norm)
        if len(self.starts):
            here, there = order[self.hops[:, 0]], order[self.hops[:, 1]]
            both = np.stack([slowness[here, there], slowness[there, here]])
            hop = np.maximum.reduceat(both, self.starts, axis=1).mean()
        return float(ring), float(hop)


def routes(stages: int, stage_chips: int, node_chips: int) -> Routes:
    """Pairs of places between which a plan communicates, from the sizes of stages and nodes.

    Args:
        stages: number of pipeline stages, pp [1].
        stage_chips: chips of a stage [1].
        node_chips: chips of a node [1].
    """
    rings: list[tuple[int, int]] = []
    hops: list[tuple[int, int]] = []
    starts: list[int] = []
    chips = np.arange(stage_chips)
    for stage in range(stages):
        places = (stage * stage_chips + chips) // node_chips
        ring = np.unique(places).tolist()
        if len(ring) > 1:
            rings += zip(ring, [*ring[1:], ring[0]], strict=True)
        if stage + 1 == stages:
            break
        following = ((stage + 1) * stage_chips + chips) // node_chips
        pairs = np.unique(np.stack([places, following], axis=1), axis=0)
        pairs = pairs[pairs[:, 0] != pairs[:, 1]]
        if len(pairs):
            starts.append(len(hops))
            hops += map(tuple, pairs.tolist())
    return Routes(
        np.reshape(rings, (-1, 2)).astype(int), np.reshape(hops, (-1, 2)).astype(int), np.asarray(starts, int)
    )


def candidate_orders(links: NodeLinks, way: Routes) -> list[np.ndarray]:
    """Candidate orders of nodes for a plan: the given order, and one search result per weight of rings and hops."""
    slowness, given = 1.0 / links.bandwidth, np.arange(len(links.names))
    scale = np.maximum(way.times(slowness, given, SMOOTHED), 1e-30)
    orders = [given]
    weights = RING_WEIGHTS if len(way.rings) and len(way.hops) else (0.5,)
    random = np.random.default_rng(0)
    others = [random.permutation(given) for _ in range(STARTED_NODES // len(given) - 2)]
    starts = [given, greedy_order(slowness), *others]
    for weight in weights:
        shares = np.array([weight, 1.0 - weight]) / scale

        def cost(order: np.ndarray, shares: np.ndarray = shares) -> float:
            return float(shares @ way.times(slowness, order, SMOOTHED))

        orders.append(
            min((improved_order(cost, start, MOST_SCORED) for start in starts), key=lambda found: found[1])[0]
        )
    return orders


KnownOrders = dict[tuple[int, ...], list[np.ndarray]]
"""Orders of nodes by stages and chips of a stage."""


class NodePlacement(NamedTuple):
    """Plan on its best order of nodes, beside the given order.

    Attributes:
        order: node at each place [place].
        ring, hop: time per byte of the slowest ring link and of the mean hop; zero for none [s/byte].
        given_ring, given_hop: the same times for the given order of the nodes [s/byte].
        given_time: step time for the given order [s].
        mfu: model flops over the 16-bit peak [1].
        terms: step time by cause [s].
    """

    order: Int[np.ndarray, " place"]
    ring: float
    hop: float
    given_ring: float
    given_hop: float
    given_time: float
    mfu: float
    terms: dict[str, float]

    @property
    def step_time(self) -> float:
        """Step time on the best order of nodes [s]."""
        return sum(self.terms.values())

    def placed(self, scored: ScoredPlan) -> ScoredPlan:
        """Scored plan with time, MFU and terms of the placement."""
        return dataclasses.replace(scored, step_time=self.step_time, mfu=self.mfu, terms=self.terms)

    def to_json(self, names: Sequence[str]) -> dict[str, Any]:
        """JSON document of the placement: order of nodes, step times, and bandwidths [GB/s] of rings and hops."""
        times = {"ring": self.ring, "given_ring": self.given_ring, "hop": self.hop, "given_hop": self.given_hop}
        speeds = {f"{name}_gb_per_s": 1.0 / (GB * time) if time else None for name, time in times.items()}
        steps = {"step_time_s": self.step_time, "given_step_time_s": self.given_time}
        gain = self.given_time / self.step_time - 1.0
        return {"nodes": [names[node] for node in self.order], **steps, "gain": gain, **speeds}


def at_bandwidth(cluster: Cluster, bandwidth: float) -> Cluster:
    """Cluster with a given bandwidth between nodes; upper network levels keep their ratio to it [byte/s]."""
    network = cluster.network
    levels = np.asarray(network.bandwidth, float)
    scaled = np.where(np.arange(len(levels)) > 0, levels * (bandwidth / levels[1]), levels)
    return with_fields(cluster, {"network": with_fields(network, {"bandwidth": scaled})})


def place_on_nodes(
    question: PlanQuestion, fit: Fit, links: NodeLinks, table: PlanTable, known: KnownOrders | None = None
) -> list[NodePlacement]:
    """Best placement of each plan of a table, never slower than the given order of the nodes.

    Args:
        question: model and cluster.
        fit: calibration.
        links: measured links.
        table: the plans.
        known: candidate orders of earlier searches by stages and chips of a stage; new orders are added.
    """
    known = {} if known is None else known
    columns, node = table.columns, int(number(question.cluster.network.domain_size[0]))
    stage_chips = np.asarray(columns["dp"] * columns["tp"] * columns["cp"], int)
    shapes = np.stack([np.asarray(columns["pp"], int), stage_chips], axis=1)
    coefficients = fit.coefficients(question.levels, question.n_chips)
    placed: list[Any] = [None] * len(table)
    work: list[tuple[np.ndarray, np.ndarray, tuple[float, float]]] = []
    judged: list[Judged] = []
    for shape in np.unique(shapes, axis=0):
        rows = np.flatnonzero((shapes == shape).all(axis=1))
        part = PlanTable({name: column[rows] for name, column in columns.items()}, table.space)
        way = routes(int(shape[0]), int(shape[1]), node)
        if (key := tuple(shape.tolist())) not in known:
            known[key] = candidate_orders(links, way)
        for order in known[key]:
            times = way.times(1.0 / links.bandwidth, order)
            work.append((rows, order, times))
            for time in times:
                cluster = at_bandwidth(question.cluster, 1.0 / time if time else links.fastest)
                judged.append(Judged(question.model, part, cluster, coefficients))
    found = judge(judged, ("mfu", *TERM_NAMES))
    for (rows, order, (ring, hop)), inside, along in zip(work, found[::2], found[1::2], strict=True):
        for place, row in enumerate(rows.tolist()):
            terms = {name: float(inside[name][place]) for name in TERM_NAMES}
            before = sum(terms.values())
            undisturbed = before - terms["straggler"]
            terms["pipeline_transfer"] = float(along["pipeline_transfer"][place])
            moved = sum(terms.values()) - terms["straggler"]
            terms["straggler"] *= moved / undisturbed
            total, first = sum(terms.values()), placed[row]
            mfu = float(inside["mfu"][place]) * before / total
            if first is None:
                placed[row] = NodePlacement(order, ring, hop, ring, hop, total, mfu, terms)
            elif (round(total, DIGITS), ring + hop) < (round(first.step_time, DIGITS), first.ring + first.hop):
                placed[row] = first._replace(order=order, ring=ring, hop=hop, mfu=mfu, terms=terms)
    return placed
