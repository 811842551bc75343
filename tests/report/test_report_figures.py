"""Figures draw what they are given: units on the axes, every group in the legend."""

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import jaxscale as js
from jaxscale.costs.step import StepTime
from jaxscale.report import figures
from jaxscale.report.figures.accuracy import ranked_groups
from jaxscale.report.figures.panels import COLOURS
from jaxscale.report.style import PALETTE, png, seconds, time_unit

RANDOM = np.random.default_rng(0)
MEASURED = np.exp(RANDOM.normal(1.0, 1.0, 40))
PREDICTED = MEASURED * np.exp(RANDOM.normal(0.0, 0.05, 40))
GROUPS = [f"source {i % 3}" for i in range(40)]
TERMS = {name: 0.1 * index for index, name in enumerate(StepTime.__dataclass_fields__)}
WIDTHS, DEPTHS = np.geomspace(1000.0, 4000.0, 6), np.geomspace(10.0, 40.0, 5)

ALL = {
    "accuracy": lambda: figures.predicted_against_measured(MEASURED, PREDICTED, GROUPS),
    "intervals": lambda: figures.intervals(MEASURED, PREDICTED * 0.9, PREDICTED * 1.1),
    "residuals": lambda: figures.residuals_by_column(
        np.log(PREDICTED / MEASURED), {"tp": [1, 2, 4, 8] * 10, "gpu": ["a100", "h100"] * 20}
    ),
    "breakdown": lambda: figures.step_breakdown({"first": TERMS, "second": TERMS}),
    "shape map": lambda: figures.shape_map(
        WIDTHS,
        DEPTHS,
        np.outer(DEPTHS, WIDTHS),
        path=np.asarray([[1000, 40], [2000, 20]]),
        marks={"best": (2000.0, 20.0)},
    ),
    "shape profile": lambda: figures.shape_profile(WIDTHS, {"time": 1.0 / WIDTHS}, marks={"best": 2000.0}),
    "sensitivity": lambda: figures.sensitivity_bars({"peak": -0.7, "latency": 0.01}, step_time=2.0),
    "roofline": lambda: figures.roofline({"a": js.chip("a100-80gb"), "h": js.chip("h100-80gb")}),
    "curves": lambda: figures.curves(WIDTHS, {"a": WIDTHS}, xlabel="x [m]", ylabel="y [s]", title="t"),
}


@pytest.fixture(params=ALL, scope="module")
def figure(request):
    """One figure of each kind, drawn."""
    figure = ALL[request.param]()
    png(figure)
    return figure


def test_axes_carry_units(figure):
    labels = [label for axes in figure.axes for label in (axes.get_xlabel(), axes.get_ylabel()) if label]
    assert labels
    named_values = ("tp", "gpu", "runs, in order of predicted / measured", "predicted / measured")
    pure_numbers = ("width d_model", "depth n_layers")
    assert all("[" in label for label in labels if label not in named_values + pure_numbers)


@pytest.mark.parametrize("name", ["accuracy", "breakdown"])
def test_it_is_a_png_of_fair_size_and_the_same_each_time(name):
    first, second = png(ALL[name]()), png(ALL[name]())
    assert first.startswith(b"\x89PNG")
    assert first == second
    assert 5_000 < len(first) < 300_000


def test_the_style_leaves_global_settings_alone():
    before = mpl.rcParams["font.size"]
    ALL["curves"]()
    assert mpl.rcParams["font.size"] == before


def test_unmeasured_rows_are_left_out():
    holes = np.where(np.arange(40) < 35, np.nan, MEASURED)
    figure = figures.predicted_against_measured(holes, PREDICTED, GROUPS)
    points = sum(len(line.get_xdata()) for line in figure.axes[1].lines if line.get_marker() not in ("None", None))
    assert points == 5


def test_a_table_without_measurements_still_draws():
    empty = np.full(3, np.nan)
    assert png(figures.predicted_against_measured(empty, np.ones(3), ["a"] * 3))


@pytest.mark.parametrize("name", ["cost_$5_vs_$6_", r"a\$b", "$x", "_hidden"])
def test_names_out_of_data_are_shown_as_they_are(name: str):
    """Neither read as mathematics nor left out of the legend."""
    times = np.asarray([1.0, 2.0, 3.0, 4.0])
    figure = figures.predicted_against_measured(times, times, [name, name, "other", "other"])
    assert png(figure)
    (legend,) = figure.legends
    shown = [text.get_text().replace(r"\$", "$").strip() for text in legend.get_texts()]
    assert len(shown) == 2 and any(text.startswith(name) for text in shown)
    assert png(figures.residuals_by_column(times - 2.5, {"release": [name, name, "other", "other"]}))


def test_groups_beyond_the_palette_are_put_together():
    masks = ranked_groups([f"g{i % 12}" for i in range(60)])
    assert len(masks) == len(PALETTE)
    assert "4 others" in masks
    assert sum(mask.sum() for mask in masks.values()) == 60


def test_every_term_of_a_step_has_its_own_look():
    assert set(COLOURS) == set(StepTime.__dataclass_fields__)
    assert len(set(COLOURS.values())) == len(COLOURS)


def test_the_bars_add_up_to_the_step():
    figure = figures.step_breakdown({"one": TERMS})
    widths = [patch.get_width() for container in figure.axes[0].containers for patch in container]
    assert sum(widths) == pytest.approx(sum(TERMS.values()))


def test_the_coverage_in_the_title_is_counted():
    figure = figures.intervals(np.ones(4), np.asarray([0.9, 0.9, 0.9, 1.1]), np.asarray([1.1, 1.2, 1.3, 1.2]))
    assert figure.axes[0].get_title(loc="left").startswith("75 %")


@pytest.mark.parametrize(
    ("value", "text"), [(1234.5, "1234 s"), (12.0, "12 s"), (0.25, "250 ms"), (4.1e-5, "41 us"), (0.0, "0 s")]
)
def test_times_have_the_unit_that_suits_them(value, text):
    assert seconds(value) == text


@given(st.floats(1e-9, 1e5))
@example(1.0)
@example(1e-3)
@example(1e-6)
@example(1.05e-3)
def test_the_unit_of_an_axis_is_the_largest_that_the_longest_time_fills(longest: float):
    """Seconds, milliseconds or microseconds: the longest time is 1 to below 1000 of them, where one suits."""
    unit, word = time_unit(longest)
    assert {"s": 1.0, "ms": 1e-3, "us": 1e-6}[word] == unit
    if longest >= 1e-6:
        assert 1.0 <= longest / unit and (unit == 1.0 or longest / unit < 1000.0 * (1.0 + 1e-12))
