"""Columns of a runs table: content, valid values and meaning of an empty cell; and the table in memory."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from jaxscale.base.documents import data_path, read_toml
from jaxscale.base.errors import InputError, one_like
from jaxscale.models.model_domain import MODEL
from jaxscale.plans.plan_domain import PLAN
from jaxscale.tables.cells import Column, Kind, Value, parse_cells, show
from jaxscale.tables.schema import Headings
from jaxscale.tables.table import AbstractTable
from jaxscale.tables.words import SHAPE, Names, vocabularies

# Bounds that no machine comes near: a larger value is a slip, and is refused before anything is sized by it.
MAX_GPUS = 1e8
MAX_BATCH = 1e10

BATCH = "global_batch_size_seqs"
"""Column that may state tokens in place of sequences."""


def _kernels() -> dict[str, str]:
    """Attention kernels that a cell may name."""
    known = vocabularies()["kernels"]
    return {name: name for name in (*known["flash"], *known["materialised"])}


def _count(name: str, meaning: str, default: str = "", maximum: float = MAX_GPUS) -> Column:
    return Column(name, "integer", meaning, "1", default or "the row is incomplete", not default, maximum=maximum)


def _of_model(name: str, meaning: str, default: str = "as usual", unit: str = "1", required: bool = False) -> Column:
    """Whole number of a model, within its bound in the domain of models."""
    bound, default = MODEL.bounds[name], "from the catalogue model" + (f", else {default}" if default else "")
    least = 1 if bound.is_above else int(bound.low)
    return Column(name, "integer", meaning, unit, default, required, minimum=least, maximum=bound.high)


def _shape_share(name: str, meaning: str) -> Column:
    return Column(name, "share", meaning, "1", "from the catalogue model, else as usual")


def _shape_flag(name: str, meaning: str) -> Column:
    return Column(name, "flag", meaning, "", "from the catalogue model, else false")


def _of_software(name: str, kind: Kind, meaning: str, vocabulary: str = "", unit: str = "") -> Column:
    """Choice of software, a number within its bound in the domain of plans."""
    most = PLAN.bounds[name].high if name in PLAN.bounds else 1e12
    return Column(name, kind, meaning, unit, "of the framework", vocabulary=vocabulary, maximum=most)


def _measured(name: str, meaning: str, unit: str, maximum: float) -> Column:
    return Column(name, "number", meaning, unit, "not measured", maximum=maximum)


COLUMNS = (
    Column("source", "text", "where the row comes from; one name per table"),
    Column("source_row", "text", "place in the source: file and line, sheet and row"),
    Column("model", "text", "name of the model; a catalogue name fills the shape columns"),
    Column(
        "model_file",
        "text",
        "TOML with fields of a `Transformer`, or a config.json of Hugging Face, that fills the shape columns",
        default="the model's, or the row's own shape",
    ),
    Column(
        "workload",
        "text",
        "traced workload in place of a model: a file that `Workload.save` wrote, or a step of `jaxscale.examples`",
        default="the row has a model",
    ),
    Column("framework", "name", "training framework", default="defaults of an unnamed framework"),
    Column("release", "text", "release of the framework or of the benchmark"),
    _of_model("n_layers", "depth", "", required=True),
    _of_model("d_model", "width", "", required=True),
    _of_model("n_heads", "query heads", "", required=True),
    _of_model("n_kv_heads", "key/value heads", "n_heads"),
    _of_model("d_ff", "width of the MLP, of one expert in a MoE", "4 d_model"),
    Column("gated_mlp", "flag", "MLP has a gate matrix", "", "from the catalogue model, else false"),
    _of_model("vocab_size", "vocabulary", "of the source, else 51200"),
    _of_model("n_experts", "experts in each MoE layer", "1 (dense)"),
    _of_model("moe_top_k", "experts that see each token", "1"),
    _of_model("head_dim", "width of a query and key head", "as usual"),
    Column(
        "tied_embeddings", "flag", "input and output embeddings are one matrix", "", "from the catalogue, else false"
    ),
    _of_model("d_ff_expert", "inner width of one expert", "as usual"),
    _of_model("n_shared_experts", "experts that see every token"),
    _of_model("n_dense_layers", "layers of a mixture whose MLP is dense"),
    _of_model("moe_latent_size", "width of the projection on which routed experts work; 0 for d_model"),
    _of_model("q_lora_rank", "rank of the query projection of latent attention; 0 for a full one"),
    _of_model("kv_lora_rank", "rank of the key/value projection of latent attention; 0 for a full one"),
    _of_model("rope_head_dim", "rotary part of a latent-attention head"),
    _of_model("v_head_dim", "width of a value head", "as usual"),
    _of_model("window", "keys that a sliding-window layer attends to", unit="token"),
    _shape_share("window_share", "share of attention layers with a sliding window"),
    _of_model("window_heads", "query heads of a layer with a window", "n_heads"),
    _of_model("window_kv_heads", "key/value heads of a layer with a window", "n_kv_heads"),
    _of_model("window_head_dim", "width of a head of a layer with a window", "head_dim"),
    _of_model("window_v_head_dim", "width of a value head of a layer with a window", "v_head_dim"),
    _shape_flag("window_shared_key_value", "one projection makes keys and values of a layer with a window"),
    _of_model("n_attention_layers", "layers with attention"),
    _of_model("n_mlp_layers", "layers with an MLP"),
    _of_model("n_ssm_layers", "state-space layers"),
    _of_model("ssm_d_inner", "inner width of a state-space layer"),
    _of_model("ssm_state", "state of a state-space layer"),
    _of_model("ssm_groups", "groups of a state-space layer"),
    _of_model("n_predict_layers", "layers for multi-token prediction"),
    _of_model("o_lora_rank", "rank of the output projection of attention, over all its groups; 0 for a full one"),
    _of_model("o_groups", "groups of heads of a low-rank output projection", "1"),
    _of_model("position_embeddings", "learned positions", unit="token"),
    _shape_flag("shared_key_value", "one projection makes keys and values"),
    _shape_flag("attention_gate", "a gate multiplies the output of attention"),
    _shape_flag("expert_bias", "the output of a routed expert has a bias"),
    Column("causal", "flag", "a token attends to earlier ones alone", "", "true"),
    _shape_share("trainable_share", "share of the weights that receive gradients; 0 for low-rank adapters"),
    _count("seq_len", "sequence length [token]", maximum=1e9),
    Column("gpu", "chip", "catalogue id of the chip", "", "the row is incomplete", True),
    _count("n_gpus", "chips in the run"),
    _count("gpus_per_node", "chips in a scale-up domain, or in a tray of one", "of the chip"),
    Column("inter_node_gbit_per_s_per_gpu", "number", "scale-out bandwidth", "Gbit/s", "of the chip", maximum=1e6),
    Column("precision", "word", "number format of the matmuls", default="of the framework", vocabulary="precisions"),
    _count("tp", "tensor-parallel degree"),
    _count("pp", "pipeline-parallel degree"),
    _count("vpp", "pipeline chunks on each chip", "1"),
    *(
        Column(
            name,
            "integer",
            text,
            "1",
            "its share, one less of more chunks than layers, or of the facts of a table",
            minimum=0,
            maximum=1e9,
        )
        for name, text in (
            ("first_stage_layers", "layers of the first pipeline stage; 0 for its share"),
            ("last_stage_layers", "layers of the last pipeline stage, beside the logits head; 0 for its share"),
        )
    ),
    _count("cp", "context-parallel degree", "1"),
    _count("ep", "expert-parallel degree", "1"),
    _count("dp", "data-parallel degree", "n_gpus / (tp pp cp)"),
    Column(
        "etp",
        "integer",
        "ways in which each expert is split; 0 where they follow from tp and ep",
        "1",
        "of the framework",
        minimum=0,
        maximum=1e9,
    ),
    Column(
        "split_classes",
        "text",
        "classes, joined by +, that tp divides in a traced workload",
        default="of the best plan",
    ),
    Column(
        "table_placement",
        "word",
        "where a traced workload has its embedding tables",
        default="of the best plan",
        vocabulary="table_placement",
    ),
    Column(
        "joint_statistics",
        "flag",
        "norms over the batch of a traced workload see the batch of all chips",
        default="true, as the program says",
    ),
    _count("shard_group", "chips that share one sharded copy of the state", "dp"),
    Column("zero_stage", "integer", "ZeRO stage; 3 is FSDP", "1", "of the framework", minimum=0, maximum=3.0),
    Column("sequence_parallel", "flag", "norms and dropout split over tp", default="of the framework"),
    Column("activation_recompute", "word", "recomputed part", default="of the framework", vocabulary="recompute"),
    Column(
        "recompute_modules",
        "words",
        "modules that are recomputed, joined by +",
        default="activation_recompute counts",
        vocabulary="recompute_modules",
    ),
    Column(
        "schedule", "word", "order of the microbatches", "", "1f1b, interleaved where vpp > 1", vocabulary="schedule"
    ),
    Column(
        "offload",
        "words",
        "none, activations or optimizer, joined by +: what the host's memory holds",
        default="none",
        vocabulary="offload",
    ),
    _of_software("execution", "word", "how kernels are launched", "execution"),
    _of_software("tp_overlap", "word", "passes whose tensor-parallel collectives run beside matmuls", "tp_overlap"),
    _of_software("overlap_gradients", "flag", "gradients reduced beside the last backward pass"),
    _of_software("overlap_gathers", "flag", "FSDP gathers the next layer while one runs"),
    _of_software("moe_dispatcher", "word", "how tokens reach their experts", "moe_dispatcher"),
    _of_software("moe_overlap", "flag", "exchanges of experts beside the compute of another microbatch"),
    _of_software(
        "expert_skew", "amount", "exponent of the popularity of experts; 0 where all are equally busy", "", "1"
    ),
    _of_software(
        "expert_load", "amount", "copies on the hottest rank of experts over the mean; 0 by the skew", "", "1"
    ),
    _of_software("capacity_factor", "amount", "copies that an expert takes over the mean; 0 for no limit", "", "1"),
    _of_software("balanced_experts", "flag", "experts are placed by their load"),
    Column("attention_kernel", "name", "attention kernel", default="of the framework", words=_kernels()),
    _of_software("fused_norm", "flag", "norms are fused kernels"),
    _of_software("fused_glu", "flag", "one kernel gates the MLP and keeps its inputs alone"),
    _of_software("chunked_loss", "flag", "logits are made and used in chunks of tokens"),
    _of_software("vocab_parallel_loss", "flag", "the loss works on logits that stay split over tp"),
    _of_software("optimizer", "word", "optimizer", "optimizer"),
    _of_software("optimizer_bytes", "number", "optimizer state and master copy of a weight", "", "byte"),
    _of_software("gradient_bytes", "number", "a gradient while replicas reduce it", "", "byte"),
    _of_software("weight_bytes", "number", "a stored weight", "", "byte"),
    _of_software("loss_bytes", "number", "memory per logit while the loss is taken", "", "byte"),
    Column(
        "adapter",
        "word",
        "adapters beside frozen weights",
        "",
        "lora where lora_rank or lora_targets is stated, else none",
        vocabulary="adapter",
    ),
    Column("lora_rank", "integer", "rank of the adapters; 0 for none", "1", "of the framework", minimum=0, maximum=1e6),
    _of_software("lora_targets", "words", "matmuls with an adapter, joined by +", "lora_targets"),
    _of_software("adapter_bytes", "amount", "an input of a matmul that is kept for adapters", "", "byte"),
    _of_software("autocast", "flag", "the residual stream stays in 32 bits, matmuls cast their inputs"),
    _of_software("wide_weights", "flag", "trained weights are kept in 32 bits alone"),
    _of_software("narrow_gate", "flag", "gate and input of the MLP are kept as narrow as matmuls read"),
    _of_software("kept_gate", "flag", "a compiler keeps the activated gate and the product of the MLP"),
    _of_software("copied_attention", "flag", "the output of attention is copied for the next matmul"),
    _of_software("dropout", "flag", "masks of dropout are kept"),
    _of_software("kept_gradients", "flag", "a buffer holds all gradients through the whole step"),
    _of_software("gradient_copy_bytes", "amount", "a second copy of a gradient, which replicas reduce", "", "byte"),
    _of_software("held_bytes", "amount", "what the program holds besides, such as buckets of exchanges", "", "byte"),
    _of_software("queued_collectives", "flag", "buffers of tensor-parallel collectives stay while hosts launch ahead"),
    _of_software("cached_share", "amount", "memory that the allocator keeps over activations and logits", "", "1"),
    _of_software("host_time_layer", "amount", "host time of a layer and microbatch beyond tuned software's", "", "s"),
    _of_software("cached_gradients", "flag", "a temporary gradient of each shape of a weight stays allocated"),
    _of_software("gathered_stages", "flag", "FSDP under a pipeline keeps the weights of a stage gathered"),
    _count("micro_batch_size", "sequences in a microbatch", maximum=MAX_BATCH),
    _count("global_batch_size_seqs", "sequences in a step", maximum=MAX_BATCH),
    _count("n_microbatches", "microbatches per replica and step", "global batch / (micro batch dp)", MAX_BATCH),
    _measured("step_time_s", "time of a training step", "s", 1e9),
    Column("step_time_derived", "flag", "step time was computed from throughput"),
    _measured("tokens_per_s_per_gpu", "throughput", "token/s", 1e9),
    _measured("tflops_per_gpu", "model flop rate, as the source counts", "1e12 flop/s", 1e6),
    _measured("mfu", "model flop utilisation, as the source counts", "1", 100.0),
    _measured("peak_mem_gb", "peak memory", "1e9 byte", 1e6),
    Column(
        "mem_kind",
        "word",
        "what a peak counts: allocated or reserved by the program, on the first stage, or all that the driver holds",
        default="of the framework",
        vocabulary="mem_kind",
    ),
    Column("status", "name", "ok, oom, failed or other", default="ok", vocabulary="status"),
    Column("notes", "text", "remarks"),
)

BY_NAME = {column.name: column for column in COLUMNS}
REQUIRED = tuple(column.name for column in COLUMNS if column.required)
# Everything that describes a model in a row; the sequence length belongs to the run, not to the model.
_NAMES = tuple(BY_NAME)
MODEL_FIELDS = _NAMES[_NAMES.index(SHAPE[0]) : _NAMES.index("seq_len")]

CARRIED = (
    "source_row", "step_time_s", "step_time_derived", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu", "peak_mem_gb",
    "status", "notes",
)  # fmt: skip
"""Columns that are carried along: what was measured, and where a row comes from. No prediction depends on them."""


@functools.cache
def run_headings() -> Headings:
    """Further names of columns, and units, from `data/run_headings.toml`."""
    tables = read_toml(data_path("run_headings.toml"))
    column_of = {heading: column for column, names in tables["names"].items() for heading in names}
    return Headings(column_of, tables["units"], in_tokens=(BATCH,))


def stated_values(option: str, texts: Mapping[str, str]) -> dict[str, Value]:
    """Values of columns from texts `NAME=VALUE`, as on a command line; names as in the heading of a table.

    Args:
        option: name of the option, for messages.
        texts: cells by column.

    Returns:
        Values by column.

    Raises:
        InputError: an unknown column, a column stated twice, or an invalid cell; names the option.
    """
    values: dict[str, Value] = {}
    for given, text in texts.items():
        name = run_headings().column(given, BY_NAME)
        if name is None:
            raise InputError(f"{option} {given}: no such column; {one_like(given, BY_NAME)}")
        if name in values:
            raise InputError(f"{option} {given} states {name} twice; expected it once")
        parsed = parse_cells(BY_NAME[name], [text], Names())
        if parsed.problems:
            raise InputError(f"{option} {name} = {show(text)}: {parsed.problems[0]}")
        if (value := parsed.values[0]) is not None:
            values[name] = value
    return values


@dataclass(frozen=True, repr=False)
class Runs(AbstractTable):
    """A table of runs, column by column; see `AbstractTable`."""

    shown = ("model", "workload", "framework", "gpu", "n_gpus", "dp", "tp", "pp", "micro_batch_size", "step_time_s")
