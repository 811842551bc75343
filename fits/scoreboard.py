"""The scoreboard: fits/README.md, fits/scoreboard.png and the table of docs/accuracy.md from fits/residuals.csv.

It takes half a minute. Run `python fits/calibrate.py` first; every figure here is an error on runs that the fit in
question never saw, unless the column says otherwise.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from calibrate import largest_kept, load_tables
from markdown_text import markdown_table, rows_of, with_contents
from reliability import ended_table, oom_table, reliability_figure, ultrascale_oom
from strangers import figures_of_strangers, hierarchy, stacks_table, strangers_table

from jaxscale.calibration.intervals import Z90
from jaxscale.calibration.record import load_fit
from jaxscale.fitting.statistics.group_quantiles import half_width
from jaxscale.report.style import INK, RED, new_figure, save_figure, style
from jaxscale.runs.arrays import concatenate
from jaxscale.runs.defaults import meets, table_facts
from jaxscale.runs.table_checks import SOFTWARE, contradicted, deviations

FOLDER = Path(__file__).parent

BEGIN, END = "<!-- scoreboard:begin -->", "<!-- scoreboard:end -->"

LARGEST_KEPT = ", ".join(f"{most:g} of {table}" for table, most in largest_kept().items())

SCHEMES = {
    "five_fold": "5-fold, groups of (shape, chips, tp, pp) left out",
    "left_out_model": "whole models left out",
    "left_out_larger": f"larger clusters left out (above this many chips: {LARGEST_KEPT})",
    "left_out_setup": "the whole stack (source and framework) left out, answered by the centre",
}

COLUMNS = {
    "in_sample": "in sample",
    "five_fold": "5-fold",
    "five_fold_own": "own coefficients, 5-fold",
    "left_out_model": "model",
    "left_out_larger": "larger",
    "left_out_larger_own": "own coefficients, larger",
    "left_out_setup": "zero-shot",
}
"""Headings of the scoreboard by column of fits/residuals.csv."""

COVERED = ("five_fold", "left_out_model", "left_out_larger")
"""Schemes whose intervals have the half-width of like runs of the same table."""

PEERS = """| tool | Megatron A100 (8 runs) | vTrain multi-node | vTrain single-node | Ultra-Scale |
|---|---|---|---|---|
| Calculon | 3.7 (its own validation set) | 12.9 | 38.7 | 47 on 1,159 answered |
| SimuMax | 6.2 | 10.7 | 29.6 | no H100 file |
| llm-analysis (efficiency 0.5) | 25.6 | 17.9 | 56.9 | 69 on 593 answered |
| RAPID-LLM | 9.6 on 2 | - | - | - |"""


def read_residuals() -> dict[str, np.ndarray]:
    """Columns of fits/residuals.csv; numbers where they are numbers."""
    rows = rows_of("residuals.csv")
    texts = ("table", "setup")
    return {
        name: np.asarray([row[name] if name in texts else float(row[name] or "nan") for row in rows])
        for name in rows[0]
    }


def subsets(data: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Rows of each line of the scoreboard: tables, and the parts of a table that differ in kind."""
    parts: dict[str, np.ndarray] = {}
    for table in sorted(set(data["table"])):
        is_table = data["table"] == table
        for part in table_facts()[table].get("parts", [{"name": ""}]):
            label = f"{table}, {part['name']}" if part["name"] else table
            parts[label] = is_table & in_part(data, part)
    return {**parts, "every run": np.ones(len(data["table"]), dtype=bool)}


def in_part(data: dict[str, np.ndarray], part: Mapping[str, Any]) -> np.ndarray:
    """Whether runs meet the conditions of a part of their table [row]."""
    inside = np.ones(len(data["table"]), dtype=bool)
    for column, wanted in part.get("when", {}).items():
        inside &= np.asarray([meets(value, wanted) for value in data[column].tolist()])
    for column, most in part.get("at_most", {}).items():
        inside &= data[column] <= most
    for column, least in part.get("above", {}).items():
        inside &= data[column] > least
    return inside


