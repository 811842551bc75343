"""The look at the texts of a figure finds what is wrong with one, and long words are broken before it is drawn."""

import numpy as np
import pytest
from figure_boxes import checked

from jaxscale.report import figures
from jaxscale.report.figures import Panel
from jaxscale.report.style import entries_of, legend_below, new_figure, png, style

LONG = "Throughput per chip of a run that goes on for as long as there are words to say about it, and then some more"


def plain(title: str = "", **looks):
    """A figure of one curve, without what the layout of the package does."""
    from matplotlib.figure import Figure

    with style():
        figure = Figure(figsize=(4.0, 3.0))
        axes = figure.subplots()
        axes.plot([0.0, 1.0], [0.0, 1.0], label="a curve")
        axes.set_title(title)
        if looks:
            axes.legend(**looks)
    return figure


def test_a_title_that_leaves_the_canvas_is_found():
    assert checked(plain(LONG)) == [f"{LONG!r} leaves the figure"]
    assert not checked(plain("Throughput"))


def test_a_legend_that_covers_text_or_curve_is_found():
    (fault,) = checked(plain(loc="center"))
    assert fault == "the legend covers a curve"
    figure = plain(loc="upper left")
    assert not checked(figure)
    figure.axes[0].annotate("an annotation", xy=(0.03, 0.94), xycoords="axes fraction")
    (fault,) = checked(figure)
    assert fault == "'an annotation' and 'a curve' cover each other"


def test_turned_labels_are_taken_as_they_stand():
    figure = plain()
    axes = figure.axes[0]
    axes.set_xticks(np.linspace(0.0, 1.0, 9), ["long label"] * 9, rotation=90)
    figure.subplots_adjust(bottom=0.4)
    assert not checked(figure)
    axes.set_xticks(np.linspace(0.0, 1.0, 9), ["long label"] * 9, rotation=60, ha="right")
    assert not checked(figure), "boxes along the axes would overlap"
    axes.set_xticks(np.linspace(0.0, 1.0, 9), ["long label"] * 9, rotation=0)
    assert any("cover each other" in fault for fault in checked(figure))


def test_a_pure_number_has_no_unit():
    figure = plain()
    figure.axes[0].set_xlabel("chips [1]")
    figure.subplots_adjust(bottom=0.2)
    assert checked(figure) == ["'chips [1]' gives a pure number a unit"]


def test_every_picture_of_the_suite_is_looked_at():
    with pytest.raises(AssertionError, match="leaves the figure"):
        png(plain(LONG))


def test_long_titles_and_labels_are_broken_into_lines():
    figure = new_figure(7.0, 4.0)
    with style():
        for axes in figure.subplots(1, 2):
            axes.set(title=LONG, xlabel=LONG[:70], ylabel=LONG[:60])
            axes.set_title(LONG, loc="left")
            axes.set_title("", loc="center")
        figure.suptitle(LONG)
    assert not checked(figure)
    assert " ".join(figure.axes[0].get_title(loc="left").split("\n")) == LONG


@pytest.mark.parametrize("count", [1, 3, 9])
def test_long_legends_stand_below_in_columns_that_fit(count):
    figure = new_figure(6.0, 3.0)
    with style():
        axes = figure.subplots()
        for index in range(count):
            axes.plot([0.0, 1.0], [0.0, index], label=f"{LONG[: 10 * (index + 2)]} {index}")
        legend_below(figure, entries_of(axes))
    assert not checked(figure)


def test_panels_keep_their_legends_off_what_they_draw():
    x = 2.0 ** np.arange(3, 14)
    lines = {f"a layout of number {index}": np.linspace(index, 8.0 - index, x.size) for index in range(9)}
    few = {"fastest": np.repeat([1.0, 2.0, 8.0], [5, 4, 2])}
    parts = [
        Panel(LONG[:50], "chips", "share of a chip's at 8 chips", x, lines),
        Panel("Best degree", "chips", "tp", x, few, bands={"fastest": (few["fastest"], 8.0 + 0.0 * x)}, whole=True),
        Panel(LONG[:70], "chips", "time [ms]", x, lines, logarithmic=(True, True), marks={"here": (64.0, 3.0, 0.5)}),
    ]
    figure = figures.panels(parts)
    assert not checked(figure)
    ticks = [text.get_text() for text in figure.axes[1].get_yticklabels()]
    assert ticks == ["1", "2", "4", "8"], "degrees are whole"
