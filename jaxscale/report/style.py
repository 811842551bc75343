"""Style of every figure: readable sizes, a palette for colour-blind readers, no decoration.

Palette: Okabe and Ito 2008, "Color Universal Design", recommended set.
"""

import contextlib
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxscale.base.errors import InputError
from jaxscale.base.files import write_whole
from jaxscale.base.units import quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend

INK = "#222222"
FAINT = "#B8B8B8"
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, YELLOW, GREY = "#CC79A7", "#56B4E9", "#F0E442", "#7F7F7F"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED, GREY, YELLOW, INK)
COLOUR_NAMES = {
    **{"blue": BLUE, "orange": ORANGE, "green": GREEN, "red": RED, "purple": PURPLE, "sky": SKY, "yellow": YELLOW},
    **{"grey": GREY, "ink": INK},
}
"""Colours by the names in the table of cost terms."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
DOTS_PER_INCH = 130
N_COLOURS = 192

FORMATS = (".png", ".svg", ".pdf")
"""File suffixes of pictures."""

UNDATED = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
"""Metadata without a date, so that equal figures give equal files."""

HANDLE = 5.0
"""Width of a legend handle with the gaps around the handle [font size]."""

ROW = 1.6 / 72.0
"""Height of a legend row [inch], per point of font size."""

BELOW = 0.5
"""Room below axes for tick labels and axis label [inch]."""

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
    "figure.dpi": DOTS_PER_INCH,
    "font.family": "DejaVu Sans",
    "font.size": 10.5,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.8,
    "legend.fontsize": 9.5,
    "legend.frameon": False,
    "savefig.dpi": DOTS_PER_INCH,
    "svg.fonttype": "none",
    "svg.hashsalt": "jaxscale",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Context in which figures are drawn in the package's style; the caller's settings are restored afterwards."""
    import matplotlib as mpl

    with mpl.rc_context(RC):
        yield


def new_figure(width: float = 7.2, height: float = 4.6) -> "Figure":
    """Empty figure of the given size [inch]."""
    from matplotlib.figure import Figure

    from jaxscale.report.text_layout import WrappedLayout

    # Outside pyplot, which would keep and show every figure.
    return Figure(figsize=(width, height), layout=WrappedLayout())


@contextlib.contextmanager
def single_axes(width: float = 7.2, height: float = 4.6) -> "Iterator[tuple[Figure, Any]]":
    """Figure of the given size [inch] and its only axes, drawn in the style."""
    with style():
        figure = new_figure(width, height)
        yield figure, figure.subplots()


def entries_of(*several: "Axes") -> dict[str, Any]:
    """Legend entries of axes: artist by label, each label once."""
    entries: dict[str, Any] = {}
    for axes in several:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    return entries


