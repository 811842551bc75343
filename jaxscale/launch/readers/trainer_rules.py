"""Rules from settings of nanotron, DeepSpeed and trainers on PyTorch to cells of a runs table."""

import math
import re
from collections.abc import Mapping
from typing import Any

from jaxscale.launch.options import option_table, programs
from jaxscale.launch.readers.adapter_rules import adapter_cells
from jaxscale.launch.readers.settings_text import (
    Cells,
    ReadSettings,
    known_model,
    plain_number,
    product_of_degrees,
    take_model,
)

STRATEGIES = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "HYBRID_SHARD": 3}
PLACES = {1: "FULL_SHARD", 2: "SHARD_GRAD_OP", 3: "NO_SHARD", 4: "HYBRID_SHARD"}
OPTIMIZERS = (
    (re.compile(r"(paged_?)?adamw?_?(bnb_)?8bit|adamw_torch_8bit"), "adamw-8bit"),
    (re.compile(r"(paged_)?(fused)?adamw?(_.*)?|adam"), "adamw"),
    (re.compile(r"(paged_)?lion.*"), "lion"),
    (re.compile(r"adafactor"), "adafactor"),
    (re.compile(r"muon.*"), "muon"),
    (re.compile(r"sgd"), "sgd"),
)


HUB_KERNELS = ("attn_implementation", "attn_impl")
KERNEL_SWITCHES = {
    "flash_attention": "flash2", "flash_attn": "flash2", "use_flash_attention_2": "flash2", "sdp_attention": "sdpa",
    "xformers_attention": "xformers", "flex_attention": "flex", "eager_attention": "eager",
}  # fmt: skip
"""Switches of kernels of attention in trainers, the kernel of each."""


def optimizer_word(name: str) -> str | None:
    """Optimizer of the runs table from a name in a trainer's settings or a class name; None for an unknown name."""
    # Class paths, as torch.optim.AdamW.
    word = name.rsplit(".", 1)[-1].lower()
    return next((meant for pattern, meant in OPTIMIZERS if pattern.fullmatch(word)), None)


def nanotron_cells(read: ReadSettings, cells: Cells) -> Cells:
    """Cells of the runs table from nanotron settings; all model classes except Starcoder2 have gated MLPs."""
    found: Cells = {"framework": "nanotron"}
    if read.value("is_starcoder2_config"):
        found["gated_mlp"] = False
    elif read.value("is_llama_config", "is_qwen2_config") or "d_ff" in cells:
        found["gated_mlp"] = True
    recompute = read.value("recompute_layer")
    found["activation_recompute"] = None if recompute is None else ("full" if recompute else "none")
    found["n_gpus"] = product_of_degrees(cells, "dp", "tp", "pp", "cp") if "dp" in cells else None
    mode, overlap = read.value("tp_mode"), read.value("tp_linear_async_communication")
    schedule = read.word("schedule", "pp_engine")
    if (plain_number(cells.get("tp")) or 1.0) > 1.0:
        found["sequence_parallel"] = None if mode is None else mode == "REDUCE_SCATTER"
        found["tp_overlap"] = None if overlap is None else "full" if overlap else "none"
    if (plain_number(cells.get("pp")) or 1.0) > 1.0:
        found["schedule"] = schedule
    if (tied := read.value("tie_word_embeddings")) is not None:
        found["tied_embeddings"] = tied
    if window := read.number("sliding_window_size"):
        found |= {"window": window, "window_share": 1.0}
    if (in_32 := read.value("accumulate_grad_in_fp32")) is not None:
        found["gradient_bytes"] = 4 if in_32 else 2
    ring = {"llama3_ring_attention": "flash2"}
    found["attention_kernel"] = read.word("attention_kernel", "_attn_implementation", own=ring)
    _nanotron_experts(read, cells, found)
    # nanotron pads the vocabulary to a multiple of the divisor times tp.
    divisor, vocabulary = read.number("make_vocab_size_divisible_by") or 1.0, plain_number(cells.get("vocab_size"))
    step = divisor * (plain_number(cells.get("tp")) or 1.0)
    if vocabulary:
        found["vocab_size"] = math.ceil(vocabulary / step) * step
    return found


