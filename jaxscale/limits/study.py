r"""Curves, bands, thresholds, elasticities, energy and money of scenarios: results of `jaxscale limits`.

Bands of thresholds follow from elasticities: the variance of $\ln T$ is
$\sum_i (\partial \ln T / \partial \ln \theta_i)^2 s_i^2$. Bands of curves follow from random draws.

A run of T flop at the utilisation U takes $T / (C U)$ chip seconds. A chip computes for the share U / U_max of the time
and waits in a collective for the rest, at the powers of `jaxscale.costs.power`. Links are optical in a network beyond
that of the chip's own system, and in domains too large for copper cables: $W_o$ bytes per second and chip draw
$8 W_o n e$ at all times, with n transceivers between two chips and e joules per bit, and cost money in proportion.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxscale.base.errors import InputError, nearest
from jaxscale.base.units import GB
from jaxscale.calibration.intervals import Z90
from jaxscale.costs.power import ChipPower
from jaxscale.hardware.catalogue import Hardware
from jaxscale.limits.frontier_scenario import (
    HIGHEST,
    LARGEST,
    LOWEST,
    FrontierScenario,
    repeated,
    stack_scenarios,
    tables,
)
from jaxscale.limits.relaxed_plan import SIZES, survey
from jaxscale.limits.thresholds import NAMES, Thresholds, thresholds
from jaxscale.trends import fitted_power, price_of, system_of, systems

BITS = 8.0
"""Bits of a byte [1]."""


class RunCost(NamedTuple):
    """Energy and money of the runs on a curve of training computes.

    Attributes:
        power: power of a chip with host and optics, at the largest utilisation [W].
        optics_power: power of the optics, per chip [W].
        optics_capital: price of the optics, per chip [dollar].
        energy: energy of each run; infinite beyond the largest feasible compute [J], [size].
        money: cost of each run; infinite beyond the largest feasible compute [dollar], [size].
    """

    power: float
    optics_power: float
    optics_capital: float
    energy: Float[np.ndarray, " size"]
    money: Float[np.ndarray, " size"]

    def saves_from(self, training_flop: np.ndarray, first: "RunCost | None") -> dict[str, float]:
        """Least training computes with less energy, and with less money, than in another scenario [flop].

        Args:
            training_flop: T of the runs [flop], [size].
            first: costs of the other scenario; no thresholds without one.
        """
        if first is None or self is first:
            return {}
        return {
            "less_energy_from_flop": cheaper_from(training_flop, self.energy, first.energy),
            "less_money_from_flop": cheaper_from(training_flop, self.money, first.money),
        }

    def to_json(self, training_flop: np.ndarray, first: "RunCost | None") -> dict[str, Any]:
        """Costs as JSON values, with the thresholds of `saves_from`; arguments as in `saves_from`."""
        numbers = {"power_w": self.power, "optics_power_w": self.optics_power}
        curves = {"energy_j": self.energy.tolist(), "dollars": self.money.tolist()}
        money = {"optics_capital_dollars": self.optics_capital}
        return {**numbers, **money, **curves, **self.saves_from(training_flop, first)}


def optical_bandwidth(scenario: FrontierScenario, network: float) -> float:
    """Optical bandwidth of a chip in addition to the bandwidth of its system, per direction [byte/s].

    Args:
        scenario: links and network.
        network: bandwidth of the network of the chip's own system [byte/s].

    Returns:
        The wider of added network and optical links; infinite for unlimited bandwidth.
    """
    copper = tables()["optics"]["copper_chips"]["value"]
    added = max(float(scenario.network_bandwidth) - network, 0.0)
    light = float(scenario.link_bandwidth) if float(scenario.domain_size) > copper else 0.0
    widest = max(added, light)
    return np.inf if widest >= LARGEST else widest


def run_cost(
    training_flop: Float[np.ndarray, " size"],
    utilisation: Float[np.ndarray, " size"],
    scenario: FrontierScenario,
    table: Mapping[str, Any],
    hardware: Hardware,
) -> RunCost | None:
    """Energy and money of each run of a utilisation curve.

    Args:
        training_flop: T [flop].
        utilisation: U of the best plans [1].
        scenario: chip and network.
        table: the scenario's table in its file, with `gpu`, `optics`, `years`.
        hardware: catalogue of chips.

    Returns:
        The costs; None for a chip without power and price in `data/trends.toml`, or with hardware trends over years.

    Raises:
        InputError: unknown optics.
    """
    entry, optics = hardware[str(table["gpu"])], tables()["optics"]
    kinds = ("pluggable", "co-packaged")
    kind = str(table.get("optics", kinds[0]))
    if kind not in kinds:
        raise InputError(f"optics = {kind!r} is not known; {nearest(kind, kinds)}")
    if entry.id not in systems() or table.get("years", 0.0):
        return None
    price, host = price_of(entry.id), system_of(entry.id)["host_power_w"]["value"]
    power, chip = ChipPower(**fitted_power()), entry.chip()
    bits = BITS * optics["transceivers"]["value"]
    light = bits * optical_bandwidth(scenario, entry.numbers["network_gb_per_s"] * GB)
    optics_power, optics_capital = light * optics[kind]["value"], light * optics["dollars_per_bit_per_second"]["value"]
    fixed = float(chip.idle_power) + host + optics_power
    computing, waiting = (float(power.above_idle(cause, chip)) for cause in ("compute", "network"))
    with np.errstate(divide="ignore", invalid="ignore"):
        seconds = np.where(utilisation > 0.0, training_flop / (float(scenario.peak_flops) * utilisation), np.inf)
    busy = utilisation / float(scenario.max_utilisation)
    watts = fixed + computing * busy + waiting * (1.0 - busy)
    rate = np.asarray(price.rate(watts), float) + optics_capital / float(price.lifetime)
    return RunCost(fixed + computing, optics_power, optics_capital, seconds * watts, seconds * rate)


def paid_run(training_flop: np.ndarray, money: np.ndarray, dollars: float) -> float:
    """Largest training compute of a curve that an amount of money pays; infinite where all runs cost more [flop]."""
    paid = np.isfinite(money)
    if not paid.any() or money[paid][0] > dollars:
        return np.inf
    return float(np.exp(np.interp(np.log(dollars), np.log(money[paid]), np.log(training_flop[paid]))))


def cheaper_from(training_flop: np.ndarray, cost: np.ndarray, other: np.ndarray) -> float:
    """Least training compute of a curve with a lower cost than in another scenario; infinite for none [flop]."""
    with np.errstate(invalid="ignore"):
        excess = np.log(cost) - np.log(other)
    below = np.flatnonzero(excess < 0.0)
    if not len(below):
        return np.inf
    end = int(below[0])
    # The first cheaper run, and the run before.
    around = [end, end - 1]
    if end == 0 or not np.isfinite(excess[around]).all():
        return float(training_flop[end])
    return float(np.exp(np.interp(0.0, excess[around], np.log(training_flop[around]))))


N_DRAWS = 64
"""Draws behind a band [1]."""


def uncertainties() -> dict[str, float]:
    """Standard deviations of the logarithms of uncertain fields, by name, from `data/limits.toml` [uncertainty] [1]."""
    return {name: float(entry["value"]) for name, entry in tables()["uncertainty"].items()}


def band(training_flop: Float[np.ndarray, " size"], scenario: FrontierScenario) -> tuple[np.ndarray, np.ndarray]:
    """90 % band of a utilisation curve: 5 and 95 % quantiles over `N_DRAWS` draws of the uncertain fields.

    Args:
        training_flop: T [flop].
        scenario: median of the draws.

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
    """90 % bands of the thresholds of a scenario, lower and upper end by name [flop]."""
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
    """Utilisation curves of several scenarios over training compute, with thresholds and elasticities.

    Attributes:
        names: names of the scenarios.
        training_flop: T [flop], [size].
        utilisation: utilisation of the best plan; zero beyond the largest feasible compute [1], [scenario, size].
        certified: whether the best plan is a certified optimum [scenario, size].
        chips: chips of the best plan [1], [scenario, size].
        limits: training computes at which utilisation falls [flop], and elasticities [1], of each scenario.
    """

    names: tuple[str, ...]
    training_flop: np.ndarray
    utilisation: np.ndarray
    certified: np.ndarray
    chips: np.ndarray
    limits: Thresholds

    def to_json(self) -> list[dict[str, Any]]:
        """JSON documents of the scenarios, as printed by the command line."""
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
    """Training computes of a curve, `SIZES` values evenly spaced on a logarithmic scale [flop].

    Raises:
        InputError: the ends are out of range or the wrong way round.
    """
    if not LOWEST <= lowest < highest <= HIGHEST:
        raise InputError(
            f"--from {lowest:g} --to {highest:g} is no range; expected {LOWEST:g} <= from < to <= {HIGHEST:g}"
        )
    return np.geomspace(lowest, highest, SIZES)


def study(scenarios: Mapping[str, FrontierScenario], training_flop: Sequence[float] | np.ndarray) -> Study:
    """Utilisation curves, thresholds and elasticities of several scenarios.

    Args:
        scenarios: scenarios by name.
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
