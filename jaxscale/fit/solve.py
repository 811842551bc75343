"""Minimisation: optax finds the valley from many starts, Levenberg-Marquardt of optimistix polishes the best."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import jax
import jax.numpy as jnp
import lineax as lx
import optax
import optimistix as optx
from jaxtyping import Array, Float, Int, PRNGKeyArray
from threadpoolctl import threadpool_limits

from jaxscale._compile import filter_jit
from jaxscale.fit.objective import Problem, residuals, search_loss, smoothed

TEMPERATURE = 0.005
"""Smoothing of the model's maxima on the way to the optimum [1].

Kinks of rows at a maximum stop a solver that only accepts descents; a smooth model lets it slide along them. The
exact model's optimum is close by, and the search ends there. Stages hold whole layers up to a pp of 64 at it.
"""

SHARP = 1e-7
"""Smoothing at which the search ends [1]: the exact model to far more digits than any measurement, by the same compiled
code as the smooth one."""

POLISH_STEPS = 12
"""Most Levenberg-Marquardt steps at each smoothing, and at each trial value of a profile [1]."""

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


class Solution(NamedTuple):
    """Outcome of a fit.

    Attributes:
        parameters: standardised parameters at the optimum [parameter].
        loss: negative log posterior there [1].
        start_losses: `search_loss` that each start reached, at the end or where it was given up [start].
        converged: whether the polish met its tolerance, or settled where polishing again is of no help.
        log_residuals: predicted minus measured logs of step time and memory, padding included [row, 2].
        jacobian: of the pseudo-residuals, by each parameter [row + memory row + parameter, parameter].
    """

    parameters: Float[Array, " parameter"]
    loss: Float[Array, ""]
    start_losses: Float[Array, " start"]
    converged: Array
    log_residuals: Float[Array, "row 2"]
    jacobian: Float[Array, "entry parameter"]


class Held(NamedTuple):
    """A parameter that a minimisation leaves where it is.

    Attributes:
        index: which; past the last one, none [1].
        value: where it is [1].
    """

    index: int
    value: float

    def put(self, parameters: Float[Array, " parameter"]) -> Array:
        """Parameters with the held one in its place [parameter]."""
        return parameters.at[self.index].set(self.value, mode="drop")


class Tolerance(NamedTuple):
    """Change of parameters and loss at which a minimisation ends.

    Attributes:
        relative: to what changes [1].
        absolute: in standard deviations of priors, and of the loss [1].
    """

    relative: float
    absolute: float


POLISHED, ANYWHERE = Tolerance(1e-5, 1e-3), Tolerance(0.0, math.inf)
"""Of a fit, where a thousandth of a prior's standard deviation is far below any interval; and met by any point."""


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Factorise matrices on one thread meanwhile: further ones wait for cores that XLA keeps busy.

    A fit takes a sixth longer on two cores with two.
    """
    import scipy.linalg  # noqa: F401  (XLA calls its LAPACK, which can be told only once it is loaded)

    with threadpool_limits(1, "blas"):
        yield


@filter_jit
def _minimised(start: Float[Array, " parameter"], problem: Problem, held: Held, tolerance: Tolerance) -> Solution:
    """Levenberg-Marquardt; all that asks for it shares this program, and nothing else takes as long to compile.

    Normal equations are quicker than a QR, and the priors keep them well conditioned.
    """

    def function(parameters: Array, problem: Problem) -> tuple[Array, Array]:
        return residuals(held.put(parameters), problem)

    solver = optx.LevenbergMarquardt(*tolerance, linear_solver=lx.Normal(lx.Cholesky()))
    found = optx.least_squares(function, solver, start, has_aux=True, args=problem, max_steps=POLISH_STEPS, throw=False)
    # `found.aux` is of the step before; the state has what belongs to `found.value`.
    end, log_residuals = found.state.f_info, found.state.aux
    value = 0.5 * jnp.sum(end.residual**2)
    converged = found.result == optx.RESULTS.successful
    return Solution(held.put(found.value), value, value[None], converged, log_residuals, end.jac.as_matrix())


def minimised(
    start: Float[Array, " parameter"], problem: Problem, tolerance: Tolerance, held: Held | None = None
) -> Solution:
    """Levenberg-Marquardt from one start, which only accepts descents.

    Args:
        start: where it begins [parameter].
        problem: what to fit; smoothed, as all problems that share the compiled program are.
        tolerance: near enough to the optimum.
        held: a parameter that stays where it is; None where all move.

    Returns:
        Where it ends.
    """
    nothing = Held(len(start), 0.0)
    return _minimised(start, problem, *jax.tree.map(jnp.asarray, (held or nothing, tolerance)))


def standing_at(problem: Problem, parameters: Float[Array, " parameter"]) -> Solution:
    """A point as a solution, as it is: everything is near enough, so the solver's first evaluation is its last."""
    return minimised(parameters, smoothed(problem, SHARP), ANYWHERE)._replace(converged=jnp.asarray(False))


