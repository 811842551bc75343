r"""Mode of a mixed-effects model: coefficients by level as pooled values plus shrunk effects.

The logarithm of a row's coefficient is $\mu_c + \sum_k u_{k, l_k(row), c}$ over kinds k of levels, with
$u \sim N(0, \tau_{k c}^2)$. Errors of logarithms follow a Student distribution with a scale for each class of
measurement. The mode is found by damped Gauss-Newton steps on normal equations (sparse, since a row has a single effect
of each kind), spreads $\tau$ and scales by expectation maximisation between the steps.
References: Schall 1991, doi 10.1093/biomet/78.4.719 (spreads); Lange et al. 1989, doi 10.2307/2290063 (Student errors).
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import scipy.linalg as sl
import scipy.sparse as sp
from jaxtyping import Bool, Float, Int

from jaxscale.fitting.statistics.student import student_loss, student_scale, student_weight

FIRM = 40.0
"""Weight of the prior spread of an effect, as a number of levels [1]."""

LEAST_SPREAD, MOST_SPREAD = 0.005, 1.5
"""Bounds of the spread of an effect [1]."""

LEAST_NOISE, MOST_NOISE = 0.02, 0.6
"""Bounds of the scale of an error [1]."""

LEAST_ERRORS = 6
"""Minimum number of errors of a class for an estimate of their scale [1]."""

LONGEST = 1.0
"""Maximum change of any log coefficient in a step [1]."""

SETTLED_BY = 0.3
"""Fall of the objective in a step below which the search ends [1]."""

Evaluate = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""From log coefficients [row, coefficient] to the log prediction of each measurement and its slopes [measurement,
coefficient]."""


@dataclass(frozen=True)
class Block:
    """Effects of the levels of a factor on a coefficient.

    Attributes:
        kind: factor of the levels; `centre` for the pooled value.
        coefficient: index of the coefficient [1].
        codes: level of each row, -1 for none [row].
        levels: names of the levels.
        spread: prior standard deviation of an effect [1].
        is_free: whether the spread is estimated.
        is_heavy: whether effects have a Student instead of a normal distribution, so that a level far from the rest is
            not pulled to the centre.
    """

    kind: str
    coefficient: int
    codes: Int[np.ndarray, " row"]
    levels: tuple[str, ...]
    spread: float
    is_free: bool = True
    is_heavy: bool = False


@dataclass(frozen=True)
class MixedProblem:
    """Mixed-effects problem: measurements, model and effects of levels.

    Attributes:
        evaluate: function from log coefficients [row, coefficient] to log predictions of the measurements [measurement]
            and derivatives by the log coefficients [measurement, coefficient].
        base: log coefficients of each row without effects [row, coefficient].
        row: row of each measurement [measurement].
        log_measured: logarithm of each measurement [measurement].
        classes: class of error of each measurement [measurement].
        blocks: effects, the pooled values among them.
        is_fitted: whether a measurement counts in the fit; one that follows from others is predicted alone
            [measurement].
    """

    evaluate: Evaluate
    base: Float[np.ndarray, "row coefficient"]
    row: Int[np.ndarray, " measurement"]
    log_measured: Float[np.ndarray, " measurement"]
    classes: Int[np.ndarray, " measurement"]
    blocks: tuple[Block, ...]
    is_fitted: Bool[np.ndarray, " measurement"] | bool = True
    offsets: np.ndarray = field(init=False)
    columns: np.ndarray = field(init=False)
    coefficients: np.ndarray = field(init=False)
    block_of: np.ndarray = field(init=False)
    is_heavy: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        """Compute the position of each effect in the vector of all effects."""
        sizes = np.asarray([len(block.levels) for block in self.blocks])
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        # Code -1 points at the zero behind the effects.
        columns = [np.where(b.codes < 0, -1, o + b.codes) for b, o in zip(self.blocks, offsets[:-1], strict=True)]
        object.__setattr__(self, "offsets", offsets)
        object.__setattr__(self, "columns", np.stack(columns, axis=1))
        object.__setattr__(self, "coefficients", np.asarray([block.coefficient for block in self.blocks]))
        object.__setattr__(self, "block_of", np.repeat(np.arange(len(self.blocks)), sizes))
        object.__setattr__(self, "is_heavy", np.repeat([block.is_heavy for block in self.blocks], sizes))

    @property
    def n_effects(self) -> int:
        """Number of effects [1]."""
        return int(self.offsets[-1])

    def weights(self, is_counted: Bool[np.ndarray, " row"]) -> np.ndarray:
        """1 for fitted measurements of counted rows, else 0 [measurement]."""
        return (is_counted[self.row] & self.is_fitted).astype(float)

    def logs(self, effects: Float[np.ndarray, " effect"]) -> np.ndarray:
        """Log coefficients of every row [row, coefficient]."""
        # A zero for rows without a level.
        padded, logs = np.append(effects, 0.0), self.base.copy()
        for column, coefficient in zip(self.columns.T, self.coefficients, strict=True):
            logs[:, coefficient] += padded[column]
        return logs

    def without_levels_of(self, effects: np.ndarray, is_kept: np.ndarray) -> np.ndarray:
        """Effects with zero for levels that occur in no kept row [effect]."""
        kept = np.zeros(self.n_effects + 1, dtype=bool)
        kept[self.columns[is_kept].ravel()] = True
        return effects * kept[:-1]