def _nanotron_experts(read: ReadSettings, cells: Cells, found: Cells) -> None:
    """Experts of its class qwen2."""
    if not read.has("moe_config.num_experts"):
        return
    # Defaults of nanotron's MoE configuration: 1408, and 5632 of the shared expert.
    width = read.number("moe_intermediate_size") or 1408.0
    found |= {"n_experts": read.value("moe_config.num_experts"), "moe_top_k": read.value("moe_config.top_k") or 2}
    found["d_ff_expert"] = width
    if read.value("enable_shared_expert"):
        found["n_shared_experts"] = (read.number("shared_expert_intermediate_size") or 5632.0) / width
    mixtures, layers = read.value("moe_config.layers"), plain_number(cells.get("n_layers"))
    # [-1] means experts in all layers.
    if isinstance(mixtures, list) and mixtures != [-1] and layers:
        found["n_dense_layers"] = layers - len(mixtures)
    word = read.value("token_dispatcher_type")
    found["moe_dispatcher"] = word if word in ("alltoall", "allgather") else None


def trainer_cells(read: ReadSettings, cells: Cells) -> Cells:
    """Cells for DeepSpeed, transformers, accelerate, axolotl, LLaMA-Factory, ms-swift, OpenRLHF and litgpt."""
    kind = trainer_of(read)
    found: Cells = {"framework": kind}
    for key, column in option_table(kind).columns().items() if kind in programs() else ():
        value = read.value(key)
        if column not in cells and value not in (None, "", "auto"):
            cells[column] = value
    # Trainers replicate models unless a degree is stated.
    cells["tp"], cells["pp"] = cells.get("tp", 1), cells.get("pp", 1)
    name = read.value("model", "checkpoint_dir")
    if isinstance(name, str) and not cells.get("model"):
        cells["model"] = name.removeprefix("checkpoints/")
    take_model(cells)
    _sharding(read, cells, found, kind)
    _recomputation(read, found, kind)
    found |= adapter_cells(read, kind)
    _precision(read, found, kind)
    _optimizer(read, found)
    _kernels(read, found, kind)
    _batch(read, cells, found, kind)
    return found


DEEPSPEED = (
    "zero_optimization.stage",
    "zero_optimization_stage",
    "zero_stage",
    "deepspeed",
    "train_micro_batch_size_per_gpu",
)
FSDP = ("fsdp", "fsdp_sharding_strategy", "fsdp_version", "fsdp_reshard_after_forward")


def trainer_of(read: ReadSettings) -> str:
    """Name of the trainer of a set of settings, identified by keys unique to a trainer."""
    if program := str(read.value("program") or "").split():
        return program[0]
    if read.has("finetuning_type", "dataset_dir") and read.has("template", "stage", "cutoff_len"):
        return "llama-factory"
    if read.has("base_model"):
        return "axolotl"
    if read.has("use_gradient_checkpointing") or str(read.value("model_name")).startswith("unsloth/"):
        return "unsloth"
    if read.value("use_peft") is not None:
        return "trl"
    if read.has("actor_num_nodes", "actor_num_gpus_per_node") or read.value("ds.zero_stage") is not None:
        return "openrlhf"
    if read.has("shard_mode", "distributed_mode") or "initial_checkpoint_dir" in read.settings:
        return "litgpt"
    if read.has("pjrt_device", "xla_use_spmd"):
        return "torch-xla"
    if any(read.value(name) is not None for name in DEEPSPEED):
        return "deepspeed"
    is_trainer = read.value("per_device_train_batch_size") is not None and not read.has(*FSDP)
    return "transformers" if is_trainer else "pytorch-fsdp"


