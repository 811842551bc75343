"""Results of `best_plan`: ranked plans, alternatives, binding limits, and remedies where nothing fits."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxscale.base.arrays import number
from jaxscale.base.errors import InputError
from jaxscale.base.show import MOST_LINES, Printout, printed
from jaxscale.base.units import GB, quantity
from jaxscale.hardware.cluster import Cluster
from jaxscale.models.transformer import Transformer
from jaxscale.plans.enumerate import PlanTable
from jaxscale.plans.expert_load import dropped_share, hottest_load
from jaxscale.plans.plan import DECISIONS, RECOMPUTE, ROUTING, SCHEDULES, Plan, codes_of, in_short
from jaxscale.plans.score import FoundPlans


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
    """Fastest plans that fit in memory, with the extent of the search.

    Attributes:
        best: the fastest plan that fits.
        top: the fastest plans in order, the best first.
        step_time_interval: ends of the central 90 % interval of the step time of the best plan [s].
        searched: number of scored valid plans [1].
        infeasible: number of scored plans, or of plans in the best window of a local search, that do not fit [1].
        exhaustive: whether every valid plan of the space was scored.
        memory_limit: largest predicted peak at the accepted probability of running out of memory [byte].
        alternatives: plans that differ from the best plan in one decision, the closest in time first.
        binds: sentences on memory and time as limits to a faster step, and on unstated facts.
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
        """JSON document of the choice, as printed by `jaxscale plan --json`."""
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
        """Text of the choice: best plan, figures, limits and alternatives, line by line."""
        figures = f"{self.best.step_time:.4g} s, MFU {self.best.mfu:.1%}, {self.best.memory / GB:.1f} GB"
        count = f"{self.searched} valid plans scored, {self.infeasible} of them beyond {self.memory_limit / GB:.1f} GB"
        best = in_short(self.best.plan.words())
        told = [f"best plan: {best}", f"{figures}; {count}", *self.placed, *self.binds, *self.reasons]
        return "\n".join(told)

    @property
    def placed(self) -> tuple[str, ...]:
        """Sentences on the order of nodes of the best plan; empty without measured links."""
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


STATIC_TERMS = ("weights", "gradients", "optimizer")
"""Memory terms that more chips always divide further."""


def decisions(table: PlanTable) -> dict[str, np.ndarray]:
    """Columns of the free decisions of every plan, from which dp and the number of microbatches follow [plan]."""
    c = table.columns
    free = ("tp", "pp", "vpp", "cp", "ep", "micro_batch_size", "zero_stage", "sequence_parallel")
    return {
        **{name: c[name] for name in free},
        "copies": c["dp"] // c["shard_group"],
        # Interleaving is the decision on vpp: a schedule without a switch counts as 1F1B.
        **{choice: codes_of(choice, c) for choice in DECISIONS},
    }


def _differences(table: PlanTable, best: int) -> dict[str, np.ndarray]:
    """Decisions in which each plan differs from the best plan, without differences forced by a second decision."""
    chosen = decisions(table)
    differs = {name: column != column[best] for name, column in chosen.items()}
    c = table.columns
    unsplit = (c["tp"] == 1) | (c["tp"][best] == 1)
    unpiped = (c["pp"] == 1) | (c["pp"][best] == 1)
    # ZeRO over a single replica is no choice.
    replicas = c["dp"] * c["cp"]
    alone = (replicas == 1) | (replicas[best] == 1)
    # Without FSDP a shard group has no copies; a change to FSDP means one group of all replicas.
    sharded = c["zero_stage"] == 3
    differs["copies"] = sharded & (chosen["copies"] != np.where(sharded[best], chosen["copies"][best], 1))
    forced = {"sequence_parallel": unsplit, "vpp": unpiped, "schedule": unpiped, "zero_stage": alone}
    return {name: column & ~forced[name] if name in forced else column for name, column in differs.items()}


def alternatives(found: FoundPlans, best: int) -> tuple[Alternative, ...]:
    """Alternatives to the best plan: plans with one decision moved to the next lower or higher value.

    Args:
        found: all plans.
        best: row of the best plan.

    Returns:
        The alternatives, the closest in time first.
    """
    scores = found.scores
    differs = _differences(found.table, best)
    changes = np.sum(list(differs.values()), axis=0)
    chosen = decisions(found.table)
    nearest = []
    for name, column in chosen.items():
        # A single decision differs.
        rows = np.flatnonzero(differs[name] & (changes == 1))
        values = np.unique(column[rows])
        # Nearest value on each side.
        below, above = values[values < column[best]][-1:], values[values > column[best]][:1]
        for value in (*below, *above):
            here = rows[column[rows] == value]
            fits = found.fits[here]
            # Plans within memory first, then by time.
            row = int(here[np.lexsort((scores.step_time[here], ~fits))[0]])
            nearest.append(_alternative(name, column[best], value, found, best, row))
    return tuple(sorted(nearest, key=lambda alternative: alternative.time_change))


def _alternative(name: str, before: Any, after: Any, found: FoundPlans, best: int, row: int) -> Alternative:
    words = {"recompute": RECOMPUTE, "schedule": SCHEDULES, "sequence_parallel": (False, True)}
    spoken = [words[name][value] if name in words else int(value) for value in (before, after)]
    scores = found.scores
    return Alternative(
        decision=name.replace("copies", "copies of the shards"),
        before=spoken[0],
        after=spoken[1],
        time_change=float(scores.step_time[row] / scores.step_time[best] - 1.0),
        memory_change=float(scores.memory[row] - scores.memory[best]),
        fits=bool(found.fits[row]),
    )


