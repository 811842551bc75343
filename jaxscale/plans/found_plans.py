"""Results of a search for a plan: scored plans, and the continuous optimum nearby."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from jaxscale.optimise.candidates import CONVERGED
from jaxscale.plans.enumerate import PlanTable
from jaxscale.plans.plan import Plan
from jaxscale.plans.score import Scores

MISFIT = 1e12
"""Merit of plans that exceed the memory, per share of the limit: far above every pace [s]."""


SAME_DIGITS = 6
"""Digits of the log of a pace: plans that differ by rounding alone count as equally fast [1]."""

SAME_TIME = 1.01
"""Time over that of the same work spelt in other words, up to which the two are told as one [1]."""


class RelaxedPlan(NamedTuple):
    """A continuous optimum, by the smooth model.

    Attributes:
        plan: degrees.
        step_time: [s].
        residual: KKT residual [1].
        multipliers: d ln step time / d ln bound, of memory and of the batch, negated [quantity].
    """

    plan: Plan
    step_time: float
    residual: float
    multipliers: np.ndarray

    @property
    def converged(self) -> bool:
        """Whether the residual certifies an optimum."""
        return self.residual <= CONVERGED


class FoundPlans(NamedTuple):
    """Plans that a search has scored.

    Attributes:
        table: every valid plan, or the plans of the window that holds the best.
        scores: of the plans in the table.
        memory_limit: largest peak of a chip that fits [byte].
        searched: plans scored in all, windows left behind included.
        relaxed: the continuous optimum from which a local search began; None where every plan is scored.
        cost: of each plan, as its energy, scaled as a pace, by which plans are compared; their pace where None [s].
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
        """Time of a sequence, by which plans are compared where no cost is given: batches may differ [s], [plan]."""
        if self.cost is not None:
            return self.cost
        columns = self.table.columns
        sequences = columns["dp"] * columns["micro_batch_size"] * columns["n_microbatches"]
        return self.scores.step_time.astype(float) / sequences

    @property
    def merits(self) -> np.ndarray:
        """Pace of plans that fit; far above every pace, by the excess of memory, elsewhere [s], [plan]."""
        return np.where(self.fits, self.pace, MISFIT * self.scores.memory / self.memory_limit)

    @property
    def best(self) -> int:
        """Row of the fastest plan that fits; of the leanest where none does."""
        return int(np.argmin(self.merits))

    def ranked(self, most: int | None = None) -> np.ndarray:
        """Rows of the plans that fit, fastest first; of equally fast ones the leaner first.

        Of plans that put the same work on each chip in other words (dp 32, cp 2, microbatches of 1, as dp 16, cp 4,
        microbatches of 2), and take the same time, the one of the least cp stands for all.

        Args:
            most: rows at most; all of them where None [1].
        """
        rows = np.flatnonzero(self.fits)
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
        """What a plan puts on each chip, whichever way it is spelt: replicas and parts of a sequence are alike."""
        plan = {name: float(column[row]) for name, column in self.table.columns.items()}
        cp = plan.pop("cp")
        plan["dp"] *= cp
        plan["shard_group"] *= cp
        plan["micro_batch_size"] /= cp
        return tuple(plan.values())

    def _is_simpler(self, row: int, other: int) -> bool:
        """Whether a plan that takes the same time as another splits a sequence into fewer parts."""
        columns = self.table.columns
        is_equal = abs(np.log(self.pace[row] / self.pace[other])) < 10.0**-SAME_DIGITS
        return bool(is_equal and columns["cp"][row] < columns["cp"][other])
