"""Tables for the terminal."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.markup import escape
from rich.table import Table

from jaxscale.hardware.catalogue import ChipEntry
from jaxscale.report.style import seconds
from jaxscale.units import GB

if TYPE_CHECKING:
    from jaxscale.predict import Prediction
    from jaxscale.runs import Row, Runs


def make_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], text: Sequence[str] = ()) -> Table:
    """A rich table.

    Args:
        title: headline.
        columns: header.
        rows: cells; turned into text.
        text: columns that hold words: aligned to the left; the other columns are numbers.

    Returns:
        The table.
    """
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, justify="left" if name in text else "right", no_wrap=name != "note", overflow="fold")
    for row in rows:
        table.add_row(*(escape(str(cell)) for cell in row))
    return table


def rounded_text(value: float | None, digits: int = 3) -> str:
    """A number with the given digits, never in exponents below a million; a dash where there is none."""
    if value is None or not np.isfinite(value):
        return "-"
    return f"{value:.0f}" if 10**digits <= abs(value) < 1e6 else f"{value:.{digits}g}"


def chip_list(entries: Iterable[ChipEntry]) -> Table:
    """The chips of a catalogue, one line each."""
    columns = ("id", "name", "bf16 Tflop/s", "memory GB", "GB/s", "domain", "link GB/s", "network GB/s", "max W")
    keys = (
        "peak_tflops_bf16",
        "memory_gb",
        "memory_gb_per_s",
        "domain_size",
        "link_gb_per_s",
        "network_gb_per_s",
        "max_power_w",
    )
    rows = [(entry.id, entry.name, *(f"{entry.numbers[key]:g}" for key in keys)) for entry in entries]
    return make_table("Chips (bandwidths per chip, one direction; dense peaks)", columns, rows, text=("id", "name"))


def chip_numbers(entry: ChipEntry) -> Table:
    """Every number of a chip with its source, or with the fallback of a number that is not stated."""
    rows = []
    for key, value in entry.numbers.items():
        origin = entry.fallbacks.get(key)
        origin_text = f"not stated: {origin}" if origin is not None else entry.sources.get(key, "stated")
        shown = "none" if key == "rail_size" and origin is not None else f"{value:g}"
        rows.append((key, origin_text, shown))
    columns = ("number", "source, or what stands in", "value")
    return make_table(f"{entry.id}: {entry.name}", columns, rows, text=columns[:2])


def prediction_rows(runs: "Runs", prediction: "Prediction", most: int = 20) -> Table:
    """The first rows of a table with their predictions."""
    columns = (
        "line",
        "model",
        "gpu",
        "chips",
        "tp x pp x dp",
        "step",
        "90 % interval",
        "measured",
        "error",
        "GB",
        "fits",
    )
    rows = [
        (*_identity(row), *_outcome(prediction, index), prediction.notes[index])
        for index, row in enumerate(runs.rows[:most])
    ]
    first = f", first {len(rows)} of {len(runs)} rows" if len(rows) < len(runs) else ""
    text = ("model", "gpu", "tp x pp x dp", "fits", "note")
    return make_table(f"Predicted step times{first}", (*columns, "note"), rows, text)


def _identity(row: "Row") -> tuple[str, ...]:
    degrees = " x ".join(rounded_text(row[name], 6) for name in ("tp", "pp", "dp"))
    name = row["model"] or row["workload"] or "-"
    return str(row.line), name, row["gpu"] or "-", rounded_text(row["n_gpus"], 6), degrees


def _outcome(prediction: "Prediction", index: int) -> tuple[str, ...]:
    time, measured = prediction.step_time[index], prediction.measured[index]
    measured_text = seconds(measured) if np.isfinite(measured) else "-"
    if not np.isfinite(time):
        return "-", "-", measured_text, "-", "-", "-"
    interval = f"{rounded_text(prediction.lo[index])} to {rounded_text(prediction.hi[index])} s"
    error = f"{100 * (time / measured - 1):+.1f} %" if np.isfinite(measured) else "-"
    fits = "yes" if prediction.fits[index] else "no"
    return seconds(time), interval, measured_text, error, rounded_text(prediction.memory[index] / GB), fits


def error_summary(errors: Mapping[str, Any], by: str = "source") -> Table:
    """Errors where measurements exist, in all and by group; of peak memory where any was measured."""
    columns = [by, "runs", "mean error", "median", "90 % of runs below", "inside 90 % interval"]
    has_memory = errors["n_memory"] > 0
    groups = errors["by"].get(by, {})
    entries = [("all", errors), *groups.items()] if len(groups) != 1 else list(groups.items())
    rows = [
        (
            name,
            entry["n"],
            *(f"{rounded_text(entry[key])} %" for key in ("mape", "median_ape", "p90_ape")),
            f"{100 * entry['coverage_90']:.0f} %",
            *((f"{rounded_text(entry['memory_mape'])} %" if entry["n_memory"] else "-",) if has_memory else ()),
        )
        for name, entry in entries
        if entry["n"]
    ]
    columns += ["mean error of memory"] if has_memory else []
    return make_table("Error of step time where it was measured", columns, rows, text=(by,))


def _is_unusual(plan: Mapping[str, Any], name: str) -> bool:
    """Whether a degree says something of a plan: usually 1, ZeRO stage 0, and a shard group of all of dp."""
    usual = {"zero_stage": 0, "shard_group": plan["dp"]}
    return plan.get(name, usual.get(name, 1)) != usual.get(name, 1)


def plan_ranking(choice: Mapping[str, Any]) -> Table:
    """The best plans, in the form that `PlanChoice.to_json` gives them."""
    degrees = ("dp", "tp", "pp", "vpp", "cp", "ep", "zero_stage", "shard_group", "micro_batch_size", "n_microbatches")
    present = [name for name in degrees if any(_is_unusual(plan, name) for plan in choice["top"])]
    choices = ("schedule", "recompute", "sequence_parallel")
    rows = [
        (
            rank,
            *(str(plan.get(name, "-")).lower() for name in choices),
            *(f"{plan[name]:g}" for name in present),
            seconds(plan["step_time_s"]),
            f"{100 * plan['mfu']:.1f} %",
            f"{plan['memory_gb']:.1f} GB",
        )
        for rank, plan in enumerate(choice["top"], start=1)
    ]
    searched = f"{choice['searched']:,} plans searched"
    proof = "; the first is the best of all valid plans" if choice["exhaustive_optimum"] else ""
    columns = ("rank", *(name.replace("_", " ") for name in choices), *present, "step", "MFU", "memory")
    convention = "MFU of the 16-bit peak, attention in full"
    return make_table(f"Fastest plans ({searched}{proof}; {convention})", columns, rows, text=columns[1:4])


DESIGN_ROWS = (
    ("params", "parameters", ".3g"),
    ("n_layers", "layers", ".4g"),
    ("d_model", "width", ".5g"),
    ("d_ff", "MLP width", ".6g"),
    ("n_heads", "heads", ".4g"),
    ("tokens", "training tokens", ".3g"),
    ("global_batch_tokens", "batch, tokens", ".4g"),
    ("critical_batch_tokens", "critical batch, tokens", ".4g"),
    ("step_time_s", "step, s", ".4g"),
    ("training_days", "training, days", ".4g"),
    ("loss", "loss, nat per token", ".4f"),
    ("chip_hours", "chip hours", ".3g"),
    ("energy_mwh", "energy, MWh", ".4g"),
    ("memory_gb", "memory of a chip, GB", ".3g"),
)
"""Rows of the table of a design: key of the document, label, format."""

PLAN_ROWS = ("dp", "tp", "pp", "vpp", "cp", "ep", "zero_stage", "micro_batch_size", "n_microbatches")


def shape_choice(document: Mapping[str, Any]) -> Table:
    """The best design beside the continuous optimum, in the form that `shape_report` gives them."""
    relaxed = document["relaxed_optimum"]
    rows = [
        (label, format(document[key], form), format(relaxed[key], form) if key in relaxed else "-")
        for key, label, form in DESIGN_ROWS
    ]
    rows += [
        (name.replace("_", " "), f"{document['plan'][name]:g}", format(relaxed["plan"][name], ".3g"))
        for name in PLAN_ROWS
    ]
    rows.append(("recompute", document["plan"]["recompute"], "full" if relaxed["plan"]["recompute_full"] else "none"))
    return make_table("Best model and plan", ("", "design", "continuous optimum"), rows, text=("",))


def price_list(prices: Mapping[str, float], objective: Sequence[str]) -> Table:
    """Shadow prices, the largest first: by how much the objective changes with a per cent more of each thing."""
    ranked = sorted(prices.items(), key=lambda pair: -abs(pair[1]))
    rows = [(name.replace("_", " "), f"{price:+.3f} %") for name, price in ranked if abs(price) >= 5e-4]
    changed = " and ".join(objective).replace("_", " ")
    return make_table("Shadow prices", ("1 % more of", f"changes {changed} by"), rows, text=("1 % more of",))
