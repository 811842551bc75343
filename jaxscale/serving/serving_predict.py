r"""Predictions for the rows of a serving table: latency, throughput and memory with intervals.

No prediction exceeds the limits of the chip's data sheet. A step reads at least the weights that one token uses and the
cache of each sequence,

$$ T_{token} \ge \frac{B_w + B_{cache}}{(g + 1) W} , \; T_{first} \ge \max\left(\frac{B_w}{W}, \frac{F}{p C}\right) $$

with the bandwidth W and the peak C of a chip, g draft tokens, all of which may be accepted, and p pipeline stages.
"""

import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxscale.base.arrays import as_arrays, host_arrays, in_blocks_of, with_fields
from jaxscale.base.jit import array_jit
from jaxscale.base.smooth import larger, smaller
from jaxscale.base.units import GB
from jaxscale.calibration.levels import Levels
from jaxscale.hardware.catalogue import Hardware
from jaxscale.hardware.cluster import Cluster
from jaxscale.models.transformer import Transformer, is_dense, is_latent
from jaxscale.runs.arrays import bucket_of
from jaxscale.runs.schema import Runs
from jaxscale.serving.engine import Engine, Requests
from jaxscale.serving.forward_pass import WIDE_BYTES, cache_per_sequence, engine_shares
from jaxscale.serving.serving_coefficients import serving_coefficients
from jaxscale.serving.serving_memory import serving_memory
from jaxscale.serving.serving_record import ServingFit, load_serving_fit, sign_of
from jaxscale.serving.serving_rows import ServingBatch, ServingRows, describe_serving
from jaxscale.serving.serving_table import read_serving
from jaxscale.serving.under_load import ANSWERS, KINDS, LOADED, QUANTILES, answers, bounded_utilisation
from jaxscale.tables.reader import AnyTable

MORE_ARRIVE = 2.0
"""Standard errors by which the arrivals of a run of N requests may exceed their rate [1]."""


def hardware_limits(model: Transformer, engine: Engine, cluster: Cluster, requests: Requests) -> dict[str, Array]:
    """Shortest times [s] and highest rates [token/s], [1/s] that the hardware permits, by predicted column.

    Args:
        model: the transformer.
        engine: copies of the model and their distribution over chips.
        cluster: chips.
        requests: load, lengths and kind of serving.
    """
    model, engine, cluster, r = as_arrays((model, engine, cluster, requests))
    shares, bandwidth = engine_shares(model, engine, cluster), cluster.chip.hbm_bandwidth
    ranks = engine.copies * engine.attention_dp
    yielded = 1.0 + r.draft_tokens
    routed = (1.0 - is_dense(model.n_experts)) * model.moe_top_k * shares.expert
    weights = (shares.dense + routed) * engine.weight_bytes + shares.head * WIDE_BYTES
    read = weights / bandwidth

    def cached(length: Array) -> Array:
        """Time to read the cache of a sequence [s]."""
        return cache_per_sequence(model, engine, length) / bandwidth

    def computed(tokens: Array, n_ranks: Array) -> Array:
        """Time of the matmuls of tokens on each of the ranks that share experts [s]."""
        return 2.0 * tokens * (shares.dense + n_ranks * routed) * shares.peak / engine.pp

    def fastest(input_len: Array, output_len: Array) -> tuple[Array, Array, Array]:
        """Time to the first token, time per token, time of the request [s]."""
        first = larger(read, computed(input_len * (1.0 - r.prefix_hit), jnp.asarray(1.0)))
        token = (read + cached(input_len)) / yielded
        return first, token, first + (output_len - 1.0) * token

    means = fastest(r.input_len, r.output_len)
    # Of unequal requests a percentile may be that of the shortest: one token of prompt, one of answer.
    is_even = (r.length_variance <= 0.0) & (r.lengths_open <= 0.0)
    shortest = fastest(*(jnp.where(is_even, length, 1.0) for length in (r.input_len, r.output_len)))
    percentiles = {f"{kind}_{name}_s": time for kind, time in zip(KINDS, shortest, strict=True) for name in QUANTILES}
    fresh, later = r.input_len * (1.0 - r.prefix_hit), larger(r.output_len - 1.0, 0.0)
    work = computed(later + (1.0 - r.disaggregated) * fresh, engine.attention_dp)
    reads = later * cached(fresh) / yielded / engine.pp
    in_flight = jnp.where(r.at_limit > 0.0, jnp.inf, larger(r.concurrency, ranks))
    most = smaller(ranks / larger(work, reads), in_flight / means[2])
    # Of N requests at constant gaps, which take N - 1 of them, one is more than the rate.
    part = (r.n_requests > 0.0) / larger(r.n_requests, 1.0)
    spread = MORE_ARRIVE * jnp.sqrt((r.gap_variance + part) * part)
    arriving = jnp.where(r.request_rate > 0.0, r.request_rate * (1.0 + spread), jnp.inf)
    rate = smaller(most, arriving) * r.output_len
    return {**dict(zip(ANSWERS, (*means, rate), strict=True)), LOADED[0]: most, **percentiles}


