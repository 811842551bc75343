"""Multi-start minimisation: Adam from many starts, then Levenberg-Marquardt from the best end points."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import optax
import optimistix as optx
from jaxtyping import Array, Bool, Float, PRNGKeyArray
from threadpoolctl import threadpool_limits

from jaxscale.base.jit import filter_jit
from jaxscale.fitting.objective import (
    SHARP,
    TEMPERATURE,
    FitProblem,
    RowErrors,
    errors_at,
    residuals,
    search_loss,
    smoothed,
)

POLISH_STEPS = 12
"""Maximum number of Levenberg-Marquardt steps at each smoothing, and at each trial value of a profile [1]."""


class Solution(NamedTuple):
    """Optimum of a calibration problem.

    Attributes:
        parameters: standardised parameters at the optimum [parameter].
        loss: negative log posterior at the optimum [1].
        start_losses: last `search_loss` of the search from each start [1], [start].
        converged: whether the last minimisation met the tolerance, or repeated minimisations made no more progress.
        log_residuals: predicted minus measured logs of step time and memory, padding included [row, 2].
        jacobian: derivative of the pseudo-residuals by each parameter [row + memory row + parameter, parameter].
    """

    parameters: Float[Array, " parameter"]
    loss: Float[Array, ""]
    start_losses: Float[Array, " start"]
    converged: Array
    log_residuals: Float[Array, "row 2"]
    jacobian: Float[Array, "entry parameter"]


class Held(NamedTuple):
    """Parameter held fixed in a minimisation, and its value.

    Attributes:
        index: index of the parameter; an index beyond the last parameter holds none [1].
        value: value of the parameter [1].
    """

    index: int
    value: float

    def put(self, parameters: Float[Array, " parameter"]) -> Array:
        """Parameters with the held parameter set to the fixed value [parameter]."""
        # An index beyond the end holds nothing.
        return parameters.at[self.index].set(self.value, mode="drop")


class Tolerance(NamedTuple):
    """Tolerance of a minimisation, for changes of parameters and loss.

    Attributes:
        relative: relative change [1].
        absolute: absolute change of the parameters, in standard deviations of priors, and of the loss [1].
    """

    relative: float
    absolute: float


POLISHED, ANYWHERE = Tolerance(1e-5, 1e-3), Tolerance(0.0, math.inf)
"""Tolerance of a fit, where a thousandth of a prior's standard deviation is far below any interval; and a tolerance
met by every point."""


class Polish(NamedTuple):
    """State of a Levenberg-Marquardt minimisation between steps.

    Attributes:
        parameters: best parameters so far [parameter].
        state: state of the solver; `state.y_eval` is the next point to evaluate.
        ended: whether the minimisation converged or failed.
        converged: whether the minimisation converged.
    """

    parameters: Float[Array, " parameter"]
    state: Any
    ended: Bool[Array, ""]
    converged: Bool[Array, ""]


Evaluation = tuple[FitProblem, Held, RowErrors]
"""FitProblem, held parameter, and errors at the point requested by the solver."""


def _solver(tolerance: Tolerance) -> optx.LevenbergMarquardt:
    """Levenberg-Marquardt solver by normal equations: faster than a QR, and well conditioned thanks to the priors."""
    return optx.LevenbergMarquardt(*tolerance, linear_solver=lx.Normal(lx.Cholesky()))


def _function(parameters: Array, evaluation: Evaluation) -> tuple[Array, Array]:
    problem, held, errors = evaluation
    return residuals(held.put(parameters), problem, errors)


@filter_jit
def _begun(start: Float[Array, " parameter"], evaluation: Evaluation, tolerance: Tolerance) -> Polish:
    """Initial state of the solver, compiled."""
    # Uncompiled, each state would hold a Jacobian program, and every step would be compiled anew.
    values, logs = jax.eval_shape(_function, start, evaluation)
    state = _solver(tolerance).init(_function, start, evaluation, {}, values, logs, frozenset())
    return Polish(start, state, jnp.asarray(False), jnp.asarray(False))


@filter_jit
def _stepped(now: Polish, evaluation: Evaluation, tolerance: Tolerance) -> Polish:
    solver = _solver(tolerance)
    parameters, state, _ = solver.step(_function, now.parameters, evaluation, {}, now.state, frozenset())
    is_near, result = solver.terminate(_function, parameters, evaluation, {}, state, frozenset())
    lost = (result != optx.RESULTS.successful) | ~jnp.all(jnp.isfinite(parameters))
    return Polish(parameters, state, is_near | lost, is_near & ~lost)


@filter_jit
def _solution_of(now: Polish, held: Held) -> Solution:
    """Solution at the best point so far, from the solver's state; the last evaluation may be of a rejected step."""
    end, log_residuals = now.state.f_info, now.state.aux
    # Half the sum of squares of the pseudo-residuals.
    value = 0.5 * jnp.sum(end.residual**2)
    parameters = held.put(now.parameters)
    return Solution(parameters, value, value[None], now.converged, log_residuals, end.jac.as_matrix())