def _sharding(read: ReadSettings, cells: Cells, found: Cells, kind: str) -> None:
    """ZeRO stage by FSDP's words, DeepSpeed's stage, or the name of its file; plain replicas where neither is."""
    strategy = read.value("fsdp_sharding_strategy", "sharding_strategy")
    # accelerate also numbers the strategies.
    word = str(PLACES.get(strategy, strategy)).upper() if strategy is not None else ""
    found["zero_stage"] = STRATEGIES.get(word)
    version, reshard = read.value("fsdp_version"), read.value("fsdp_reshard_after_forward", "reshard_after_forward")
    if str(version) == "2" or reshard is not None:
        # FSDP 2 has a switch instead: gathered weights are freed (3) or kept (2).
        found["zero_stage"] = 3 if reshard is not False else 2
    stage = read.value("zero_optimization.stage", "zero_optimization_stage", "zero_stage", "ds.zero_stage")
    if plain_number(stage) is not None:
        found["zero_stage"] = stage
    if kind in ("deepspeed", "pytorch-fsdp") and stage is None:
        stage = read.value("deepspeed_config.zero_stage")
        found["zero_stage"] = found["zero_stage"] if plain_number(stage) is None else stage
    cells.pop("zero_stage", None) if plain_number(cells.get("zero_stage")) is None else None
    file = read.value("deepspeed", "deepspeed_config")
    if isinstance(file, str) and found["zero_stage"] is None:
        _of_file_name(file, found)
    words = read.value("fsdp")
    for word in re.split(r"[\s,+]+", " ".join(words) if isinstance(words, list) else str(words or "")):
        found["zero_stage"] = STRATEGIES.get(word.upper(), found["zero_stage"])
    if kind == "litgpt":
        _litgpt_sharding(read, found)
    has_none = not read.has("fsdp", "fsdp_config", "deepspeed", "deepspeed_config") and strategy is None
    is_plain = kind in REPLICATES or kind == "transformers" and read.is_complete
    if found["zero_stage"] is None and has_none and is_plain:
        found["zero_stage"] = 0
    if kind == "openrlhf" and found["zero_stage"] is None:
        # Default of OpenRLHF.
        found["zero_stage"] = 2
    places = [read.value(f"offload_{what}.device") for what in ("param", "optimizer")]
    if places[1] in ("cpu", "nvme") or read.value("fsdp_offload_params") or read.value("adam_offload"):
        found["offload"] = "optimizer"
    if places[0] in ("cpu", "nvme"):
        # Weights on the host are no choice of a plan.
        read.doubtful.update(key for key in read.settings if key.endswith("offload_param.device"))
    if (overlap := read.value("zero_optimization.overlap_comm")) is not None:
        found["overlap_gradients"] = overlap
    if (group := read.number("mics_shard_size")) and group > 0:
        found["shard_group"] = group
    if (dtype := read.value("communication_data_type", "grad_accum_dtype")) is not None:
        found["gradient_bytes"] = 4 if "32" in str(dtype) else 2


def _litgpt_sharding(read: ReadSettings, found: Cells) -> None:
    """FSDP, over the chips of a node where it pretrains on several."""
    mode = read.value("distributed_mode")
    devices, nodes = read.number("devices"), read.number("num_nodes") or 1.0
    # litgpt picks FSDP where a run has several devices.
    found["zero_stage"] = 0 if mode in ("ddp", "none") or devices == nodes == 1.0 else 3
    if mode == "fsdp" and read.value("shard_mode") == "zero2":
        found["zero_stage"] = 2
    if mode is None and devices and nodes > 1.0 and not read.has("lora_r"):
        found["shard_group"] = devices


def _of_file_name(file: str, found: Cells) -> None:
    """ZeRO stage and offload by the name of an absent DeepSpeed file, such as `ds_z3_offload_config.json`."""
    name = file.rsplit("/", 1)[-1].lower()
    if match := re.search(r"(?:^|_)(?:ds_)?z(?:ero)?_?(?:stage)?_?([0-3])(?:\D|$)", name):
        found["zero_stage"] = int(match[1])
        if "offload" in name:
            found["offload"] = "optimizer"


REPLICATES = ("axolotl", "llama-factory", "ms-swift", "trl", "unsloth")
"""Trainers that hold whole replicas unless FSDP or DeepSpeed is named."""

RECOMPUTES: Mapping[str, Any] = {
    "llama-factory": True, "ms-swift": True, "trl": True, "axolotl": False, "openrlhf": False, "unsloth": "unsloth",
}  # fmt: skip
"""What trainers compute again unless told otherwise."""


def _recomputation(read: ReadSettings, found: Cells, kind: str) -> None:
    """Word of recomputation, and whether saved activations are offloaded to the host."""
    recompute = read.value(
        "gradient_checkpointing", "fsdp_activation_checkpointing", "activation_checkpointing", "gradient_checkpoint",
        "enable_activation_checkpointing", "gradient_checkpointing_enable", "use_gradient_checkpointing",
    )  # fmt: skip
    if recompute is None and read.value("disable_gradient_checkpointing") is not None:
        recompute = not read.value("disable_gradient_checkpointing")
    if recompute is None:
        # litgpt's FSDP fine-tuning recomputes blocks without an option.
        is_litgpt_tuning = read.value("program") == "litgpt finetune" and found.get("zero_stage") == 3
        recompute = True if is_litgpt_tuning else RECOMPUTES.get(kind, False if read.is_complete else None)
    found["activation_recompute"] = None if recompute is None else ("full" if recompute else "none")
    if recompute in ("unsloth", "offload", "offload_disk") or read.value("activation_offloading", "use_unsloth_gc"):
        found["offload"] = "activations"


