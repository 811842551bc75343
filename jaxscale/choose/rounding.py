"""From the relaxed optimum to an integer design: lattice around it, then local search on the exact model."""

import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from jaxscale.choose._host import number
from jaxscale.choose._quick_compile import quick_jit
from jaxscale.choose.constraints import UNBOUNDED, Goals, residuals
from jaxscale.choose.design_space import HIGHEST, LOWEST, Design
from jaxscale.choose.integer_designs import Wish, nearest_degrees, neighbours, realise
from jaxscale.choose.quantities import QUANTITIES, Setting, costs, quantities
from jaxscale.errors import InputError
from jaxscale.plan import Plan
from jaxscale.workload import Transformer

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
        evaluated: designs looked at.
    """

    model: Transformer
    plan: Plan
    values: np.ndarray
    objective: float
    evaluated: int


@quick_jit
def _exact(models: Transformer, plans: Plan, setting: Setting, upper: ArrayLike, is_least_loss: ArrayLike) -> Array:
    """Log quantities of designs, each with the tokens that its bounds ask for or allow [design, quantity]."""
    bounds, least_loss = jnp.asarray(upper), jnp.asarray(is_least_loss) > 0.5

    def one(model: Transformer, plan: Plan) -> Array:
        spent = costs(model, plan, setting, 0.0)

        def at(log_tokens: Array) -> Array:
            return quantities(Design(model, plan, jnp.exp(log_tokens)), spent, setting)

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

    return jax.vmap(one)(models, plans)


def exact_quantities(designs: list[tuple[Transformer, Plan]], setting: Setting, wanted: Goals) -> np.ndarray:
    """Log quantities of integer designs by the exact model [design, quantity].

    Args:
        designs: models and plans.
        setting: cluster, coefficients and laws.
        wanted: the bounds decide how long each is trained.
    """
    is_least_loss = float(wanted.weights[QUANTITIES.index("excess_loss")] > 0.0)
    found = []
    with jax.enable_x64(True):
        fixed = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), setting)
        for start in range(0, len(designs), BLOCK):
            block = designs[start : start + BLOCK]
            padded = block + block[:1] * (BLOCK - len(block))
            models, plans = (_stacked([design[part] for design in padded]) for part in (0, 1))
            values = _exact(models, plans, fixed, wanted.upper, np.asarray(is_least_loss))
            found.append(np.asarray(values)[: len(block)])
    return np.concatenate(found)


def _stacked(modules: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf, np.float64) for leaf in leaves]), *modules)


def wishes_near(design: Design, n_chips: int, template: Transformer) -> list[Wish]:
    """Wishes on the lattice around a relaxed design, with every kind of sharding and recomputation."""
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
    wishes = []
    for tp, cp, pp, vpp, ep in itertools.product(*degrees):
        for stage, recompute, size in itertools.product((1, 3), (False, True), micro_batches):
            sizes = (number(model.d_model), number(model.n_layers), ratio, batch, size)
            wishes.append(Wish(*sizes, tp, cp, pp, vpp, ep, stage, recompute))
    return wishes


def round_design(
    relaxed: list[Design], setting: Setting, wanted: Goals, *, n_chips: int, head_dim: int, n_steps: int = 40
) -> Rounded:
    """The best integer design near relaxed ones.

    Args:
        relaxed: continuous designs, the best first.
        setting: cluster, coefficients, laws and template.
        wanted: objective and bounds, kept by the exact model.
        n_chips: chips [1].
        head_dim: width of a head [1].
        n_steps: moves of the local search at most.

    Returns:
        The design, which keeps every bound.

    Raises:
        InputError: no design looked at keeps them.
    """
    seen: dict[Wish, float] = {}

    def score(wishes: list[Wish]) -> list[Wish]:
        fresh = [(wish, realise(wish, setting.template, n_chips, head_dim)) for wish in dict.fromkeys(wishes)]
        new = [(wish, design) for wish, design in fresh if design and wish not in seen]
        if new:
            values = exact_quantities([design for _, design in new], setting, wanted)
            seen.update(zip([wish for wish, _ in new], _merits(values, wanted).tolist(), strict=True))
        return [wish for wish, design in fresh if design]

    score([wish for design in relaxed for wish in wishes_near(design, n_chips, setting.template)])
    for start in _one_of_each_kind(seen):
        here = start
        for _ in range(n_steps):
            around = score(neighbours(here, n_chips, setting.template))
            lowest = min(around, key=lambda wish: seen[wish], default=here)
            if not seen[lowest] < seen[here] - 1e-9:
                break
            here = lowest
    best = min(seen, key=lambda wish: seen[wish])
    design = realise(best, setting.template, n_chips, head_dim)
    assert design is not None
    model, plan = design
    (values,) = exact_quantities([design], setting, wanted)
    if residuals(values, wanted).max() > SLACK:
        raise InputError(_impossible(values, wanted))
    return Rounded(model, plan, values, float(values @ wanted.weights), len(seen))


def _one_of_each_kind(seen: dict[Wish, float]) -> list[Wish]:
    """The best design of each kind of sharding, recomputation and pipelining; the best kinds first."""
    best: dict[tuple[int, bool, bool], Wish] = {}
    for wish in sorted(seen, key=lambda wish: seen[wish]):
        best.setdefault((wish.zero_stage, wish.recompute, wish.pp > 1), wish)
    return list(best.values())[:KINDS]


def _merits(values: np.ndarray, wanted: Goals) -> np.ndarray:
    """Objective where all bounds hold; far above and by how much they are missed where not."""
    missed = np.maximum(residuals(values, wanted), 0.0).sum(axis=-1)
    merits = np.where(missed <= SLACK, values @ wanted.weights, 1e3 + missed)
    return np.where(np.isfinite(merits), merits, 1e6)


def _impossible(values: np.ndarray, wanted: Goals) -> str:
    missed = residuals(values, wanted)
    name = (*QUANTITIES, "params")[int(np.argmax(missed))]
    bound = wanted.upper[int(np.argmax(missed))] if np.argmax(missed) < len(QUANTITIES) else wanted.least_params
    held = [other for other in QUANTITIES if other != name and wanted.bound(other) < UNBOUNDED]
    told = f" together with the bounds on {', '.join(held)}" if held else ""
    reached = np.exp(values[QUANTITIES.index(name)])
    return f"no integer design keeps {name} within {np.exp(bound):.4g}{told}; the nearest has {reached:.4g}"
