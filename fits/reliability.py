"""How well running out of memory is foretold: stated probability against what Ultra-Scale runs did.

`fits/scoreboard.py` shows what is found here.
"""

from pathlib import Path

import jax
import numpy as np
from markdown_text import markdown_table

from jaxscale.base.documents import run_tables
from jaxscale.base.errors import InputError
from jaxscale.calibration.intervals import Z90
from jaxscale.calibration.memory_limit import probability_of_oom
from jaxscale.calibration.record import Fit, load_fit
from jaxscale.fitting.memory_outcomes import Outcomes, memory_limits, outcomes
from jaxscale.report.style import BLUE, FAINT, GREY, new_figure, save_figure, style
from jaxscale.runs.predict import predict
from jaxscale.runs.reader import read_runs

FOLDER = Path(__file__).parent

PROBABILITIES = (0.0, 0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98, 1.01)
"""Edges of the classes of stated probability in the reliability table [1]."""


def stated_and_observed(runs: Outcomes, fit: Fit) -> tuple[np.ndarray, np.ndarray]:
    """Probability of running out by the limits of runs of other models, and whether a run ran out [row]."""
    probability = np.empty(len(runs.ran_out))
    for model in set(runs.models):
        own = runs.models == model
        limits = {limit.source: limit for limit in memory_limits(runs.take(~own), fit)}
        uses = zip(np.flatnonzero(own), np.exp(runs.log_use[own]).tolist(), runs.sources[own], strict=True)
        for row, use, source in uses:
            probability[row] = probability_of_oom(use, 1.0, limits[source])
    return probability, runs.ran_out


def ultrascale_oom() -> tuple[np.ndarray, np.ndarray]:
    """Stated probability of running out of memory, and whether a run did, of the Ultra-Scale runs [row]."""
    fitted = load_fit()
    runs = outcomes(read_runs(FOLDER.parent / "data/runs/ultrascale_playbook_h100.csv"), fitted)
    if runs is None:
        raise InputError("no Ultra-Scale run ran out of memory")
    with jax.enable_x64(True):
        return stated_and_observed(runs, fitted)


def reliability(probability: np.ndarray, ran_out: np.ndarray) -> list[tuple[str, int, float, float]]:
    """Class, runs, mean stated probability and share that ran out [%], by stated probability."""
    lines = []
    for low, high in zip(PROBABILITIES[:-1], PROBABILITIES[1:], strict=True):
        inside = (probability >= low) & (probability < high)
        if inside.any():
            shares = (100.0 * float(values[inside].mean()) for values in (probability, ran_out))
            lines.append((f"{100 * low:.0f} to {min(100 * high, 100):.0f} %", int(inside.sum()), *shares))
    return lines


def oom_table(probability: np.ndarray, ran_out: np.ndarray) -> str:
    """How well running out of memory is foretold, in all and by stated probability, as Markdown."""
    accuracy = 100.0 * np.mean((probability >= 0.5) == ran_out)
    said = (
        f"Of {len(ran_out)} Ultra-Scale runs that ended or ran out of memory, {accuracy:.1f} % are told apart, by the "
        "memory that runs of other models could use:"
    )
    head = ("stated probability of running out", "runs", "mean of it [%]", "ran out [%]")
    classes = reliability(probability, ran_out)
    lines = [(name, f"{n}", f"{stated:.1f}", f"{seen:.1f}") for name, n, stated, seen in classes]
    return f"{said}\n\n{markdown_table(head, lines)}"


def ended_table() -> str:
    """Runs that ended without a stated peak, and how many of them are said to run out of memory, as Markdown.

    By whether a row says what it recomputes: where it does not, it may have kept less than is predicted.
    """
    lines = []
    for table, path in run_tables().items():
        runs = read_runs(path)
        said = predict(runs)
        ended = np.isfinite(said.measured) & np.isfinite(said.memory) & ~np.isfinite(said.measured_memory)
        states = np.asarray([row["activation_recompute"] is not None for row in runs])
        for stated, rows in (("yes", ended & states), ("no", ended & ~states)):
            if rows.any():
                lines.append((table, stated, f"{rows.sum()}", f"{(rows & ~said.fits).sum()}"))
    return markdown_table(("runs of", "recomputation stated", "n", "said to run out"), lines)


def reliability_figure(probability: np.ndarray, ran_out: np.ndarray) -> None:
    """Share of runs that ran out of memory against its stated probability, with 90 % intervals."""
    _, n, stated, seen = zip(*reliability(probability, ran_out), strict=True)
    share, counts = np.asarray(seen) / 100.0, np.asarray(n)
    # Wilson's interval of a share: it stays between 0 and 1 where all runs or none ran out.
    centre = (share + Z90**2 / (2 * counts)) / (1 + Z90**2 / counts)
    half = Z90 * np.sqrt(share * (1 - share) / counts + Z90**2 / (4 * counts**2)) / (1 + Z90**2 / counts)
    ends = np.abs(np.stack([centre - half, centre + half]) - share) * 100.0
    with style():
        drawn = new_figure(5.2, 4.6)
        axes = drawn.subplots()
        axes.plot([0, 100], [0, 100], color=FAINT, lw=1)
        axes.errorbar(stated, seen, yerr=ends, fmt="o", color=BLUE, capsize=3)
        for x, y, count in zip(stated, seen, n, strict=True):
            axes.annotate(f"{count:,}", (x, y), xytext=(6, -11), textcoords="offset points", size=8, color=GREY)
        axes.set(xlim=(-5.0, 116.0), ylim=(-8.0, 105.0))
        axes.set(xlabel="stated probability of running out of memory [%]", ylabel="runs that ran out [%]")
        axes.set_title("Models left out of the limits, by class (number of runs)")
    save_figure(drawn, FOLDER / "reliability.png")
