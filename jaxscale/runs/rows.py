"""From a row of a runs table to the arguments of the model, with defaults filled in and named."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jaxscale.runs.checks import degrees, is_flagged
from jaxscale.runs.defaults import default_for, fact_about, is_fused, translate
from jaxscale.runs.schema import MODEL_FIELDS, SHAPE
from jaxscale.runs.table import Row

EFFECTS = ("source", "framework", "release", "gpu", "precision", "attention_kernel", "fused_norm")
# Layer counts of one kind, which follow the depth where a row has fewer layers than the catalogue model.
_LAYER_COUNTS = ("n_attention_layers", "n_mlp_layers", "n_ssm_layers")

PATTERN = 0.25
"""Share of the depth from which on dense layers are taken to alternate with mixtures, as in Llama 4 (1/2), and not to
stand before them, as in DeepSeek-V3 (3 of 61) [1]."""


@dataclass(frozen=True)
class Incomplete:
    """A row that gets no prediction.

    Attributes:
        reason: what it lacks.
    """

    reason: str


@dataclass(frozen=True)
class RowDescription:
    """What the model needs to know of a row.

    Attributes:
        shape: arguments of `Transformer`, `seq_len` included; what is left out takes the default of `Transformer`.
        plan: arguments of `Plan`.
        gpu: catalogue id of the chip.
        n_gpus: chips [1].
        gpus_per_node: chips in a scale-up domain, or in a tray of one [1]; None for the catalogue's.
        inter_node_gbit_per_s_per_gpu: scale-out bandwidth [Gbit/s]; None for the catalogue's.
        effects: levels of the categorical effects as the row names them, None where it does not.
        measured_parts: how many timings are behind all rows of its setup, where steps are composed of them [1].
        states_zero_stage: whether the row names its ZeRO stage itself.
        states_recompute: whether it names what it recomputes.
        remarks: what was assumed beyond the documented defaults.
    """

    shape: Mapping[str, Any]
    plan: Mapping[str, Any]
    gpu: str
    n_gpus: float
    gpus_per_node: float | None
    inter_node_gbit_per_s_per_gpu: float | None
    effects: Mapping[str, str | None]
    measured_parts: float
    states_zero_stage: bool = True
    states_recompute: bool = True
    remarks: tuple[str, ...] = ()


def describe(row: Row, lookup: Callable[[str], Mapping[str, Any] | None]) -> RowDescription | Incomplete:
    """Describe a row for the model, or say what it lacks.

    No measured column is read.

    Args:
        row: a row of a checked table.
        lookup: fields of a catalogue model by name, None for an unknown name.

    Returns:
        The description, or the reason why there is none.
    """
    shape, missing = _shape(row, lookup)
    missing += [name for name in ("seq_len", "gpu", "n_gpus", "global_batch_size_seqs") if row[name] is None]
    known = degrees(row.values)
    if known is None:
        missing += [name for name in ("tp", "pp") if row[name] is None]
    batch = _batch(row, known) if known and row["global_batch_size_seqs"] else None
    if row["micro_batch_size"] is None and row["n_microbatches"] is None and _may_accumulate(row, known):
        missing.append("micro_batch_size (or n_microbatches)")
    if missing or known is None or batch is None:
        return Incomplete(_reason(row, missing))
    plan = {**known, **batch, **_choices(row, known["tp"])}
    return RowDescription(
        shape={**shape, "seq_len": _seq_len(row)},
        plan=plan,
        gpu=row["gpu"],
        n_gpus=row["n_gpus"],
        gpus_per_node=row["gpus_per_node"],
        inter_node_gbit_per_s_per_gpu=row["inter_node_gbit_per_s_per_gpu"],
        effects={
            **{name: _level(row, name) for name in EFFECTS},
            "source": _setup(row),
            "number_format": _number_format(row),
            "release_gpu": _release_on_chip(row),
            "mixture": _mixture(shape),
            "architecture": _architecture(shape),
            "local_shape": _local_shape(row, shape, plan),
            **_settings(row, plan),
        },
        measured_parts=float(_default(row, "measured_parts")),
        states_zero_stage=row["zero_stage"] is not None,
        states_recompute=row["activation_recompute"] is not None,
        remarks=_remarks(row, known, batch),
    )


def _shape(row: Row, lookup: Callable[[str], Mapping[str, Any] | None]) -> tuple[dict[str, Any], list[str]]:
    """Arguments of `Transformer`, and the shape columns that neither the row nor the catalogue fills."""
    given = {name: row[name] for name in MODEL_FIELDS if row[name] is not None}
    entry = catalogue_shape(row.values, lookup)
    if "d_ff" in given and entry.get("n_experts", 1) > 1 and given["d_ff"] != entry.get("d_ff"):
        given["d_ff_expert"] = given.pop("d_ff")  # the width of one expert, that of dense layers being the model's own
    shape = {**_rescaled(entry, given.get("n_layers")), **given}
    if "vocab_size" not in shape and (size := _default(row, "vocab_size")):
        shape["vocab_size"] = size
    if (share := _default(row, "trainable_share")) is not None:
        shape["trainable_share"] = share
    return shape, [name for name in SHAPE if name not in shape]


def catalogue_shape(values: Mapping[str, Any], lookup: Callable[[str], Mapping[str, Any] | None]) -> Mapping[str, Any]:
    """Fields of a row's catalogue model; none if the row's own width or heads show that it is another model."""
    entry = lookup(values["model"]) if values.get("model") else None
    if entry is None or any(values.get(name) not in (None, entry.get(name)) for name in ("d_model", "n_heads")):
        return {}
    return entry


def _rescaled(entry: Mapping[str, Any], n_layers: float | None) -> dict[str, Any]:
    """A catalogue model at the depth of the row: benchmarks run proxies with fewer layers on small clusters."""
    share = n_layers / entry["n_layers"] if n_layers and entry else 1.0
    shape = {name: value * share if name in _LAYER_COUNTS else value for name, value in entry.items()}
    if dense := entry.get("n_dense_layers"):
        is_pattern = dense >= PATTERN * entry["n_layers"]
        shape["n_dense_layers"] = dense * share if is_pattern else min(dense, n_layers or dense)
    return shape


def _seq_len(row: Row) -> float:
    """Tokens of a sequence: the mean, padding included, where a source says that its sequences vary in length."""
    return _default(row, "mean_seq_len") or row["seq_len"]


def _may_accumulate(row: Row, known: Mapping[str, float] | None) -> bool:
    """Whether the row's framework may cut a step into microbatches of a size of its own choice."""
    return bool(_default(row, "accumulates")) or (known is not None and known["pp"] > 1)


