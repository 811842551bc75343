r"""Power and energy of a step: what the chip does, and what it draws meanwhile.

Every term of the step is spent computing, streaming from memory, in a collective (its kernels spin on the processor,
also while they wait for others), or waiting for the host. A chip draws idle power all the time and, during each of
these, a share of what its power limit leaves above that:

$$ E = P_\mathrm{idle}\,T + (P_\mathrm{max} - P_\mathrm{idle}) \sum_i s_{c(i)}\,t_i, \qquad P = E / T . $$

Under a cap no activity draws more than the cap; clocks fall until computing meets it. Dynamic power goes as the cube of
the clock (f V^2 with V in proportion to f), so that the speed of arithmetic falls by only the cube root of the power
that is left: $\phi = [(P_\mathrm{cap} - P_\mathrm{idle}) / (P_\mathrm{compute} - P_\mathrm{idle})]^{1/3}$.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from jaxscale._arrays import Number, as_float
from jaxscale._smooth import smaller
from jaxscale.hardware.cluster import Chip
from jaxscale.step import StepTime

ACTIVITY = {
    "matmul": "compute",
    "attention": "compute",
    "head": "compute",
    "recompute": "compute",
    "memory_bound": "memory",
    "optimizer": "memory",
    "tensor_parallel": "network",
    "context_parallel": "network",
    "expert_parallel": "network",
    "data_parallel": "network",
    "pipeline_transfer": "network",
    "pipeline_bubble": "network",
    "pipeline_imbalance": "network",
    "straggler": "network",
    "kernel_gaps": "waiting",
    "host": "waiting",
    "bookkeeping": "waiting",
}
"""What the chip does during each term of a step; bubbles and stragglers are waited for inside a collective."""

CLOCK_EXPONENT = 3.0
"""Dynamic power against clock: f V^2 with V proportional to f [1]."""


class ChipPower(eqx.Module):
    """Power above idle of each activity, over what the power limit leaves above idle.

    Attributes:
        compute: during matmuls and attention [1].
        memory: during kernels bound by memory [1].
        network: while a collective is exposed [1].
        waiting: while nothing is launched [1].
        host_power: of the server's other parts per chip: processors, memory, network cards, fans [W].
    """

    compute: Number = eqx.field(converter=as_float)
    memory: Number = eqx.field(converter=as_float)
    network: Number = eqx.field(converter=as_float)
    waiting: Number = eqx.field(converter=as_float)
    host_power: Number = eqx.field(converter=as_float)

    def above_idle(self, activity: str, chip: Chip, cap: ArrayLike) -> Array:
        """Power above idle of one activity under a cap [W]."""
        free = getattr(self, activity) * (chip.max_power - chip.idle_power)
        return smaller(free, smaller(cap, chip.max_power) - chip.idle_power)


def throttle(chip: Chip, power: ChipPower, cap: ArrayLike) -> Chip:
    """The chip with the arithmetic peaks that its power cap leaves.

    Args:
        chip: peaks at the board's own power limit, at which efficiencies were measured.
        power: what computing draws.
        cap: power cap, above idle power [W].

    Returns:
        The chip with peaks scaled by the module's phi, 1 where computing stays below the cap.
    """
    free = power.compute * (chip.max_power - chip.idle_power)
    clock = (power.above_idle("compute", chip, cap) / free) ** (1.0 / CLOCK_EXPONENT)
    return eqx.tree_at(lambda c: c.peak_flops, chip, jnp.asarray(chip.peak_flops) * clock)


def energy_terms(times: StepTime, chip: Chip, power: ChipPower, cap: ArrayLike) -> dict[str, Array]:
    """Energy of one chip over one step, by cause; the terms add up to mean power times time.

    Args:
        times: terms of the step [s].
        chip: idle and maximum power.
        power: shares by activity.
        cap: power cap [W].

    Returns:
        `idle`, and the energy above idle of every term of the step [J].
    """
    energy: dict[str, Any] = {"idle": chip.idle_power * times.total}
    for name, seconds in times.terms().items():
        energy[name] = power.above_idle(ACTIVITY[name], chip, cap) * seconds
    return energy


def chip_power(times: StepTime, chip: Chip, power: ChipPower, cap: ArrayLike) -> Array:
    """Mean power of one chip over a step [W]."""
    terms = list(energy_terms(times, chip, power, cap).values())
    return sum(terms[1:], start=terms[0]) / times.total
