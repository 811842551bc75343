"""Rules from settings of MaxText, Levanter and torchprime to cells of a runs table."""

import math

from jaxscale.launch.readers.settings_text import (
    SIZES,
    Cells,
    ReadSettings,
    known_layers,
    known_model,
    plain_number,
    product_of_degrees,
    take_model,
)

AXES = {"tp": "tensor", "pp": "pipeline", "ep": "expert", "cp": "context"}
KEPT = (
    "context", "mlpwi", "mlpwi_0", "mlpwi_1", "mlpwo", "query_proj", "key_proj", "value_proj", "qkv_proj", "out_proj",
)  # fmt: skip
"""Tensors of a layer that a policy of one's own may keep, on the chip or on the host."""


def maxtext_cells(read: ReadSettings, cells: Cells) -> Cells:
    """Cells of the runs table set by combinations of MaxText settings."""
    found: Cells = {"framework": "maxtext", "zero_stage": 3}
    _model(read, cells, found)
    for column, part in AXES.items():
        found[column] = _degree(read, part) or None
    policy = str(read.value("remat_policy") or "full")
    kept = [read.value(name) for name in KEPT]
    if policy == "custom":
        # All is computed again but the inputs of layers, unless a tensor is kept.
        policy = "full" if {*kept} <= {None, "remat"} else ""
        found["offload"] = "activations" if read.value("decoder_layer_input") == "offload" else None
        read.doubtful.update(read.settings.keys() & {*KEPT} if not policy else ())
    found["activation_recompute"] = policy or None
    _batch(read, found)
    layers = known_layers(found.get("n_layers"), cells.get("model"))
    if (per_stage := read.number("num_layers_per_pipeline_stage")) and layers:
        found["vpp"] = layers / (found["pp"] or 1.0) / per_stage
    if (passes := read.number("num_pipeline_microbatches")) and passes > 0:
        found["schedule"] = "gpipe"
    for column in ("tp", "pp"):
        found[column] = found[column] or 1.0
    _software(read, found)
    return found


def _model(read: ReadSettings, cells: Cells, found: Cells) -> None:
    """Cells of the model: a name, or the stated shape."""
    name = cells.get("model")
    if name in ("default", None):
        cells.pop("model", None)
    else:
        cells["model"] = known_model(str(name)) or name
    # A named model fixes the shape unless overrides are allowed.
    is_own = name in ("default", None) or bool(read.value("override_model_config"))
    sizes = {column: read.value(key) for column, key in SIZES["maxtext"].items()}
    # Files of 2023 name the heads base_num_heads.
    is_old = sizes["n_heads"] is None
    sizes["n_heads"] = read.value("base_num_heads") if is_old else sizes["n_heads"]
    if not is_own or sizes["d_model"] is None:
        return
    if (read.number("global_parameter_scale") or 1.0) != 1.0:
        # The sizes are multiples of those of the file, by a rule of its own.
        read.doubtful.add(read.last)
        for column in SIZES["maxtext"]:
            cells.pop(column, None)
        return
    found |= {column: value for column, value in sizes.items() if value not in (None, -1)}
    activations = read.value("mlp_activations")
    if isinstance(activations, list | tuple) or not is_old:
        found["gated_mlp"] = len(activations) > 1 if isinstance(activations, list | tuple) else True
    if (plain_number(found.get("n_experts")) or 1.0) > 1.0 and not plain_number(found.get("n_dense_layers")):
        found.pop("n_dense_layers", None)
        step = read.number("interleave_moe_layer_step")
        if step and step > 1:
            # Experts in every step-th layer.
            found["n_dense_layers"] = found["n_layers"] - found["n_layers"] // step
    if read.value("attention_type") == "mla":
        # Defaults of MaxText's latent attention: 64 rotary, 128 plain, latent 512, values 128.
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
    shards, data = (_degree(read, part) for part in ("fsdp", "data"))
    # -1 across slices: as many replicas as slices.
    slices_open = read.number("dcn_data_parallelism") == -1.0 and not read.has("num_slices")
    model_degrees = product_of_degrees(found, "tp", "pp", "cp")
    # A replica's part of the axes within a slice, which is known though the slices are not.
    replicas = max(shards, 1.0) * max(data, 1.0) * (found["ep"] or 1.0) if shards > 0.0 else None
    stated = read.number("num_devices", "num_chips")
    chips = stated or (replicas and replicas * model_degrees)
    passes = read.number("num_pipeline_microbatches") or 1.0
    if per_device and replicas and chips:
        # Sequences of all chips over replicas, divided by the passes of a pipeline.
        found["micro_batch_size"] = per_device * chips / replicas / (passes if passes > 0 else 1.0)
    # A chip with a whole sequence is a replica, however many replicas exist.
    elif per_device and per_device >= 1.0 and product_of_degrees(found, "tp", "cp") == 1.0:
        found["micro_batch_size"] = per_device
    if slices_open and not stated:
        return
    if per_device and chips:
        found |= {"n_gpus": chips, "global_batch_size_seqs": per_device * chips * steps}
    if replicas:
        found["dp"] = replicas
        shard = shards * (found["ep"] or 1.0)
        found["zero_stage"] = 3 if shard * (found["cp"] or 1.0) > 1.0 else 0
        # The state is copied between shard groups.
        if 1.0 < shard < replicas:
            found["shard_group"] = shard
        if read.value("shard_optimizer_over_data"):
            found["zero_stage"] = 1


