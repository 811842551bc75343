"""Fit of serving stacks to all shipped tables: writes fits/results/serving.toml and the scoreboard fits/serving.md."""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from markdown_text import markdown_table, with_contents

from jaxscale.serving.fit_serving import FEW_ROWS, LEAST_ROWS, fit_and_hold_out
from jaxscale.serving.serving_memory import max_batch
from jaxscale.serving.serving_problem import (
    FOLDS,
    TARGETS,
    HeldOutServing,
    folds,
    measured_serving,
    names_left_out,
    widths_of,
)
from jaxscale.serving.serving_record import (
    NOVELTIES,
    ServingWidths,
    classes_of_width,
)
from jaxscale.serving.serving_table import read_serving

ROOT = Path(__file__).resolve().parents[1]
TABLES = (
    *sorted((ROOT / "data/serving").glob("*.csv")),
    *sorted((ROOT / "data/restricted").glob("serving_*.csv")),
    ROOT / "data/restricted/load_serving.csv",
)

INTRODUCTION = """# Serving: held-out errors of the shipped fit

Made by `python fits/serving.py`, which also writes `fits/results/serving.toml`. Errors are those of runs that a fit did
not see, median / mean / 90 % quantile in percent of the measured value. A group is a model on a chip with its count of
chips and its degrees: runs of a group differ in load alone. A tenth of the groups is left out at a time. Levels of what
is left out are at their prior then, and everything else is refitted. The last column shows ten rows of a stack, drawn
group by group, to a fit without it, as `jaxscale serving fit` does with the rows of a user, and predicts the others;
stacks of thirty rows and more.

## Errors

"""


COVERAGE = """## Coverage of 90 % intervals

Percent of left-out runs inside, with widths from other groups.

"""

UNDER_LOAD = """## Under load

Runs at a rate, bursts and closed loops (data/restricted/load_serving.csv); a group is a model on a chip in a source
here. Median / 90 % quantile of the errors in percent where the group was left out, and percent of runs inside 90 %
intervals.

"""


