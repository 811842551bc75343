"""Results of `jaxscale measure`: a document, tables beside the data sheet and the catalogue, a figure."""

from typing import TYPE_CHECKING, Any

import numpy as np

from jaxscale.base.table import Table, TableColumn, make_table, text_column
from jaxscale.base.units import GB, quantity
from jaxscale.calibration.coefficients import chip_anchors
from jaxscale.calibration.kernel_coefficients import kernel_coefficients, kernel_priors
from jaxscale.hardware.catalogue import Hardware, load_hardware
from jaxscale.measuring.measured_devices import Measurement
from jaxscale.report.document import Report
from jaxscale.report.figures.panels import roofline

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def record_document(found: Measurement) -> dict[str, Any]:
    """Measurement as JSON: hardware file, attained rates, and prediction error of the record for its own kernels."""
    record = found.record
    return {
        "id": record.id,
        "is_known": record.is_known,
        **record.document(),
        "attained": dict(record.attained),
        "n_timings": len(found.timings) + len(found.collectives),
        "median_error": float(np.median(np.abs(np.expm1(record.errors)))),
        "slowdown": record.drift.slowdown,
        "throttles": record.drift.throttles,
        "seconds": found.seconds,
    }


def record_tables(found: Measurement, hardware: Hardware | None = None) -> list[str | Table]:
    """Tables of measured rates beside data sheet and catalogue, coefficients of kernels, and drift of the clocks."""
    record, parts = found.record, []
    parts.append(make_table(f"{record.id}: {record.name}", RATES, _rates(found, hardware or load_hardware())))
    usual, table = vars(kernel_coefficients("jax")), kernel_priors()["coefficients"]
    rows = [
        (name, f"{value:.3g}", f"{float(usual[name]):.3g}", table[name]["unit"])
        for name, value in record.kernels.items()
    ]
    parts.append(make_table("Kernels of traced steps", KERNELS, rows))
    error = 100.0 * float(np.median(np.abs(np.expm1(record.errors))))
    parts.append(f"{len(found.timings)} kernels and {len(found.collectives)} collectives in {found.seconds:.0f} s;")
    parts.append(f"the record predicts its own kernels to {error:.0f} % (median).")
    parts.append(drift_text(found))
    return parts


RATES = (text_column("quantity"), TableColumn("measured"), TableColumn("data sheet"), TableColumn("share", unit="%"))
"""Columns of the table of rates."""

KERNELS = (text_column("coefficient"), TableColumn("measured"), TableColumn("package"), text_column("unit"))
"""Columns of the table of coefficients."""


def drift_text(found: Measurement) -> str:
    """Sentence on the change of the clock rate, from the drift of the reference kernel."""
    drift = found.record.drift
    change = f"one repeated matmul took {1.0 + drift.slowdown:.2f} times as long at the end as at the start"
    if drift.throttles:
        return f"CLOCKS THROTTLE: {change}; cool the chip or measure longer before the record is used."
    if not np.isfinite(drift.error):
        return "Too few repeats to tell whether clocks throttle."
    if not drift.is_known:
        return (
            f"Too noisy to tell whether clocks throttle: {change} (standard error {drift.error:.2f}); measure longer."
        )
    return f"Clocks hold: {change} (standard error {drift.error:.2f})."


def _rates(found: Measurement, hardware: Hardware) -> list[tuple[str, str, str, str]]:
    """Attained rates, anchor and links, beside the catalogue values of a known chip."""
    record, known = found.record, hardware.chips.get(found.record.id)
    rows = []

    def add(what: str, value: float, sheet: float | None, unit: str) -> None:
        of_sheet = ("", "") if sheet is None else (quantity(sheet, unit), f"{100.0 * value / sheet:.0f}")
        rows.append((what, quantity(value, unit), *of_sheet))

    for dtype in (name for name in record.attained if name != "memory"):
        key = f"peak_tflops_{dtype}"
        add(f"matmul {dtype}", record.attained[dtype], known and 1e12 * known.numbers[key], "flop/s")
    add("memory", record.attained["memory"], known and GB * known.numbers["memory_gb_per_s"], "byte/s")
    if (link := record.numbers.get("link_gb_per_s")) and found.collectives:
        add("link", GB * link, known and GB * known.numbers["link_gb_per_s"], "byte/s")
    anchor = chip_anchors().get(record.id)
    own = f"{record.anchor:.3f}"
    rows.append(
        (
            "anchor of training",
            own,
            *(("", "") if anchor is None else (f"{anchor:.3f}", f"{100.0 * record.anchor / anchor:.0f}")),
        )
    )
    return rows


def measure_report(found: Measurement, hardware: Hardware) -> Report:
    """Report of a measurement: tables and remarks as on the screen, and attained rates beside the roofline."""
    report = Report(f"{found.record.id}: measured kernels and collectives")
    for block in record_tables(found, hardware):
        report.text(block) if isinstance(block, str) else report.add(block)
    report.figure("attained", attained_figure(found), "Attained rates of timed kernels beside the roofline.")
    return report


def attained_figure(found: Measurement) -> "Figure":
    """Figure of the attained rates of matmuls and attention by arithmetic intensity, beside the chip's roofline."""
    record = found.record
    chip = record.entry().chip()
    (main, *_) = [one.kernel.dtype for one in found.timings if one.kernel.op == "matmul"]
    points = {}
    names = {"forward": "matmul", "dgrad": "gradient of inputs", "wgrad": "gradient of weights"}
    for variant, name in names.items():
        told = [one for one in found.timings if one.kernel[:3] == ("matmul", variant, main)]
        points[name] = ([one.flop / one.bytes for one in told], [one.rate for one in told])
    for op, name in (("grouped_matmul", "grouped matmul"), ("attention", "attention")):
        told = [one for one in found.timings if one.kernel.op == op]
        points[name] = ([one.flop / one.bytes for one in told], [one.rate for one in told])
    return roofline(
        {record.id: chip}, main, "Attained rates beside the roofline", {k: v for k, v in points.items() if v[0]}
    )