RATE = "output_tokens_per_s_total"
E2E = "e2e_latency_s"
"""Column of throughput."""

BLOCK = 16384
"""Number of rows evaluated together [1]."""

NEW_KINDS = ("framework", "chip", "stack", "model")
"""Factors whose unseen levels widen an interval, in the order of a note."""

GUESSING = 1.8
"""Tokens of a step with one draft token and an acceptance of 80 % (DeepSeek-V3, arXiv 2412.19437, section 5.4.3: 85 to
90 %, 1.8 times the tokens per second) [token]."""


@dataclass(frozen=True)
class ServingPrediction:
    """Predictions for the rows of a serving table, in order; nan for a row without a prediction.

    Attributes:
        values: predictions for each of `ANSWERS` [s] or [token/s] and, where rows state their arrivals, of `LOADED`
            [answer, row].
        lo: lower end of the central 90 % interval [answer, row].
        hi: upper end of the interval [answer, row].
        memory: peak memory of a chip [byte], [row].
        max_batch: maximum number of sequences in the memory of all copies; 0 where a model does not fit [1], [row].
        notes: reason of an absent prediction, or assumptions [row].
    """

    values: Mapping[str, np.ndarray]
    lo: Mapping[str, np.ndarray]
    hi: Mapping[str, np.ndarray]
    memory: np.ndarray
    max_batch: np.ndarray
    notes: np.ndarray

    def columns(self) -> dict[str, np.ndarray]:
        """Columns of predictions by name, as added by `serving predict --out` [row]."""
        added: dict[str, np.ndarray] = {}
        for name in self.values:
            parts = (self.values[name], self.lo[name], self.hi[name])
            added |= dict(zip((f"predicted_{name}", *interval_columns(name)), parts, strict=True))
        return {
            **added,
            "predicted_memory_gb": self.memory / GB,
            "predicted_max_batch": self.max_batch,
            "predicted_note": self.notes,
        }

    def errors(self, runs: Runs) -> dict[str, dict[str, float | int]]:
        """Errors of the predictions of each measured column [%], and coverage of the intervals [1]."""
        result: dict[str, dict[str, float | int]] = {}
        for name in self.values:
            measured = runs.numbers(name)
            scored = (measured > 0.0) & np.isfinite(self.values[name])
            if not scored.any():
                continue
            ape = 100.0 * np.abs(self.values[name][scored] / measured[scored] - 1.0)
            inside = (self.lo[name] <= measured) & (measured <= self.hi[name])
            result[name] = {
                "n": int(scored.sum()),
                "median_ape": float(np.median(ape)),
                "mape": float(ape.mean()),
                "p90_ape": float(np.quantile(ape, 0.9)),
                "coverage_90": float(inside[scored].mean()),
            }
        return result


def interval_columns(name: str) -> tuple[str, str]:
    """Names of the columns with the lower and the upper end of the interval of a predicted column."""
    return f"predicted_{name}_lo", f"predicted_{name}_hi"