def minimised(
    start: Float[Array, " parameter"], problem: FitProblem, tolerance: Tolerance, held: Held | None = None
) -> Solution:
    """Levenberg-Marquardt minimisation of the negative log posterior from a single start.

    Args:
        start: starting point [parameter].
        problem: the problem to fit, with smoothed maxima.
        tolerance: tolerance of the minimisation.
        held: parameter held fixed; by default none.

    Returns:
        The solution at the end point.
    """
    # An index beyond the last parameter: no parameter is held.
    nothing = Held(len(start), 0.0)
    kept, near = jax.tree.map(jnp.asarray, (held or nothing, tolerance))

    def evaluated(at: Array) -> Evaluation:
        return problem, kept, errors_at(kept.put(at), problem)

    first = evaluated(start)
    now = _stepped(_begun(start, first, near), first, near)
    for _ in range(POLISH_STEPS - 1):
        if now.ended:
            break
        now = _stepped(now, evaluated(now.state.y_eval), near)
    return _solution_of(now, kept)


FINALISTS = 4
"""Number of starts that the search follows to the end: kinks make many valleys, and the deepest valley is not always
ahead early [1]."""

FIRST_STEPS, LAST_STEPS = 10, 40
"""Adam steps of every start, and further Adam steps of the finalists [1]."""

ROUNDS, PATIENCE = 12, 2
"""Maximum number of repeated polishes of the best fit, and number of successive polishes without progress before the
end:
the path across a kink may first lead uphill [1]."""

SETTLED = 0.1
"""Fall of the negative log posterior below which a repeated polish counts as no progress [1]."""

