"""Rules from settings of Megatron-LM, Megatron-Bridge, NeMo, Primus and ms-swift's Megatron to runs-table cells."""

import math
from typing import Any

from jaxscale.launch.options import expanded_layout, pattern_of, stages_of
from jaxscale.launch.readers.adapter_rules import adapter_cells
from jaxscale.launch.readers.settings_text import (
    Cells,
    ReadSettings,
    end_cells,
    known_layers,
    known_model,
    plain_number,
    product_of_degrees,
)

MIXERS, MLPS = "M*", "-E"
"""Letters of a hybrid's pattern: layers that mix tokens, and MLPs."""


def megatron_cells(read: ReadSettings, cells: Cells) -> Cells:
    """Cells of the runs table set by combinations of Megatron-LM options."""
    found: Cells = {"framework": megatron_framework(read)}
    if read.is_complete or found["framework"] == "ms-swift-megatron":
        # Degrees that are not set are 1.
        cells["tp"], cells["pp"] = cells.get("tp", 1), cells.get("pp", 1)
    _layers(read, cells, found)
    _attention(read, cells, found)
    _experts(read, cells, found)
    _vocabulary(read, cells, found)
    _chips(read, cells, found)
    _stages(read, cells, found)
    _sharding(read, cells, found)
    _recomputation(read, cells, found)
    _software(read, cells, found)
    found |= adapter_cells(read, str(found["framework"]))
    if name := read.value("model"):
        found["model"] = known_model(str(name).removesuffix(".yaml"))
    if found["framework"] == "primus":
        read.value("modules.pre_trainer.framework")
    if found["framework"] == "ms-swift-megatron":
        found["seq_len"] = read.number("max_length")
        # Checkpoints of megatron-core carry the suffix -mcore behind the model's name.
        if name := read.value("load", "mcore_model"):
            found["model"] = known_model(str(name).rsplit("/", 1)[-1].removesuffix("-mcore"))
    return found


def megatron_framework(read: ReadSettings) -> str:
    """Name of the framework of the Megatron family with the given settings."""
    settings = read.settings
    if read.value("program") == "ms-swift megatron":
        return "ms-swift-megatron"
    # NeMo's logs have keys cfg/, NeMo's files a section `trainer`.
    if any(key.startswith(("cfg/", "trainer.")) for key in settings):
        return "nemo"
    if read.value("deepspeed", "deepspeed_config"):
        return "megatron-deepspeed"
    # Primus writes Megatron's options below `overrides`.
    if any("overrides." in key for key in settings):
        return "primus"
    has_sections = any(key.startswith(("model.", "train.", "ddp.", "dist.")) for key in settings)
    return "megatron-bridge" if has_sections else "megatron-lm"


def _layers(read: ReadSettings, cells: Cells, found: Cells) -> None:
    """Cells of the layers: state-space layers, sliding windows, positions, gated MLP."""
    # A slash divides layers from prediction layers, bars divide pipeline stages.
    pattern = str(read.value("hybrid_layer_pattern", "hybrid_override_pattern") or "").split("/")[0].replace("|", "")
    if pattern:
        mixers, mlps = sum(map(pattern.count, MIXERS)), sum(map(pattern.count, MLPS))
        # Mixer and MLP in turn are a layer of two sublayers; else each letter is a layer.
        alternates = mixers == mlps and all(letter in MIXERS for letter in pattern[::2])
        found |= {"n_layers": mixers if alternates else len(pattern), "n_attention_layers": pattern.count("*")}
        found |= {"n_ssm_layers": pattern.count("M"), "n_mlp_layers": mlps}
        if read.has("num_experts", "num_moe_experts"):
            found["n_dense_layers"] = pattern.count("-") or None
    # Default of --mamba-head-dim: 64.
    heads, width = read.number("mamba_num_heads"), read.number("mamba_head_dim") or 64.0
    state, groups = read.number("mamba_state_dim"), read.number("mamba_num_groups")
    # The option states the state of a group; the column counts all groups.
    cells.pop("ssm_state", None)
    if heads:
        # Defaults of --mamba-state-dim and --mamba-num-groups: 128 and 8.
        found |= {"ssm_d_inner": heads * width, "ssm_state": (state or 128.0) * (groups or 8.0)}
        found["ssm_groups"] = groups or 8.0
    kind = read.value("position_embedding_type")
    positions = read.number("max_position_embeddings")
    # Default of --position-embedding-type: learned_absolute.
    is_learned = kind == "learned_absolute" or kind is None and read.is_complete
    if is_learned and not read.has("use_rotary_position_embeddings") and positions:
        found["position_embeddings"] = positions
    if read.has("squared_relu"):
        found["gated_mlp"] = False


