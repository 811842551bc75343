"""Compares the time of a decoder by `Transformer` with that by the trace of the same step, term by term.

`python fits/against_transformer.py` writes fits/against_transformer.md: the JAX rows of runs/h100_one_chip.csv, each
side by the coefficients that were fitted to that table.
"""

from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np
from workload_rows import DATA, MeasuredStep, decoder_steps_of, stacked_rows, table

import jaxscale as js
from jaxscale.calibration.kernel_coefficients import kernel_coefficients
from jaxscale.tracing.plan_time import KernelTimes, traced_kernel_times

TERMS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "matmuls": (("matmul", "head"), ("matmul",)),
    "attention": (("attention",), ("attention",)),
    "memory-bound": (("memory_bound",), ("memory_bound",)),
    "recomputation": (("recompute",), ("recompute",)),
    "optimiser": (("optimizer",), ("optimizer", "table_update")),
    "launches": (("launch_gaps", "host", "host_per_step"), ("launch_gaps", "host", "host_per_step")),
}
"""Terms that say the same, of a transformer and of traced kernels."""


def transformer_times(rows: list[int]) -> dict[str, np.ndarray]:
    """Time of each group of terms by the transformer [s], of some rows of the table."""
    runs = js.read_runs(DATA / "runs" / "h100_one_chip.csv")
    found = js.predict(runs, fit="h100_one_chip")
    return {name: np.sum([found.terms[one][rows] for one in ours], axis=0) for name, (ours, _) in TERMS.items()}


def traced_times(steps: list[MeasuredStep]) -> dict[str, np.ndarray]:
    """Time of each group of terms by the trace [s]."""
    kernels, stacked = kernel_coefficients("jax"), stacked_rows(steps)

    def one(rows: object, chip: object) -> KernelTimes:
        return traced_kernel_times(rows, chip, kernels)  # pyright: ignore

    times = jax.jit(jax.vmap(one))(stacked.rows, stacked.chips)
    return {name: np.sum([np.asarray(getattr(times, one)) for one in t], axis=0) for name, (_, t) in TERMS.items()}


def main() -> None:
    """Compare, write."""
    rows = table("runs/h100_one_chip.csv")
    chosen = [place for place, row in enumerate(rows) if row["framework"] == "jax" and row["status"] == "ok"]
    steps = decoder_steps_of("jax")
    ours, theirs = transformer_times(chosen), traced_times(steps)
    measured = np.array([step.seconds for step in steps])
    whole, traced = sum(ours.values()), sum(theirs.values())
    lines = [
        "# The transformer against the trace of the same decoder",
        "",
        "Made by `fits/against_transformer.py`: the JAX rows of runs/h100_one_chip.csv; each side by the coefficients",
        "that were fitted to that table. Differences are transformer less trace, in % of the traced step.",
        "",
        "| term | mean | least | greatest |",
        "|---|---|---|---|",
    ]
    differences = {name: 100 * (ours[name] - theirs[name]) / traced for name in TERMS} | {
        "whole step": 100 * (whole / traced - 1)
    }
    lines += [
        f"| {name} | {one.mean():+.1f} | {one.min():+.1f} | {one.max():+.1f} |" for name, one in differences.items()
    ]
    lines += ["", "| row | measured [ms] | transformer [%] | trace [%] | difference [%] |", "|---|---|---|---|---|"]
    for place in np.argsort(-np.abs(differences["whole step"]))[:6]:
        row = steps[place].row
        name = f"{row['model']}, {row['n_microbatches']} microbatches of {row['micro_batch_size']} x {row['seq_len']}"
        off = [100 * (one[place] / measured[place] - 1) for one in (whole, traced)]
        lines.append(
            f"| {name} | {1e3 * measured[place]:.1f} | {off[0]:+.1f} | {off[1]:+.1f} "
            f"| {differences['whole step'][place]:+.1f} |"
        )
    lines += [
        "",
        "The trace has a gap between two kernels of a compiled program. The transformer has none: its matmuls lose a",
        "fixed area each, which makes up for the gaps, at small microbatches a little too much. Sums of gradients",
        "count as memory-bound work there, and as work of the optimiser in the trace.",
    ]
    text = "\n".join(lines) + "\n"
    (Path(__file__).parent / "against_transformer.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    main()
