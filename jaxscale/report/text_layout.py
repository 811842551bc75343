"""Layout of figures: constrained layout with line breaks in long titles and labels."""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.text import Text

MOST_ROUNDS = 3
"""Rounds of line breaking and layout; several, because a second line of a label takes room from the axes [1]."""

EDGE = 4.0
"""Margin between a text and the edge of the figure [pixel]."""


class WrappedLayout(ConstrainedLayoutEngine):
    """Constrained layout of matplotlib with line breaks in titles and labels longer than their room."""

    def execute(self, fig: Any) -> Any:
        """Place the axes, and break texts longer than their room."""
        with without_long_titles(fig) as left_out:  # the layout would give way to their middles, far outside the axes
            result = super().execute(fig)
        is_to_place = bool(left_out)
        for _ in range(MOST_ROUNDS):
            if not (break_texts(fig) or is_to_place):
                break
            result, is_to_place = super().execute(fig), False
        return result


@contextlib.contextmanager
def without_long_titles(figure: Figure) -> Iterator[dict[Text, str]]:
    """Hide titles longer than their axes; yields the hidden titles with their texts."""
    widths = {axes._left_title: axes.get_window_extent().width for axes in figure.axes}  # pyright: ignore
    words = {title: title.get_text() for title in widths}
    left_out = {title: text for title, text in words.items() if extent(title, text) > widths[title]}
    for title in left_out:
        title.set_text("")
    try:
        yield left_out
    finally:
        for title, text in left_out.items():
            title.set_text(text)


def break_texts(figure: Figure) -> bool:
    """Break titles and labels longer than the room; whether any text changed."""
    canvas = figure.bbox.padded(-EDGE)
    shown = [axes for axes in figure.axes if axes.get_visible()]
    plots = [axes for axes in shown if not hasattr(axes, "_colorbar")]
    changed = figure._suptitle is not None and broken(figure._suptitle, canvas.width)  # pyright: ignore
    for axes in shown:
        box = axes.get_window_extent()
        others = [other.get_window_extent() for other in plots if other is not axes]
        # Neighbours in the row.
        beside = [other for other in others if other.y0 < box.y1 and other.y1 > box.y0]
        # Neighbours in the column.
        stacked = [other for other in others if other.x0 < box.x1 and other.x1 > box.x0]
        is_last = all(other.x0 < box.x1 for other in beside)
        # The last title of a row may reach the edge of the figure.
        title = canvas.x1 - box.x0 if is_last else box.width
        # Labels are centred on the axis, up to the edge of the figure without neighbours.
        across = box.width if beside else centred_room(box.x0, box.x1, canvas.x0, canvas.x1)
        upright = box.height if stacked else centred_room(box.y0, box.y1, canvas.y0, canvas.y1)
        places = ((axes._left_title, title), (axes.xaxis.label, across), (axes.yaxis.label, upright))  # pyright: ignore
        for text, length in places:
            changed |= broken(text, length)
    return changed


def centred_room(start: float, end: float, lowest: float, highest: float) -> float:
    """Largest length of a centred text on an axis between two ends [pixel]."""
    middle = 0.5 * (start + end)
    return 2.0 * min(middle - lowest, highest - middle)


def broken(text: Text, length: float) -> bool:
    """Break a text between words into lines of at most a given length [pixel]; whether the text changed."""
    whole = text.get_text()
    if re.search(r"(?<!\\)\$", whole) or extent(text, whole) <= length:  # mathematics is left as it is
        return False
    lines: list[str] = []
    for paragraph in whole.split("\n"):
        line = ""
        # A per-cent sign stays with the number.
        for word in re.split(r" (?!%)", paragraph):
            if line and extent(text, f"{line} {word}") > length:
                lines.append(line)
                line = word
            else:
                line = f"{line} {word}".strip()
        lines.append(line)
    text.set_text("\n".join(lines))
    return text.get_text() != whole


def extent(text: Text, words: str) -> float:
    """Drawn length of a text, along the line, if it had the given words [pixel]."""
    own = text.get_text()
    text.set_text(words)
    box = text.get_window_extent()
    text.set_text(own)
    return box.height if text.get_rotation() == 90.0 else box.width