LOADED = ("ms-swift", "trl", "transformers", "torch-xla")
"""Trainers that train weights as they are loaded."""


def _precision(read: ReadSettings, found: Cells, kind: str) -> None:
    """Pure 16 bits, where weights have no copy in 32."""
    word = str(read.value("precision") or "")
    # Lightning's words: bf16-true stores weights in 16 bits, bf16-mixed in 32.
    is_pure = word.endswith("-true") and "16" in word or read.value("pure_bf16") or read.value("bfloat16") is True
    # axolotl loads weights in 16 bits and trains them as they are; so does a trainer on a model loaded in bf16.
    is_pure = is_pure or kind == "axolotl" and read.value("bf16") in (True, "auto")
    loads = str(read.value("torch_dtype", "dtype") or "")
    is_pure = is_pure or kind in LOADED and loads in ("bfloat16", "float16", "bf16")
    if is_pure and "weight_bytes" not in found and "adapter" not in found:
        found |= {"weight_bytes": 2, "gradient_bytes": 2}
        # Two moments, of 1 or 2 byte each.
        found["optimizer_bytes"] = 2 if "8bit" in str(read.value("optimizer", "optim") or "") else 4
    if read.value("bf16") == "auto":
        found["precision"] = "bf16"


def _optimizer(read: ReadSettings, found: Cells) -> None:
    word = str(read.value("optimizer.type", "optimizer.class_path", "optimizer", "optim") or "")
    found["optimizer"] = optimizer_word(word)
    if word and found["optimizer"] is None:
        read.doubtful.add(read.last)
    # The bytes above count Adam's two moments.
    if found.get("optimizer_bytes") and found["optimizer"] not in (None, "adamw", "adamw-8bit"):
        found.pop("optimizer_bytes")


def _kernels(read: ReadSettings, found: Cells, kind: str) -> None:
    """Kernel of attention, fused kernels, compilation."""
    own = {"disabled": "eager", "vllm-flash-attn3": "flash3"}
    words = [read.word("attention_kernel", *names, own=own) for names in (HUB_KERNELS, ("flash_attn",))]
    switches = (name for name in KERNEL_SWITCHES if read.value(name) is True)
    found["attention_kernel"] = words[0] or words[1] or KERNEL_SWITCHES.get(next(switches, ""))
    if read.value("use_liger_kernel", "enable_liger_kernel", "liger_kernel"):
        found |= {"fused_norm": True, "fused_glu": True, "chunked_loss": True}
    pretrains = "initial_checkpoint_dir" in read.settings or read.value("program") == "litgpt"
    compiles = read.value("torch_compile", "compile")
    compiles = True if compiles is None and kind == "litgpt" and pretrains else compiles
    if compiles is not None:
        found["execution"] = "eager" if compiles in (False, "eager", "none") else "compiled"


def _batch(read: ReadSettings, cells: Cells, found: Cells, kind: str) -> None:
    """Chips, replicas, and global batches that the settings state directly."""
    if kind in ("ms-swift", "axolotl"):
        # Older names of a split of the sequence.
        found["cp"] = read.number("sequence_parallel_size", "context_parallel_size", "sequence_parallel_degree")
    nodes = ("nnodes", "num_nodes", "actor_num_nodes", "actor.num_nodes")
    each = ("nproc_per_node", "num_gpus", "devices", "actor_num_gpus_per_node", "actor.num_gpus_per_node")
    chips = read.chips(each, nodes)
    if kind == "litgpt" and not chips and not read.has("num_nodes"):
        # litgpt runs on a single node unless told otherwise.
        chips = read.number("devices")
    if "n_gpus" not in cells:
        found["n_gpus"] = chips
    if kind == "torch-xla":
        # One program sees all chips as a single device, whose batch is that of the step.
        found["global_batch_size_seqs"] = cells.pop("micro_batch_size", None)
    if kind == "openrlhf":
        _reinforcement(read, cells, found)
    batch, micro, steps = (
        plain_number(cells.get(name)) for name in ("global_batch_size_seqs", "micro_batch_size", "n_microbatches")
    )
    if batch and micro and steps and "dp" not in cells:
        # dp = B / (b * m)
        found["dp"] = batch / micro / steps