def short_plan(table: PlanTable, row: int) -> str:
    """Degrees, microbatch and recomputation of a plan of a table, as short text."""
    c = table.columns
    degrees = " ".join(f"{name} {c[name][row]}" for name in ("dp", "tp", "pp", "vpp", "cp", "ep") if c[name][row] > 1)
    recompute = RECOMPUTE[int(codes_of("recompute", {name: column[row] for name, column in c.items()}))]
    return f"{degrees or 'one chip'}, micro-batch {c['micro_batch_size'][row]}, recompute {recompute}"


def binding(found: FoundPlans, best: int, terms: Mapping[str, float], peak: Mapping[str, float]) -> tuple[str, ...]:
    """Sentences on the memory limit and on the largest terms of the step time of the best plan.

    Args:
        found: all plans.
        best: row of the best plan.
        terms: step time of the best plan by cause [s].
        peak: memory of the best plan by cause [byte].

    Returns:
        One sentence on memory, one on time.
    """
    scores, limit = found.scores, found.memory_limit
    total, time = float(scores.memory[best]), float(scores.step_time[best])
    largest = max(peak, key=lambda name: peak[name])
    outside = f"{peak['framework'] / GB:.1f} GB of it outside the program's printed peak"
    used = f"{total / GB:.1f} of {limit / GB:.1f} GB used, {outside}"
    room = f"{used}, most of it {largest} ({peak[largest] / GB:.1f} GB)"
    unlimited = int(np.argmin(scores.step_time))
    gain = 1.0 - float(scores.step_time[unlimited]) / time
    if gain > 0.0:
        faster = f"memory binds: {short_plan(found.table, unlimited)} would be {100.0 * gain:.1f} % faster"
        memory = f"{faster} but takes {scores.memory[unlimited] / GB:.1f} GB; {room}"
    else:
        memory = f"memory does not bind: {room}"
    shares = sorted(terms.items(), key=lambda item: -item[1])[:4]
    return memory, "time goes to " + ", ".join(f"{name} {100.0 * term / time:.1f} %" for name, term in shares)


def hottest_experts(model: Transformer, plan: Plan) -> tuple[str, ...]:
    """Sentence on the load of the hottest expert-parallel rank and dropped tokens; none without a stated load."""
    if not any(number(getattr(plan, name)) for name in ROUTING):
        return ()
    load = number(hottest_load(model.n_experts, model.moe_top_k, plan))
    told = f"experts: the hottest of {number(plan.ep):g} ranks has {load:.2f} times the mean tokens"
    dropped = 100.0 * number(dropped_share(model.n_experts, plan))
    return (f"{told}; {dropped:.1f} % of the copies are dropped" if number(plan.capacity_factor) else told,)


def nothing_valid(
    model: Transformer, n_chips: float | int, batch: float | int, unbatched: PlanTable, stated: Mapping[str, int]
) -> InputError:
    """Error for a search in which no plan obeys the rules.

    Args:
        model: the transformer.
        n_chips: chips of the cluster [1].
        batch: global batch [sequence].
        unbatched: valid plans for a batch that is a multiple of all degrees.
        stated: degrees that are not searched, by name [1].

    Returns:
        The error, naming valid batches.
    """
    where = f"no valid plan for {n_chips:g} chips and a global batch of {batch:g} sequences"
    if not len(unbatched):
        sizes = {name: getattr(model, name) for name in ("n_heads", "n_kv_heads", "d_ff", "n_layers")}
        heads = ", ".join(f"{name} = {size:g}" for name, size in sizes.items())
        told = "".join(f", {name} = {degree:g}" for name, degree in stated.items())
        other = f"another n_chips or {' or '.join(stated)}" if stated else "another n_chips"
        return InputError(
            f"{where}: the chips do not split into dp * tp * pp * cp with {heads}{told}; expected {other}"
        )
    degrees = [str(dp) for dp in np.unique(unbatched.columns["dp"])[:4]]
    valid = f"one of {', '.join(degrees)}" if len(degrees) > 1 else degrees[0]
    return InputError(f"{where}: dp must divide the batch; expected a multiple of {valid}")


def nothing_fits(found: FoundPlans, peak: Mapping[str, float], cluster: Cluster) -> InputError:
    """Error for a search in which every plan exceeds the memory limit.

    Args:
        found: all plans.
        peak: memory of the leanest plan by cause [byte].
        cluster: the chips.

    Returns:
        The error, naming the largest term and a remedy.
    """
    row, limit = found.best, found.memory_limit
    need, capacity, n_chips = float(found.scores.memory[row]), number(cluster.chip.hbm_bytes), number(cluster.n_chips)
    largest = max(peak, key=lambda name: peak[name])
    chip = f"a chip of {math.ceil(need / limit * capacity / GB)} GB"
    rest = need - sum(peak[name] for name in STATIC_TERMS)
    # Static memory falls with the chips, the remainder stays.
    if largest in STATIC_TERMS and rest < limit:
        # n (need - rest) / (limit - rest): static terms must shrink to the room.
        more = math.ceil(n_chips * (need - rest) / (limit - rest))
        remedy = f"expected {chip}, about {more} chips, or a smaller model"
    elif largest in STATIC_TERMS:
        remedy = f"expected {chip} or a smaller model"
    else:
        remedy = f"expected {chip}, shorter sequences, or a batch that allows more chips per replica"
    allowed = f"{need / GB:.1f} GB of {limit / GB:.1f} GB allowed"
    used = f"the leanest of {len(found.table)} ({short_plan(found.table, row)}) takes {allowed}"
    return InputError(f"no plan fits in memory: {used}, most of it {largest} ({peak[largest] / GB:.1f} GB); {remedy}")
