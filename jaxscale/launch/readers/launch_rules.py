"""Settings of a framework as cells of a runs table."""

import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from jaxscale.launch.readers.launch_precision import precision_cell
from jaxscale.models import catalogue_model

Settings = Mapping[str, Any]
Cells = dict[str, Any]

FAMILIES = {
    # Keys that only one family has, by their last part.
    "maxtext": ("ici_fsdp_parallelism", "per_device_batch_size", "remat_policy", "dcn_data_parallelism"),
    "torchtitan": ("data_parallel_shard_degree", "tensor_parallel_degree", "local_batch_size_per_rank", "converters"),
    "nanotron": ("batch_accumulation_per_replica", "tp_linear_async_communication", "recompute_layer"),
    "kempnerforge": ("dp_shard", "ffn_hidden_dim"),
    "automodel": ("local_batch_size", "pp_schedule", "ep_size", "dp_size"),
    "megatron": ("tensor_model_parallel_size", "pipeline_model_parallel_size", "recompute_granularity"),
    "deepspeed": (
        "per_device_train_batch_size", "train_micro_batch_size_per_gpu", "zero_optimization", "fsdp_sharding_strategy",
        "distributed_type", "sequence_len", "gradient_accumulation_steps", "base_model", "stage",
    ),
}  # fmt: skip


@cache
def columns_by_key() -> Mapping[str, Mapping[str, str]]:
    """Columns of the runs table by family and key, from `settings_columns.toml`."""
    return tomllib.loads(files("jaxscale.launch.readers").joinpath("settings_columns.toml").read_text(encoding="utf-8"))


def framework_family(settings: Settings) -> str | None:
    """Family of frameworks whose keys some settings have, None for another."""
    parts = {part for key in settings for part in key.split(".")}
    counts = {family: sum(key in parts for key in keys) for family, keys in FAMILIES.items()}
    best = max(counts, key=lambda family: counts[family])
    return best if counts[best] else None


def value_of(settings: Settings, *names: str) -> Any:
    """Value of the first setting whose last part has one of the names; None where none has."""
    for name in names:
        for key, value in settings.items():
            if (key == name or key.endswith(f".{name}")) and value is not None:
                return value
    return None


def cells_of(settings: Settings, family: str) -> Cells:
    """Cells of the runs table that settings of a family fill."""
    cells: Cells = {}
    for name, column in columns_by_key()[family].items():
        value = value_of(settings, name)
        if column not in cells and value not in (None, "", "auto"):
            cells[column] = _cell(value)
    cells |= {name: value for name, value in _RULES[family](settings, cells).items() if value is not None}
    if precision := precision_cell(settings):
        cells["precision"] = precision
    return {column: value for column, value in cells.items() if value not in (-1, "-1")}


def _cell(value: Any) -> Any:
    """A value as a cell: lists joined by +."""
    return "+".join(map(str, value)) if isinstance(value, list | tuple) else value


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _megatron(settings: Settings, cells: Cells) -> Cells:
    """Megatron-LM, Megatron-Bridge, NeMo and Primus."""
    found: Cells = {"framework": _megatron_framework(settings)}
    per_chunk = _number(value_of(settings, "num_layers_per_virtual_pipeline_stage"))
    layers, pp = _number(cells.get("n_layers")), _number(cells.get("pp")) or 1.0
    if per_chunk and layers:
        found["vpp"] = layers / pp / per_chunk
    if not value_of(settings, "group_query_attention") and value_of(settings, "num_query_groups") in (None, 1):
        cells.pop("n_kv_heads", None)
    if value_of(settings, "use_torch_fsdp2", "use_megatron_fsdp", "use_custom_fsdp", "data_parallel_sharding_strategy"):
        found["zero_stage"] = 3
    elif value_of(settings, "use_distributed_optimizer") or "distributed" in str(
        value_of(settings, "optim.name") or ""
    ):
        found["zero_stage"] = 1
    elif value_of(settings, "use_distributed_optimizer") is False or found["framework"] == "megatron-lm":
        # An option of a command line that is absent is off; a recipe has defaults of its own.
        found["zero_stage"] = 0
    found["activation_recompute"] = _megatron_recompute(settings)
    if value_of(settings, "recompute_modules") and found["activation_recompute"] != "selective":
        cells.pop("recompute_modules", None)
    nodes, devices = (
        _number(value_of(settings, *names)) for names in (("num_nodes", "nnodes"), ("devices", "nproc_per_node"))
    )
    if nodes and devices and "n_gpus" not in cells:
        found["n_gpus"] = nodes * devices
    if value_of(settings, "moe_enable_deepep"):
        found["moe_dispatcher"] = "deepep"
    elif (dispatcher := value_of(settings, "moe_token_dispatcher_type")) in ("alltoall", "allgather"):
        found["moe_dispatcher"] = dispatcher
    if name := value_of(settings, "model"):
        found["model"] = _known_model(str(name).removesuffix(".yaml"))
    return found


