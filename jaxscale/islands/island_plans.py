"""Plans of islands: the fastest plan of each island for its batch share, or for the most layers that fit."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxscale.base.arrays import number, with_fields
from jaxscale.base.errors import InputError
from jaxscale.base.units import GB, plural
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.calibration.record import Fit
from jaxscale.hardware.cluster import Cluster
from jaxscale.islands.batch_shares import Pace, island_paces
from jaxscale.islands.fleet import Fleet
from jaxscale.models.transformer import Transformer
from jaxscale.plans.plan import Plan
from jaxscale.plans.plan_questions import every_plan, plan_question
from jaxscale.plans.score import PlanTask

FINENESS = 8
"""Batches are rounded to multiples of a power of two, at least 1 / `FINENESS` of the batch, for many divisors [1]."""

OOM_PROBABILITY = 0.1
"""Accepted probability of running out of memory, as in `js.best_plan` [1]."""


class IslandPlans(NamedTuple):
    """Plans and pace of all islands.

    Attributes:
        plans: plan of each island.
        layers: layers on each island, all of the model's if they fit [1], [island].
        pace: pace for the whole model, extrapolated for an island with a subset of the layers.
        alone_time: time of a step on the whole batch by the island's best plan; inf with a subset of the layers [s],
            [island].
        memory: peak of allocated memory on the fullest chip of each island [byte], [island].
        halfwidth: half of the 90 % interval of the log step time [1], [island].
    """

    plans: tuple[Plan, ...]
    layers: Float[np.ndarray, " island"]
    pace: Pace
    alone_time: Float[np.ndarray, " island"]
    memory: Float[np.ndarray, " island"]
    halfwidth: Float[np.ndarray, " island"]


def island_plans(
    model: Transformer,
    fleet: Fleet,
    sequences: int,
    *,
    fit: Fit,
    cells: Sequence[Mapping[str, Any]],
) -> IslandPlans:
    """Plan of each island for a batch share by peak rate, with the resulting paces.

    Args:
        sequences: B, batch of all islands together [sequence].
        cells: stated cells of the runs of each island, by column of a runs table, such as `gpu` and `framework`.

    Raises:
        InputError: an island without memory for a layer and a sequence.
    """
    # Batch shares by peak flop rate: paces are not known before plans.
    weights = np.asarray(fleet.clusters.n_chips) * np.asarray(fleet.clusters.chip.peak("bf16"))
    wanted = sequences * weights / weights.sum()
    plans, slices, coefficients, widths, alone, held = [], [], [], [], [], []
    for island, name in enumerate(fleet.names):
        question = plan_question(model, fleet.cluster(island), float(round_batch(wanted[island])), cells[island])
        task = question.task(fit, OOM_PROBABILITY)
        chosen, part = _plan_or_part(task, sequences, name)
        by_itself = _fastest(task._replace(batch=float(sequences))) if part is model else None
        alone.append(np.inf if by_itself is None else by_itself.step_time)
        plans.append(chosen.plan)
        held.append(chosen.memory)
        slices.append(part)
        coefficients.append(task.coefficients)
        widths.append(float(fit.interval(question.levels, question.n_chips).time))
    pace = whole_model_pace(model, plans, slices, fleet.clusters, coefficients)
    layers = np.asarray([number(part.n_layers) for part in slices])
    # A batch that is not divisible by any plan of an island is timed by the island's pace.
    steps = np.asarray(pace.base_time) + np.asarray(pace.seconds_per_sequence) * (
        sequences - np.asarray(pace.base_sequences)
    )
    times = np.where(np.isinf(alone) & (layers == number(model.n_layers)), steps, np.asarray(alone))
    return IslandPlans(tuple(plans), layers, pace, times, np.asarray(held), np.asarray(widths))


def round_batch(sequences: float) -> int:
    """Batch near a requested batch that is divisible by many degrees [sequence]."""
    # Least power of two of at least 1 / FINENESS of the batch.
    step = 2 ** max(math.floor(math.log2(max(sequences, 1.0) / FINENESS * 2.0)), 0)
    return max(round(sequences / step), 1) * step


def whole_model_pace(
    model: Transformer,
    plans: Sequence[Plan],
    slices: Sequence[Transformer],
    clusters: Cluster,
    coefficients: Sequence[Coefficients],
) -> Pace:
    """Pace for the whole model of islands that hold slices of the model.

    Args:
        slices: model with the layers of each island.
        clusters: chips and networks, stacked [island].

    Returns:
        The pace; times of a slice are scaled to the depth of the model.
    """
    pace = island_paces(slices, plans, clusters, coefficients)
    # Depth of the model over depth of the slice.
    stretch = np.asarray([number(model.n_layers) / number(part.n_layers) for part in slices])
    times = {name: np.asarray(getattr(pace, name)) * stretch for name in ("base_time", "seconds_per_sequence")}
    return with_fields(pace, times)


def _plan_or_part(task: PlanTask, sequences: int, name: str) -> tuple["_ScoredPlan", Transformer]:
    """Fastest plan that fits, of the whole model or of the most layers that fit on the island."""
    depth = int(number(task.model.n_layers))
    plan = _fastest(task)
    batch = task.stated_batch
    while plan is None and batch < sequences:
        # A small share may have fewer sequences than chips: the next power of two feeds more replicas.
        batch = float(min(2 ** math.ceil(math.log2(batch + 1.0)), sequences))
        plan = _fastest(task._replace(batch=batch))
    if plan is not None:
        return plan, task.model
    held, best = 0, None
    # Memory grows with layers: bisection for the most layers.
    low, high = 1, depth - 1
    while low <= high:
        layers = (low + high) // 2
        plan = _fastest(_slice(task, layers))
        if plan is None:
            high = layers - 1
        else:
            held, best, low = layers, plan, layers + 1
    if best is None:
        capacity, chips = number(task.cluster.chip.hbm_bytes) / GB, number(task.cluster.n_chips)
        named = name if name.startswith("island") else f"island {name}"
        raise InputError(
            f"{named}: {chips:g} {plural(chips, 'chip')} of {capacity:g} GB cannot hold one layer of the "
            "model with one sequence; expected more chips, more memory, or the island left out"
        )
    return best, _slice(task, held).model


def _slice(task: PlanTask, layers: int) -> PlanTask:
    """Task for a number of layers of the model, with at most one sequence per chip."""
    batch = min(task.stated_batch, float(round_batch(number(task.cluster.n_chips))))
    return task._replace(model=with_fields(task.model, {"n_layers": float(layers)}), batch=batch)


class _ScoredPlan(NamedTuple):
    """Plan, with step time [s] and peak of allocated memory [byte]."""

    plan: Plan
    step_time: float
    memory: float


def _fastest(task: PlanTask) -> _ScoredPlan | None:
    """Fastest valid plan that fits; None without a fitting plan."""
    (searched,) = every_plan([task])
    if not len(searched.table) or not searched.fits.any():
        return None
    row = int(searched.ranked(1)[0])
    # Allocated memory: without driver and contexts.
    memory = float(searched.scores.memory[row]) - number(task.coefficients.framework_bytes)
    return _ScoredPlan(searched.table.plan(row), float(searched.scores.step_time[row]), memory)