def arguments() -> argparse.Namespace:
    """Options of the script."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-write", action="store_true", help="print the scoreboard only")
    return parser.parse_args()


def sets_of(held: HeldOutServing) -> dict[str, np.ndarray]:
    """Measurements of each part of the scoreboard, runs under load apart [measurement]."""
    measured, row = held.measured, held.problem.row
    target = np.asarray(TARGETS, dtype=object)[held.problem.target]
    source, serving = measured.sources[row], measured.levels.column("serving")[row]
    mixture = measured.levels.take(row).has(lambda words: words.endswith("mixture"), "kind")
    batch, loads = measured.batch, measured.batch.requests
    room = np.asarray(max_batch(batch.model, batch.engine, batch.cluster, loads.input_len + loads.output_len))
    fits = (room * batch.engine.copies * batch.engine.attention_dp >= loads.concurrency)[row]
    llama = measured.levels.column("framework")[row] == "llama.cpp"
    argonne, trtllm = source == "argonne_llm_inference_bench", source == "nvidia_trtllm"
    online, e2e = serving == "online", target == "e2e_latency_s"
    sets = {
        "NeMo, 22 runs of arXiv 2407.14645 (latency)": (source == "nvidia_nemo_llama2") & (loads.input_len[row] == 200),
        "FasterTransformer (latency)": source == "nvidia_fastertransformer",
        "Argonne, fits memory (latency)": argonne & e2e & fits & ~llama,
        "Argonne, in waves (latency)": argonne & e2e & ~fits & ~llama,
        "llama.cpp (latency)": llama & e2e,
        "MI300X (latency)": (source == "rocm_vllm_docs") & e2e,
        "TensorRT-LLM, static (latency)": trtllm & e2e,
        "TensorRT-LLM, static (first token)": trtllm & (target == "ttft_s"),
        "Neuron (per token)": (source == "aws_neuron_docs") & (target == "tpot_s"),
        "H100, PyTorch": source == "h100_torch_serving",
        "online, dense (per token)": online & ~mixture & (target == "tpot_s"),
        "online, mixtures (per token)": online & mixture & (target == "tpot_s"),
        "online (first token)": online & (target == "ttft_s"),
        "maximum load (throughput)": serving == "offline_max",
        "disaggregated (per token)": (serving == "disagg") & (target == "tpot_s"),
    }
    is_counted = held.problem.mixed.weights(~measured.is_loaded) > 0.0
    return {name: mask & is_counted for name, mask in sets.items()}


def cell(errors: np.ndarray) -> str:
    """Median, mean and 90 % quantile of errors of logarithms, in percent."""
    percent = 100.0 * np.abs(np.expm1(errors[np.isfinite(errors)]))
    if not len(percent):
        return "-"
    return f"{np.median(percent):.1f} / {percent.mean():.1f} / {np.quantile(percent, 0.9):.0f}"


def error_table(held: HeldOutServing) -> str:
    """Errors of every set by what was left out."""
    columns = ("set", "n", "in sample", *(f"{novelty} left out" for novelty in NOVELTIES), "ten rows")
    columns = tuple("group left out" if name == "seen left out" else name for name in columns)
    rows = []
    for name, mask in sets_of(held).items():
        errors = [held.log_errors[key][mask] for key in ("fit", *NOVELTIES)] + [held.few_rows[mask]]
        rows.append([name, str(int(mask.sum())), *(cell(part) for part in errors)])
    return markdown_table(columns, rows)


def few_rows_text(held: HeldOutServing) -> str:
    """What ten rows of a stack tell of its others, and the worst of the runs of NeMo."""
    few, unseen = (100.0 * np.abs(np.expm1(errors)) for errors in (held.few_rows, held.log_errors["stack"]))
    is_scored = np.isfinite(few)
    stacks = held.measured.levels.column("stack")[held.problem.row].astype(str)
    names = np.unique(stacks[is_scored])
    medians = [[np.median(errors[is_scored & (stacks == name)]) for name in names] for errors in (unseen, few)]
    nemo = np.abs(np.expm1(held.log_errors["seen"][next(iter(sets_of(held).values()))]))
    return (
        f"Of the {len(names)} stacks of {LEAST_ROWS} rows and more, half have a median error of at most "
        f"{np.median(medians[0]):.1f} % where the fit has never seen them, and of at most "
        f"{np.median(medians[1]):.1f} % with {FEW_ROWS} of their rows; over all their measurements the medians are "
        f"{np.median(unseen[is_scored]):.1f} and {np.median(few[is_scored]):.1f} %. The worst of the 22 runs of NeMo, "
        f"its group left out, is {100 * nemo.max():.1f} % off."
    )


def inside_intervals(held: HeldOutServing) -> dict[str, np.ndarray]:
    """1 for left-out runs inside intervals whose widths come from other groups, nan where not left out [measurement].

    Returns:
        Measurements by what was left out.
    """
    measured, problem = held.measured, held.problem
    part = folds(names_left_out(measured, "seen"), FOLDS["seen"], seed=1)[problem.row]
    targets = np.asarray(TARGETS, dtype=object)[problem.target]
    levels = classes_of_width(measured.levels.take(problem.row))
    inside = {novelty: np.full(len(targets), np.nan) for novelty in NOVELTIES}
    for own in range(part.max() + 1):
        others = {key: np.where(part == own, np.nan, held.log_errors[key]) for key in NOVELTIES}
        widths = ServingWidths(widths_of(others, targets, levels, measured.groups[problem.row].astype(str)))
        for novelty in NOVELTIES:
            errors = held.log_errors[novelty]
            for target in TARGETS:
                scored = np.flatnonzero((part == own) & np.isfinite(errors) & (targets == target))
                below, above = widths.sides(target, levels.take(scored), novelty)
                inside[novelty][scored] = (-below <= -errors[scored]) & (-errors[scored] <= above)
    return inside


def coverage_table(held: HeldOutServing, inside: Mapping[str, np.ndarray]) -> str:
    """Share of left-out runs inside their intervals, of every set by what was left out."""
    rows = []
    for name, mask in sets_of(held).items():
        shares = [inside[novelty][mask] for novelty in NOVELTIES]
        rows.append([name, *(f"{100 * np.nanmean(s):.0f}" if np.isfinite(s).any() else "-" for s in shares)])
    total = [f"{100 * np.nanmean(inside[novelty]):.0f}" for novelty in NOVELTIES]
    return markdown_table(("set", "group", *NOVELTIES[1:]), [*rows, ["all", *total]])


def load_table(held: HeldOutServing, inside: Mapping[str, np.ndarray]) -> str:
    """Errors of runs under load whose group was left out, and the share of them inside their intervals."""
    measured, row = held.measured, held.problem.row
    loads = measured.batch.requests
    is_rated = loads.request_rate > 0.0
    is_burst = ~is_rated & (loads.at_limit > 0.0)
    judged = np.char.startswith(measured.sources.astype(str), "blis")
    sets = {"all": True, "at a rate": is_rated, "of them BLIS": judged, "bursts": is_burst}
    sets["closed loops"] = ~is_rated & ~is_burst
    rows = []
    for name, mask in sets.items():
        for place, target in enumerate(TARGETS):
            scored = (measured.is_loaded & mask)[row] & (held.problem.target == place)
            if scored.any():
                errors = 100.0 * np.abs(np.expm1(held.log_errors["seen"][scored]))
                figures = f"{np.median(errors):.1f} / {np.quantile(errors, 0.9):.0f}"
                rows.append([name, target, str(len(errors)), figures, f"{100.0 * np.mean(inside['seen'][scored]):.0f}"])
    return markdown_table(("set", "column", "n", "error", "inside"), rows)


def main() -> None:
    """Fit, judge, write."""
    options = arguments()
    measured = measured_serving([read_serving(path) for path in TABLES])
    fit, held = fit_and_hold_out(measured, progress=lambda text: print(text, file=sys.stderr, flush=True))
    inside = inside_intervals(held)
    text = (
        f"{INTRODUCTION}{error_table(held)}\n\n{few_rows_text(held)}\n\n{COVERAGE}{coverage_table(held, inside)}"
        f"\n\n{UNDER_LOAD}{load_table(held, inside)}\n"
    )
    print(text)
    if not options.no_write:
        fit.save(ROOT / "fits/results/serving.toml")
        (ROOT / "fits/serving.md").write_text(with_contents(text), encoding="utf-8")


if __name__ == "__main__":
    main()
