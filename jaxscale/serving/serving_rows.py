"""Rows of a serving table as arrays: stacked model, engine, cluster and load, and levels of a row and of an engine."""

import operator
from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import ArrayLike

from jaxscale.base.arrays import number, stated_or, with_fields
from jaxscale.calibration.levels import Levels
from jaxscale.hardware.catalogue import ChipEntry, Hardware, load_hardware
from jaxscale.hardware.cluster import Cluster
from jaxscale.hardware.formats import PRECISIONS
from jaxscale.models import catalogue_model
from jaxscale.models.transformer import ARGUMENTS, Transformer, customary, ssm_layers
from jaxscale.runs.schema import Runs
from jaxscale.serving.engine import CACHE_FORMATS, USUAL_GROUPS, WEIGHT_FORMATS, Engine, Requests, usual_cache_bytes
from jaxscale.serving.serving_coefficients import (
    EngineDefaults,
    defaults_of,
    framework_level,
    model_level,
    serving_facts,
)
from jaxscale.serving.serving_memory import max_batch
from jaxscale.tables.categorical import Categorical, joined, together

LEVEL_KINDS = (
    "framework", "chip", "generation", "line", "stack", "release", "format", "model", "pair", "kind", "serving",
    "client",
)  # fmt: skip
"""Kinds of level by which coefficients differ."""

SHAPE_COLUMNS = (
    "n_layers", "d_model", "n_heads", "n_kv_heads", "head_dim", "d_ff", "vocab_size", "n_experts", "moe_top_k",
    "d_ff_expert",
)  # fmt: skip


NO_CAP = 1e9
"""Requests in flight of an open stream without a stated maximum: larger than any client's [1]."""


class ServingBatch(eqx.Module):
    """Rows of a serving table with a prediction, stacked along their leading axis.

    Attributes:
        model: shapes [row].
        engine: copies and degrees [row].
        cluster: chips [row].
        requests: loads [row].
    """

    model: Transformer
    engine: Engine
    cluster: Cluster
    requests: Requests

    def __len__(self) -> int:
        """Number of rows."""
        return int(np.shape(self.engine.tp)[0])

    def take(self, rows: np.ndarray) -> "ServingBatch":
        """Batch of a subset of the rows, by index or mask."""
        return jax.tree.map(lambda leaf: np.asarray(leaf)[rows], self)


class ServingRows(NamedTuple):
    """Rows of a serving table as arguments of the model.

    Attributes:
        batch: rows with a prediction [answered row]; None without such rows.
        index: position of each row in the table [answered row].
        levels: levels of each row, see `LEVEL_KINDS` [answered row].
        is_loaded: whether the table states how its requests arrive [answered row].
        notes: missing cells of a row, or assumptions; empty for none [row].
    """

    batch: ServingBatch | None
    index: np.ndarray
    levels: Levels
    is_loaded: np.ndarray
    notes: np.ndarray


def describe_serving(runs: Runs, hardware: Hardware | None = None) -> ServingRows:
    """Rows of a serving table as arguments of the model, with notes on missing cells and assumptions.

    Args:
        runs: the table.
        hardware: catalogue of chips; the shipped catalogue where None.
    """
    shapes, is_another = _shapes(runs)
    lengths = [runs.numbers(name) for name in ("input_len", "output_len")]
    lacking = {
        "a model in the catalogue, or n_layers, d_model and n_heads": np.isnan(
            shapes["n_layers"] + shapes["d_model"] + shapes["n_heads"]
        ),
        "gpu": runs.categories("gpu").matches(lambda chip: chip is None),
        "input_len": np.isnan(lengths[0]),
        "output_len": np.isnan(lengths[1]),
    }
    notes = [_said(is_another, "the shape of the row differs from that of its name in the catalogue, and counts")]
    notes += [_said(mask, f"not predicted: lacks {what}") for what, mask in lacking.items()]
    index = np.flatnonzero(~np.any(list(lacking.values()), axis=0))
    if not len(index):
        return ServingRows(None, index, Levels.of_rows([]), index > 0, joined(notes).array())
    kept, picked = runs.take(index), {name: column[index] for name, column in shapes.items()}
    model = Transformer(**_arguments(picked))
    hardware = hardware or load_hardware()
    levels = _levels(kept, picked, hardware)
    engine = _engine(kept, picked, levels, hardware)
    clusters, loads = _clusters(kept, engine, hardware), _requests(kept, levels)
    is_copied = _is_copied(kept, model, engine, clusters, loads)
    batch = ServingBatch(model, _with_copies(engine, is_copied), clusters, loads)
    batch = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), batch)
    requests = batch.requests
    is_rated = requests.request_rate > 0.0
    is_loaded = (is_rated | kept.categories("arrival").matches(bool)) & (requests.continuous > 0.0)
    assumed = (
        _said(is_rated & kept.categories("arrival").matches(lambda word: word is None), "assumed: Poisson arrivals"),
        _said(is_loaded & (requests.lengths_open > 0.0), "assumed: lengths vary, as their mean is not whole"),
        _said(
            (requests.prefix_groups > 0.0) & np.isnan(kept.numbers("prefix_groups")),
            f"assumed: {USUAL_GROUPS:.0f} distinct prefixes, cached as memory allows",
        ),
        _admitted(kept, engine, requests),
        _said(is_copied, "assumed: dp are copies, each with all experts; ep states another split"),
        _said(np.isnan(kept.numbers("tp")), "assumed: all chips in tensor parallelism"),
        _said(kept.categories("precision").matches(lambda word: word is None), "assumed: 16-bit weights"),
    )
    notes += [remark.spread(index, len(runs), "") for remark in assumed]
    return ServingRows(batch, index, Levels.of_columns(levels, len(index)), is_loaded, joined(notes).array())


