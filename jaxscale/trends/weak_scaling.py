"""Weak scaling: more chips, the same work for each; the global batch grows with them."""

from collections.abc import Sequence

import numpy as np

from jaxscale.trends.layout import Deployment, ParallelLayout
from jaxscale.trends.outcome import Outcome, scaling_outcomes


def weak_scaling(
    deployment: Deployment,
    n_chips: Sequence[float | int] | np.ndarray,
    sequences_per_chip: float | int,
    layout: ParallelLayout | None = None,
    temperature: float = 0.0,
) -> Outcome:
    """Speed, power and cost at B = s n.

    Args:
        deployment: model, chips, coefficients, power, price.
        n_chips: n [point].
        sequences_per_chip: s, work of a chip and step [sequence].
        layout: degrees; pure FSDP where None.
        temperature: smoothing [1].

    Returns:
        Outcomes; every leaf [point].
    """
    n = np.asarray(n_chips, float)
    return scaling_outcomes(deployment, layout or ParallelLayout(), n, sequences_per_chip * n, temperature)
