"""Fits of 30 runs of made-up clusters: error and coverage on runs of the same cluster that the fit did not see.

The clusters are simulated event by event, by code that shares nothing with the model: kernels at a roofline with tiles
that are not full, rings hop by hop, a 1F1B pipeline pass by pass, gradients and weights bucket by bucket on a stream of
their own, noise. Run: python fits/made_up_clusters.py [CLUSTERS] [FIRST] (some minutes a cluster; prints a row each)
"""

import math
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import jaxscale as js

ROWS = 30
"""Runs of a cluster that are fitted, and as many that are not [1]."""

COLUMNS = (
    *("source", "framework", "model", "n_layers", "d_model", "n_heads", "d_ff", "vocab_size", "seq_len", "gpu"),
    *("n_gpus", "precision", "tp", "pp", "micro_batch_size", "global_batch_size_seqs", "zero_stage"),
    *("activation_recompute", "step_time_s"),
)

MODELS = {
    "m1": (24, 2048, 16),
    "m3": (30, 2560, 20),
    "m7": (32, 4096, 32),
    "m13": (40, 5120, 40),
    "m30": (48, 7168, 56),
}
"""Layers, width and heads by name."""

CHIPS = {"a100-80gb": (312e12, 2.0e12, 300e9, 25e9), "h100-80gb": (989e12, 3.35e12, 450e9, 50e9)}
"""Dense 16-bit peak [flop/s], memory, link and network bandwidth [byte/s], as their makers state them."""


@dataclass(frozen=True)
class MadeUpCluster:
    """Hidden numbers of a cluster and its software.

    Attributes:
        gpu: catalogue id of the chip.
        matmul: share of the peak of a large matmul [1].
        attention: share of the peak of fused attention [1].
        tile: rows and columns of a tile of a matmul [1].
        memory: share of the memory bandwidth [1].
        link: share of the link's bandwidth [1].
        network: share of the network's bandwidth [1].
        hop: latency of a hop inside a node, and between nodes [s].
        gap: between kernels [s].
        step: of the host in each step [s].
        hides: whether gradients and weights move beside the compute.
        noise: relative scatter of a step [1].
    """

    gpu: str
    matmul: float
    attention: float
    tile: int
    memory: float
    link: float
    network: float
    hop: tuple[float, float]
    gap: float
    step: float
    hides: bool
    noise: float


def made_up_cluster(seed: int) -> MadeUpCluster:
    """A cluster drawn at random."""
    random = np.random.default_rng(seed)
    return MadeUpCluster(
        gpu=str(random.choice(list(CHIPS))),
        matmul=random.uniform(0.5, 0.85),
        attention=random.uniform(0.25, 0.6),
        tile=int(random.choice([128, 256])),
        memory=random.uniform(0.6, 0.9),
        link=random.uniform(0.5, 0.9),
        network=random.uniform(0.4, 0.95),
        hop=(random.uniform(1e-6, 4e-6), random.uniform(4e-6, 2e-5)),
        gap=random.uniform(1e-6, 6e-6),
        step=random.uniform(0.01, 0.08),
        hides=bool(random.random() < 0.7),
        noise=random.uniform(0.005, 0.02),
    )


class Run(NamedTuple):
    """A model and how it is run; `batch` in sequences of `seq` tokens."""

    model: str
    seq: int
    chips: int
    tp: int
    pp: int
    micro: int
    batch: int
    zero: int
    recompute: bool

    @property
    def dp(self) -> int:
        """Replicas [1]."""
        return self.chips // (self.tp * self.pp)


def drawn_run(random: np.random.Generator) -> Run:
    """A run that a cluster might hold."""
    while True:
        model = str(random.choice(list(MODELS)))
        layers, width, heads = MODELS[model]
        chips = int(2 ** random.integers(3, 9))
        tp, pp = int(2 ** random.integers(0, 4)), int(2 ** random.integers(0, 4))
        zero = int(random.choice([1, 3])) if pp == 1 else 1
        if tp * pp > chips or layers % pp or heads % tp:
            continue
        dp, micro = chips // (tp * pp), int(2 ** random.integers(0, 3))
        count = int(2 ** random.integers(0, 4)) * max(pp, 1)
        state = 12.0 * layers * width**2 / (tp * pp) * (4.0 / (dp if zero == 3 else 1) + 12.0 / dp)
        if state < 50e9:
            seq = int(random.choice([2048, 4096]))
            return Run(model, seq, chips, tp, pp, micro, micro * dp * count, zero, bool(random.random() < 0.5))