def _of_row(row: ServingBatch, logs: Array, *, is_loaded: bool) -> dict[str, Array]:
    model, engine, cluster, load = row.model, row.engine, row.cluster, row.requests
    values, times = answers(model, engine, cluster, load, serving_coefficients(logs), is_loaded=is_loaded)
    ranks = engine.copies * engine.attention_dp
    context = load.input_len + load.output_len
    # The fullest rank has a request, while others may idle.
    held = larger(times.n_sequences / ranks, smaller(times.n_sequences, 1.0))
    # Full length: memory of the last token.
    memory = serving_memory(model, engine, cluster, n_sequences=held, context=context)
    return {
        **values,
        "memory": memory.total,
        # Models with latent attention bring multi-token prediction (DeepSeek-V3, arXiv 2412.19437).
        "max_batch": times.max_batch * (times.max_batch >= ranks),
        "weights": memory.weights,
        "utilisation": jnp.asarray(load.request_rate) / values["saturation_rate"],
        "latent": is_latent(model) * load.continuous,
    }


@array_jit
def _evaluate(batch: ServingBatch, logs: Float[Array, "row coefficient"]) -> dict[str, Array]:
    return jax.vmap(functools.partial(_of_row, is_loaded=False))(batch, logs)


@array_jit
def _evaluate_loaded(batch: ServingBatch, logs: Float[Array, "row coefficient"]) -> dict[str, Array]:
    return jax.vmap(functools.partial(_of_row, is_loaded=True))(batch, logs)


def predict_serving(
    runs: AnyTable, fit: ServingFit | str | Path = "default", hardware: Hardware | None = None
) -> ServingPrediction:
    """Predictions for every row of a serving table; measured columns are never read.

    Args:
        runs: the table, in any form of `read_serving`.
        fit: a fit, `default`, `prior`, or a file.
        hardware: catalogue of chips; the shipped catalogue where None.

    Returns:
        Predictions in the order of the table.

    Raises:
        InputError: unknown fit, or a table with bad rows.
    """
    record, runs = load_serving_fit(fit), read_serving(runs, hardware=hardware)
    rows = describe_serving(runs, hardware)
    if rows.batch is None:
        empty = {name: np.full(len(runs), np.nan) for name in ANSWERS}
        return ServingPrediction(empty, empty, empty, empty["ttft_s"], empty["ttft_s"], rows.notes)
    found = _answers(rows, record.unconstrained(rows.levels))
    names = (*ANSWERS, *LOADED) if rows.is_loaded.any() else ANSWERS
    is_open = np.isnan(runs.numbers("draft_tokens"))[rows.index] & (found["latent"] > 0.5)
    values = {name: found[name] for name in names}
    lo, hi = _intervals(values, rows.levels, record, is_open)
    requests = rows.batch.requests
    tokens = requests.n_requests * requests.output_len
    lo, hi = _possible(values, lo, hi, _limits(rows.batch, is_open), np.where(tokens > 0.0, tokens, np.inf))
    notes = rows.notes.copy()
    remarks = _remarks(rows.levels, record, is_open)
    further = (_lacking_memory(rows.batch, found), _overload(rows.batch, found))
    remarks = ["; ".join(filter(None, texts)) for texts in zip(remarks, *further, strict=True)]
    notes[rows.index] = ["; ".join(filter(None, both)) for both in zip(notes[rows.index], remarks, strict=True)]

    def spread(values: np.ndarray) -> np.ndarray:
        column = np.full(len(runs), np.nan)
        column[rows.index] = values
        return column

    return ServingPrediction(
        *({name: spread(part[name]) for name in names} for part in (found, lo, hi)),
        memory=spread(found["memory"]),
        # Whole sequences; the allowance keeps exact quotients whole.
        max_batch=spread(np.floor(found["max_batch"] + 1e-6)),
        notes=notes,
    )


def _answers(rows: ServingRows, logs: np.ndarray) -> dict[str, np.ndarray]:
    """Values of each row on the host, block by block; rows with stated arrivals have a separate program."""
    answered: dict[str, np.ndarray] = {}
    for evaluate, mask in ((_evaluate, ~rows.is_loaded), (_evaluate_loaded, rows.is_loaded)):
        if rows.batch is None or not mask.any():
            continue
        part = host_arrays((rows.batch.take(mask), logs[mask]))
        # Buckets of sizes need few compilations.
        size = min(bucket_of(int(mask.sum())), BLOCK)
        values = in_blocks_of(size, lambda block, evaluate=evaluate: evaluate(*block), part)
        for name, column in values.items():
            answered.setdefault(name, np.full(len(mask), np.nan))[mask] = column
    return answered


