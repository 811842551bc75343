"""Search for a plan in large spaces: gradient search over continuous plans, then local search among whole numbers.

All problems and all starts run as one `vmap`. The relaxed optimum is the centre of a window of valid plans: the nearest
values of every degree crossed with all choices of sharding, schedule and recomputation. The window moves to its best
plan until no better plan is found.

Every degree is a share, in logarithms, of the room left by the earlier degrees, so that every point of the unit cube
obeys `dp * tp * pp * cp = n_chips`, `pp * vpp <= L` and `tp <= heads`. Whole replicas divide chips and batch, a
constraint beside memory: dp is at most the greatest common divisor of chips and batch. Sharding, recomputation and the
corner of the costs at two stages are not relaxed: each `Family` of plans is searched separately.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxscale.base.arrays import as_float, number, with_fields
from jaxscale.base.jit import filter_jit
from jaxscale.base.smooth import smooth_min
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.costs.step import step_and_memory
from jaxscale.hardware.cluster import Cluster
from jaxscale.models.transformer import Transformer, total_layers
from jaxscale.optimise.interior_point import (
    CONVERGED,
    best_candidate,
    certify,
    polish,
    promising,
    rough_search,
    start_points,
)
from jaxscale.optimise.problems import UNBOUNDED, Goals, LeafLayout, Optimum, Problems, in_blocks
from jaxscale.plans.enumerate import PlanTable, admissible, enumerate_plans
from jaxscale.plans.plan import Plan
from jaxscale.plans.score import FoundPlans, PlanTask, RelaxedPlan, Scores, score_plans

TEMPERATURE = 0.02
"""Smoothing of step time, memory and room during a search; whole numbers are scored by the exact model [1]."""

INTERLEAVING = (1, 2, 3, 4, 6, 8)
"""Candidate virtual stages per chip; the relaxed number is at most the largest candidate [1]."""


class Family(eqx.Module):
    """Choices that are not relaxed: each family of plans is searched separately.

    Attributes:
        zero_stage: ZeRO stage, of 0 to 3 [1].
        recompute_full: 1 where whole layers are recomputed [1].
        smallest_pp: fewest stages, 1 or 2 [1].
        largest_pp: most stages [1].
    """

    zero_stage: Float[ArrayLike, "*batch"]
    recompute_full: Float[ArrayLike, "*batch"]
    smallest_pp: Float[ArrayLike, "*batch"]
    largest_pp: Float[ArrayLike, "*batch"]


KINDS = ((1.0, 1.0, 1.0), (1.0, 2.0, 1e9), (3.0, 1.0, 1.0))
"""ZeRO stage, fewest and most stages: costs have a corner at two stages, so that no family crosses two stages."""

FAMILIES = tuple(Family(stage, full, low, high) for full in (0.0, 1.0) for stage, low, high in KINDS)
"""ZeRO 1 without and with a pipeline, and ZeRO 3 without; each with and without recomputation."""


def families_for(n_chips: float) -> tuple[Family, ...]:
    """Families of plans with a feasible number of stages on a number of chips."""
    return tuple(family for family in FAMILIES if number(family.smallest_pp) <= n_chips)


def splits(
    share: dict[str, Array], family: Family, model: Transformer, log_heads: ArrayLike, room: Array
) -> dict[str, Array]:
    """Natural logarithms of the degrees tp, cp, pp, vpp, ep and dp of a relaxed plan, by name [1].

    Args:
        share: share of each degree in the room left by the earlier degrees, by name [1].
        family: sharding, and bounds of the stages.
        model: the transformer, with the bounds of the degrees.
        log_heads: logarithm of the largest tp [1].
        room: logarithm of the chips [1].
    """
    fewest = jnp.log(family.smallest_pp)
    # Room for the fewest stages of the family.
    tp = share["tp"] * _least(room - fewest, log_heads)
    # 2 cp divides the sequence under a causal mask.
    cp = share["cp"] * _least(room - fewest - tp, jnp.log(model.seq_len / 2.0))
    # At most a stage per layer.
    layers = jnp.log(total_layers(model)) - fewest
    stages = _least(_least(room - fewest - tp - cp, layers), jnp.log(family.largest_pp) - fewest)
    pp = fewest + share["pp"] * stages
    vpp = share["vpp"] * _least(jnp.log(total_layers(model)) - pp, jnp.log(INTERLEAVING[-1] * 1.0))
    # ep lies within the chips of a stage.
    ep = share["ep"] * _least(jnp.log(model.n_experts), room - pp)
    # dp = n / (tp cp pp): all chips are used.
    dp = room - tp - cp - pp
    return {"tp": tp, "cp": cp, "pp": pp, "vpp": vpp, "ep": ep, "dp": dp, "shard_group": dp}


def plan_with(
    share: dict[str, Array], split: dict[str, Array], replica_batch: Array, family: Family, software: Plan | None = None
) -> Plan:
    """Plan from logarithms of degrees, with sequence parallelism.

    Args:
        share: shares of the room by name, of which only `micro_batch_size` is used [1].
        split: logarithms of the degrees, from `splits` [1].
        replica_batch: logarithm of the sequences per step and replica [1].
        family: sharding and recomputation.
        software: plan with the remaining fields; an unknown framework where None.
    """
    micro_batch = share["micro_batch_size"] * replica_batch
    logs = {**split, "micro_batch_size": micro_batch, "n_microbatches": replica_batch - micro_batch}
    changes = {name: jnp.exp(log) for name, log in logs.items()}
    changes |= {"zero_stage": family.zero_stage, "recompute_full": family.recompute_full}
    return with_fields(software or Plan(), {"sequence_parallel": 1.0, **changes})


def _least(first: ArrayLike, second: ArrayLike) -> Array:
    return smooth_min(jnp.asarray(first), jnp.asarray(second), TEMPERATURE)


PLAN_COORDINATES = ("tp", "cp", "pp", "micro_batch_size", "vpp", "ep")
"""Degrees of the coordinates, in order."""

PLAN_QUANTITIES = ("step_time", "memory", "replicas")
"""Log quantities of the problem: natural logarithms, SI units; `replicas` is dp."""


class PlanProblem(eqx.Module):
    """Search problem over continuous plans of one family; every leaf is an array.

    Attributes:
        model: the transformer.
        cluster: chips and network, all used by a plan.
        coefficients: fitted parameters.
        batch: B, sequences of a step [sequence].
        software: plan with the fixed fields of all plans; the degrees are not used.
        family: sharding and recomputation.
    """

    model: Transformer
    cluster: Cluster
    coefficients: Coefficients
    batch: Float[ArrayLike, "*batch"] = eqx.field(converter=as_float)
    software: Plan
    family: Family

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the log quantities: `PLAN_QUANTITIES`."""
        return PLAN_QUANTITIES

    def plan_at(self, point: Float[Array, " coordinate"]) -> Plan:
        """Continuous plan at a point of the unit cube."""
        share = {name: point[index] for index, name in enumerate(PLAN_COORDINATES)}
        room = jnp.log(self.cluster.n_chips)
        split = splits(share, self.family, self.model, jnp.log(self.model.n_heads), room)
        # B / dp sequences for each replica.
        return plan_with(share, split, jnp.log(self.batch) - split["dp"], self.family, self.software)

    def log_quantities(self, point: Float[Array, " coordinate"]) -> Float[Array, " quantity"]:
        """Logarithms of `PLAN_QUANTITIES` at a point of the unit cube, by the smooth model."""
        plan = self.plan_at(point)
        times, peak = step_and_memory(self.model, plan, self.cluster, self.coefficients, TEMPERATURE)
        return jnp.log(jnp.stack([times.total, peak.total, plan.dp]))


