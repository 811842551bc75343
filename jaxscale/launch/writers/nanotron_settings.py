"""Launch settings of nanotron as YAML, for the model classes llama and qwen2."""

from jaxscale.launch.writers.model_shape import padded_vocabulary
from jaxscale.launch.writers.setting_lines import RunSettings, SettingLines

MODEL = "model.model_config."
EXPERTS = MODEL + "moe_config."


def nanotron_settings(run: RunSettings, lines: SettingLines) -> None:
    """Configuration of nanotron for a plan."""
    lines.add("general.project", "jaxscale")
    lines.add("general.run", run.name or "run")
    lines.add("general.seed", 42)
    _parallelism(run, lines)
    for part in _unlike(run):
        lines.lacks_model(part)
    if lines.missing:
        # Without its class the program does not start, and trains no other model.
        lines.may_miss = (MODEL + "is_llama_config",)
    else:
        _model(run, lines)
    lines.add("model.dtype", {"fp16": "float16", "fp32": "float32", "tf32": "float32"}.get(run.precision, "bfloat16"))
    lines.add("model.make_vocab_size_divisible_by", 1)
    lines.add("model.ddp_bucket_cap_mb", 25)
    lines.add("model.init_method.std", 0.02)
    lines.add("tokens.sequence_length", run.tokens)
    lines.add("tokens.train_steps", 100)
    lines.add("tokens.micro_batch_size", run.count("micro_batch_size"), "sequences of a microbatch")
    lines.add("tokens.batch_accumulation_per_replica", run.count("n_microbatches"), f"{run.global_batch} in a step")
    _optimizer(run, lines)
    lines.add("checkpoints.checkpoints_path", "checkpoints")
    lines.add("checkpoints.checkpoint_interval", 1000)
    data = {"dataset": {"hf_dataset_or_datasets": "DATA SET", "text_column_name": "text"}, "seed": 42}
    stage = {"name": "train", "start_training_step": 1, "data": data}
    lines.add("data_stages", [stage], "put the data set here")
    lines.add("tokenizer.tokenizer_name_or_path", "TOKENIZER", "put the tokenizer of the model here")
    if run.precision not in ("bf16", "fp16", "fp32"):
        lines.lacks(f"precision = {run.precision}: {'float32' if run.precision == 'tf32' else 'bfloat16'} is written")


def _parallelism(run: RunSettings, lines: SettingLines) -> None:
    """Degrees, order of the pipeline, recomputation."""
    for name in ("dp", "tp", "pp"):
        lines.add(f"parallelism.{name}", run.count(name))
    lines.add("parallelism.expert_parallel_size", 1)
    if run.count("ep") > 1:
        lines.lacks(f"ep = {run.count('ep')}: its groups of processes cannot be made above 1; 1 is written")
    lines.add("parallelism.context_parallel_size", run.count("cp"))
    if run.count("cp") > 1:
        lines.add(f"{MODEL}_attn_implementation", "llama3_ring_attention", "of context parallelism")
    lines.add("parallelism.pp_engine", "afab" if run.plan.get("schedule") == "gpipe" else "1f1b")
    splits = run.does("sequence_parallel")
    lines.add("parallelism.tp_mode", "REDUCE_SCATTER" if splits else "ALL_REDUCE")
    overlap = str(run.plan.get("tp_overlap") or "none")
    lines.add("parallelism.tp_linear_async_communication", overlap == "full", "collectives beside matmuls")
    if overlap == "backward":
        lines.lacks("tp_overlap = backward: none is written")
    lines.add("parallelism.recompute_layer", run.recompute == "full", "activations computed again in the backward pass")
    if run.count("vpp") > 1:
        lines.lacks(f"vpp = {run.count('vpp')}: pipelines are not interleaved")
    if run.recompute == "selective" or run.recomputes_modules:
        lines.lacks("recompute = selective: none is written")


def _unlike(run: RunSettings) -> list[str]:
    """Parts of the model that no class of nanotron has."""
    shape = run.shape
    said = shape.unlike(*shape.special_parts())
    if shape.is_latent:
        said.append("latent attention")
    if shape.has("n_predict_layers"):
        said.append("prediction layers")
    # nanotron has no key for the width of a head.
    if shape.count("head_dim") * shape.count("n_heads") != shape.count("d_model"):
        said.append(f"heads {shape.count('head_dim')} wide: they are hidden_size / num_attention_heads")
    return said


