"""Tables of the page's tabs as HTML and CSV, and texts of results and plans."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxscale.base.arrays import number
from jaxscale.base.table import html_table
from jaxscale.base.units import DAY, GB, in_digits
from jaxscale.explore.page_work import PageView
from jaxscale.plans.plan import DEGREES, in_short
from jaxscale.report.style import seconds
from jaxscale.report.terminal_tables import PLAN_COLUMNS
from jaxscale.tables.table import csv_text

NO_BREAK = {" ": "\u00a0", "-": "-\u2060"}
"""Replacements of blanks and hyphens that prevent line breaks."""

PHRASED = {*DEGREES, *PLAN_COLUMNS, "recompute_full"}
"""Plan choices with phrases in the short form."""


def headline(view: PageView) -> dict[str, str]:
    """Main results (step time, memory, loss, ...) as text, by label."""
    # The interval scales with the step time, factors included.
    scale = view.step_time / view.choice.best.step_time
    lo, hi = (seconds(scale * end) for end in view.choice.step_time_interval)
    layers, width = float(view.model.n_layers), float(view.model.d_model)
    return {
        "step": seconds(view.step_time),
        "90 % interval": f"{lo} to {hi}",
        "tokens per second": f"{view.tokens_per_second:,.0f}",
        "MFU": percent(view.now.mfu),
        "memory": f"{view.now.memory / GB:.1f} of {view.capacity / GB:.0f} GB",
        "out of memory": percent(view.oom_probability),
        "layers x width": f"{layers:.0f} x {width:.0f}",
        "parameters": count(view.now.run.params),
        "loss": f"{view.now.run.loss:.3f} nat",
        "run": days(view.now.run.seconds),
    }


def percent(share: float) -> str:
    """Text of a share in per cent: `52.0 %`, `< 0.1 %`, `0 %`."""
    if 0.0 < share < 1e-3:
        return "< 0.1 %"
    return f"{100 * share:.1f} %" if share else "0 %"


def count(number: float) -> str:
    """Text of a large count: `8.03 B`, `405 B`, `125 M`."""
    for factor, unit in ((1e12, "T"), (1e9, "B")):
        if number >= factor:
            return f"{number / factor:.3g} {unit}"
    return f"{number / 1e6:.3g} M"


def days(duration: float) -> str:
    """Text of the duration of a run: `4.23 days`."""
    return f"{in_digits(duration / DAY)} days"


def phrases_of(words: Mapping[str, Any]) -> list[str]:
    """Choices of a plan as short phrases: `dp 32`, `mb 1 x 16`, `ZeRO-2`, `SP`.

    Args:
        words: fields of the plan, in the form of `Plan.words`.
    """
    # Phrases are two blanks apart.
    return in_short(words).split("  ")


def plan_text(phrases: Sequence[str]) -> str:
    """Phrases as a single text with line breaks allowed only between phrases."""
    return "  ".join(phrase.translate(str.maketrans(NO_BREAK)) for phrase in phrases)


def ranked_plan_texts(ranked: Sequence[Mapping[str, Any]]) -> tuple[list[str], str]:
    """Text of each ranked plan without the common choices, and text of the choices common to all plans.

    Data parallelism and microbatches are always in the text of each plan.

    Args:
        ranked: fields of each plan, in the form of `Plan.words`.

    Returns:
        Texts of the plans, text of the common choices.
    """
    told = [phrases_of(words) for words in ranked]
    unusual = [name for name in ranked[0] if name not in PHRASED and len({words[name] for words in ranked}) > 1]
    for phrases, words in zip(told, ranked, strict=True):
        phrases += [f"{name.replace('_', ' ')} {words[name]}" for name in unusual]
    common = set(told[0]).intersection(*told[1:]) if len(told) > 1 else set()
    shared = [phrase for phrase in told[0] if phrase in common and not phrase.startswith(("dp ", "mb "))]
    lines = [plan_text([phrase for phrase in phrases if phrase not in shared]) for phrases in told]
    return lines, plan_text(shared)


SMALLEST_TERM = 5e-4
"""Smallest share of a term in the sum, and smallest slope, shown on the page; files contain all [1]."""

Records = tuple[tuple[str, ...], list[tuple[Any, ...]]]
"""Columns and rows of a table, as plain numbers."""


def tab_records(view: PageView, tab: str) -> Records:
    """Column names and rows of the table of a tab."""
    tables = {"step": _terms, "plans": _plans, "sensitivity": _elasticities, "chips": chip_counts, "shape": shapes}
    return tables[tab](view)


def tab_csv(view: PageView, tab: str) -> str:
    """Table of a tab as CSV, in full precision."""
    return csv_text(*tab_records(view, tab))


def tab_html(view: PageView, tab: str) -> str:
    """Tables of a tab as HTML."""
    tables = {
        "step": _term_tables,
        "plans": _plan_table,
        "sensitivity": _slope_table,
        "chips": _chip_table,
        "shape": _shape_tables,
    }
    return f'<div class="tables {tab}">{tables[tab](view)}</div>'


def _boxed(caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Table in a scrollable box."""
    return f'<div class="wide">{html_table(columns, rows, caption)}</div>'


