"""Settings of a framework as cells of a runs table, and the settings that no rule understands."""

import re
import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from jaxscale.base.errors import InputError
from jaxscale.launch.options import OFF, option_key, option_table, programs
from jaxscale.launch.readers.megatron_rules import megatron_cells
from jaxscale.launch.readers.settings_text import FORM, OPEN, Cells, ReadSettings, Settings
from jaxscale.launch.readers.titan_rules import titan_cells
from jaxscale.launch.readers.trainer_rules import (
    automodel_cells,
    kempnerforge_cells,
    nanotron_cells,
    torchtune_cells,
    trainer_cells,
    verl_cells,
)
from jaxscale.launch.readers.xla_rules import levanter_cells, maxtext_cells, torchprime_cells
from jaxscale.runs.schema import BY_NAME
from jaxscale.tables.cells import parse_cells
from jaxscale.tables.words import Names

PRECISION_KEYS = ("precision", "mixed_precision", "mixed_precision_param", "param_dtype", "dtype", "torch_dtype")


def precision_cell(settings: Mapping[str, Any]) -> str | None:
    """Precision of a run; None where no setting states a number format."""
    # Frameworks nest the keys differently; the last word of a key is common to all.
    last = {key.rsplit(".", 1)[-1].rsplit("/", 1)[-1]: value for key, value in settings.items()}
    recipe = str(last.get("fp8_recipe") or "").lower()
    # Narrow formats first: `fp8: true` stands beside `precision: bf16-mixed`.
    if last.get("fp4") or last.get("fp4_format"):
        return "nvfp4"
    if last.get("fp8") or last.get("fp8_format") or (last.get("fp8.enabled")):
        return "mxfp8" if "mxfp8" in recipe else "fp8"
    words = [str(last.get(key) or "").lower() for key in ("converters", "quantization", *PRECISION_KEYS)]
    if "quantize.linear.mx" in words[0] or "mxfp8" in words[0]:
        return "mxfp8"
    if any("fp8" in word or "float8" in word for word in words):
        return "mxfp8" if any("mxfp8" in word for word in words) else "fp8"
    if last.get("bf16") is True or any("bf16" in word or "bfloat16" in word for word in words):
        return "bf16"
    if settings.get("bf16.enabled") is True or settings.get("bfloat16_enabled") is True:
        return "bf16"
    # The name of a converter may contain "16"; only keys of precision decide here.
    if last.get("fp16") is True or settings.get("fp16.enabled") is True or any("16" in word for word in words[2:]):
        return "fp16"
    return None


FAMILIES = {
    # Keys that only one family has, by their last part.
    "verl": ("actor_rollout_ref",),
    "maxtext": ("ici_fsdp_parallelism", "per_device_batch_size", "remat_policy", "dcn_data_parallelism"),
    "torchtitan": (
        "data_parallel_shard_degree", "tensor_parallel_degree", "local_batch_size_per_rank", "converters", "model_spec",
    ),
    "levanter": ("per_device_parallelism", "fsdp_axis", "intermediate_dim", "model_axis_size"),
    "torchprime": ("ici_mesh", "dcn_mesh"),
    "torchtune": ("_component_", "enable_activation_checkpointing", "enable_activation_offloading"),
    "nanotron": ("batch_accumulation_per_replica", "tp_linear_async_communication", "recompute_layer"),
    "kempnerforge": ("dp_shard", "ffn_hidden_dim"),
    "automodel": ("local_batch_size", "pp_schedule", "ep_size", "dp_size"),
    "megatron": ("tensor_model_parallel_size", "pipeline_model_parallel_size", "recompute_granularity"),
    "deepspeed": (
        "per_device_train_batch_size", "train_micro_batch_size_per_gpu", "zero_optimization", "fsdp_sharding_strategy",
        "distributed_type", "sequence_len", "gradient_accumulation_steps", "base_model", "finetuning_type",
        "micro_train_batch_size", "distributed_mode", "shard_mode", "zero_stage", "initial_checkpoint_dir",
    ),
}  # fmt: skip

