r"""Goodput of learners that fail apart.

A failure stops one of M learners for R seconds; each has n / M chips, of which every one fails once in a time Y:

$$ g = \frac{\eta}{1 + R n / (M Y)} . $$

Goodput of M learners of n chips in all is that of one with n / M chips. Fitted to the simulated figures of Decoupled
DiLoCo (arXiv 2604.21428, at second hand): R = 67 s where everything restarts, R = 19.5 s where the other chips of a
learner train on, and eta = 0.957 of several learners against 1 of one.
"""

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike


def learners_goodput(
    n_chips: ArrayLike,
    learners: ArrayLike,
    chip_interval: ArrayLike,
    stopped: ArrayLike,
    efficiency: ArrayLike = 1.0,
) -> Array:
    """Share of the time in which learners train.

    Args:
        n_chips: n, chips of all learners together [1].
        learners: M [1].
        chip_interval: Y, mean time between two failures of a chip [s].
        stopped: R, time that a failure stops a learner [s].
        efficiency: eta, goodput without failures [1].

    Returns:
        Goodput [1]; falls with n, rises with M.
    """
    failures = jnp.asarray(n_chips) / (jnp.asarray(learners) * chip_interval)
    return jnp.asarray(efficiency) / (1.0 + stopped * failures)
