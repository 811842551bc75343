"""Sampling of the full posterior of a fit by the no-U-turn sampler of numpyro (the extra `bayes`).

The potential is the negative log posterior of the fit in its standardised parameters, with the Laplace covariance of
the fit as the metric. Reference: Hoffman & Gelman 2014, JMLR 15, 1593-1623.
"""

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxscale.base.errors import InputError
from jaxscale.calibration.coefficients import constrain_values, names, unconstrain
from jaxscale.fitting.objective import loss

if TYPE_CHECKING:
    from jaxscale.fitting.result import FitResult


class Posterior(NamedTuple):
    """Draws from the posterior of a fit.

    Attributes:
        standardised: draws of all parameters, in standard deviations of the priors [draw, parameter].
        coefficients: draws of each pooled coefficient in its unit, by name [draw].
        n_divergent: divergent transitions; more than a few indicate unreliable draws [1].
    """

    standardised: np.ndarray
    coefficients: dict[str, np.ndarray]
    n_divergent: int

    def interval(self, name: str, probability: float = 0.9) -> tuple[float, float]:
        """Central interval of a coefficient with the given posterior probability, in the coefficient's unit."""
        tail = 0.5 * (1.0 - probability)
        low, high = np.quantile(self.coefficients[name], [tail, 1.0 - tail])
        return float(low), float(high)


def sample_posterior(result: "FitResult", n_draws: int = 500, n_warmup: int = 300, seed: int = 0) -> Posterior:
    """Draw from the posterior of a fit.

    Args:
        result: the fit, with the optimum at the start of the chain.
        n_draws: number of draws to keep [1].
        n_warmup: number of preceding draws, for the adaptation of the step size [1].
        seed: seed of the random numbers.

    Returns:
        The draws.

    Raises:
        InputError: numpyro is not installed, or a count is below one.
    """
    for name, count in (("n_draws", n_draws), ("n_warmup", n_warmup)):
        if count < 1:
            raise InputError(f"{name} = {count} is out of range; expected at least 1")
    try:
        from numpyro.infer import MCMC, NUTS  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise InputError("numpyro is not installed; expected it from: pip install 'jaxscale[bayes]'") from None
    with jax.enable_x64(True):
        covariance = jnp.asarray(result.diagnostics.covariance)
        kernel = NUTS(
            potential_fn=lambda parameters: loss(parameters, result.problem),
            inverse_mass_matrix=covariance,
            dense_mass=True,
            adapt_mass_matrix=False,
            # Trajectories across kinks of the model diverge at the usual 0.8, and for a few seeds at 0.9.
            target_accept_prob=0.95,
        )
        chain = MCMC(kernel, num_warmup=n_warmup, num_samples=n_draws, progress_bar=False)
        chain.run(jax.random.key(seed), init_params=result.solution.parameters, extra_fields=("diverging",))
        draws = np.asarray(chain.get_samples())
        n_divergent = int(np.sum(np.asarray(chain.get_extra_fields()["diverging"])))
    pooled = slice(len(names()))
    # Draws relative to the optimum, as the fit's pooled values are at the optimum.
    moves = draws[:, pooled] - np.asarray(result.solution.parameters)[pooled]
    spread = np.asarray(result.problem.parametrisation.spread)
    values = constrain_values(unconstrain(result.fit.pooled) + moves * spread)
    return Posterior(draws, {name: values[:, index] for index, name in enumerate(names())}, n_divergent)