def legend_below(figure: "Figure", entries: Mapping[str, Any], axes: "Axes | None" = None, **looks: Any) -> "Legend":
    """Legend below the given axes or the whole figure, in as many columns as fit.

    A legend below the whole figure increases the figure's height.

    Args:
        figure: figure of the legend.
        entries: artist of each label.
        axes: axes above the legend, aligned at the left edge; the whole figure where None.
        looks: further arguments of a legend.
    """
    from matplotlib.transforms import ScaledTranslation

    from jaxscale.report.text_layout import broken

    # Room of the legend [inch].
    inches = figure.get_figwidth() if axes is None else axes.get_position().width * figure.get_figwidth()
    looks = {"fontsize": RC["legend.fontsize"], **looks}
    looks.setdefault("ncols", fitting_columns(list(entries), inches, looks["fontsize"]))
    if axes is None:
        # A title takes a row.
        rows = -(-len(entries) // looks["ncols"]) + ("title" in looks)
        figure.set_figheight(figure.get_figheight() + ROW * looks["fontsize"] * rows)
        legend = figure.legend(entries.values(), entries.keys(), loc="outside lower center", **looks)
    else:
        # BELOW inches under the axes, past tick labels and axis label.
        beneath = axes.transAxes + ScaledTranslation(0.0, -BELOW, figure.dpi_scale_trans)
        looks |= {"loc": "upper left", "bbox_to_anchor": (0.0, 0.0), "bbox_transform": beneath, "borderpad": 0.0}
        legend = axes.legend(entries.values(), entries.keys(), **looks)
    # In a single column, a label longer than the room breaks.
    for text in legend.get_texts() if looks["ncols"] == 1 else ():
        broken(text, figure.dpi * (inches - HANDLE * looks["fontsize"] / 72.0))
    return legend


def fitting_columns(labels: Sequence[str], inches: float, size: float) -> int:
    """Number of legend columns within a width, reduced to the fewest for the same number of rows [1]."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    font = FontProperties(family=RC["font.family"], size=size)
    longest = max((TextPath((0.0, 0.0), label, prop=font).get_extents().width for label in labels), default=0.0)
    # 72 points per inch.
    most = max(int(72.0 * inches / (longest + HANDLE * size)), 1)
    rows = -(-len(labels) // most)
    # The fewest columns for as many rows.
    return -(-len(labels) // max(rows, 1)) or 1


def small_multiples(count: int, width: float, height: float) -> "tuple[Figure, np.ndarray]":
    """Figure of panels in rows of up to three, with a common ordinate.

    Args:
        count: number of panels [1].
        width: panel width [inch].
        height: panel height [inch].

    Returns:
        The figure, and the axes [row, column]; axes beyond `count` are hidden.
    """
    n_across = min(3, count)
    n_down = -(-count // n_across)
    figure = new_figure(width * n_across, height * n_down)
    grid = np.asarray(figure.subplots(n_down, n_across, sharey=True, squeeze=False))
    for axes in grid.flat[count:]:
        axes.set_visible(False)
    return figure, grid


def drawn(figure: "Figure") -> "FigureCanvasAgg":
    """Canvas with the figure laid out and drawn once, the source of every image."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    # `savefig` would draw a figure with a layout engine twice.
    figure.set_dpi(DOTS_PER_INCH)
    canvas = FigureCanvasAgg(figure)
    with style():
        canvas.draw()
    return canvas


def png(figure: "Figure") -> bytes:
    """Figure as a PNG image with a palette, a third of the size of a full-colour image."""
    from PIL import Image

    packed = io.BytesIO()
    image = Image.fromarray(np.asarray(drawn(figure).buffer_rgba())).convert("RGB")
    palette = image.quantize(colors=N_COLOURS, dither=Image.Dither.NONE)
    palette.save(packed, format="png", optimize=True)
    return packed.getvalue()


def save_figure(figure: "Figure", path: str | Path) -> None:
    """Write a figure atomically, in the format of the suffix.

    Args:
        path: file with a suffix of `FORMATS`; text stays text in SVG and PDF.

    Raises:
        InputError: an unknown suffix, or a file that cannot be written.
    """
    suffix = checked_picture(path).suffix.lower()
    if suffix == ".png":
        write_whole(path, png(figure))
        return
    packed = io.BytesIO()
    # Drawing breaks long texts before the vector file is written.
    drawn(figure)
    # Settings as `svg.fonttype` apply while the file is written.
    with style():
        figure.savefig(packed, format=suffix.removeprefix("."), metadata=UNDATED[suffix])
    write_whole(path, packed.getvalue())


def checked_picture(path: str | Path) -> Path:
    """Check the suffix of a picture's path and return the path.

    Raises:
        InputError: an unknown suffix.
    """
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise InputError(
            f"{path}: {path.suffix or 'no suffix'} is no format of pictures; expected {', '.join(FORMATS)}"
        )
    return path


def round_ticks(axis: Any, limits: Sequence[float] | np.ndarray, most: int = 9) -> None:
    """Replace the ticks of a short logarithmic axis by round numbers; a long axis keeps powers of ten.

    Args:
        axis: abscissa or ordinate.
        most: largest number of ticks; every second tick is dropped until the number fits [1].
    """
    # Beyond two and a half decades, powers of ten suffice.
    if limits[1] / limits[0] > 300.0:
        return
    decades = 10.0 ** np.arange(np.floor(np.log10(limits[0])), np.ceil(np.log10(limits[1])) + 1)
    ticks: list[float] = []
    for steps in ((1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7), (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)):
        ticks = [tick for decade in decades for step in steps if limits[0] <= (tick := decade * step) <= limits[1]]
        # Fewer than four ticks: try a finer set.
        if len(ticks) >= 4:
            break
    while len(ticks) > most:
        ticks = ticks[::2]
    axis.set_ticks(ticks, [number_text(tick) for tick in ticks])
    axis.set_ticks([], minor=True)


def number_text(value: float) -> str:
    """Text of a number for a tick: decimal from a thousandth to a million, else a multiple of a power of ten."""
    if 1e-3 <= abs(value) < 1e6 or value == 0.0:
        return f"{value:,.6g}".replace(",", "\N{THIN SPACE}")
    # log10 of a power of ten may round to just below an integer.
    exponent = int(np.floor(np.log10(abs(value)) + 1e-9))
    factor = round(value / 10.0**exponent, 2)
    return f"${'' if factor == 1.0 else f'{factor:g}' + chr(92) + 'cdot '}10^{{{exponent}}}$"


def literal(name: str) -> str:
    """Matplotlib label with the literal text of a name: without mathematics, and never hidden from a legend."""
    # Matplotlib reads text between dollars as mathematics.
    shown = name.replace("$", r"\$")
    # Matplotlib hides labels with a leading underscore.
    return f"\N{THIN SPACE}{shown}" if shown.startswith("_") else shown


def time_unit(longest: float) -> tuple[float, str]:
    """Unit of a time axis as (seconds per unit, symbol): the largest of s, ms and us within the longest time.

    Args:
        longest: longest time on the axis [s].
    """
    units = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
    return next((unit for unit in units if longest >= unit[0]), units[0])


def seconds(value: float) -> str:
    """Text of a time in a suitable unit: `3.2 s`, `870 ms`, `41 us`."""
    return quantity(value, "s")