TABLES: Mapping[str, tuple[str, ...]] = {
    "megatron": ("megatron-lm", "megatron-bridge"),
    "torchtitan": ("torchtitan", "torchtitan-main", "torchtitan-toml"),
    "maxtext": ("maxtext",),
    "nanotron": ("nanotron",),
    "deepspeed": ("deepspeed",),
    "automodel": ("nemo-automodel",),
}
"""Tables of options of each family."""

FURTHER: Mapping[str, tuple[str, ...]] = {
    "megatron": ("ms-swift",),
    "deepspeed": (
        "transformers",
        "accelerate",
        "trl",
        "llama-factory",
        "axolotl",
        "ms-swift",
        "openrlhf",
        "litgpt",
        "peft",
        "unsloth",
    ),
    "verl": ("verl",),
    "torchtune": ("torchtune",),
    "levanter": ("levanter",),
}
"""Tables by which a key of a family is known that sets no column."""


@cache
def columns_by_key() -> Mapping[str, Mapping[str, str]]:
    """Columns of the runs table by family and key: those of the tables of options, and `settings_columns.toml`."""
    text = files("jaxscale.launch.readers").joinpath("settings_columns.toml").read_text(encoding="utf-8")
    found: dict[str, Mapping[str, str]] = {}
    for family, own in tomllib.loads(text).items():
        columns: dict[str, str] = {}
        for framework in TABLES.get(family, ()):
            for key, column in option_table(framework).columns().items():
                columns.setdefault(key.rsplit(".", 1)[-1], column)
        found[family] = {**columns, **own}
    return found


@cache
def words_of_switches(family: str) -> Mapping[str, tuple[str, str]]:
    """Column of the runs table and its word by flag, for words that the column takes; switches of formats are apart."""
    names = (*TABLES.get(family, ()), *FURTHER.get(family, ()))
    found = {key.lower(): told for name in names for key, told in option_table(name).switches().items()}
    switches = {key: told for key, told in found.items() if not {*FORMATS, "enabled"} & {*key.split(".")[-2:]}}
    return {key: told for key, told in switches.items() if told[0] in BY_NAME and takes_word(*told)}


def takes_word(column: str, word: str) -> bool:
    """Whether a column of the runs table takes a word."""
    return not parse_cells(BY_NAME[column], [word], Names()).problems


@cache
def known_keys(family: str) -> Mapping[str, tuple[Any, ...]]:
    """Keys of a family by last part, with the defaults of those that decide a column."""
    names = [name for name in (*TABLES.get(family, ()), *FURTHER.get(family, ())) if name in programs()]
    found: dict[str, tuple[Any, ...]] = dict.fromkeys(map(option_key, columns_by_key().get(family, {})), ())
    for name in names:
        for key, option in option_table(name).options.items():
            last = key.lower().rsplit(".", 1)[-1]
            decides = re.match(r"\w+", option.column)
            # An option with the default value is no open question.
            found[last] = found.get(last, ()) + ((option.default,) if decides and decides[0] in BY_NAME else ())
    told = (*PRECISION_KEYS, *LAUNCHER, *WITHOUT_EFFECT, *FORMATS, "program", "form", "open", "cfg/")
    return {**found, **dict.fromkeys(told, ())}


def framework_family(settings: Settings) -> str | None:
    """Family of frameworks to which the keys of settings belong; None for an unknown family."""
    # Options with an unknown value tell the program as well as options with a value.
    parts = {part for key in (*settings, *settings.get(OPEN, ())) for part in key.split(".")}
    counts = {family: sum(key in parts for key in keys) for family, keys in FAMILIES.items()}
    program = str(settings.get("program") or "")
    if program:
        own = {"ms-swift megatron": "megatron", "verl": "verl", "torchtune": "torchtune"}
        return own.get(program, "deepspeed")
    # verl's files also hold keys of Megatron and FSDP, below `actor_rollout_ref`.
    if counts["verl"]:
        return "verl"
    best = max(counts, key=lambda family: counts[family])
    return best if counts[best] else None