def _reinforcement(read: ReadSettings, cells: Cells, found: Cells) -> None:
    """Cells of the training part of OpenRLHF, whose sequences are prompt and answer."""
    lengths = [read.number(name) for name in ("prompt_max_len", "generate_max_len")]
    if all(lengths):
        # A sequence is prompt and answer.
        found["seq_len"] = sum(length or 0.0 for length in lengths)
    if samples := read.number("n_samples_per_prompt"):
        batch = plain_number(cells.get("global_batch_size_seqs"))
        # A prompt has several sampled answers, each a sequence.
        found["global_batch_size_seqs"] = batch * samples if batch else None
    if name := read.value("pretrain", "actor.model_name_or_path"):
        found["model"] = known_model(str(name)) or name


def verl_cells(read: ReadSettings, cells: Cells) -> Cells:
    """Cells of the runs table for the training part of verl: back end, degrees, sequences of prompt and answer."""
    actor = "actor_rollout_ref.actor."
    is_megatron = any(f"{actor}megatron." in key for key in read.settings) or read.value("strategy") == "megatron"
    # Keys of rollout, critic and reference end in equal words: only the actor's count.
    cells.clear()
    found: Cells = {"framework": "verl-megatron" if is_megatron else "verl"}
    name = read.value("actor_rollout_ref.model.path")
    found["model"] = (known_model(str(name)) or name) if name else None
    lengths = [read.number(f"data.max_{part}_length") for part in ("prompt", "response")]
    found["seq_len"] = sum(length or 0.0 for length in lengths) if all(lengths) else None
    per_node, nodes = read.number("trainer.n_gpus_per_node"), read.number("trainer.nnodes")
    found["n_gpus"] = per_node * nodes if per_node and nodes else None
    samples = read.number("actor_rollout_ref.rollout.n") or 1.0
    batch = read.number(f"{actor}ppo_mini_batch_size")
    found["global_batch_size_seqs"] = batch * samples if batch else None
    found["micro_batch_size"] = read.number(f"{actor}ppo_micro_batch_size_per_gpu")
    recompute = read.value("actor_rollout_ref.model.enable_gradient_checkpointing")
    if is_megatron:
        for column, part in (("tp", "tensor"), ("pp", "pipeline"), ("ep", "expert")):
            found[column] = read.number(f"{actor}megatron.{part}_model_parallel_size") or 1.0
        found["cp"] = read.number(f"{actor}megatron.context_parallel_size")
        # verl's Megatron back end shards the optimizer unless told otherwise.
        found["zero_stage"] = 0 if read.value(f"{actor}megatron.use_distributed_optimizer") is False else 1
        granularity = read.value("override_transformer_config.recompute_granularity")
        found["activation_recompute"] = granularity
    else:
        # FSDP back end: full shards; Ulysses splits sequences.
        found |= {"tp": 1, "pp": 1, "zero_stage": 3, "cp": read.number(f"{actor}ulysses_sequence_parallel_size")}
        if read.value(f"{actor}fsdp_config.reshard_after_forward") is False:
            found["zero_stage"] = 2
        group = read.number(f"{actor}fsdp_config.fsdp_size")
        found["shard_group"] = group if group and group > 0 else None
        found["activation_recompute"] = "none" if recompute is False else "full"
    if any(read.value(f"{actor}{part}.optimizer_offload") for part in ("fsdp_config", "megatron")):
        found["offload"] = "optimizer"
    # Weights on the host are no choice of a plan.
    read.doubtful.update(key for key, value in read.settings.items() if key.endswith("param_offload") and value)
    read.value("rollout.tensor_model_parallel_size", "rollout.name", "actor.strategy", "data.train_batch_size")
    return found


BUILDER = re.compile(r"(?:(?P<adapter>q?lora)_)?(?P<name>\w+?)(_base|_instruct)?$")
"""Name of a function of torchtune that builds a model."""

RECIPE = re.compile(r"(?P<family>\w+)/(?P<size>[^_/.]+)_(?P<tuning>full|lora|qlora|dora|qdora)")
"""Name of a recipe of torchtune, as `llama3_1/70B_qlora_single_device`."""


def _torchtune_builder(read: ReadSettings) -> str:
    """Function by which torchtune builds a model, such as `qlora_llama3_1_70b`, from its path or the recipe's name."""
    if path := read.value("model._component_"):
        return str(path).rsplit(".", 1)[-1]
    if recipe := RECIPE.match(str(read.value("model_name") or "")):
        adapter = "" if recipe["tuning"] == "full" else recipe["tuning"].replace("dora", "lora") + "_"
        return f"{adapter}{recipe['family']}_{recipe['size']}".lower()
    return ""


