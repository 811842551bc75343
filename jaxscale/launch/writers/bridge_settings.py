"""Launch settings of Megatron-Bridge: a Python configuration on the common base of the recipes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxscale.base.documents import read_toml
from jaxscale.launch.writers.megatron_settings import megatron_settings
from jaxscale.launch.writers.setting_lines import Code, RunSettings, SettingLines, keyword_lines, python_value, refusal

_NAMES = read_toml(Path(__file__).with_name("names.toml"))["bridge"]

FIELDS: Mapping[str, str] = _NAMES["fields"]
"""Fields of options whose name differs by more than the section `model`."""

FLAGS: Mapping[str, tuple[str, bool]] = _NAMES["flags"]
"""Field of a flag and its value where the flag is set; it has the other one where not."""

DROPPED: list[str] = _NAMES["dropped"]["options"]
"""Options without a field, or that are written otherwise."""


def bridge_settings(run: RunSettings, lines: SettingLines) -> None:
    """Fields of the Megatron-Bridge configuration: Megatron-LM options under the names of the fields."""
    # Megatron-Bridge runs on megatron-core: fields are options under further names.
    options = SettingLines()
    megatron_settings(run, options)
    lines.environment |= options.environment
    lines.missing += options.missing
    lines.not_expressed += options.not_expressed
    stated = {key: (value, comment) for key, value, comment in options.entries}
    for key, (value, comment) in stated.items():
        if key not in FLAGS and key not in DROPPED:
            lines.add(FIELDS.get(key, "model." + key[2:].replace("-", "_")), _value(key, value), comment)
    for key, (name, when_set) in FLAGS.items():
        if key != "--no-bias-swiglu-fusion" or run.shape.is_gated:
            # Recipes have defaults: a flag is written whether set or not.
            lines.add(name, when_set if key in stated else not when_set, stated.get(key, (None, ""))[1])
    if run.shape.is_gated:
        lines.add("model.activation_func", Code("F.silu"))
    if run.shape.is_latent:
        lines.add("model.apply_rope_fusion", False)
    if run.count("vpp") > 1 and not run.shape.is_hybrid:
        lines.add("model.virtual_pipeline_model_parallel_size", run.count("vpp"), "chunks of layers on each chip")
    if "--pipeline-model-parallel-layout" in stated:
        lines.add("model.pipeline_model_parallel_layout", *stated["--pipeline-model-parallel-layout"])
    _training(run, lines)


def _training(run: RunSettings, lines: SettingLines) -> None:
    """Fields that the program has and Megatron-LM's options have not."""
    lines.add("model.vocab_size", run.shape.count("vocab_size"))
    # Without padding, tp must divide the vocabulary.
    lines.add("model.should_pad_vocab", bool(run.shape.count("vocab_size") % run.count("tp")))
    lines.add("dataset.seq_length", run.tokens, "equal to that of the model")
    lines.add("ddp.grad_reduce_in_fp32", run.number("gradient_bytes", 4.0) != 2.0)
    for name in ("params_dtype", "pipeline_dtype", "autocast_dtype"):
        kind = {"fp16": "float16", "fp32": "float32", "tf32": "float32"}.get(run.precision, "bfloat16")
        lines.add(f"mixed_precision.{name}", Code(f"torch.{kind}"))
    if not any(key == "model.cuda_graph_impl" for key, _, _ in lines.entries):
        lines.add("model.cuda_graph_impl", "none")
    lines.add("scheduler.lr_warmup_iters", 10)
    lines.add("validation.eval_interval", 50)


def _value(key: str, value: Any) -> Any:
    """Value of an option as the field takes it."""
    if key == "--window-size":
        return tuple(int(part) for part in str(value).split(","))
    if key in ("--window-attn-skip-freq", "--moe-layer-freq"):
        # Fields take a Python list where options take the list in parentheses.
        return Code(str(value)[1:-1])
    if key == "--attention-backend":
        return Code(f"AttnBackend.{value}")
    return value


def bridge_script(run: RunSettings, lines: SettingLines, release: str) -> str:
    """Python program that trains with the configuration."""
    provider, module = "GPTModelProvider", "gpt_provider"
    if run.shape.is_latent:
        provider, module = "MLAModelProvider", "mla_provider"
    if run.shape.is_hybrid:
        provider, module = "MambaModelProvider", "mamba.mamba_provider"
    model = [(key[6:], value, comment) for key, value, comment in lines.entries if key.startswith("model.")]
    rest = [entry for entry in lines.entries if not entry[0].startswith("model.")]
    environment = " ".join(f"{name}={value}" for name, value in lines.environment.items())
    per_node = run.ranks_per_node
    return (
        "\n".join(
            [
                f"# Megatron-Bridge {release}",
                f"# {environment} torchrun --nnodes {run.n_nodes} --nproc-per-node {per_node} FILE.py".replace(
                    "#  ", "# "
                ),
                *lines.remarks(),
                *refusal(lines.missing),
                "import torch",
                "import torch.nn.functional as F",
                "from megatron.core.transformer.enums import AttnBackend",
                f"from megatron.bridge.models.{module} import {provider}",
                "from megatron.bridge.recipes.common import _pretrain_common",
                "from megatron.bridge.training.comm_overlap import CommOverlapConfig",
                "from megatron.bridge.training.gpt_step import forward_step",
                "from megatron.bridge.training.mixed_precision import MixedPrecisionConfig",
                "from megatron.bridge.training.pretrain import pretrain",
                "",
                "cfg = _pretrain_common()",
                f"cfg.model = {provider}(",
                *keyword_lines(model),
                ")",
                "cfg.mixed_precision = MixedPrecisionConfig()",
                "cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=False)",
                *(
                    f"cfg.{key} = {python_value(value)}{f'  # {comment}' if comment else ''}"
                    for key, value, comment in rest
                ),
                "pretrain(cfg, forward_step)",
            ]
        )
        + "\n"
    )
