"""Settings of nanotron, DeepSpeed and the trainers on PyTorch as cells of a runs table."""

import math
import re

from jaxscale.launch.readers.setting_values import (
    Cells,
    ReadSettings,
    known_model,
    plain_number,
    product,
    product_of_degrees,
    take_model,
)

STRATEGIES = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "HYBRID_SHARD": 3}
PLACES = {1: "FULL_SHARD", 2: "SHARD_GRAD_OP", 3: "NO_SHARD", 4: "HYBRID_SHARD"}
OPTIMIZERS = (
    (re.compile(r"(paged_)?adamw?_(bnb_)?8bit|adamw_torch_8bit"), "adamw-8bit"),
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


def nanotron_cells(read: ReadSettings, cells: Cells) -> Cells:
    """nanotron: all its classes but one have gated MLPs."""
    found: Cells = {"framework": "nanotron"}
    if read.value("is_starcoder2_config"):
        found["gated_mlp"] = False
    elif read.value("is_llama_config", "is_qwen2_config") or "d_ff" in cells:
        found["gated_mlp"] = True
    recompute = read.value("recompute_layer")
    found["activation_recompute"] = None if recompute is None else ("full" if recompute else "none")
    found["n_gpus"] = product_of_degrees(cells, "dp", "tp", "pp", "cp") if "dp" in cells else None
    found["global_batch_size_seqs"] = product(cells, "micro_batch_size", "n_microbatches", "dp")
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
    divisor, vocabulary = read.number("make_vocab_size_divisible_by") or 1.0, plain_number(cells.get("vocab_size"))
    step = divisor * (plain_number(cells.get("tp")) or 1.0)
    if vocabulary:
        found["vocab_size"] = math.ceil(vocabulary / step) * step
    return found


def _nanotron_experts(read: ReadSettings, cells: Cells, found: Cells) -> None:
    """Experts of its class qwen2."""
    if not read.has("moe_config.num_experts"):
        return
    width = read.number("moe_intermediate_size") or 1408.0
    found |= {"n_experts": read.value("moe_config.num_experts"), "moe_top_k": read.value("moe_config.top_k") or 2}
    found["d_ff_expert"] = width
    if read.value("enable_shared_expert"):
        found["n_shared_experts"] = (read.number("shared_expert_intermediate_size") or 5632.0) / width
    mixtures, layers = read.value("moe_config.layers"), plain_number(cells.get("n_layers"))
    if isinstance(mixtures, list) and mixtures != [-1] and layers:
        found["n_dense_layers"] = layers - len(mixtures)
    word = read.value("token_dispatcher_type")
    found["moe_dispatcher"] = word if word in ("alltoall", "allgather") else None


def trainer_cells(read: ReadSettings, cells: Cells) -> Cells:
    """DeepSpeed, transformers, accelerate, axolotl, LLaMA-Factory, ms-swift, OpenRLHF, litgpt."""
    kind = trainer_of(read)
    found: Cells = {"framework": kind}
    cells["tp"], cells["pp"] = cells.get("tp", 1), cells.get("pp", 1)
    name = read.value("model")
    if isinstance(name, str) and not cells.get("model"):
        cells["model"] = name
    take_model(cells)
    _sharding(read, cells, found, kind)
    _recomputation(read, found, kind)
    _adapters(read, found)
    _precision(read, found, kind)
    _optimizer(read, found)
    _kernels(read, found)
    _batch(read, cells, found, kind)
    return found


def trainer_of(read: ReadSettings) -> str:
    """Which program has the settings, by keys that it alone has."""
    program = str(read.value("program") or "")
    if program.startswith(("ms-swift", "openrlhf", "litgpt")):
        return program.split()[0]
    if read.has("finetuning_type", "dataset_dir") and read.has("template", "stage", "cutoff_len"):
        return "llama-factory"
    if read.has("base_model"):
        return "axolotl"
    if read.has("actor_num_nodes", "actor_num_gpus_per_node") or read.value("ds.zero_stage") is not None:
        return "openrlhf"
    if read.has("shard_mode", "distributed_mode"):
        return "litgpt"
    names = (
        "zero_optimization.stage",
        "zero_optimization_stage",
        "zero_stage",
        "deepspeed",
        "train_micro_batch_size_per_gpu",
    )
    is_deepspeed = any(read.value(name) is not None for name in names)
    return "deepspeed" if is_deepspeed else "pytorch-fsdp"


def _sharding(read: ReadSettings, cells: Cells, found: Cells, kind: str) -> None:
    """ZeRO stage by FSDP's words, DeepSpeed's stage, or the name of its file; plain replicas where neither is."""
    strategy = read.value("fsdp_sharding_strategy", "sharding_strategy")
    word = str(PLACES.get(strategy, strategy)).upper() if strategy is not None else ""
    found["zero_stage"] = STRATEGIES.get(word)
    version, reshard = read.value("fsdp_version"), read.value("fsdp_reshard_after_forward", "reshard_after_forward")
    if str(version) == "2" or reshard is not None:
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
    shard_mode = str(read.value("shard_mode") or "")
    if read.value("distributed_mode") == "fsdp":
        found["zero_stage"] = 2 if shard_mode == "zero2" else 3
    elif read.value("distributed_mode") in ("ddp", "none"):
        found["zero_stage"] = 0
    has_none = not read.has("fsdp", "fsdp_config", "deepspeed", "deepspeed_config") and strategy is None
    if found["zero_stage"] is None and has_none and kind in ("axolotl", "llama-factory", "ms-swift"):
        found["zero_stage"] = 0
    if kind == "openrlhf" and found["zero_stage"] is None:
        found["zero_stage"] = 2
    places = [read.value(f"offload_{what}.device") for what in ("optimizer", "param")]
    if places[0] == "cpu" or read.value("fsdp_offload_params") or read.value("adam_offload"):
        found["offload"] = "optimizer"
    if (overlap := read.value("zero_optimization.overlap_comm")) is not None:
        found["overlap_gradients"] = overlap
    if (group := read.number("mics_shard_size")) and group > 0:
        found["shard_group"] = group
    if (dtype := read.value("communication_data_type", "grad_accum_dtype")) is not None:
        found["gradient_bytes"] = 4 if "32" in str(dtype) else 2


def _of_file_name(file: str, found: Cells) -> None:
    """Stage and offload by the name of a DeepSpeed file that is not here, such as `ds_z3_offload_config.json`."""
    name = file.rsplit("/", 1)[-1].lower()
    if match := re.search(r"(?:^|_)(?:ds_)?z(?:ero)?_?(?:stage)?_?([0-3])(?:\D|$)", name):
        found["zero_stage"] = int(match[1])
        if "offload" in name:
            found["offload"] = "optimizer"


RECOMPUTES_BY_DEFAULT = {"llama-factory": True, "ms-swift": True}
"""Trainers that compute activations again unless told otherwise; the others do not."""


def _recomputation(read: ReadSettings, found: Cells, kind: str) -> None:
    """Word of recomputation."""
    recompute = read.value(
        "gradient_checkpointing", "fsdp_activation_checkpointing", "activation_checkpointing", "gradient_checkpoint"
    )
    if recompute is None and read.value("disable_gradient_checkpointing") is not None:
        recompute = not read.value("disable_gradient_checkpointing")
    if recompute is None and kind in ("llama-factory", "ms-swift", "axolotl", "openrlhf"):
        recompute = RECOMPUTES_BY_DEFAULT.get(kind, False)
    found["activation_recompute"] = None if recompute is None else ("full" if recompute else "none")


def _adapters(read: ReadSettings, found: Cells) -> None:
    """Adapters, and frozen weights in few bits."""
    adapter = str(read.value("adapter", "finetuning_type", "tuner_type", "train_type", "lora_rank") or "").lower()
    is_adapter = adapter in ("lora", "qlora", "dora", "longlora") or adapter.isdigit() and int(adapter) > 0
    bits = 4 if read.value("load_in_4bit") or adapter == "qlora" else 8 if read.value("load_in_8bit") else None
    bits = read.number("quantization_bit", "quant_bits") or bits
    if is_adapter or bits:
        found["trainable_share"] = 0
    if bits:
        found["weight_bytes"] = 0.55 if bits == 4 else 1
    for name in ("lora_r", "lora_rank", "lora_alpha", "lora_dropout", "lora_target", "lora_target_modules"):
        read.value(name)


def _precision(read: ReadSettings, found: Cells, kind: str) -> None:
    """Pure 16 bits, where weights have no copy in 32."""
    word = str(read.value("precision") or "")
    is_pure = word.endswith("-true") and "16" in word or read.value("pure_bf16") or read.value("bfloat16") is True
    # axolotl loads weights in 16 bits and trains them as they are; so does a trainer on a model loaded in bf16.
    is_pure = is_pure or kind == "axolotl" and read.value("bf16") in (True, "auto")
    is_pure = is_pure or kind == "ms-swift" and str(read.value("torch_dtype") or "") in ("bfloat16", "float16")
    if is_pure and "weight_bytes" not in found:
        found |= {"weight_bytes": 2, "gradient_bytes": 2}
        found["optimizer_bytes"] = 2 if "8bit" in str(read.value("optimizer", "optim") or "") else 4
    if read.value("bf16") == "auto":
        found["precision"] = "bf16"


def _optimizer(read: ReadSettings, found: Cells) -> None:
    word = str(read.value("optimizer.type", "optimizer", "optim") or "").lower()
    found["optimizer"] = next((name for pattern, name in OPTIMIZERS if pattern.fullmatch(word)), None)
    if found.get("optimizer_bytes") and found["optimizer"] not in (None, "adamw", "adamw-8bit"):
        found.pop("optimizer_bytes")


def _kernels(read: ReadSettings, found: Cells) -> None:
    """Kernel of attention, fused kernels, compilation."""
    own = {"disabled": "eager", "vllm-flash-attn3": "flash3"}
    words = [read.word("attention_kernel", *names, own=own) for names in (HUB_KERNELS, ("flash_attn",))]
    switches = (name for name in KERNEL_SWITCHES if read.value(name) is True)
    found["attention_kernel"] = words[0] or words[1] or KERNEL_SWITCHES.get(next(switches, ""))
    if read.value("use_liger_kernel", "enable_liger_kernel", "liger_kernel"):
        found |= {"fused_norm": True, "fused_glu": True, "chunked_loss": True}
    compiles = read.value("torch_compile", "compile")
    if compiles is not None:
        found["execution"] = "eager" if compiles in (False, "eager", "none") else "compiled"


def _batch(read: ReadSettings, cells: Cells, found: Cells, kind: str) -> None:
    """Sequences of a step from those of a replica, as far as the chips are known."""
    if kind in ("ms-swift", "axolotl"):
        # Older names of a split of the sequence.
        found["cp"] = read.number("sequence_parallel_size", "context_parallel_size", "sequence_parallel_degree")
    nodes, each = (
        read.number("nnodes", "num_nodes", "actor_num_nodes"),
        read.number("nproc_per_node", "devices", "actor_num_gpus_per_node", "n_gpus_per_node"),
    )
    if each and "n_gpus" not in cells:
        found["n_gpus"] = each * (nodes or 1.0) if nodes or kind == "litgpt" else None
    if kind == "openrlhf":
        _reinforcement(read, cells, found)
    batch, micro, steps = (
        plain_number(cells.get(name)) for name in ("global_batch_size_seqs", "micro_batch_size", "n_microbatches")
    )
    if batch and micro and steps and "dp" not in cells:
        found["dp"] = batch / micro / steps
    chips = plain_number(found.get("n_gpus") or cells.get("n_gpus"))
    if "global_batch_size_seqs" not in cells and chips:
        replicas = chips / product_of_degrees({**cells, **{k: v for k, v in found.items() if v}}, "tp", "cp")
        found["global_batch_size_seqs"] = product({**cells, "dp": replicas}, "micro_batch_size", "n_microbatches", "dp")


def _reinforcement(read: ReadSettings, cells: Cells, found: Cells) -> None:
    """The part of OpenRLHF that trains: sequences of prompt and answer."""
    lengths = [read.number(name) for name in ("prompt_max_len", "generate_max_len")]
    if all(lengths):
        found["seq_len"] = sum(length or 0.0 for length in lengths)
    if samples := read.number("n_samples_per_prompt"):
        batch = plain_number(cells.get("global_batch_size_seqs"))
        found["global_batch_size_seqs"] = batch * samples if batch else None
    if name := read.value("pretrain", "actor.model_name_or_path"):
        found["model"] = known_model(str(name)) or name


def verl_cells(read: ReadSettings, cells: Cells) -> Cells:
    """The training part of verl: its back end, degrees, and sequences of prompt and answer."""
    actor = "actor_rollout_ref.actor."
    is_megatron = any(f"{actor}megatron." in key for key in read.settings) or read.value("strategy") == "megatron"
    cells.clear()
    found: Cells = {"framework": "verl"}
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
        found["zero_stage"] = 0 if read.value(f"{actor}megatron.use_distributed_optimizer") is False else 1
        granularity = read.value("override_transformer_config.recompute_granularity")
        found["activation_recompute"] = granularity
    else:
        found |= {"tp": 1, "pp": 1, "zero_stage": 3, "cp": read.number(f"{actor}ulysses_sequence_parallel_size")}
        if read.value(f"{actor}fsdp_config.reshard_after_forward") is False:
            found["zero_stage"] = 2
        found["activation_recompute"] = "none" if recompute is False else "full"
    return found


def automodel_cells(read: ReadSettings, cells: Cells) -> Cells:
    """NeMo AutoModel."""
    found: Cells = {"framework": "nemo-automodel"}
    recompute = read.value("activation_checkpointing")
    found["activation_recompute"] = None if recompute is None else ("full" if recompute else "none")
    reshard = read.value("reshard_after_forward")
    found["zero_stage"] = None if reshard is None else (3 if reshard else 2)
    if (pp := plain_number(cells.get("pp")) or 1.0) > 1.0 and (micro := read.value("pp_microbatch_size")):
        cells["micro_batch_size"] = micro
        is_interleaved = "interleaved" in str(read.value("pp_schedule")) and pp > 1
        found["schedule"] = "interleaved" if is_interleaved else None
    take_model(cells)
    return found


def kempnerforge_cells(read: ReadSettings, cells: Cells) -> Cells:
    """KempnerForge."""
    found: Cells = {"framework": "kempnerforge", "gated_mlp": True}
    shard, copies = (read.number(name) for name in ("dp_shard", "dp_replicate"))
    if shard and shard > 0:
        cells["dp"] = shard * (copies or 1.0)
        found["zero_stage"] = 3 if shard > 1 else 0
        found["n_gpus"] = product_of_degrees(cells, "dp", "tp", "pp", "cp")
    mode = read.value("activation_checkpointing")
    found["activation_recompute"] = mode if mode in ("none", "selective", "full") else None
    found["global_batch_size_seqs"] = product(cells, "micro_batch_size", "n_microbatches", "dp")
    return found