START_SPREAD = 0.7
"""Standard deviation of the starting points, in units of the prior's standard deviation [1]."""


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Context with a single BLAS thread, since further threads would wait for cores in use by XLA.

    On two cores, two BLAS threads make a fit a sixth slower.
    """
    import scipy.linalg  # noqa: F401  (loads the LAPACK of XLA, which the limit needs loaded)

    with threadpool_limits(1, "blas"):
        yield


def standing_at(problem: FitProblem, parameters: Float[Array, " parameter"]) -> Solution:
    """Solution at a given point, without minimisation."""
    return minimised(parameters, smoothed(problem, SHARP), ANYWHERE)._replace(converged=jnp.asarray(False))


def at_prior_without_runs(parameters: Float[Array, " parameter"], problem: FitProblem) -> Array:
    """Parameters with zero (the prior centre) for effects of levels without runs of positive weight [parameter].

    Zero is the optimum of an effect without runs.
    """
    # (effects,)
    has_runs = (problem.weight @ problem.members) > 0.0
    # Pooled parameters come first.
    n = parameters.shape[0] - has_runs.shape[0]
    # The pull of a prior alone is too weak for the solver to reach the centre.
    return parameters.at[n:].multiply(has_runs)


class Descent(NamedTuple):
    """State of an Adam descent from a start.

    Attributes:
        parameters: current parameters [parameter].
        state: state of the optimiser.
        loss: loss before the last step [1].
    """

    parameters: Float[Array, " parameter"]
    state: optax.OptState
    loss: Float[Array, ""]


def adam() -> optax.GradientTransformation:
    """Adam optimiser with a cosine schedule of the learning rate."""
    return optax.adam(optax.cosine_decay_schedule(0.1, FIRST_STEPS + LAST_STEPS), b2=0.99)


def begin(start: Float[Array, " parameter"]) -> Descent:
    """Initial state of a descent from a start."""
    return Descent(start, adam().init(start), jnp.zeros(()))


@filter_jit
def _updated(now: Descent, problem: FitProblem, errors: RowErrors) -> Descent:
    loss, gradient = jax.value_and_grad(search_loss)(now.parameters, problem, errors)
    updates, state = adam().update(gradient, now.state)
    return Descent(jnp.asarray(optax.apply_updates(now.parameters, updates)), state, loss)


def descend(problem: FitProblem, begun: Descent, n_steps: int) -> Descent:
    """Descent after `n_steps` further Adam steps."""
    now = begun
    for _ in range(n_steps):
        now = _updated(now, problem, errors_at(now.parameters, problem))
    return now


def search_starts(problem: FitProblem, starts: Float[Array, "start parameter"]) -> tuple[list[Array], Array]:
    """Adam search: `FIRST_STEPS` from every start, then `LAST_STEPS` from the best `FINALISTS`.

    Args:
        problem: the problem to fit.
        starts: standardised starting points [start, parameter].

    Returns:
        End points of the finalists [parameter], and the `search_loss` reached from each start [start].
    """
    problem = smoothed(problem, SHARP)  # shares the compiled program of the polish
    reached = [descend(problem, begin(jnp.asarray(start)), FIRST_STEPS) for start in np.asarray(starts)]
    losses = np.asarray([descent.loss for descent in reached])
    # A diverged start with a non-finite loss must never rank among the best.
    best = np.argsort(np.where(np.isfinite(losses), losses, np.inf))[:FINALISTS]
    last = [descend(problem, reached[index], LAST_STEPS) for index in best]
    losses[best] = [descent.loss for descent in last]
    return [descent.parameters for descent in last], jnp.asarray(losses)


def refine(problem: FitProblem, start: Float[Array, " parameter"]) -> Solution:
    """Levenberg-Marquardt minimisation from a point, on the smoothed, then on the (nearly) exact problem.

    For a problem close to a solved problem, no further search is needed.
    """
    # The pull of a prior alone is too weak for the solver.
    near = minimised(at_prior_without_runs(start, problem), smoothed(problem, TEMPERATURE), POLISHED)
    return minimised(near.parameters, smoothed(problem, SHARP), POLISHED)


def solve(
    problem: FitProblem,
    starts: Float[Array, "start parameter"],
    known: Sequence[Float[Array, " parameter"]] = (),
) -> Solution:
    """Optimum of a calibration problem, by searches from several starts.

    Args:
        problem: the problem to fit.
        starts: standardised starting points; the first is usually the prior's centre [start, parameter].
        known: optima of earlier fits of nearly equal problems [parameter]; the result is never worse than the
            fits.

    Returns:
        The optimum.
    """
    ends, losses = search_starts(problem, starts)
    # The points also count unchanged: a search could lose an optimum.
    earlier = [standing_at(problem, end) for end in known]
    best = settled(problem, _lowest([*(refine(problem, end) for end in (*ends, *known)), *earlier]))
    exposed = from_exposed(problem, best)
    # Settling is slow: only for a solution that is clearly ahead.
    ahead = exposed.loss < best.loss - SETTLED
    return (settled(problem, exposed) if ahead else best)._replace(start_losses=losses)


def from_exposed(problem: FitProblem, solution: Solution) -> Solution:
    """Solution from a start at which cost terms hidden by overlap become visible (have a gradient)."""
    # A term hidden behind a longer term has no gradient: no descent from the solution finds the term.
    exposed = solution.parameters + problem.parametrisation.towards_exposed
    return refine(problem, refine(problem, exposed).parameters)


def settled(problem: FitProblem, solution: Solution) -> Solution:
    """Solution after repeated minimisations, until `PATIENCE` successive minimisations make no progress."""
    best = last = solution
    idle = 0
    for _ in range(ROUNDS):
        # A path across a kink may first lead uphill.
        last = refine(problem, last.parameters)
        idle = 0 if last.loss < best.loss - SETTLED else idle + 1
        best = _lowest([best, last])
        if idle == PATIENCE:
            return best._replace(converged=jnp.asarray(True))
    return best


def _lowest(solutions: Sequence[Solution]) -> Solution:
    # A diverged solution never wins.
    return min(solutions, key=lambda solution: float(jnp.nan_to_num(solution.loss, nan=jnp.inf)))


def random_starts(key: PRNGKeyArray, n_starts: int, n_parameters: int) -> Array:
    """Starting points: the centre of the prior, and random points around the centre [start, parameter]."""
    # The first start is the centre of the prior.
    spread = START_SPREAD * jax.random.normal(key, (n_starts - 1, n_parameters))
    return jnp.concatenate([jnp.zeros((1, n_parameters)), spread])
