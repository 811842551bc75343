"""A valid row, and a reader that knows two chips and two models."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxscale.runs import Description, Runs, describe_rows, read_table

MODELS = {
    "known-8b": {"n_layers": 32, "d_model": 4096, "n_heads": 32, "n_kv_heads": 8, "d_ff": 14336, "gated_mlp": True},
    "mixture": {
        **{"n_layers": 32, "d_model": 4096, "n_heads": 32, "n_kv_heads": 8, "d_ff": 14336, "d_ff_expert": 14336},
        **{"n_experts": 8, "moe_top_k": 2},
    },
    "prefix": {
        **{"n_layers": 61, "d_model": 7168, "n_heads": 128, "d_ff": 18432, "d_ff_expert": 2048, "n_experts": 256},
        **{"moe_top_k": 8, "n_dense_layers": 3},
    },
    "pattern": {
        **{"n_layers": 48, "d_model": 5120, "n_heads": 40, "d_ff": 16384, "d_ff_expert": 8192, "n_experts": 128},
        **{"n_dense_layers": 24},
    },
    "hybrid-8b": {"n_layers": 52, "d_model": 4096, "n_heads": 32, "n_attention_layers": 4, "n_ssm_layers": 24}
    | {"ssm_d_inner": 8192, "ssm_state": 1024, "ssm_groups": 8},
}
GPUS = {"a100-80gb": "a100-80gb", "h100-80gb": "h100-80gb", "h100": "h100-80gb"}
GOOD = {
    "model": "own",
    "n_layers": "24",
    "d_model": "2048",
    "n_heads": "16",
    "seq_len": "2048",
    "gpu": "a100-80gb",
    "n_gpus": "16",
    "tp": "2",
    "pp": "2.0",
    "dp": "4",
    "micro_batch_size": "2",
    "global_batch_size_seqs": "64",
    "n_microbatches": "8",
    "step_time_s": "1.25",
}


def write_rows(path: Path, rows: Sequence[Mapping[str, str]]) -> Path:
    """Write rows as a table whose header is the keys of the first."""
    with path.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.DictWriter(handle, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def read(path: Path, gpus: Mapping[str, str] = GPUS, **options: Any) -> Runs:
    """Read with the names of this file."""
    return read_table(path, known_gpus=gpus, lookup=MODELS.get, known_models=MODELS, **options)


@dataclass(frozen=True)
class DescribedRow:
    """What the model is told of one row, as plain values."""

    shape: dict[str, float]
    plan: dict[str, Any]
    machine: tuple[Any, ...]
    n_gpus: float
    effects: dict[str, str | None]
    measured_parts: float
    remarks: list[str]


def described_row(table: Description, row: int) -> DescribedRow:
    """One row of a description; arguments that take their default are left out."""
    place = int(np.flatnonzero(table.index == row)[0])
    numbers = {name: float(column[place]) for name, column in table.numbers.items()}
    shape = {name: float(table.shapes.column(name)[place]) for name in table.shapes.arguments}
    return DescribedRow(
        shape={name: value for name, value in shape.items() if not np.isnan(value)},
        plan={**numbers, **{name: column[place] for name, column in table.words.items()}},
        machine=table.machine[place],
        n_gpus=float(table.n_chips[place]),
        effects=table.levels.row(place),
        measured_parts=float(table.measured_parts[place]),
        remarks=[remark for remark in table.notes[row].split("; ") if remark],
    )


def described(path: Path, row: int = 0, gpus: Mapping[str, str] = GPUS) -> DescribedRow:
    """What the model is told of a row, which must be complete."""
    table = describe_rows(read(path, gpus), MODELS.get)
    assert row in table.index, table.notes[row]
    return described_row(table, row)


def reason(path: Path) -> str:
    """Why the first row is incomplete."""
    table = describe_rows(read(path), MODELS.get)
    assert 0 not in table.index
    return table.notes[0]
