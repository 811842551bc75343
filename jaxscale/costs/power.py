r"""Power and energy of a step, from the activity of the chip during each cost term and the power draw of each activity.

During each term, a chip computes, streams from memory, runs a collective (kernels of collectives spin on the
processor, also while waiting for slower ranks), or waits for the host. A chip draws idle power all the time and,
during each activity, a share of the difference between power limit and idle power:

$$ E = P_\mathrm{idle}\,T + (P_\mathrm{max} - P_\mathrm{idle}) \sum_i s_{k(i)}\,t_i, \qquad P = E / T , $$

with $k(i)$ the activity of term i in `step.TERMS`. Under a cap no activity draws more than the cap; clocks fall until
computing meets the cap. Dynamic power goes as the cube of the clock (f V^2 with V in proportion to f), so that the
speed of arithmetic falls by only the cube root of the remaining power:
$\phi = [(P_\mathrm{cap} - P_\mathrm{idle}) / (P_\mathrm{compute} - P_\mathrm{idle})]^{1/3}$.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from jaxscale.base.arrays import Number, as_float, total_of
from jaxscale.base.smooth import smaller
from jaxscale.costs.step import TERMS, StepTime
from jaxscale.costs.terms import Kind
from jaxscale.hardware.cluster import Chip

CLOCK_EXPONENT = 3.0
"""Exponent of dynamic power against clock: f V^2 with V proportional to f [1]."""


class ChipPower(eqx.Module):
    """Power of a chip above idle during each activity, relative to the difference between power limit and idle power.

    Attributes:
        compute: during matmuls and attention [1].
        memory: during kernels bound by memory [1].
        network: during an exposed collective [1].
        waiting: while the chip waits for a launch by the host [1].
        host_power: power of the server per chip, without chips: processors, memory, network cards, fans [W].
    """

    compute: Number = eqx.field(converter=as_float)
    memory: Number = eqx.field(converter=as_float)
    network: Number = eqx.field(converter=as_float)
    waiting: Number = eqx.field(converter=as_float)
    host_power: Number = eqx.field(converter=as_float, default=0.0)

    def share(self, kind: Kind) -> Number:
        """Relative power above idle of an activity: the attribute for the activity `kind` [1]."""
        return {"compute": self.compute, "memory": self.memory, "network": self.network, "host": self.waiting}[kind]

    def above_idle(self, kind: Kind, chip: Chip, cap: ArrayLike | None = None) -> Array:
        """Power above idle of an activity, limited by the cap, or by the power limit of the board without a cap [W]."""
        free = jnp.asarray(self.share(kind) * (chip.max_power - chip.idle_power))
        # No activity draws more than the cap.
        return free if cap is None else smaller(free, smaller(cap, chip.max_power) - chip.idle_power)


def throttle(chip: Chip, power: ChipPower, cap: ArrayLike) -> Chip:
    """Chip with peak flop rates reduced by a power cap.

    Args:
        chip: peaks at the power limit of the board, at which efficiencies were measured.
        power: relative power by activity.
        cap: power cap, above idle power [W].

    Returns:
        The chip with peaks times the factor phi of the module; phi is 1 if computing stays below the cap.
    """
    # phi = ((P_cap - P_idle) / (P_compute - P_idle))^(1/3)
    clock = (power.above_idle("compute", chip, cap) / power.above_idle("compute", chip)) ** (1.0 / CLOCK_EXPONENT)
    return eqx.tree_at(lambda c: c.peak_flops, chip, jnp.asarray(chip.peak_flops) * clock)


def energy_terms(times: StepTime, chip: Chip, power: ChipPower, cap: ArrayLike | None = None) -> dict[str, Array]:
    """Energy of a chip over a step by cause [J]; the sum is the mean power times the step time.

    Args:
        times: terms of the step [s].
        chip: idle power and power limit.
        power: relative power by activity.
        cap: power cap [W]; by default the power limit of the board.

    Returns:
        `idle`, and the energy above idle of every term of the step [J].
    """
    seconds = times.terms()
    energy: dict[str, Any] = {"idle": chip.idle_power * times.total}
    for term in TERMS:
        energy[term.name] = power.above_idle(term.kind, chip, cap) * seconds[term.name]
    return energy


def mean_chip_power(times: StepTime, chip: Chip, power: ChipPower, cap: ArrayLike | None = None) -> Array:
    """Mean power of a chip over a step, without the server; arguments as of `energy_terms` [W]."""
    # P = E / T
    return total_of(energy_terms(times, chip, power, cap).values()) / times.total