def _attention(read: ReadSettings, cells: Cells, found: Cells) -> None:
    """Heads, latent projections, windows."""
    if read.flag("multi_latent_attention"):
        # Defaults of latent attention in Megatron-LM: 64 rotary, 128 plain, values 128, latent 32.
        rope = read.number("qk_pos_emb_head_dim") or 64.0
        found |= {"head_dim": (read.number("qk_head_dim") or 128.0) + rope, "rope_head_dim": rope}
        found |= {"v_head_dim": read.number("v_head_dim") or 128.0, "kv_lora_rank": read.number("kv_lora_rank") or 32.0}
        # Latent projections take the place of key/value heads.
        cells.pop("n_kv_heads", None)
    else:
        # Options of latent attention without it have no effect.
        for name in ("kv_lora_rank", "q_lora_rank", "v_head_dim", "rope_head_dim"):
            cells.pop(name, None)
    groups = read.value("num_query_groups")
    # Without --group-query-attention, the default of 1 group has no effect.
    if not read.value("group_query_attention") and groups in (None, 1):
        cells.pop("n_kv_heads", None)
    if read.has("attention_output_gate"):
        found["attention_gate"] = True
    window = read.value("window_size")
    if window:
        left = list(window)[0] if isinstance(window, list | tuple) else str(window).strip("() ").split(",")[0]
        # Tokens before the token, and the token.
        found["window"] = int(left) + 1
        layers = plain_number(found.get("n_layers") or cells.get("n_layers"))
        found["window_share"] = _share(read.value("window_attn_skip_freq"), layers)


