"""Results of `best_plan`: ranked plans, alternatives and reasons, as text and JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxscale.base.show import MOST_LINES, Printout, printed
from jaxscale.base.units import GB, quantity
from jaxscale.plans.plan import Plan, in_short


@printed(lambda scored: Printout(f"ScoredPlan: {in_short(scored.plan.words())}", ("", ""), _figures(scored)))
@dataclass(frozen=True, repr=False)
class ScoredPlan:
    """A plan with predicted time and memory.

    Attributes:
        plan: the plan.
        step_time: predicted step time [s].
        mfu: model flops over the 16-bit peak, attention counted in full [1].
        memory: peak of the fullest chip in the definition of a program's printout: all terms but `framework` [byte].
        oom_probability: probability that a run exceeds the memory of the chip, from the scatter of measured peaks [1].
        terms: step time by cause [s].
        memory_terms: peak memory by cause; `framework` is memory of the driver, outside the program [byte].
    """

    plan: Plan
    step_time: float
    mfu: float
    memory: float
    oom_probability: float
    terms: Mapping[str, float] = field(repr=False)
    memory_terms: Mapping[str, float] = field(repr=False)

    @property
    def held(self) -> float:
        """Total memory of the fullest chip, compared with the memory limit [byte]."""
        return self.memory + self.memory_terms["framework"]

    def to_json(self) -> dict[str, Any]:
        """The fields of the plan, and `step_time_s`, `mfu`, `memory_gb`, `oom_probability`."""
        figures = {"step_time_s": self.step_time, "mfu": self.mfu, "memory_gb": self.memory / GB}
        return {**self.plan.words(), **figures, "oom_probability": self.oom_probability}


@dataclass(frozen=True)
class Alternative:
    """Plan that differs from the best plan in one decision.

    Attributes:
        decision: name of the decision.
        before: value in the best plan.
        after: value in the alternative.
        time_change: step time over the step time of the best plan, less 1 [1].
        memory_change: peak memory beyond the peak of the best plan [byte].
        fits: whether the alternative stays within the memory limit.
    """

    decision: str
    before: Any
    after: Any
    time_change: float
    memory_change: float
    fits: bool

    @property
    def text(self) -> str:
        """One line, such as `tp 8 -> 4: -3.1 % time, +6.2 GB memory, which does not fit`."""
        change = f"{self.decision} {self.before} -> {self.after}: {100.0 * self.time_change:+.1f} % time"
        memory = f"{self.memory_change / GB:+.1f} GB memory"
        return f"{change}, {memory}" + ("" if self.fits else ", which does not fit")


@printed(lambda choice: _shown(choice))
@dataclass(frozen=True, repr=False)
class PlanChoice:
    """Fastest plans that fit, with the extent of the search.

    Attributes:
        best: the fastest plan that fits.
        top: the fastest plans in order, the best first.
        step_time_interval: ends of the central 90 % interval of the step time of the best plan [s].
        searched: number of scored valid plans.
        infeasible: scored plans, or plans of the best window of a local search, that exceed the memory limit.
        exhaustive: whether every valid plan of the space was scored.
        memory_limit: largest predicted peak at the accepted probability of running out of memory [byte].
        alternatives: plans that differ from the best plan in one decision, the closest in time first.
        binds: sentences on the memory and time that prevent a faster step, and on an unstated fact.
        relaxed_step_time: step time of the continuous optimum at the start of a local search [s].
        kkt_residual: KKT residual of the continuous optimum; a large value is no certificate [1].
        placement: nodes of the best plan in order, and step times and links, where links were measured.
    """

    best: ScoredPlan
    top: tuple[ScoredPlan, ...]
    step_time_interval: tuple[float, float]
    searched: int
    infeasible: int
    exhaustive: bool
    memory_limit: float
    alternatives: tuple[Alternative, ...]
    binds: tuple[str, ...]
    relaxed_step_time: float | None = None
    kkt_residual: float | None = None
    placement: Mapping[str, Any] | None = None

    @property
    def reasons(self) -> tuple[str, ...]:
        """Lines on the alternatives to the best plan, one line per alternative."""
        return tuple(alternative.text for alternative in self.alternatives)

    def to_json(self) -> dict[str, Any]:
        """The document of `jaxscale plan --json`."""
        return {
            "best": self.best.to_json(),
            "top": [scored.to_json() for scored in self.top],
            "step_time_interval_s": list(self.step_time_interval),
            "searched": self.searched,
            "infeasible_by_memory": self.infeasible,
            "exhaustive_optimum": self.exhaustive,
            "memory_limit_gb": self.memory_limit / GB,
            "terms_s": dict(self.best.terms),
            "memory_terms_gb": {name: term / GB for name, term in self.best.memory_terms.items()},
            "reasons": list(self.reasons),
            "binds": list(self.binds),
            "relaxed_step_time_s": self.relaxed_step_time,
            "kkt_residual": self.kkt_residual,
            **({} if self.placement is None else {"placement": dict(self.placement)}),
        }

    def summary(self) -> str:
        """The choice in a few lines of text."""
        figures = f"{self.best.step_time:.4g} s, MFU {self.best.mfu:.1%}, {self.best.memory / GB:.1f} GB"
        count = f"{self.searched} valid plans scored, {self.infeasible} of them beyond {self.memory_limit / GB:.1f} GB"
        best = in_short(self.best.plan.words())
        told = [f"best plan: {best}", f"{figures}; {count}", *self.placed, *self.binds, *self.reasons]
        return "\n".join(told)

    @property
    def placed(self) -> tuple[str, ...]:
        """Sentences on the placement of the best plan; none where links are equal."""
        if self.placement is None:
            return ()
        one = self.placement
        gain = f"the given order is {100.0 * one['gain']:.2g} % slower" if one["gain"] > 0.0 else "as they were given"
        words = [f"nodes in order: {' '.join(one['nodes'])} ({gain})"]
        for name, text in (("ring", "slowest link of a ring"), ("hop", "mean hop between stages")):
            if one[f"{name}_gb_per_s"] is not None:
                here, given = (one[f"{start}{name}_gb_per_s"] for start in ("", "given_"))
                words.append(f"{text}: {here:.4g} GB/s, {given:.4g} in the given order")
        return tuple(words)


def _figures(scored: ScoredPlan) -> list[tuple[str, str]]:
    """Step time, MFU, memory and risk of a plan with units."""
    return [
        ("step", quantity(scored.step_time, "s")),
        ("MFU", f"{100.0 * scored.mfu:.1f} %"),
        ("memory", quantity(scored.memory, "byte")),
        ("probability of running out", f"{100.0 * scored.oom_probability:.2g} %"),
    ]


def _shown(choice: PlanChoice) -> Printout:
    """Printout: ranked plans, interval of the best plan, and binding limits."""
    rows = [
        (in_short(scored.plan.words()), *(text for _, text in _figures(scored))) for scored in choice.top[:MOST_LINES]
    ]
    lo, hi = (quantity(end, "s") for end in choice.step_time_interval)
    proof = "all valid plans" if choice.exhaustive else "by gradient and local search"
    notes = (f"90 % interval of the first: {lo} to {hi}", f"{choice.searched} plans scored, {proof}", *choice.binds)
    return Printout("PlanChoice: the fastest plans that fit", ("plan", "step", "MFU", "memory", "risk"), rows, notes)
