"""Curves, thresholds and elasticities of scenarios: what `jaxscale limits` shows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxscale.base.errors import InputError
from jaxscale.limits.bands import threshold_bands
from jaxscale.limits.frontier.frontier_scenario import FrontierScenario, stack_scenarios
from jaxscale.limits.scenario_library import HIGHEST, LOWEST
from jaxscale.limits.search.relaxed_plan import SIZES, survey
from jaxscale.limits.thresholds import Thresholds, thresholds


@dataclass(frozen=True)
class Study:
    """Scenarios side by side.

    Attributes:
        names: of the scenarios.
        training_flop: T [flop], [size].
        utilisation: of the best plans; zero beyond the wall [1], [scenario, size].
        certified: whether each is a certified optimum [scenario, size].
        chips: of the best plans [1], [scenario, size].
        limits: thresholds and elasticities.
    """

    names: tuple[str, ...]
    training_flop: np.ndarray
    utilisation: np.ndarray
    certified: np.ndarray
    chips: np.ndarray
    limits: Thresholds

    def to_json(self) -> list[dict[str, Any]]:
        """One document for each scenario, in the form of the command line."""
        return [
            {
                "scenario": name,
                "training_flop": self.training_flop.tolist(),
                "utilisation": self.utilisation[row].tolist(),
                "chips": np.where(self.utilisation[row] > 0.0, self.chips[row], np.nan).tolist(),
                "certified": self.certified[row].tolist(),
                "plateau": float(self.limits.plateau[row]),
                "thresholds": self.limits.flop(row),
                "threshold_bands": threshold_bands(self.limits, row),
                "elasticities": self.limits.by_field(row),
            }
            for row, name in enumerate(self.names)
        ]


def curve_sizes(lowest: float, highest: float) -> np.ndarray:
    """Training computes of a curve, evenly spread on a logarithmic scale [flop].

    Raises:
        InputError: the ends are out of range or the wrong way round.
    """
    if not LOWEST <= lowest < highest <= HIGHEST:
        raise InputError(
            f"--from {lowest:g} --to {highest:g} is no range; expected {LOWEST:g} <= from < to <= {HIGHEST:g}"
        )
    return np.geomspace(lowest, highest, SIZES)


def study(scenarios: Mapping[str, FrontierScenario], training_flop: Sequence[float] | np.ndarray) -> Study:
    """Curves, thresholds and elasticities.

    Args:
        scenarios: by name.
        training_flop: T [flop].

    Returns:
        The study.
    """
    sizes = np.asarray(training_flop, float)
    plans = survey(sizes, stack_scenarios(list(scenarios.values())))
    return Study(
        tuple(scenarios),
        sizes,
        np.asarray(plans.utilisation),
        np.asarray(plans.certified),
        np.exp(np.asarray(plans.degrees.groups).sum(axis=-1)),
        thresholds(list(scenarios.values())),
    )
