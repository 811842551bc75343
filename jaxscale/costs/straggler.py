"""Stragglers: a synchronous step waits for the slowest node, and the more nodes, the slower the slowest.

For Gaussian scatter the expected maximum of n grows as sqrt(2 ln n); over the range of real clusters a straight line in
log2 n is equally accurate and has one coefficient (Dean & Barroso 2013, The Tail at Scale, for the effect).
"""

from jaxtyping import Array, ArrayLike

from jaxscale.base.smooth import Temperature, log2_above_one
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.costs.machine import Machine


def straggler_time(
    machine: Machine, coefficients: Coefficients, step: ArrayLike, temperature: Temperature = 0.0
) -> Array:
    """Time lost to the slowest node: `straggler * log2(nodes) * step`, zero within a single node.

    Args:
        machine: number of chips, chips per node.
        coefficients: `straggler`, loss per doubling of the nodes [1].
        step: time of the step without stragglers [s].
        temperature: smoothing of the edge at one node [1].

    Returns:
        Time [s].
    """
    nodes = machine.n_chips / machine.node_chips
    return coefficients.straggler * log2_above_one(nodes, temperature) * step
