"""Figures and tables of the views of a page, and their export as CSV."""

import csv
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxscale._arrays import number
from jaxscale._markup import html_table
from jaxscale.explore.page_state import SLIDERS
from jaxscale.explore.page_work import PageView
from jaxscale.report.figures import Panel, panels, sensitivity_bars, step_breakdown
from jaxscale.report.style import seconds
from jaxscale.units import DAY, GB

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SMALLEST_TERM = 5e-4
"""Terms below this share of their sum, and slopes below it, are left out on the page, not in files [1]."""

Records = tuple[tuple[str, ...], list[tuple[Any, ...]]]
"""Columns and rows of a table, in plain numbers."""


def headline(view: PageView) -> dict[str, str]:
    """Figures of a state in words, by their label."""
    scale = view.step_time / view.choice.best.step_time
    lo, hi = (seconds(scale * end) for end in view.choice.step_time_interval)
    model = {name: float(getattr(view.rows.models, name)[0]) for name in ("n_layers", "d_model")}
    return {
        "step": seconds(view.step_time),
        "90 % interval": f"{lo} to {hi}",
        "tokens per second": f"{view.tokens_per_second:,.0f}",
        "MFU": f"{100 * float(view.figures.mfu[0]):.1f} %",
        "memory": f"{float(view.figures.memory[0]) / GB:.1f} of {view.capacity / GB:.0f} GB",
        "out of memory": f"{100 * view.oom_probability:.0f} %",
        "shape": f"{model['n_layers']:.0f} x {model['d_model']:.0f}, {float(view.figures.params[0]):.3g} parameters",
        "loss": f"{float(view.figures.loss[0]):.3f} nat",
        "run": f"{float(view.figures.run_seconds[0]) / DAY:.3g} days",
    }


def plan_words(view: PageView) -> str:
    """The plan of a state on one line: degrees above one and choices."""
    words = view.plan.words()
    degrees = [f"{name} {words[name]}" for name in ("dp", "tp", "pp", "vpp", "cp", "ep") if words[name] > 1]
    degrees += [f"microbatch {words['micro_batch_size']} x {words['n_microbatches']}"]
    degrees += [f"ZeRO {words['zero_stage']}"] if words["zero_stage"] else []
    degrees += [f"{words['schedule']}"] if words["pp"] > 1 else []
    degrees += ["sequence parallel"] if words["sequence_parallel"] else []
    degrees += [f"{words['recompute']} recompute"] if words["recompute"] != "none" else []
    return ", ".join(degrees)


def tab_figure(view: PageView, tab: str) -> "Figure | None":
    """Figure of a view of a state; none of the ranking, which is a table."""
    return {"step": _step, "sensitivity": _sensitivity, "chips": _chips, "shape": _shape}.get(tab, _no_figure)(view)


def tab_records(view: PageView, tab: str) -> Records:
    """Table of a view of a state."""
    tables = {"step": _terms, "plans": _plans, "sensitivity": _elasticities, "chips": _chip_counts, "shape": _shapes}
    return tables[tab](view)


def tab_csv(view: PageView, tab: str) -> str:
    """Table of a view as CSV, in full precision."""
    columns, rows = tab_records(view, tab)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([columns, *rows])
    return text.getvalue()


def tab_html(view: PageView, tab: str) -> str:
    """Table of a view in HTML, in rounded numbers, without small terms and columns of a ranking that say nothing."""
    columns, rows = tab_records(view, tab)
    if tab == "step":
        rows = [(*row[:4], f"{100 * row[4]:.1f} %") for row in rows if row[4] >= SMALLEST_TERM]
    if tab == "plans":
        kept = [place for place, name in enumerate(columns) if name in ALWAYS or len({row[place] for row in rows}) > 1]
        columns = tuple(columns[place] for place in kept)
        rows = [tuple(row[place] for place in kept) for row in rows]
    return html_table([name.replace("_", " ") for name in columns], [[_cell(cell) for cell in row] for row in rows])


ALWAYS = ("rank", "dp", "tp", "pp", "micro_batch_size", "step_time_s", "mfu", "memory_gb", "oom_probability")
"""Columns of the ranking that the page shows even where all plans agree."""


def _cell(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, float | int | np.number):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.4g}"
    return str(value).replace("_", " ")


def _no_figure(view: PageView) -> None:
    return None


def _changed(view: PageView) -> bool:
    """Whether any factor of a state moves its step away from the plan's own."""
    return any(getattr(view.state, name) != 1.0 for name in (*SLIDERS, "width", "depth"))