def _batch(row: Row, known: Mapping[str, float]) -> dict[str, float] | None:
    """Microbatch b and count m with b m dp = B; m is not whole where the last microbatch of a step is short."""
    share = row["global_batch_size_seqs"] / known["dp"]
    micro, count = row["micro_batch_size"], row["n_microbatches"]
    if micro is None and count is None:
        if _may_accumulate(row, known):
            return None
        count = 1.0
    micro = share / count if micro is None else micro
    return {"micro_batch_size": micro, "n_microbatches": share / micro}


def _choices(row: Row, tp: float) -> dict[str, Any]:
    """The plan's arguments other than degrees and batch."""
    vpp, ep = _filled(row, "vpp") or 1.0, row["ep"] or 1.0
    return {
        "vpp": vpp,
        "ep": ep,
        "zero_stage": float(_filled(row, "zero_stage")),
        "sequence_parallel": bool(_filled(row, "sequence_parallel")) and tp > 1,
        "recompute": translate("recompute", str(_filled(row, "activation_recompute"))),
        "schedule": "interleaved" if vpp > 1 else "1f1b",
        "precision": translate("precisions", str(_filled(row, "precision"))),
        "flash_attention": is_fused(str(_filled(row, "attention_kernel"))),
        "overlap_gradients": bool(_default(row, "overlap_gradients")),
        "balanced_stages": float(_default(row, "balanced_stages")),
        "gradient_bytes": float(_default(row, "gradient_bytes")),
        "fused_glu": bool(_default(row, "fused_glu")),
    }


def _default(row: Row, name: str) -> Any:
    fact = fact_about(row.values, name)
    return default_for(name, row["framework"], row["source"]) if fact is None else fact


def _filled(row: Row, name: str) -> Any:
    return _default(row, name) if row[name] is None else row[name]