def error(residual: np.ndarray) -> str:
    """Mean and median absolute percentage error, `mean / median`."""
    ape = 100.0 * np.abs(np.expm1(residual[np.isfinite(residual)]))
    return f"{ape.mean():.1f} / {np.median(ape):.1f}" if len(ape) else "-"


def coverage(residual: np.ndarray, groups: np.ndarray) -> str:
    """Share of runs inside the 90 % interval whose half-width comes from all other groups [%].

    A new run is of a new group, and its interval comes from all that were measured.
    """
    kept = np.isfinite(residual)
    residual, groups = residual[kept], groups[kept]
    names = np.unique(groups)
    if len(names) < 2:
        return "-"
    inside = [
        np.abs(residual[groups == name]) <= half_width(residual[groups != name], groups[groups != name])
        for name in names
    ]
    return f"{100.0 * np.mean(np.concatenate(inside)):.0f}"


def coverage_table(data: dict[str, np.ndarray]) -> str:
    """Coverage of the intervals in every scheme as a Markdown table."""
    lines = [
        (name, *(coverage(data[key][rows], data["group"][rows]) for key in COVERED))
        for name, rows in subsets(data).items()
    ]
    return markdown_table(("runs of", "5-fold", "model", "larger"), lines)


def table(data: dict[str, np.ndarray]) -> str:
    """The scoreboard as a Markdown table."""
    lines = [
        (name, f"{rows.sum()}", *(error(data[key][rows]) for key in COLUMNS)) for name, rows in subsets(data).items()
    ]
    return markdown_table(("runs of", "n", *COLUMNS.values()), lines)


def repeats_table(data: dict[str, np.ndarray]) -> str:
    """Scatter of runs of equal settings, of one release and of any, beside the held-out error, as Markdown."""
    runs = concatenate([table for table, _ in load_tables().values()])
    kinds = {"one release": SOFTWARE, "any release": [kind for kind in SOFTWARE if kind != "release"]}
    found = {said: deviations(np.log(runs.step_time), runs.batch, runs.levels, kind) for said, kind in kinds.items()}
    head = ("runs of", "n", *(cell for said in found for cell in (f"repeats of {said}", "their scatter")), "5-fold")
    rows = []
    for name, part in subsets(data).items():
        cells = [
            cell for values in found.values() for cell in (f"{np.isfinite(values[part]).sum()}", error(values[part]))
        ]
        rows.append((name, f"{part.sum()}", *cells, error(data["five_fold"][part])))
    return markdown_table(head, rows)


def memory_widths(data: dict[str, np.ndarray]) -> np.ndarray:
    """Half-width of the 90 % interval of log peak memory of a run whose model the fit never saw [row]."""
    fit = load_fit()
    unseen = {"architecture": "no model of the fit"}
    scatter = {setup: fit.interval({"source": setup, **unseen}).memory for setup in set(data["setup"])}
    return Z90 * np.asarray([scatter[setup] for setup in data["setup"]])


def memory_table(data: dict[str, np.ndarray]) -> str:
    """Errors of peak memory and coverage of its intervals as a Markdown table."""
    lines = []
    inside = np.abs(data["memory_left_out_model"]) <= memory_widths(data)
    for name, rows in subsets(data).items():
        known = rows & np.isfinite(data["memory_in_sample"])
        if known.any():
            cells = [error(data[key][known]) for key in ("memory_in_sample", "memory_left_out_model")]
            lines.append((name, f"{known.sum()}", *cells, f"{100.0 * inside[known].mean():.0f}"))
    return markdown_table(("runs of", "n", "in sample", "models left out", "inside their interval [%]"), lines)


