"""Settings of torchtitan (TOML), MaxText and nanotron (YAML) and DeepSpeed (JSON)."""

from jaxscale.launch.writers.launch_values import RunSettings
from jaxscale.launch.writers.setting_lines import SettingLines


def torchtitan_settings(run: RunSettings, lines: SettingLines) -> None:
    """Job configuration of torchtitan."""
    pp, micro = run.count("pp"), run.count("micro_batch_size")
    if run.name:
        family, _, flavour = run.name.rpartition("-")
        lines.add("model.name", family or run.name)
        lines.add("model.flavor", flavour.upper())
    if run.precision == "fp8":
        lines.add("model.converters", ["float8"], "matmuls in 8 bits")
    elif run.precision not in ("bf16",):
        lines.lacks(f"precision = {run.precision}: bf16 is written")
    lines.add("training.mixed_precision_param", "bfloat16", "number format of the weights in use")
    lines.add("training.seq_len", round(run.seq_len))
    local = micro * (run.count("n_microbatches") if pp > 1 else 1)
    lines.add("training.local_batch_size", local, "sequences of a replica" + (", all microbatches" if pp > 1 else ""))
    lines.add("training.global_batch_size", run.global_batch, f"{run.count('n_microbatches')} microbatches per replica")
    shard = run.shard_group if run.zero_stage >= 2 else 1
    lines.add("parallelism.data_parallel_shard_degree", shard, "replicas that share one copy of the weights")
    lines.add("parallelism.data_parallel_replicate_degree", run.count("dp") // shard)
    if run.zero_stage >= 2:
        reshard = "always" if run.zero_stage == 3 else "never"
        lines.add("parallelism.fsdp_reshard_after_forward", reshard, f"ZeRO {run.zero_stage}")
    if run.zero_stage == 1:
        lines.lacks("zero_stage = 1: FSDP splits gradients as well; plain replicas are written")
    for name, part in (("tp", "tensor"), ("pp", "pipeline"), ("cp", "context"), ("ep", "expert")):
        lines.add(f"parallelism.{part}_parallel_degree", run.count(name))
    if pp > 1:
        _titan_pipeline(run, lines, micro)
    lines.add("activation_checkpoint.mode", run.recompute, "activations computed again in the backward pass")


def _titan_pipeline(run: RunSettings, lines: SettingLines, micro: int) -> None:
    lines.add("parallelism.pipeline_parallel_microbatch_size", micro, "sequences of a microbatch")
    vpp, layers = run.count("vpp"), run.layers_per_chunk()
    schedule = "Interleaved1F1B" if vpp > 1 else "GPipe" if run.plan.get("schedule") == "gpipe" else "1F1B"
    lines.add("parallelism.pipeline_parallel_schedule", schedule, f"{vpp} chunks of layers on each chip")
    if vpp > 1 and layers is not None:
        lines.add("parallelism.pipeline_parallel_layers_per_stage", layers)
    elif vpp > 1:
        lines.lacks(f"vpp = {vpp}: chunks of unequal numbers of layers are not set by a number")


REMAT = {"none": "minimal_with_context", "selective": "minimal", "full": "full"}


def maxtext_settings(run: RunSettings, lines: SettingLines) -> None:
    """Configuration of MaxText; every degree is of the fast network, as the split over slices is the cluster's."""
    dp, pp, ep, m = run.count("dp"), run.count("pp"), run.count("ep"), run.count("n_microbatches")
    if run.name:
        lines.add("model_name", run.name)
    lines.add("max_target_length", round(run.seq_len))
    share = run.count("micro_batch_size") * dp * (m if pp > 1 else 1) / run.n_chips
    lines.add("per_device_batch_size", share, "sequences of a device in one pass")
    lines.add("num_pipeline_microbatches" if pp > 1 else "gradient_accumulation_steps", m, "microbatches per replica")
    is_sharded = run.zero_stage == 3
    group = run.shard_group if is_sharded else 1
    if ep > 1 and group % ep:
        lines.lacks(f"ep = {ep}: the axis of experts is part of that of FSDP; experts are not split")
        ep = 1
    lines.add("ici_fsdp_parallelism", group // ep, "ZeRO 3: replicas that share one copy of the weights")
    lines.add("ici_data_parallelism", dp // group)
    for name, part in (("tp", "tensor"), ("pp", "pipeline"), ("cp", "context")):
        lines.add(f"ici_{part}_parallelism", run.count(name))
    lines.add("ici_expert_parallelism", ep)
    if run.zero_stage == 1:
        lines.add("shard_optimizer_over_data", True, "ZeRO 1: optimizer state split over the replicas")
    if run.zero_stage == 2:
        lines.lacks("zero_stage = 2: plain replicas are written")
    if run.count("vpp") > 1:
        _maxtext_chunks(run, lines)
    lines.add("remat_policy", REMAT[run.recompute], "activations computed again in the backward pass")
    lines.add("dtype", {"fp16": "float16", "fp32": "float32"}.get(run.precision, "bfloat16"))
    if run.precision == "fp8":
        lines.add("quantization", "fp8", "matmuls in 8 bits")
    elif run.precision in ("fp4", "tf32"):
        lines.lacks(f"precision = {run.precision}: bfloat16 is written")


def _maxtext_chunks(run: RunSettings, lines: SettingLines) -> None:
    layers = run.layers_per_chunk()
    if layers is None:
        lines.lacks(f"vpp = {run.count('vpp')}: chunks of unequal numbers of layers")
    else:
        lines.add("num_layers_per_pipeline_stage", layers, f"{run.count('vpp')} chunks on each chip")


def deepspeed_settings(run: RunSettings, lines: SettingLines) -> None:
    """Configuration of DeepSpeed; the launcher sets the number of chips, the trainer length and recomputation."""
    lines.add("train_batch_size", run.global_batch, f"{run.count('dp')} replicas")
    lines.add("train_micro_batch_size_per_gpu", run.count("micro_batch_size"), "sequences of a microbatch")
    lines.add("gradient_accumulation_steps", run.count("n_microbatches"), "microbatches per replica")
    lines.add("zero_optimization.stage", run.zero_stage, "split state: 1 optimizer, 2 and gradients, 3 and weights")
    if run.plan.get("overlap_gradients"):
        lines.add("zero_optimization.overlap_comm", True, "gradients reduced beside the backward pass")
    lines.add("bf16.enabled", run.precision not in ("fp16", "fp32"))
    lines.add("fp16.enabled", run.precision == "fp16")
    if run.count("tp") > 1:
        lines.add("tensor_parallel.autotp_size", run.count("tp"), "chips that split each matrix")
    if run.count("cp") > 1:
        lines.add("sequence_parallel_size", run.count("cp"), "Ulysses: chips that split each sequence")
    for name in ("pp", "vpp", "ep"):
        if run.count(name) > 1:
            lines.lacks(f"{name} = {run.count(name)}: set in the code of the model, not in the configuration")
    if run.recompute != "none":
        lines.lacks(f"recompute = {run.recompute}: gradient_checkpointing of the trainer")
    if run.precision not in ("bf16", "fp16", "fp32"):
        lines.lacks(f"precision = {run.precision}: bf16 is written")
    lines.lacks(f"seq_len = {run.seq_len:g} and {run.n_chips} chips: of the trainer and the launcher")


def nanotron_settings(run: RunSettings, lines: SettingLines) -> None:
    """Configuration of nanotron."""
    for name in ("dp", "tp", "pp"):
        lines.add(f"parallelism.{name}", run.count(name))
    lines.add("parallelism.expert_parallel_size", run.count("ep"))
    lines.add("parallelism.context_parallel_size", run.count("cp"))
    lines.add("parallelism.pp_engine", "afab" if run.plan.get("schedule") == "gpipe" else "1f1b")
    lines.add("parallelism.tp_mode", "REDUCE_SCATTER" if run.plan.get("sequence_parallel") else "ALL_REDUCE")
    lines.add("parallelism.recompute_layer", run.recompute == "full", "activations computed again in the backward pass")
    lines.add("tokens.sequence_length", round(run.seq_len))
    lines.add("tokens.micro_batch_size", run.count("micro_batch_size"), "sequences of a microbatch")
    lines.add("tokens.batch_accumulation_per_replica", run.count("n_microbatches"), f"{run.global_batch} in a step")
    lines.add("optimizer.zero_stage", min(run.zero_stage, 1), "1: optimizer state split over the replicas")
    lines.add("model.dtype", {"fp16": "float16", "fp32": "float32"}.get(run.precision, "bfloat16"))
    if run.zero_stage > 1:
        lines.lacks(f"zero_stage = {run.zero_stage}: 1 is written")
    if run.count("vpp") > 1:
        lines.lacks(f"vpp = {run.count('vpp')}: pipelines are not interleaved")
    if run.recompute == "selective":
        lines.lacks("recompute = selective: none is written")
    if run.precision not in ("bf16", "fp16", "fp32"):
        lines.lacks(f"precision = {run.precision}: bfloat16 is written")