def _terms(view: PageView) -> Records:
    times, peaks = view.now.terms, {name: term / GB for name, term in view.now.memory_terms.items()}
    rows = [("step time", name, term, "s", term / sum(times.values())) for name, term in ranked_terms(times)]
    rows += [("peak memory", name, term, "GB", term / sum(peaks.values())) for name, term in ranked_terms(peaks)]
    return ("of", "term", "value", "unit", "share"), rows


def ranked_terms(terms: Mapping[str, float]) -> list[tuple[str, float]]:
    """Cost terms in descending order."""
    return sorted(terms.items(), key=lambda pair: -pair[1])


def _term_tables(view: PageView) -> str:
    parts = [("time", view.now.terms, seconds), ("memory", view.now.memory_terms, _gigabytes)]
    tables = []
    for head, terms, words in parts:
        total = sum(terms.values())
        rows = [
            (name.replace("_", " "), words(term), percent(term / total))
            for name, term in ranked_terms(terms)
            if term >= SMALLEST_TERM * total
        ]
        tables.append(_boxed("", ("term", head, "share"), rows))
    return "".join(tables)


def _plans(view: PageView) -> Records:
    ranked = [scored.to_json() for scored in view.choice.top]
    rows = [(rank, *plan.values()) for rank, plan in enumerate(ranked, start=1)]
    return ("rank", *ranked[0]), rows


def _plan_table(view: PageView) -> str:
    lines, shared = ranked_plan_texts([scored.plan.words() for scored in view.choice.top])
    rows = [
        (str(rank), line, seconds(scored.step_time), percent(scored.mfu), _gigabytes(scored.memory), _oom(scored))
        for rank, (line, scored) in enumerate(zip(lines, view.choice.top, strict=True), start=1)
    ]
    caption = f"In all plans: {shared}. " if shared else ""
    caption += "OOM is the probability that a run exceeds the memory of its chips."
    return _boxed(caption, ("rank", "plan", "step", "MFU", "memory", "OOM"), rows)


def _oom(scored: Any) -> str:
    return percent(scored.oom_probability)


def _gigabytes(memory: float) -> str:
    return f"{memory / GB:.1f} GB"


def _elasticities(view: PageView) -> Records:
    ranked = sorted(view.elasticities.items(), key=lambda pair: -abs(pair[1]))
    return ("one_percent_more_of", "changes_step_time_percent"), ranked  # pyright: ignore[reportReturnType]


def _slope_table(view: PageView) -> str:
    _, ranked = _elasticities(view)
    rows = [(name, f"{slope:+.3f} %") for name, slope in ranked if abs(slope) >= SMALLEST_TERM]
    return _boxed("", ("1 % more of", "changes the step time by"), rows)


def chip_counts(view: PageView) -> Records:
    """Table of step time, throughput and memory by number of chips, at constant batch (more data-parallel replicas)."""
    at = view.rows.curve(0)
    counts, times, memory = view.rows.n_chips[at], view.figures.step_time[at], view.figures.memory[at]
    batch = number(view.plan.global_batch_size_seqs) * float(view.model.seq_len)
    columns = ("n_chips", "step_time_s", "tokens_per_s", "memory_gb", "fits")
    values = (counts, times, batch / times, memory / GB, view.fits(memory))
    return columns, list(zip(*(np.asarray(column).tolist() for column in values), strict=True))


def _chip_table(view: PageView) -> str:
    _, rows = chip_counts(view)
    cells = [
        (
            f"{chips:,.0f}",
            seconds(time),
            f"{rate:,.0f}",
            f"{rate / chips:,.0f}",
            f"{memory:.1f} GB",
            "yes" if fits else "no",
        )
        for chips, time, rate, memory, fits in rows
    ]
    caption = f"Plans fit up to {view.choice.memory_limit / GB:.1f} GB of the {view.capacity / GB:.0f} GB of a chip."
    return _boxed(caption, ("chips", "step", "tokens/s", "per chip", "memory", "fits"), cells)


def shapes(view: PageView) -> Records:
    """Table of loss, duration, step time and memory of models of other widths and depths, at a constant plan."""
    columns = ("curve", "d_model", "n_layers", "params", "loss", "training_days", "step_time_s", "memory_gb", "fits")
    rows: list[tuple[Any, ...]] = []
    for curve, at in (("width", view.rows.curve(1)), ("depth", view.rows.curve(2))):
        models, figures = view.rows.models, view.figures
        values = [models.d_model[at], models.n_layers[at], figures.run.params[at], figures.run.loss[at]]
        values += [figures.run.seconds[at] / DAY, figures.step_time[at], figures.memory[at] / GB]
        values += [view.fits(figures.memory[at])]
        rows += [(curve, *row) for row in zip(*(np.asarray(column).tolist() for column in values), strict=True)]
    return columns, rows


def _shape_tables(view: PageView) -> str:
    _, rows = shapes(view)
    tables = []
    for curve, caption, place in (("width", "Other widths", 1), ("depth", "Other depths", 2)):
        cells = [
            (
                f"{row[place]:,.0f}",
                count(row[3]),
                f"{row[4]:.3f} nat",
                days(row[5] * DAY),
                seconds(row[6]),
                f"{row[7]:.1f} GB",
                "yes" if row[8] else "no",
            )
            for row in rows
            if row[0] == curve
        ]
        columns = ("width" if place == 1 else "layers", "parameters", "loss", "run", "step", "memory", "fits")
        tables.append(_boxed(caption, columns, cells))
    return "".join(tables)
