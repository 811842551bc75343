r"""Search for the coefficients of a law of the loss: covariates, resampled rows, objective, and minimum.

Resampling of rows alone would treat the prior as certain; with the prior mean resampled as well, the draws have
the spread of the posterior of a linear law (randomised maximum a posteriori; Bardsley et al. 2014).

With residuals $r = \ln L_\mathrm{measured} - \ln L_\mathrm{law}$ and weights w the objective is one of

- Student-t, of $\nu$ degrees of freedom and free scale $\sigma$:
  $\sum w \left[\tfrac{\nu + 1}{2} \ln(1 + r^2 / \nu \sigma^2) + \ln \sigma\right]$, and
- Huber, of a fixed $\delta$: $\tfrac{1}{\delta} \sum w\, h_\delta(r)$ (Hoffmann et al. 2022, appendix D.2),

each plus $\tfrac12 \sum p\, (q - m)^2$ over the traits q of the law (`loss_forms.traits`), with prior means m and
precisions p.

Variable projection (Golub and Pereyra 1973): at given exponents and a given balance of the two terms the law is linear
in E and in the size of the reducible loss, which have a closed form. A grid over the remaining four numbers covers
every basin.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
from jaxtyping import Array, ArrayLike, Float, Int

from jaxscale.base.errors import InputError
from jaxscale.base.jit import filter_jit, small_jit
from jaxscale.fitting.statistics.student import student_loss
from jaxscale.laws.loss_forms import (
    BASE,
    START_OF,
    Covariates,
    Form,
    PerRow,
    centred,
    log_loss_with,
    number_names,
    traits,
)
from jaxscale.laws.loss_reader import Losses

SMALLEST_BUCKET = 64
"""Rows of the smallest bucket; bucket sizes double, so that few sizes are compiled [1]."""


def bucket_rows(count: int) -> np.ndarray:
    """Row indices of a table, padded to a power of two by repetition of the last row [row]."""
    size = max(SMALLEST_BUCKET, 1 << (count - 1).bit_length())
    return np.minimum(np.arange(size), count - 1)


def covariates_of(table: Losses, rows: np.ndarray) -> Covariates:
    """Covariates of the given rows of a table; an absent column has values without effect on the loss [row]."""
    log_params, log_tokens = np.log(table.n_params), np.log(table.tokens)

    def logarithm(values: np.ndarray, plain: np.ndarray | float) -> np.ndarray:
        # Neutral value of a term: no effect on the loss.
        return np.log(np.where(np.isnan(values), plain, values))[rows]

    with np.errstate(divide="ignore"):
        aspect = table.number("d_model") / table.number("n_layers")
        return Covariates(
            log_params=log_params[rows],
            log_tokens=log_tokens[rows],
            middle=np.asarray([log_params.mean(), log_tokens.mean()]),
            log_aspect=logarithm(aspect, 1.0),
            log_batch=logarithm(table.number("batch_tokens"), 1.0),
            log_unique=logarithm(table.number("epochs_unique_tokens"), table.tokens),
            log_experts=logarithm(table.number("n_experts"), 1.0),
        )


FEWEST_SHAPES = 12
"""Least number of shapes for resampling by shape; fewer shapes determine no spread between shapes [1]."""


def cluster_ids(table: Losses, cluster: str | None = "auto") -> Int[np.ndarray, " row"]:
    """Cluster of each row, an index; rows of a cluster are resampled together [row].

    Args:
        cluster: a column with equal cells for rows of a cluster; None for single rows; `auto` for shapes if rows share
            many shapes, else runs (with common noise of all checkpoints), else rows.

    Raises:
        InputError: the column is absent.
    """
    rows = np.arange(len(table))
    if cluster is None or cluster == "rows":
        return rows
    if cluster != "auto":
        if cluster not in table.cells:
            raise InputError(f"cluster {cluster!r} is not a column of {table.name}; expected auto, rows or a column")
        return np.unique(table.cells[cluster].map(str.strip).array().astype(str), return_inverse=True)[1]
    shapes = np.stack([table.number("n_layers"), table.number("d_model")], axis=1)
    if np.isfinite(shapes).all():
        distinct, of_row = np.unique(shapes, axis=0, return_inverse=True)
        if FEWEST_SHAPES <= len(distinct) < len(table):
            return of_row.reshape(-1)
    if (table.text("run") != "").all():
        return np.unique(table.text("run").astype(str), return_inverse=True)[1]
    return _runs(table)


def _runs(table: Losses) -> Int[np.ndarray, " row"]:
    """Run of each row: checkpoints before the end of a schedule share size, rate and batch; further rows are single."""
    keys = [
        table.n_params,
        *(np.nan_to_num(table.number(name)) for name in ("n_layers", "d_model", "lr", "batch_tokens")),
    ]
    of_run = np.unique(np.stack(keys, axis=1), axis=0, return_inverse=True)[1].reshape(-1)
    is_checkpoint = table.number("final") == 0.0
    # Finished runs get indices beyond the indices of runs with checkpoints.
    alone = len(table) + np.arange(len(table))
    return np.unique(np.where(is_checkpoint, of_run, alone), return_inverse=True)[1]


def drawn_weights(
    clusters: Int[np.ndarray, " row"], n_draws: int, generator: np.random.Generator
) -> Float[np.ndarray, "draw row"]:
    """Bootstrap weights: multiplicity of each row in draws of clusters with replacement [draw, row]."""
    count = int(clusters.max()) + 1
    # Bootstrap: clusters are drawn with replacement.
    often = generator.multinomial(count, np.full(count, 1.0 / count), size=n_draws)
    return often[:, clusters].astype(float)


if TYPE_CHECKING:
    Square = Numbers = Scalar = Any
else:
    Square = Float[ArrayLike, "number number"]
    """A number for each pair of numbers of the law."""

    Numbers = Float[ArrayLike, " _"]
    """A number for each number, or trait, of the law."""

    Scalar = Float[ArrayLike, ""]
    """One number."""

HUBER_DELTA = 1e-3
"""Residual of the log loss above which the penalty is linear (Hoffmann et al. 2022, appendix D.2) [1]."""

STUDENT_DEGREES = 4.0
"""Degrees of freedom of the Student-t likelihood: normal near zero, a power law far out (Lange et al. 1989) [1]."""

LEAST_SCALE = 1e-5
"""Least noise scale, which keeps the likelihood of an exact fit bounded [1]."""


class LossProblem(NamedTuple):
    """Inputs of the fit of a law to a table; every leaf is an array.

    Attributes:
        covariates: covariates of the rows.
        log_loss: logarithm of the measured loss [row].
        weights: weights of the rows; 0 for padding [row].
        matrix: matrix M of the form of the law [number, number].
        offset: offset c of the form of the law [number].
        prior_mean: prior mean of the traits and of the coefficients of the terms [trait].
        prior_precision: inverse prior variance; 0 without a prior [trait].
        is_huber: 1 for Huber's objective, 0 for Student's.
    """

    covariates: Covariates
    log_loss: PerRow
    weights: PerRow
    matrix: Square
    offset: Numbers
    prior_mean: Numbers
    prior_precision: Numbers
    is_huber: Scalar


def numbers_of(free: Float[Array, " number"], problem: LossProblem) -> Array:
    """Log coefficients of the law at N = D = 1, from the free coefficients in the middle of the table [number]."""
    inside = problem.matrix @ free + problem.offset
    first, second = problem.covariates.middle
    return centred(inside, first, second, 1.0)


def huber_loss(residual: Float[Array, "*row"]) -> Array:
    """Huber loss of a residual, quadratic up to `HUBER_DELTA` and linear beyond [1]."""
    size = jnp.abs(residual)
    return jnp.where(size < HUBER_DELTA, 0.5 * size**2, HUBER_DELTA * (size - 0.5 * HUBER_DELTA))


def loss_residuals(free: Float[Array, " number"], problem: LossProblem, terms: tuple[str, ...]) -> Array:
    """Measured minus predicted log loss of each row [1], [row]."""
    return problem.log_loss - log_loss_with(numbers_of(free, problem), problem.covariates, terms)


def objective(point: Float[Array, " coordinate"], problem: LossProblem, terms: tuple[str, ...]) -> Array:
    """Objective of the fit at a point: negative log posterior up to a constant [1].

    Args:
        point: free logarithms of the coefficients, and ln sigma last [1].
        problem: table, form and priors.
    """
    free, log_scale = point[:-1], point[-1]
    miss = loss_residuals(free, problem, terms)
    # sigma^2 plus the square of the least scale: bounded for an exact fit.
    floored = jnp.logaddexp(2.0 * log_scale, 2.0 * jnp.log(LEAST_SCALE))
    student = student_loss(miss * jnp.exp(-0.5 * floored), STUDENT_DEGREES) + 0.5 * floored
    # Huber's objective has no scale: a weak pull keeps ln sigma in place.
    huber = huber_loss(miss) / HUBER_DELTA + 0.5 * log_scale**2 / miss.size
    data = jnp.sum(problem.weights * jnp.where(problem.is_huber > 0.5, huber, student))
    distance = traits(numbers_of(free, problem)) - problem.prior_mean
    return data + 0.5 * jnp.sum(problem.prior_precision * distance**2)


if TYPE_CHECKING:
    # Static checkers do not accept numpy arrays as JAX arrays.
    AnyArray = Any
else:
    AnyArray = Array | np.ndarray

LANES = 20
"""Concurrent searches: starts of one table or draws of its rows, so that both share one program [1]."""

MAX_STEPS = 500
"""Largest number of BFGS steps; the median search takes 60 [1]."""

TOLERANCE = 1e-8
"""Changes of coordinates and of the objective at which a search ends [1]."""

BLOCK = 64
"""Grid points evaluated at a time, which bounds memory [1]."""

N_POINTS = 2304
"""Grid points of every form, equal so that all forms share one program [1]."""

GRID = {
    "joint": (np.geomspace(0.06, 1.2, 8), np.geomspace(0.06, 1.2, 8), (0.3, 0.5, 0.75, 1.0), 9),
    "additive": (np.geomspace(0.04, 1.5, 14), np.geomspace(0.04, 1.5, 14), (1.0,), 11),
    "tied": (np.geomspace(0.02, 2.0, 64), None, (1.0,), 33),
    "kaplan": (np.geomspace(0.02, 1.2, 20), np.geomspace(0.02, 1.2, 20), None, 5),
}
"""Exponents a and b (None: equal to a), joint exponents k (None: equal to b), and number of balances."""

BALANCE = 3.0
"""Largest balance of the grid: ln of the first over the second term in the middle of the table [1]."""


def grid_points(form: str) -> Float[np.ndarray, "point 4"]:
    """Grid of starting points of a form (ln a, ln b, ln k, balance), padded to `N_POINTS` with the last point."""
    first, second, joint, n_balances = GRID[form]
    axes = (first, [np.nan] if second is None else second, [np.nan] if joint is None else joint)
    a, b, k, balance = np.meshgrid(*axes, np.linspace(-BALANCE, BALANCE, n_balances), indexing="ij")
    b = np.where(np.isnan(b), a, b)
    k = np.where(np.isnan(k), b, k)
    points = np.stack([np.log(a), np.log(b), np.log(k), balance], axis=-1).reshape(-1, 4)
    return points[np.minimum(np.arange(N_POINTS), len(points) - 1)]


def regions_of(points: Float[np.ndarray, "point 4"]) -> np.ndarray:
    """Region of each grid point, by ratio of exponents and balance; regions have equal numbers of points [point]."""
    order = np.lexsort((points[:, 3], points[:, 0] - points[:, 1]))
    regions = np.empty(len(points), dtype=int)
    # Regions of equal numbers of points.
    regions[order] = np.arange(len(points)) * LANES // len(points)
    return regions


def _projected(point: Array, problem: LossProblem, has_floor: Array) -> tuple[Array, Array]:
    """Sum of squared residuals and logarithms of the six numbers at a grid point, with the linear numbers solved."""
    log_a, log_b, log_k, balance = point
    runs, k = problem.covariates, jnp.exp(log_k)
    # ln of the terms in the middle of the table: half the balance above and below the mean.
    by_params = 0.5 * balance - jnp.exp(log_a) * (runs.log_params - runs.middle[0])
    by_tokens = -0.5 * balance - jnp.exp(log_b) * (runs.log_tokens - runs.middle[1])
    # Residuals are relative to the loss, as in the logarithm: each column is divided by the measured loss.
    shape = jnp.exp(k * jnp.logaddexp(by_params / k, by_tokens / k) - problem.log_loss)
    inverse = jnp.exp(-problem.log_loss)
    w = problem.weights
    gg, gh, hh = jnp.sum(w * shape**2), jnp.sum(w * shape * inverse), jnp.sum(w * inverse**2)
    g1, h1 = jnp.sum(w * shape), jnp.sum(w * inverse)
    # The lower bound of the determinant avoids 0 / 0 for parallel columns.
    floor = jnp.clip((h1 * gg - g1 * gh) / jnp.maximum(hh * gg - gh**2, 1e-300), 0.0) * has_floor
    # Normal equations of floor / L + height shape / L = 1.
    height = (g1 - floor * gh) / gg
    # If the joint solution has a negative reducible loss, the size is solved without an irreducible loss.
    floor, height = jnp.where(height > 0.0, floor, 0.0), jnp.where(height > 0.0, height, g1 / gg)
    squares = jnp.sum(w * (floor * inverse + height * shape - 1.0) ** 2)
    size, least = jnp.log(height), jnp.log(0.01) - jnp.log(jnp.max(inverse))  # a floor of zero has no logarithm
    log_floor = jnp.where(floor > 0.0, jnp.log(jnp.where(floor > 0.0, floor, 1.0)), least)
    numbers = [jnp.maximum(log_floor, least), size + 0.5 * balance, size - 0.5 * balance, log_a, log_b, log_k]
    return squares, jnp.stack(numbers)


@small_jit
def _grid_starts(points: AnyArray, regions: AnyArray, problem: LossProblem, has_floor: AnyArray) -> Array:
    """Logarithms of the six numbers at the best point of each region of the grid [region, number]."""
    blocks = points.reshape(-1, BLOCK, 4)
    squares, numbers = jax.lax.map(lambda block: jax.vmap(lambda p: _projected(p, problem, has_floor))(block), blocks)
    squares, numbers = squares.reshape(-1), numbers.reshape(-1, len(BASE))
    by_region = jnp.where(regions[None, :] == jnp.arange(LANES)[:, None], squares[None, :], jnp.inf)
    return numbers[jnp.argmin(jnp.where(jnp.isnan(by_region), jnp.inf, by_region), axis=1)]


@filter_jit
def _search(
    starts: AnyArray, problem: LossProblem, weights: AnyArray, prior_means: AnyArray, terms: tuple[str, ...]
) -> tuple[Array, Array]:
    """Optimum and objective of searches with different starts, row weights and prior means [search]."""

    def one(start: Array, weight: Array, prior_mean: Array) -> tuple[Array, Array]:
        varied = problem._replace(weights=weight, prior_mean=prior_mean)
        # A search at the step limit returns the best point so far instead of an error.
        done = optx.minimise(
            lambda point, args: objective(point, args, terms),
            optx.BestSoFarMinimiser(optx.BFGS(rtol=TOLERANCE, atol=TOLERANCE)),
            start,
            args=varied,
            max_steps=MAX_STEPS,
            throw=False,
        )
        return done.value, objective(done.value, varied, terms)

    return jax.vmap(one)(starts, weights, prior_means)


@small_jit
def _first_scales(starts: AnyArray, problem: LossProblem, terms: tuple[str, ...]) -> Array:
    """Logarithm of the noise scale at each start, from the root mean square of the residuals [start]."""

    def one(free: Array) -> Array:
        miss = loss_residuals(free, problem, terms)
        mean = jnp.sum(problem.weights * miss**2) / jnp.sum(problem.weights)
        # The added number keeps the logarithm finite for an exact start.
        return jnp.where(problem.is_huber > 0.5, 0.0, 0.5 * jnp.log(mean + 1e-12))

    return jax.vmap(one)(starts)


def starts_of(form: Form, problem: LossProblem, terms: tuple[str, ...]) -> Float[np.ndarray, "lane coordinate"]:
    """Starting points of the searches: the best grid point of each region."""
    points = grid_points(form.name)
    has_floor = np.asarray(0.0 if form.name == "kaplan" else 1.0)
    base = np.asarray(_grid_starts(points, regions_of(points), problem, has_floor))
    extra = [START_OF[name] for name in number_names(terms)[len(BASE) :]]
    free = np.concatenate([base, np.tile(np.asarray(extra, float), (LANES, 1))], axis=1)
    # Fixed numbers come from the offset of the form.
    free = np.where(form.is_free, free, 0.0)
    return np.concatenate([free, np.asarray(_first_scales(free, problem, terms))[:, None]], axis=1)


def optimum_of(form: Form, problem: LossProblem, terms: tuple[str, ...]) -> tuple[np.ndarray, float]:
    """Best point over the searches from all starts, and the value of the objective."""
    starts = starts_of(form, problem, terms)
    points, values = searches(starts, problem, terms=terms)
    # A diverged search ends in nan.
    best = int(np.nanargmin(values))
    return points[best], float(values[best])


def searches(
    starts: Float[np.ndarray, "search coordinate"],
    problem: LossProblem,
    weights: Float[np.ndarray, "search row"] | None = None,
    prior_means: Float[np.ndarray, "search trait"] | None = None,
    terms: tuple[str, ...] = (),
) -> tuple[np.ndarray, np.ndarray]:
    """End points and objectives of many searches, `LANES` at a time.

    Args:
        problem: table, form and priors.
        weights: row weights of each search; by default the weights of the problem.
        prior_means: prior means of each search; by default the means of the problem.

    Returns:
        Points [search, coordinate] and objectives [search].
    """
    count = len(starts)
    # Searches are padded to whole blocks, for a single program.
    rows = np.minimum(np.arange(-(-count // LANES) * LANES), count - 1)
    weights = np.broadcast_to(problem.weights, (count, len(problem.weights))) if weights is None else weights
    means = np.broadcast_to(problem.prior_mean, (count, len(problem.prior_mean)))
    means = means if prior_means is None else prior_means
    points, values = [], []
    for block in rows.reshape(-1, LANES):
        optima, value = _search(starts[block], problem, np.asarray(weights[block]), np.asarray(means[block]), terms)
        points.append(np.asarray(optima))
        values.append(np.asarray(value))
    return np.concatenate(points)[:count], np.concatenate(values)[:count]
