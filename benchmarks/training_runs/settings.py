"""What `jax_step.py` and `torch_step.py` measure, and the runs table that they write."""

import argparse
import csv
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

N_WARM, LEAST_STEPS, LEAST_SECONDS = 4, 10, 1.5
REPEATED = 12
"""Settings that are measured again at the end, for the noise."""


@dataclass(frozen=True)
class Run:
    """One setting: shape of a decoder and of its batch, and what the backward pass recomputes."""

    d_model: int
    n_layers: int
    seq_len: int
    micro_batch: int
    n_microbatches: int = 1
    recompute: str = "none"
    head_dim: int = 128
    n_kv_heads: int = 0
    d_ff: int = 0
    gated: bool = False
    vocab: int = 32000

    @property
    def heads(self) -> tuple[int, int]:
        """Query and key/value heads."""
        n_heads = self.d_model // self.head_dim
        return n_heads, self.n_kv_heads or n_heads

    @property
    def width(self) -> int:
        """Width of the MLP."""
        return self.d_ff or 4 * self.d_model


WIDTHS = ((512, 8), (768, 12), (1024, 24), (1536, 24), (2048, 16), (2560, 16), (3072, 12), (4096, 8))
SETTINGS = (
    *(Run(d, n, 2048, 4, head_dim=64 if d < 1024 else 128) for d, n in WIDTHS),
    *(Run(2048, 16, length, 8192 // length) for length in (512, 1024, 4096, 8192)),
    *(Run(2048, 16, 2048, size) for size in (1, 2, 8)),
    *(Run(1024, 24, 1024, size) for size in (1, 4, 16, 32)),
    *(Run(1024, n, 2048, 4) for n in (6, 48)),
    *(Run(d, n, 2048, size, recompute="full") for d, n, size in ((1024, 24, 16), (2048, 16, 8), (4096, 8, 8))),
    *(Run(2048, n, 2048, 4, recompute="full") for n in (8, 32)),
    *(Run(d, n, 2048, size, many) for d, n, size, many in ((512, 8, 8, 4), (2048, 16, 2, 4), (4096, 8, 2, 8))),
    Run(1024, 12, 1024, 8, vocab=256000),
    Run(2048, 4, 2048, 4, vocab=128256),
    Run(2048, 16, 4096, 2, n_kv_heads=4, d_ff=8192, gated=True, vocab=128256, recompute="full"),
    Run(4096, 6, 8192, 1, n_kv_heads=8, d_ff=14336, gated=True),
    Run(4096, 6, 2048, 2, n_kv_heads=8, d_ff=14336, gated=True, recompute="full"),
    Run(3072, 28, 2048, 2, n_kv_heads=8, d_ff=8192, gated=True, recompute="full"),
    Run(2048, 16, 16384, 1, recompute="full"),
    Run(4096, 12, 2048, 16),
    Run(3072, 36, 2048, 4),
)


def described(run: Run) -> dict[str, Any]:
    """Columns of the runs table that say what ran."""
    n_heads, n_kv_heads = run.heads
    return {
        "model": f"decoder-{run.d_model}x{run.n_layers}",
        "n_layers": run.n_layers,
        "d_model": run.d_model,
        "n_heads": n_heads,
        "n_kv_heads": n_kv_heads,
        "d_ff": run.width,
        "gated_mlp": run.gated,
        "vocab_size": run.vocab,
        "seq_len": run.seq_len,
        "n_gpus": 1,
        "precision": "bf16",
        **dict.fromkeys(("tp", "pp", "dp"), 1),
        "zero_stage": 0,
        "activation_recompute": run.recompute,
        "attention_kernel": "flash",
        "micro_batch_size": run.micro_batch,
        "global_batch_size_seqs": run.micro_batch * run.n_microbatches,
        "n_microbatches": run.n_microbatches,
        "step_time_derived": False,
    }


def in_random_order() -> Iterator[Run]:
    """Every setting once, then a few of them again."""
    order = random.Random(0).sample(SETTINGS, len(SETTINGS))
    yield from (*order, *order[:REPEATED])


def step_times(step: Callable[[], Any]) -> list[float]:
    """Times of single steps, each waited for, after some that do not count [s]."""
    for _ in range(N_WARM):
        step()
    times: list[float] = []
    while len(times) < LEAST_STEPS or sum(times) < LEAST_SECONDS:
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return times


def succeeded(times: list[float], peak: float) -> dict[str, Any]:
    """Columns of the runs table that say how it went: median of step times [s] and peak memory [byte]."""
    return {"status": "ok", "step_time_s": f"{statistics.median(times):.6g}", "peak_mem_gb": f"{peak / 1e9:.4g}"}


def measure_all(measure: Callable[[Run], dict[str, Any]], framework: str, release: str, doc: str | None) -> None:
    """Measure for as long as the limit allows, writing each line as it comes."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="table to write")
    parser.add_argument("--source", default="h100_one_chip", help="name of the table")
    parser.add_argument("--gpu", default="h100-80gb", help="catalogue id of the GPU")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds after which no further run begins")
    arguments = parser.parse_args()
    start = time.perf_counter()
    said = {"source": arguments.source, "framework": framework, "release": release, "gpu": arguments.gpu}
    columns = (*said, *described(SETTINGS[0]), "step_time_s", "peak_mem_gb", "status")
    with open(arguments.out, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        for run in in_random_order():
            if time.perf_counter() - start > arguments.limit:
                break
            row = said | described(run) | measure(run)
            writer.writerow(row)
            file.flush()
            print(f"{time.perf_counter() - start:.0f} s: {run}, {row.get('step_time_s', row['status'])}", flush=True)
