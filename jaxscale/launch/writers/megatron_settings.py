"""Settings of Megatron-LM, as options, and of Megatron-Bridge, as an override in YAML."""

from jaxscale.launch.writers.launch_values import RunSettings
from jaxscale.launch.writers.setting_lines import SettingLines

DEGREES = {
    "tp": ("tensor-model-parallel-size", "chips that split each matrix"),
    "pp": ("pipeline-model-parallel-size", "stages of the pipeline"),
    "cp": ("context-parallel-size", "chips that split each sequence"),
    "ep": ("expert-model-parallel-size", "chips that share the experts"),
}
SHAPE = {
    "n_layers": "num-layers",
    "d_model": "hidden-size",
    "d_ff": "ffn-hidden-size",
    "n_heads": "num-attention-heads",
    "head_dim": "kv-channels",
    "n_experts": "num-experts",
    "moe_top_k": "moe-router-topk",
    "d_ff_expert": "moe-ffn-hidden-size",
}
CHIPS_OF_A_NODE = 8
"""Processes of a node in the launcher's options [1]."""


def megatron_settings(run: RunSettings, lines: SettingLines) -> None:
    """Options of Megatron-LM, those of torchrun first."""
    per_node = min(CHIPS_OF_A_NODE, run.n_chips)
    lines.add("--nnodes", run.n_chips // per_node, "of torchrun")
    lines.add("--nproc-per-node", per_node, f"{run.n_chips} chips: {run.count('dp')} replicas")
    for name, key in SHAPE.items():
        if run.model.get(name) and not (name.startswith(("n_exp", "moe", "d_ff_e")) and not run.is_mixture):
            lines.add(f"--{key}", f"{float(run.model[name]):g}" if float(run.model[name]) < 1e6 else run.model[name])
    if run.model.get("n_kv_heads"):
        lines.add("--group-query-attention", True)
        lines.add("--num-query-groups", f"{float(run.model['n_kv_heads']):g}")
    if run.model.get("gated_mlp"):
        lines.add("--swiglu", True)
    lines.add("--seq-length", round(run.seq_len))
    _common(run, lines, lambda key: f"--{key}")
    if run.precision == "fp16":
        lines.add("--fp16", True, "number format of the weights")
    elif run.precision != "fp32":
        lines.add("--bf16", True, "number format of the weights")
    if run.precision == "fp4":
        lines.lacks("fp4: the options of a release differ; --bf16 is written")
    if run.precision == "fp8":
        lines.add("--fp8-format", "hybrid", "matmuls in 8 bits")
    if run.count("tp") > 1 and run.plan.get("sequence_parallel"):
        lines.add("--sequence-parallel", True, "norms split over the tensor group")
    if run.zero_stage == 1 or run.zero_stage == 2:
        lines.add("--use-distributed-optimizer", True, "ZeRO 1: optimizer state split over the replicas")
        if run.plan.get("overlap_gradients"):
            lines.add("--overlap-grad-reduce", True, "gradients reduced beside the backward pass")
    if run.zero_stage == 3:
        lines.add("--use-torch-fsdp2", True, "ZeRO 3: weights split as well")
    _shared_limits(run, lines)


def bridge_settings(run: RunSettings, lines: SettingLines) -> None:
    """Overrides of a recipe of Megatron-Bridge."""
    lines.add("model.num_layers", round(float(run.model["n_layers"])))
    lines.add("model.hidden_size", round(float(run.model["d_model"])))
    lines.add("model.num_attention_heads", round(float(run.model["n_heads"])))
    lines.add("model.seq_length", round(run.seq_len))
    _common(run, lines, lambda key: ("train." if "batch" in key else "model.") + key.replace("-", "_"))
    lines.add("model.sequence_parallel", bool(run.count("tp") > 1 and run.plan.get("sequence_parallel")))
    if run.precision == "fp8":
        lines.add("model.fp8", "hybrid", "matmuls in 8 bits")
    lines.add("mixed_precision", "fp16_mixed" if run.precision == "fp16" else "bf16_mixed")
    if run.precision in ("fp4", "fp32", "tf32"):
        lines.lacks(f"{run.precision}: recipes name it by chip and release; bf16_mixed is written")
    lines.add("ddp.use_distributed_optimizer", run.zero_stage in (1, 2), "ZeRO 1: optimizer state split over replicas")
    if run.zero_stage == 3:
        lines.add("ddp.use_megatron_fsdp", True, "ZeRO 3: weights split as well")
    lines.add("trainer.num_nodes", max(1, run.n_chips // CHIPS_OF_A_NODE), f"{run.n_chips} chips")
    lines.add("trainer.devices", min(CHIPS_OF_A_NODE, run.n_chips))
    _shared_limits(run, lines)


def _common(run: RunSettings, lines: SettingLines, spelt) -> None:  # noqa: ANN001 - a function of text
    """Degrees, batch and recomputation, which both programs have under the same names."""
    for name, (key, comment) in DEGREES.items():
        if name in ("tp", "pp") or run.count(name) > 1:
            lines.add(spelt(key), run.count(name), comment)
    if run.count("vpp") > 1:
        _chunks(run, lines, spelt)
    lines.add(spelt("micro-batch-size"), run.count("micro_batch_size"), "sequences of a microbatch")
    lines.add(spelt("global-batch-size"), run.global_batch, f"{run.count('n_microbatches')} microbatches per replica")
    if run.recompute != "none":
        lines.add(spelt("recompute-granularity"), run.recompute, "activations computed again in the backward pass")
    if run.recompute == "full":
        lines.add(spelt("recompute-method"), "uniform")
        lines.add(spelt("recompute-num-layers"), 1)


def _chunks(run: RunSettings, lines: SettingLines, spelt) -> None:  # noqa: ANN001 - a function of text
    """Interleaved chunks: by their layers as an option, by their number in a recipe."""
    is_option = spelt("x").startswith("--")
    layers = run.layers_per_chunk()
    if not is_option:
        lines.add(spelt("virtual-pipeline-model-parallel-size"), run.count("vpp"), "chunks of layers on each chip")
    elif layers is not None:
        lines.add(spelt("num-layers-per-virtual-pipeline-stage"), layers, f"{run.count('vpp')} chunks on each chip")
    else:
        lines.lacks(f"vpp = {run.count('vpp')}: chunks of unequal numbers of layers need a layout of their own")


def _shared_limits(run: RunSettings, lines: SettingLines) -> None:
    """What neither program can say."""
    if run.zero_stage == 2:
        lines.lacks("zero_stage = 2: gradients stay whole between microbatches; ZeRO 1 is written")
    if run.plan.get("schedule") == "gpipe":
        lines.lacks("schedule = gpipe: pipelines run 1f1b")
    if run.zero_stage and run.shard_group < run.count("dp"):
        lines.lacks(f"shard_group = {run.shard_group}: set --num-distributed-optimizer-instances by hand")