def torchtune_cells(read: ReadSettings, cells: Cells) -> Cells:
    """Cells of the runs table for torchtune, with FSDP 2 and weights of the stated type without master copy."""
    builder = BUILDER.fullmatch(_torchtune_builder(read))
    # Of a recipe that a command names, what the command does not override is not known.
    is_whole = read.value("model._component_") is not None
    is_alone = "single_device" in str(read.value("model_name"))
    # llama3_1_8b -> llama3.1-8b
    name = re.sub(r"(?<=[a-z]\d)_(?=\d_)", ".", builder["name"] if builder else "").replace("_", "-")
    found: Cells = {"framework": "torchtune", "pp": 1, "model": known_model(name)}
    found |= {"tp": read.number("tensor_parallel_dim") or 1, "cp": read.number("context_parallel_dim")}
    found |= {
        "micro_batch_size": read.number("batch_size"),
        "n_microbatches": read.number("gradient_accumulation_steps"),
    }
    found["seq_len"] = read.number("tokenizer.max_seq_len")
    found["n_gpus"] = 1 if is_alone else read.chips(("nproc_per_node",), ("nnodes",))
    # FSDP 2 on several chips; a recipe for a single device holds plain weights.
    found["zero_stage"] = 0 if is_alone else 2 if read.value("fsdp_reshard_after_forward") is False else 3
    shard, copies = (read.number(f"data_parallel_{kind}_dim") for kind in ("shard", "replicate"))
    if shard and shard > 0:
        found |= {"dp": shard * (copies or 1.0), "shard_group": shard}
    for column, key, words in (
        ("activation_recompute", "enable_activation_checkpointing", ("none", "full")),
        ("execution", "compile", ("eager", "compiled")),
    ):
        value = read.value(key)
        found[column] = words[bool(value)] if is_whole or value is not None else None
    found["offload"] = "optimizer" if read.value("fsdp_cpu_offload") else None
    found["offload"] = "activations" if read.value("enable_activation_offloading") else found["offload"]
    loss = read.value("loss._component_", "loss")
    found["chunked_loss"] = bool(re.search("Chunked|LinearCross", str(loss))) if is_whole or loss else None
    found["optimizer"] = optimizer_word(str(read.value("optimizer._component_", "optimizer")))
    if "bf16" in str(read.value("dtype")):
        found |= {"weight_bytes": 2, "gradient_bytes": 2}
        # Two moments in the type of the weights.
        found["optimizer_bytes"] = 4 if found["optimizer"] == "adamw" else None
    return found | adapter_cells(read, "torchtune", builder["adapter"] if builder else None)


def automodel_cells(read: ReadSettings, cells: Cells) -> Cells:
    """Cells of the runs table for NeMo AutoModel."""
    found: Cells = {"framework": "nemo-automodel", **adapter_cells(read, "nemo-automodel")}
    recompute = read.value("activation_checkpointing")
    found["activation_recompute"] = None if recompute is None else ("full" if recompute else "none")
    reshard = read.value("reshard_after_forward")
    found["zero_stage"] = None if reshard is None else (3 if reshard else 2)
    micro, schedule = read.value("pp_microbatch_size"), read.word("schedule", "pp_schedule")
    if (plain_number(cells.get("pp")) or 1.0) > 1.0 and micro:
        cells["micro_batch_size"] = micro
        found["schedule"] = schedule
    found["attention_kernel"] = read.word("attention_kernel", "backend.attn", "attn_implementation")
    found["optimizer"] = optimizer_word(str(read.value("optimizer._target_")))
    found["fused_norm"] = {"te": True}.get(str(read.value("backend.rms_norm")))
    read.value("backend.linear")
    take_model(cells)
    return found


def kempnerforge_cells(read: ReadSettings, cells: Cells) -> Cells:
    """Cells of the runs table for KempnerForge."""
    found: Cells = {"framework": "kempnerforge", "gated_mlp": True}
    shard, copies = (read.number(name) for name in ("dp_shard", "dp_replicate"))
    if shard and shard > 0:
        cells["dp"] = shard * (copies or 1.0)
        found["zero_stage"] = 3 if shard > 1 else 0
        found["n_gpus"] = product_of_degrees(cells, "dp", "tp", "pp", "cp")
    compiles, schedule = read.value("compile_model"), read.word("schedule", "pp_schedule")
    found["execution"] = None if compiles is None else "compiled" if compiles else "eager"
    found["schedule"] = schedule if (read.number("pp") or 1.0) > 1.0 else None
    mode = read.value("activation_checkpointing")
    found["activation_recompute"] = mode if mode in ("none", "selective", "full") else None
    return found
