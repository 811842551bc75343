"""Columns of a runs table: content, valid values and meaning of an empty cell; and the table in memory."""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from jaxscale.base.documents import data_path, read_toml
from jaxscale.base.errors import InputError, one_like
from jaxscale.models.model_domain import MODEL
from jaxscale.plans.plan import PLAN
from jaxscale.tables.cells import SHAPE, Column, Names, Value, parse_cells, show, vocabularies
from jaxscale.tables.schema import Headings
from jaxscale.tables.table import AbstractTable

# Bounds that no machine comes near: a larger value is a slip, and is refused before anything is sized by it.
MAX_GPUS = 1e8
MAX_BATCH = 1e10

BATCH = "global_batch_size_seqs"
"""Column that may state tokens in place of sequences."""


def _kernels() -> dict[str, str]:
    """Attention kernels that a cell may name."""
    known = vocabularies()["kernels"]
    return {name: name for name in (*known["flash"], *known["materialised"])}


def _columns() -> Iterator[Column]:
    """Columns of `data/run_columns.toml`; numbers of a model or a plan have the bounds of their domain."""
    for name, entry in read_toml(data_path("run_columns.toml"))["columns"].items():
        stated = dict(entry)
        if domain := {"Transformer": MODEL, "Plan": PLAN}.get(stated.pop("within", "")):
            bound = domain.bounds[name]
            stated["maximum"] = bound.high
            if stated["kind"] == "integer":
                stated["minimum"] = 1 if bound.is_above else int(bound.low)
        if name == "attention_kernel":
            stated["words"] = _kernels()
        yield Column(name, **stated)


COLUMNS = tuple(_columns())
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