def understood_cells(settings: Settings, family: str, is_complete: bool = False) -> tuple[Cells, tuple[str, ...]]:
    """Cells of the runs table from the settings of a family, and the keys that no rule understands.

    Args:
        settings: value by key.
        family: of frameworks, one of `FAMILIES`.
        is_complete: whether an option that is absent has the program's default, as on a command line.

    Raises:
        InputError: a value of the wrong type; names the setting.
    """
    read = ReadSettings(settings, is_complete)
    cells: Cells = {}
    for name, column in columns_by_key().get(family, {}).items():
        value = read.value(name)
        # "auto" leaves the value to the program.
        if column not in cells and value not in (None, "", "auto"):
            cells[column] = _cell(value)
    try:
        ruled = _RULES[family](read, cells)
    except (ValueError, TypeError, ZeroDivisionError):
        raise InputError(
            f"{read.last} = {settings.get(read.last)!r} cannot be read; expected a value that {family} takes"
        ) from None
    # Rules see several settings at once and override plain copies.
    cells |= {name: value for name, value in ruled.items() if value is not None}
    for name, (column, word) in words_of_switches(family).items():
        if read.flag(name) and cells.get(column) in (None, "none"):
            cells[column] = word
    if precision := precision_cell(settings):
        cells["precision"] = precision
    unknown = [name for name in settings.get(OPEN, ()) if name not in (*WITHOUT_EFFECT, *LAUNCHER)]
    unread = (*unread_keys(settings, family, read), *unknown)
    # What a setting decides that nobody understands is not known, whatever the others say.
    keys = [key.rsplit(".", 1)[-1] for key in unread if key not in read.doubtful]
    undecided = {column for key in keys for column in decided_columns(family).get(key, ())}
    undecided |= {"n_gpus"} if {*settings.get(OPEN, ())} & {*LAUNCHER} else set()
    # Programs write -1 for "by default" or "the remaining devices".
    cells = {name: value for name, value in cells.items() if value not in (-1, "-1") and name not in undecided}
    if settings.get(FORM) == "options":
        untold = (name for name in UNSPLIT if name not in cells.keys() | ruled.keys() | undecided)
        cells |= dict.fromkeys(untold, 1)
    return cells, unread


UNSPLIT = ("vpp", "cp", "ep")
"""Degrees that are 1 where a command line has no option for them."""


@cache
def decided_columns(family: str) -> Mapping[str, frozenset[str]]:
    """Columns of the runs table by the last part of the key that decides them."""
    found = {name: {column} for name, column in columns_by_key().get(family, {}).items()}
    for name in (*TABLES.get(family, ()), *FURTHER.get(family, ())):
        for key, option in option_table(name).options.items():
            first = re.match(r"\w+", option.column)
            columns = {first[0]} & BY_NAME.keys() if first else set()
            found.setdefault(key.lower().rsplit(".", 1)[-1], set()).update(columns)
    return {name: frozenset(columns) for name, columns in found.items()}


def unread_keys(settings: Settings, family: str, read: ReadSettings) -> tuple[str, ...]:
    """Keys of settings that no rule reads and no table of the family lists, in their order.

    A key that the table lists as one that decides a column is among them, unless it is off or has its default.
    """
    known = known_keys(family)

    def is_read(key: str, value: Any) -> bool:
        *tables, last = key.split(".")
        if any(table in OPAQUE or table in FORMATS for table in tables):
            return True
        # No defaults listed: the key decides no column, any value is harmless.
        return last in known and (not known[last] or value in OFF or value in known[last])

    return tuple(
        key
        for key, value in settings.items()
        if key in read.doubtful or key not in read.understood and not is_read(key, value)
    )


