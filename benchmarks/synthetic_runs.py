"""A table of made-up runs, as large as wanted: many models, chips, frameworks and plans, every measured number its own.

Run `python benchmarks/synthetic_runs.py OUT.csv --rows 200000`. Cells are drawn at random within what is valid; step
times scatter about 40 % of the chips' peak. Half of the rows name a catalogue model and leave its shape empty.
"""

import argparse
import csv
from pathlib import Path

import numpy as np

from jaxscale.hardware.catalogue import load_hardware
from jaxscale.models import model_fields
from jaxscale.runs import COLUMNS

MODELS = ("llama3-8b", "llama3-70b", "gpt3-175b", "mixtral-8x7b", "deepseek-v3", "nemotron4-15b")
CHIPS = ("a100-80gb", "h100-80gb", "h200", "b200", "gb200", "tpu-v5p")
FRAMEWORKS = ("nemo", "megatron-deepspeed", "llm-foundry", "nanotron", "mlperf", "our-own")
EFFICIENCY = 0.4
"""Share of the peak about which made-up runs scatter [1]."""


def synthetic_columns(n_rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Cells of a table of made-up runs as text, by column [row]."""
    generator = np.random.default_rng(seed)

    def draw(*options: float | str) -> np.ndarray:
        return generator.choice(np.asarray(options), n_rows)

    def text(numbers: np.ndarray, form: str = "{:g}") -> np.ndarray:
        return np.asarray([form.format(number) for number in numbers.tolist()], dtype=object)

    is_named, has_experts = draw(0, 1) > 0, draw(0, 0, 0, 1) > 0
    names = draw(*MODELS)
    heads = draw(16, 32, 48, 64, 96, 128)
    shape = {
        "n_layers": draw(16, 24, 32, 40, 48, 64, 80),
        "d_model": 128 * heads,
        "n_heads": heads,
        "n_kv_heads": heads / draw(1, 2),
    }
    shape |= {"d_ff": shape["d_model"] * draw(3, 3.5, 4), "n_experts": np.where(has_experts, 8, 1)}
    tp, pp, cp, dp = draw(1, 2, 4, 8), draw(1, 2, 4, 8), draw(1, 1, 1, 2), draw(1, 2, 4, 8, 16, 32, 64, 128)
    micro, count, seq_len = draw(1, 2, 4, 8), draw(1, 2, 4, 8, 16, 32, 64, 128), draw(2048, 4096, 8192, 16384)
    chips, precision = draw(*CHIPS), draw("bf16", "bf16", "fp8")
    hardware, models = load_hardware(), model_fields()
    layers, width = (
        np.where(is_named, [models[name][field] for name in names], shape[field]) for field in ("n_layers", "d_model")
    )
    n_gpus, batch = tp * pp * cp * dp, micro * count * dp
    peak = np.asarray([hardware[chip].numbers["peak_tflops_bf16"] * 1e12 for chip in chips])
    flops = 72.0 * layers * width**2 * batch * seq_len
    step = flops / (EFFICIENCY * peak * n_gpus) * np.exp(0.1 * generator.standard_normal(n_rows))
    numbers = {"seq_len": seq_len, "n_gpus": n_gpus, "tp": tp, "pp": pp, "cp": cp, "dp": dp, "vpp": np.ones(n_rows)}
    numbers |= {
        "zero_stage": draw(0, 1, 3),
        "micro_batch_size": micro,
        "global_batch_size_seqs": batch,
        "n_microbatches": count,
    }
    measured = {"step_time_s": step, "tokens_per_s_per_gpu": batch * seq_len / (step * n_gpus)}
    measured |= {"peak_mem_gb": generator.uniform(20.0, 79.0, n_rows), "mfu": EFFICIENCY * np.ones(n_rows)}
    return {
        "source": draw("cluster-a", "cluster-b", "cluster-c"),
        "source_row": np.asarray([f"runs/job_{row}.log:{row % 997}" for row in range(n_rows)], dtype=object),
        "model": np.where(is_named, names, "own"),
        "framework": draw(*FRAMEWORKS),
        "release": draw("24.05", "24.11", "25.05", ""),
        **{name: np.where(is_named, "", text(column)) for name, column in shape.items()},
        "gated_mlp": np.where(is_named, "", draw("true", "false")),
        "gpu": chips,
        "precision": precision,
        "activation_recompute": draw("none", "selective", "full", ""),
        "sequence_parallel": draw("true", "false", ""),
        **{name: text(column) for name, column in numbers.items()},
        **{name: text(column, "{:.6g}") for name, column in measured.items()},
        "status": draw("ok", "ok", ""),
        "notes": draw("", "", "warm, second run"),
    }


def write_synthetic_runs(path: Path, n_rows: int, seed: int = 0) -> None:
    """Write a table of made-up runs with every column of the schema.

    Args:
        path: file to write.
        n_rows: rows [1].
        seed: of the draws.
    """
    cells = synthetic_columns(n_rows, seed)
    empty = np.full(n_rows, "", dtype=object)
    columns = [cells.get(column.name, empty).tolist() for column in COLUMNS]
    with path.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow([column.name for column in COLUMNS])
        writer.writerows(zip(*columns, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rows", type=int, default=200_000)
    arguments = parser.parse_args()
    write_synthetic_runs(arguments.out, arguments.rows)


if __name__ == "__main__":
    main()
