r"""The cheapest change of hardware that moves a threshold to a target.

$$ \min_\delta \tfrac12 \sum_i w_i \delta_i^2 \quad\text{s.t.}\quad \ln T(\theta e^\delta) = \ln T^* $$

with $\delta$ the logarithms of the factors on the hardware. Each step solves the problem with the threshold linearised
where the last one ended, $\delta = \Lambda\, W^{-1} e$ with e its elasticities; where steps end, that is the condition
of an optimum: every lever is pulled in proportion to its elasticity over its price.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from jaxscale.errors import InputError
from jaxscale.limits.frontier.frontier_scenario import FrontierScenario
from jaxscale.limits.thresholds import NAMES, thresholds

PRICES: Mapping[str, float] = {
    "network_latency": 1.0,
    "link_latency": 1.0,
    "kernel_latency": 1.0,
    "network_bandwidth": 1.0,
    "link_bandwidth": 1.0,
    "domain_size": 1.0,
    "memory_bytes": 1.0,
    "memory_bandwidth": 1.0,
}
"""Price w of a squared e-fold of each lever where none is given [1]."""

LONGEST_STEP = 1.0
"""Most that a step moves the threshold, e-folds of training compute [1]."""


@dataclass(frozen=True)
class HardwareChange:
    """A change of hardware.

    Attributes:
        factors: on each lever [1].
        scenario: with the change.
        log_flop: threshold that it reaches, natural logarithm [flop].
        price: of the change, half the weighted sum of squares [1].
        residual: how far from proportional to elasticity over price the logarithms of the factors are, relative [1].
    """

    factors: Mapping[str, float]
    scenario: FrontierScenario
    log_flop: float
    price: float
    residual: float


def cheapest_change(
    scenario: FrontierScenario,
    target_flop: float,
    threshold: str = "wall",
    prices: Mapping[str, float] = PRICES,
    n_steps: int = 12,
) -> HardwareChange:
    """Cheapest change of hardware that moves a threshold to a target.

    Args:
        scenario: assumptions to start from.
        target_flop: where the threshold is wanted [flop].
        threshold: one of `thresholds.NAMES`.
        prices: levers and the price of a squared e-fold of each [1].
        n_steps: most steps [1].

    Returns:
        The change.

    Raises:
        InputError: an unknown threshold, a price that is not positive, or a scenario without the threshold.
    """
    if threshold not in NAMES:
        raise InputError(f"threshold {threshold!r} is not known; expected one of {', '.join(NAMES)}")
    if not all(price > 0.0 for price in prices.values()):
        raise InputError("prices: expected numbers above 0")
    levers = list(prices)
    weights = np.asarray([prices[name] for name in levers])
    shifts = np.zeros(len(levers))
    change = None
    for _ in range(n_steps + 1):
        changed = _scaled(scenario, dict(zip(levers, np.exp(shifts).tolist(), strict=True)))
        limits = thresholds([changed])
        log_flop = float(limits.log_flop[0, NAMES.index(threshold)])
        if not math.isfinite(log_flop):
            raise InputError(f"threshold {threshold!r}: the scenario has none; expected one that has")
        fields = limits.by_field(0)[threshold]
        pull = np.asarray([fields[name] for name in levers])
        strength = float(pull @ (pull / weights))
        share = float(pull @ shifts) / strength
        residual = float(np.abs(shifts - share * pull / weights).max() / max(np.abs(shifts).max(), 1e-12))
        factors = dict(zip(levers, np.exp(shifts).tolist(), strict=True))
        change = HardwareChange(factors, changed, log_flop, float(0.5 * weights @ shifts**2), residual)
        gap = math.log(target_flop) - log_flop
        if abs(gap) < 1e-6 and residual < 1e-4:
            break
        reach = float(np.clip(gap, -LONGEST_STEP, LONGEST_STEP))
        shifts = (reach + float(pull @ shifts)) / strength * pull / weights
    assert change is not None
    return change


def _scaled(scenario: FrontierScenario, factors: Mapping[str, float]) -> FrontierScenario:
    changes = {name: getattr(scenario, name) * factor for name, factor in factors.items()}
    return dataclasses.replace(scenario, **changes)