def _said(mask: np.ndarray, text: str) -> Categorical:
    """Remark on the rows of a mask."""
    return Categorical(mask.astype(int), ("", text))


def _admitted(runs: Runs, engine: Engine, requests: Requests) -> Categorical:
    """Remark on rows whose requests exceed what the scheduler of their framework admits by default."""
    limit = np.asarray(engine.max_sequences) * engine.copies * engine.attention_dp
    sent = np.where(requests.at_limit > 0.0, requests.n_requests, requests.concurrency)
    is_bound = (sent > limit) & (requests.concurrency < NO_CAP) & (requests.continuous > 0.0)
    is_bound &= np.isnan(runs.numbers("max_sequences"))
    return Categorical.of_numbers(np.where(is_bound, engine.max_sequences, 0.0)).map(
        lambda count: f"assumed: max_sequences = {count:.0f}, the default of the framework" if count else ""
    )


def _entry_of(name: str | None) -> Mapping[str, Any]:
    """Fields of a catalogue model; none for an unknown name."""
    return (catalogue_model(name) if name else None) or {}


def _shapes(runs: Runs) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Arguments of `Transformer` of each row, nan for the default, and whether the shape contradicts the name.

    A cell of the row takes precedence over the catalogue, the catalogue over the usual values of the kind of attention.
    """
    models = runs.categories("model")
    named = {name: models.numbers(lambda model, name=name: _entry_of(model).get(name)) for name in ARGUMENTS}
    stated = {name: runs.numbers(name) for name in SHAPE_COLUMNS}
    # A catalogue entry of different depth or width is a different model.
    agrees = np.ones(len(runs), dtype=bool)
    for name in ("n_layers", "d_model", "n_experts"):
        both = ~np.isnan(stated[name]) & ~np.isnan(named[name])
        agrees &= ~both | (stated[name] == named[name])
    kinds = runs.categories("attention")
    usual = {name: kinds.numbers(lambda kind, name=name: _attention_fields(kind).get(name)) for name in ARGUMENTS}
    shapes = {}
    for name in ARGUMENTS:
        column = np.where(agrees, named[name], np.nan)
        column = stated_or(column, usual[name])
        own = stated.get(name, np.full(len(runs), np.nan))
        shapes[name] = stated_or(own, column)
    return shapes, ~agrees


def stated_shapes(runs: Runs) -> dict[str, np.ndarray]:
    """Arguments of `Transformer` of each row, nan if not stated, such as the top-k of an unstated number of experts."""
    shapes = _shapes(runs)[0]
    no_experts = np.isnan(shapes["n_experts"])
    return {
        **shapes,
        # Beside experts alone, 0 says that no layer is dense.
        "d_ff": np.where((shapes["d_ff"] == 0.0) & (shapes["n_experts"] > 1.0), np.nan, shapes["d_ff"]),
        "moe_top_k": np.where(no_experts, np.nan, shapes["moe_top_k"]),
    }


def _attention_fields(kind: str | None) -> Mapping[str, Any]:
    """Further fields of a model by its kind of attention, for a model outside the catalogue."""
    return serving_facts()["attention"].get(kind or "gqa", {})


def _arguments(shapes: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Arguments of `Transformer` with every gap filled [row]."""
    d_model = shapes["d_model"]
    experts = np.nan_to_num(shapes["n_experts"], nan=1.0)
    # A mixture with a dense width of 0 has experts in every layer.
    no_dense = (experts > 1) & (np.nan_to_num(shapes["d_ff"]) == 0.0)
    d_ff = np.where(no_dense, stated_or(shapes["d_ff_expert"], 4.0 * d_model), stated_or(shapes["d_ff"], 4.0 * d_model))
    # Two matrices of width 4 d_model (GPT), or three of a different width (SwiGLU).
    gated = stated_or(shapes["gated_mlp"], np.where((d_ff == 4.0 * d_model) & (experts <= 1), 0.0, 1.0))
    filled = {
        "d_ff": d_ff,
        "gated_mlp": gated,
        # A token cannot use more experts than exist.
        "moe_top_k": np.minimum(np.nan_to_num(shapes["moe_top_k"], nan=1.0), experts),
        "n_dense_layers": np.where((experts > 1) & ~no_dense, np.nan_to_num(shapes["n_dense_layers"]), 0.0),
    }
    return customary({**shapes, **filled}, len(d_model))