def _degree(read: ReadSettings, part: str) -> float:
    """Degree of an axis within and over slices; 0 where unstated or -1, which means the remaining devices [1]."""
    inside, across = (read.number(f"{place}_{part}_parallelism") for place in ("ici", "dcn"))
    if inside is not None and inside < 0.0:
        return 0.0
    stated = [degree for degree in (inside, across) if degree and degree > 0.0]
    return math.prod(stated) if stated else 0.0


def _software(read: ReadSettings, found: Cells) -> None:
    """Number formats of stored numbers, kernels, offload, pieces of the loss."""
    if (dtype := read.value("grad_dtype")) is not None:
        found["gradient_bytes"] = 2 if dtype == "bfloat16" else 4
    if read.value("weight_dtype") == "bfloat16":
        # Moments in the type of the weights, no master copy.
        found |= {"weight_bytes": 2, "optimizer_bytes": 4}
    kernel, splash = read.word("attention_kernel", "attention"), read.value("use_tokamax_splash")
    found["attention_kernel"] = "splash" if splash is True else kernel
    if (tiling := read.number("num_vocab_tiling")) is not None:
        found["chunked_loss"] = tiling > 1
    if read.value("optimizer_memory_host_offload"):
        found["offload"] = "optimizer"
    # A ring of experts gathers all tokens on each chip.
    if read.value("use_ring_of_experts"):
        found["moe_dispatcher"] = "allgather"


def levanter_cells(read: ReadSettings, cells: Cells) -> Cells:
    """Cells of the runs table for Levanter, with FSDP over a named axis."""
    found: Cells = {"framework": "levanter", "pp": 1, "zero_stage": 3 if read.has("fsdp_axis") else None}
    found |= {column: read.value(key) for column, key in SIZES["levanter"].items()}
    kind = read.value("model.type")
    if kind == "gpt2":
        found |= {"gated_mlp": False, "tied_embeddings": True, "position_embeddings": found["seq_len"]}
    elif kind in ("llama", "mistral", "qwen", "mixtral"):
        found["gated_mlp"] = True
    elif kind is not None:
        read.doubtful.add("model.type")
    read.understood.update(key for key in read.settings if key.startswith("data."))
    if (read.number("axes.replica") or 1.0) != 1.0:
        read.doubtful.add(read.last)
    mapping = read.value("param_mapping.embed")
    if mapping is not None or read.has("axes.data"):
        found["zero_stage"] = 3
    found["tp"] = read.number("model_axis_size", "axes.model") or 1
    found["global_batch_size_seqs"] = read.number("trainer.train_batch_size")
    each = read.number("per_device_parallelism")
    # Sequences of a device times the devices of a tensor group.
    found["micro_batch_size"] = each * found["tp"] if each and each > 0.0 else None
    # jmp's policy: f32 unless stated.
    policy = str(read.value("trainer.mp") or "f32")
    found["precision"] = "bf16" if "bfloat16" in policy or "bf16" in policy else "fp32" if policy == "f32" else None
    # p= is the type of the parameters.
    found |= {"weight_bytes": 2, "optimizer_bytes": 4} if "p=bf" in policy or policy == "bf16" else {}
    recompute = read.value("gradient_checkpointing")
    found["activation_recompute"] = {True: "full", None: "full", False: "none"}.get(recompute)
    found["attention_kernel"] = read.word("attention_kernel", "attn_backend", own={"nvte": "cudnn"})
    found["optimizer"] = read.word("optimizer", "optimizer.type")
    return found


def torchprime_cells(read: ReadSettings, cells: Cells) -> Cells:
    """Cells of the runs table for torchprime, with meshes within a TPU slice and over slices."""
    found: Cells = {"framework": "torchprime", "pp": 1}
    inside, across = (
        {part: read.number(f"{place}_mesh.{part}") or 1.0 for part in ("data", "fsdp", "tensor", "context", "expert")}
        for place in ("ici", "dcn")
    )
    size = {part: inside[part] * across[part] for part in inside}
    found |= {"tp": size["tensor"], "cp": size["context"], "ep": size["expert"]}
    found["dp"] = size["data"] * size["fsdp"]
    found["shard_group"] = size["fsdp"] if size["data"] > 1.0 else None
    found["zero_stage"] = 3 if size["fsdp"] > 1.0 else 0
    # Devices of the mesh: product of all axes, within slices and across.
    found["n_gpus"] = math.prod(size.values())
    batch = read.number("global_batch_size")
    # No accumulation: a step is a single microbatch per replica.
    found |= {"global_batch_size_seqs": batch, "micro_batch_size": batch / found["dp"] if batch else None}
    found |= {"seq_len": read.number("block_size"), "model": read.value("model")}
    found["optimizer"] = read.word("optimizer", "optimizer.type")
    if str(read.value("torch_dtype") or "") == "bfloat16":
        found |= {"weight_bytes": 2, "gradient_bytes": 2}
    take_model(found)
    return found