def _share(freq: Any, layers: float | None) -> float:
    """Share of the layers that a pattern or a period gives a window [1]."""
    if freq in (None, ""):
        return 1.0
    pattern = pattern_of(freq)
    if pattern is not None:
        return sum(pattern) / len(pattern)
    period = int(freq)
    # Every period-th layer attends to the whole sequence.
    return (layers - layers // period) / layers if layers else 1.0 - 1.0 / period


def _experts(read: ReadSettings, cells: Cells, found: Cells) -> None:
    """Cells of the mixture: experts, dense layers, shared experts, dispatcher of tokens."""
    n_experts = read.number("num_experts", "num_moe_experts")
    if not n_experts:
        return
    # Without --moe-ffn-hidden-size, experts are as wide as the MLP.
    width = read.number("moe_ffn_hidden_size") or read.number("ffn_hidden_size")
    found["d_ff_expert"] = width
    if read.is_complete:
        # Default of --moe-router-topk: 2.
        found["moe_top_k"] = read.number("moe_router_topk") or 2.0
        found["expert_bias"] = not read.flag("disable_bias_linear") or None
        # Experts are split by tp unless --expert-tensor-parallel-size is stated.
        found["etp"] = read.number("expert_tensor_parallel_size") or plain_number(cells.get("tp"))
    elif read.value("add_bias_linear") is True:
        found["expert_bias"] = True
    if (shared := read.number("moe_shared_expert_intermediate_size")) and width:
        # The option states the total width of all shared experts.
        found["n_shared_experts"] = shared / width
    freq, layers = read.value("moe_layer_freq"), plain_number(cells.get("n_layers"))
    if freq is not None and layers and "n_dense_layers" not in found:
        pattern = pattern_of(freq)
        # A pattern marks layers with experts by 1; an integer N means each N-th layer.
        mixtures = sum(pattern) if pattern else math.ceil(layers / int(freq))
        found["n_dense_layers"] = layers - mixtures or None
    dispatcher = read.value("moe_token_dispatcher_type")
    # deepep is the default of --moe-flex-dispatcher-backend.
    backend = str(read.value("moe_flex_dispatcher_backend") or "deepep")
    if read.value("moe_enable_deepep"):
        found["moe_dispatcher"] = "deepep"
    elif dispatcher == "flex":
        found["moe_dispatcher"] = backend if backend in ("deepep", "hybridep") else None
    elif dispatcher in ("alltoall", "allgather"):
        found["moe_dispatcher"] = dispatcher
    elif dispatcher is None and found["framework"] == "ms-swift-megatron":
        # Default of ms-swift.
        found["moe_dispatcher"] = "alltoall"
    elif dispatcher is None and read.is_complete:
        # Default of --moe-token-dispatcher-type.
        found["moe_dispatcher"] = "allgather"


def _vocabulary(read: ReadSettings, cells: Cells, found: Cells) -> None:
    """Cells of the vocabulary: padded size, tied embeddings."""
    vocabulary, padded = read.number("vocab_size"), read.number("padded_vocab_size")
    # Default of --make-vocab-size-divisible-by: 128, times tp.
    divisor = read.number("make_vocab_size_divisible_by") or (128.0 if read.is_complete else 1.0)
    step = divisor * (plain_number(cells.get("tp")) or 1.0)
    if padded:
        found["vocab_size"] = padded
    elif vocabulary and (read.is_complete or read.flag("should_pad_vocab")) and not read.has("no_pad_vocab_size"):
        found["vocab_size"] = math.ceil(vocabulary / step) * step
    untied, shared = read.flag("untie_embeddings_and_output_weights"), read.value("share_embeddings_and_output_weights")
    if shared is not None:
        found["tied_embeddings"] = bool(shared)
    elif untied is not None and found["framework"] != "ms-swift-megatron":
        found["tied_embeddings"] = not untied


def _chips(read: ReadSettings, cells: Cells, found: Cells) -> None:
    """Chips of the run."""
    chips = read.chips(("devices", "nproc_per_node"), ("num_nodes", "nnodes"))
    if "n_gpus" not in cells:
        found["n_gpus"] = chips


def _replicas(cells: Cells, found: Cells) -> float | None:
    """Data-parallel degree, from the chips [1]."""
    chips = plain_number(found.get("n_gpus") or cells.get("n_gpus"))
    # chips = dp * tp * pp * cp
    return chips / product_of_degrees(cells, "tp", "pp", "cp") if chips else plain_number(cells.get("dp"))


def _stages(read: ReadSettings, cells: Cells, found: Cells) -> None:
    """Chunks of layers on each chip of a pipeline."""
    per_chunk, layout = (
        read.number("num_layers_per_virtual_pipeline_stage"),
        read.value("pipeline_model_parallel_layout"),
    )
    layers, pp = plain_number(cells.get("n_layers")), plain_number(cells.get("pp")) or 1.0
    if per_chunk:
        # Layers of a stage over layers of a chunk; without the number of layers the chunks are unknown.
        found["vpp"] = layers / pp / per_chunk if layers else None
    elif chunks := read.number("num_virtual_stages_per_pipeline_rank", "virtual_pipeline_model_parallel_size"):
        found["vpp"] = chunks
    elif layout:
        found["vpp"] = stages_of(layout) / pp
    elif "|" in str(read.value("hybrid_layer_pattern") or ""):
        # Bars divide chunks.
        found["vpp"] = (str(read.value("hybrid_layer_pattern")).count("|") + 1) / pp
    if pp > 1.0:
        _end_layers(read, cells, found, round(pp))


def _end_layers(read: ReadSettings, cells: Cells, found: Cells, pp: int) -> None:
    """Cells of the layers of the first and of the last stage, prediction layers included."""
    predicted, layers = read.number("mtp_num_layers") or 0.0, plain_number(cells.get("n_layers"))
    # Embedding and loss count as a layer each where the options say so.
    parts = [float(read.has(f"account_for_{part}_in_pipeline_split")) for part in ("embedding", "loss")]
    last = read.number("decoder_last_pipeline_num_layers", "num_layers_in_last_pipeline_stage")
    if layout := read.value("pipeline_model_parallel_layout"):
        stages = expanded_layout(str(layout)).split("|")
        # Chunks of a rank lie pp apart; t is a decoder layer, m a prediction layer.
        counts = [float(sum(stage.count("t") + stage.count("m") for stage in stages[rank::pp])) for rank in range(pp)]
        if sum(counts) and len(stages) % pp == 0:
            found |= end_cells(counts[0], counts[-1], sum(counts), pp)
    elif any(parts) and layers:
        share = (layers + sum(parts)) / pp
        found |= end_cells(share - parts[0], share - parts[1] + predicted, layers + predicted, pp)
    elif last and predicted:
        found["last_stage_layers"] = last + predicted


STAGE_OF_STRATEGY = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}


def _sharding(read: ReadSettings, cells: Cells, found: Cells) -> None:
    """Cells of sharding: ZeRO stage, replicas of the state, overlap with compute."""
    strategy = read.value("data_parallel_sharding_strategy")
    if read.value("use_torch_fsdp2", "use_megatron_fsdp", "use_custom_fsdp"):
        found["zero_stage"] = STAGE_OF_STRATEGY.get(str(strategy or "optim_grads_params"), 3)
        if read.has("torch_fsdp2_no_reshard_after_forward"):
            # Weights stay gathered after the forward pass: ZeRO 2.
            found["zero_stage"] = 2
    elif read.value("use_distributed_optimizer") or "distributed" in str(read.value("optim.name") or ""):
        found["zero_stage"] = 1
    elif found["framework"] == "ms-swift-megatron" and read.value("use_distributed_optimizer") is None:
        # Its default.
        found["zero_stage"] = 1
    elif read.value("use_distributed_optimizer") is False or found["framework"] == "megatron-lm":
        # An option of a command line that is absent is off; a recipe has defaults of its own.
        found["zero_stage"] = 0
    replicas = _replicas(cells, found)
    if (copies := read.number("num_distributed_optimizer_instances")) and copies > 1 and replicas:
        # Copies of the state: each is spread over replicas / copies.
        found["shard_group"] = replicas / copies
    reduces, gathers = read.flag("overlap_grad_reduce"), read.flag("overlap_param_gather")
    # Ranks of context parallelism reduce gradients too.
    if replicas and replicas * product_of_degrees(cells, "cp") > 1.0:
        found["overlap_gradients"] = reduces
        found["overlap_gathers"] = gathers if found.get("zero_stage") else None
    else:
        for name in ("overlap_gradients", "overlap_gathers"):
            cells.pop(name, None)