def _megatron_framework(settings: Settings) -> str:
    if any(key.startswith(("cfg/", "trainer.")) for key in settings):
        return "nemo"
    if value_of(settings, "deepspeed", "deepspeed_config"):
        return "megatron-deepspeed"
    has_sections = any(key.startswith(("model.", "train.", "ddp.", "dist.")) for key in settings)
    return "megatron-bridge" if has_sections else "megatron-lm"


def _megatron_recompute(settings: Settings) -> str:
    granularity = value_of(settings, "recompute_granularity", "activations_checkpoint_granularity")
    return str(granularity) if granularity in ("full", "selective") else "none"


def _torchtitan(settings: Settings, cells: Cells) -> Cells:
    found: Cells = {"framework": "torchtitan"}
    shard, replicate = (_number(value_of(settings, f"data_parallel_{kind}_degree")) for kind in ("shard", "replicate"))
    if shard and shard > 0:
        found["dp"] = shard * (replicate or 1.0)
        if (replicate or 1.0) > 1.0:
            found["shard_group"] = shard
    never = value_of(settings, "fsdp_reshard_after_forward") == "never"
    found["zero_stage"] = 0 if shard == 1 else 2 if never else 3
    degrees = [found.get("dp"), *(_number(cells.get(name)) or 1.0 for name in ("tp", "pp", "cp"))]
    if degrees[0]:
        found["n_gpus"] = degrees[0] * degrees[1] * degrees[2] * degrees[3]
    local = _number(value_of(settings, "local_batch_size", "batch_size"))
    pp = _number(cells.get("pp")) or 1.0
    if local and "global_batch_size_seqs" not in cells and found.get("dp"):
        found["global_batch_size_seqs"] = local * found["dp"]
    if "micro_batch_size" not in cells and local and pp == 1.0:
        found["micro_batch_size"] = local
    mode = value_of(settings, "activation_checkpoint.mode")
    found["activation_recompute"] = mode if mode in ("none", "selective", "full") else None
    schedule = str(value_of(settings, "pipeline_parallel_schedule") or "").lower()
    if pp > 1.0 and schedule:
        found["schedule"] = {"1f1b": "1f1b", "gpipe": "gpipe", "interleaved1f1b": "interleaved"}.get(schedule)
    name, flavour = value_of(settings, "model.name"), value_of(settings, "model.flavor")
    found["model"] = _known_model(f"{name}-{flavour}") if name and flavour else None
    layers = _number((catalogue_model(str(found["model"] or "")) or {}).get("n_layers"))
    if (per_stage := _number(value_of(settings, "pipeline_parallel_layers_per_stage"))) and layers:
        found["vpp"] = layers / pp / per_stage
    return found