def _level(row: Row, name: str) -> str | None:
    """Level of a categorical effect: a precision by its class, a flag as true or false."""
    value = _filled(row, name) if name == "release" else row[name]
    if name == "precision":
        return translate("precisions", str(_filled(row, name)))
    return str(value).lower() if isinstance(value, bool) else value


def _number_format(row: Row) -> str:
    """Format of the numbers that are multiplied, one name for each, in lower case."""
    word = str(_filled(row, "precision")).lower()
    return translate("number_formats", word) or word


def _setup(row: Row) -> str | None:
    """Level of the source: one software stack on one system, named by source, framework and what sets runs apart."""
    if not row["source"]:
        return None
    parts = (row["source"], row["framework"], fact_about(row.values, "apart"))
    return "/".join(part for part in parts if part)


def _release_on_chip(row: Row) -> str | None:
    """A release and the chip it runs on: kernels are tuned for one generation of chips at a time."""
    release = _level(row, "release")
    return f"{release}/{row['gpu']}" if release else None


def _architecture(shape: Mapping[str, Any]) -> str:
    """What decides how well kernels suit the layers of a model: width, heads, experts."""
    sizes = (shape["d_model"], shape["n_heads"], shape.get("n_experts") or 1.0, shape.get("n_ssm_layers") or 0.0)
    return "d{:g} h{:g} e{:g} s{:g}".format(*sizes)


def _mixture(shape: Mapping[str, Any]) -> str | None:
    """Architecture of a mixture of experts, whose kernels, routing and recipe are its own."""
    return _architecture(shape) if (shape.get("n_experts") or 1.0) > 1.0 else None


def _local_shape(row: Row, shape: Mapping[str, Any], plan: Mapping[str, Any]) -> str:
    """What decides which kernels a layer runs: chip, width, share of it, and tokens."""
    sizes = (row["gpu"], shape["d_model"], plan["tp"], plan["micro_batch_size"], row["seq_len"], plan["recompute"])
    return "{} d{:g} tp{:g} b{:g} s{:g} {}".format(*sizes)


def _settings(row: Row, plan: Mapping[str, Any]) -> dict[str, str]:
    """Sequence length to the nearest power of two, what is recomputed, and the kinds of parallelism beside dp."""
    kinds = [name for name in ("tp", "pp", "cp", "ep") if plan[name] > 1]
    length = 2 ** round(math.log2(_seq_len(row)))
    return {"sequences": f"s{length}", "recompute": plan["recompute"], "parallelism": " ".join(kinds) or "dp"}


def _remarks(row: Row, known: Mapping[str, float], batch: Mapping[str, float]) -> tuple[str, ...]:
    count, length = row["n_microbatches"], _seq_len(row)
    remarks = [f"{name} is empty: taken as {known[name]:g}" for name in ("tp", "pp") if row[name] is None]
    if row["micro_batch_size"] is None and count is None:
        remarks.append("n_microbatches is empty: taken as 1, as the framework accumulates no gradients")
    if length != row["seq_len"]:
        remarks.append(f"seq_len = {row['seq_len']:g} is the longest sequence: the mean of {length:g} used")
    if count is not None and count != batch["n_microbatches"]:
        what = "contradicts the batch" if is_flagged(row.values) else "is rounded"
        remarks.append(f"n_microbatches = {count:g} {what}: {batch['n_microbatches']:g} used")
    if batch["micro_batch_size"] % 1.0:
        remarks.append(f"microbatches do not divide the batch: {batch['micro_batch_size']:g} sequences in each")
    if count is None and batch["n_microbatches"] % 1.0:
        remarks.append(f"microbatches of {batch['micro_batch_size']:g} do not divide the batch: the last one is short")
    if "int8" in str(row["precision"]).lower():
        remarks.append("precision = int8 is taken as fp8")
    if str(row["attention_kernel"]).lower() == "fused":
        remarks.append("attention_kernel = fused is taken to write its scores to memory; where it does not, say flash")
    return tuple(remarks)


def _reason(row: Row, missing: list[str]) -> str:
    reason = f"missing {', '.join(missing)}"
    if any(name in SHAPE for name in missing) and row["model"]:
        reason += f"; model {row['model']!r} is not in the catalogue"
    return reason
