"""Settings of MaxText as cells of a runs table."""

from jaxscale.launch.readers.setting_values import Cells, ReadSettings, known_model, plain_number, product_of_degrees
from jaxscale.models import catalogue_model

AXES = {"tp": "tensor", "pp": "pipeline", "ep": "expert", "cp": "context"}
SIZES = {
    "d_model": "base_emb_dim",
    "n_layers": "base_num_decoder_layers",
    "n_heads": "base_num_query_heads",
    "n_kv_heads": "base_num_kv_heads",
    "head_dim": "head_dim",
    "d_ff": "base_mlp_dim",
    "vocab_size": "vocab_size",
    "tied_embeddings": "logits_via_embedding",
    "n_experts": "num_experts",
    "moe_top_k": "num_experts_per_tok",
    "d_ff_expert": "base_moe_mlp_dim",
    "n_shared_experts": "shared_experts",
    "n_dense_layers": "first_num_dense_layers",
    "n_predict_layers": "mtp_num_layers",
    "position_embeddings": "trainable_position_size",
}
"""Setting of each size of a model of one's own."""


def maxtext_cells(read: ReadSettings, cells: Cells) -> Cells:
    """Cells that need more than one setting."""
    found: Cells = {"framework": "maxtext", "zero_stage": 3}
    _model(read, cells, found)
    for column, part in AXES.items():
        sizes = [read.number(f"{place}_{part}_parallelism") for place in ("ici", "dcn")]
        stated = [degree for degree in sizes if degree and degree > 0]
        found[column] = stated[0] * (stated[1] if len(stated) > 1 else 1.0) if stated else None
    policy = str(read.value("remat_policy") or "full")
    found["activation_recompute"] = "full" if policy == "custom" else policy
    _batch(read, found)
    layers = plain_number(found.get("n_layers")) or plain_number(
        (catalogue_model(str(cells.get("model") or "")) or {}).get("n_layers")
    )
    if (per_stage := read.number("num_layers_per_pipeline_stage")) and layers:
        found["vpp"] = layers / (found["pp"] or 1.0) / per_stage
    if found["vpp"] == 1.0 if "vpp" in found else False:
        found.pop("vpp")
    if (passes := read.number("num_pipeline_microbatches")) and passes > 0:
        found["schedule"] = "gpipe"
    for column in ("tp", "pp"):
        found[column] = found[column] or 1.0
    _software(read, found)
    return found


def _model(read: ReadSettings, cells: Cells, found: Cells) -> None:
    """A model by name, or by a shape of one's own."""
    name = cells.get("model")
    if name in ("default", None):
        cells.pop("model", None)
    else:
        cells["model"] = known_model(str(name)) or name
    is_own = name in ("default", None) or bool(read.value("override_model_config"))
    sizes = {column: read.value(key) for column, key in SIZES.items()}
    if not is_own or sizes["d_model"] is None:
        return
    found |= {column: value for column, value in sizes.items() if value not in (None, -1)}
    activations = read.value("mlp_activations")
    found["gated_mlp"] = len(activations) > 1 if isinstance(activations, list | tuple) else True
    if (plain_number(found.get("n_experts")) or 1.0) > 1.0 and not plain_number(found.get("n_dense_layers")):
        found.pop("n_dense_layers", None)
        step = read.number("interleave_moe_layer_step")
        if step and step > 1:
            found["n_dense_layers"] = found["n_layers"] - found["n_layers"] // step
    if read.value("attention_type") == "mla":
        rope = read.number("qk_rope_head_dim") or 64.0
        found |= {"head_dim": (read.number("qk_nope_head_dim") or 128.0) + rope, "rope_head_dim": rope}
        found |= {
            "q_lora_rank": read.number("q_lora_rank") or 0.0,
            "kv_lora_rank": read.number("kv_lora_rank") or 512.0,
        }
        found["v_head_dim"] = read.number("v_head_dim") or 128.0
        found.pop("n_kv_heads", None)
        cells.pop("n_kv_heads", None)
    if read.value("attention_type") == "local_sliding":
        found |= {"window": read.value("sliding_window_size"), "window_share": 1.0}


def _batch(read: ReadSettings, found: Cells) -> None:
    """Replicas, chips, and sequences of a microbatch and of a step."""
    per_device = read.number("per_device_batch_size")
    steps = read.number("gradient_accumulation_steps") or 1.0
    copies = [_axis(read, part) for part in ("fsdp", "data")]
    has_all = copies[0] > 0.0
    replicas = max(copies[0], 1.0) * max(copies[1], 1.0) * (found["ep"] or 1.0) if has_all else None
    if replicas:
        found["dp"] = replicas
        shard = copies[0] * (found["ep"] or 1.0)
        found["zero_stage"] = 3 if shard > 1.0 else 0
        if 1.0 < shard < replicas:
            found["shard_group"] = shard
        if read.value("shard_optimizer_over_data"):
            found["zero_stage"] = 1
    model_degrees = product_of_degrees(found, "tp", "pp", "cp")
    chips = read.number("num_devices", "num_chips") or (replicas and replicas * model_degrees)
    if per_device and chips:
        found |= {"n_gpus": chips, "global_batch_size_seqs": per_device * chips * steps}
    passes = read.number("num_pipeline_microbatches") or 1.0
    if per_device and replicas and chips:
        found["micro_batch_size"] = per_device * chips / replicas / (passes if passes > 0 else 1.0)
    elif per_device and per_device >= 1.0 and product_of_degrees(found, "tp", "cp") == 1.0:
        found["micro_batch_size"] = per_device


def _axis(read: ReadSettings, part: str) -> float:
    """Degree of an axis over slices and within; 0 where it is absent, below where it takes what is left [1]."""
    inside = read.number(f"ici_{part}_parallelism")
    across = read.number(f"dcn_{part}_parallelism")
    return (inside or 0.0) * (across if across and across > 0 else 1.0)


def _software(read: ReadSettings, found: Cells) -> None:
    """Number formats of stored numbers, kernels, offload, pieces of the loss."""
    if (dtype := read.value("grad_dtype")) is not None:
        found["gradient_bytes"] = 2 if dtype == "bfloat16" else 4
    if read.value("weight_dtype") == "bfloat16":
        found |= {"weight_bytes": 2, "optimizer_bytes": 4}
    splash = read.value("use_tokamax_splash") is True
    found["attention_kernel"] = "splash" if splash else read.word("attention_kernel", "attention")
    if (tiling := read.number("num_vocab_tiling")) is not None:
        found["chunked_loss"] = tiling > 1
    if read.value("optimizer_memory_host_offload"):
        found["offload"] = "optimizer"
    if read.value("use_ring_of_experts"):
        found["moe_dispatcher"] = "allgather"
