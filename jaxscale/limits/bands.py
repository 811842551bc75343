r"""How far uncertain assumptions blur a utilisation curve and its thresholds.

Bands of thresholds follow from elasticities: the variance of $\ln T$ is
$\sum_i (\partial \ln T / \partial \ln \theta_i)^2 s_i^2$; that of a curve from draws.
"""

import numpy as np
from jaxtyping import Float

from jaxscale.calibration.intervals import Z90
from jaxscale.limits.frontier.frontier_scenario import FrontierScenario, repeated
from jaxscale.limits.scenario_library import tables
from jaxscale.limits.search.relaxed_plan import survey
from jaxscale.limits.thresholds import NAMES, Thresholds

N_DRAWS = 64
"""Draws behind a band [1]."""


def uncertainties() -> dict[str, float]:
    """Standard deviations of the logarithms of uncertain assumptions, `data/limits.toml` [uncertainty] [1]."""
    return {name: float(entry["value"]) for name, entry in tables()["uncertainty"].items()}


def band(training_flop: Float[np.ndarray, " size"], scenario: FrontierScenario) -> tuple[np.ndarray, np.ndarray]:
    """90 % band of a utilisation curve: 5 and 95 % quantiles over `N_DRAWS` draws of the uncertain assumptions.

    Plans are chosen anew for each draw: next to the wall slopes would tell nothing.

    Args:
        training_flop: T [flop].
        scenario: assumptions.

    Returns:
        Lower and upper end [1], [size].
    """
    half = np.random.default_rng(0).standard_normal((N_DRAWS // 2, len(uncertainties())))
    # Each draw comes with its opposite, so that the mean of the draws is that of the assumptions.
    draws = zip(uncertainties().items(), np.concatenate([half, -half]).T, strict=True)
    drawn = {name: getattr(scenario, name) * np.exp(spread * column) for (name, spread), column in draws}
    drawn_utilisation = np.asarray(survey(training_flop, repeated(scenario, drawn)).utilisation)
    low, high = np.quantile(drawn_utilisation, [0.05, 0.95], axis=0)
    return low, high


def threshold_bands(limits: Thresholds, row: int = 0) -> dict[str, tuple[float, float]]:
    """90 % bands of the thresholds of one scenario by name [flop]."""
    spreads = uncertainties()
    bands = {}
    for name, fields in limits.by_field(row).items():
        reach = Z90 * np.sqrt(sum((fields[field] * spread) ** 2 for field, spread in spreads.items()))
        middle = limits.log_flop[row, NAMES.index(name)]
        bands[name] = (float(np.exp(middle - reach)), float(np.exp(middle + reach)))
    return bands