def relaxed_problems(task: PlanTask) -> list[PlanProblem]:
    """Continuous problems of a task, one for each family of sharding and recomputation."""
    fixed = (task.model, task.cluster, task.coefficients, task.stated_batch, task.space.base)
    return [PlanProblem(*fixed, family) for family in families_for(task.n_chips)]


def most_replicas(task: PlanTask) -> float:
    """Largest dp of a task: the greatest common divisor of chips and batch [1]."""
    return float(math.gcd(round(task.n_chips), round(task.stated_batch)))


def plan_goals(tasks: list[PlanTask]) -> Goals:
    """Goals of the search, one row per task: least step time within the limits of memory and replicas."""
    # Step time is the objective and has no bound.
    unbounded = np.full(len(tasks), UNBOUNDED)
    memory_limits = np.asarray([task.memory_limit for task in tasks])
    replicas = np.asarray([most_replicas(task) for task in tasks])
    upper = np.stack([unbounded, np.log(memory_limits), np.log(replicas)], axis=1)
    return Goals(PLAN_QUANTITIES, np.tile([1.0, 0.0, 0.0], (len(tasks), 1)), upper)


WINDOW = {"tp": 5, "pp": 5, "cp": 5, "vpp": 9, "ep": 4, "micro_batch_size": 4}
"""Values of every degree in a window. Interleavings divide the layers of a stage, so that neighbouring values may be
far apart [1]."""