def suspects(data: dict[str, np.ndarray]) -> np.ndarray:
    """Whether a run contradicts most of its siblings, runs of the same setup [row]."""
    found = np.zeros(len(data["row"]), dtype=bool)
    for table, (measured, index) in load_tables().items():
        setups = np.asarray(measured.levels.column("source"))
        for setup in sorted(set(setups)):
            inside = np.flatnonzero(setups == setup)
            suspect = index[inside][contradicted(measured.take(inside))]
            found |= (data["table"] == table) & np.isin(data["row"], suspect)
    return found


def suspect_table(data: dict[str, np.ndarray]) -> str:
    """Errors with and without suspect rows, of the tables that have some and of all runs, as Markdown."""
    suspect, lines = suspects(data), []
    schemes = ("five_fold", "left_out_model", "left_out_larger", "memory_in_sample", "memory_left_out_model")
    for name, rows in subsets(data).items():
        if (rows & suspect).any():
            for said, part in ((name, rows), (f"{name}, without suspect rows", rows & ~suspect)):
                cells = [error(data[key][part]) for key in schemes]
                lines.append((said, f"{part.sum()}", *cells))
    head = ("runs of", "n", "5-fold", "model", "larger", "memory, in sample", "memory, model")
    return markdown_table(head, lines)


def controls_table() -> str:
    """Negative controls as a Markdown table."""
    cells = ("control", "table", "mape_percent", "mape_of_control_percent")
    rows = [[row[cell] for cell in cells] for row in rows_of("controls.csv")]
    return markdown_table(("control", "on", "fit", "control"), rows)


def figure(data: dict[str, np.ndarray]) -> None:
    """Distribution of held-out errors by part, as horizontal boxes."""
    parts = subsets(data)
    shown = {name: 100.0 * np.expm1(data["five_fold"][rows]) for name, rows in parts.items()}
    shown = {f"{name} ({len(v)})": v[np.isfinite(v)] for name, v in shown.items() if np.isfinite(v).any()}
    with style():
        drawn = new_figure(9.0, 0.36 * len(shown) + 1.4)
        axes = drawn.subplots()
        median = {"color": RED, "lw": 1.8, "zorder": 4}
        axes.boxplot(
            list(shown.values()),
            orientation="horizontal",
            whis=(5, 95),
            showfliers=False,
            tick_labels=list(shown),
            medianprops=median,
        )
        axes.axvspan(-10.0, 10.0, color="#EDEDED", zorder=0)
        axes.axvline(0.0, color=INK, lw=1)
        axes.set_xlim(-60.0, 60.0)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("predicted over measured step time, less one [%]\nbox: quartiles, whiskers: 5 and 95 %")
        axes.set_title("Runs whose group the fit never saw (5-fold)")
    save_figure(drawn, FOLDER / "scoreboard.png")


def accuracy_table(data: dict[str, np.ndarray]) -> str:
    """The few columns that `docs/accuracy.md` shows."""
    errors = (f"{kind} left out: mean / median error [%]" for kind in ("groups", "whole models"))
    head = ("measured runs of", "n", *errors, "90 % interval holds")
    lines = []
    for name, rows in subsets(data).items():
        inside = coverage(data["five_fold"][rows], data["group"][rows])
        cells = [error(data[key][rows]) for key in ("five_fold", "left_out_model")]
        lines.append((name, f"{rows.sum()}", *cells, f"{inside} %"))
    return markdown_table(head, lines)


def write_accuracy_page(data: dict[str, np.ndarray]) -> None:
    """Replace the scoreboard of `docs/accuracy.md`, between its two markers."""
    path = FOLDER.parent / "docs" / "accuracy.md"
    before, rest = path.read_text(encoding="utf-8").split(BEGIN)
    after = rest.split(END)[1]
    now = figures_of_strangers()
    said = f"""Errors are those of runs that the fit has not seen, by groups of one model shape, number of chips, tp
and pp. A stack that was never fitted is missed by {now["stacks_median"]:.0f} % (median of the stacks), and by
{now["stacks_after_pace"]:.0f} % once one factor for the stack is known
([a new software stack](../fits/README.md#a-new-software-stack))."""
    path.write_text(f"{before}{BEGIN}\n{accuracy_table(data)}\n\n{said}\n{END}{after}", encoding="utf-8")


