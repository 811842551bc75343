"""Launch settings of DeepSpeed as JSON: batch, sharding, number formats; the model is defined in the user's code."""

from jaxscale.launch.writers.setting_lines import RunSettings, SettingLines


def deepspeed_settings(run: RunSettings, lines: SettingLines) -> None:
    """DeepSpeed configuration of a plan; launcher and trainer set chips, sequence length and recomputation."""
    tp, cp, pp = (run.count(name) for name in ("tp", "cp", "pp"))
    lines.n_ranks = run.count("dp") * tp * cp
    lines.add("train_batch_size", run.global_batch, f"{run.count('dp')} replicas")
    lines.add("train_micro_batch_size_per_gpu", run.count("micro_batch_size"), "sequences of a microbatch")
    lines.add("gradient_accumulation_steps", run.count("n_microbatches"), "microbatches per replica")
    stage = run.zero_stage
    # DeepSpeed's pipeline refuses ZeRO 2 and 3.
    if pp > 1 and stage > 1:
        lines.lacks(f"zero_stage = {stage}: refused with a pipeline; 1 is written")
        stage = 1
    lines.add("zero_optimization.stage", stage, "split state: 1 optimizer, 2 and gradients, 3 and weights")
    lines.add(
        "zero_optimization.overlap_comm", run.does("overlap_gradients"), "gradients reduced beside the backward pass"
    )
    if stage and run.shard_group < run.count("dp"):
        # MiCS, shards within a group, exists for ZeRO 3 alone.
        if stage == 3:
            lines.add("zero_optimization.mics_shard_size", run.shard_group, "replicas that share one copy")
        else:
            lines.lacks(f"shard_group = {run.shard_group}: all replicas share one copy")
    _formats(run, lines)
    if share := run.number("offload_optimizer", 0.0):
        lines.add("zero_optimization.offload_optimizer.device", "cpu", "optimizer state in the memory of the host")
        if stage == 3 and share < 1.0:
            lines.add("zero_optimization.offload_optimizer.ratio", share)
    if tp > 1:
        lines.add("tensor_parallel.autotp_size", tp, "chips that split each matrix")
    if cp > 1:
        lines.add("sequence_parallel_size", cp, "Ulysses: chips that split each sequence")
    _of_the_code(run, lines)


def _formats(run: RunSettings, lines: SettingLines) -> None:
    """Number formats of weights and gradients, and the optimizer."""
    lines.add("bf16.enabled", run.precision not in ("fp16", "fp32", "tf32"))
    lines.add("fp16.enabled", run.precision == "fp16")
    lines.add("optimizer.type", "AdamW")
    lines.add("optimizer.params.lr", 3e-4)
    lines.add("gradient_clipping", 1.0)
    if run.precision in ("fp8", "fp4"):
        lines.lacks(f"precision = {run.precision}: bf16 is written")
    if run.number("gradient_bytes", 2.0) != 2.0:
        lines.add("communication_data_type", "fp32", "gradients of 4 bytes travel")
        lines.add("data_types.grad_accum_dtype", "fp32")


def _of_the_code(run: RunSettings, lines: SettingLines) -> None:
    """Facts for which the DeepSpeed configuration has no key."""
    lines.lacks("model: shape, norms, positions and vocabulary are in the code that calls deepspeed.initialize")
    for name in ("pp", "vpp", "ep"):
        if run.count(name) > 1:
            lines.lacks(f"{name} = {run.count(name)}: set in the code of the model, not in the configuration")
    if run.count("pp") > 1:
        lines.lacks(f"schedule = {run.plan.get('schedule')}: of the pipeline in the code of the model")
    if run.does("sequence_parallel"):
        lines.lacks("sequence_parallel: set in the code of the model")
    if run.recompute != "none":
        lines.lacks(f"recompute = {run.recompute}: gradient_checkpointing of the trainer")
    elif run.recomputes_modules:
        lines.lacks("recompute_modules: set in the code of the model")
    lines.lacks(f"seq_len = {run.seq_len:g} and {run.n_chips} chips: of the trainer and the launcher")
