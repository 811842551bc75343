"""The columns of a table of losses: one row is one run, or one checkpoint of a run, on one evaluation set."""

from jaxscale.tables.cells import Column


def _count(name: str, meaning: str, unit: str = "1", maximum: float = 1e20) -> Column:
    return Column(name, "number", meaning, unit, maximum=maximum)


LOSS_COLUMNS = (
    Column("source", "text", "where the row comes from"),
    Column("source_row", "text", "place in the source"),
    Column("group", "text", "series of runs inside a source; rows of different series may follow different laws"),
    Column("run", "text", "name of the run: its checkpoints share its noise and are drawn together"),
    Column("n_params", "number", "parameters that the law counts", "1", required=True, maximum=1e20),
    Column("n_params_kind", "text", "what they count: total, non-embedding, active"),
    _count("n_params_alt", "parameters by another count"),
    Column("n_params_alt_kind", "text", "what the other count counts"),
    _count("n_layers", "depth", maximum=1e5),
    _count("d_model", "width", maximum=1e7),
    _count("d_ff", "width of the MLP", maximum=1e8),
    _count("n_heads", "query heads", maximum=1e6),
    _count("vocab_size", "vocabulary", maximum=1e8),
    _count("n_experts", "experts in each layer that has them", maximum=1e6),
    _count("moe_top_k", "experts that see each token", maximum=1e6),
    _count("seq_len", "sequence length", "token", maximum=1e9),
    Column("tokens", "number", "tokens seen, repeated ones included", "token", required=True, maximum=1e25),
    _count("epochs_unique_tokens", "tokens seen at least once; epochs are tokens over these", "token", 1e25),
    _count("batch_tokens", "tokens of one step", "token", 1e12),
    Column("lr", "number", "peak learning rate", "1", maximum=1e6),
    Column("steps", "number", "steps", "1", maximum=1e12),
    Column("flops", "number", "training flop as the source counts them", "flop", maximum=1e40),
    Column("flops_kind", "text", "how they were counted"),
    Column("loss", "number", "loss", "nat per token", required=True, maximum=1e3),
    Column("loss_kind", "text", "evaluation set and unit; losses of different kinds do not compare"),
    Column("final", "flag", "true at the end of the schedule of a run, false for a checkpoint on the way"),
    Column("seed", "text", "seed of the run"),
    _count("weight", "weight of the row in a fit, 1 where empty", maximum=1e6),
    _count("step_seconds", "time of a training step", "s", 1e9),
    _count("n_chips", "chips of the run", maximum=1e9),
    Column("chip", "text", "catalogue id of the chip"),
    Column("notes", "text", "remarks"),
)

LOSS_COLUMN = {column.name: column for column in LOSS_COLUMNS}

COUNTS = ("total", "non-embedding", "active")
"""Ways of counting parameters. Laws of different counts differ: embeddings are a third of small models."""


def count_of(kind: str) -> str:
    """Way of counting that a cell of `n_params_kind` names, empty where it names none.

    `active, non-embedding` is a count of its own, as is a total that leaves the input embedding out.
    """
    text = kind.strip().lower()
    if text.startswith("total less input embedding"):
        return "total less input embedding"
    parts = [count for count in COUNTS if text.split("(")[0].find(count) >= 0]
    return ", ".join(sorted(parts)) if parts else text
