"""What is wrong with the texts of a figure, by the boxes that matplotlib's renderer gives them.

Recorded is what is drawn: ticks beyond the ends of an axis have labels that no picture shows.
"""

import contextlib
import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.legend import Legend
from matplotlib.text import Text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = importlib.import_module("jaxscale.report.style")
"""The module; the package has a function of the same name."""

SLACK = 1.0
"""Length by which two boxes may overlap, and leave the canvas: boxes have margins of this order [pixel]."""

STEPS = 200
"""Points of a line that are tried against the box of a legend [1]."""


@contextlib.contextmanager
def texts_recorded() -> Iterator[list[Text]]:
    """Texts that are drawn meanwhile, each once, in order."""
    drawn: list[Text] = []
    original = Text.draw

    def recording(self: Text, renderer: Any) -> None:
        if self.get_visible() and self.get_text().strip() and self not in drawn:
            drawn.append(self)
        original(self, renderer)

    Text.draw = recording  # pyright: ignore
    try:
        yield drawn
    finally:
        Text.draw = original


def corners(text: Text) -> np.ndarray:
    """Corners of the text's own box, turned as the text is [pixel], [corner, 2]."""
    box, angle = text.get_window_extent(), np.radians(text.get_rotation())
    if abs(np.sin(2.0 * angle)) < 1e-9:
        return box.corners()[[0, 1, 3, 2]]
    text.set_rotation(0.0)
    flat = text.get_window_extent()
    text.set_rotation(np.degrees(angle))
    half = 0.5 * np.asarray([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * [flat.width, flat.height]
    turn = np.asarray([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    return half @ turn + [0.5 * (box.x0 + box.x1), 0.5 * (box.y0 + box.y1)]


def overlap(first: np.ndarray, second: np.ndarray) -> float:
    """Least distance by which one of two convex boxes would have to move to leave the other [pixel]."""
    depth = np.inf
    for edges in (np.diff(first, axis=0), np.diff(second, axis=0)):
        for edge in edges[:2]:
            across = np.asarray([-edge[1], edge[0]]) / max(float(np.hypot(*edge)), 1e-9)
            ends = [(float((box @ across).min()), float((box @ across).max())) for box in (first, second)]
            depth = min(depth, ends[0][1] - ends[1][0], ends[1][1] - ends[0][0])
    return depth


def faults(figure: "Figure", texts: list[Text]) -> list[str]:
    """Sentences on the texts that leave the canvas or cover others, and on legends that cover what is plotted.

    Args:
        figure: as it was drawn.
        texts: that were drawn.
    """
    found = []
    boxes = [corners(text) for text in texts]
    width, height = figure.bbox.width, figure.bbox.height
    for text, box in zip(texts, boxes, strict=True):
        low, high = box.min(axis=0), box.max(axis=0)
        if low.min() < -SLACK or high[0] > width + SLACK or high[1] > height + SLACK:
            found.append(f"{text.get_text()!r} leaves the figure")
        if "[1]" in text.get_text():
            found.append(f"{text.get_text()!r} gives a pure number a unit")
    for index, (text, box) in enumerate(zip(texts, boxes, strict=True)):
        for other, beside in zip(texts[index + 1 :], boxes[index + 1 :], strict=True):
            if overlap(box, beside) > SLACK:
                found.append(f"{text.get_text()!r} and {other.get_text()!r} cover each other")
    for axes in figure.axes:
        if axes.get_visible() and axes.get_legend() is not None:
            found += [f"the legend covers {name}" for name in covered(axes, axes.get_legend())]
    return found


def covered(axes: Axes, legend: Legend) -> list[str]:
    """Lines, marks and scattered points of axes that lie under a legend, by their labels."""
    frame = legend.get_window_extent()
    inside = axes.bbox.expanded(1.0, 1.0)
    hidden = []
    for line in axes.lines:
        path = line.get_transform().transform(np.asarray(line.get_xydata(), float))
        path = path[np.isfinite(path).all(axis=1)]
        if not len(path) or not line.get_visible():
            continue
        if line.get_linestyle() not in ("None", "", " ") and len(path) > 1:
            places = np.linspace(0.0, len(path) - 1.0, STEPS * (len(path) - 1) // max(len(path) - 1, 1) + len(path))
            path = np.stack([np.interp(places, np.arange(len(path)), column) for column in path.T], axis=1)
        if any(frame.contains(*point) and inside.contains(*point) for point in path):
            hidden.append(str(line.get_label()))
    for dots in axes.collections:
        offsets = np.asarray(dots.get_offsets(), float)
        if len(offsets) > 1 and any(frame.contains(*point) for point in dots.get_offset_transform().transform(offsets)):
            hidden.append(str(dots.get_label()))
    return hidden


def checked(figure: "Figure") -> list[str]:
    """Faults of a figure, which is drawn for it."""
    with texts_recorded() as texts:
        ORIGINAL(figure)
    return faults(figure, texts)


ORIGINAL = STYLE.drawn


def watch() -> None:
    """From now on every picture that is made is looked at, and refused if a text is at fault."""

    def watched(figure: "Figure") -> Any:
        with texts_recorded() as texts:
            canvas = ORIGINAL(figure)
        found = faults(figure, texts)
        assert not found, found
        return canvas

    STYLE.drawn = watched