def generation_of(entry: ChipEntry) -> str:
    """Generation of a chip as a level: its maker and its narrowest format for matmuls."""
    stated = [name for name in reversed(PRECISIONS) if f"peak_tflops_{name}" in entry.stated]
    return f"{entry.name.split()[0]} {stated[0]}".lower()


def _levels(runs: Runs, shapes: Mapping[str, np.ndarray], hardware: Hardware) -> dict[str, np.ndarray]:
    """Level of each row by kind, empty for none."""
    chip, release, stated = map(runs.text, ("gpu", "release", "attention"))
    stacks = together(*map(runs.categories, ("framework", "gpu", "release")))
    framework = stacks.map(lambda stack: _framework(stack, hardware)).array()
    precision = runs.categories("precision").map(lambda cell: cell or "bf16").array()
    serving = runs.categories("serving").array()
    has_batch, has_clients = (~np.isnan(runs.numbers(name)) for name in ("batch_size", "concurrency"))
    rated = runs.numbers("request_rate") > 0.0
    usual = np.where(has_clients | rated, "online", np.where(has_batch, "static", "offline_max"))
    serving = np.where(serving == np.asarray(None), usual, serving)
    # A stream is a separate kind: a fit to clients that wait for answers need not hold for a stream.
    is_burst = _is_burst(runs)
    serving = np.where(rated, "stream", np.where(is_burst, "offline_max", serving))
    waits = runs.categories("arrival").matches(bool) & ~rated & (serving != "static")
    source = runs.categories("source").map(lambda name: name or "").array()
    model = runs.categories("model").map(lambda cell: model_level(cell or "")).array()
    latent, state, window = (np.nan_to_num(shapes[name]) for name in ("kv_lora_rank", "ssm_d_inner", "window"))
    attention = np.where(stated == "", attention_words(latent, state, window), stated)
    is_mixture = np.nan_to_num(shapes["n_experts"], nan=1.0) > 1.0
    # Kernels that unpack 4-bit integers have efficiencies of their own.
    width = np.asarray([word if word == "int4" else str(WEIGHT_FORMATS[word][1]) for word in precision], dtype=object)
    generation = runs.categories("gpu").map(lambda cell: generation_of(hardware[str(cell)])).array()
    return {
        "framework": framework,
        "chip": chip,
        "generation": generation,
        "line": _joined(framework, generation),
        "stack": _joined(framework, chip),
        "release": _joined(framework, release),
        "format": _joined(framework, chip, width),
        "model": model,
        "pair": _joined(framework, model),
        "kind": _joined(attention, np.where(is_mixture, "mixture", "dense").astype(object)),
        "serving": serving.astype(object),
        "arrivals": np.where(is_burst, "burst", np.where(waits, "closed", "")).astype(object),
        # A source measures streams, closed loops and bursts by different programs or options.
        "client": np.where(source == "", "", _joined(source, serving)),
    }


def _is_burst(runs: Runs) -> np.ndarray:
    """Whether all requests of a row are sent at once, rather than limited by a client's concurrency [row]."""
    # A client with fewer requests in flight than in all waits for answers.
    waits = runs.numbers("concurrency") < runs.numbers("n_requests")
    return runs.categories("arrival").matches(lambda word: word == "burst") & ~waits