def _maxtext(settings: Settings, cells: Cells) -> Cells:
    found: Cells = {"framework": "maxtext", "zero_stage": 3}
    for column, part in (("tp", "tensor"), ("pp", "pipeline"), ("ep", "expert"), ("cp", "context")):
        degrees = [_number(value_of(settings, f"{place}_{part}_parallelism")) for place in ("ici", "dcn")]
        stated = [degree for degree in degrees if degree and degree > 0]
        found[column] = stated[0] * (stated[1] if len(stated) > 1 else 1.0) if stated else None
    policy = str(value_of(settings, "remat_policy") or "full")
    found["activation_recompute"] = "full" if policy == "custom" else policy
    if name := cells.get("model"):
        cells["model"] = _known_model(str(name)) or name
    per_device = _number(value_of(settings, "per_device_batch_size"))
    steps = _number(value_of(settings, "gradient_accumulation_steps")) or 1.0
    copies = [_number(value_of(settings, f"ici_{part}_parallelism")) or 0.0 for part in ("fsdp", "data")]
    replicas = max(copies[0], 1.0) * max(copies[1], 1.0) * (found["ep"] or 1.0) if copies[0] > 0.0 else None
    if replicas:
        found["dp"] = replicas
        found["zero_stage"] = 3 if copies[0] * (found["ep"] or 1.0) > 1.0 else 0
        if value_of(settings, "shard_optimizer_over_data"):
            found["zero_stage"] = 1
    degrees = [found[name] or 1.0 for name in ("tp", "pp", "cp")]
    product = replicas and replicas * degrees[0] * degrees[1] * degrees[2]
    chips = _number(value_of(settings, "num_devices", "num_chips")) or product
    if per_device and chips:
        found |= {"n_gpus": chips, "global_batch_size_seqs": per_device * chips * steps}
    if per_device and replicas and chips:
        found["micro_batch_size"] = (
            per_device * chips / replicas / (_number(value_of(settings, "num_pipeline_microbatches")) or 1.0)
        )
    elif per_device and per_device >= 1.0 and degrees[0] == degrees[2] == 1.0:
        found["micro_batch_size"] = per_device
    layers = _number((catalogue_model(str(cells.get("model") or "")) or {}).get("n_layers"))
    if (per_stage := _number(value_of(settings, "num_layers_per_pipeline_stage"))) and layers:
        found["vpp"] = layers / degrees[1] / per_stage
    for column in ("tp", "pp"):
        found[column] = found[column] or 1.0
    return found


def _nanotron(settings: Settings, cells: Cells) -> Cells:
    found: Cells = {"framework": "nanotron"}
    recompute = value_of(settings, "recompute_layer")
    found["activation_recompute"] = None if recompute is None else ("full" if recompute else "none")
    degrees = [_number(cells.get(name)) or 1.0 for name in ("dp", "tp", "pp", "cp")]
    found["n_gpus"] = degrees[0] * degrees[1] * degrees[2] * degrees[3] if "dp" in cells else None
    found["global_batch_size_seqs"] = _product(cells, "micro_batch_size", "n_microbatches", "dp")
    return found


