r"""Energy and money of the runs on a curve of the data-movement model: chips, hosts, and light between chips.

A run of T flop at the utilisation U takes $T / (C U)$ chip seconds. A chip computes for the share U / U_max of the time
and waits in a collective for the rest, at the powers of `jaxscale.costs.power`. A network beyond that of the chip's own
system, and links of a domain that copper cables cannot join, are optical: $W_o$ bytes per second and chip draw
$8 W_o n e$ at all times, with n transceivers between two chips and e joules per bit, and cost money in proportion.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxscale.base.errors import InputError, nearest
from jaxscale.base.units import GB
from jaxscale.costs.power import ChipPower
from jaxscale.hardware.catalogue import Hardware
from jaxscale.limits.frontier_scenario import LARGEST, FrontierScenario, tables
from jaxscale.trends import fitted_power, price_of, system_of, systems

BITS = 8.0
"""Bits of a byte [1]."""


class RunCost(NamedTuple):
    """Energy and money of the runs on a curve.

    Attributes:
        power: of a chip with host and optics, at the plateau of the utilisation [W].
        optics_power: of the optics, per chip [W].
        optics_capital: of the optics, per chip [dollar].
        energy: of each run; infinite beyond the wall [J], [size].
        money: of each run, likewise [dollar], [size].
    """

    power: float
    optics_power: float
    optics_capital: float
    energy: Float[np.ndarray, " size"]
    money: Float[np.ndarray, " size"]

    def saves_from(self, training_flop: np.ndarray, first: "RunCost | None") -> dict[str, float]:
        """Least training computes with less energy and less money than in another scenario [flop]."""
        if first is None or self is first:
            return {}
        return {
            "less_energy_from_flop": cheaper_from(training_flop, self.energy, first.energy),
            "less_money_from_flop": cheaper_from(training_flop, self.money, first.money),
        }

    def to_json(self, training_flop: np.ndarray, first: "RunCost | None") -> dict[str, Any]:
        """Document of the costs, against those of another scenario; arguments as in `saves_from`."""
        numbers = {"power_w": self.power, "optics_power_w": self.optics_power}
        curves = {"energy_j": self.energy.tolist(), "dollars": self.money.tolist()}
        money = {"optics_capital_dollars": self.optics_capital}
        return {**numbers, **money, **curves, **self.saves_from(training_flop, first)}


def optical_bandwidth(scenario: FrontierScenario, network: float) -> float:
    """Bandwidth of a chip that light carries beyond its own system [byte/s].

    Args:
        scenario: links and network.
        network: bandwidth of the network of the chip's own system [byte/s].
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
    """Energy and money of each run.

    Args:
        training_flop: T [flop].
        utilisation: U of the best plans [1].
        scenario: chip and network.
        table: the scenario as its file states it: `gpu`, `optics`, `years`.
        hardware: catalogue of chips.

    Returns:
        None for a chip without power and price of its system in `data/trends.toml`, or of a later year.

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
    """Largest training compute of a curve for an amount of money; infinite where all runs cost more [flop]."""
    paid = np.isfinite(money)
    if not paid.any() or money[paid][0] > dollars:
        return np.inf
    return float(np.exp(np.interp(np.log(dollars), np.log(money[paid]), np.log(training_flop[paid]))))


def cheaper_from(training_flop: np.ndarray, cost: np.ndarray, other: np.ndarray) -> float:
    """Least training compute on a curve with a lower cost than in another scenario; infinite for none [flop]."""
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