def _framework(stack: tuple[str | None, str, str | None], hardware: Hardware) -> str:
    """Level of the framework of a stack: its name, chip and release."""
    name, chip, release = stack
    return framework_level(name or "", hardware[chip].name.split()[0], release or "")


def attention_words(latent: ArrayLike, state: ArrayLike, window: ArrayLike) -> np.ndarray:
    """Word for the attention of each model, as in the column `attention` of a serving table.

    Args:
        latent: rank of the latent cache, 0 without latent attention [1].
        state: width or number of state-space layers, 0 without state-space layers [1].
        window: keys visible in a windowed layer, 0 without windowed layers [1].
    """
    has = [np.asarray(size) > 0.0 for size in (latent, state, window)]
    return np.select(has, ["mla", "hybrid", "gqa-window"], "gqa").astype(object)


def _joined(*columns: np.ndarray) -> np.ndarray:
    return np.asarray([" ".join(names) for names in zip(*columns, strict=True)], dtype=object)


def _engine(
    runs: Runs, shapes: Mapping[str, np.ndarray], levels: Mapping[str, np.ndarray], hardware: Hardware
) -> Engine:
    chips, tp, pp, dp = (runs.numbers(name) for name in ("n_gpus", "tp", "pp", "dp"))
    pp, dp = np.nan_to_num(pp, nan=1.0), np.nan_to_num(dp, nan=1.0)
    # All chips in tensor parallelism unless stated.
    tp = stated_or(tp, np.maximum(np.nan_to_num(chips, nan=1.0) / (pp * dp), 1.0))
    chips = stated_or(chips, tp * pp * dp)
    is_mixture = np.nan_to_num(shapes["n_experts"], nan=1.0) > 1.0
    # For dense models, dp means copies.
    attention_dp = np.where(is_mixture, dp, 1.0)
    # Without a stated split, half of the chips of a disaggregated system decode.
    decoding = np.where(levels["serving"] == "disagg", 0.5, 1.0)
    copies = np.maximum(np.floor(chips * decoding / (tp * pp * attention_dp)), 1.0)
    precision = runs.categories("precision").map(lambda cell: cell or "bf16")
    cache = runs.categories("kv_precision")
    formats = [precision.matches(lambda word, name=name: WEIGHT_FORMATS[word][1] == name) for name in PRECISIONS]
    stacks = together(Categorical.of(levels["release"].tolist()), runs.categories("gpu"))

    def defaults(stack: tuple[str, str]) -> EngineDefaults:
        release, chip = stack
        return defaults_of(release, chip, number(hardware[chip].chip().hbm_bytes))

    by_stack = stacks.map(defaults)
    usual = {name: by_stack.numbers(operator.attrgetter(name)) for name in EngineDefaults._fields}
    usual_cache = np.maximum(usual["cache_bytes"], precision.numbers(usual_cache_bytes))
    cache_bytes = stated_or(cache.numbers(lambda word: CACHE_FORMATS.get(word or "")), usual_cache)
    return Engine(
        tp, pp,
        attention_dp=attention_dp, copies=copies,
        weight_bytes=precision.numbers(lambda word: WEIGHT_FORMATS[word][0]), cache_bytes=cache_bytes,
        formats=np.stack(formats, axis=-1).astype(float), overlap=np.zeros(len(tp)), expert_nodes=np.full(len(tp), 1e3),
        max_sequences=stated_or(runs.numbers("max_sequences"), usual["max_sequences"]),
        token_budget=stated_or(runs.numbers("token_budget"), usual["token_budget"]),
        mixed_passes=usual["mixed_passes"],
        memory_share=stated_or(runs.numbers("memory_share"), usual["memory_share"]),
    )  # fmt: skip


def _is_copied(runs: Runs, model: Transformer, engine: Engine, cluster: Cluster, loads: Requests) -> np.ndarray:
    """Whether the attention ranks of a mixture are copies: no split of experts is stated and a copy fits [row]."""
    is_open = np.isnan(runs.numbers("ep")) & (np.asarray(engine.attention_dp) > 1.0)
    if not is_open.any():
        return is_open
    room = max_batch(model, with_fields(engine, {"attention_dp": 1.0}), cluster, loads.input_len + loads.output_len)
    return is_open & (np.asarray(room) >= 1.0)


