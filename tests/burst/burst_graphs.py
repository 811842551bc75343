"""Small random networks, and the planner's problem solved by enumeration in plain Python."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxscale.burst.layer_graph import LayerGraph, Step, build_graph
from jaxscale.burst.layer_time import MeasuredLayerTime
from jaxscale.burst.layers import Layer
from jaxscale.burst.step_costs import BurstJob

BATCHES = np.array([1.0, 2.0, 4.0, 8.0])


def _layer(rng: np.random.Generator, n_input: int, may_keep: bool) -> Layer:
    n_output = int(rng.integers(1e3, 1e6))
    keeps = bool(may_keep and rng.random() < 0.2)
    weights = int(rng.integers(0, 5e7))
    return Layer("layer", ("random",), (n_input,), (n_output,), weights, keeps_layout=keeps)


def random_chain(seed: int, n_layers: int = 5) -> LayerGraph:
    """Chain with random activations and weights; some layers cannot change the number of GPUs."""
    rng = np.random.default_rng(seed)
    steps, size = [], 1000
    for index in range(n_layers):
        layer = _layer(rng, size, index > 0)
        steps.append(Step(layer, 0, 1, True, True, True))
        size = layer.output_shape[0]
    return build_graph(steps, "chain", "resnet-graph")


def random_block(seed: int, branches: tuple[int, ...]) -> LayerGraph:
    """One layer, a block whose branches have the given numbers of layers, one layer."""
    rng = np.random.default_rng(seed)
    first = _layer(rng, 1000, False)
    steps = [Step(first, 0, 1, True, True, True)]
    joined = 0
    for branch, n_layers in enumerate(branches):
        size = first.output_shape[0]
        for index in range(n_layers):
            layer = _layer(rng, size, False)
            steps.append(Step(layer, branch, len(branches), index == 0, False, False))
            size = layer.output_shape[0]
        joined += size
        join = Layer("join", ("join",), (size,), (size,))
        steps.append(Step(join, branch, len(branches), False, True, branch == len(branches) - 1))
    steps.append(Step(_layer(rng, joined, False), 0, 1, True, True, True))
    return build_graph(steps, "block", "resnet-graph")


def random_times(graph: LayerGraph, seed: int) -> MeasuredLayerTime:
    """Times of 0.05 to 3 ms on one sample that grow with the batch, more or less steeply."""
    rng = np.random.default_rng(seed + 10_000)
    one = rng.uniform(math.log(5e-5), math.log(3e-3), graph.n_steps)
    slope = rng.uniform(0.0, 1.0, graph.n_steps)
    log_time = one[:, None] + slope[:, None] * np.log(BATCHES)
    log_time[graph.is_join] = -np.inf
    return MeasuredLayerTime(np.log(BATCHES), log_time)


def random_job(seed: int, batch: float = 4.0, n_chips: float = 4.0) -> BurstJob:
    rng = np.random.default_rng(seed + 20_000)
    bandwidth, latency = 10 ** rng.uniform(9, 11.5), 10 ** rng.uniform(-6, -3.3)
    return traced(BurstJob(batch, n_chips, bandwidth, latency, rng.uniform(1.1, 4.0), rng.choice([0.0, 3e-4])))


def traced(job: BurstJob) -> BurstJob:
    """Arrays in place of Python numbers, which `eqx.filter_jit` would compile into the function."""
    return jax.tree.map(jnp.asarray, job)


class BruteForce:
    """Every assignment of GPUs to layers, and every way to run the branches; no use of the package's formulas."""

    def __init__(self, graph: LayerGraph, times: MeasuredLayerTime, job: BurstJob, n_options: int):
        self.graph, self.job = graph, jax.tree.map(float, job)
        self.chips = [2**k for k in range(n_options)]
        column = {float(b): i for i, b in enumerate(BATCHES)}
        samples = [self.job.batch / g for g in self.chips]
        self.compute = [[math.exp(row[column[s]]) for s in samples] for row in times.log_time]
        self.samples = samples

    def step(self, row: int, before: int, option: int, moved: bool) -> float:
        """Time of one step, infinite where it is not allowed."""
        g, s = self.graph, self.job
        if g.keeps_layout[row] and before != option:
            return math.inf
        x, a, b = 4.0 * g.input_elements[row], self.samples[before], self.samples[option]
        transfer = 0.0
        if x and (moved or a != b):
            sent = a * x - (min(a, b) * x if a > b and not moved else 0.0)
            received = b * x - (min(a, b) * x if b > a and not moved else 0.0)
            transfer = 2.0 * (max(sent, received) / s.bandwidth + s.latency)
        n = self.chips[option]
        time = transfer + self.compute[row][option] + 8.0 * g.weights[row] * (1.0 - 1.0 / n) / s.bandwidth
        single = self.compute[row][0]
        if single > s.exempt_below:
            amplification = time * n / single
            if amplification >= s.amplification_limit and amplification > 1.0:
                return math.inf
        return time

    def chain(self) -> float:
        """Fastest assignment of a chain."""
        best = math.inf
        for options in itertools.product(range(len(self.chips)), repeat=self.graph.n_steps):
            before = (options[0], *options[:-1])
            times = (self.step(i, a, b, False) for i, (a, b) in enumerate(zip(before, options, strict=True)))
            best = min(best, sum(times))
        return best

    def _branch(self, rows: list[int], entry: int, end: int, moved: bool, most: int) -> float:
        """Fastest assignment of one branch on at most `most` GPUs."""
        best = math.inf
        allowed = [k for k, g in enumerate(self.chips) if g <= most]
        for options in itertools.product(allowed, repeat=len(rows) - 1):
            path = (entry, *options, end)
            ends = (0, len(rows) - 1)
            times = (self.step(row, path[i], path[i + 1], moved and i in ends) for i, row in enumerate(rows))
            best = min(best, sum(times))
        return best

    def block(self) -> float:
        """Fastest assignment of `random_block`: in sequence, or any placement that fits, one branch at home."""
        branches = [np.flatnonzero((self.graph.stage == 1) & (self.graph.branch == j)).tolist() for j in range(4)]
        branches = [rows for rows in branches if rows]
        total, last, options = self.chips[-1], self.graph.n_steps - 1, range(len(self.chips))
        shares = [c for c in itertools.product(self.chips, repeat=len(branches)) if sum(c) <= total]
        best = math.inf
        for entry, end in itertools.product(options, repeat=2):
            ways = [sum(self._branch(rows, entry, end, False, total) for rows in branches)]
            table = {
                (j, most, away): self._branch(rows, entry, end, away, most)
                for j, rows in enumerate(branches)
                for most in self.chips
                for away in (False, True)
            }
            for share in shares:
                homes = [j for j, most in enumerate(share) if most == max(share)]
                ways += [max(table[j, most, j != home] for j, most in enumerate(share)) for home in homes]
            head = self.step(0, entry, entry, False)
            tail = min(self.step(last, end, option, False) for option in options)
            best = min(best, head + min(ways) + tail)
        return best
