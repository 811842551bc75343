r"""What a utilisation curve tells of the assumptions behind it, and how far uncertain assumptions blur it.

With slopes $J_{ki} = \partial U_k / \partial \ln \theta_i$ at the points of a curve read to $\sigma$, the Fisher
information of the logarithms is $J^T J / \sigma^2$, to which an independent measurement of one of them adds the inverse
of its variance. Bands of thresholds follow from elasticities: the variance of $\ln T$ is
$\sum_i (\partial \ln T / \partial \ln \theta_i)^2 s_i^2$; that of a curve from draws.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from jaxscale.calibration.intervals import Z90
from jaxscale.limits.frontier.frontier_scenario import FrontierScenario, repeated, stack_scenarios
from jaxscale.limits.scenario_library import tables
from jaxscale.limits.search.relaxed_plan import survey, survey_logs
from jaxscale.limits.thresholds import NAMES, Thresholds, slopes

GROUPS: Mapping[str, tuple[str, ...]] = {
    "batch": ("reference_batch",),
    "latency": ("link_latency", "network_latency", "kernel_latency"),
    "words": ("weight_bytes", "activation_bytes", "gradient_bytes"),
}
"""Assumptions that move together, by the name of the factor on them."""

N_DRAWS = 64
"""Draws behind a band [1]."""


@dataclass(frozen=True)
class Curve:
    """A utilisation curve and its slopes.

    Attributes:
        utilisation: of the best plans [1], [size].
        slopes: d ln U / d ln of every field, zero beyond the wall [size].
    """

    utilisation: Float[np.ndarray, " size"]
    slopes: Mapping[str, Float[np.ndarray, " size"]]

    def of_groups(self, groups: Mapping[str, Sequence[str]] = GROUPS) -> Float[np.ndarray, "size group"]:
        """D U / d ln of a factor on each group."""
        columns = [sum(self.slopes[name] for name in names) for names in groups.values()]
        return np.stack([self.utilisation * column for column in columns], axis=1)


def curve_with_slopes(training_flop: Float[np.ndarray, " size"], scenario: FrontierScenario) -> Curve:
    """Best plans along a curve, and what each assumption does to it.

    Args:
        training_flop: T [flop].
        scenario: assumptions.

    Returns:
        The curve.
    """
    logs = np.log(np.asarray(training_flop, float))[None]
    one = stack_scenarios([scenario])
    found = survey_logs(logs, one)
    no = jnp.zeros(logs.shape, bool)
    _, fields = slopes(jnp.asarray(logs, found.utilisation.dtype), one, found.optimum, no)
    alive = np.asarray(found.feasible[0])
    scaled = jax.tree.map(lambda slope, value: np.where(alive, np.asarray(slope[0] * value[0]), 0.0), fields, one)
    names = [name for group in GROUPS.values() for name in group]
    every = {name: getattr(scaled, name) for name in dict.fromkeys([*names, *FrontierScenario.__dataclass_fields__])}
    return Curve(np.asarray(found.utilisation[0]), every)


def fisher_information(
    curve: Curve,
    groups: Mapping[str, Sequence[str]] = GROUPS,
    *,
    error: float = 0.02,
    measured: Mapping[str, float] | None = None,
) -> Float[np.ndarray, "group group"]:
    """Information of a curve, and of measurements beside it, about the logarithms of factors.

    Args:
        curve: with slopes.
        groups: factors.
        error: standard error of the curve's points [1].
        measured: standard errors of the logarithms of factors that were measured by themselves [1].

    Returns:
        Fisher information [1].
    """
    jacobian = curve.of_groups(groups) / error
    information = jacobian.T @ jacobian
    for name, spread in (measured or {}).items():
        index = list(groups).index(name)
        information[index, index] += spread**-2.0
    return information


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
    found = np.asarray(survey(training_flop, repeated(scenario, drawn)).utilisation)
    low, high = np.quantile(found, [0.05, 0.95], axis=0)
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