Centre = tuple[float, ...]
"""Degrees in the order of `WINDOW` [1]."""

PLANS_AT_ONCE = 64
"""Points that one call turns into plans [point]."""


N_STARTS = 9
"""Rough searches for each family of sharding and recomputation [1]."""

ROUGH_STEPS = 60
"""Evaluations of each rough search [1]."""

CANDIDATES = 4
"""Rough optima per task that are refined to exact optima [1]."""


def relax_plans(tasks: Sequence[PlanTask]) -> list[list[RelaxedPlan]]:
    """Continuous optima of many tasks at once.

    Args:
        tasks: tasks of the searches.

    Returns:
        Optima of each task, the best first.
    """
    of_task = [relaxed_problems(task) for task in tasks]
    # (problems,): index of the task.
    owner = np.repeat(np.arange(len(tasks)), [len(problems) for problems in of_task])
    every = Problems.of([problem for problems in of_task for problem in problems])
    wanted = plan_goals([tasks[index] for index in owner.tolist()])
    rows = np.repeat(np.arange(len(owner)), N_STARTS)
    starts = np.tile(start_points(N_STARTS, len(PLAN_COORDINATES)), (len(owner), 1))
    rough = rough_search(starts, every.rows(rows), wanted.rows(rows), ROUGH_STEPS)
    chosen = []
    for index in range(len(tasks)):
        mine = np.flatnonzero(owner[rows] == index)
        chosen.append(mine[promising(rough.merits[mine], rows[mine])[:CANDIDATES]])
    picked = np.concatenate(chosen)
    kept = rows[picked]
    parts = [np.flatnonzero(owner[kept] == index) for index in range(len(tasks))]
    return _exact(rough.points[picked], every.rows(kept), wanted.rows(kept), parts)


def _exact(points: np.ndarray, problems: Problems, wanted: Goals, parts: list[np.ndarray]) -> list[list[RelaxedPlan]]:
    """Exact optima from rough points, ranked within each group of `parts`."""
    optimum = polish(points, problems, wanted)
    best = [part[best_candidate(optimum.rows(part), wanted.rows(part))] for part in parts]
    # Multipliers and residual of the best optimum of each task.
    optimum = certify(optimum, np.asarray(best), problems, wanted)
    return [_ranked(optimum.rows(part), wanted.rows(part), problems.rows(part)) for part in parts]


def _ranked(optimum: Optimum, wanted: Goals, problems: Problems) -> list[RelaxedPlan]:
    best = best_candidate(optimum, wanted)
    plans = plans_at(optimum.point, problems)
    order = [best, *(row for row in np.argsort(optimum.values[:, 0]) if row != best)]
    return [
        RelaxedPlan(
            plan=plans[row],
            step_time=float(np.exp(optimum.values[row, 0])),
            residual=float(optimum.residual[row]),
            converged=bool(optimum.residual[row] <= CONVERGED),
            # The objective has no multiplier.
            multipliers=optimum.multipliers[row, 1:],
        )
        for row in order
    ]