def _model(run: RunSettings, lines: SettingLines) -> None:
    """Class and sizes of the model."""
    shape = run.shape
    windows = shape.n_window_layers()
    has_all_windows = 0 < windows == shape.count("n_layers")
    # Class qwen2 alone has experts and windows.
    kind = "qwen2" if shape.is_mixture or has_all_windows else "llama"
    lines.add(f"{MODEL}is_{kind}_config", True)
    for name, field in (
        ("hidden_size", "d_model"),
        ("intermediate_size", "d_ff"),
        ("num_attention_heads", "n_heads"),
        ("num_key_value_heads", "n_kv_heads"),
        ("num_hidden_layers", "n_layers"),
    ):
        lines.add(MODEL + name, shape.count(field))
    lines.add(f"{MODEL}max_position_embeddings", run.tokens)
    lines.add(f"{MODEL}vocab_size", shape.count("vocab_size"))
    lines.add(f"{MODEL}tie_word_embeddings", shape.is_tied)
    lines.add(f"{MODEL}hidden_act", "silu")
    if has_all_windows:
        lines.add(f"{MODEL}sliding_window_size", shape.count("window"))
    elif windows:
        lines.lacks(f"window_share = {windows / shape.count('n_layers'):.3g}: all layers attend to the whole sequence")
    if shape.is_mixture:
        _experts(run, lines)
    if shape.has_biases:
        lines.lacks("biases of experts: none are written")
    if shape.count("vocab_size") % run.count("tp"):
        built = padded_vocabulary(shape.count("vocab_size"), run.count("tp"))
        lines.lacks(f"vocab_size: {built}, which tp divides, is built")


def _experts(run: RunSettings, lines: SettingLines) -> None:
    shape = run.shape
    lines.add(f"{EXPERTS}num_experts", shape.count("n_experts"))
    lines.add(f"{EXPERTS}top_k", shape.count("moe_top_k"))
    lines.add(f"{EXPERTS}moe_intermediate_size", shape.count("d_ff_expert"))
    if shape.n_dense_layers:
        mixtures = [layer for layer, has_experts in enumerate(shape.dense_pattern()) if has_experts]
        lines.add(f"{EXPERTS}layers", mixtures, "layers that have experts")
    shared = shape.count("n_shared_experts")
    lines.add(f"{EXPERTS}enable_shared_expert", shared > 0)
    if shared:
        lines.add(f"{EXPERTS}shared_expert_intermediate_size", shared * shape.count("d_ff_expert"))
    word = str(run.plan.get("moe_dispatcher") or "alltoall")
    lines.add(f"{EXPERTS}token_dispatcher_type", word if word in ("alltoall", "allgather") else "alltoall")
    if word not in ("alltoall", "allgather"):
        lines.lacks(f"moe_dispatcher = {word}: alltoall is written")


def _optimizer(run: RunSettings, lines: SettingLines) -> None:
    # nanotron shards the optimizer alone.
    lines.add("optimizer.zero_stage", min(run.zero_stage, 1), "1: optimizer state split over the replicas")
    if run.zero_stage > 1:
        lines.lacks(f"zero_stage = {run.zero_stage}: 1 is written")
    lines.add("optimizer.accumulate_grad_in_fp32", run.number("gradient_bytes", 4.0) != 2.0)
    lines.add("optimizer.clip_grad", 1.0)
    lines.add("optimizer.weight_decay", 0.1)
    for name, value in (
        ("name", "adamW"), ("adam_beta1", 0.9), ("adam_beta2", 0.95), ("adam_eps", 1e-8), ("torch_adam_is_fused", True),
    ):  # fmt: skip
        lines.add(f"optimizer.optimizer_factory.{name}", value)
    for name, value in (
        ("learning_rate", 3e-4), ("lr_warmup_steps", 10), ("lr_warmup_style", "linear"), ("lr_decay_style", "cosine"),
        ("min_decay_lr", 3e-5),
    ):  # fmt: skip
        lines.add(f"optimizer.learning_rate_scheduler.{name}", value)
