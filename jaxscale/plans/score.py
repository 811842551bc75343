"""Step time and memory of many plans at once, and task and result of a search for a plan."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float

from jaxscale.base.arrays import number, stacked, with_columns
from jaxscale.calibration.coefficients import Coefficients, values_of
from jaxscale.costs.evaluate import BLOCK_ROWS, MEMORY_TERMS, Columns, collected, started
from jaxscale.costs.step import TERM_NAMES
from jaxscale.hardware.cluster import Cluster
from jaxscale.models.transformer import Transformer
from jaxscale.plans.enumerate import PlanSpace, PlanTable
from jaxscale.plans.plan import Plan
from jaxscale.runs.arrays import RunBatch


class Scores(NamedTuple):
    """Scores of many plans in a search.

    Attributes:
        step_time: step time [s], [plan].
        memory: peak of the fullest chip [byte], [plan].
    """

    step_time: Float[np.ndarray, " plan"]
    memory: Float[np.ndarray, " plan"]


class Detail(NamedTuple):
    """Cost terms, memory terms and figures of one plan.

    Attributes:
        terms: step time by cause [s].
        memory_terms: peak memory by cause [byte].
        mfu: model flops over the 16-bit peak, attention counted in full [1].
        step_time: step time [s].
        memory: peak of the fullest chip [byte].
    """

    terms: dict[str, float]
    memory_terms: dict[str, float]
    mfu: float
    step_time: float
    memory: float


class Judged(NamedTuple):
    """Table of plans to be scored, with model, cluster and coefficients.

    Attributes:
        model: the transformer.
        table: the plans.
        cluster: chips and network.
        coefficients: fitted parameters.
    """

    model: Transformer
    table: PlanTable
    cluster: Cluster
    coefficients: Coefficients


def judge(every: Sequence[Judged], names: tuple[str, ...]) -> list[Columns]:
    """Columns of `jaxscale.costs.evaluate` for the plans of several tables, evaluated together.

    Args:
        every: tables of plans with models, clusters and coefficients.
        names: requested columns.

    Returns:
        The columns of each table [plan].
    """
    lengths = [len(one.table) for one in every]
    owner = np.repeat(np.arange(len(every)), lengths)
    shared = stacked([(one.model, one.table.space.base, one.cluster) for one in every])
    # (coefficients, tables)
    coefficients = np.stack([values_of(one.coefficients) for one in every], axis=1)
    fields = every[0].table.columns
    columns = {name: np.concatenate([one.table.columns[name] for one in every]) for name in fields}
    blocks = []
    # Blocks of a fixed size need a single compilation.
    for start in range(0, len(owner), BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        model, software, cluster = _of_owners(shared, owner[rows])
        plan: Plan = with_columns(software, {name: column[rows].astype(float) for name, column in columns.items()})
        block = started(RunBatch(model, plan, cluster, np.ones(len(owner[rows]))), coefficients[:, owner[rows]])
        # Columns that are not requested are freed while later blocks are computed.
        blocks.append({name: block[name] for name in names})
    found = collected(blocks, len(owner), names)
    ends = np.cumsum(lengths)[:-1]
    parts = {name: np.split(column, ends) for name, column in found.items()}
    return [{name: parts[name][place] for name in names} for place in range(len(every))]


def _of_owners(shared: Any, owner: np.ndarray) -> Any:
    """Model, software and cluster of each row."""
    return jax.tree.map(lambda leaf: leaf[owner], shared)


def score_plans(model: Transformer, table: PlanTable, cluster: Cluster, coefficients: Coefficients) -> Scores:
    """Step time and peak memory of every plan of a table, by the exact model.

    Args:
        model: the transformer.
        table: the plans.
        cluster: chips and network.
        coefficients: fitted parameters.

    Returns:
        Scores as numpy arrays, in the order of the table.
    """
    return score_tables([Judged(model, table, cluster, coefficients)])[0]


def score_tables(every: Sequence[Judged]) -> list[Scores]:
    """Step time and peak memory of the plans of several tables, evaluated together."""
    return [Scores(found["step_time"], found["memory"]) for found in judge(every, ("step_time", "memory"))]


def _of_plans(
    model: Transformer, plans: Sequence[Plan], cluster: Cluster, coefficients: Coefficients, names: Sequence[str]
) -> Columns:
    """Columns of a few arbitrary plans, by the program that scores tables of plans [plan]."""
    count = len(plans)
    model, cluster = _of_owners(stacked([(model, cluster)]), np.zeros(count, dtype=int))
    # (coefficients, plans)
    rows = np.repeat(np.asarray(values_of(coefficients))[:, None], count, axis=1)
    block = started(RunBatch(model, stacked(plans), cluster, np.ones(count)), rows)
    return {name: np.asarray(block[name])[:count] for name in names}


def time_plans(
    model: Transformer, plans: Sequence[Plan], cluster: Cluster, coefficients: Coefficients
) -> Float[np.ndarray, " plan"]:
    """Step time of a few arbitrary plans, by the same program as tables of plans.

    Args:
        model: the transformer.
        plans: at most `BLOCK_ROWS` plans.
        cluster: chips and network.
        coefficients: fitted parameters.

    Returns:
        Times as a numpy array [s], [plan].
    """
    return _of_plans(model, plans, cluster, coefficients, ["step_time"])["step_time"]


DETAILS = ("step_time", "memory", "mfu", *TERM_NAMES, *MEMORY_TERMS)


def detailed(model: Transformer, plans: Sequence[Plan], cluster: Cluster, coefficients: Coefficients) -> list[Detail]:
    """Time, memory and every cost term of a few arbitrary plans; arguments as in `time_plans`."""
    found = _of_plans(model, plans, cluster, coefficients, DETAILS)
    return [_detail(found, row) for row in range(len(plans))]


def _detail(found: Columns, row: int) -> Detail:
    """Numbers of one plan."""
    held = {name.removeprefix("memory_"): float(found[name][row]) for name in MEMORY_TERMS}
    terms = {name: float(found[name][row]) for name in TERM_NAMES}
    return Detail(terms, held, *(float(found[name][row]) for name in ("mfu", "step_time", "memory")))


MISFIT = 1e12
"""Merit of plans beyond the memory limit, per ratio of memory to limit: far above every pace [s]."""


SAME_DIGITS = 6
"""Digits of the logarithm of a pace that count in a comparison: plans that differ only by rounding are equally
fast [1]."""

SAME_TIME = 1.01
"""Largest time ratio of two plans with equal work on each chip at which the plans count as one [1]."""


class PlanTask(NamedTuple):
    """Task of a search for a plan: model, cluster and batch with limits.

    Attributes:
        model: the transformer.
        cluster: chips and network, all used by a plan.
        batch: sequences of a step; None where the batch follows from each plan [sequence].
        coefficients: fitted parameters, effects applied.
        memory_limit: largest predicted peak of a chip [byte].
        space: open choices.
    """

    model: Transformer
    cluster: Cluster
    batch: float | int | None
    coefficients: Coefficients
    memory_limit: float
    space: PlanSpace = PlanSpace()

    @property
    def n_chips(self) -> float:
        """Chips of the cluster [1]."""
        return number(self.cluster.n_chips)

    @property
    def stated_batch(self) -> float:
        """Sequences of a step; one sequence per chip without a stated batch [sequence]."""
        return self.n_chips if self.batch is None else float(self.batch)


class RelaxedPlan(NamedTuple):
    """Continuous optimum of the smooth model.

    Attributes:
        plan: degrees.
        step_time: step time of the smooth model [s].
        residual: KKT residual [1].
        converged: whether the residual certifies an optimum.
        multipliers: - d ln step time / d ln bound, for the bounds on memory and batch [quantity].
    """

    plan: Plan
    step_time: float
    residual: float
    converged: bool
    multipliers: np.ndarray


class FoundPlans(NamedTuple):
    """Scored plans of a search.

    Attributes:
        table: every valid plan, or the plans of the window with the best plan.
        scores: scores of the plans in the table.
        memory_limit: largest peak of a chip that fits [byte].
        searched: number of scored plans, earlier windows included.
        relaxed: continuous optimum at the start of a local search; None where every plan is scored.
        cost: quantity minimised in place of the time per sequence, such as energy, in the scale of the time; None for
            the time per sequence [s].
    """

    table: PlanTable
    scores: Scores
    memory_limit: float
    searched: int
    relaxed: RelaxedPlan | None = None
    cost: Float[np.ndarray, " plan"] | None = None

    @property
    def fits(self) -> Bool[np.ndarray, " plan"]:
        """Whether each plan stays within the memory limit [plan]."""
        return self.scores.memory <= self.memory_limit

    @property
    def pace(self) -> Float[np.ndarray, " plan"]:
        """Time per sequence, by which plans are compared, or the given cost in its place [s], [plan].

        Time per sequence and not per step, because batches may differ.
        """
        if self.cost is not None:
            return self.cost
        columns = self.table.columns
        sequences = columns["dp"] * columns["micro_batch_size"] * columns["n_microbatches"]
        # 64 bits: paces of equal plans are compared to six digits.
        return self.scores.step_time.astype(float) / sequences

    @property
    def merits(self) -> np.ndarray:
        """Value minimised by the search [s], [plan].

        The pace of a plan that fits; else a value far above every pace, growing with the memory.
        """
        # Where nothing fits, the leanest plan is the best.
        return np.where(self.fits, self.pace, MISFIT * self.scores.memory / self.memory_limit)

    @property
    def best(self) -> int:
        """Row of the fastest plan that fits, or of the plan with the least memory where no plan fits."""
        return int(np.argmin(self.merits))

    def ranked(self, most: int | None = None) -> np.ndarray:
        """Rows of the plans that fit, fastest first; among equally fast plans the plan with less memory first.

        Plans with equal work on each chip and equal time (dp 32, cp 2, microbatches of 1, and dp 16, cp 4, microbatches
        of 2) are represented by the plan with the smallest cp.

        Args:
            most: largest number of rows; all rows where None [1].
        """
        rows = np.flatnonzero(self.fits)
        # Rounding differs between programs: equal digits are equal times.
        pace = np.round(np.log(self.pace[rows]), SAME_DIGITS)
        rows = rows[np.lexsort((self.scores.memory[rows], pace))]
        kept: dict[tuple[float, ...], int] = {}
        places: list[int] = []
        for row in rows.tolist():
            key = self._work(row)
            first = kept.get(key)
            if first is None or self.pace[row] > SAME_TIME * self.pace[places[first]]:
                if most is not None and len(places) == most:
                    break
                kept[key] = len(places)
                places.append(row)
            elif self._is_simpler(row, places[first]):
                places[first] = row
        return np.asarray(places, dtype=int)

    def _work(self, row: int) -> tuple[float, ...]:
        """Work of a plan on each chip, independent of the spelling: replicas and context-parallel ranks count alike."""
        plan = {name: float(column[row]) for name, column in self.table.columns.items()}
        cp = plan.pop("cp")
        # Replicas and ranks of cp hold equal weights.
        plan["dp"] *= cp
        plan["shard_group"] *= cp
        plan["micro_batch_size"] /= cp
        return tuple(plan.values())

    def _is_simpler(self, row: int, other: int) -> bool:
        """Whether a plan has a smaller cp than a second plan with equal time."""
        columns = self.table.columns
        is_equal = abs(np.log(self.pace[row] / self.pace[other])) < 10.0**-SAME_DIGITS
        return bool(is_equal and columns["cp"][row] < columns["cp"][other])