def _recomputation(read: ReadSettings, cells: Cells, found: Cells) -> None:
    """Word of recomputation, or the share of the layers."""
    name = known_model(str(read.value("model") or "").removesuffix(".yaml"))
    layers = known_layers(cells.get("n_layers"), name)
    granularity = read.value("recompute_granularity", "activations_checkpoint_granularity")
    # Selective is the default of ms-swift.
    if granularity is None and (found["framework"] == "ms-swift-megatron" or read.flag("recompute_activations")):
        granularity = "selective"
    if granularity is None and read.flag("moe_layer_recompute"):
        granularity, found["recompute_modules"] = "selective", "moe"
    found["activation_recompute"] = str(granularity) if granularity in ("full", "selective") else "none"
    is_block, per_stage = read.value("recompute_method") == "block", read.number("recompute_num_layers")
    if is_block and granularity == "full" and layers and per_stage:
        # --recompute-num-layers counts layers of a stage.
        stage = math.ceil(layers / (plain_number(cells.get("pp")) or 1.0))
        word = {0.5: "selective-layer"}.get(per_stage / stage)
        if per_stage < stage and word is None:
            # Tables have words for no layer, half of the layers and all layers alone.
            read.doubtful.add(read.last)
        found["activation_recompute"] = word if per_stage < stage else "full"
    if found["activation_recompute"] != "selective":
        cells.pop("recompute_modules", None)


def _software(read: ReadSettings, cells: Cells, found: Cells) -> None:
    """Cells of the software: kernels, CUDA graphs, overlap of collectives."""
    tp = plain_number(cells.get("tp")) or 1.0
    overlap = read.flag("tp_comm_overlap")
    if tp > 1.0 and overlap is not None:
        # Gradients of inputs travel beside those of weights, with sequence parallelism or without.
        found["tp_overlap"] = "full" if overlap else "backward"
    # Without a tensor group, no norm is split.
    if tp == 1.0:
        cells.pop("sequence_parallel", None)
    elif read.is_complete:
        found["sequence_parallel"] = read.flag("sequence_parallel")
    graphs = read.value("cuda_graph_impl")
    is_graph = graphs not in (None, "none") or read.has("enable_cuda_graph", "external_cuda_graph")
    if is_graph or graphs == "none" or read.is_complete and found["framework"] == "megatron-lm":
        found["execution"] = "cuda-graphs" if is_graph else "eager"
    # Its fused attention is that of cuDNN, not its fused softmax of before.
    kernel = read.word("attention_kernel", "attention_backend", own={"fused": "cudnn"})
    kernel = "flash" if kernel is None and read.has("use_flash_attn") else kernel
    version = read.number("flash_attention_version")
    found["attention_kernel"] = f"flash{version:g}" if version and kernel in ("flash", None) else kernel
    if read.value("bias_activation_fusion") is False or read.has("no_bias_swiglu_fusion"):
        found["fused_glu"] = False
    elif read.value("bias_activation_fusion") or read.is_complete and read.has("swiglu"):
        found["fused_glu"] = True
    if read.has("cross_entropy_loss_fusion"):
        found["chunked_loss"] = False
    in_16 = read.value("grad_reduce_in_bf16") or "16" in str(read.value("main_grads_dtype", "grad_sync_dtype"))
    in_32 = read.value("grad_reduce_in_fp32", "accumulate_allreduce_grads_in_fp32")
    if in_16 or in_32 is False:
        found["gradient_bytes"] = 2
    elif in_32 or read.is_complete and read.has("bf16"):
        found["gradient_bytes"] = 4
    if read.has("use_precision_aware_optimizer"):
        # Master copy and two moments of Adam.
        parts = ("main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
        found["optimizer_bytes"] = sum(_bytes_of(str(read.value(name) or "fp32")) for name in parts)
    if read.has("optimizer_cpu_offload"):
        found["offload"] = "optimizer"
    found["optimizer"] = {"muon": "muon", "dist_muon": "muon", "lion": "lion", "sgd": "sgd"}.get(
        str(read.value("optimizer"))
    )


def _bytes_of(dtype: str) -> int:
    """Width of a number of a format [byte]."""
    return next((width for digits, width in (("32", 4), ("16", 2), ("8", 1)) if digits in dtype), 4)