def ring(cluster: MadeUpCluster, size: float, ranks: int, stride: int, passes: int) -> float:
    """Time of a ring of ranks that lie a stride apart: a reduction has two passes, a gather one [s]."""
    if ranks == 1:
        return 0.0
    _, _, link, network = CHIPS[cluster.gpu]
    elapsed = 0.0
    for hop in range(passes * (ranks - 1)):
        leaves = (hop % ranks * stride) // 8 != ((hop + 1) % ranks * stride) // 8
        elapsed += cluster.hop[1] if leaves else cluster.hop[0]
    crosses = (ranks - 1) * stride >= 8
    rate = cluster.network * network if crosses else cluster.link * link
    inside = min(ranks, max(8 // stride, 1)) if crosses else 1  # rings of the chips of a node share its network cards
    return elapsed + passes * (ranks - 1) / ranks * size / min(rate * inside, cluster.link * link)


def matmul(cluster: MadeUpCluster, rows: float, inner: float, columns: float) -> float:
    """Time of a product of matrices: whole tiles at a share of the peak, or the memory [s]."""
    peak, memory, _, _ = CHIPS[cluster.gpu]
    tiles = math.ceil(rows / cluster.tile) * math.ceil(columns / cluster.tile)
    waves = math.ceil(tiles / 108) * 108 / tiles
    flop = 2.0 * inner * tiles * cluster.tile**2 * (1.0 + 0.5 * (waves - 1.0))
    moved = 2.0 * (rows * inner + inner * columns + rows * columns)
    return max(flop / (cluster.matmul * peak), moved / (cluster.memory * memory)) + cluster.gap


def layer_passes(cluster: MadeUpCluster, run: Run) -> tuple[float, float]:
    """Time of the forward and of the backward pass of a microbatch through a layer [s]."""
    _, width, _ = MODELS[run.model]
    peak, memory, _, _ = CHIPS[cluster.gpu]
    tokens = run.micro * run.seq
    products = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
    split = [(a, b / run.tp) if place % 2 == 0 else (a / run.tp, b) for place, (a, b) in enumerate(products)]
    forward = sum(matmul(cluster, tokens, a, b) for a, b in split)
    backward = sum(matmul(cluster, tokens, b, a) + matmul(cluster, a, tokens, b) for a, b in split)
    scores = 2.0 * tokens * run.seq * width / run.tp / (cluster.attention * peak)
    streams = 2.0 * tokens * width * (12.0 + 10.0 / run.tp) / (cluster.memory * memory) + 8 * cluster.gap
    reduction = 2 * ring(cluster, 2.0 * tokens * width, run.tp, 1, 2)
    forward += scores + streams + reduction
    backward += 2.5 * scores + 1.6 * streams + reduction + (forward if run.recompute else 0.0)
    return forward, backward


def pipeline_end(forward: list[float], backward: list[float], send: float, count: int) -> float:
    """When the last stage of a 1F1B pipeline is done, pass by pass [s]."""
    stages = len(forward)
    done: dict[tuple[str, int, int], float] = {}
    free = [0.0] * stages
    orders = []
    for stage in range(stages):
        ahead = min(stages - stage - 1, count)
        order = [("f", one) for one in range(ahead)]
        for one in range(count - ahead):
            order += [("f", one + ahead), ("b", one)]
        orders.append(order + [("b", one) for one in range(count - ahead, count)])
    waiting = [0] * stages
    while any(waiting[stage] < len(orders[stage]) for stage in range(stages)):
        for stage in range(stages):
            if waiting[stage] == len(orders[stage]):
                continue
            kind, one = orders[stage][waiting[stage]]
            source = stage - 1 if kind == "f" else stage + 1
            if 0 <= source < stages and (kind, source, one) not in done:
                continue
            ready = done[kind, source, one] + send if 0 <= source < stages else 0.0
            if kind == "b":
                ready = max(ready, done["f", stage, one])
            free[stage] = max(free[stage], ready) + (forward if kind == "f" else backward)[stage]
            done[kind, stage, one] = free[stage]
            waiting[stage] += 1
    return max(free)


def step_of(cluster: MadeUpCluster, run: Run) -> float:
    """Time of a step without noise [s]."""
    layers, width, _ = MODELS[run.model]
    peak, memory, link, network = CHIPS[cluster.gpu]
    held, count = layers // run.pp, run.batch // (run.micro * run.dp)
    forward, backward = layer_passes(cluster, run)
    tokens, weights = run.micro * run.seq, 12.0 * width**2 / run.tp
    logits = 3.0 * matmul(cluster, tokens, width, 51200 / run.tp)
    logits += 12.0 * tokens * 51200 / run.tp / (cluster.memory * memory)
    if run.zero == 3:
        gather = ring(cluster, 2.0 * weights, run.dp, run.tp, 1)
        passes = [forward] * held * count, [backward] * held * count
        elapsed, stream = 0.0, 0.0
        for times, moved in ((passes[0], gather), (passes[1], 2.0 * gather)):
            for compute in times:
                # The stream fetches one layer ahead; without it the compute waits for every layer.
                stream = max(stream, elapsed - compute if cluster.hides else elapsed) + moved
                elapsed = max(elapsed, stream if not cluster.hides else stream - compute) + compute
        busy = max(elapsed, stream if cluster.hides else elapsed) + count * logits
    else:
        send = 2.0 * tokens * width / (cluster.network * network) + cluster.hop[1] if run.pp > 1 else 0.0
        one = [held * forward for _ in range(run.pp)], [held * backward for _ in range(run.pp)]
        one[1][-1] += logits
        busy = pipeline_end(*one, send, count)
        bucket = ring(cluster, 4.0 * weights, run.dp, run.tp, 2)
        # Buckets of a layer each, ready as the last backward pass goes through the layers.
        stream = 0.0
        for place in range(held):
            ready = busy - (held - 1 - place) * backward if cluster.hides else busy
            stream = max(stream, ready) + bucket
        busy = max(busy, stream)
    share = run.dp if run.zero else 1
    update = 16.0 * held * weights / share / (cluster.memory * memory) + 2.0 * held * weights / memory
    return busy + update + cluster.step


def row_of(cluster: MadeUpCluster, run: Run, noise: float) -> dict[str, Any]:
    """A row of a runs table."""
    layers, width, heads = MODELS[run.model]
    shape = {"n_layers": layers, "d_model": width, "n_heads": heads, "d_ff": 4 * width, "vocab_size": 51200}
    plan = {"tp": run.tp, "pp": run.pp, "micro_batch_size": run.micro, "global_batch_size_seqs": run.batch}
    return {
        **{"source": "made-up", "framework": "in-house", "model": run.model, **shape, "seq_len": run.seq},
        **{"gpu": cluster.gpu, "n_gpus": run.chips, "precision": "bf16", **plan, "zero_stage": run.zero},
        "activation_recompute": "full" if run.recompute else "none",
        "step_time_s": step_of(cluster, run) * math.exp(noise),
    }


class Verdict(NamedTuple):
    """How a fit does on the runs of its cluster that it did not see.

    Attributes:
        median: of the absolute error of step time [%].
        covered: runs inside their 90 % interval [%].
        factor: upper end of an interval over the prediction, median [1].
        before: median error without the fit [%].
    """

    median: float
    covered: float
    factor: float
    before: float


def verdict(seed: int, n_starts: int = 1) -> Verdict:
    """Fit 30 runs of a cluster and ask for 30 others."""
    cluster, random = made_up_cluster(seed), np.random.default_rng(1000 + seed)
    rows = [row_of(cluster, drawn_run(random), cluster.noise * random.standard_normal()) for _ in range(2 * ROWS)]
    with tempfile.TemporaryDirectory() as folder:
        tables = []
        for name, part in (("known", rows[:ROWS]), ("unseen", rows[ROWS:])):
            tables.append(Path(folder) / f"{name}.csv")
            lines = [",".join(str(row[column]) for column in COLUMNS) for row in part]
            tables[-1].write_text("\n".join([",".join(COLUMNS), *lines]) + "\n", encoding="utf-8")
        fitted = js.fit(tables[0], n_starts=n_starts).fit
        after, before = js.predict(tables[1], fit=fitted), js.predict(tables[1])
    measured = np.asarray([row["step_time_s"] for row in rows[ROWS:]])
    errors = 100.0 * np.abs(np.asarray(after.step_time) / measured - 1.0)
    low, high = np.asarray(after.lo), np.asarray(after.hi)
    inside = (low <= measured) & (measured <= high)
    first = 100.0 * np.abs(np.asarray(before.step_time) / measured - 1.0)
    factor = float(np.median(high / np.asarray(after.step_time)))
    return Verdict(float(np.median(errors)), 100.0 * float(inside.mean()), factor, float(np.median(first)))


def main(arguments: list[str]) -> None:
    """Judge some clusters, and say the median error and the coverage over all."""
    count, first = (int(value) for value in (*arguments, *("40", "0")[len(arguments) :]))
    found = []
    for seed in range(first, first + count):
        found.append(verdict(seed))
        print(f"| {seed} | {made_up_cluster(seed).gpu} |", " | ".join(f"{x:.3g}" for x in found[-1]), "|", flush=True)
    medians, covered, factors, before = np.asarray(found).T
    print(
        f"{count} clusters: unseen runs {np.median(medians):.1f} % off (median of medians; {np.median(before):.1f} % "
        f"before the fit), {covered.mean():.1f} % inside, intervals of a factor {np.median(factors):.2f}"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
