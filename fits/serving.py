"""Fit of serving stacks to all shipped tables: writes fits/results/serving.toml and the scoreboard fits/serving.md."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
from markdown_text import markdown_table, with_contents

from jaxscale.fitting.statistics.mixed_effects import solve_mixed
from jaxscale.runs.schema import Runs
from jaxscale.serving.fit_serving import FEW_ROWS, LEAST_ROWS, fit_and_hold_out
from jaxscale.serving.serving_coefficients import serving_spec
from jaxscale.serving.serving_memory import max_batch
from jaxscale.serving.serving_predict import predict_serving
from jaxscale.serving.serving_problem import (
    LEAST_SPARSE_GROUPS,
    TARGETS,
    HeldOutServing,
    MeasuredServing,
    as_fit,
    folds,
    measured_serving,
    names_left_out,
    serving_problem,
    widths_of,
)
from jaxscale.serving.serving_record import (
    NOVELTIES,
    USUAL,
    ServingFit,
    ServingWidth,
    ServingWidths,
    classes_of_width,
    load_serving_fit,
)
from jaxscale.serving.serving_table import read_serving
from jaxscale.serving.under_load import PERCENTILES

ROOT = Path(__file__).resolve().parents[1]
TABLES = (*sorted((ROOT / "data/serving").glob("*.csv")), *sorted((ROOT / "data/restricted").glob("serving_*.csv")))

LOADED = ROOT / "data/restricted/load_serving.csv"
"""Runs that state how their requests arrive: the fit of times does not see them."""

LOAD_FOLDS = 10
"""Folds of the groups of runs under load [1]."""

LOAD_HEAD = "## Under load"

LOAD_INTRODUCTION = f"""{LOAD_HEAD}

Runs at a rate, bursts and closed loops, none of which the fit of times has seen (data/restricted/load_serving.csv).
Effects of their sources alone are fitted to them, by kind of serving: clients and options differ. Groups (source,
model, chip) are left out of these effects, a tenth at a time, and of the widths of intervals. Median / 90 % quantile of
the errors in percent, and percent of runs inside 90 % intervals.

"""

INTRODUCTION = """# Serving: held-out errors of the shipped fit

Made by `python fits/serving.py`, which also writes `fits/results/serving.toml`. Errors are those of runs that a fit did
not see, median / mean / 90 % quantile in percent of the measured value. A group is a model on a chip with its count of
chips and its degrees: runs of a group differ in load alone. Levels of what is left out are at their prior then, and
everything else is refitted. The last column shows ten rows of a stack, drawn group by group, to a fit without it, as
`jaxscale serving fit` does with the rows of a user, and predicts the others; stacks of thirty rows and more.

## Errors

"""


def arguments() -> argparse.Namespace:
    """Options of the script."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-write", action="store_true", help="print the scoreboard only")
    parser.add_argument("--load-only", action="store_true", help="keep the fit of times; judge runs under load alone")
    return parser.parse_args()