def plans_at(points: np.ndarray, problems: Problems) -> list[Plan]:
    """Continuous plans at a point of each problem."""
    leaves = in_blocks(_plan_leaves, PLANS_AT_ONCE, (points, problems.numbers), problems.layout)
    structure = jax.tree.structure(Plan())
    return [jax.tree.unflatten(structure, [leaf[row] for leaf in leaves]) for row in range(len(points))]


@filter_jit
def _plan_leaves(points: ArrayLike, numbers: ArrayLike, layout: LeafLayout) -> tuple[Array, ...]:
    plans = jax.vmap(lambda point, row: layout.module(row).plan_at(point))(points, numbers)
    return tuple(jax.tree.leaves(plans))


def search_plans(tasks: Sequence[PlanTask]) -> list[FoundPlans]:
    """Find the best valid plans near the continuous optima.

    Args:
        tasks: tasks of the searches, all run at once.

    Returns:
        One result per task; without plans where no plan is valid.
    """
    optima = relax_plans(tasks)
    return [_near(task, mine) for task, mine in zip(tasks, optima, strict=True)]


def _near(task: PlanTask, optima: list[RelaxedPlan]) -> FoundPlans:
    """Window with the best plan, among all windows on the paths from the continuous optima."""
    best, searched, seen = None, 0, set()
    for relaxed in optima:
        start = tuple(number(getattr(relaxed.plan, name)) for name in WINDOW)
        for window in _windows_from(start, task, seen):
            searched += len(window.table)
            if best is None or window.merits[window.best] < best.merits[best.best]:
                best = window
    if best is None:
        # No plan has half a chip: an empty table with the right columns.
        empty = enumerate_plans(task.model, 0.5, task.batch, task.space)
        best = FoundPlans(empty, Scores(np.zeros(0), np.zeros(0)), task.memory_limit, 0)
    return best._replace(searched=searched, relaxed=optima[0])


def _windows_from(centre: Centre, task: PlanTask, seen: set[Centre]) -> Iterator[FoundPlans]:
    """Scored windows, each around the best plan of the previous window, until the best plan no longer improves."""
    lowest = math.inf
    # A window seen from an earlier start ends the walk.
    while centre not in seen:
        seen.add(centre)
        table = _window(task, centre)
        if table is None:
            return
        scores = score_plans(task.model, table, task.cluster, task.coefficients)
        window = FoundPlans(table, scores, task.memory_limit, len(table))
        yield window
        merit = float(window.merits[window.best])
        # Not less, or nan: stop.
        if not merit < lowest:
            return
        lowest = merit
        centre = tuple(float(table.columns[name][window.best]) for name in WINDOW)


def _window(task: PlanTask, centre: Centre) -> PlanTable | None:
    """Valid plans around a centre, in a window widened until it holds a plan; None for a space without valid plan."""
    options = admissible(task.model, task.n_chips, task.batch, task.space)
    widening = 1
    while True:
        near = {
            name: _nearest(options[name], degree, widening * width)
            for (name, width), degree in zip(WINDOW.items(), centre, strict=True)
        }
        narrowed = dataclasses.replace(task.space, **{name: tuple(values.tolist()) for name, values in near.items()})
        table = enumerate_plans(task.model, task.n_chips, task.batch, narrowed)
        if len(table):
            return table
        if all(len(near[name]) == len(options[name]) for name in WINDOW):
            return None
        # Degrees of whole numbers may be sparse around the centre.
        widening *= 2


def _nearest(options: np.ndarray, wanted: float, count: int) -> np.ndarray:
    # Degrees are compared by ratio.
    order = np.argsort(np.abs(np.log(options) - np.log(max(wanted, 1.0))), kind="stable")
    return np.sort(options[order[:count]])
