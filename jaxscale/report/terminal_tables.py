"""Tables of chips, predictions, plans and designs, for the terminal and for reports."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxscale.base.table import Table, TableColumn, make_table, text_column
from jaxscale.base.units import GB, in_digits, quantity
from jaxscale.hardware.catalogue import ChipEntry
from jaxscale.plans.plan import in_short, recomputed

if TYPE_CHECKING:
    from jaxscale.runs import Row, Runs
    from jaxscale.runs.predict import Prediction


def rounded_text(value: float | None, digits: int = 3) -> str:
    """Text of a number with the given digits, without exponent below a million; a dash for None."""
    if value is None or not np.isfinite(value):
        return "-"
    return in_digits(value, digits)


CHIP_COLUMNS = {
    "peak_tflops_bf16": TableColumn("bf16", "bf16 TF/s", "Tflop/s"),
    "memory_gb": TableColumn("memory", "GB", "GB"),
    "memory_gb_per_s": TableColumn("memory bandwidth", "GB/s", "GB/s"),
    "domain_size": TableColumn("chips of a domain", "domain"),
    "link_gb_per_s": TableColumn("link", "link GB/s", "GB/s"),
    "network_gb_per_s": TableColumn("network", "net GB/s", "GB/s"),
    "max_power_w": TableColumn("power", "W", "W"),
}
"""TableColumn of each chip figure in the list of chips."""


def chip_list(entries: Iterable[ChipEntry]) -> Table:
    """Table of the chips of a catalogue."""
    names = (text_column("id"), text_column("name"))
    rows = [(entry.id, entry.name, *(f"{entry.numbers[key]:g}" for key in CHIP_COLUMNS)) for entry in entries]
    title = "Chips (bandwidths per chip, one direction; dense peaks)"
    return make_table(title, (*names, *CHIP_COLUMNS.values()), rows)


def chip_numbers(entry: ChipEntry) -> Table:
    """Table of all properties of a chip with their sources, or with the fallback of an unstated property."""
    rows = []
    for key, value in entry.numbers.items():
        origin = entry.fallbacks.get(key)
        origin_text = f"not stated: {origin}" if origin is not None else entry.sources.get(key, "stated")
        shown = "none" if key == "rail_size" and origin is not None else f"{value:g}"
        rows.append((key, shown, origin_text))
    columns = (
        text_column("number"),
        TableColumn("value", says="{}"),
        text_column("source, or what stands in", says="({})"),
    )
    return make_table(f"{entry.id}: {entry.name}", columns, rows)


PREDICTION_COLUMNS = (
    TableColumn("line"),
    text_column("model"),
    text_column("gpu"),
    TableColumn("chips", says="{} chips"),
    text_column("plan"),
    TableColumn("step", stays=True),
    TableColumn("90 % interval", "90 %", says="90 %: {}", stays=True),
    TableColumn("measured"),
    TableColumn("error", unit="%"),
    TableColumn("MFU", "MFU %", "%"),
    TableColumn("tokens/s"),
    TableColumn("memory", "GB", "GB"),
    TableColumn("fits", is_text=True),
    text_column("note", says="note: {}"),
)
"""Columns of the table of predictions."""


MOST_ROWS = 20
"""Largest number of shown predictions [1]."""


def prediction_rows(runs: "Runs", prediction: "Prediction", has_lines: bool = True) -> Table:
    """Table of the first `MOST_ROWS` rows with their predictions.

    Args:
        runs: rows of a runs table.
        prediction: predictions of the rows.
        has_lines: whether the rows are lines of a file, with columns for line number and notes; else the notes are
            given by `note_lines`.
    """
    rows = [
        (
            str(row.line) if has_lines else "-",
            *_identity(row),
            *_outcome(prediction, index),
            prediction.notes[index] if has_lines else "",
        )
        for index, row in enumerate(runs.rows[:MOST_ROWS])
    ]
    first = f", first {len(rows)} of {len(runs)} rows" if len(rows) < len(runs) else ""
    return make_table(f"Predicted step times{first}", PREDICTION_COLUMNS, rows)


def note_lines(prediction: "Prediction") -> list[str]:
    """Notes of the first row as a list."""
    return [note for note in str(prediction.notes[0]).split("; ") if note]


def _identity(row: "Row") -> tuple[str, str, str]:
    """Model, chip and number of chips of a row."""
    return row["model"] or row["workload"] or "-", row["gpu"] or "-", rounded_text(row["n_gpus"], 6)


def _outcome(prediction: "Prediction", index: int) -> tuple[str, ...]:
    """Plan, times, error, utilisation, throughput and memory of a row."""
    time, measured = prediction.step_time[index], prediction.measured[index]
    measured_text = quantity(measured, "s") if np.isfinite(measured) else "-"
    if not np.isfinite(time):
        return "-", "-", "-", measured_text, "-", "-", "-", "-", "-"
    plan, mfu = prediction.plan(index), prediction.mfu[index]
    return (
        in_short(plan) if plan else "-",
        quantity(time, "s"),
        f"{quantity(prediction.lo[index], 's')} to {quantity(prediction.hi[index], 's')}",
        measured_text,
        f"{100 * (time / measured - 1):+.1f}" if np.isfinite(measured) else "-",
        f"{100 * mfu:.1f}" if np.isfinite(mfu) else "-",
        rounded_text(prediction.tokens_per_s[index]),
        rounded_text(prediction.memory[index] / GB),
        "yes" if prediction.fits[index] else "no",
    )


def error_summary(errors: Mapping[str, Any]) -> Table:
    """Table of errors of measured rows, overall and by source, with errors of peak memory if measured."""
    columns = [
        TableColumn("source", is_text=True, says="{}"),
        TableColumn("runs", says="{} runs", stays=True),
        TableColumn("mean error", "mean", "%", stays=True),
        TableColumn("median error", "median", "%", stays=True),
        TableColumn("90 % of runs below", "90 % below", "%", stays=True),
        TableColumn("inside 90 % interval", "inside", "%", stays=True),
        TableColumn("mean error of memory", "memory", "%"),
    ]
    groups = errors["by"].get("source", {})
    # A single group of all rows equals the whole; rows without a source count in the whole alone.
    is_whole = len(groups) == 1 and all(group["n"] == errors["n"] for group in groups.values())
    entries = list(groups.items()) if is_whole else [("all", errors), *groups.items()]
    rows = [
        (
            name,
            entry["n"],
            *(rounded_text(entry[key]) for key in ("mape", "median_ape", "p90_ape")),
            f"{100 * entry['coverage_90']:.0f}",
            rounded_text(entry["memory_mape"]) if entry["n_memory"] else "-",
        )
        for name, entry in entries
        if entry["n"]
    ]
    return make_table("Error of step time where it was measured", columns, rows)


PLAN_COLUMNS = {
    "dp": TableColumn("dp"),
    "tp": TableColumn("tp"),
    "pp": TableColumn("pp"),
    "cp": TableColumn("cp"),
    "ep": TableColumn("ep"),
    "microbatch": TableColumn("microbatch x count", "mb x m", says="mb {}"),
    "zero_stage": TableColumn("ZeRO stage", "ZeRO", says="ZeRO-{}"),
    "shard_group": TableColumn("shard group", "shards", says="shards {}"),
    "sequence_parallel": text_column("sequence parallel", "SP", says="SP"),
    "recompute": text_column("recompute", says="recompute {}"),
    "schedule": text_column("schedule"),
}
"""TableColumn of each choice of a plan."""


def plan_cells(plan: Mapping[str, Any]) -> dict[str, str]:
    """Text of each choice of a plan, by column; a dash for defaults: degrees of 1, no sharding, one copy per dp group.

    Args:
        plan: fields of the plan, in the form of `Plan.words`.
    """
    usual = {"cp": 1, "ep": 1, "zero_stage": 0, "shard_group": plan["dp"]}
    cells = {
        name: "-" if plan.get(name, as_usual) == as_usual else f"{plan[name]:g}" for name, as_usual in usual.items()
    }
    stages = f"{plan['pp']:g} x {plan['vpp']:g}" if plan.get("vpp", 1) > 1 else f"{plan['pp']:g}"
    microbatch = f"{plan['micro_batch_size']:g} x {plan['n_microbatches']:g}"
    flag = "yes" if plan["sequence_parallel"] is True or plan["sequence_parallel"] == 1 else "no"
    cells |= {"dp": f"{plan['dp']:g}", "tp": f"{plan['tp']:g}", "pp": stages, "microbatch": microbatch}
    cells |= {"sequence_parallel": flag, "recompute": recomputed(plan), "schedule": str(plan["schedule"])}
    return {name: cells[name] for name in PLAN_COLUMNS}


def plan_ranking(choice: Mapping[str, Any], objective: str = "step") -> Table:
    """Table of the best plans by an objective, from the document of `PlanChoice.to_json`."""
    figures = (
        TableColumn("step", stays=True),
        TableColumn("MFU", "MFU %", "%", stays=True),
        TableColumn("memory", "GB", "GB", stays=True),
    )
    rows = [
        (
            rank,
            *plan_cells(plan).values(),
            quantity(plan["step_time_s"], "s"),
            f"{100 * plan['mfu']:.1f}",
            f"{plan['memory_gb']:.1f}",
        )
        for rank, plan in enumerate(choice["top"], start=1)
    ]
    searched = f"{choice['searched']:,} plans searched"
    proof = "; the first is the best of all valid plans" if choice["exhaustive_optimum"] else ""
    convention = "MFU of the 16-bit peak, attention in full"
    columns = (TableColumn("rank", "#", says="{}"), *PLAN_COLUMNS.values(), *figures)
    ranked = "Plans of the least energy" if objective == "energy" else "Fastest plans"
    return make_table(f"{ranked} ({searched}{proof}; {convention})", columns, rows)


RUN_COLUMNS = (
    text_column("plan of the least", "least", says="least {}"),
    TableColumn("chips", says="{} chips", stays=True),
    TableColumn("batch, sequences", "batch", says="batch {}", stays=True),
    text_column("plan"),
    TableColumn("step"),
    TableColumn("tokens"),
    TableColumn("days", says="{} days", stays=True),
    TableColumn("goodput", "goodput %", "%"),
    TableColumn("energy", "MWh", "MWh", stays=True),
    TableColumn("chip hours", says="{} chip hours"),
    TableColumn("price", says="price {}", stays=True),
)
"""Columns of the table of whole runs."""


def run_table(run: Mapping[str, Any]) -> Table:
    """Table of the runs of least step time, duration, price and energy, from the document of `RunChoice.to_json`."""
    rows: dict[str, tuple[str, ...]] = {}
    for name in ("step", "days", "price", "energy"):
        one = run[name]
        cells = (
            f"{one['n_chips']:g}",
            f"{one['global_batch_size_seqs']:g}",
            in_short(one["plan"]),
            quantity(one["step_time_s"], "s"),
            f"{one['tokens']:.3g}",
            f"{one['days']:.1f}",
            f"{100 * one['goodput']:.1f}",
            rounded_text(one["energy_mwh"], 4),
            rounded_text(one["chip_hours"]),
            "-" if one["price"] is None else rounded_text(one["price"]),
        )
        # Objectives with an equal run share a row.
        same = next((label for label, known in rows.items() if known == cells), None)
        if same is not None:
            del rows[same]
        rows[name if same is None else f"{same}, {name}"] = cells
    return make_table("The whole run", RUN_COLUMNS, [(label, *cells) for label, cells in rows.items()])


def plan_differences(against: Mapping[str, Any]) -> Table:
    """Table of the differences between a plan and the best plan, from the document of `AgainstBest.to_json`.

    The cost of a difference is relative to the plan with only this value changed to that of the best plan.
    """
    columns = (
        text_column("choice"),
        TableColumn("theirs", is_text=True, says="{}", stays=True),
        TableColumn("best", is_text=True, says="best {}", stays=True),
        TableColumn("costs time", "time %", "%", stays=True),
        TableColumn("costs memory", "GB", "GB", stays=True),
        text_column("why there is no such plan", "no plan", says="no plan: {}"),
    )
    rows = []
    for one in against["differences"]:
        costs = [("-" if one[name] is None else f"{scale * one[name]:+.1f}") for name, scale in _COSTS.items()]
        values = (_word(one["theirs"]), _word(one["ours"]))
        rows.append((one["field"].replace("_", " "), *values, *costs, one["problem"] or "-"))
    title = "What differs from the best plan, and what each choice costs by itself"
    return make_table(title if rows else "Nothing differs from the best plan", columns, rows)


# Fractions of time in per cent.
_COSTS = {"time_cost": 100.0, "memory_cost_gb": 1.0}


def _word(value: Any) -> str:
    """Value of a plan as text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else rounded_text(float(value), 4)


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
    """Table of the best design beside the continuous optimum, from the document of `shape_report`."""
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
    columns = (
        TableColumn("quantity", is_text=True),
        TableColumn("design", stays=True),
        TableColumn("continuous optimum", "optimum"),
    )
    return make_table("Best model and plan", columns, rows)


def price_list(prices: Mapping[str, float], objective: Sequence[str]) -> Table:
    """Table of shadow prices, the largest first: change of the objective for one per cent more of each quantity."""
    ranked = sorted(prices.items(), key=lambda pair: -abs(pair[1]))
    # Prices of 0.000 are left out.
    rows = [(name.replace("_", " "), f"{price:+.3f}") for name, price in ranked if abs(price) >= 5e-4]
    changed = " and ".join(objective).replace("_", " ")
    columns = (
        TableColumn("1 % more of", is_text=True),
        TableColumn(f"changes {changed} by", "change", "%", stays=True),
    )
    return make_table("Shadow prices", columns, rows)