def _with_copies(engine: Engine, is_copied: np.ndarray) -> Engine:
    """Engines whose attention ranks are copies in some rows."""
    ranks = np.where(is_copied, engine.attention_dp, 1.0)
    return with_fields(engine, {"attention_dp": engine.attention_dp / ranks, "copies": engine.copies * ranks})


def _requests(runs: Runs, levels: Mapping[str, np.ndarray]) -> Requests:
    serving = levels["serving"]
    batch, clients, rate = (runs.numbers(name) for name in ("batch_size", "concurrency", "request_rate"))
    is_static, is_stream = serving == "static", serving == "stream"
    asked = np.where(is_static, stated_or(batch, clients), stated_or(clients, batch))
    is_open = np.isnan(asked)
    at_limit = (serving == "offline_max") | (is_open & ~is_static & ~is_stream)
    lengths = [runs.numbers(name) for name in ("input_len", "output_len")]
    stated = runs.numbers("length_cv")
    hit, share = (runs.numbers(name) for name in ("prefix_hit", "prefix_share"))
    groups = np.where(np.isnan(hit) & (share > 0.0), stated_or(runs.numbers("prefix_groups"), USUAL_GROUPS), 0.0)
    return Requests(
        concurrency=np.where(is_stream, stated_or(asked, NO_CAP), np.nan_to_num(asked, nan=1.0)),
        input_len=lengths[0],
        output_len=lengths[1],
        continuous=(~is_static).astype(float),
        at_limit=at_limit.astype(float),
        disaggregated=(serving == "disagg").astype(float),
        n_requests=np.where(is_static, 0.0, np.nan_to_num(runs.numbers("n_requests"))),
        prefix_hit=np.nan_to_num(stated_or(hit, share)),
        prefix_groups=groups,
        draft_tokens=np.nan_to_num(runs.numbers("draft_tokens")),
        acceptance=stated_or(runs.numbers("acceptance"), 0.7),
        request_rate=np.nan_to_num(rate),
        # Poisson gaps have variation 1, constant gaps 0.
        gap_variance=runs.categories("arrival").matches(lambda word: word != "constant").astype(float),
        length_variance=np.nan_to_num(stated) ** 2,
        # The mean of equal lengths is an integer.
        lengths_open=(np.isnan(stated) & (np.mod(lengths[0], 1.0) + np.mod(lengths[1], 1.0) > 0.0)).astype(float),
    )


def _clusters(runs: Runs, engine: Engine, hardware: Hardware) -> Cluster:
    """Chips and reference networks of the rows, each distinct chip looked up once."""
    chips = runs.categories("gpu")
    entries = [hardware[str(chip)] for chip in chips.values]
    parts = [(entry.chip(), entry.network()) for entry in entries]
    stacked = jax.tree.map(
        lambda *leaves: np.stack([np.asarray(leaf, np.float64) for leaf in leaves])[chips.codes], *parts
    )
    chip, network = stacked
    return Cluster(chip, network, np.asarray(engine.n_chips))


def stack_levels(
    framework: str,
    chip: str,
    model: Transformer | None = None,
    *,
    name: str = "",
    serving: str = "online",
    release: str = "",
    hardware: Hardware | None = None,
) -> dict[str, str]:
    """Levels of a planned engine, `fit.coefficients(**serving.stack_levels("vllm", "h100-80gb", model))`.

    Args:
        framework: serving framework.
        chip: catalogue id of the chip.
        model: the transformer, for its kind of attention and mixture.
        name: name of the model in serving tables.
        serving: kind of serving.
        release: release of the framework; not stated where empty.
        hardware: catalogue of chips; the shipped catalogue where None.

    Returns:
        Name of the level by kind, see `serving_rows.LEVEL_KINDS`.

    Raises:
        InputError: no such chip.
    """
    entry = (hardware or load_hardware())[chip]
    age, framework = generation_of(entry), framework_level(framework, entry.name.split()[0], release)
    levels = {
        "framework": framework, "chip": entry.id, "generation": age, "line": f"{framework} {age}",
        "stack": f"{framework} {entry.id}", "serving": serving, "release": f"{framework} {release}",
    }  # fmt: skip
    if model is not None:
        density = "mixture" if number(model.n_experts) > 1.0 else "dense"
        window = number(model.window_share * np.sign(model.window))
        attention = attention_words(number(model.kv_lora_rank), number(ssm_layers(model)), window)
        levels["kind"] = f"{attention} {density}"
    if name:
        levels |= {"model": model_level(name), "pair": f"{framework} {model_level(name)}"}
    return levels
