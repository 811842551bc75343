"""A valid row; tables written and read as text."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

GOOD = {
    "model": "own",
    "n_layers": "24",
    "d_model": "2048",
    "n_heads": "16",
    "seq_len": "2048",
    "gpu": "a100-80gb",
    "n_gpus": "16",
    "tp": "2",
    "pp": "2",
    "dp": "4",
    "micro_batch_size": "2",
    "global_batch_size_seqs": "64",
    "step_time_s": "1.25",
}


def write_rows(path: Path, rows: Sequence[Mapping[str, str]]) -> Path:
    """Write rows as a table whose header is the keys of the first."""
    with path.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.DictWriter(handle, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def read_rows(path: Path) -> list[dict[str, str]]:
    """Rows of a written table."""
    with path.open(encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle))
