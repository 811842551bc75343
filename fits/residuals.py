"""What is left of each table: held-out errors by column, and the settings that carry most of them.

Run from the repository after `python fits/calibrate.py`: `python fits/residuals.py` (half a minute) writes
fits/residuals.md and a figure for each table in fits/residuals.
"""

import numpy as np
from calibrate import FOLDER, load_tables
from markdown_text import markdown_table
from scoreboard import read_residuals

from jaxscale.report.figures import residuals_by_column
from jaxscale.report.reports import varied_columns
from jaxscale.report.style import png
from jaxscale.runs.arrays import Measured, classes
from jaxscale.runs.defaults import table_facts

WORST = 6
"""Groups of settings named for each table [1]."""

HEAD = ("model", "chips", "tp", "pp", "ep", "b", "runs", "bias [%]", "mean error [%]", "share of the error [%]")


def carriers(measured: Measured, residual: np.ndarray) -> list[tuple[str, ...]]:
    """Cells of `HEAD` for the groups of settings that carry most of a table's error."""
    model, plan = measured.batch.model, measured.batch.plan
    degrees = (plan.tp, plan.pp, plan.ep, plan.micro_batch_size)
    group = classes((model, measured.batch.cluster.n_chips, degrees), [measured.levels.column("gpu")])
    error = 100.0 * np.abs(np.expm1(residual))
    total = np.bincount(group, error)
    rows = []
    for index in np.argsort(-total)[:WORST]:
        inside = group == index
        first = int(np.flatnonzero(inside)[0])
        sizes = {"L": model.n_layers, "d": model.d_model, "H": model.n_heads, "S": model.seq_len, "E": model.n_experts}
        shape = ", ".join(f"{symbol} {values[first]:g}" for symbol, values in sizes.items())
        chips = f"{measured.batch.cluster.n_chips[first]:g} {measured.levels.column('gpu')[first]}"
        bias = 100.0 * np.expm1(np.median(residual[inside]))
        numbers = (
            f"{inside.sum()}",
            f"{bias:+.1f}",
            f"{error[inside].mean():.1f}",
            f"{100 * total[index] / total.sum():.1f}",
        )
        rows.append((shape, chips, *(f"{values[first]:g}" for values in degrees), *numbers))
    return rows


def main() -> None:
    """Write the page and its figures."""
    data = read_residuals()
    (FOLDER / "residuals").mkdir(exist_ok=True)
    parts = []
    for name, (measured, _) in load_tables().items():
        residual = data["five_fold"][data["table"] == name]
        figure = residuals_by_column(residual, varied_columns(measured.batch, measured.levels))
        (FOLDER / "residuals" / f"{name}.png").write_bytes(png(figure))
        known = [(entry["pattern"], entry["cause"], entry["term"]) for entry in table_facts()[name].get("patterns", [])]
        parts += [
            f"## {name}",
            markdown_table(("pattern", "cause", "what became of it"), known),
            markdown_table(HEAD, carriers(measured, residual)),
            f"![errors by column](residuals/{name}.png)",
        ]
    text = """# What is left

Made by `fits/residuals.py`. For each table: patterns that its residuals showed, with their cause and what became of
them; the settings that carry most of the error of runs whose group was left out of the fit (5-fold); and these errors
against every column that varies (bars: medians)."""
    (FOLDER / "residuals.md").write_text("\n\n".join([text, *parts]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
