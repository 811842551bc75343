"""Tables, figures and reports of `jaxscale limits`: of scenarios, or of transformers on catalogue chips."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from jaxscale.base.documents import data_path
from jaxscale.base.table import Table, TableColumn, make_table, text_column
from jaxscale.base.units import DAY
from jaxscale.limits.frontier_scenario import FrontierScenario
from jaxscale.limits.study import RunCost, Study, paid_run
from jaxscale.limits.thresholds import NAMES
from jaxscale.limits.transformer_curve import TransformerCurve
from jaxscale.report.document import Report
from jaxscale.report.style import FAINT, INK, PALETTE, entries_of, legend_below, new_figure, style
from jaxscale.report.terminal_tables import rounded_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


PUBLISHED = "figures/frontier_utilisation_h100_digitised.csv"
TITLES = {
    "end_of_linear": TableColumn("end of linear", "linear to"),
    "half": TableColumn("half"),
    "tenth": TableColumn("tenth"),
    "wall": TableColumn("wall"),
}
"""TableColumn of each threshold."""

BILLION = 1e9
"""Money of a run that the table of costs asks for [dollar]."""

SMALLEST = 0.05
"""Least elasticity that the table lists [1]."""

NOTHING = 1e-3
"""Elasticity below which a cell of the table is 0 [1]."""


def published_curve() -> np.ndarray:
    """Digitised curve of arXiv 2411.01137: training compute [flop] and utilisation [1], [point, 2]."""
    table = np.loadtxt(data_path(PUBLISHED), delimiter=",")
    # Columns: log10 of the compute, and per cent.
    return np.stack([10.0 ** table[:, 0], table[:, 1] / 100.0], axis=1)


def power_of_ten(value: float) -> str:
    """Text of a training compute as a power of ten, `10^x`; `none` if infinite."""
    return f"10^{np.log10(value):.2f}" if np.isfinite(value) else "none"


def threshold_table(study: Study, descriptions: Mapping[str, str]) -> Table:
    """Table of the plateau and the thresholds of each scenario."""
    columns = (
        text_column("scenario"),
        TableColumn("plateau", unit="%"),
        *(TITLES[name] for name in NAMES),
        text_column("what it assumes", says="({})"),
    )
    rows = [
        (
            name,
            f"{100 * study.limits.plateau[row]:.1f}",
            *(power_of_ten(value) for value in study.limits.flop(row).values()),
            descriptions.get(name, ""),
        )
        for row, name in enumerate(study.names)
    ]
    return make_table("Training compute at which utilisation falls [flop]", columns, rows)


def cost_table(study: Study, costs: Mapping[str, RunCost | None]) -> Table:
    """Table of power per chip, price of optics, largest run for 1e9 $, and savings over the first scenario."""
    columns = (
        text_column("scenario"),
        TableColumn("chip and host", "chip W", "W"),
        TableColumn("optics", "optics W", "W", stays=True),
        TableColumn("optics", "optics $", "$", stays=True),
        TableColumn("run for 1e9 $", "for 1e9 $", stays=True),
        TableColumn("less energy from", stays=True),
        TableColumn("less money from", stays=True),
    )
    sizes, first = study.training_flop, costs[study.names[0]]
    rows = []
    for name in study.names:
        if (one := costs[name]) is None or not np.isfinite(one.power):
            rows.append((name, *["-"] * (len(columns) - 1)))
            continue
        ends = [paid_run(sizes, one.money, BILLION), *one.saves_from(sizes, first).values()]
        numbers = (one.power - one.optics_power, one.optics_power, one.optics_capital)
        texts = [*(f"{number:.0f}" for number in numbers), *(power_of_ten(end) for end in ends)]
        rows.append((name, *texts, *["-"] * (len(columns) - 1 - len(texts))))
    return make_table(f"Energy and money of the runs, against {study.names[0]}", columns, rows)


def elasticity_table(study: Study, row: int = 0) -> Table:
    """Table of the elasticities of a scenario's thresholds of at least `SMALLEST`, the largest first."""
    by_threshold = study.limits.by_field(row)
    present = [name for name in NAMES if name in by_threshold]
    fields = list(next(iter(by_threshold.values()), {}))
    strength = {field: max(abs(by_threshold[name][field]) for name in present) for field in fields}
    shown = sorted((field for field in fields if strength[field] >= SMALLEST), key=lambda f: -strength[f])

    def cell(value: float) -> str:
        return rounded_text(value) if abs(value) >= NOTHING else "0"

    rows = [(field, *(cell(by_threshold[name][field]) for name in present)) for field in shown]
    columns = (text_column("assumption"), *(TITLES[name] for name in present))
    return make_table(f"Per cent more compute for a per cent more of each: {study.names[row]}", columns, rows)


