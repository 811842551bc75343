r"""Curves, bands, thresholds and elasticities of scenarios: results of `jaxscale limits`.

Bands of thresholds follow from elasticities: the variance of $\ln T$ is
$\sum_i (\partial \ln T / \partial \ln \theta_i)^2 s_i^2$; that of a curve from draws.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxscale.base.errors import InputError
from jaxscale.calibration.intervals import Z90
from jaxscale.limits.frontier_scenario import HIGHEST, LOWEST, FrontierScenario, repeated, stack_scenarios, tables
from jaxscale.limits.relaxed_plan import SIZES, survey
from jaxscale.limits.thresholds import NAMES, Thresholds, thresholds

N_DRAWS = 64
"""Draws behind a band [1]."""


def uncertainties() -> dict[str, float]:
    """Standard deviations of the logarithms of uncertain assumptions, `data/limits.toml` [uncertainty] [1]."""
    return {name: float(entry["value"]) for name, entry in tables()["uncertainty"].items()}


def band(training_flop: Float[np.ndarray, " size"], scenario: FrontierScenario) -> tuple[np.ndarray, np.ndarray]:
    """90 % band of a utilisation curve: 5 and 95 % quantiles over `N_DRAWS` draws of the uncertain assumptions.

    Args:
        training_flop: T [flop].

    Returns:
        Lower and upper end [1], [size].
    """
    half = np.random.default_rng(0).standard_normal((N_DRAWS // 2, len(uncertainties())))
    # Each draw comes with its opposite, so that the mean of the draws is that of the assumptions.
    draws = zip(uncertainties().items(), np.concatenate([half, -half]).T, strict=True)
    drawn = {name: getattr(scenario, name) * np.exp(spread * column) for (name, spread), column in draws}
    # Plans are chosen anew for each draw: next to the wall slopes would tell nothing.
    drawn_utilisation = np.asarray(survey(training_flop, repeated(scenario, drawn)).utilisation)
    low, high = np.quantile(drawn_utilisation, [0.05, 0.95], axis=0)
    return low, high


def threshold_bands(limits: Thresholds, row: int = 0) -> dict[str, tuple[float, float]]:
    """90 % bands of the thresholds of a scenario by name [flop]."""
    spreads = uncertainties()
    bands = {}
    for name, fields in limits.by_field(row).items():
        # Variances of independent assumptions add up.
        reach = Z90 * np.sqrt(sum((fields[field] * spread) ** 2 for field, spread in spreads.items()))
        middle = limits.log_flop[row, NAMES.index(name)]
        bands[name] = (float(np.exp(middle - reach)), float(np.exp(middle + reach)))
    return bands


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
        """Document of each scenario, in the form of the command line."""
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
        training_flop: T [flop].
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
