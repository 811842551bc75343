"""Launch settings of MaxText as YAML on top of its base.yml, always with the shape of the model."""

import math

from jaxscale.launch.writers.setting_lines import RunSettings, SettingLines

REMAT = {"none": "none", "selective": "minimal", "full": "full"}
AXES = ("tensor", "context", "expert", "fsdp", "data", "pipeline")
"""Axes of the mesh, those whose collectives are the most urgent first."""


def maxtext_settings(run: RunSettings, lines: SettingLines) -> None:
    """MaxText configuration of a plan."""
    lines.add("run_name", run.name or "run")
    lines.add("base_output_directory", "OUTPUT", "put a folder or bucket here")
    lines.add("dataset_type", "synthetic", "put the data set here")
    lines.add("hardware", "tpu" if run.is_tpu else "gpu")
    for part in _unlike(run):
        lines.lacks_model(part)
    if lines.missing:
        # A name that the program does not know: it refuses to start, and trains no toy.
        lines.add("model_name", "not-expressed", "; ".join(lines.missing))
    else:
        _model(run, lines)
    lines.add("max_target_length", run.tokens)
    _batch(run, lines)
    _mesh(run, lines)
    _pipeline(run, lines)
    _software(run, lines)


def _unlike(run: RunSettings) -> list[str]:
    """Parts of the model that no decoder of MaxText has."""
    shape = run.shape
    said = shape.unlike("experts on a latent width", "a gate of attention", "attention to later tokens")
    if shape.is_hybrid:
        said.append("layers of several kinds, as the plan counts them")
    if shape.is_latent and not shape.is_mixture:
        said.append("latent attention without experts")
    if shape.is_mixture and not shape.is_gated:
        said.append("experts of two matrices")
    if shape.count("n_shared_experts") and not shape.is_latent and not _is_llama4(run):
        said.append("shared experts without latent attention")
    if shape.n_dense_layers and not shape.is_latent and not _is_llama4(run):
        said.append("dense layers among those with experts, without latent attention")
    return said