def _step(view: PageView) -> "Figure":
    chosen = view.choice.top[min(view.state.rank, len(view.choice.top)) - 1]
    steps = {"this state": view.terms()} | ({"without factors": dict(chosen.terms)} if _changed(view) else {})
    return step_breakdown(steps, f"Where the time of a step goes ({seconds(view.step_time)})")


def _terms(view: PageView) -> Records:
    times, peaks = view.terms(), {name: term / GB for name, term in view.memory_terms().items()}
    rows = [("step time", name, term, "s", term / sum(times.values())) for name, term in _falling(times)]
    rows += [("peak memory", name, term, "GB", term / sum(peaks.values())) for name, term in _falling(peaks)]
    return ("of", "term", "value", "unit", "share"), rows


def _falling(terms: dict[str, float]) -> Sequence[tuple[str, float]]:
    return sorted(terms.items(), key=lambda pair: -pair[1])


def _plans(view: PageView) -> Records:
    ranked = [scored.to_json() for scored in view.choice.top]
    rows = [(rank, *plan.values()) for rank, plan in enumerate(ranked, start=1)]
    return ("rank", *ranked[0]), rows


def _sensitivity(view: PageView) -> "Figure":
    told = {name: slope for name, slope in view.elasticities.items() if abs(slope) >= SMALLEST_TERM}
    return sensitivity_bars(told, step_time=view.step_time)


def _elasticities(view: PageView) -> Records:
    ranked = sorted(view.elasticities.items(), key=lambda pair: -abs(pair[1]))
    return ("one_percent_more_of", "changes_step_time_percent"), ranked  # pyright: ignore[reportReturnType]


def _chip_counts(view: PageView) -> Records:
    at, batch = view.rows.curve(0), number(view.plan.global_batch_size_seqs) * float(view.rows.models.seq_len[0])
    times, memory = view.figures.step_time[at], view.figures.memory[at]
    columns = ("n_chips", "step_time_s", "tokens_per_s", "memory_gb")
    return columns, list(zip(*(column.tolist() for column in _of_chips(view, times, batch, memory)), strict=True))


def _of_chips(view: PageView, times: np.ndarray, batch: float, memory: np.ndarray) -> tuple[np.ndarray, ...]:
    return view.rows.n_chips[view.rows.curve(0)], times, batch / times, memory / GB


def _chips(view: PageView) -> "Figure":
    _, rows = _chip_counts(view)
    n, times, rates, _ = np.asarray(rows).T
    here, now = float(view.rows.n_chips[0]), view.step_time
    mark = {"this state": (here, now, 0.0)}
    ideal, rate = now * here / n, view.tokens_per_second
    title = "Same batch, more replicas"
    return panels(
        [
            Panel(
                title,
                "chips",
                "step time [s]",
                n,
                {"step": times, "ideal": ideal},
                marks=mark,
                logarithmic=(True, True),
            ),
            Panel(
                "Throughput",
                "chips",
                "tokens/s per chip",
                n,
                {"this plan": rates / n},
                marks={"this state": (here, rate / here, 0.0)},
            ),
        ]
    )


def _shapes(view: PageView) -> Records:
    columns = ("curve", "d_model", "n_layers", "params", "loss", "training_days", "step_time_s", "memory_gb")
    rows: list[tuple[Any, ...]] = []
    for curve, at in (("width", view.rows.curve(1)), ("depth", view.rows.curve(2))):
        models, figures = view.rows.models, view.figures
        values = [models.d_model[at], models.n_layers[at], figures.params[at], figures.loss[at]]
        values += [figures.run_seconds[at] / DAY, figures.step_time[at], figures.memory[at] / GB]
        rows += [(curve, *row) for row in zip(*(np.asarray(column).tolist() for column in values), strict=True)]
    return columns, rows


def _shape(view: PageView) -> "Figure":
    parts = []
    run = f"{view.run_tokens:.3g} tokens"
    for name, ylabel, title in (("loss", "loss [nat per token]", f"Loss after {run}"), ("days", "run [days]", "Time")):
        for label, index in (("width d_model", 1), ("depth n_layers", 2)):
            at = view.rows.curve(index)
            x = view.rows.models.d_model if index == 1 else view.rows.models.n_layers
            y = view.figures.loss if name == "loss" else view.figures.run_seconds / DAY
            mark = {"this state": (float(x[0]), float(y[0]), 0.0)}
            parts.append(Panel(title, label, ylabel, x[at], {"this plan": y[at]}, marks=mark, from_zero=name == "days"))
    return panels(parts)
