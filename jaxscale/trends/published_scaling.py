"""Figures of Fernandez et al. (arXiv 2411.13055) beside the figures of the model for their workload."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxscale.calibration.store import AnyFit
from jaxscale.trends.deployment_library import deployment, table
from jaxscale.trends.layout import Deployment, ParallelLayout
from jaxscale.trends.outcome import TENSOR_DEGREES, Outcome, best_tensor_degree, scaling_outcomes

FIGURES = (
    "throughput_fall",
    "power_fall",
    "tensor_parallel_gain",
    "a100_mfu",
    "h100_mfu",
    "strong_scaling_mfu_few",
    "strong_scaling_mfu_many",
    "power_level",
    "tensor_parallel_power",
)
"""Figures of the model, in the order of the columns of a comparison; the last two served to fit powers."""


@dataclass(frozen=True)
class Reproduction:
    """The model's answers to the published figures.

    Attributes:
        values: answer by figure, fractions or [W].
        best_degree: best tensor-parallel degree at the few and at the many chips of the weak scaling [1].
    """

    values: dict[str, float]
    best_degree: tuple[float, float]


def reproduce(power: Mapping[str, float] | None = None, fit: AnyFit = "default") -> Reproduction:
    """Answer every published figure.

    Args:
        power: share of each activity [1]; `fitted_power` where None.
    """
    work, published = table()["workload"], table()["published"]
    h100 = deployment(work["model"], work["gpu"], power=power, fit=fit)
    a100 = deployment(work["model"], published["a100_mfu"]["gpu"], power=power, fit=fit)
    older = weak_outcomes(a100)
    values, degrees = weak_figures(weak_outcomes(h100))
    strong = published["strong_scaling_mfu"]
    _, fixed = best_tensor_degree(h100, strong["n_chips"], np.full(2, float(strong["global_batch_size_seqs"])))
    # Third number of chips, tensor degree 1.
    values["a100_mfu"] = float(older.mfu[2 * len(TENSOR_DEGREES)])
    values["strong_scaling_mfu_few"], values["strong_scaling_mfu_many"] = (float(value) for value in fixed.mfu)
    return Reproduction({name: values[name] for name in FIGURES}, degrees)


def weak_outcomes(given: Deployment) -> Outcome:
    """Outcomes of the published weak scaling at few, many and the common number of chips, by tensor degree [point]."""
    work, published = table()["workload"], table()["published"]
    chips = (*published["throughput_fall"]["n_chips"], published["h100_mfu"]["n_chips"][0])
    # One call, of one shape, for all points.
    n = np.repeat(chips, len(TENSOR_DEGREES)).astype(float)
    layout = ParallelLayout(tp=np.tile(TENSOR_DEGREES, len(chips)))
    return scaling_outcomes(given, layout, n, work["sequences_per_chip"] * n)


def weak_figures(weak: Outcome) -> tuple[dict[str, float], tuple[float, float]]:
    """Figures of `weak_outcomes` by name, and the best tensor degree at the few and at the many chips."""
    speed, watts, mfu = (
        # (chips, degrees)
        np.asarray(leaf).reshape(3, len(TENSOR_DEGREES))
        for leaf in (weak.tokens_per_s_per_chip, weak.chip_power, weak.mfu)
    )
    best = np.argmax(speed, axis=1)
    values = {
        # Column 0: tensor degree 1.
        "throughput_fall": float(speed[1, 0] / speed[0, 0] - 1.0),
        "power_fall": float(watts[1, 0] / watts[0, 0] - 1.0),
        "tensor_parallel_gain": float(speed[1, best[1]] / speed[1, 0] - 1.0),
        "h100_mfu": float(mfu[2, 0]),
        "power_level": float(watts[0, 0]),
        "tensor_parallel_power": float(watts[1, best[1]] - watts[1, 0]),
    }
    return values, (TENSOR_DEGREES[best[0]], TENSOR_DEGREES[best[1]])


def published_values() -> dict[str, tuple[float, float]]:
    """Published value and accepted deviation of each of `FIGURES`; nan where none is set."""
    entries: dict[str, Any] = dict(table()["published"])
    strong = entries.pop("strong_scaling_mfu")
    figures = {name: (entry["value"], entry.get("tolerance", float("nan"))) for name, entry in entries.items()}
    for name, value in zip(("few", "many"), strong["value"], strict=True):
        figures[f"strong_scaling_mfu_{name}"] = (value, strong["tolerance"])
    return {name: figures[name] for name in FIGURES}
