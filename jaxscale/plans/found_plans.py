"""A search for a plan: its task, and its results, scored plans and the nearby continuous optimum."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from jaxscale.base.arrays import number
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.hardware.cluster import Cluster
from jaxscale.models.transformer import Transformer
from jaxscale.plans.enumerate import PlanSpace, PlanTable
from jaxscale.plans.plan import Plan
from jaxscale.plans.score import Scores

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
        """Sequences of a step; one per chip without a stated batch [sequence]."""
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
        cost: objective of each plan, such as energy, scaled as a pace; the pace where None [s].
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
        """Time per sequence, the objective of the comparison without a given cost: batches may differ [s], [plan]."""
        if self.cost is not None:
            return self.cost
        columns = self.table.columns
        sequences = columns["dp"] * columns["micro_batch_size"] * columns["n_microbatches"]
        # 64 bits: paces of equal plans are compared to six digits.
        return self.scores.step_time.astype(float) / sequences

    @property
    def merits(self) -> np.ndarray:
        """Pace of plans that fit; else a value far above every pace, which grows with memory [s], [plan]."""
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
