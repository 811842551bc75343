"""Deployments drawn at random: coefficients as uncertain as those of software that the calibration never saw."""

import equinox as eqx
import jax
import numpy as np

from jaxscale.calibration.coefficients import MEMORY_COEFFICIENTS, constrain_values, from_values, priors, unconstrain
from jaxscale.trends.layout import Deployment


def coefficient_spreads() -> np.ndarray:
    r"""Standard deviation of each unconstrained coefficient of a new software stack [coefficient].

    $\sqrt{s^2 + s_\mathrm{stack}^2}$ of the spread of the centre and that between stacks, as the calibration has them;
    zero for coefficients of memory, which no trend of time reads.
    """
    spreads = {name: np.hypot(prior.spread, prior.levels.get("stack", 0.0)) for name, prior in priors().items()}
    return np.asarray([0.0 if name in MEMORY_COEFFICIENTS else spread for name, spread in spreads.items()])


def sample_deployments(deployment: Deployment, n_samples: int, seed: int = 0) -> Deployment:
    """Deployments drawn at random; the first is the deployment itself.

    Coefficients, those of latency among them, vary as if independent, so that what their correlation would cancel is
    counted in full.

    Args:
        deployment: the central one.
        n_samples: how many [1].
        seed: of the random numbers.

    Returns:
        Deployments; every leaf [sample].
    """
    random = np.random.default_rng(seed)
    centre, spread = unconstrain(deployment.coefficients), coefficient_spreads()
    draws = random.standard_normal((n_samples, centre.size))
    draws[0] = 0.0
    coefficients = from_values(list(constrain_values(centre + spread * draws).T))
    stacked = jax.tree.map(
        lambda leaf: np.broadcast_to(np.asarray(leaf), (n_samples, *np.shape(leaf))),
        eqx.tree_at(lambda s: s.coefficients, deployment, None, is_leaf=lambda leaf: leaf is None),
    )
    return eqx.tree_at(lambda s: s.coefficients, stacked, coefficients, is_leaf=lambda leaf: leaf is None)
