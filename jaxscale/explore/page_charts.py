"""Charts of the tabs of the page (Vega), drawn by the browser, with tooltips, zoom and export."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt  # pyright: ignore[reportMissingImports]

from jaxscale.base.units import DAY, GB
from jaxscale.costs.step import TERMS
from jaxscale.explore.page_tables import SMALLEST_TERM, chip_counts, count, days, percent, ranked_terms, shapes
from jaxscale.explore.page_work import PageView
from jaxscale.plans.plan import in_short
from jaxscale.report.style import BLUE, COLOUR_NAMES, GREY, INK, ORANGE, RED, seconds

HEIGHT = 300
"""Height of a chart of points [pixel]."""

BAR = 26
"""Height of a bar with the gap below [pixel]."""

TERM_COLOURS = {term.name: COLOUR_NAMES[term.colour] for term in TERMS}
CURVES = {"width": BLUE, "depth": ORANGE}
FITS, FITS_NOT = "fits in memory", "does not fit"

LEAST_SPAN = 0.1
"""Least span of the loss axis relative to the loss; a smaller span would exaggerate small differences [1]."""

FIGURES = 0.38
"""Room for figures at the ends of bars relative to the length of all bars, for each side with bars [1]."""

DASHES = [5, 4]

MARGIN = 14
"""Margin between the outermost points and the ends of the axes [pixel]."""

Points = Sequence[Mapping[str, Any]]


def tab_charts(view: PageView, tab: str) -> list[Any]:
    """Charts of a tab of the page for the current inputs."""
    drawn = {
        "step": _step_charts,
        "plans": _plan_charts,
        "sensitivity": _slope_charts,
        "chips": _chip_charts,
        "shape": _shape_charts,
    }
    return [_finished(chart, f"jaxscale_{tab}") for chart in drawn[tab](view)]


def _finished(chart: Any, name: str) -> Any:
    """Chart of the width of the container, with buttons for SVG and PNG."""
    menu = {"export": {"svg": True, "png": True}, "source": False, "compiled": False, "editor": False}
    options = {"renderer": "svg", "actions": menu, "downloadFileName": name, "scaleFactor": 2}
    return (
        chart.properties(width="container", usermeta={"embedOptions": options})
        .configure(font="PT Sans, system-ui, sans-serif")
        .configure_axis(labelFontSize=12, titleFontSize=12, titleFontWeight="normal", gridColor="#E4E4E4")
        .configure_legend(orient="bottom", labelFontSize=12, title=None, symbolSize=80)
        .configure_title(anchor="start", fontSize=14)
        .configure_view(stroke=None)
    )


def _titled(chart: Any, title: str, height: int = HEIGHT) -> Any:
    return chart.properties(title=title, description=title, height=height)


def _zoom() -> Any:
    return alt.selection_interval(name="zoom", bind="scales")


def _chart(points: Points) -> alt.Chart:
    return alt.Chart(alt.Data(values=list(points)))


def _told(*names: str) -> list[alt.Tooltip]:
    """Tooltip of a mark with the given text fields."""
    return [alt.Tooltip(f"{name}:N") for name in names]


def _logarithmic() -> alt.Scale:
    return alt.Scale(type="log", nice=False, padding=MARGIN)


def _from_zero(values: Sequence[float]) -> alt.Scale:
    return alt.Scale(domain=[0.0, 1.06 * max(values)])


def _bars(points: Points, title: str, names: Sequence[str]) -> Any:
    """Bar chart with names in front of the bars and figures at the ends."""
    y = alt.Y("name:N", sort=None, title=None, axis=alt.Axis(labelLimit=170, ticks=False))
    ends = [min(0.0, *(point["value"] for point in points)), max(0.0, *(point["value"] for point in points))]
    sides = [end for end in ends if end]
    room = FIGURES * len(sides) * (ends[1] - ends[0])
    domain = [end + math.copysign(room, end) if end else end for end in ends]
    x = alt.X("value:Q", title=None, axis=None, scale=alt.Scale(domain=domain))
    bars = _chart(points).mark_bar(height=0.7 * BAR)
    parts = [bars.encode(x=x, y=y, color=alt.Color("colour:N", scale=None), tooltip=_told(*names))]
    looks = {"fontSize": 12, "color": INK}
    if rising := [point for point in points if point["value"] >= 0.0]:
        parts.append(_chart(rising).mark_text(align="left", dx=5, **looks).encode(x=x, y=y, text="label:N"))
    if falling := [point for point in points if point["value"] < 0.0]:
        parts.append(_chart(falling).mark_text(align="right", dx=-5, **looks).encode(x=x, y=y, text="label:N"))
    return _titled(alt.layer(*parts), title, BAR * len(points))


def _step_charts(view: PageView) -> list[Any]:
    without = view.scored.terms if view.is_changed else {}
    times = [
        {
            "name": name.replace("_", " "),
            "value": value,
            "colour": TERM_COLOURS.get(name, GREY),
            "label": seconds(value),
            "time": seconds(value),
            "share of the step": percent(value / view.step_time),
            **({"without factors": seconds(without[name])} if without else {}),
        }
        for name, value in ranked_terms(view.now.terms)
        if value >= SMALLEST_TERM * view.step_time
    ]
    peaks = [
        {
            "name": name.replace("_", " "),
            "value": value,
            "colour": GREY,
            "label": f"{value / GB:.1f} GB",
            "memory": f"{value / GB:.2f} GB",
            "share of the peak": percent(value / view.now.memory),
        }
        for name, value in ranked_terms(view.now.memory_terms)
        if value >= SMALLEST_TERM * view.now.memory
    ]
    told = ("name", "time", "share of the step", *(("without factors",) if without else ()))
    return [
        _bars(times, f"Step time: {seconds(view.step_time)}", told),
        _bars(peaks, f"Peak memory: {view.now.memory / GB:.1f} GB", ("name", "memory", "share of the peak")),
    ]


def _slope_charts(view: PageView) -> list[Any]:
    points = [
        {
            "name": name,
            "value": slope,
            "colour": ORANGE if slope > 0.0 else BLUE,
            "label": f"{slope:+.2f} %",
            "1 % more": name,
            "step time": f"{slope:+.3f} %, {'+' if slope > 0.0 else '-'}{seconds(abs(slope) / 100 * view.step_time)}",
        }
        for name, slope in sorted(view.elasticities.items(), key=lambda pair: -abs(pair[1]))
        if abs(slope) >= SMALLEST_TERM
    ]
    return [_bars(points, "Change of the step time for 1 % more", ("1 % more", "step time"))]


def _plan_charts(view: PageView) -> list[Any]:
    points = []
    for rank, scored in enumerate(view.choice.top, start=1):
        largest, term = ranked_terms(scored.terms)[0]
        points.append(
            {
                "time": scored.step_time,
                "peak": scored.memory / GB,
                "rank": rank,
                "plan": in_short(scored.plan.words()),
                "step": seconds(scored.step_time),
                "MFU": percent(scored.mfu),
                "memory": f"{scored.memory / GB:.1f} GB",
                "out of memory": percent(scored.oom_probability),
                "largest term": f"{largest.replace('_', ' ')}, {percent(term / scored.step_time)}",
            }
        )
    x = alt.X("time:Q", title="step time [s]", scale=alt.Scale(zero=False, padding=40), axis=alt.Axis(tickCount=6))
    limit = view.choice.memory_limit / GB
    y = alt.Y("peak:Q", title="memory of a chip [GB]", scale=_from_zero([limit, *(point["peak"] for point in points)]))
    told = _told("rank", "plan", "step", "MFU", "memory", "out of memory", "largest term")
    # Of coinciding plans the best is drawn last, so that its tooltip is shown.
    marks = _chart(points[::-1]).mark_circle(size=90, color=BLUE, opacity=1.0).encode(x=x, y=y, tooltip=told)
    names = _chart(_named_places(points)).mark_text(dy=-12, color=INK, fontSize=12).encode(x=x, y=y, text="ranks:N")
    line = _chart([{"peak": limit, "limit": f"plans fit up to {limit:.1f} GB"}])
    line = line.mark_rule(color=RED, strokeDash=DASHES, size=2).encode(y=y, tooltip=_told("limit"))
    layers = alt.layer(line, marks.add_params(_zoom()), names)
    return [_titled(layers, "Ranked plans by step time and memory")]


def _named_places(points: Points) -> list[dict[str, Any]]:
    """Positions of plans, each with the ranks of all plans of equal printed figures."""
    ranks: dict[tuple[str, str], list[str]] = {}
    for point in points:
        ranks.setdefault((point["step"], point["memory"]), []).append(str(point["rank"]))
    # In reverse: the best plan of equal figures wins.
    first = {(point["step"], point["memory"]): point for point in reversed(points)}
    return [
        {"time": first[place]["time"], "peak": first[place]["peak"], "ranks": ", ".join(names)}
        for place, names in ranks.items()
    ]


def _ringed(points: Points, x: alt.X, y: alt.Y, told: Sequence[alt.Tooltip]) -> alt.Chart:
    """Ring around the point of the state."""
    here = _chart(points).mark_point(size=260, strokeWidth=2, color=INK, filled=False)
    return here.encode(x=x, y=y, tooltip=[alt.Tooltip("here:N", title=" "), *told])


def _chip_charts(view: PageView) -> list[Any]:
    _, rows = chip_counts(view)
    now = float(view.rows.n_chips[0])
    points = [
        {
            "count": chips,
            "seconds": time,
            # Time in inverse proportion to the chips.
            "ideal": view.step_time * now / chips,
            "rate": rate / chips,
            "chips": f"{chips:,.0f}",
            "step": seconds(time),
            "tokens/s": f"{rate:,.0f}",
            "tokens/s per chip": f"{rate / chips:,.0f}",
            "memory": f"{memory:.1f} GB",
            "memory limit": FITS if fits else FITS_NOT,
            "here": "this state",
        }
        for chips, time, rate, memory, fits in rows
    ]
    told = _told("chips", "step", "tokens/s", "tokens/s per chip", "memory", "memory limit")
    ticks = alt.Axis(
        values=_apart([point["count"] for point in points]), format=",.0f", labelOverlap=True, labelSeparation=6
    )
    x = alt.X("count:Q", title="chips", scale=_logarithmic(), axis=ticks)
    fill = alt.Fill("memory limit:N", scale=alt.Scale(domain=[FITS, FITS_NOT], range=[BLUE, "white"]))
    times = alt.Y("seconds:Q", title="step time [s]", scale=_logarithmic())
    ideal = alt.Y("ideal:Q", title="step time [s]", scale=_logarithmic())
    rates = alt.Y("rate:Q", title="tokens/s per chip", scale=_from_zero([point["rate"] for point in points]))
    here = [point for point in points if point["count"] == now]
    charts = []
    for y, title in ((times, "Same batch, more replicas; dashed: ideal"), (rates, "Throughput of a chip")):
        shown = _chart(points).encode(x=x, y=y)
        marks = shown.mark_point(size=70, opacity=1.0, stroke=BLUE, strokeWidth=1.5).encode(fill=fill, tooltip=told)
        parts = [shown.mark_line(color=BLUE), marks.add_params(_zoom()), _ringed(here, x, y, told)]
        if y is times:
            parts.insert(0, shown.mark_line(color=GREY, strokeDash=DASHES).encode(y=ideal))
        charts.append(_titled(alt.layer(*parts), title))
    return charts


def _apart(counts: Sequence[float]) -> list[float]:
    """Counts at least half an octave apart, for the labels of a logarithmic axis."""
    kept: list[float] = []
    for each in counts:
        if not kept or each >= 2**0.5 * kept[-1]:
            kept.append(each)
    return kept


def _shape_charts(view: PageView) -> list[Any]:
    _, rows = shapes(view)
    points = [
        {
            "curve": f"other {curve}s",
            "billions": params / 1e9,
            "nat": loss,
            "days": length,
            "width": f"{width:,.0f}",
            "layers": f"{layers:,.0f}",
            "parameters": count(params),
            "loss": f"{loss:.3f} nat",
            "run": days(length * DAY),
            "step": seconds(time),
            "memory": f"{memory:.1f} GB",
            "memory limit": FITS if fits else FITS_NOT,
            "inside": CURVES[curve] if fits else "white",
            "here": "this state",
        }
        for curve, width, layers, params, loss, length, time, memory, fits in rows
    ]
    told = _told("width", "layers", "parameters", "loss", "run", "step", "memory", "memory limit")
    x = alt.X("billions:Q", title="parameters [billion]", scale=_logarithmic(), axis=alt.Axis(labelSeparation=6))
    colours = alt.Scale(domain=[f"other {curve}s" for curve in CURVES], range=list(CURVES.values()))
    stroke = alt.Stroke("curve:N", scale=colours, legend=alt.Legend(symbolType="stroke", symbolStrokeWidth=2))
    # The points state their colours, since a colour scale would add a legend.
    fill = alt.Fill("inside:N", scale=None)
    losses = alt.Y("nat:Q", title="loss [nat per token]", scale=_loss_scale([point["nat"] for point in points]))
    lengths = alt.Y("days:Q", title="run [days]", scale=_from_zero([point["days"] for point in points]))
    # The state lies on either curve: a single ring.
    here = [point for point in points if point["billions"] == view.now.run.params / 1e9][:1]
    charts = []
    for y, title in ((losses, f"Loss after {count(view.setting.tokens)} tokens"), (lengths, "Duration of the run")):
        shown = _chart(points).encode(x=x, y=y, stroke=stroke)
        marks = shown.mark_point(size=60, opacity=1.0, strokeWidth=1.5).encode(fill=fill, tooltip=told)
        charts.append(
            _titled(alt.layer(shown.mark_line(), marks.add_params(_zoom()), _ringed(here, x, y, told)), title)
        )
    return charts


def _loss_scale(losses: Sequence[float]) -> alt.Scale:
    """Loss axis around given losses."""
    low, high = min(losses), max(losses)
    half, middle = max(0.55 * (high - low), 0.5 * LEAST_SPAN * high), 0.5 * (low + high)
    return alt.Scale(domain=[middle - half, middle + half])