def at_prior_without_runs(parameters: Float[Array, " parameter"], problem: Problem) -> Array:
    """Parameters with the effects of levels that no counted run has at their prior's centre [parameter].

    That is their optimum. Where runs are left out of a solved problem, what these said of their own levels would
    otherwise linger: their pull is gone, and a prior alone pulls too weakly for the solver to go all the way.
    """
    has_runs = (problem.weight @ problem.members) > 0.0
    n = parameters.shape[0] - has_runs.shape[0]
    return parameters.at[n:].multiply(has_runs)


class Descent(NamedTuple):
    """Some starts on their way downhill, side by side.

    Attributes:
        parameters: where each is [start, parameter].
        state: of the optimiser [start].
        losses: of each one step before [start].
    """

    parameters: Float[Array, "start parameter"]
    state: optax.OptState
    losses: Float[Array, " start"]


def adam() -> optax.GradientTransformation:
    """The optimiser of the search."""
    return optax.adam(optax.cosine_decay_schedule(0.1, FIRST_STEPS + LAST_STEPS), b2=0.99)


def begin(starts: Float[Array, "start parameter"]) -> Descent:
    """Descents that have yet to move."""
    return Descent(starts, jax.vmap(adam().init)(starts), jnp.zeros(len(starts)))


@filter_jit
def descend(problem: Problem, begun: Descent, n_steps: Int[Array, ""]) -> Descent:
    """Steps of Adam from where some starts are."""

    def update(_: Array, now: Descent) -> Descent:
        losses, gradients = jax.lax.map(lambda at: jax.value_and_grad(search_loss)(at, problem), now.parameters)
        updates, state = jax.vmap(adam().update)(gradients, now.state)
        return Descent(jnp.asarray(optax.apply_updates(now.parameters, updates)), state, losses)

    return jax.lax.fori_loop(0, n_steps, update, begun)


def search(problem: Problem, starts: Float[Array, "start parameter"]) -> tuple[Array, Array]:
    """Adam from every start, a few steps; then from where the best few are, many.

    As many starts as there are finalists go at a time, so that one compiled descent serves any number of starts.

    Args:
        problem: what to fit.
        starts: standardised starting points [start, parameter].

    Returns:
        Where the best few end [finalist, parameter], and the `search_loss` that each start reached [start].
    """
    n = len(starts)
    filled = starts[jnp.minimum(jnp.arange(-(-n // FINALISTS) * FINALISTS), n - 1)]
    blocks = [begin(block) for block in jnp.split(filled, len(filled) // FINALISTS)]
    reached = [descend(problem, block, jnp.asarray(FIRST_STEPS)) for block in blocks]
    everyone = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *reached)
    # A start that ran off into non-finite ground must never count as one of the best; nor does one count twice.
    usable = jnp.isfinite(everyone.losses) & (jnp.arange(len(filled)) < n)
    best = jnp.argsort(jnp.where(usable, everyone.losses, jnp.inf))[:FINALISTS]
    last = descend(problem, jax.tree.map(lambda leaf: leaf[best], everyone), jnp.asarray(LAST_STEPS))
    return last.parameters[:n], everyone.losses.at[best].set(last.losses)[:n]


def refine(problem: Problem, start: Float[Array, " parameter"]) -> Solution:
    """Polish one point: the fit itself, and enough on its own for a problem that differs little from a solved one."""
    near = minimised(at_prior_without_runs(start, problem), smoothed(problem, TEMPERATURE), POLISHED)
    return minimised(near.parameters, smoothed(problem, SHARP), POLISHED)


def solve(
    problem: Problem,
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
    ends, losses = search(problem, starts)
    earlier = [standing_at(problem, end) for end in known]
    best = settled(problem, _lowest([*(refine(problem, end) for end in (*ends, *known)), *earlier]))
    exposed = from_exposed(problem, best)
    # Settling takes long: only what is clearly ahead is worth it.
    ahead = exposed.loss < best.loss - SETTLED
    return (settled(problem, exposed) if ahead else best)._replace(start_losses=losses)


def from_exposed(problem: Problem, solution: Solution) -> Solution:
    """Where a solution goes when its hidden terms are made to show.

    What hides behind something longer, such as the host's pace behind the chip's, has no gradient: no descent finds it
    from there, and other coefficients have taken its place. From where it shows, one does.
    """
    exposed = solution.parameters + problem.parametrisation.towards_exposed
    return refine(problem, refine(problem, exposed).parameters)


def settled(problem: Problem, solution: Solution) -> Solution:
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
