"""Deployments drawn at random: coefficients and hop latencies within the intervals of their fits."""

import dataclasses

import equinox as eqx
import jax
import numpy as np

from jaxscale._resources import fit_path, read_toml
from jaxscale.calibration.coefficients import MEMORY_COEFFICIENTS, from_values, prior_medians
from jaxscale.calibration.coordinates import constrain_values, unconstrain
from jaxscale.calibration.intervals import Z90
from jaxscale.trends.deployment_library import Overlay, fitted_overlay, table
from jaxscale.trends.layout import Deployment


def coefficient_spreads() -> np.ndarray:
    """Standard deviation of each unconstrained coefficient, from 90 % intervals of the trends' fit [coefficient]."""
    entries = read_toml(fit_path(f"{table()['workload']['fit']}.toml"))["coefficients"]
    intervals = {name: entry for name, entry in entries.items() if "lo" in entry and name not in MEMORY_COEFFICIENTS}

    def end(which: str) -> np.ndarray:
        """One end of every interval, unconstrained; the same for both ends where there is no interval."""
        return unconstrain(dataclasses.replace(prior_medians(), **{name: e[which] for name, e in intervals.items()}))

    return (end("hi") - end("lo")) / (2.0 * Z90)


def sample_deployments(
    deployment: Deployment, n_samples: int, seed: int = 0, overlay: Overlay | None = None
) -> Deployment:
    """Deployments drawn at random; the first is the deployment itself.

    Coefficients vary within the intervals of their fit, as if independent, so that what their correlation would
    cancel is counted in full; hop latencies vary by the spread of their own fit.

    Args:
        deployment: the central one.
        n_samples: how many [1].
        seed: of the random numbers.
        overlay: whose spread of hop latencies applies; the fitted one where None.

    Returns:
        Deployments; every leaf [sample].
    """
    overlay = overlay or fitted_overlay()
    random = np.random.default_rng(seed)
    centre, spread = unconstrain(deployment.coefficients), coefficient_spreads()
    draws = random.standard_normal((n_samples, centre.size + 2))
    draws[0] = 0.0
    coefficients = from_values(list(constrain_values(centre + spread * draws[:, :-2]).T))
    hops = np.asarray(deployment.hop_latency) * np.exp(np.asarray(overlay.spread) * draws[:, -2:])
    stacked = jax.tree.map(
        lambda leaf: np.broadcast_to(np.asarray(leaf), (n_samples, *np.shape(leaf))),
        eqx.tree_at(lambda s: s.coefficients, deployment, None, is_leaf=lambda leaf: leaf is None),
    )
    stacked = eqx.tree_at(lambda s: s.coefficients, stacked, coefficients, is_leaf=lambda leaf: leaf is None)
    return eqx.tree_at(lambda s: s.hop_latency, stacked, hops)
