"""From the relaxed optimum to an integer design: a lattice around the optimum, then local search on the exact model."""

import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from jaxscale.base.arrays import number
from jaxscale.base.errors import InputError
from jaxscale.base.jit import filter_jit
from jaxscale.designs.design_space import HIGHEST, LOWEST, Design
from jaxscale.designs.integer_designs import (
    Candidate,
    nearest_degrees,
    neighbouring,
    possible,
    round_candidates,
    row_of,
)
from jaxscale.designs.quantities import QUANTITIES, DesignProblem, costs, quantities
from jaxscale.models.transformer import Transformer
from jaxscale.optimise.batches import LeafLayout, in_blocks, leaf_matrix
from jaxscale.optimise.goals import Goals
from jaxscale.plans.plan import Plan
from jaxscale.plans.relaxation import TEMPERATURE

BLOCK = 512
"""Designs per call of the exact model [design]."""

KINDS = 3
"""Kinds of plan from which the local search starts [1]."""

HALVINGS = 60
"""Of the interval of the tokens: to the last digit [1]."""

SLACK = 1e-9
"""Log distance by which a bound may be missed: rounding of the tokens that meet it [1]."""


class Rounded(NamedTuple):
    """The best integer design found.

    Attributes:
        model: the transformer.
        plan: the plan.
        values: log quantities [quantity].
        objective: weighted log quantities [1].
        smooth_objective: the same by the smooth model [1].
        evaluated: designs looked at.
    """

    model: Transformer
    plan: Plan
    values: np.ndarray
    objective: float
    smooth_objective: float
    evaluated: int


@filter_jit
def _block(
    rows: ArrayLike,
    problem: DesignProblem,
    upper: ArrayLike,
    is_least_loss: ArrayLike,
    layout: LeafLayout,
    temperature: float,
) -> tuple[Array]:
    """Log quantities of designs, with the tokens that the bounds ask for or allow [design, quantity]."""
    bounds, least_loss = jnp.asarray(upper), jnp.asarray(is_least_loss) > 0.5

    def one(row: Array) -> Array:
        model, plan = layout.module(row)
        spent = costs(model, plan, problem, temperature)

        def at(log_tokens: Array) -> Array:
            return quantities(Design(model, plan, jnp.exp(log_tokens)), spent, problem)

        def halve(_: Any, interval: tuple[Array, Array]) -> tuple[Array, Array]:
            middle = 0.5 * (interval[0] + interval[1])
            values = at(middle)
            growing = jnp.stack([values[QUANTITIES.index(name)] for name in ("time", "tokens", "energy")])
            limits = jnp.stack([bounds[QUANTITIES.index(name)] for name in ("time", "tokens", "energy")])
            loss = QUANTITIES.index("excess_loss")
            # Least loss: as many tokens as the limits allow. Else: as few as the loss asks for.
            too_many = jnp.where(least_loss, jnp.any(growing > limits), values[loss] <= bounds[loss])
            return jnp.where(too_many, interval[0], middle), jnp.where(too_many, middle, interval[1])

        ends = (jnp.log(LOWEST["tokens"]), jnp.log(HIGHEST["tokens"]))
        low, high = jax.lax.fori_loop(0, HALVINGS, halve, tuple(jnp.asarray(end, float) for end in ends))
        return at(jnp.where(least_loss, low, high))

    return (jax.vmap(one)(jnp.asarray(rows)),)


def design_quantities(
    designs: tuple[Transformer, Plan], problem: DesignProblem, wanted: Goals, temperature: float = 0.0
) -> np.ndarray:
    """Log quantities of integer designs [design, quantity].

    Args:
        designs: models and plans, stacked [design].
        problem: cluster, coefficients and laws.
        wanted: the bounds decide how long each is trained.
        temperature: smoothing of the model, 0 for the exact one [1].
    """
    is_least_loss = np.asarray(wanted.weights[QUANTITIES.index("excess_loss")] > 0.0, float)
    rows, layout = leaf_matrix(designs, len(designs[0].d_model))
    fixed = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), problem)
    (values,) = in_blocks(_block, BLOCK, (rows,), fixed, wanted.upper, is_least_loss, layout, temperature)
    return values