def main() -> None:
    """Write the scoreboard."""
    data = read_residuals()
    foretold = ultrascale_oom()
    legend = "\n".join(f"- {key.removeprefix('left_out_').replace('_', ' ')}: {text}." for key, text in SCHEMES.items())
    text = f"""# Scoreboard

Made by `fits/scoreboard.py` from `fits/residuals.csv`, which `fits/calibrate.py` writes. Mean / median absolute
percentage error of step time, by the shipped fit, centre and offsets; "own coefficients" fits each table alone.

{table(data)}

{legend}

![held-out errors](scoreboard.png)

## What the calibration is made of

{hierarchy()}

The centre is fitted first, to the tables and to public reports, each stack counted alike; offsets of known stacks never
move it. A stack that nobody fitted is answered by the centre.

## What repeats leave

Runs of equal settings differ, and no prediction from settings can meet further ones better than that. Mean / median of
their distance from the mean of their like [%], widened to that of single runs (`jaxscale/runs/table_checks.py`), where
the table states the same model, plan, cluster and software; over releases it holds what software gained between them,
which a fit of releases knows in part.

{repeats_table(data)}

[What is left](residuals.md) of each table: held-out errors by column, and the settings that carry most of them.

## Intervals

Share of runs inside their 90 % interval [%]. A prediction for a model that the fit never saw, or for a larger cluster
than any run of the source had, gets the interval of such runs. Half-widths come from all other groups of the same
scheme. Intervals of stacks that were never fitted: [a new software stack](#a-new-software-stack).

{coverage_table(data)}

## Suspect rows

Some Ultra-Scale rows of the release after the fix of its pipeline engine carry the overhead from before it, about a
second per pipeline slot; some are several times faster than all runs like them. They stay in the fit, whose likelihood
has heavy tails. The rule that finds them (`jaxscale/runs/table_checks.py`) looks at measured times alone: more work in
a slot must take longer, and not more than so many times longer; a row that breaks this with most of its siblings is
suspect. A few rows of other tables break it too.

{suspect_table(data)}

## Peak memory

Mean / median absolute percentage error of peak memory, and how many runs of models that the fit never saw are inside
the 90 % interval of such runs.

{memory_table(data)}

{oom_table(*foretold)}

![stated against observed](reliability.png)

Runs that ended bound their peaks (`jaxscale/fitting/informed_coefficients.py`), where their table says what they
recomputed. Of those that state no peak, this many are predicted to run out of memory, more likely than not:

{ended_table()}

## A new software stack

The centre of the calibration is fitted without a stack; then its runs are predicted as they are, and after a fit of
some of them, drawn at random once. Percentage errors of step time; `fits/evaluate.py`, whose figures decide what the
calibration is made of.

{strangers_table()}

{stacks_table()}

## Negative controls

Mean held-out error [%] of a table's own fit, and of the same fit with its step times shuffled or without one term of
the model; `fits/controls.py`.

{controls_table()}

## Kernels and collectives

[What kernels and collectives reach on their own](companion.md), the source of several priors.

## Choices

[Plans chosen among measured ones](regret.md), [searches against exhaustive optima](choose_study.md) and
[against scipy](choose_oracle.md).

## What other tools reach

Mean absolute percentage error of step time, measured in November 2026 with each tool's shipped settings:

{PEERS}
"""
    (FOLDER / "README.md").write_text(with_contents(text), encoding="utf-8")
    figure(data)
    reliability_figure(*foretold)
    write_accuracy_page(data)


if __name__ == "__main__":
    main()
