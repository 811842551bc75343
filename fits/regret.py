"""What choosing a plan by prediction costs, on measured sweeps: writes fits/regret.md (seconds).

Run from the repository: `python fits/regret.py`, after `fits/calibrate.py`.

A group holds the measured runs of one model shape on one number of chips at one global batch (Ultra-Scale: of one
release), where at least three plans ran. The plan chosen is the one of least predicted time, by a fit that never saw
that model shape (column `left_out_model` of fits/residuals.csv); its regret is its measured time over the least
measured one, less 1. The spread is the standard deviation of the log error that a plan does not share with the other
plans of its group, of those that took less than 1.5 times the least. Two baselines: the rule, which takes the largest
micro-batch, then the smallest tensor- and pipeline-parallel degrees that ran; and a plan picked at random (the mean).
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from markdown_text import markdown_table
from scoreboard import read_residuals

from jaxscale.base.documents import run_tables
from jaxscale.runs.reader import read_runs

FOLDER = Path(__file__).parent
SWEEPS = ("ultrascale_playbook_h100", "vtrain_a100_ground_truth")
SHAPE = ("release", "n_layers", "d_model", "seq_len", "n_gpus", "global_batch_size_seqs")
PLAN = ("tp", "pp", "dp", "vpp", "cp", "micro_batch_size", "zero_stage", "activation_recompute", "sequence_parallel")
LEAST_PLANS = 3
"""Plans that a group needs: with fewer there is nothing to choose [1]."""

NEAR = 0.05
"""Regret up to which a choice counts as good [1]."""


class Sweep(NamedTuple):
    """The plans of one group.

    Attributes:
        label: source, and whether one node or several.
        plans: tensor and pipeline degree and micro-batch of each [plan, 3].
        measured: median time of each [s], [plan].
        predicted: held-out prediction [s], [plan].
    """

    label: str
    plans: np.ndarray
    measured: np.ndarray
    predicted: np.ndarray


def sweeps(column: str) -> list[Sweep]:
    """Every group of the measured sweeps.

    Args:
        column: of fits/residuals.csv: log of predicted over measured time.
    """
    data = read_residuals()
    found = []
    for source in SWEEPS:
        runs = read_runs(run_tables()[source])
        mine = np.flatnonzero(data["table"] == source)
        groups: dict[Any, dict[Any, list[tuple[float, float]]]] = {}
        for index in mine[np.isfinite(data[column][mine])]:
            row = runs.rows[int(data["row"][index])]
            key, plan = (tuple(row[name] for name in names) for names in (SHAPE, PLAN))
            seconds = float(row["step_time_s"])
            pair = (seconds, seconds * float(np.exp(data[column][index])))
            groups.setdefault(key, {}).setdefault(plan, []).append(pair)
        for key, plans in groups.items():
            if len(plans) >= LEAST_PLANS:
                found.append(_sweep(source, key, plans))
    return found


def _sweep(source: str, key: tuple[Any, ...], plans: dict[Any, list[tuple[float, float]]]) -> Sweep:
    n_chips = float(key[SHAPE.index("n_gpus")])
    where = "several nodes" if n_chips > 8 else "one node"
    label = f"{source}, {key[0] if source.startswith('ultrascale') else where}"
    times = np.asarray([np.median(pairs, axis=0) for pairs in plans.values()])
    chosen = [PLAN.index(name) for name in ("tp", "pp", "micro_batch_size")]
    degrees = np.asarray([[float(plan[index]) for index in chosen] for plan in plans])
    return Sweep(label, degrees, times[:, 0], times[:, 1])


def by_prediction(sweep: Sweep) -> float:
    """Regret of the plan of least predicted time [1]."""
    return float(sweep.measured[np.argmin(sweep.predicted)] / sweep.measured.min() - 1.0)


def by_rule(sweep: Sweep) -> float:
    """Regret of the largest micro-batch, then the smallest degrees, of the plans that ran [1]."""
    tp, pp, micro_batch = sweep.plans.T
    return float(sweep.measured[np.lexsort((pp, tp, -micro_batch))[0]] / sweep.measured.min() - 1.0)


def by_chance(sweep: Sweep) -> float:
    """Mean regret of all plans that ran [1]."""
    return float(sweep.measured.mean() / sweep.measured.min() - 1.0)


FAR = 1.5
"""Time over the least of a group from which on a plan is no rival [1]."""


def spread(group: Iterable[Sweep]) -> float:
    """Standard deviation of the log errors of rivals about the mean of their group [1]."""
    squares, freedom = 0.0, 0
    for sweep in group:
        errors = np.log(sweep.predicted / sweep.measured)[sweep.measured < FAR * sweep.measured.min()]
        if len(errors) > 1:
            squares, freedom = squares + float(np.sum((errors - errors.mean()) ** 2)), freedom + len(errors) - 1
    return float(np.sqrt(squares / freedom))


METHODS: dict[str, Callable[[Sweep], float]] = {"prediction": by_prediction, "rule": by_rule, "chance": by_chance}


def regrets(group: Iterable[Sweep]) -> dict[str, np.ndarray]:
    """Regret of every method in each sweep [sweep]."""
    listed = list(group)
    return {name: np.asarray([method(sweep) for sweep in listed]) for name, method in METHODS.items()}


def percent(share: float | np.floating, digits: int) -> str:
    """A share in per cent."""
    return f"{100.0 * share:.{digits}f} %"


def table(found: list[Sweep]) -> str:
    """Regret of every method, by kind of sweep, as Markdown."""
    heads = [f"within {percent(NEAR, 0)}: {name}" for name in METHODS] + [f"median regret: {name}" for name in METHODS]
    labels = sorted({sweep.label for sweep in found})
    parts = [(label, [sweep for sweep in found if sweep.label == label]) for label in labels]
    lines = []
    for label, group in [*parts, ("all", found)]:
        figures = regrets(group)
        near = [percent(np.mean(figures[name] <= NEAR), 0) for name in METHODS]
        median = [percent(np.median(figures[name]), 1) for name in METHODS]
        plans = np.median([len(sweep.measured) for sweep in group])
        lines.append((label, str(len(group)), f"{plans:.0f}", *near, *median, percent(spread(group), 1)))
    return markdown_table(("sweep", "groups", "plans of a group", *heads, "spread of rivals"), lines)


def main() -> None:
    """Write fits/regret.md."""
    blocks = []
    for column, said in (("left_out_model", "the model shape left out"), ("five_fold", "5-fold")):
        blocks.append(f"Predictions by a fit with {said}:\n\n{table(sweeps(column))}\n")
    text = "# Choosing among measured plans\n\n" + __doc__.split("\n\n")[2].strip() + "\n\n" + "\n".join(blocks)
    (FOLDER / "regret.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
