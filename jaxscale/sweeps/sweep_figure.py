"""Figure and report of a sweep: a result as lines along an axis, or as a map over two axes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from jaxscale.base.errors import InputError, nearest
from jaxscale.report.document import Report
from jaxscale.report.figures.design import quantity_map
from jaxscale.report.figures.panels import curves
from jaxscale.sweeps.question import SweepSpec

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

MASKS = ("feasible", "valid")
"""Truth values without which a result has no meaning."""

LOGARITHMIC = 8.0
"""Minimum ratio of the largest to the smallest value for a logarithmic axis [1]."""

MOST_LINES = 8
"""Maximum number of lines of a figure [1]."""


def check_drawn(spec: SweepSpec, result: str | None, axes: Sequence[str], is_drawn: bool = True) -> None:
    """Refuse results or axes for a figure that are absent from a sweep, before the evaluation.

    Raises:
        InputError: no such result or axis, more than two axes, or no requested figure.
    """
    if not is_drawn:
        raise InputError("--draw and --over say what a figure shows; expected --plot or --report beside them")
    _check(result, axes, [name for name, one in spec.question.results(spec).items() if not one.words], list(spec.axes))


def _check(result: str | None, axes: Sequence[str], results: Sequence[str], known: Sequence[str]) -> None:
    if result is not None and result not in results:
        raise InputError(f"{result}: not a number among the results; {nearest(result, results)}")
    for name in axes:
        if name not in known:
            raise InputError(f"{name}: not an axis of the sweep; {nearest(name, known)}")
    if len(axes) > 2 or len(set(axes)) < len(axes):
        raise InputError(f"axes {', '.join(axes)} of a figure; expected one or two different ones")


def sweep_figure(dataset: "xarray.Dataset", result: str | None = None, axes: Sequence[str] = ()) -> "Figure":
    """Figure of a result of a sweep over one or two of its axes, without invalid points.

    Numbers are drawn as a curve, or as a map over two axes; each word is a line. Each further axis is fixed at its
    middle value, stated in the title; `dataset.sel` selects a different value.

    Args:
        dataset: result of `sweep` or `open_sweep`.
        result: name of the variable; the first where None.
        axes: names; the two axes with most values where left out.

    Raises:
        InputError: no such result or axis, or two axes of words.
    """
    numbers = [name for name, one in dataset.data_vars.items() if one.dtype.kind in "fb"]
    _check(result, axes, [str(name) for name in numbers], [str(name) for name in dataset.dims])
    variable = dataset[numbers[0] if result is None else result]
    for mask in MASKS:
        if mask in dataset and mask != variable.name:
            variable = variable.where(dataset[mask])
    drawn = list(axes) or _longest(variable)
    others = {str(name): variable.sizes[name] // 2 for name in variable.dims if name not in drawn}
    chosen = variable.isel(others).transpose(*drawn).sortby([name for name in drawn if not _is_word(variable[name])])
    title = f"{_words(str(variable.name))}{_at(variable.isel(others), list(others))}"
    label = _label(variable)
    # A pure number up to 1 is a share.
    scale, label = (100.0, label.replace("[1]", "[%]")) if "[1]" in label and _is_share(chosen) else (1.0, label)
    words = [name for name in drawn if _is_word(variable[name])]
    if len(words) == len(drawn) > 1 or words == drawn:
        raise InputError(f"axes {', '.join(drawn)} of words; expected one of numbers among them")
    if len(drawn) == 2 and not words:
        down, across = drawn
        cells = scale * np.asarray(chosen.values, float)
        x, y = chosen[across].values, chosen[down].values
        return quantity_map(
            x, y, cells, xlabel=_label(chosen[across]), ylabel=_label(chosen[down]), label=label, title=title,
            logarithmic=(_is_logarithmic(x), _is_logarithmic(y)),
        )  # fmt: skip
    (axis,) = (name for name in drawn if name not in words)
    lines = {str(variable.name): chosen} if not words else {
        str(word): chosen.sel({words[0]: word}) for word in chosen[words[0]].values[:MOST_LINES]
    }  # fmt: skip
    x = chosen[axis].values
    every = np.concatenate([np.ravel(line.values) for line in lines.values()]) * scale
    return curves(
        x,
        {name: scale * np.asarray(line.values, float) for name, line in lines.items()},
        xlabel=_label(chosen[axis]),
        ylabel=label,
        title=title,
        logarithmic=(_is_logarithmic(x), _is_logarithmic(every)),
    )


def _is_word(values: "xarray.DataArray") -> bool:
    return values.dtype.kind in "UOT"


def _is_share(values: "xarray.DataArray") -> bool:
    return bool(np.nanmax(np.asarray(values.values, float), initial=0.0) <= 1.0)


def _is_logarithmic(values: np.ndarray) -> bool:
    """Whether positive values span at least the ratio `LOGARITHMIC`."""
    # A linear scale would hide small values.
    known = values[np.isfinite(values)]
    return bool(len(known)) and bool(known.min() > 0.0) and bool(known.max() >= LOGARITHMIC * known.min())


def _longest(variable: "xarray.DataArray") -> list[str]:
    """Up to two axes with most values, numbers before words, in the order of the sweep."""
    ranked = sorted(map(str, variable.dims), key=lambda name: (_is_word(variable[name]), -variable.sizes[name]))
    # An axis of a single value shows nothing.
    several = [name for name in ranked[:2] if variable.sizes[name] > 1] or ranked[:1]
    return [str(name) for name in variable.dims if name in several]


def _words(name: str) -> str:
    return {"training_flop": "training compute", "mfu": "MFU"}.get(name, name.replace("_", " "))


def _label(values: "xarray.DataArray") -> str:
    unit = values.attrs.get("units", "")
    is_axis = values.name in values.dims
    return _words(str(values.name)) + (f" [{unit}]" if unit and not (is_axis and unit == "1") else "")


def _at(chosen: "xarray.DataArray", others: list[str]) -> str:
    """Values of axes outside the figure, for the title."""
    told = []
    for name in others:
        value, unit = chosen[name].values.item(), chosen[name].attrs.get("units", "1")
        shown = value if isinstance(value, str) else f"{value:g}"
        told.append(f"{_words(name)} {shown}" + (f" {unit}" if unit != "1" and not isinstance(value, str) else ""))
    return f"; {', '.join(told)}" if told else ""


def sweep_report(dataset: "xarray.Dataset", result: str | None = None, axes: Sequence[str] = ()) -> Report:
    """Report of a sweep: table of axes, and a figure of a result; arguments as in `sweep_figure`."""
    report = Report(f"Sweep of {_words(dataset.attrs['of'])}")
    rows = []
    for name in dataset.dims:
        values, unit = dataset[name].values, dataset[name].attrs.get("units", "")
        ends = [str(end) if isinstance(end, str) else f"{end:.4g}" for end in (values[0].item(), values[-1].item())]
        rows.append((str(name), unit, len(values), *ends))
    report.table(("axis", "unit", "values", "first", "last"), rows)
    fixed = ", ".join(f"{name} {value}" for name, value in dataset.attrs.items() if name != "of")
    figure = sweep_figure(dataset, result, axes)
    report.figure("sweep", figure, f"{f'Fixed: {fixed}. ' if fixed else ''}Grey: no valid answer.")
    return report
