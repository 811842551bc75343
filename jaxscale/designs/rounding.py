"""Rounding of relaxed optima to an integer design: all plans of the planner, then a lattice of nearby sizes."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from jaxscale.base.arrays import stacked
from jaxscale.base.errors import InputError
from jaxscale.base.jit import filter_jit
from jaxscale.costs.evaluate import evaluate_runs
from jaxscale.costs.power import mean_chip_power
from jaxscale.costs.step import TERM_NAMES, StepTime
from jaxscale.designs.integer_designs import (
    FEW,
    MANY,
    SIZES,
    IntegerSpace,
    Rows,
    around,
    best_of_kinds,
    built,
    plans_of_sizes,
    row_of,
    sizes_near,
)
from jaxscale.designs.quantities import HIGHEST, LOWEST, QUANTITIES, Costs, Design, DesignProblem, costs, quantities
from jaxscale.models.transformer import Transformer
from jaxscale.optimise.problems import Goals, LeafLayout, in_blocks, leaf_matrix
from jaxscale.plans.plan import Plan
from jaxscale.plans.relaxed_search import TEMPERATURE
from jaxscale.runs.arrays import RunBatch

BLOCK = 2048
"""Designs per call of the program that solves for the length of their runs [design]."""

FRONT = 6
"""Number of designs of different kinds from which the search continues [1]."""

STARTS = 3
"""Number of relaxed designs of different sizes around which the search begins [1]."""

ROUNDS = 16
"""Maximum number of lattices [1]."""

GAIN = 1e-6
"""Fall of the log objective below which a lattice counts as without gain [1]."""

ALIKE = 1.15
"""Ratio of sizes up to which relaxed designs count as equal [1]."""

HALVINGS = 60
"""Bisections of the interval of the tokens, to machine precision [1]."""

SLACK = 1e-9
"""Tolerated log violation of a bound: rounding error of the tokens that meet the bound [1]."""

SINGLE = 1e-6
"""Relative error of costs in single precision, as a margin to bounds [1]."""


class Rounded(NamedTuple):
    """Best integer design found by the search.

    Attributes:
        model: the transformer.
        plan: the plan.
        values: logarithms of the quantities, in SI units [quantity].
        objective: weighted sum of the log quantities [1].
        smooth_objective: objective by the smooth model [1].
        evaluated: number of evaluated designs.
    """

    model: Transformer
    plan: Plan
    values: np.ndarray
    objective: float
    smooth_objective: float
    evaluated: int


def _with_length(
    model: Transformer, plan: Plan, spent: Costs, problem: DesignProblem, upper: Array, is_least_loss: Array
) -> Array:
    """Log quantities of a design, with the number of tokens required or allowed by the bounds [quantity]."""

    def at(log_tokens: Array) -> Array:
        return quantities(Design(model, plan, jnp.exp(log_tokens)), spent, problem)

    def halve(_: Any, interval: tuple[Array, Array]) -> tuple[Array, Array]:
        middle = 0.5 * (interval[0] + interval[1])
        values = at(middle)
        # Time, tokens and energy grow with the tokens.
        growing = jnp.stack([values[QUANTITIES.index(name)] for name in ("time", "tokens", "energy")])
        limits = jnp.stack([upper[QUANTITIES.index(name)] for name in ("time", "tokens", "energy")])
        loss = QUANTITIES.index("excess_loss")
        # Least loss: the most tokens within the limits. Else: the fewest tokens that reach the loss.
        too_many = jnp.where(is_least_loss > 0.5, jnp.any(growing > limits), values[loss] <= upper[loss])
        return jnp.where(too_many, interval[0], middle), jnp.where(too_many, middle, interval[1])

    ends = (jnp.log(LOWEST["tokens"]), jnp.log(HIGHEST["tokens"]))
    low, high = jax.lax.fori_loop(0, HALVINGS, halve, tuple(jnp.asarray(end, float) for end in ends))
    # The end of the interval within the bounds.
    return at(jnp.where(is_least_loss > 0.5, low, high))


@filter_jit
def _lengths(
    rows: ArrayLike, spent: ArrayLike, problem: DesignProblem, upper: ArrayLike, least: ArrayLike, layout: LeafLayout
) -> tuple[Array]:
    """Log quantities of designs of known costs [design, quantity]."""

    def one(row: Array, cost: Array) -> Array:
        times = StepTime(**dict(zip(TERM_NAMES, cost[1:], strict=True)))
        power = problem.cluster.n_chips * mean_chip_power(times, problem.cluster.chip, problem.laws.power)
        every = Costs(times.total, power, cost[0])
        model, plan = layout.module(row)
        return _with_length(model, plan, every, problem, jnp.asarray(upper), jnp.asarray(least))

    return (jax.vmap(one)(jnp.asarray(rows), jnp.asarray(spent)),)


@filter_jit
def _exact(
    rows: ArrayLike, problem: DesignProblem, upper: ArrayLike, least: ArrayLike, layout: LeafLayout, temperature: float
) -> tuple[Array]:
    """Log quantities of designs in double precision [design, quantity]."""

    def one(row: Array) -> Array:
        model, plan = layout.module(row)
        spent = costs(model, plan, problem, temperature)
        return _with_length(model, plan, spent, problem, jnp.asarray(upper), jnp.asarray(least))

    return (jax.vmap(one)(jnp.asarray(rows)),)


def _asked(problem: DesignProblem, wanted: Goals) -> tuple[DesignProblem, np.ndarray, np.ndarray]:
    """Problem, bounds and indicator of a search for least loss, as arrays."""
    least = np.asarray(wanted.weights[QUANTITIES.index("excess_loss")] > 0.0, float)
    # Double precision: SLACK is below the rounding error of single precision.
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), problem), wanted.upper, least


def design_quantities(
    designs: tuple[Transformer, Plan], problem: DesignProblem, wanted: Goals, temperature: float = 0.0
) -> np.ndarray:
    """Log quantities of a few integer designs, in double precision [design, quantity].

    Args:
        designs: models and plans, stacked [design].
        problem: cluster, coefficients and laws.
        wanted: objective and bounds, which determine the tokens of each run.
        temperature: smoothing of the model, 0 for the exact model [1].
    """
    rows, layout = leaf_matrix(designs, len(designs[0].d_model))
    (values,) = in_blocks(_exact, 1, (rows,), *_asked(problem, wanted), layout, temperature)
    return values


def many_quantities(designs: tuple[Transformer, Plan], problem: DesignProblem, wanted: Goals) -> np.ndarray:
    """Log quantities of many integer designs, with costs by `evaluate_runs` [design, quantity].

    Args:
        designs: models and plans, stacked [design].
        problem: cluster, coefficients and laws.
        wanted: objective and bounds, which determine the tokens of each run.
    """
    models, plans = designs
    count = len(models.d_model)
    cluster = jax.tree.map(lambda leaf: np.repeat(np.asarray(leaf)[None], count, axis=0), problem.cluster)
    # All rows take row 0 of the coefficients.
    runs, alone = RunBatch(models, plans, cluster, np.ones(count)), np.zeros(count, int)
    found = evaluate_runs(runs, stacked([problem.coefficients]), alone, ("memory", *TERM_NAMES))
    # A margin for the rounding of single precision.
    spent = np.stack([found["memory"] * (1.0 + SINGLE), *(found[name] for name in TERM_NAMES)], axis=1)
    rows, layout = leaf_matrix(designs, count)
    (values,) = in_blocks(_lengths, BLOCK, (rows, spent), *_asked(problem, wanted), layout)
    return values


def round_design(relaxed: Sequence[Design], where: IntegerSpace, wanted: Goals) -> Rounded:
    """Best integer design: search over all plans of the planner, then over a lattice of nearby sizes.

    Args:
        relaxed: continuous designs, the best first.
        where: problem, choices of plans, widths of heads.
        wanted: objective and bounds; the design meets the bounds under the exact model.

    Returns:
        The design.

    Raises:
        InputError: no design of the search meets the bounds.
    """
    sizes = [size for design in _unlike(relaxed)[:STARTS] for size in sizes_near(design, where)]
    rows, factors, evaluated = plans_of_sizes(sizes, where), FEW, 0
    best: Rows = {}
    lowest, asked = np.inf, ()
    for _ in range(ROUNDS):
        rows = around(rows, where, factors)
        merits = _merits(many_quantities(built(rows, where), where.problem, wanted), wanted)
        evaluated += len(merits)
        order = best_of_kinds(rows, merits)[:FRONT]
        if merits[order[0]] < lowest - GAIN:
            lowest, best = merits[order[0]], {name: column[order[:1]] for name, column in rows.items()}
            rows, factors = {name: column[order] for name, column in rows.items()}, MANY
            continue
        size = {name: float(best[name][0]) for name in SIZES}
        size["batch"] = float((best["dp"] * best["micro_batch_size"] * best["n_microbatches"])[0])
        if asked == tuple(size.values()):
            break
        # No better sizes for the plans in the lattice: search for better plans of the sizes.
        rows, asked = plans_of_sizes([size], where), tuple(size.values())
    return _answer(built(best, where), where.problem, wanted, evaluated)


def _unlike(relaxed: Sequence[Design]) -> list[Design]:
    """Designs with different sizes or batches."""
    kept: list[tuple[np.ndarray, Design]] = []
    for design in relaxed:
        sizes = (design.model.d_model, design.model.n_layers, design.plan.global_batch_size_seqs)
        place = np.log(np.asarray(sizes, float))
        # Largest log ratio of width, depth and batch.
        if all(np.abs(place - other).max() > np.log(ALIKE) for other, _ in kept):
            kept.append((place, design))
    return [design for _, design in kept]


def _answer(best: tuple[Transformer, Plan], problem: DesignProblem, wanted: Goals, evaluated: int) -> Rounded:
    """Best design with its exact quantities, refused where it breaks a bound."""
    (values,) = design_quantities(best, problem, wanted)
    if wanted.residuals(values).max() > SLACK:
        raise InputError(_impossible(values, wanted))
    (smooth,) = design_quantities(best, problem, wanted, TEMPERATURE)
    objectives = float(wanted.objective(values)), float(wanted.objective(smooth))
    model, plan = row_of(best, 0)
    return Rounded(model, plan, values, *objectives, evaluated)


def _merits(values: np.ndarray, wanted: Goals) -> np.ndarray:
    """Objective of designs within all bounds; outside, a value far above every objective plus the excess."""
    missed = np.maximum(wanted.residuals(values), 0.0).sum(axis=-1)
    # Outside the bounds, the least excess is best.
    merits = np.where(missed <= SLACK, wanted.objective(values), 1e3 + missed)
    # Undefined designs come last.
    return np.where(np.isfinite(merits), merits, 1e6)


def _impossible(values: np.ndarray, wanted: Goals) -> str:
    index = int(np.argmax(wanted.residuals(values)))
    bounded = [QUANTITIES[other] for other in wanted.bounded() if other != index]
    told = f" together with the bounds on {', '.join(bounded)}" if bounded else ""
    bound, reached = np.exp(wanted.upper[index]), np.exp(values[index])
    return f"no integer design keeps {QUANTITIES[index]} within {bound:.4g}{told}; the nearest has {reached:.4g}"
