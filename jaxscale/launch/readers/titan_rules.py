"""Rules from settings of torchtitan (Python or TOML) to cells of a runs table."""

import math

from jaxscale.launch.readers.settings_text import (
    SIZES,
    Cells,
    ReadSettings,
    end_cells,
    known_layers,
    known_model,
    plain_number,
    product_of_degrees,
)

RECOMPUTES = {"fullac": "full", "selectiveac": "selective", "none": "none"}


def titan_cells(read: ReadSettings, cells: Cells) -> Cells:
    """Cells of the runs table set by combinations of torchtitan settings."""
    found: Cells = {"framework": "torchtitan"}
    _model(read, cells, found)
    shard, replicate = (read.number(f"data_parallel_{kind}_degree") for kind in ("shard", "replicate"))
    # -1 means the remaining devices.
    if shard and shard > 0:
        found["dp"] = shard * (replicate or 1.0)
        if (replicate or 1.0) > 1.0:
            found["shard_group"] = shard
    # Weights stay gathered between the passes: ZeRO 2.
    never = read.value("fsdp_reshard_after_forward") == "never"
    # Ranks of context parallelism share the shards.
    found["zero_stage"] = 0 if shard == 1 and product_of_degrees(cells, "cp") == 1.0 else 2 if never else 3
    if "dp" in found:
        found["n_gpus"] = found["dp"] * product_of_degrees(cells, "tp", "pp", "cp")
    _batch(read, cells, found)
    _recomputation(read, found)
    _software(read, cells, found)
    pp = plain_number(cells.get("pp")) or 1.0
    schedule = read.word("schedule", "pipeline_parallel_schedule")
    if pp > 1.0 and schedule:
        found["schedule"] = schedule
    layers = known_layers(found.get("n_layers"), found.get("model"))
    if found.get("schedule") == "interleaved":
        # Interleaved schedules take two chunks per chip unless layers per stage are stated.
        found["vpp"] = 2
    if pp > 1.0 and layers:
        _stages(read, found, round(layers), round(pp))
    elif pp == 1.0:
        read.value("pipeline_parallel_layers_per_stage")
    read.value("attn_backend", "global_vocab_size")
    return found


def _stages(read: ReadSettings, found: Cells, layers: int, pp: int) -> None:
    """Cells of the chunks per chip and of the end stages; torchtitan counts embedding and head as a layer each."""
    ends = [read.number(f"pipeline_parallel_{end}_stage_less_layers") for end in ("first", "last")]
    # Default of the options: 1.
    first, last = (1 if less is None else round(less) for less in ends)
    if per_stage := read.number("pipeline_parallel_layers_per_stage"):
        found["vpp"] = math.ceil((layers + first + last) / per_stage) / pp
    chunks = pp * round(found.get("vpp", 1))
    # Earlier chunks take the rest.
    share, rest = divmod(layers + first + last, chunks)
    counts = [sum(share + (chunk < rest) for chunk in range(rank, chunks, pp)) for rank in (0, pp - 1)]
    # Embedding and head are no layers of the model.
    found |= end_cells(counts[0] - first, counts[1] - last, layers, pp)


def _model(read: ReadSettings, cells: Cells, found: Cells) -> None:
    """Name of the registry, or sizes of layers that are built."""
    spec = str(read.value("model_spec") or "").split()
    name = read.value("model.name") or (spec[0] if len(spec) > 1 else None)
    flavour = read.value("model.flavor", "flavor") or (spec[1] if len(spec) > 1 else None)
    if read.has("n_layers"):
        for column, keys in SIZES["torchtitan"].items():
            for key in keys:
                if (value := read.value(key)) is not None:
                    found[column] = value
        part = read.number("qk_nope_head_dim")
        if part is not None:
            # A head of latent attention: plain and rotary width.
            found["head_dim"] = part + (read.number("qk_rope_head_dim") or 0.0)
        found["gated_mlp"] = True
        if not found.get("n_dense_layers"):
            found.pop("n_dense_layers", None)
    elif name and flavour:
        found["model"] = _of_registry(str(name), str(flavour))
        if found["model"] is None:
            found["model"] = known_model(f"{name}-{flavour}")


