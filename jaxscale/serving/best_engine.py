"""Search for the engine of highest throughput per chip under limits of latency and memory, and the Pareto front."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxscale.base.arrays import host_arrays, number, with_fields
from jaxscale.base.domains import Bound
from jaxscale.base.errors import InputError, check_known
from jaxscale.base.jit import array_jit
from jaxscale.base.units import plural
from jaxscale.hardware.cluster import Cluster
from jaxscale.hardware.formats import PRECISIONS
from jaxscale.models.transformer import Transformer, total_layers
from jaxscale.runs.arrays import padded
from jaxscale.serving.engine import (
    ANY_NUMBER,
    MEMORY_SHARE,
    REQUESTS,
    TOKEN_BUDGET,
    WEIGHT_FORMATS,
    Engine,
    Requests,
    usual_cache_bytes,
)
from jaxscale.serving.serving_coefficients import ServingCoefficients, defaults_of
from jaxscale.serving.serving_memory import serving_memory, usable_bytes
from jaxscale.serving.serving_record import ServingFit, load_serving_fit
from jaxscale.serving.serving_time import serving_time

BATCH_STEP = 1.15
"""Ratio between successive batches of the first search [1]."""

MOST_SEQUENCES = 4096.0
"""Maximum number of sequences of a copy: beyond, schedulers set the limit [1]."""

LATENCY = Bound(0.0, 1e7, True)
"""Valid limits of a latency [s]."""

DECODING_SHARES = tuple(part / 8.0 for part in range(1, 8))
"""Shares of decoding copies if prompts have separate copies [1]."""


@dataclass(frozen=True)
class ServingSpace:
    """Search space of engines.

    Attributes:
        precisions: formats of the weights.
        tp: tensor-parallel degrees; powers of two up to a domain where empty [1].
        pp: pipeline stages [1].
        attention_dp: attention ranks of a mixture of experts; powers of two where empty [1].
        disaggregated: whether prompts may have separate engines.
    """

    precisions: Sequence[str] = ("bf16",)
    tp: Sequence[int] = ()
    pp: Sequence[int] = (1,)
    attention_dp: Sequence[int] = ()
    disaggregated: bool = True


class EngineTable(NamedTuple):
    """Candidate engines with loads: combinations of degrees, format, split of prefill and decode, and batch.

    Attributes:
        engine: decoding copies and degrees [candidate].
        requests: loads [candidate].
        n_prefill: copies for prompts alone [1], [candidate].
        precision: index of the format in the space [candidate].
    """

    engine: Engine
    requests: Requests
    n_prefill: np.ndarray
    precision: np.ndarray

    def __len__(self) -> int:
        """Number of candidates [1]."""
        return len(self.n_prefill)


def engine_table(
    model: Transformer,
    n_chips: float,
    domain_size: float,
    space: ServingSpace,
    input_len: float,
    output_len: float,
    batches: np.ndarray | None = None,
) -> EngineTable:
    """Candidate engines of a search space.

    Args:
        model: the transformer.
        n_chips: number of available chips [1].
        domain_size: chips of a scale-up domain, the limit of tensor parallelism [1].
        space: search space.
        input_len: length of a prompt [token].
        output_len: length of an answer [token].
        batches: candidate sequences of a copy; a geometric series where None [1].

    Raises:
        InputError: an unknown precision, or no degrees that fit the chips.
    """
    for word in space.precisions:
        check_known("precision", word, WEIGHT_FORMATS)
    powers = [2**k for k in range(int(np.log2(max(n_chips, 1.0))) + 1)]
    heads, depth = float(model.n_heads), float(total_layers(model))
    # Tensor parallelism splits heads within a domain.
    tps = [tp for tp in (space.tp or powers) if tp <= min(n_chips, domain_size) and heads % tp == 0]
    pps = [pp for pp in space.pp if pp <= depth]
    is_mixture = float(model.n_experts) > 1.0
    # Ranks with separate attention share experts alone.
    dps = list(space.attention_dp or powers) if is_mixture else [1]
    ladder = _ladder() if batches is None else batches
    rows = []
    for place in range(len(space.precisions)):
        for tp in tps:
            for pp in pps:
                for dp in dps:
                    copies = int(n_chips // (tp * pp * dp))
                    rows += [(place, tp, pp, dp, n, prefill) for n, prefill in _splits(copies, space.disaggregated)]
    if not rows:
        raise InputError(f"no engine fits on {n_chips:g} chips; expected tp of {tps or 'a divisor of the heads'}")
    # (degrees x batches, fields)
    table = np.repeat(np.asarray(rows, dtype=float), len(ladder), axis=0)
    batch = np.tile(ladder, len(rows))
    return _table(table, batch, space, input_len, output_len)


def _ladder() -> np.ndarray:
    count = int(np.log(MOST_SEQUENCES) / np.log(BATCH_STEP)) + 1
    # Rounding repeats small batches.
    return np.unique(np.round(BATCH_STEP ** np.arange(count + 1)))


def _splits(copies: int, disaggregated: bool) -> list[tuple[int, int]]:
    """Decoding copies and copies for prompts alone, zero without a split."""
    splits = [(copies, 0)] if copies else []
    if disaggregated and copies > 1:
        decoding = {min(max(round(copies * share), 1), copies - 1) for share in DECODING_SHARES}
        splits += [(n, copies - n) for n in sorted(decoding)]
    return splits


def _table(
    rows: np.ndarray, batch: np.ndarray, space: ServingSpace, input_len: float, output_len: float
) -> EngineTable:
    place, tp, pp, dp, copies, prefill = rows.T
    words = [WEIGHT_FORMATS[word] for word in space.precisions]
    cache = np.asarray([usual_cache_bytes(word) for word in space.precisions])
    formats = np.asarray([[1.0 if name == entry[1] else 0.0 for name in PRECISIONS] for entry in words])
    index, n, zeros = place.astype(int), len(batch), np.zeros(len(batch))
    engine = Engine(
        tp, pp,
        attention_dp=dp, copies=copies, weight_bytes=np.asarray([entry[0] for entry in words])[index],
        cache_bytes=cache[index], formats=formats[index], overlap=zeros,
        # No limit on the domains of a token.
        expert_nodes=np.full(n, 1e3), max_sequences=np.full(n, ANY_NUMBER), token_budget=np.full(n, TOKEN_BUDGET),
        mixed_passes=np.ones(n), memory_share=np.full(n, MEMORY_SHARE),
    )  # fmt: skip
    requests = Requests(
        concurrency=batch * copies, input_len=np.full(n, input_len), output_len=np.full(n, output_len),
        continuous=np.ones(n), at_limit=zeros, disaggregated=(prefill > 0).astype(float), n_requests=zeros,
        prefix_hit=zeros, prefix_groups=zeros, draft_tokens=zeros, acceptance=np.full(n, 0.7), request_rate=zeros,
        gap_variance=zeros,
        # Lengths of a plan are stated.
        length_variance=zeros, lengths_open=zeros,
    )  # fmt: skip
    return EngineTable(engine, requests, prefill, index)


FINE = 64
"""Number of batches of the second search, around the best batch of the first search [1]."""


NEAR = 0.97
"""Share of a limit above which the limit counts as binding [1]."""


class EngineScores(NamedTuple):
    """Latency, throughput and memory of candidate engines.

    Attributes:
        ttft: time to the first token [s].
        tpot: time per token after the first [s].
        throughput: answer tokens of all copies [token/s].
        memory: memory of a chip with all sequences at full length [byte].
        waiting: queueing delay of a request [s].
    """

    ttft: Any
    tpot: Any
    throughput: Any
    memory: Any
    waiting: Any


@dataclass(frozen=True)
class ScoredEngine:
    """Engine with latency, throughput, memory and price.

    Attributes:
        engine: decoding copies and degrees.
        requests: load, with the batch of all copies as concurrency.
        n_prefill: copies for prompts alone [1].
        precision: format of the weights.
        ttft: time to the first token [s].
        tpot: time per token after the first [s].
        throughput: answer tokens of all copies [token/s].
        throughput_per_chip: throughput over all chips in use, chips for prompts included [token/s].
        memory: memory of a chip [byte].
        dollars_per_million_tokens: price of a million answer tokens; nan without a price of a chip [dollar].
    """

    engine: Engine
    requests: Requests
    n_prefill: int
    precision: str
    ttft: float
    tpot: float
    throughput: float
    throughput_per_chip: float
    memory: float
    dollars_per_million_tokens: float

    @property
    def label(self) -> str:
        """Degrees, copies and format as short text."""
        degrees = (("tp", self.engine.tp), ("pp", self.engine.pp), ("dp", self.engine.attention_dp))
        words = " ".join(f"{name} {number(degree):g}" for name, degree in degrees)
        split = f" + {self.n_prefill} for prompts" if self.n_prefill else ""
        copies = number(self.engine.copies)
        return f"{words}, {copies:g} {plural(copies, 'copy')}{split}, {self.precision}"

    def to_json(self) -> dict[str, Any]:
        """Degrees, load, latency, throughput, memory and price as JSON values."""
        engine = self.engine
        return {
            "tp": number(engine.tp), "pp": number(engine.pp), "attention_dp": number(engine.attention_dp),
            "copies": number(engine.copies), "prefill_copies": self.n_prefill, "precision": self.precision,
            "concurrency": number(self.requests.concurrency), "ttft_s": self.ttft, "tpot_s": self.tpot,
            "output_tokens_per_s_total": self.throughput, "output_tokens_per_s_per_gpu": self.throughput_per_chip,
            "memory_gb": self.memory / 1e9, "dollars_per_million_tokens": self.dollars_per_million_tokens,
        }  # fmt: skip


@dataclass(frozen=True)
class ServingChoice:
    """Result of a search for the best engine.

    Attributes:
        best: the engine with the highest throughput per chip.
        top: the best engines of different degrees, best first.
        frontier: time per token [s] and throughput per chip [token/s] of engines on the Pareto front [point, 2].
        prices: elasticity of the throughput per chip in each limit [1].
        searched: number of candidates [1].
        limits: largest time per token `tpot` and to the first token `ttft`, where stated [s].
    """

    best: ScoredEngine
    top: tuple[ScoredEngine, ...]
    frontier: np.ndarray
    prices: Mapping[str, float]
    searched: int
    limits: Mapping[str, float] = field(default_factory=dict)

    @property
    def price_line(self) -> str:
        """Sentence on the gain of throughput by longer limits of latency, or on why there is no gain."""
        dear = [(name, price) for name, price in self.prices.items() if price]
        if dear:
            return "; ".join(f"a limit of {name} 1 % larger brings {price:.2f} % of throughput" for name, price in dear)
        used = [f"{name} {getattr(self.best, name):.3g} s of {limit:.3g} s" for name, limit in self.limits.items()]
        head = f"no limit holds back the best engine ({', '.join(used)})" if used else "no limit of latency is stated"
        return (
            f"{head}: copies, degrees and batches are whole numbers, and where a limit admits the next choice, more "
            "requests in flight answer no more per chip"
        )

    def to_json(self) -> dict[str, Any]:
        """JSON document of the choice."""
        return {
            "best": self.best.to_json(),
            "top": [scored.to_json() for scored in self.top],
            "frontier": [{"tpot_s": x, "output_tokens_per_s_per_gpu": y} for x, y in self.frontier.tolist()],
            "prices": dict(self.prices),
            "searched": self.searched,
        }


@array_jit
def _scored(
    model: Transformer, cluster: Cluster, coefficients: ServingCoefficients, engines: Engine, loads: Requests,
    n_prefill: Array,
) -> tuple[Array, ...]:  # fmt: skip
    def one(engine: Engine, load: Requests, prefill: Array) -> tuple[Array, ...]:
        times = serving_time(model, engine, cluster, load, coefficients)
        ranks = engine.copies * engine.attention_dp
        # Each rank holds a share of the batch.
        batch = load.concurrency / ranks
        memory = serving_memory(model, engine, cluster, n_sequences=batch, context=load.input_len + load.output_len)
        # Prefill copies process prompts one by one; the slower of prefill and decode sets the rate.
        work = coefficients.pace * times.prefill.total
        admitted = prefill * engine.attention_dp / work * load.output_len
        rate = jnp.where(prefill > 0, jnp.minimum(times.throughput, admitted), times.throughput)
        return times.ttft, times.tpot, rate, memory.total, times.waiting

    return jax.vmap(one)(engines, loads, n_prefill)


def score_engines(
    model: Transformer, cluster: Cluster, coefficients: ServingCoefficients, table: EngineTable
) -> EngineScores:
    """Latency, throughput and memory of every candidate engine."""
    rows = padded(host_arrays((table.engine, table.requests, table.n_prefill)), len(table))
    shared = jax.device_put(host_arrays((model, cluster, coefficients)))
    return EngineScores(*(np.asarray(part)[: len(table)] for part in _scored(*shared, *rows)))


def best_serving_plan(
    model: Transformer,
    cluster: Cluster,
    input_len: float | int,
    output_len: float | int,
    *,
    tpot_limit: float | None = None,
    ttft_limit: float | None = None,
    fit: ServingFit | str | Path = "default",
    levels: Mapping[str, str] | None = None,
    space: ServingSpace | None = None,
    dollars_per_chip_hour: float | None = None,
    top: int = 5,
) -> ServingChoice:
    """Engines of highest throughput per chip under limits of latency and memory.

    Every combination of degrees, format and split is scored on a series of batches, then on the batches around the
    best.

    Args:
        model: the transformer.
        cluster: available chips, some of which may stay unused.
        input_len: S_in, length of a prompt [token].
        output_len: S_out, length of an answer [token].
        tpot_limit: largest time per token; none where None [s].
        ttft_limit: largest time to the first token; none where None [s].
        fit: a fit, `default`, `prior`, or a file.
        levels: framework, chip and so on, whose fitted effects apply.
        space: search space.
        dollars_per_chip_hour: price of a chip, for the price of tokens [dollar/h].
        top: number of engines to rank [1].

    Returns:
        The ranked engines, the Pareto front, and the price of each limit.

    Raises:
        InputError: an argument out of range, or no engine within the limits.
    """
    limits = {"tpot": tpot_limit, "ttft": ttft_limit, "input_len": input_len, "output_len": output_len}
    for name, value in limits.items():
        bound = REQUESTS.bounds.get(name, LATENCY)
        if value is not None and not bound.holds(value):
            raise InputError(f"{name} = {value!r} is out of range; expected {bound}")
    space = space or ServingSpace()
    record = load_serving_fit(fit)
    coefficients = record.coefficients(**(levels or {}))
    n_chips, domain = number(cluster.n_chips), float(np.asarray(cluster.network.domain_size)[0])
    arguments = (model, n_chips, domain, space, float(input_len), float(output_len))
    table = engine_table(*arguments)
    table = EngineTable(_of_software(table.engine, levels or {}, cluster), *table[1:])
    scores = score_engines(model, cluster, coefficients, table)
    # (candidates,)
    is_allowed, gain = _judged(table, scores, cluster, tpot_limit, ttft_limit)
    _refuse(table, scores, is_allowed, cluster, tpot_limit, ttft_limit)
    keys = _keys(table)
    chosen = []
    for key in _best_keys(keys, gain, is_allowed, top):
        mine = np.flatnonzero((keys == key).all(axis=1))
        around = table.requests.concurrency[mine] / table.engine.copies[mine]
        # Engines beyond a limit rank last.
        peak = mine[np.argmax(np.where(is_allowed[mine], gain[mine], -1.0))]
        centre = table.requests.concurrency[peak] / table.engine.copies[peak]
        lower, upper = around[around < centre], around[around > centre]
        # Neighbours of the best batch bracket the optimum.
        ends = (lower.max() if len(lower) else 1.0, upper.min() if len(upper) else centre)
        chosen.append((key, np.unique(np.round(np.linspace(*ends, FINE)))))
    fine = [_refined(table, key, batches) for key, batches in chosen]
    ranked = []
    for part in fine:
        found = score_engines(model, cluster, coefficients, part)
        allowed, own = _judged(part, found, cluster, tpot_limit, ttft_limit)
        row = int(np.argmax(np.where(allowed, own, -1.0)))
        ranked.append(_engine_of(part, found, row, own[row], space, dollars_per_chip_hour))
    ranked.sort(key=lambda scored: -scored.throughput_per_chip)
    prices = _prices((model, cluster, coefficients), ranked[0], tpot_limit, ttft_limit)
    # Memory alone bounds the front.
    is_kept = np.asarray(scores.memory <= usable_bytes(table.engine, cluster))
    frontier = _pareto(scores.tpot[is_kept], gain[is_kept])
    stated = {name: limits[name] for name in ("tpot", "ttft") if limits[name] is not None}
    return ServingChoice(ranked[0], tuple(ranked), frontier, prices, len(table) + sum(map(len, fine)), stated)


def _of_software(engine: Engine, levels: Mapping[str, str], cluster: Cluster) -> Engine:
    """Engines with the defaults of the framework of the levels [candidate]."""
    memory = number(cluster.chip.hbm_bytes)
    usual = defaults_of(levels.get("release", ""), levels.get("chip", ""), memory)._asdict()
    cache = np.maximum(engine.cache_bytes, usual.pop("cache_bytes"))
    same = {name: np.full(np.shape(engine.tp), fact) for name, fact in usual.items()}
    return with_fields(engine, {**same, "cache_bytes": cache})


def _chips(table: EngineTable) -> np.ndarray:
    """Chips in use, chips for prompts included [candidate]."""
    engine = table.engine
    return engine.tp * engine.pp * engine.attention_dp * (engine.copies + table.n_prefill)


def _judged(
    table: EngineTable, scores: EngineScores, cluster: Cluster, tpot_limit: float | None, ttft_limit: float | None
) -> tuple[np.ndarray, np.ndarray]:
    """Whether a candidate keeps the limits, and its throughput per chip [token/s]."""
    is_allowed = scores.memory <= usable_bytes(table.engine, cluster)
    is_allowed &= scores.tpot <= (np.inf if tpot_limit is None else tpot_limit)
    is_allowed &= scores.ttft <= (np.inf if ttft_limit is None else ttft_limit)
    return is_allowed, scores.throughput / _chips(table)


def _refuse(
    table: EngineTable,
    scores: EngineScores,
    is_allowed: np.ndarray,
    cluster: Cluster,
    tpot: float | None,
    ttft: float | None,
) -> None:
    if is_allowed.any():
        return
    room = number(usable_bytes(table.engine, cluster)[0])
    fits = scores.memory <= room
    if not fits.any():
        least = scores.memory.min() / 1e9
        raise InputError(f"no engine fits: the leanest needs {least:.3g} GB of {room / 1e9:.3g} GB of each chip")
    told = []
    for name, limit, values in (("tpot", tpot, scores.tpot), ("ttft", ttft, scores.ttft)):
        if limit is not None:
            told.append(f"{name} of {limit:g} s (at least {values[fits].min():.3g} s is possible)")
    raise InputError(f"no engine keeps {' and '.join(told)}; expected longer limits, more chips or fewer bits")


def _keys(table: EngineTable) -> np.ndarray:
    engine = table.engine
    return np.stack(
        [table.precision, engine.tp, engine.pp, engine.attention_dp, engine.copies, table.n_prefill], axis=-1
    )


def _best_keys(keys: np.ndarray, gain: np.ndarray, is_allowed: np.ndarray, top: int) -> list[np.ndarray]:
    """Degrees and splits ranked by the throughput at their best batch, best first."""
    # Engines within the limits come first: the slice drops the rest.
    order = np.argsort(-np.where(is_allowed, gain, -np.inf))[: int(is_allowed.sum())]
    # First place of each combination: the combination at the best batch.
    first = np.unique(keys[order], axis=0, return_index=True)[1]
    return [keys[order[place]] for place in np.sort(first)[:top]]


def _refined(table: EngineTable, key: np.ndarray, batches: np.ndarray) -> EngineTable:
    """Candidates of a combination with further batches."""
    row = int(np.flatnonzero((_keys(table) == key).all(axis=1))[0])

    def spread(leaf: np.ndarray) -> np.ndarray:
        return np.repeat(np.asarray(leaf)[row : row + 1], len(batches), axis=0)

    engine, requests = jax.tree.map(spread, (table.engine, table.requests))
    return EngineTable(
        engine,
        with_fields(requests, {"concurrency": batches * engine.copies}),
        spread(table.n_prefill),
        spread(table.precision),
    )


def _engine_of(
    table: EngineTable, scores: EngineScores, row: int, gain: float, space: ServingSpace, price: float | None
) -> ScoredEngine:
    engine, requests = jax.tree.map(
        lambda leaf: np.asarray(leaf)[row] if np.ndim(leaf) > 1 else float(np.asarray(leaf)[row]),
        (table.engine, table.requests),
    )
    # Dollars per hour / 3600 / (token/s), for a million tokens.
    money = float("nan") if price is None else price / 3600.0 / float(gain) * 1e6
    return ScoredEngine(
        engine, requests, int(table.n_prefill[row]), space.precisions[int(table.precision[row])],
        float(scores.ttft[row]), float(scores.tpot[row]), float(scores.throughput[row]), float(gain),
        float(scores.memory[row]), money,
    )  # fmt: skip


@array_jit
def _slopes(
    model: Transformer, cluster: Cluster, coefficients: ServingCoefficients, engine: Engine, requests: Requests
) -> Array:
    """Log-log slopes of throughput, time per token, time to the first token and memory by the batch [4]."""

    def logs(log_batch: Array) -> Array:
        load = with_fields(requests, {"concurrency": jnp.exp(log_batch)})
        times = serving_time(model, engine, cluster, load, coefficients)
        batch, context = load.concurrency / (engine.copies * engine.attention_dp), load.input_len + load.output_len
        memory = serving_memory(model, engine, cluster, n_sequences=batch, context=context)
        return jnp.log(jnp.stack([times.throughput, times.tpot, times.ttft, memory.total]))

    return jax.jacfwd(logs)(jnp.log(requests.concurrency))


def _prices(
    shared: tuple[Transformer, Cluster, ServingCoefficients],
    best: ScoredEngine,
    tpot_limit: float | None,
    ttft_limit: float | None,
) -> dict[str, float]:
    r"""Relative change of throughput per relative change of the limit that binds the batch; 0 for further limits [1].

    Along the batch, $d \ln X / d \ln l = (d \ln X / d \ln b) / (d \ln q / d \ln b)$ for a quantity q with limit l.
    """
    slope = np.asarray(_slopes(*jax.device_put(host_arrays((*shared, best.engine, best.requests)))))
    room = number(usable_bytes(best.engine, shared[1]))
    used = {"tpot": (best.tpot, tpot_limit), "ttft": (best.ttft, ttft_limit), "memory": (best.memory, room)}
    shares = {name: 0.0 if limit is None else value / limit for name, (value, limit) in used.items()}
    binding = max(shares, key=lambda name: shares[name])
    prices = dict.fromkeys(used, 0.0)
    # A batch is a whole number: a binding limit is not met exactly.
    if shares[binding] > NEAR:
        # d ln X / d ln l by the slopes along the batch.
        prices[binding] = float(slope[0] / slope[1 + list(used).index(binding)])
    return prices


def _pareto(tpot: np.ndarray, gain: np.ndarray) -> np.ndarray:
    """Points on the Pareto front [point, 2]."""
    # By time per token; at equal time the highest throughput first.
    order = np.lexsort((-gain, tpot))
    best = np.maximum.accumulate(gain[order])
    is_new = np.concatenate([[True], best[1:] > best[:-1]]) if len(order) else np.zeros(0, dtype=bool)
    return np.stack([tpot[order][is_new], gain[order][is_new]], axis=-1)
