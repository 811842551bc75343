"""A valid row, and a reader that knows two chips and two models."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxscale.runs import Runs, read_table

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
    "hybrid-8b": {"n_layers": 52, "d_model": 4096, "n_heads": 32, "n_attention_layers": 4, "n_ssm_layers": 24},
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


def read(path: Path, **options: Any) -> Runs:
    """Read with the names of this file."""
    return read_table(path, known_gpus=GPUS, lookup=MODELS.get, known_models=MODELS, **options)