def candidates_near(design: Design, n_chips: int, template: Transformer) -> list[Candidate]:
    """Candidates on the lattice around a relaxed design, with every kind of sharding and recomputation."""
    model, plan = design.model, design.plan
    experts = round(number(template.n_experts))
    degrees = (
        nearest_degrees(number(plan.tp), n_chips, 3),
        nearest_degrees(number(plan.cp), n_chips, 2),
        nearest_degrees(number(plan.pp), n_chips, 3),
        [1, 2] if number(plan.pp) > 1.2 else [1],
        nearest_degrees(number(plan.ep), experts, 2),
    )
    batch, micro_batch = number(plan.global_batch_size_seqs), max(number(plan.micro_batch_size), 1.0)
    micro_batches = sorted({1.0, 2.0 ** np.floor(np.log2(micro_batch)), 2.0 ** np.ceil(np.log2(micro_batch))})
    ratio = number(model.d_ff / model.d_model) / number(template.d_ff / template.d_model)
    candidates = []
    for tp, cp, pp, vpp, ep in itertools.product(*degrees):
        for stage, recompute, size in itertools.product((1, 3), (False, True), micro_batches):
            sizes = (number(model.d_model), number(model.n_layers), ratio, batch, size)
            candidates.append(Candidate(*sizes, tp, cp, pp, vpp, ep, stage, recompute))
    return candidates


def round_design(relaxed: list[Design], problem: DesignProblem, wanted: Goals, n_steps: int = 40) -> Rounded:
    """The best integer design near relaxed ones.

    Args:
        relaxed: continuous designs, the best first.
        problem: cluster, coefficients, laws and template.
        wanted: objective and bounds, kept by the exact model.
        n_steps: moves of the local search at most.

    Returns:
        The design, which keeps every bound.

    Raises:
        InputError: no design in reach keeps the bounds.
    """
    seen: dict[Candidate, float] = {}
    n_chips, head_dim = round(number(problem.cluster.n_chips)), round(number(problem.head_dim))
    template, domain_size = problem.template, number(problem.cluster.network.level(0)[0])

    def score(candidates: list[Candidate]) -> list[Candidate]:
        can_be = possible(list(dict.fromkeys(candidates)), template, n_chips, domain_size)
        new = [candidate for candidate in can_be if candidate not in seen]
        if new:
            values = design_quantities(round_candidates(new, template, n_chips, head_dim), problem, wanted)
            seen.update(zip(new, _merits(values, wanted).tolist(), strict=True))
        return can_be

    score([candidate for design in relaxed for candidate in candidates_near(design, n_chips, template)])
    for start in _one_of_each_kind(seen):
        here = start
        for _ in range(n_steps):
            around = score(neighbouring(here, n_chips, template))
            lowest = min(around, key=lambda candidate: seen[candidate], default=here)
            if not seen[lowest] < seen[here] - 1e-9:
                break
            here = lowest
    best = round_candidates([min(seen, key=lambda candidate: seen[candidate])], template, n_chips, head_dim)
    (values,) = design_quantities(best, problem, wanted)
    if wanted.residuals(values).max() > SLACK:
        raise InputError(_impossible(values, wanted))
    (smooth,) = design_quantities(best, problem, wanted, TEMPERATURE)
    objectives = float(wanted.objective(values)), float(wanted.objective(smooth))
    return Rounded(row_of(best[0], 0), row_of(best[1], 0), values, *objectives, len(seen))


def _one_of_each_kind(seen: dict[Candidate, float]) -> list[Candidate]:
    """The best design of each kind of sharding, recomputation and pipelining; the best kinds first."""
    best: dict[tuple[int, bool, bool], Candidate] = {}
    for candidate in sorted(seen, key=lambda candidate: seen[candidate]):
        best.setdefault((candidate.zero_stage, candidate.recompute, candidate.pp > 1), candidate)
    return list(best.values())[:KINDS]


def _merits(values: np.ndarray, wanted: Goals) -> np.ndarray:
    """Objective of designs within all bounds; far above every objective, by the excess, elsewhere."""
    missed = np.maximum(wanted.residuals(values), 0.0).sum(axis=-1)
    merits = np.where(missed <= SLACK, wanted.objective(values), 1e3 + missed)
    return np.where(np.isfinite(merits), merits, 1e6)


def _impossible(values: np.ndarray, wanted: Goals) -> str:
    index = int(np.argmax(wanted.residuals(values)))
    bounded = [QUANTITIES[other] for other in wanted.bounded() if other != index]
    told = f" together with the bounds on {', '.join(bounded)}" if bounded else ""
    bound, reached = np.exp(wanted.upper[index]), np.exp(values[index])
    return f"no integer design keeps {QUANTITIES[index]} within {bound:.4g}{told}; the nearest has {reached:.4g}"