def _of_registry(family: str, flavour: str) -> str | None:
    """Model of the catalogue with the shape that a flavour of the registry has."""
    from jaxscale.launch.writers.torchtitan_settings import REGISTRY

    named = {entry: name for name, entry in REGISTRY.items()}
    spelt = known_model(f"{family}-{flavour}")
    return spelt or named.get((family, flavour))


def _batch(read: ReadSettings, cells: Cells, found: Cells) -> None:
    """Sequences of a microbatch and of a step; releases after 0.3.0 count tokens."""
    pp, length = plain_number(cells.get("pp")) or 1.0, read.number("max_context_length", "seq_len")
    tokens, step = read.number("num_tokens_per_microbatch_per_dp_rank"), read.number("num_tokens_per_train_step")
    if tokens and length:
        found["micro_batch_size"] = tokens / length
        found["seq_len"] = length
        if step and step > 0:
            found["global_batch_size_seqs"] = step / length
        elif "dp" in found:
            passes = read.number("num_pp_microbatches") or 1.0
            # B = b * m * dp
            found["global_batch_size_seqs"] = tokens / length * passes * found["dp"]
        return
    local = read.number("local_batch_size", "batch_size")
    if cells.get("global_batch_size_seqs") in (-1, None):
        cells.pop("global_batch_size_seqs", None)
        if local and "dp" in found:
            found["global_batch_size_seqs"] = local * found["dp"]
    cells.pop("micro_batch_size", None)
    # Without a pipeline, the local batch is the microbatch; the option's default is 1.
    found["micro_batch_size"] = local if pp == 1.0 else read.number("pipeline_parallel_microbatch_size") or 1.0


def _recomputation(read: ReadSettings, found: Cells) -> None:
    """Word of recomputation."""
    mode = read.value("activation_checkpoint.mode")
    kind = str(read.value("activation_checkpoint")).lower() if "activation_checkpoint" in read.settings else ""
    if mode in ("none", "selective", "full"):
        found["activation_recompute"] = mode
        option = str(read.value("selective_ac_option") or "")
        if mode == "selective" and option.isdigit():
            # Recomputation of every n-th layer: 1 is all, 2 is half.
            found["activation_recompute"] = "full" if option == "1" else "selective-layer" if option == "2" else None
    elif kind.startswith("none"):
        found["activation_recompute"] = "none"
    else:
        found["activation_recompute"] = next((word for key, word in RECOMPUTES.items() if kind.startswith(key)), None)


def _software(read: ReadSettings, cells: Cells, found: Cells) -> None:
    """Compilation, graphs, overlap, dispatcher, loss."""
    compiles, graphs = read.value("compile.enable"), read.value("disable_cuda_graphs")
    if graphs is False:
        found["execution"] = "cuda-graphs"
    elif compiles is not None:
        found["execution"] = "compiled" if compiles else "eager"
    if (plain_number(cells.get("tp")) or 1.0) > 1.0:
        overlap = read.value("enable_async_tensor_parallel")
        found["tp_overlap"] = None if overlap is None and compiles is None else "full" if overlap else "none"
        splits = read.value("enable_sequence_parallel")
        found["sequence_parallel"] = splits
    backend = read.value("expert_parallel_comm_backend", "moe_comm_backend")
    words = {"standard": "alltoall", "deepep": "deepep", "hybridep": "hybridep"}
    found["moe_dispatcher"] = words.get(str(backend))
    loss = read.value("loss")
    if loss is not None:
        found["chunked_loss"] = "Chunked" in str(loss)
    dtype = read.value("training.dtype")
    if dtype == "bfloat16":
        # Weights in 16 bits have no 32-bit copy: state is two moments of 16 bits.
        found |= {"weight_bytes": 2, "optimizer_bytes": 4}