@dataclass(frozen=True)
class MixedSolution:
    """Mode of a mixed-effects problem.

    Attributes:
        effects: all effects, pooled values included [effect].
        spreads: standard deviation of the effects of each block [block].
        noise: scale of the errors of each class [class].
        log_errors: log predicted minus log measured [measurement].
    """

    effects: np.ndarray
    spreads: np.ndarray
    noise: np.ndarray
    log_errors: np.ndarray


def solve_mixed(
    problem: MixedProblem,
    is_counted: np.ndarray,
    start: MixedSolution | None = None,
    *,
    steps: int = 24,
    learns_spreads: bool = True,
) -> MixedSolution:
    """Mode of the effects given the counted rows, by damped Gauss-Newton steps.

    Args:
        problem: measurements and effects.
        is_counted: whether a row is fitted [row].
        start: starting point of the search, with spreads and noise, which are fixed if `learns_spreads` is false.
        steps: largest number of Gauss-Newton steps [1].
        learns_spreads: whether to estimate spreads and noise.

    Returns:
        The mode, with prediction errors for rows not counted.
    """
    counts = problem.weights(is_counted)
    n_classes = int(problem.classes.max()) + 1
    effects = np.zeros(problem.n_effects) if start is None else start.effects.copy()
    prior = np.asarray([block.spread for block in problem.blocks])
    spreads = prior if start is None else start.spreads
    noise = np.full(n_classes, 0.15) if start is None else start.noise
    last_change = 0
    for step in range(steps):
        values, slopes = problem.evaluate(problem.logs(effects))
        errors = values - problem.log_measured
        state = _State(problem, counts, spreads, noise)
        matrix, gradient = state.normal_equations(effects, errors, slopes)
        change, fall = state.step(effects, errors, matrix, gradient)
        effects = effects + change
        # Spreads and scales every third step, and none in the last steps.
        if learns_spreads and step % 3 == 2 and step < steps - 3:
            spreads = _spreads(problem, effects, spreads, matrix, prior)
            noise = _noise(problem, effects, counts, noise)
            last_change = step
        elif fall < SETTLED_BY and (not learns_spreads or step - last_change > 3):
            break
    errors = problem.evaluate(problem.logs(effects))[0] - problem.log_measured
    return MixedSolution(effects, spreads, noise, errors)


def effect_covariance(problem: MixedProblem, solution: MixedSolution, is_counted: np.ndarray) -> np.ndarray:
    """Posterior covariance of the effects at the mode: inverse of the normal equations [effect, effect].

    Args:
        problem: measurements and effects.
        solution: mode of the problem.
        is_counted: whether a row is fitted [row].

    Returns:
        Covariance; without measurements, the prior variances on the diagonal [1].
    """
    values, slopes = problem.evaluate(problem.logs(solution.effects))
    state = _State(problem, problem.weights(is_counted), solution.spreads, solution.noise)
    matrix, _ = state.normal_equations(solution.effects, values - problem.log_measured, slopes)
    return sl.inv(matrix, check_finite=False)


