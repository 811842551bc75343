"""Checks the compiler's memory and traffic of absent GPUs, and those of the trace, against measured runs.

`python fits/compiled.py` compiles the decoders of runs/h100_one_chip.csv that ran in JAX, for one H100 that need not be
there (extra `aot`; half a minute each), adds a line for each to fits/compiled.csv and writes fits/compiled.md. Lines of
an earlier call are kept.
"""

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from workload_rows import decoder_setting, table

import jaxscale as js
from jaxscale.examples import decoder_steps
from jaxscale.tracing.compile_step import CompiledStep

HERE = Path(__file__).resolve().parent

COLUMNS = (
    *("source_row", "status", "peak_mem_gb", "compiled_gb", "traced_gb", "compiled_traffic_gb", "traced_traffic_gb"),
    *("compiled_kernels", "traced_kernels"),
)


def main() -> None:
    """Compile what is not compiled yet, score, write."""
    path = HERE / "compiled.csv"
    known = list(csv.DictReader(path.open(encoding="utf-8"))) if path.exists() else []
    done = {row["source_row"] for row in known}
    for row in table("runs/h100_one_chip.csv"):
        if row["framework"] == "jax" and row["source_row"] not in done:
            known.append(figures(row))
            with path.open("w", encoding="utf-8", newline="") as stream:
                writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
                writer.writeheader()
                writer.writerows(known)
    text = "\n".join(lines(known)) + "\n"
    (HERE / "compiled.md").write_text(text, encoding="utf-8")
    print(text)


def figures(row: Mapping[str, str]) -> dict[str, str]:
    """Figures of one run."""
    step = js.compile_for(*decoder_steps.decoder(**decoder_setting(row)), gpu="h100-80gb")
    peak, traffic = (figure_of(step, name) for name in ("peak memory [GB]", "traffic [GB]"))
    kernels = [one for one in step.beside_trace() if one.name.endswith("kernels")]
    print(f"{row['source_row']}: {peak[0]:.2f} GB, measured {row['peak_mem_gb'] or row['status']}", flush=True)
    return {
        **{name: row[name] for name in ("source_row", "status", "peak_mem_gb")},
        **{"compiled_gb": f"{peak[0]:.4f}", "traced_gb": f"{peak[1]:.4f}"},
        **{"compiled_traffic_gb": f"{traffic[0]:.2f}", "traced_traffic_gb": f"{traffic[1]:.2f}"},
        "compiled_kernels": f"{sum(one.compiled for one in kernels):.0f}",
        "traced_kernels": f"{sum(one.traced for one in kernels):.0f}",
    }


def figure_of(step: CompiledStep, name: str) -> tuple[float, float]:
    """A figure by the compiler and by the trace."""
    found = next(one for one in step.beside_trace() if one.name == name)
    return found.compiled, found.traced


def lines(rows: list[dict[str, str]]) -> Iterator[str]:
    """Lines of the page."""
    column = {name: np.array([float(row[name] or "nan") for row in rows]) for name in COLUMNS[2:]}
    capacity = float(js.chip("h100-80gb").hbm_bytes) / 1e9
    ran_out = np.array([row["status"] == "oom" for row in rows])
    called = (column["compiled_gb"] > capacity) == ran_out
    yield from (
        "# Compiled ahead of time: accuracy",
        "",
        "Made by `fits/compiled.py`: decoders of runs/h100_one_chip.csv, compiled for an H100 that is not there.",
        "Errors are signed mean / mean / largest of the absolute relative error [%].",
        "",
        "| figure | against | n | error |",
        "|---|---|---|---|",
    )
    for name, figure, reference in (
        ("peak memory, compiled", "compiled_gb", "peak_mem_gb"),
        ("peak memory, traced", "traced_gb", "peak_mem_gb"),
        ("traffic, traced", "traced_traffic_gb", "compiled_traffic_gb"),
        ("kernels, traced", "traced_kernels", "compiled_kernels"),
    ):
        off = 100 * (column[figure] / column[reference] - 1)
        off = off[np.isfinite(off)]
        against = "measured" if reference == "peak_mem_gb" else "compiled"
        score = f"{off.mean():+.1f} / {np.abs(off).mean():.1f} / {np.abs(off).max():.1f}"
        yield f"| {name} | {against} | {len(off)} | {score} |"
    yield from (
        "",
        f"Runs that ran out of memory: {ran_out.sum()} of {len(rows)}; told rightly: {called.sum()} of {len(rows)}.",
    )


if __name__ == "__main__":
    main()