@array_jit
def _evaluate_limits(batch: ServingBatch) -> dict[str, Array]:
    return jax.vmap(lambda row: hardware_limits(row.model, row.engine, row.cluster, row.requests))(batch)


def _limits(batch: ServingBatch, is_open: np.ndarray) -> dict[str, np.ndarray]:
    """Shortest times and highest rates of each row, with `GUESSING` where draft tokens are not stated [row]."""
    drafts = np.where(is_open, GUESSING - 1.0, batch.requests.draft_tokens)
    requests = with_fields(batch.requests, {"draft_tokens": drafts})
    part = host_arrays(with_fields(batch, {"requests": requests}))
    return in_blocks_of(min(bucket_of(len(batch)), BLOCK), _evaluate_limits, part)


def _possible(
    values: Mapping[str, np.ndarray],
    lo: Mapping[str, np.ndarray],
    hi: Mapping[str, np.ndarray],
    limits: Mapping[str, np.ndarray],
    tokens: np.ndarray,
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Ends of intervals that are possible [answer, row].

    Percentiles are in order, no time or rate is beyond the hardware, and no request takes longer than its run, which
    lasts as long as its answer tokens take at the lowest throughput.

    Args:
        values: predictions, inside their intervals.
        lo: lower ends.
        hi: upper ends.
        limits: shortest times and highest rates.
        tokens: answer tokens of a run, infinite for an endless one [token], [row].
    """
    lo, hi = dict(lo), dict(hi)
    longest = tokens / lo[RATE]
    for kind in KINDS:
        names = [f"{kind}_{percentile}_s" for percentile in QUANTILES]
        for lower, upper in itertools.pairwise(names if names[0] in values else []):
            hi[upper] = np.maximum(hi[upper], hi[lower])
        for upper, lower in itertools.pairwise(names[::-1] if names[0] in values else []):
            lo[lower] = np.minimum(lo[lower], lo[upper])
    for name, value in values.items():
        if name == "saturation_rate" or sign_of(name) < 0.0:
            hi[name] = np.maximum(np.minimum(hi[name], limits[name]), value)
        else:
            lo[name] = np.minimum(np.maximum(lo[name], limits[name]), value)
            hi[name] = np.maximum(np.minimum(hi[name], longest), value)
    return lo, hi


def novelties(levels: Levels, fit: ServingFit) -> dict[str, np.ndarray]:
    """Masks of the rows with a framework, chip, stack or model unseen by a fit, by name in `NOVELTIES` [row]."""
    new = {kind: fit.is_new(kind, levels) for kind in NEW_KINDS}
    # A new pair of a known framework and a known chip.
    new["stack"] &= ~(new["framework"] | new["chip"])
    return {**new, "seen": ~np.any(list(new.values()), axis=0)}


def batch_time_ends(fit: ServingFit, levels: Mapping[str, str]) -> tuple[float, float]:
    """Ends of the 90 % interval of the time of a static batch over its prediction [1].

    Args:
        fit: calibration of serving.
        levels: levels of the engine, see `stack_levels`.
    """
    rows = Levels.of_rows([{**dict.fromkeys(fit.spec().kinds, ""), **levels}])
    low, high = fit.intervals.ends(E2E, rows, novelties(rows, fit))
    return float(np.exp(low[0])), float(np.exp(high[0]))


def _intervals(
    values: Mapping[str, np.ndarray], levels: Levels, fit: ServingFit, is_open: np.ndarray
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Ends of the intervals, the widest over the novelties of a row [answer, row]."""
    lo: dict[str, np.ndarray] = {}
    hi: dict[str, np.ndarray] = {}
    new = novelties(levels, fit)
    for name in values:
        # The saturation rate has the relative error of the throughput.
        low, high = fit.intervals.ends(RATE if name == "saturation_rate" else name, levels, new)
        # Without a statement on draft tokens the interval covers both cases: draft tokens raise the yield of a step.
        is_shorter = is_open & name.startswith(("tpot", "e2e"))
        is_faster = is_open & (name in (RATE, "saturation_rate"))
        lo[name] = values[name] * np.exp(np.minimum(low, np.where(is_shorter, -np.log(GUESSING), 0.0)))
        hi[name] = values[name] * np.exp(np.maximum(high, np.where(is_faster, np.log(GUESSING), 0.0)))
    # All answers of a static batch end with the batch: throughput times latency is the number of tokens.
    ends_together, tokens = levels.column("serving") == "static", values[RATE] * values[E2E]
    lo[RATE], hi[RATE] = (np.where(ends_together, tokens / end[E2E], own[RATE]) for end, own in ((hi, lo), (lo, hi)))
    return lo, hi


def _remarks(levels: Levels, fit: ServingFit, is_open: np.ndarray) -> list[str]:
    """Notes: levels unseen by the fit, and open cells of the table [row]."""
    combinations, index = levels.only(dict.fromkeys((*NEW_KINDS, "release"), bool)).distinct()
    new = novelties(combinations, fit)
    # An unseen framework has no substitute release.
    other = fit.is_new("release", combinations) & ~new["framework"]
    counted = fit.spec().stand_ins.applied(combinations, fit.level_shifts.by_kind).column("release")
    texts = []
    for place in range(len(combinations)):
        row = combinations.row(place)
        names = [f"{kind} {row[kind] or 'not named'}" for kind in NEW_KINDS if new[kind][place]]
        text = f"not seen by the fit: {', '.join(names)}" if names else ""
        if other[place] and (release := str(row["release"])).partition(" ")[2]:
            text = "; ".join(filter(None, (text, _release_remark(release, str(counted[place])))))
        texts.append(text)
    unseen = np.asarray([*texts, ""], dtype=object)[index]
    guess = "multi-token prediction not stated: the interval covers both"
    return ["; ".join(filter(None, (text, guess * bool(o)))) for text, o in zip(unseen, is_open, strict=True)]


def _lacking_memory(batch: ServingBatch, found: Mapping[str, np.ndarray]) -> list[str]:
    """Notes on models that do not fit: weights beside the memory of a chip, empty for models that fit [row]."""
    sizes = np.broadcast_to(np.asarray(batch.cluster.chip.hbm_bytes), len(batch)) / GB
    weights, texts = found["weights"] / GB, [""] * len(batch)
    for row in np.flatnonzero(found["max_batch"] < 1.0):
        fault = "exceed" if weights[row] > sizes[row] else "leave no room for a request in"
        told = f"weights of {weights[row]:.0f} GB {fault} the {sizes[row]:.0f} GB of a chip"
        texts[row] = f"does not fit: {told}; times are those of chips with more memory"
    return texts


def _overload(batch: ServingBatch, found: Mapping[str, np.ndarray]) -> list[str]:
    """Notes on rates beyond saturation: growing queue of a run, assumed queue of an endless stream [row]."""
    n_requests, texts = np.asarray(batch.requests.n_requests), [""] * len(batch)
    saturation, full = found["saturation_rate"], bounded_utilisation(found["utilisation"])
    # By Little's law, answers per second times the time of a request.
    at_once = saturation * found["e2e_latency_s"]
    for row in np.flatnonzero(found["utilisation"] > 1.0):
        told = f"the queue grows to the end of the run of {n_requests[row]:.0f} requests"
        if n_requests[row] == 0.0:
            queue = f"the queue of {100.0 * full[row]:.0f} % of saturation, {at_once[row]:.0f} requests"
            told = f"the queue of an endless stream grows without bound; assumed: {queue} in flight or waiting"
        texts[row] = f"the rate is beyond the predicted saturation of {saturation[row]:.3g} requests/s: {told}"
    return texts


def _release_remark(release: str, counted: str) -> str:
    """Note on the substitute for an unseen release."""
    if counted == release:
        return f"not seen by the fit: release {release}"
    return f"release {release} counts as {counted}"
