"""Minimisation: optax finds the valley from many starts, Levenberg-Marquardt of optimistix polishes the best."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray
from threadpoolctl import threadpool_limits

from jaxscale.base.jit import filter_jit
from jaxscale.fitting.objective import SHARP, TEMPERATURE, FitProblem, RowErrors, errors_at, search_loss, smoothed
from jaxscale.fitting.polish import ANYWHERE, POLISHED, Solution, minimised

FINALISTS = 4
"""Starts that the search follows to the end: kinks make many valleys, and the deepest is not always ahead early [1]."""

FIRST_STEPS, LAST_STEPS = 10, 40
"""Adam steps of every start, and those that the finalists take further [1]."""

ROUNDS, PATIENCE = 12, 2
"""Most times that the best fit is polished again, and how many in a row may be of no help: the way over a kink may lead
uphill first [1]."""

SETTLED = 0.1
"""Fall of the negative log posterior below which polishing again is no help [1]."""

START_SPREAD = 0.7
"""Standard deviation of the starting points, in units of the prior's [1]."""


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Factorise matrices on one thread meanwhile: further ones wait for cores that XLA keeps busy.

    A fit takes a sixth longer on two cores with two.
    """
    import scipy.linalg  # noqa: F401  (XLA calls its LAPACK, which can be told only once it is loaded)

    with threadpool_limits(1, "blas"):
        yield


def standing_at(problem: FitProblem, parameters: Float[Array, " parameter"]) -> Solution:
    """A point as a solution, as it is: everything is near enough, so the solver's first evaluation is its last."""
    return minimised(parameters, smoothed(problem, SHARP), ANYWHERE)._replace(converged=jnp.asarray(False))


def at_prior_without_runs(parameters: Float[Array, " parameter"], problem: FitProblem) -> Array:
    """Parameters with the effects of levels that no counted run has at their prior's centre [parameter].

    That is their optimum. Where runs are left out of a solved problem, what these said of their own levels would
    otherwise linger: their pull is gone, and a prior alone pulls too weakly for the solver to go all the way.
    """
    has_runs = (problem.weight @ problem.members) > 0.0
    n = parameters.shape[0] - has_runs.shape[0]
    return parameters.at[n:].multiply(has_runs)


class Descent(NamedTuple):
    """A start on its way downhill.

    Attributes:
        parameters: where it is [parameter].
        state: of the optimiser.
        loss: one step before [1].
    """

    parameters: Float[Array, " parameter"]
    state: optax.OptState
    loss: Float[Array, ""]


def adam() -> optax.GradientTransformation:
    """The optimiser of the search."""
    return optax.adam(optax.cosine_decay_schedule(0.1, FIRST_STEPS + LAST_STEPS), b2=0.99)


def begin(start: Float[Array, " parameter"]) -> Descent:
    """A descent that has yet to move."""
    return Descent(start, adam().init(start), jnp.zeros(()))


@filter_jit
def _updated(now: Descent, problem: FitProblem, errors: RowErrors) -> Descent:
    loss, gradient = jax.value_and_grad(search_loss)(now.parameters, problem, errors)
    updates, state = adam().update(gradient, now.state)
    return Descent(jnp.asarray(optax.apply_updates(now.parameters, updates)), state, loss)


def descend(problem: FitProblem, begun: Descent, n_steps: int) -> Descent:
    """Steps of Adam from where a start is."""
    now = begun
    for _ in range(n_steps):
        now = _updated(now, problem, errors_at(now.parameters, problem))
    return now


def search_starts(problem: FitProblem, starts: Float[Array, "start parameter"]) -> tuple[list[Array], Array]:
    """Adam from every start, a few steps; then from where the best few are, many.

    Args:
        problem: what to fit.
        starts: standardised starting points [start, parameter].

    Returns:
        Where the best few end [parameter], and the `search_loss` that each start reached [start].
    """
    problem = smoothed(problem, SHARP)  # so that its program is the one of the polish
    reached = [descend(problem, begin(jnp.asarray(start)), FIRST_STEPS) for start in np.asarray(starts)]
    losses = np.asarray([descent.loss for descent in reached])
    # A start that ran off into non-finite ground must never count as one of the best.
    best = np.argsort(np.where(np.isfinite(losses), losses, np.inf))[:FINALISTS]
    last = [descend(problem, reached[index], LAST_STEPS) for index in best]
    losses[best] = [descent.loss for descent in last]
    return [descent.parameters for descent in last], jnp.asarray(losses)


def refine(problem: FitProblem, start: Float[Array, " parameter"]) -> Solution:
    """Polish one point: the fit itself, and enough on its own for a problem that differs little from a solved one."""
    near = minimised(at_prior_without_runs(start, problem), smoothed(problem, TEMPERATURE), POLISHED)
    return minimised(near.parameters, smoothed(problem, SHARP), POLISHED)


def solve(
    problem: FitProblem,
    starts: Float[Array, "start parameter"],
    known: Sequence[Float[Array, " parameter"]] = (),
) -> Solution:
    """Fit from several starts.

    Args:
        problem: what to fit.
        starts: standardised starting points; the first is usually the prior's centre [start, parameter].
        known: where earlier fits of about the same problem ended [parameter]; a search from there could lose them, so
            they count as they are, and the fit is no worse than theirs.

    Returns:
        The best fit.
    """
    ends, losses = search_starts(problem, starts)
    earlier = [standing_at(problem, end) for end in known]
    best = settled(problem, _lowest([*(refine(problem, end) for end in (*ends, *known)), *earlier]))
    exposed = from_exposed(problem, best)
    # Settling takes long: only what is clearly ahead is worth it.
    ahead = exposed.loss < best.loss - SETTLED
    return (settled(problem, exposed) if ahead else best)._replace(start_losses=losses)


def from_exposed(problem: FitProblem, solution: Solution) -> Solution:
    """Where a solution goes when its hidden terms are made to show.

    What hides behind something longer, such as the host's pace behind the chip's, has no gradient: no descent finds it
    from there, and other coefficients have taken its place. From where it shows, one does.
    """
    exposed = solution.parameters + problem.parametrisation.towards_exposed
    return refine(problem, refine(problem, exposed).parameters)


def settled(problem: FitProblem, solution: Solution) -> Solution:
    """A solution polished again and again, until that has not helped a few times in a row."""
    best = last = solution
    idle = 0
    for _ in range(ROUNDS):
        last = refine(problem, last.parameters)
        idle = 0 if last.loss < best.loss - SETTLED else idle + 1
        best = _lowest([best, last])
        if idle == PATIENCE:
            return best._replace(converged=jnp.asarray(True))
    return best


def _lowest(solutions: Sequence[Solution]) -> Solution:
    return min(solutions, key=lambda solution: float(jnp.nan_to_num(solution.loss, nan=jnp.inf)))


def random_starts(key: PRNGKeyArray, n_starts: int, n_parameters: int) -> Array:
    """The prior's centre and random points around it [start, parameter]."""
    spread = START_SPREAD * jax.random.normal(key, (n_starts - 1, n_parameters))
    return jnp.concatenate([jnp.zeros((1, n_parameters)), spread])
