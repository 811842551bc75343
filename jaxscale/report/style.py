"""One style for every figure: readable sizes, a palette that colour-blind readers can tell apart, no decoration.

Palette: Okabe and Ito 2008, "Color Universal Design", recommended set.
"""

import contextlib
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK = "#222222"
FAINT = "#B8B8B8"
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, YELLOW, GREY = "#CC79A7", "#56B4E9", "#F0E442", "#7F7F7F"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED, GREY, YELLOW, INK)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
DOTS_PER_INCH = 130

RC: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": INK,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.labelsize": 11,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "figure.constrained_layout.use": True,
    "figure.dpi": DOTS_PER_INCH,
    "font.family": "DejaVu Sans",
    "font.size": 10.5,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.8,
    "legend.fontsize": 9.5,
    "legend.frameon": False,
    "savefig.dpi": DOTS_PER_INCH,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Apply the style while a figure is drawn, and leave the caller's settings as they were."""
    import matplotlib as mpl

    with mpl.rc_context(RC):
        yield


def new_figure(width: float = 7.2, height: float = 4.6) -> "Figure":
    """An empty figure of the given size [inch], outside pyplot so that nothing accumulates or pops up."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height))


def png(figure: "Figure") -> bytes:
    """The figure as a PNG image, the same bytes for the same figure."""
    buffer = io.BytesIO()
    with style():
        # Without a software version in the file it does not change from one installation to the next.
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def seconds(value: float) -> str:
    """A time in the unit that suits it: `3.2 s`, `870 ms`, `41 us`."""
    if abs(value) >= 1000.0:
        return f"{value:.0f} s"
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:.3g} s"