def _is_llama4(run: RunSettings) -> bool:
    """Whether a token passes a single routed expert and a single shared expert."""
    shape = run.shape
    dense, layers = shape.n_dense_layers, shape.count("n_layers")
    # interleave_moe_layer_step: experts in every layer, or in every second layer.
    is_regular = dense in (0, layers // 2)
    return shape.count("moe_top_k") == 1 and shape.count("n_shared_experts") == 1 and is_regular


def _decoder(run: RunSettings) -> str:
    """Kind of the decoder's layers."""
    shape = run.shape
    if shape.is_latent:
        return "deepseek"
    if shape.is_mixture:
        return "llama4" if shape.count("n_shared_experts") else "mixtral"
    return "gpt3" if shape.has_layer_norm else "llama2"


def _model(run: RunSettings, lines: SettingLines) -> None:
    """Shape of the model."""
    shape = run.shape
    lines.add("decoder_block", _decoder(run))
    lines.add("base_num_decoder_layers", shape.count("n_layers"))
    lines.add("base_emb_dim", shape.count("d_model"))
    lines.add("base_num_query_heads", shape.count("n_heads"))
    lines.add("base_num_kv_heads", shape.count("n_kv_heads"))
    lines.add("head_dim", shape.count("head_dim"))
    # Without dense layers, mixtral's block takes the width of experts from the MLP.
    is_full_mixture = shape.is_mixture and not shape.n_dense_layers
    lines.add("base_mlp_dim", shape.count("d_ff_expert" if is_full_mixture else "d_ff"))
    lines.add("mlp_activations", ["silu", "linear"] if shape.is_gated else ["gelu"])
    lines.add("vocab_size", shape.count("vocab_size"))
    lines.add("logits_via_embedding", shape.is_tied, "one matrix for both embeddings")
    if shape.has("position_embeddings"):
        lines.add("trainable_position_size", shape.count("position_embeddings"), "learned positions")
    if shape.is_latent:
        lines.add("attention_type", "mla")
        lines.add("q_lora_rank", shape.count("q_lora_rank"))
        lines.add("kv_lora_rank", shape.count("kv_lora_rank"))
        lines.add("qk_nope_head_dim", shape.count("head_dim") - shape.count("rope_head_dim"))
        lines.add("qk_rope_head_dim", shape.count("rope_head_dim"))
        lines.add("v_head_dim", shape.count("v_head_dim"))
    if shape.has("n_predict_layers"):
        lines.add("mtp_num_layers", shape.count("n_predict_layers"), "layers that predict further tokens")
    _windows(run, lines)
    if shape.is_mixture:
        _experts(run, lines)
    if shape.has_biases and _decoder(run) != "gpt3":
        lines.lacks("biases of experts: none are written")


def _windows(run: RunSettings, lines: SettingLines) -> None:
    shape, windows = run.shape, run.shape.n_window_layers()
    if windows and windows == shape.count("n_layers") and not shape.is_latent:
        lines.add("attention_type", "local_sliding")
        lines.add("sliding_window_size", shape.count("window"))
    elif windows:
        share = windows / shape.count("n_layers")
        lines.lacks(
            f"window_share = {share:.3g}: all layers attend to the whole sequence; some named models have windows"
        )


def _experts(run: RunSettings, lines: SettingLines) -> None:
    shape = run.shape
    lines.add("num_experts", shape.count("n_experts"))
    lines.add("num_experts_per_tok", shape.count("moe_top_k"))
    lines.add("base_moe_mlp_dim", shape.count("d_ff_expert"))
    if shape.is_latent:
        lines.add("first_num_dense_layers", shape.n_dense_layers)
    if shared := shape.count("n_shared_experts"):
        lines.add("shared_experts", shared)
    if _decoder(run) == "llama4" and shape.n_dense_layers:
        lines.add("interleave_moe_layer_step", 2, "every second layer has experts")
    lines.add("sparse_matmul", True)
    lines.add("megablox", True)
    lines.add("capacity_factor", -1.0, "no token is dropped")
    word = str(run.plan.get("moe_dispatcher") or "alltoall")
    if word == "allgather" and run.count("ep") > 1:
        lines.add("use_ring_of_experts", True)
    elif word not in ("alltoall", "allgather"):
        lines.lacks(f"moe_dispatcher = {word}: alltoall is written")


def _batch(run: RunSettings, lines: SettingLines) -> None:
    """Sequences per chip and pass, and passes per step."""
    is_pipeline = run.count("pp") > 1
    passes = run.count("n_microbatches")
    # A pipeline takes all microbatches in a single pass.
    replicas = run.count("micro_batch_size") * run.count("dp") * (passes if is_pipeline else 1)
    lines.add("per_device_batch_size", replicas / run.n_chips, "sequences of a chip in one pass")
    if not is_pipeline:
        lines.add("gradient_accumulation_steps", passes, "microbatches per replica")


def _mesh(run: RunSettings, lines: SettingLines) -> None:
    """Degrees inside a slice (ici) and across (dcn); a slice of GPUs is a node."""
    # MaxText shards weights over fsdp; ZeRO below 3 replicates weights.
    group = run.shard_group if run.zero_stage == 3 else 1
    ep = run.count("ep")
    # The axis of experts is cut out of the replicas.
    if ep > 1 and run.count("dp") % ep:
        lines.lacks(f"ep = {ep}: the axis of experts takes replicas; experts are not split")
        ep = 1
    # A shard group holds whole groups of experts.
    if ep > 1 and group % ep:
        group = max(ep, group // math.gcd(group, ep) * ep) if run.count("dp") % (group * ep) == 0 else ep
    degrees = {
        "tensor": run.count("tp"),
        "context": run.count("cp"),
        "expert": ep,
        "fsdp": max(1, group // ep),
        "data": run.count("dp") // max(group, ep),
        "pipeline": run.count("pp"),
    }
    slices = 1 if run.is_tpu else run.n_nodes
    left = run.n_chips // slices
    for axis in AXES:
        # Axes are in order of urgency: as much as fits stays within the slice.
        inside = math.gcd(degrees[axis], left)
        left //= inside
        lines.add(f"ici_{axis}_parallelism", inside, f"{degrees[axis]} in all" if inside != degrees[axis] else "")
        if inside != degrees[axis] or slices > 1:
            lines.add(f"dcn_{axis}_parallelism", degrees[axis] // inside)
    # A rule of the table compares the axes across with the number of slices.
    lines.facts["env.SLICES"] = slices
    if run.zero_stage == 0 and max(run.count("cp"), ep) > 1:
        lines.lacks("zero_stage = 0: weights are split over the ranks of cp and ep, as the program always has it")
    if run.zero_stage == 1:
        lines.add("shard_optimizer_over_data", True, "ZeRO 1: optimizer state split over the replicas")
    if run.zero_stage == 2:
        lines.lacks("zero_stage = 2: plain replicas are written")
    if run.count("tp") > 1 and not run.does("sequence_parallel"):
        lines.lacks("sequence_parallel = no: its rules split activations over the tensor axis")


def _pipeline(run: RunSettings, lines: SettingLines) -> None:
    if run.count("pp") == 1:
        return
    lines.add("num_pipeline_microbatches", run.count("n_microbatches"), "microbatches per replica")
    layers = run.layers_per_chunk()
    if layers is None:
        lines.lacks(f"pp x vpp = {run.count('pp') * run.count('vpp')}: stages of unequal numbers of layers")
    else:
        lines.add("num_layers_per_pipeline_stage", layers, f"{run.count('vpp')} chunks on each chip")
    if run.plan.get("schedule") != "gpipe":
        lines.lacks(f"schedule = {run.plan.get('schedule')}: pipelines run all forward passes first")


def _software(run: RunSettings, lines: SettingLines) -> None:
    """Recomputation, number formats, optimizer, kernels."""
    lines.add("remat_policy", REMAT[run.recompute], "activations computed again in the backward pass")
    if run.recomputes_modules:
        lines.lacks(
            f"recompute_modules: {REMAT[run.recompute]} is written, and custom remat policies are chosen by hand"
        )
    lines.add("dtype", {"fp16": "float16", "fp32": "float32", "tf32": "float32"}.get(run.precision, "bfloat16"))
    if run.precision == "fp8" and run.count("n_microbatches") > 1 and run.count("pp") == 1:
        lines.lacks("precision = fp8: refused with gradient accumulation; bfloat16 is written")
    elif run.precision == "fp8":
        lines.add("quantization", "fp8", "matmuls in 8 bits")
    elif run.precision in ("fp4", "tf32"):
        lines.lacks(f"precision = {run.precision}: {'float32' if run.precision == 'tf32' else 'bfloat16'} is written")
    lines.add("weight_dtype", "float32", "stored weights are their own master copy")
    lines.add("grad_dtype", "bfloat16" if run.number("gradient_bytes", 4.0) == 2.0 else "float32")
    lines.add("opt_type", "adamw")
    lines.add("attention", _kernel(run))
    if _kernel(run) == "cudnn_flash_te":
        lines.lacks("attention_kernel = flash: the program's fused kernel on GPUs is that of cuDNN")
    lines.add("packing", False)
    if run.does("chunked_loss"):
        lines.add("num_vocab_tiling", 4, "logits in pieces")
    if run.does("moe_overlap"):
        lines.lacks("moe_overlap: use_batch_split_schedule of some models")
    if run.number("offload_optimizer", 0.0):
        lines.add("optimizer_memory_host_offload", True)
    lines.add("steps", 100)


def _kernel(run: RunSettings) -> str:
    if not run.does("flash_attention", True):
        return "dot_product"
    return "flash" if run.is_tpu else "cudnn_flash_te"
