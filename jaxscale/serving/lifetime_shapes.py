"""Model shapes of least lifetime chip time: width, depth, key/value heads, experts, tensor-parallel degree and batch.

The chip time covers training to a loss and serving a number of answer tokens under a limit of the time per token. The
search steps over a lattice of integer sizes: all neighbours of a point at once, from several starts, to a local
minimum.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from jaxscale.base.arrays import as_arrays, host_arrays, number, with_fields
from jaxscale.base.errors import InputError
from jaxscale.base.jit import array_jit
from jaxscale.designs.shape_problem import stretched
from jaxscale.hardware.cluster import Cluster
from jaxscale.laws.loss import LossLaw, ShapeLaw
from jaxscale.models.transformer import Transformer
from jaxscale.plans.plan import Plan
from jaxscale.runs.arrays import padded
from jaxscale.serving.engine import Engine, Requests
from jaxscale.serving.lifetime import TrainingPlans, lifetime_cost
from jaxscale.serving.serving_coefficients import ServingCoefficients
from jaxscale.serving.serving_memory import serving_memory, usable_bytes

AXES = ("n_layers", "d_model", "n_kv_heads", "n_experts", "tp", "batch")
"""Axes of the lattice."""

BLOCK_OF_SHAPES = 1024
"""Number of points evaluated at a time [1]."""

N_STARTS = 6
"""Number of starting points of the search [1]."""

STRIDES = (2, 2, 2, 1, 1, 1)
"""Steps along each of `AXES` to the farthest neighbour [1]: kernel efficiency varies between neighbouring widths,
and the memory limit of a training plan is a jump, so that single steps end in local valleys."""


@dataclass(frozen=True)
class LifetimeLattice:
    """Candidate sizes of a model and its engine in the search for the best shape.

    Attributes:
        n_layers: depths [1].
        d_model: widths [1].
        n_kv_heads: key/value heads; the least number is the user's choice, because fewer heads do not raise the loss by
            the loss laws [1].
        n_experts: experts of each mixture layer; the template's where empty [1].
        tp: tensor-parallel degrees of the engine [1].
        batch: sequences in flight of an engine [1].
    """

    n_layers: tuple[int, ...] = tuple(range(16, 129, 4))
    d_model: tuple[int, ...] = tuple(range(1024, 16385, 512))
    n_kv_heads: tuple[int, ...] = (8,)
    n_experts: tuple[int, ...] = ()
    tp: tuple[int, ...] = (1, 2, 4, 8)
    batch: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)

    def axes(self, template: Transformer) -> list[np.ndarray]:
        """Candidate values of each of `AXES`, ascending.

        Raises:
            InputError: an axis without values, or with a value below 1.
        """
        experts = self.n_experts or (int(number(template.n_experts)),)
        sizes = (self.n_layers, self.d_model, self.n_kv_heads, experts, self.tp, self.batch)
        for name, values in zip(AXES, sizes, strict=True):
            if not values or min(values) < 1:
                raise InputError(f"{name} = {values} is out of range; expected numbers of at least 1")
        return [np.asarray(sorted(values), float) for values in sizes]


class LifetimeTask(NamedTuple):
    """Requirements on a model over its lifetime; every leaf traces.

    Attributes:
        template: proportions of the model.
        cluster: chips for inference.
        requests: lengths and kind of serving.
        coefficients: coefficients of the serving software.
        law: law of the loss.
        loss: target loss [nat per token].
        answer_tokens: D_out of the lifetime [token].
        tpot_limit: largest time per token [s].
        training: training plans, or the model flop utilisation of training [1].
        shape: law of the shape.
        experts_exponent: gamma, exponent of the number of experts in the effective parameters [1].
    """

    template: Transformer
    cluster: Cluster
    requests: Requests
    coefficients: ServingCoefficients
    law: LossLaw
    loss: float
    answer_tokens: float
    tpot_limit: float
    training: ArrayLike | TrainingPlans
    shape: ShapeLaw
    experts_exponent: float


@dataclass(frozen=True)
class LifetimeShape:
    """Model shape and engine of least lifetime chip time.

    Attributes:
        sizes: value of each of `AXES`.
        model: the transformer.
        training: chip seconds of training [s].
        serving: chip seconds of all answers [s].
        tpot: time per token after the first [s].
        n_tokens: training tokens [token].
        plan: fastest training plan; None for a given utilisation.
        searched: number of evaluated points of the lattice [1].
    """

    sizes: dict[str, float]
    model: Transformer
    training: float
    serving: float
    tpot: float
    n_tokens: float
    plan: Plan | None
    searched: int

    @property
    def total(self) -> float:
        """Total chip seconds [s]."""
        return self.training + self.serving


def lifetime_model(template: Transformer, sizes: Float[Array, " axis"]) -> Transformer:
    """Template with depth, width, key/value heads and experts of a point of the lattice."""
    depth, width, kv_heads, experts = sizes[0], sizes[1], sizes[2], sizes[3]
    model = stretched(template, width, depth, template.head_dim)
    return with_fields(model, {"n_kv_heads": kv_heads, "n_experts": experts})


@array_jit
def _scored_shapes(points: Array, may_run: Bool[Array, "point plan"], task: LifetimeTask) -> Array:
    """Training and serving chip time, time per token, tokens and plan of points; infinite time outside the bounds."""

    def one(sizes: Array, own_plans: Array) -> Array:
        model, tp, batch = lifetime_model(task.template, sizes), sizes[4], sizes[5]
        engine = with_fields(Engine(), {"tp": tp})
        load = with_fields(task.requests, {"concurrency": batch})
        cost = lifetime_cost(
            model, engine, task.cluster, load, task.coefficients, task.law, task.loss, task.answer_tokens,
            task.training, shape=task.shape, experts_exponent=task.experts_exponent, may_run=own_plans,
        )  # fmt: skip
        context = load.input_len + load.output_len
        memory = serving_memory(model, engine, task.cluster, n_sequences=batch, context=context).total
        # Infinite time marks a broken bound.
        keeps = (memory <= usable_bytes(engine, task.cluster)) & (cost.tpot <= task.tpot_limit)
        # Key/value heads times the head width must fit in the width.
        keeps &= jnp.isfinite(cost.n_tokens) & (cost.n_tokens > 0.0) & (sizes[2] * model.head_dim <= sizes[1])
        bound = jnp.where(keeps, 0.0, jnp.inf)
        return jnp.stack([cost.training + bound, cost.serving + bound, cost.tpot, cost.n_tokens, cost.place])

    return jax.vmap(one)(points, may_run)


def score_shapes(points: Float[np.ndarray, "point axis"], task: LifetimeTask) -> Float[np.ndarray, "point 5"]:
    """Training and serving chip time [s], time per token [s], training tokens and plan index of points [point, 5].

    Args:
        points: values of `AXES` [point, axis].
        task: requirements of the lifetime.

    Returns:
        Scores; chip times are infinite where a point breaks a bound or does not reach the loss.
    """
    blocks, shared = [], jax.device_put(host_arrays(as_arrays(task)))
    allowed = _plans_that_run(points, task)
    for start in range(0, len(points), BLOCK_OF_SHAPES):
        block = points[start : start + BLOCK_OF_SHAPES]
        own = allowed[start : start + BLOCK_OF_SHAPES]
        # A fixed number of points needs a single compilation.
        filled, runs = padded((block, own), len(block), BLOCK_OF_SHAPES)
        blocks.append(np.asarray(_scored_shapes(filled, runs, shared))[: len(block)])
    scores = np.concatenate(blocks)
    # A missed loss has no tokens.
    scores[np.isnan(scores[:, :2]).any(axis=1), :2] = np.inf
    return scores


def _plans_that_run(points: Float[np.ndarray, "point axis"], task: LifetimeTask) -> Bool[np.ndarray, "point plan"]:
    """Training plans that are valid for each point; a trivial plan for a given utilisation [point, plan]."""
    if not isinstance(task.training, TrainingPlans):
        return np.ones((len(points), 1), dtype=bool)
    template = as_arrays(task.template)
    return task.training.valid(jax.vmap(lambda sizes: lifetime_model(template, sizes))(jnp.asarray(points)))


def best_lifetime_shape(
    template: Transformer,
    cluster: Cluster,
    requests: Requests,
    coefficients: ServingCoefficients,
    law: LossLaw,
    *,
    loss: float,
    answer_tokens: float,
    lattice: LifetimeLattice | None = None,
    tpot_limit: float = np.inf,
    training: float | TrainingPlans = 0.4,
    shape: ShapeLaw | None = None,
    experts_exponent: float = 0.0,
) -> LifetimeShape:
    """Model shape and engine of least chip time to reach a loss and serve a lifetime of answers.

    Args:
        template: proportions of the model, kept fixed.
        cluster: chips for inference.
        requests: lengths and kind of serving; the batch is optimised.
        coefficients: coefficients of the serving software.
        law: loss law.
        loss: target loss [nat per token].
        answer_tokens: D_out of the lifetime [token].
        lattice: candidate sizes.
        tpot_limit: largest time per token [s].
        training: candidate plans, see `training_plans`, of which each shape uses the fastest that fits; or the model
            flop utilisation of training on the chips for inference [1].
        shape: law of the shape; every shape is as good where None.
        experts_exponent: gamma of the effect of experts; 0 without effect [1].

    Returns:
        The best point found by the search.

    Raises:
        InputError: no point of the lattice reaches the loss within the bounds, or an axis is out of range.
    """
    axes = (lattice or LifetimeLattice()).axes(template)
    task = LifetimeTask(
        template, cluster, requests, coefficients, law, float(loss), float(answer_tokens), float(tpot_limit),
        training, shape or ShapeLaw(0.0, 1.0), float(experts_exponent),
    )  # fmt: skip
    seen: dict[tuple[int, ...], np.ndarray] = {}
    best = min(
        (_descended(start, axes, task, seen) for start in _starts(axes, task, seen)), key=lambda at: _time(seen[at])
    )
    scores = seen[best]
    if not np.isfinite(_time(scores)):
        raise InputError(
            f"no shape of the lattice reaches a loss of {loss:g} within the memory of a chip and {tpot_limit:g} s per "
            "token on any of the training plans; expected larger models, a higher loss, more chips or a longer time"
        )
    values = [float(axis[place]) for axis, place in zip(axes, best, strict=True)]
    model = jax.tree.map(np.asarray, lifetime_model(as_arrays(template), jnp.asarray(values)))
    trained, served, tpot, n_tokens, place = map(float, scores)
    plan = training.plan(int(place)) if isinstance(training, TrainingPlans) else None
    return LifetimeShape(dict(zip(AXES, values, strict=True)), model, trained, served, tpot, n_tokens, plan, len(seen))


def _time(scores: np.ndarray) -> float:
    """Total chip time [s]."""
    return float(scores[0] + scores[1])


def _evaluate_places(
    places: Sequence[tuple[int, ...]],
    axes: list[np.ndarray],
    task: LifetimeTask,
    seen: dict[tuple[int, ...], np.ndarray],
) -> None:
    """Score the points of the lattice without a score."""
    new = [place for place in dict.fromkeys(places) if place not in seen]
    if not new:
        return
    index: Int[np.ndarray, "point axis"] = np.asarray(new)
    # (points, axes)
    points = np.stack([axis[index[:, column]] for column, axis in enumerate(axes)], axis=1)
    seen.update(zip(new, score_shapes(points, task), strict=True))


def _starts(
    axes: list[np.ndarray], task: LifetimeTask, seen: dict[tuple[int, ...], np.ndarray]
) -> list[tuple[int, ...]]:
    """Best points of a coarse lattice, far apart in depth and width."""
    # At most five values per axis.
    coarse = [np.unique(np.linspace(0, len(axis) - 1, min(len(axis), 5)).round().astype(int)).tolist() for axis in axes]
    places = list(itertools.product(*coarse))
    _evaluate_places(places, axes, task, seen)
    ranked = sorted(places, key=lambda place: _time(seen[place]))
    # Best start of each depth and width: the better entry, later in reversed order, wins.
    return list({place[:2]: place for place in reversed(ranked)}.values())[::-1][:N_STARTS]


def _descended(
    start: tuple[int, ...], axes: list[np.ndarray], task: LifetimeTask, seen: dict[tuple[int, ...], np.ndarray]
) -> tuple[int, ...]:
    """Local minimum: no neighbour is better."""
    at = start
    while True:
        steps = [
            [place for place in range(one - stride, one + stride + 1) if 0 <= place < len(axis)]
            for one, axis, stride in zip(at, axes, STRIDES, strict=True)
        ]
        neighbours = list(itertools.product(*steps))
        _evaluate_places(neighbours, axes, task, seen)
        best = min(neighbours, key=lambda place: _time(seen[place]))
        if _time(seen[best]) >= _time(seen[at]):
            return at
        at = best