def sets_of(held: HeldOutServing) -> dict[str, np.ndarray]:
    """Measurements of each part of the scoreboard [measurement]."""
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
    return {
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


def coverage_table(held: HeldOutServing) -> str:
    """Share of left-out runs inside intervals whose widths come from the other half of the groups."""
    measured, problem = held.measured, held.problem
    half = folds(names_left_out(measured, "seen"), 2, seed=1)[problem.row]
    targets = np.asarray(TARGETS, dtype=object)[problem.target]
    levels = classes_of_width(measured.levels.take(problem.row))
    inside = {novelty: np.full(len(targets), np.nan) for novelty in NOVELTIES}
    for side in (0, 1):
        hidden = {key: np.where(half == side, held.log_errors[key], np.nan) for key in NOVELTIES}
        widths = ServingWidths(widths_of(hidden, targets, levels, measured.groups[problem.row].astype(str)))
        for novelty in NOVELTIES:
            errors = held.log_errors[novelty]
            for target in TARGETS:
                scored = np.flatnonzero((half != side) & np.isfinite(errors) & (targets == target))
                below, above = widths.sides(target, levels.take(scored), novelty)
                inside[novelty][scored] = (-below <= -errors[scored]) & (-errors[scored] <= above)
    rows = []
    for name, mask in sets_of(held).items():
        shares = [inside[novelty][mask] for novelty in NOVELTIES]
        rows.append([name, *(f"{100 * np.nanmean(s):.0f}" if np.isfinite(s).any() else "-" for s in shares)])
    total = [f"{100 * np.nanmean(inside[novelty]):.0f}" for novelty in NOVELTIES]
    return markdown_table(("set", "group", *NOVELTIES[1:]), [*rows, ["all", *total]])


def load_groups(measured: MeasuredServing) -> np.ndarray:
    """Source, model and chip of each run [row]."""
    columns = (measured.sources, measured.levels.column("model"), measured.levels.column("chip"))
    return np.asarray([" ".join(map(str, key)) for key in zip(*columns, strict=True)], dtype=object)


def with_clients(measured: MeasuredServing, fit: ServingFit) -> ServingFit:
    """A fit with effects of the sources of runs under load, whose clients and options differ; all else stays."""
    spreads = {"client": serving_spec().effect_spreads()["client"]}
    problem = serving_problem(measured, fit.unconstrained(measured.levels), spreads)
    everything = np.ones(len(measured.groups), dtype=bool)
    solution = solve_mixed(problem.mixed, everything, learns_spreads=False, steps=20)
    added = as_fit(fit.name, problem, solution, (), everything).effects
    return replace(fit, effects=(*fit.effects, *added))


def load_errors(runs: Runs, measured: MeasuredServing, fit: ServingFit) -> np.ndarray:
    """Log predicted less log measured, nan where not measured [row, target]."""
    values = predict_serving(runs, fit).values
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = np.log(np.stack([values[name] for name in TARGETS], axis=-1)) - np.log(measured.measured)
    return np.where(measured.measured > 0.0, errors, np.nan)


def is_under_load(width: ServingWidth) -> bool:
    """Whether a width is that of runs under load."""
    return width.serving in ("stream", *USUAL) or width.target in PERCENTILES


def load_widths(measured: MeasuredServing, errors: np.ndarray, rows: np.ndarray) -> tuple[ServingWidth, ...]:
    """Widths of the intervals under load from the errors of some rows."""
    row, target = np.nonzero(np.isfinite(errors) & rows[:, None])
    names = np.asarray(TARGETS, dtype=object)[target]
    groups = load_groups(measured)[row].astype(str)
    levels = measured.levels.take(row)
    found = widths_of({"seen": errors[row, target]}, names, levels, groups, LEAST_SPARSE_GROUPS)
    return tuple(width for width in found if not width.stack and width.target and is_under_load(width))


def under_load(fit: ServingFit) -> tuple[ServingFit, str]:
    """A fit with effects of clients and widths under load, and the section of the scoreboard."""
    runs = read_serving(LOADED)
    runs = runs.take(np.flatnonzero(runs.categories("status").matches(lambda word: word == "ok")))
    kept = tuple(width for width in fit.widths if not is_under_load(width))
    with jax.enable_x64(True):
        measured = measured_serving([runs])
        fit = replace(fit, effects=tuple(one for one in fit.effects if one.kind != "client"), widths=kept)
        parts = folds(load_groups(measured), LOAD_FOLDS)
        held = np.full_like(measured.measured, np.nan)
        inside = np.full_like(held, np.nan)
        for part in range(parts.max() + 1):
            is_out = parts == part
            own = with_clients(measured.take(~is_out), fit)
            held[is_out] = load_errors(runs, measured, own)[is_out]
        for part in range(parts.max() + 1):
            is_out = parts == part
            narrow = replace(fit, widths=(*kept, *load_widths(measured, held, ~is_out)))
            told = predict_serving(runs, narrow)
            for place, name in enumerate(TARGETS):
                low, high = (np.log(side[name] / told.values[name]) for side in (told.lo, told.hi))
                is_in = (low <= -held[:, place]) & (-held[:, place] <= high)
                inside[is_out, place] = np.where(np.isfinite(held[:, place]), is_in, np.nan)[is_out]
        everything = np.ones(len(runs), dtype=bool)
        final = with_clients(measured, fit)
        final = replace(final, widths=(*kept, *load_widths(measured, held, everything)))
    loads = measured.batch.requests
    is_stream, is_burst = loads.request_rate > 0.0, (loads.request_rate == 0.0) & (loads.at_limit > 0.0)
    judged = np.char.startswith(measured.sources.astype(str), "blis")
    sets = {"all": everything, "at a rate": is_stream, "of them BLIS": judged, "bursts": is_burst}
    sets["closed loops"] = ~is_stream & ~is_burst
    rows = []
    for name, mask in sets.items():
        for place, target in enumerate(TARGETS):
            errors = held[mask, place]
            errors = 100.0 * np.abs(np.expm1(errors[np.isfinite(errors)]))
            if len(errors):
                share = f"{100.0 * np.nanmean(inside[mask, place]):.0f}"
                figures = f"{np.median(errors):.1f} / {np.quantile(errors, 0.9):.0f}"
                rows.append([name, target, str(len(errors)), figures, share])
    return final, f"{LOAD_INTRODUCTION}{markdown_table(('set', 'column', 'n', 'error', 'inside'), rows)}\n"


def main() -> None:
    """Fit, judge, write."""
    options = arguments()
    if options.load_only:
        fit, section = under_load(load_serving_fit(ROOT / "fits/results/serving.toml"))
        print(section)
        if not options.no_write:
            fit.save(ROOT / "fits/results/serving.toml")
            page = ROOT / "fits/serving.md"
            text = page.read_text(encoding="utf-8").partition(LOAD_HEAD)[0].rstrip()
            page.write_text(f"{text}\n\n{section}", encoding="utf-8")
        return
    measured = measured_serving([read_serving(path) for path in TABLES])
    fit, held = fit_and_hold_out(measured, progress=lambda text: print(text, file=sys.stderr, flush=True))
    errors, coverage = f"{error_table(held)}\n\n{few_rows_text(held)}", coverage_table(held)
    fit, section = under_load(fit)
    print(errors, coverage, section, sep="\n\n")
    if options.no_write:
        return
    fit.save(ROOT / "fits/results/serving.toml")
    text = (
        f"{INTRODUCTION}{errors}\n\n## Coverage of 90 % intervals\n\nPercent of left-out runs inside, with widths from "
        f"the other half of the groups.\n\n{coverage}\n\n{section}"
    )
    (ROOT / "fits/serving.md").write_text(with_contents(text), encoding="utf-8")


if __name__ == "__main__":
    main()