def _deepspeed(settings: Settings, cells: Cells) -> Cells:
    """DeepSpeed, transformers, accelerate and axolotl."""
    found: Cells = {"framework": "deepspeed" if "zero_stage" in cells else "pytorch-fsdp"}
    strategy = value_of(settings, "fsdp_sharding_strategy", "sharding_strategy")
    names = {1: "FULL_SHARD", 2: "SHARD_GRAD_OP", 3: "NO_SHARD", 4: "HYBRID_SHARD"}
    strategy = str(names.get(strategy, strategy)).upper() if strategy is not None else ""
    found["zero_stage"] = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "HYBRID_SHARD": 3}.get(strategy)
    if str(value_of(settings, "fsdp_version")) == "2" or value_of(settings, "fsdp_reshard_after_forward") is not None:
        found["zero_stage"] = 3 if value_of(settings, "fsdp_reshard_after_forward") is not False else 2
    recompute = value_of(
        settings, "gradient_checkpointing", "fsdp_activation_checkpointing", "activation_checkpointing"
    )
    found["activation_recompute"] = None if recompute is None else ("full" if recompute else "none")
    cells["tp"], cells["pp"] = cells.get("tp", 1), cells.get("pp", 1)
    if name := cells.get("model"):
        cells["model"] = _known_model(str(name)) or name
    adapter = value_of(settings, "adapter", "finetuning_type")
    if adapter in ("lora", "qlora"):
        found["trainable_share"] = 0
    places = [value_of(settings, f"offload_{what}.device") for what in ("optimizer", "param")]
    if places[0] == "cpu" or value_of(settings, "fsdp_offload_params"):
        found["offload"] = "optimizer"
    batch, micro, steps = (
        _number(cells.get(name)) for name in ("global_batch_size_seqs", "micro_batch_size", "n_microbatches")
    )
    if batch and micro and steps and "dp" not in cells:
        found["dp"] = batch / micro / steps
    if "global_batch_size_seqs" not in cells and (chips := _number(cells.get("n_gpus"))):
        replicas = chips / (_number(cells["tp"]) or 1.0) / (_number(cells.get("cp")) or 1.0)
        found["global_batch_size_seqs"] = _product(
            {**cells, "dp": replicas}, "micro_batch_size", "n_microbatches", "dp"
        )
    return found


def _automodel(settings: Settings, cells: Cells) -> Cells:
    found: Cells = {"framework": "nemo-automodel"}
    recompute = value_of(settings, "activation_checkpointing")
    found["activation_recompute"] = None if recompute is None else ("full" if recompute else "none")
    reshard = value_of(settings, "reshard_after_forward")
    found["zero_stage"] = None if reshard is None else (3 if reshard else 2)
    if (pp := _number(cells.get("pp")) or 1.0) > 1.0 and (micro := value_of(settings, "pp_microbatch_size")):
        cells["micro_batch_size"] = micro
        found["schedule"] = (
            "interleaved" if "interleaved" in str(value_of(settings, "pp_schedule")) and pp > 1 else None
        )
    if name := cells.get("model"):
        cells["model"] = _known_model(str(name)) or name
    return found


def _kempnerforge(settings: Settings, cells: Cells) -> Cells:
    found: Cells = {"framework": "kempnerforge", "gated_mlp": True}
    shard, copies = (_number(value_of(settings, name)) for name in ("dp_shard", "dp_replicate"))
    if shard and shard > 0:
        cells["dp"] = shard * (copies or 1.0)
        found["zero_stage"] = 3 if shard > 1 else 0
        degrees = [_number(cells.get(name)) or 1.0 for name in ("dp", "tp", "pp", "cp")]
        found["n_gpus"] = degrees[0] * degrees[1] * degrees[2] * degrees[3]
    mode = value_of(settings, "activation_checkpointing")
    found["activation_recompute"] = mode if mode in ("none", "selective", "full") else None
    found["global_batch_size_seqs"] = _product(cells, "micro_batch_size", "n_microbatches", "dp")
    return found


def _product(cells: Cells, *names: str) -> float | None:
    """Product of several cells, None where one is empty."""
    product = 1.0
    for name in names:
        value = _number(cells.get(name))
        if value is None:
            return None
        product *= value
    return product


def _known_model(name: str) -> str | None:
    """A name that the catalogue knows, as it was given; None for another."""
    for spelling in (name, name.replace("_", "-"), name.lower().removesuffix("-pretrain")):
        if catalogue_model(spelling) is not None:
            return spelling
    return None


_RULES: Mapping[str, Callable[[Settings, Cells], Cells]] = {
    "megatron": _megatron,
    "torchtitan": _torchtitan,
    "maxtext": _maxtext,
    "nanotron": _nanotron,
    "deepspeed": _deepspeed,
    "automodel": _automodel,
    "kempnerforge": _kempnerforge,
}
