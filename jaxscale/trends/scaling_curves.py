"""Curves of weak scaling, with equal work for every chip, and of strong scaling, at one global batch."""

from collections.abc import Sequence

import jax
import numpy as np

from jaxscale.trends.layout import Deployment, ParallelLayout
from jaxscale.trends.outcome import Outcome, scaling_outcomes

TENSOR_DEGREES = (1.0, 2.0, 4.0, 8.0)
"""Tensor-parallel degrees inside a domain of eight chips [1]."""


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


def strong_scaling(
    deployment: Deployment,
    n_chips: Sequence[float | int] | np.ndarray,
    global_batch_size_seqs: float | int,
    layout: ParallelLayout | None = None,
    temperature: float = 0.0,
) -> Outcome:
    """Speed, power and cost at one global batch.

    Args:
        deployment: model, chips, coefficients, power, price.
        n_chips: n [point].
        global_batch_size_seqs: B [sequence].
        layout: degrees; pure FSDP where None.
        temperature: smoothing [1].

    Returns:
        Outcomes; every leaf [point].
    """
    return scaling_outcomes(
        deployment, layout or ParallelLayout(), np.asarray(n_chips, float), global_batch_size_seqs, temperature
    )


def best_tensor_degree(
    deployment: Deployment,
    n_chips: Sequence[float | int] | np.ndarray,
    global_batch_size_seqs: Sequence[float | int] | np.ndarray,
) -> tuple[np.ndarray, Outcome]:
    """Fastest whole tensor-parallel degree at each point, of those that leave every replica a whole sequence.

    Args:
        deployment: model, chips, coefficients, power, price.
        n_chips: n [point].
        global_batch_size_seqs: B [sequence], [point].

    Returns:
        The degree [point], and the outcomes with it.

    Raises:
        ValueError: a batch too small for any degree.
    """
    n, batch = np.broadcast_arrays(np.asarray(n_chips, float), np.asarray(global_batch_size_seqs, float))
    degree, points = (grid.ravel() for grid in np.meshgrid(TENSOR_DEGREES, np.arange(n.size), indexing="ij"))
    outcomes = scaling_outcomes(deployment, ParallelLayout(tp=degree), n[points], batch[points])
    per_replica = batch[points] * degree / n[points]
    speed = np.where(per_replica >= 1.0, np.asarray(outcomes.tokens_per_s), -np.inf).reshape(
        len(TENSOR_DEGREES), n.size
    )
    if not np.isfinite(speed.max(axis=0)).all():
        raise ValueError(f"batch {batch.min():g} is below one sequence per {TENSOR_DEGREES[-1]:g} of {n.max():g} chips")
    best = np.argmax(speed, axis=0)
    rows = best * n.size + np.arange(n.size)
    return np.asarray(TENSOR_DEGREES)[best], jax.tree.map(lambda leaf: leaf[rows], outcomes)
