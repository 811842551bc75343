"""Generations of chips side by side, and what single improvements of a cluster would give the same workload."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxscale.base.arrays import stacked
from jaxscale.trends.batch_rule import Batch
from jaxscale.trends.deployment_library import deployment
from jaxscale.trends.layout import Deployment, ParallelLayout
from jaxscale.trends.outcome import Outcome, peak_memory, scaling_outcomes

GENERATIONS = ("v100-32gb", "a100-80gb", "h100-80gb", "b200", "gb200", "gb300")
"""Chips in the order of their years."""

Change = Callable[[Deployment], Deployment]


def _scaled(path: Callable[[Deployment], object], factor: float | Sequence[float]) -> Change:
    return lambda s: eqx.tree_at(path, s, replace_fn=lambda leaf: np.asarray(leaf, float) * np.asarray(factor))


def with_domain(chips: float | int) -> Change:
    """Scale-up domain of so many chips."""
    return lambda s: eqx.tree_at(
        lambda t: t.cluster.network.domain_size,
        s,
        replace_fn=lambda sizes: np.asarray([chips, max(float(sizes[1]), chips), float(sizes[2])]),
    )


CHANGES: Mapping[str, Change] = {
    "as it is": lambda s: s,
    "arithmetic x 2": _scaled(lambda s: s.cluster.chip.peak_flops, 2.0),
    "memory bandwidth x 2": _scaled(lambda s: s.cluster.chip.hbm_bandwidth, 2.0),
    "link bandwidth x 2": _scaled(lambda s: s.cluster.network.bandwidth, (2.0, 1.0, 1.0)),
    "network bandwidth x 2": _scaled(lambda s: s.cluster.network.bandwidth, (1.0, 2.0, 2.0)),
    "latency inside / 2": _scaled(lambda s: s.cluster.network.latency, (0.5, 1.0, 1.0)),
    "latency between / 2": _scaled(lambda s: s.cluster.network.latency, (1.0, 0.5, 0.5)),
    "domain of 72": with_domain(72.0),
}
"""Single improvements of a cluster."""


def generations(
    model: str = "llama2-7b",
    chip_ids: Sequence[str] = GENERATIONS,
    **changes: Any,
) -> Deployment:
    """The same model on several chips, each with its catalogue network; every leaf [chip]."""
    return stacked([deployment(model, chip_id, **changes) for chip_id in chip_ids])


def what_if(base: Deployment, changes: Mapping[str, Change] = CHANGES) -> Deployment:
    """A deployment under single improvements; every leaf [change]."""
    return stacked([change(base) for change in changes.values()])


def side_by_side(
    deployments: Deployment,
    batch: Batch,
    n_chips: Sequence[float | int] | np.ndarray,
    layout: ParallelLayout | None = None,
) -> tuple[Outcome, np.ndarray]:
    """Outcomes of stacked deployments on the same numbers of chips.

    Args:
        deployments: every leaf [deployment].
        batch: how the global batch follows n.
        n_chips: n [point].
        layout: degrees; pure FSDP where None.

    Returns:
        Outcomes, every leaf [deployment, point], and whether peak memory stays within the chip's [deployment, point].
    """
    n = np.asarray(n_chips, float)
    chosen = layout or ParallelLayout()
    outcomes, fits = [], []
    for index in range(len(np.asarray(deployments.power_cap))):
        one = jax.tree.map(lambda leaf, i=index: leaf[i], deployments)
        points = (one, chosen, n, np.asarray(batch.at(n)))
        outcomes.append(scaling_outcomes(*points))
        fits.append(peak_memory(*points) <= one.cluster.chip.hbm_bytes)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *outcomes), np.stack(fits)