def transformer_table(curves: Mapping[str, TransformerCurve]) -> Table:
    """Table of the largest utilisation and the thresholds of transformers on catalogue chips."""
    columns = (text_column("curve"), TableColumn("highest", unit="%"), *TITLES.values())
    rows = [
        (
            name,
            f"{100 * curve.utilisation.max():.1f}",
            *(power_of_ten(value) for value in curve.thresholds().values()),
        )
        for name, curve in curves.items()
    ]
    return make_table("Training compute at which a transformer's utilisation falls [flop]", columns, rows)


def law_line(laws: FrontierScenario) -> str:
    """Longest duration and batch law of a scenario, as a clause of a sentence."""
    batch = laws.reference_batch * laws.batch_multiplier / 1e6
    flop = f"{laws.reference_flop:.2g}".replace("e+", "e")
    return (
        f"ends in {laws.training_time / DAY:g} days with batches of {batch:.3g}M tokens at {flop} flop, "
        f"growing as flop^{laws.batch_exponent:.2g}"
    )


def curve_figure(
    training_flop: np.ndarray,
    curves: Mapping[str, np.ndarray],
    bands: Mapping[str, tuple[np.ndarray, np.ndarray]] | None = None,
    published: bool = True,
    title: str = "How far training scales",
    peak: str = "peak in the format used",
) -> "Figure":
    """Figure of utilisation against training compute.

    Args:
        training_flop: T [flop], [size].
        curves: utilisation by name [1], [size].
        bands: lower and upper utilisation by name of the curve [1], [size].
        published: whether the published curve of arXiv 2411.01137 is drawn too.
        title: title of the figure.
        peak: name of the rate to which utilisation is relative, for the axis label.
    """
    with style():
        figure = new_figure(7.6, 4.8)
        axes = figure.add_subplot()
        if published:
            curve = published_curve()
            axes.plot(curve[:, 0], 100 * curve[:, 1], color=FAINT, lw=3.0, label="arXiv 2411.01137, figure")
        for row, (name, utilisation) in enumerate(curves.items()):
            colour = PALETTE[row % len(PALETTE)]
            dash = ("-", "--", ":")[(row // len(PALETTE)) % 3]
            axes.plot(training_flop, 100 * utilisation, color=colour, ls=dash, lw=1.8, label=name)
            if bands and name in bands:
                low, high = bands[name]
                axes.fill_between(training_flop, 100 * low, 100 * high, color=colour, alpha=0.15, lw=0)
        axes.set_xscale("log")
        axes.set_xlim(training_flop[0], training_flop[-1])
        axes.set_ylim(0.0, 80.0 if max(utilisation.max() for utilisation in curves.values()) < 0.8 else 100.0)
        axes.set_xlabel("training compute [flop]")
        axes.set_ylabel(f"utilisation of the {peak} [%]")
        axes.set_title(title, color=INK)
        legend_below(figure, entries_of(axes))
    return figure


def transformer_figure(
    curves: Mapping[str, TransformerCurve], laws: Mapping[str, FrontierScenario], gpu: str
) -> "Figure":
    """Figure of the utilisation of transformers on a chip against training compute, with the laws in the legend.

    Args:
        curves: curves by name of the scenario.
        laws: scenarios with the scaling laws, by name.
        gpu: catalogue id of the chip.
    """
    sizes = next(iter(curves.values())).training_flop
    drawn = {f"{name}, {gpu}: {law_line(laws[name])}": curve.utilisation for name, curve in curves.items()}
    return curve_figure(sizes, drawn, published=False, peak="dense 16-bit peak")


def study_report(
    study: Study,
    descriptions: Mapping[str, str],
    bands: Mapping[str, tuple[np.ndarray, np.ndarray]],
    costs: Mapping[str, RunCost | None],
) -> Report:
    """Report of scenarios: curves with bands, thresholds, costs, elasticities.

    Args:
        study: curves and thresholds of the scenarios.
        descriptions: description of each scenario, by name.
        bands: lower and upper utilisation by name [1], [size].
        costs: energy and money by name.
    """
    report = Report("How far training scales")
    report.add(threshold_table(study, descriptions))
    curves = dict(zip(study.names, study.utilisation, strict=True))
    caption = "Bands: 90 % of the curves for assumptions drawn from their uncertainties."
    report.figure("utilisation", curve_figure(study.training_flop, curves, bands), caption)
    report.add(cost_table(study, costs))
    report.heading("What moves the ends")
    for row in range(len(study.names)):
        report.add(elasticity_table(study, row))
    return report


def transformers_report(
    curves: Mapping[str, TransformerCurve], laws: Mapping[str, FrontierScenario], gpu: str
) -> Report:
    """Report of transformers on a catalogue chip: curves, thresholds, and the laws that decide the wall.

    Args:
        curves: curves by name of the scenario.
        laws: scenarios with the scaling laws, by name.
        gpu: catalogue id of the chip.
    """
    report = Report(f"How far training scales on {gpu}")
    report.add(transformer_table(curves))
    for name in curves:
        report.text(f"{name}, the wall: the largest run that {law_line(laws[name])}.")
    caption = "Utilisation of the best plan at each training compute; zero where none ends in time."
    report.figure("utilisation", transformer_figure(curves, laws, gpu), caption)
    return report