LAUNCHER = (
    "nnodes", "nproc_per_node", "node_rank", "master_addr", "master_port", "rdzv_backend", "rdzv_endpoint",
    "rdzv_id", "cuda_device_max_connections", "cuda_visible_devices", "nproc", "address", "module", "config",
    "config_path", "config_name", "world_size", "rank", "local_rank", "log_dir", "max_restarts", "standalone",
    "distributed_type", "num_machines", "machine_rank",
)  # fmt: skip
"""Options of launchers and variables of the environment, which decide nothing about a step."""

FORMATS = (
    "converters", "bfloat16_enabled", "fp8", "fp4", "fp8_recipe", "quantization", "bf16", "fp16", "tf32",
    "fp8_format", "fp4_format",
)  # fmt: skip
"""Further keys by which a number format is told."""

WITHOUT_EFFECT = (
    "learning_rate", "lr", "lr_scheduler", "lr_scheduler_type", "warmup_steps", "warmup_ratio", "num_train_epochs",
    "num_epochs", "max_epochs", "max_steps", "weight_decay", "seed", "output_dir", "dataset_dir", "do_train",
    "strict", "overwrite_cache", "overwrite_output_dir", "preprocessing_num_workers", "dataloader_num_workers",
    "dataset", "datasets", "dataset_prepared_path", "val_set_size", "val_size", "max_samples", "logging_steps",
    "save_steps", "eval_steps", "evaluation_strategy", "eval_strategy", "save_strategy",
    "per_device_eval_batch_size", "ddp_timeout", "evals_per_epoch", "saves_per_epoch", "resume_from_checkpoint",
    "early_stopping_patience", "tokenizer_type", "train_on_inputs", "group_by_length", "debug", "report_to",
    "plot_loss", "save_total_limit", "max_grad_norm", "actor_learning_rate", "critic_learning_rate", "init_kl_coef",
    "pad_token", "wandb_project", "wandb_name", "push_to_hub", "hub_model_id", "save_interval", "log_interval",
    "eval_interval", "eval_iters", "data_path", "split", "num_train_steps", "train_iters", "work_group",
    "user_name", "exp_name", "run_name", "dataset_type", "shuffle", "epochs", "max_steps_per_epoch", "device",
    "random_state", "dataset_name", "max_tokens", "out_dir", "resume", "initial_checkpoint_dir", "checkpoint_dir",
    "tokenizer", "train_dataset", "profile_start_step", "train_path", "packing", "sample_packing",
    "eval_sample_packing", "pad_to_sequence_len", "fsdp_transformer_layer_cls_to_wrap", "fsdp_auto_wrap_policy",
    "fsdp_state_dict_type", "fsdp_use_orig_params", "fsdp_sync_module_states", "fsdp_cpu_ram_efficient_loading",
    "fused", "lr_warmup_steps", "model_type", "random_init", "is_mistral_derived_model",
)  # fmt: skip
"""Keys that decide what is learned, from which data and what is kept of it, and nothing about a step's time."""

OPAQUE = (
    "tok_embeddings", "lm_head", "norm", "params", "dataset", "datasets", "special_tokens", "metrics", "checkpoint",
    "tokenizer", "validator", "tracker", "checkpointer", "eval", "lr_warmup", "dataloader", "profiler", "profiling",
    "scheduler", "lr_scheduler", "logging", "validation", "rope",
)  # fmt: skip
"""Tables of settings of which none decides a step's time, or whose sizes follow from others."""


def _cell(value: Any) -> Any:
    """A value as a cell: lists joined by +."""
    return "+".join(map(str, value)) if isinstance(value, list | tuple) else value


_RULES: Mapping[str, Callable[[ReadSettings, Cells], Cells]] = {
    "megatron": megatron_cells,
    "torchtitan": titan_cells,
    "maxtext": maxtext_cells,
    "nanotron": nanotron_cells,
    "deepspeed": trainer_cells,
    "automodel": automodel_cells,
    "kempnerforge": kempnerforge_cells,
    "levanter": levanter_cells,
    "torchprime": torchprime_cells,
    "torchtune": torchtune_cells,
    "verl": verl_cells,
}
