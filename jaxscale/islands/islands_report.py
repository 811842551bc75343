"""Report of `jaxscale islands`: terminal tables, figures, HTML report."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxscale.base.errors import InputError
from jaxscale.base.table import Table, TableColumn, make_table, text_column
from jaxscale.base.units import GBIT
from jaxscale.islands.islands_choice import IslandsChoice, ScoredMode
from jaxscale.report.document import Report
from jaxscale.report.figures.panels import curves
from jaxscale.report.style import PALETTE, entries_of, legend_below, round_ticks, seconds, single_axes, time_unit
from jaxscale.report.terminal_tables import rounded_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MODE_COLUMNS = (
    text_column("mode"),
    text_column("islands", says="on {}"),
    TableColumn("tokens/s", "tok/s", stays=True),
    TableColumn("days", says="{} days", stays=True),
    TableColumn("90 % interval", "90 %"),
    TableColumn("inner steps", "inner"),
    TableColumn("utilisation", "util. %", "%"),
)
FURTHER_COLUMNS = (
    text_column("mode"),
    text_column("islands", says="on {}"),
    TableColumn("tokens/s", "tok/s", stays=True),
    TableColumn("tokens over", "tokens", stays=True),
    TableColumn("days", says="{} days", stays=True),
    TableColumn("90 % interval", "90 %"),
    TableColumn("words sent", "words %", "%"),
    text_column("measured on"),
)
ISLAND_COLUMNS = (
    text_column("island"),
    TableColumn("gets", says="gets {}"),
    TableColumn("share", "share %", "%"),
    TableColumn("work"),
    TableColumn("waits"),
    TableColumn("exchange"),
    TableColumn("worth"),
)
PRICE_COLUMNS = (
    text_column("of"),
    text_column("name"),
    TableColumn("price"),
)
"""Columns of the tables."""


def mode_table(choice: IslandsChoice) -> Table:
    """Table of the ranked modes of joint training."""
    rows = []
    for scored in choice.modes:
        low, high = scored.band
        band = f"{rounded_text(low)} to {rounded_text(high)}" if math.isfinite(high) else f"above {rounded_text(low)}"
        steps = f"{scored.inner_steps:g}" if scored.replicas else "-"
        pace = (f"{scored.tokens_per_s:,.0f}", rounded_text(scored.days), band)
        rows.append((scored.mode, ", ".join(scored.islands), *pace, steps, f"{100.0 * scored.utilisation:.0f}"))
    return make_table("Modes, the fewest days first", MODE_COLUMNS, rows)


def further_table(choice: IslandsChoice) -> Table:
    """Table of the published modes outside the ranking."""
    rows = []
    for mode in choice.further:
        days = "-" if mode.days is None else "out of reach" if math.isinf(mode.days) else rounded_text(mode.days)
        band = "-" if mode.band is None else " to ".join(map(rounded_text, mode.band))
        factor = "not published" if mode.factor is None else rounded_text(mode.factor)
        pace = (f"{mode.tokens_per_s:,.0f}", factor, days, band, f"{100.0 * mode.words:.0f}")
        rows.append((mode.mode, ", ".join(mode.islands), *pace, mode.evidence))
    return make_table("Not ranked: penalties measured on other networks, or assumed", FURTHER_COLUMNS, rows)


def island_table(choice: IslandsChoice, scored: ScoredMode) -> Table:
    """Table of the islands in a mode: batch or layers, time of a round by cause, worth."""
    unit, rows = "layers" if scored.mode == "pipeline" else "sequences", []
    exchange = sum(scored.terms.get(name, 0.0) for name in ("exchange", "latency", "tail"))
    finish = sum(scored.terms.get(name, 0.0) for name in ("compute", "imbalance"))
    for name in scored.islands:
        work = scored.work[name]
        times = (seconds(work), seconds(max(finish - work, 0.0)), seconds(exchange))
        worth = f"{choice.worth[name]:.3f}"
        rows.append((name, f"{scored.amounts[name]} {unit}", f"{100.0 * scored.shares[name]:.1f}", *times, worth))
    return make_table(f"Islands in the mode {scored.mode}, one round", ISLAND_COLUMNS, rows)


def island_price_table(choice: IslandsChoice) -> Table:
    """Table of the elasticities of the throughput in links and islands, in decreasing order."""
    entries = [(kind, name, price) for kind, table in choice.prices.items() for name, price in table.items()]
    entries.sort(key=lambda entry: -abs(entry[2]))
    rows = [(kind, name, f"{price:+.3f}") for kind, name, price in entries if abs(price) >= 5e-4]
    return make_table("Prices: relative gain in pace for a relative gain", PRICE_COLUMNS, rows)


def verdict(choice: IslandsChoice) -> list[str]:
    """Sentences on the best mode, the gain over a single island, and the break-even bandwidth."""
    best, alone = choice.best, [scored for scored in choice.modes if scored.mode == "alone"]
    how = f"{best.mode} on {', '.join(best.islands)}"
    lines = [f"best: {how}, {rounded_text(best.days)} days to a loss of {choice.loss:.4g} nats per token"]
    if best.mode != "alone" and alone:
        single = alone[0]
        lines.append(
            f"{single.islands[0]} alone takes {rounded_text(single.days)} days: joining is "
            f"{rounded_text(single.days / best.days)} times as fast"
        )
    if choice.sweep is not None and 0.0 < choice.sweep.break_even < np.inf:
        rate = choice.sweep.break_even / GBIT
        lines.append(f"joining pays from {rounded_text(rate)} Gbit/s on the slowest link, all links scaled alike")
    if best.replicas:
        low, high = choice.best_inner_steps
        lines.append(f"inner steps: best at {best.inner_steps:g}, 90 % interval {low:g} to {high:g}")
    if choice.sign_is_open:
        low, high = (100.0 * end for end in choice.rise)
        lines.append(
            f"two replicas of 1e9 parameters at 30 inner steps change the loss by {low:+.2f} to {high:+.2f} %: "
            "the sign is open"
        )
    return [*lines, *choice.notes]


def islands_tables(choice: IslandsChoice) -> list[Any]:
    """Tables and sentences of a choice for the terminal."""
    tables = (mode_table(choice), further_table(choice), island_table(choice, choice.best), island_price_table(choice))
    return [*(table for table in tables if table.rows), "\n".join(verdict(choice))]


def bandwidth_figure(choice: IslandsChoice) -> "Figure":
    """Figure of the speed-up over the best island alone, against the bandwidth of the slowest link.

    The speed-up is a ratio of days to an equal loss, including tokens lost to infrequent exchange.

    Args:
        choice: choice for a fleet of several islands that hold the model.

    Raises:
        InputError: fewer than two islands hold the model.
    """
    sweep = choice.sweep
    if sweep is None:
        raise InputError("fewer than two islands hold the model; expected several for a figure of their links")
    lines = {**sweep.gain, "best island alone": np.ones_like(sweep.bandwidth)}
    return curves(
        sweep.bandwidth / GBIT,
        lines,
        xlabel="bandwidth of the slowest link [Gbit/s]",
        ylabel="days of the best island alone over days",
        title="What joining gains, each mode at its best number of inner steps",
    )


def days_figure(choice: IslandsChoice) -> "Figure":
    """Figure of the days to the loss by mode, with central 90 % intervals."""
    with single_axes(7.8, 1.2 + 0.45 * len(choice.modes)) as (figure, axes):
        for row, scored in enumerate(choice.modes):
            low, high = scored.band
            top = high if np.isfinite(high) else scored.days
            colour = PALETTE[0] if scored is choice.best else PALETTE[6]
            axes.plot([low, top], [row, row], color=colour, lw=2.2, solid_capstyle="butt")
            axes.plot(scored.days, row, "o", color=colour, ms=7)
        labels = [f"{scored.mode}: {', '.join(scored.islands)}" for scored in choice.modes]
        axes.set_yticks(range(len(labels)), labels)
        axes.invert_yaxis()
        axes.set(xlabel="time to the loss, with 90 % interval [day]", xscale="log")
        round_ticks(axes.xaxis, axes.get_xlim())
        axes.set_title("Days by mode")
    return figure


def time_figure(choice: IslandsChoice) -> "Figure":
    """Figure of the time of a round on each island in the best mode: work, waiting, exchange."""
    best = choice.best
    finish = sum(best.terms.get(name, 0.0) for name in ("compute", "imbalance"))
    exchange = sum(best.terms.get(name, 0.0) for name in ("exchange", "latency", "tail"))
    unit, symbol = time_unit(finish + exchange)
    with single_axes(7.8, 1.6 + 0.45 * len(best.islands)) as (figure, axes):
        for row, name in enumerate(best.islands):
            work = best.work[name]
            parts = (("work", work), ("waiting", max(finish - work, 0.0)), ("exchange not hidden", exchange))
            left = 0.0
            for (label, length), colour in zip(parts, PALETTE, strict=False):
                axes.barh(row, length / unit, left=left / unit, color=colour, label=label if row == 0 else None)
                left += length
        axes.set_yticks(range(len(best.islands)), best.islands)
        axes.invert_yaxis()
        axes.set(xlabel=f"time of one round [{symbol}]")
        axes.set_title(f"Where the time goes: {best.mode}")
        legend_below(figure, entries_of(axes))
    return figure


def islands_report(choice: IslandsChoice, title: str) -> Report:
    """HTML report of a choice, with verdict, tables and figures.

    Returns:
        The report; `save` writes the report to a file.
    """
    report = Report(f"Islands: {title}")
    for line in verdict(choice):
        report.text(line)
    report.heading("Modes")
    report.add(mode_table(choice))
    report.figure("days", days_figure(choice), "Days to the loss by mode, with central 90 % intervals.")
    if choice.further:
        report.add(further_table(choice))
    report.heading("Where the time goes")
    report.add(island_table(choice, choice.best))
    report.figure("time", time_figure(choice), "One round of the best mode on each island.")
    if choice.sweep is not None:
        report.heading("Links")
        report.figure(
            "bandwidth",
            bandwidth_figure(choice),
            "Gain over the best island alone against the bandwidth of the links, by mode.",
        )
    if (prices := island_price_table(choice)).rows:
        report.add(prices)
    return report