@dataclass(frozen=True)
class _State:
    """Problem at given spreads and scales."""

    problem: MixedProblem
    counts: np.ndarray
    spreads: np.ndarray
    noise: np.ndarray

    def precision(self, effects: np.ndarray) -> np.ndarray:
        spreads = self.spreads[self.problem.block_of]
        # Weight of a Student effect over the variance.
        return _weights_of_effects(self.problem, effects, self.spreads) / spreads**2

    def objective(self, effects: np.ndarray, errors: np.ndarray) -> float:
        scaled = errors / self.noise[self.problem.classes]
        fit = self.counts * np.asarray(student_loss(scaled))
        standard = effects / self.spreads[self.problem.block_of]
        penalty = np.where(self.problem.is_heavy, np.asarray(student_loss(standard)), 0.5 * standard**2)
        return float(fit.sum() + penalty.sum())

    def normal_equations(
        self, effects: np.ndarray, errors: np.ndarray, slopes: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Matrix and gradient of a Gauss-Newton step."""
        problem, scale = self.problem, self.noise[self.problem.classes]
        # Weighted least squares of Student's t.
        weights = self.counts * np.asarray(student_weight(errors / scale)) / scale**2
        columns = problem.columns[problem.row]
        # Square roots of weights: the product below has the weights.
        entries = slopes[:, problem.coefficients] * np.sqrt(weights)[:, None]
        # Rows without a level, or without weight, have no entry.
        is_there = (columns >= 0) & (weights > 0.0)[:, None]
        rows = np.broadcast_to(np.arange(len(columns))[:, None], columns.shape)
        # (values, (rows, columns)) of the sparse matrix.
        place = (entries[is_there], (rows[is_there], columns[is_there]))
        sparse = sp.csr_matrix(place, shape=(len(columns), problem.n_effects))
        # Few effects: the normal equations are dense.
        matrix = (sparse.T @ sparse).toarray()
        precision = self.precision(effects)
        matrix[np.diag_indices(problem.n_effects)] += precision
        return matrix, sparse.T @ (np.sqrt(weights) * errors) + precision * effects

    def step(
        self, effects: np.ndarray, errors: np.ndarray, matrix: np.ndarray, gradient: np.ndarray
    ) -> tuple[np.ndarray, float]:
        """Change of the effects that lowers the objective, and the fall [1]; zero where no step length lowers it."""
        problem = self.problem
        change = -sl.cho_solve(sl.cho_factor(matrix, check_finite=False), gradient, check_finite=False)
        moved = np.abs(problem.logs(change) - problem.base).max()
        # No log coefficient moves by more than LONGEST.
        change /= max(1.0, moved / LONGEST)
        before = self.objective(effects, errors)
        # Step lengths of the line search.
        for length in (1.0, 0.5, 0.25, 0.1, 0.02):
            values = problem.evaluate(problem.logs(effects + length * change))[0]
            after = self.objective(effects + length * change, values - problem.log_measured)
            if after < before:
                return length * change, before - after
        return np.zeros_like(change), 0.0


def _weights_of_effects(problem: MixedProblem, effects: np.ndarray, spreads: np.ndarray) -> np.ndarray:
    """Weights of effects in least squares: 1 for normal effects [effect]."""
    return np.where(problem.is_heavy, np.asarray(student_weight(effects / spreads[problem.block_of])), 1.0)


def _spreads(
    problem: MixedProblem, effects: np.ndarray, spreads: np.ndarray, matrix: np.ndarray, prior: np.ndarray
) -> np.ndarray:
    """Spread of each block: mean square of its effects plus their posterior variance, shrunk to the prior [block]."""
    variance = np.diag(sl.inv(matrix, check_finite=False))
    # Expectation of the square: mode squared plus posterior variance.
    squares = _weights_of_effects(problem, effects, spreads) * effects**2 + variance
    squares = np.bincount(problem.block_of, squares, minlength=len(problem.blocks))
    sizes = np.diff(problem.offsets)
    # The prior counts as FIRM levels.
    spreads = np.sqrt((FIRM * prior**2 + squares) / (FIRM + sizes))
    is_free = np.asarray([block.is_free for block in problem.blocks])
    return np.where(is_free, np.clip(spreads, LEAST_SPREAD, MOST_SPREAD), prior)


def _noise(problem: MixedProblem, effects: np.ndarray, counts: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Scale of the Student distribution of the errors of each class [class]."""
    errors = problem.evaluate(problem.logs(effects))[0] - problem.log_measured
    scales = noise.copy()
    for code in range(len(noise)):
        those = errors[(problem.classes == code) & (counts > 0.0)]
        if len(those) >= LEAST_ERRORS:
            scales[code] = student_scale(those, scales[code], (LEAST_NOISE, MOST_NOISE))
    return scales
