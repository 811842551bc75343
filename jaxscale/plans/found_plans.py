"""Results of a search for a plan: scored plans, and the continuous optimum nearby."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool

from jaxscale.optimise.candidates import CONVERGED
from jaxscale.plan.plan import Plan
from jaxscale.plans.enumerate import PlanTable
from jaxscale.plans.score import Scores

MISFIT = 1e12
"""Merit of plans that exceed the memory, per share of the limit: far above every step time [s]."""


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
    """

    table: PlanTable
    scores: Scores
    memory_limit: float
    searched: int
    relaxed: RelaxedPlan | None = None

    @property
    def fits(self) -> Bool[np.ndarray, " plan"]:
        """Whether each plan stays within the memory limit [plan]."""
        return self.scores.memory <= self.memory_limit

    @property
    def merits(self) -> np.ndarray:
        """Step time of plans that fit; far above every step time, by the excess of memory, elsewhere [s], [plan]."""
        return np.where(self.fits, self.scores.step_time, MISFIT * self.scores.memory / self.memory_limit)

    @property
    def best(self) -> int:
        """Row of the fastest plan that fits; of the leanest where none does."""
        return int(np.argmin(self.merits))

    def ranked(self) -> np.ndarray:
        """Rows of the plans that fit, fastest first; of equally fast ones the leaner first."""
        rows = np.flatnonzero(self.fits)
        # Six digits of the log: plans that differ by rounding alone count as equally fast.
        time = self.scores.step_time[rows].astype(float)
        return rows[np.lexsort((self.scores.memory[rows], np.round(np.log(time), 6)))]
