"""Comparison of a plan, of the user or of a published run, with the best plan: rank, differences and their cost."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from jaxscale.base.arrays import number
from jaxscale.base.documents import data_path, read_toml
from jaxscale.base.errors import InputError, check_known
from jaxscale.base.show import Printout, printed
from jaxscale.base.units import GB
from jaxscale.calibration.intervals import Z90
from jaxscale.calibration.memory_limit import ACCEPTED_RISK, probability_of_oom
from jaxscale.calibration.record import AnyFit, Fit, fit_of
from jaxscale.costs.memory import memory
from jaxscale.costs.step import step_time
from jaxscale.hardware.catalogue import Hardware, cluster, load_hardware
from jaxscale.hardware.cluster import Cluster
from jaxscale.models import catalogue_model, model
from jaxscale.models import model as model_of
from jaxscale.models.transformer import Transformer
from jaxscale.plans.best_plan import answered, cluster_and_chip, question_of_levels, scored_plans, searched
from jaxscale.plans.choice import PlanChoice, ScoredPlan
from jaxscale.plans.plan import DECIDED, END_STAGES, FLAGS, SIZES, SOFTWARE_CHOICES, SWITCHES, Plan, in_short
from jaxscale.plans.plan_questions import COUNTS, SOFTWARE_KINDS, PlanQuestion, find_plans, plan_question
from jaxscale.plans.rules import RULES, violations
from jaxscale.plans.score import SAME_DIGITS, FoundPlans, PlanTask
from jaxscale.runs.schema import BY_NAME

PLAN_SPREAD = 0.074
"""Standard deviation of the log error of a plan, without errors that are common to the plans of a sweep: model, chips
and software are equal, and their errors cancel. From the rivals in 175 groups of measured runs, with the model left out
of the fit (fits/regret.md, 2026-11) [1]."""

_DEGREES = ("tp", "pp", "vpp", "cp", "ep", "micro_batch_size", "zero_stage", "shard_group", "sequence_parallel")
FIELDS = (*_DEGREES, "recompute", "schedule", "precision", *SOFTWARE_CHOICES, *FLAGS, *SIZES)
"""Compared fields: dp and the number of microbatches follow from these fields."""


@dataclass(frozen=True)
class Difference:
    """Field of a plan with another value in the best plan, and the cost of the difference.

    Attributes:
        field: argument of `Plan`.
        theirs: value in the plan.
        ours: value in the best plan.
        time_cost: step time over the step time with the value of the best plan, less 1 [1]; None without a valid plan.
        memory_cost: peak memory beyond the peak with the value of the best plan [byte]; None without a valid plan.
        problem: broken rule, where changing the field alone gives no valid plan; else empty.
    """

    field: str
    theirs: Any
    ours: Any
    time_cost: float | None
    memory_cost: float | None
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON, with the cost of time as `time_cost` [1] and the cost of memory as `memory_cost_gb`."""
        memory = None if self.memory_cost is None else self.memory_cost / GB
        values = {"field": self.field, "theirs": self.theirs, "ours": self.ours, "time_cost": self.time_cost}
        return {**values, "memory_cost_gb": memory, "problem": self.problem}


@printed(lambda found: Printout(found.summary()))
@dataclass(frozen=True, repr=False)
class AgainstBest:
    """Comparison of a plan with the best plan.

    Attributes:
        theirs: the plan.
        ours: the best plan.
        rank: rank by time among the plans that fit, 1 for the best [1].
        ranked: plans that fit, with plans of equal work on each chip counted once [1].
        fits: whether the plan stays within the memory limit.
        differences: differences by falling cost, differences without a valid plan last.
        notes: stated values that were not used.
    """

    theirs: ScoredPlan
    ours: ScoredPlan
    rank: int
    ranked: int
    fits: bool
    differences: tuple[Difference, ...]
    notes: tuple[str, ...] = ()

    @property
    def time_cost(self) -> float:
        """Step time over that of the best plan, less 1 [1]."""
        return self.theirs.step_time / self.ours.step_time - 1.0

    @property
    def probability_slower(self) -> float:
        """Probability that the plan takes longer than the best plan, from the error that differs between plans [1]."""
        # The errors of two plans are independent: variances add.
        spread = math.sqrt(2.0) * PLAN_SPREAD
        return NormalDist().cdf(math.log(self.theirs.step_time / self.ours.step_time) / spread)

    @property
    def is_told_apart(self) -> bool:
        """Whether the time differs from the best plan's by more than the 90 % interval of the model's error."""
        # 90 % interval of a difference of two plans.
        return abs(math.log1p(self.time_cost)) > Z90 * math.sqrt(2.0) * PLAN_SPREAD

    def to_json(self) -> dict[str, Any]:
        """JSON document of the comparison: field `against` of `jaxscale plan --against --json`."""
        return {
            "theirs": self.theirs.to_json(),
            "rank": self.rank,
            "ranked": self.ranked,
            "fits": self.fits,
            "time_cost": self.time_cost,
            "probability_slower": self.probability_slower,
            "told_apart": self.is_told_apart,
            "differences": [difference.to_json() for difference in self.differences],
            "notes": list(self.notes),
        }

    def summary(self) -> str:
        """Rank, figures and significance of the difference, in two sentences."""
        theirs, fits = self.theirs, "" if self.fits else ", which does not fit"
        memory = f"{theirs.memory / GB:.1f} GB{fits}, out of memory with a probability of {theirs.oom_probability:.1%}"
        place = f"rank {self.rank} of {self.ranked}: {in_short(theirs.plan.words())}: {theirs.step_time:.4g} s"
        apart = "told apart" if self.is_told_apart else "not told apart"
        sure = f"{self.time_cost:+.1%} time against the best, {apart}: slower with {self.probability_slower:.0%}"
        return f"{place}, {memory}; {sure}"


def compare_plan(
    stated: Plan | Mapping[str, Any],
    model: Transformer | str | Path,
    cluster: Cluster | str,
    global_batch: float | int,
    *,
    n_chips: float | int | None = None,
    fit: AnyFit = "default",
    levels: Mapping[str, str | None] | None = None,
    oom_probability: float = ACCEPTED_RISK,
    hardware: Hardware | None = None,
) -> AgainstBest:
    """Compare a plan with the fastest plan that fits: rank, differences, and cost of each difference.

    `js.compare_plan({"tp": 8, "zero_stage": 3}, "llama3-8b", "h100-80gb", 512, n_chips=64)`

    Args:
        stated: the plan; or values of columns of a runs table, with missing columns completed.
        model: the transformer, or name or file of a transformer.
        cluster: chips and network; or the name of a chip, beside `n_chips`.
        global_batch: B, sequences per step [sequence].
        n_chips: number of chips, with a cluster given by the name of a chip [1].
        fit: a fit, or the name or file of a fit.
        levels: framework, precision and further levels of the run, as in `best_plan`.
        oom_probability: accepted probability of running out of memory [1].
        hardware: catalogue of chips; the shipped catalogue where None.

    Raises:
        InputError: an unknown name, an argument out of range, or no plan of these chips agrees with the stated values.
    """
    machine, gpu = cluster_and_chip(cluster, n_chips, hardware or load_hardware())
    shape = model if isinstance(model, Transformer) else model_of(model)
    question = question_of_levels(shape, machine, global_batch, {"gpu": gpu, **(levels or {})})
    return against_best(question, stated, fit_of(fit, hardware), oom_probability)


def against_best(
    question: PlanQuestion,
    stated: Plan | Mapping[str, Any],
    fit: Fit,
    oom_probability: float = ACCEPTED_RISK,
    found: FoundPlans | None = None,
    plan: Plan | None = None,
) -> AgainstBest:
    """Compare a plan with the best plan for model, cluster, batch and levels of a plan question.

    Args:
        question: model, cluster, batch and open choices.
        stated: the plan; or values of columns of a runs table, with missing columns completed.
        fit: calibration.
        oom_probability: accepted probability of running out of memory [1].
        found: the plans that answer the question, if known.
        plan: the plan of the stated columns, where they leave no decision open.

    Raises:
        InputError: no plan of these chips and this batch agrees with the columns, or none answers the question.
    """
    task = question.task(fit, oom_probability)
    found = searched(question, fit, oom_probability) if found is None else found
    notes: tuple[str, ...] = ()
    if isinstance(stated, Plan):
        theirs = stated
    else:
        theirs = _completed(question, stated, fit, oom_probability) if plan is None else _checked(plan, task)
        notes = _notes(question, stated)
    ours = found.table.plan(int(found.ranked(1)[0]))
    # Each difference alone: a field of the plan takes the value of the best plan.
    changed = [(name, _with(theirs, ours, name, task)) for name in FIELDS if _differs(theirs, ours, name)]
    plans = [plan for _, plan in changed if isinstance(plan, Plan)]
    mine, best, *others = scored_plans(task, question.usable(fit), [theirs, ours, *plans])
    costs = iter(others)
    differences = [
        _difference(name, theirs, ours, mine, next(costs) if isinstance(plan, Plan) else plan) for name, plan in changed
    ]
    rank, ranked = _place(found, mine)
    ordered = sorted(differences, key=lambda one: math.inf if one.time_cost is None else -one.time_cost)
    return AgainstBest(mine, best, rank, ranked, mine.held <= task.memory_limit, tuple(ordered), notes)


_NAMES = tuple(BY_NAME)
_OF_PLANS = _NAMES[_NAMES.index("tp") : _NAMES.index("micro_batch_size") + 1]
TAKEN = tuple(name for name in ("precision", *_OF_PLANS) if name not in ("dp", "split_classes", "table_placement"))
"""Columns of a row that are used: plan and software. The remaining values come from the question."""


def _completed(question: PlanQuestion, stated: Mapping[str, Any], fit: Fit, oom_probability: float) -> Plan:
    """Best plan among the plans that agree with stated columns.

    Raises:
        InputError: no plan agrees; names the rule that the columns break.
    """
    run = {kind: question.levels.get(kind) for kind in (*SOFTWARE_KINDS, "gpu")}
    own = {name: stated[name] for name in TAKEN if stated.get(name) is not None}
    # A shard group for a different number of chips does not carry over.
    if stated.get("n_gpus") not in (None, question.n_chips):
        own.pop("shard_group", None)
    if "micro_batch_size" not in own and stated.get("n_microbatches") is not None:
        own["n_microbatches"] = stated["n_microbatches"]
    cells = {**run, **own}
    asked = plan_question(question.model, question.cluster, question.batch, cells, question.levels)
    # Recipes may break rules of a framework: then the rules of all frameworks alone.
    for rules in (asked.space.rules, RULES):
        task = asked._replace(space=replace(asked.space, rules=rules)).task(fit, oom_probability)
        (found,) = find_plans([task])
        if len(found.table):
            return found.table.plan(int(found.ranked(1)[0]) if found.fits.any() else found.best)
    degrees = {name: round(own[name]) for name in COUNTS if own.get(name) is not None}
    plan = _whole(degrees, task)
    why = plan if isinstance(plan, str) else "; ".join(_broken(plan, task)) or "no choice of the rest is valid"
    raise _refusal(degrees, why, task)


def _checked(plan: Plan, task: PlanTask) -> Plan:
    """The plan of a row without open decisions.

    Raises:
        InputError: the plan breaks a rule; names the rule.
    """
    if broken := _broken(plan, task):
        words = plan.words()
        usual = {"vpp": 1, "cp": 1, "ep": 1, "zero_stage": 0, **dict.fromkeys(END_STAGES, 0)}
        told = {name: words[name] for name in COUNTS if words[name] != usual.get(name)}
        raise _refusal(told, "; ".join(broken), task)
    return plan


def _refusal(degrees: Mapping[str, Any], why: str, task: PlanTask) -> InputError:
    """Error on degrees that are no plan of the chips and the batch."""
    told = ", ".join(f"{name} {value:g}" for name, value in degrees.items())
    return InputError(f"no plan of {task.n_chips:g} chips and {task.stated_batch:g} sequences has {told}: {why}")


def _notes(question: PlanQuestion, stated: Mapping[str, Any]) -> tuple[str, ...]:
    """Values of a row on run and model that differ from the question."""
    shape = catalogue_model(str(stated.get("model") or "")) or {}
    asked = {
        "gpu": question.levels.get("gpu"),
        "framework": question.levels.get("framework"),
        "n_gpus": question.n_chips,
        "global_batch_size_seqs": question.batch,
        "seq_len": number(question.model.seq_len),
        **{name: number(getattr(question.model, name)) for name in ("n_layers", "d_model", "trainable_share")},
    }
    theirs = {**shape, **{name: value for name, value in stated.items() if value is not None}}
    told = [(name, theirs.get(name), mine) for name, mine in asked.items() if mine is not None]
    return tuple(
        f"{name} = {_plain(value)} there, {_plain(mine)} here"
        for name, value, mine in told
        if value is not None and value != mine
    )


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def _whole(words: Mapping[str, Any], task: PlanTask) -> Plan | str:
    """Plan on all chips of a cluster, with replicas and microbatches computed; the reason where no plan exists."""
    replica = math.prod(words.get(name, 1) for name in ("tp", "pp", "cp"))
    # dp = n / (tp pp cp), m = B / (dp b)
    dp = task.n_chips / replica
    passes = task.stated_batch / dp / words.get("micro_batch_size", 1)
    if dp != int(dp):
        return f"{task.n_chips:g} chips are no multiple of tp * pp * cp = {replica}"
    if passes != int(passes):
        return (
            f"{task.stated_batch:g} sequences are no multiple of dp * micro_batch_size = {task.stated_batch / passes:g}"
        )
    return Plan(**{**words, "dp": int(dp), "n_microbatches": int(passes)})


def _broken(plan: Plan, task: PlanTask) -> list[str]:
    """Sentences on the rules that a plan breaks."""
    return violations(task.model, plan, task.n_chips, number(task.cluster.network.level(0)[0]))


def _differs(theirs: Plan, ours: Plan, name: str) -> bool:
    """Whether two plans differ in a field that both plans use."""
    one, other = theirs.words(), ours.words()
    # Fields without effect at a degree of 1.
    uses = {"sequence_parallel": "tp", "tp_overlap": "tp", "vpp": "pp", "schedule": "pp", "moe_dispatcher": "ep"}
    if name in uses and min(one[uses[name]], other[uses[name]]) == 1:
        return False
    if name == "schedule":
        # Interleaving is the choice of vpp.
        return one[name].replace("interleaved", "1f1b") != other[name].replace("interleaved", "1f1b")
    # Shard groups exist at ZeRO 3 alone.
    if name == "shard_group":
        return one["zero_stage"] == other["zero_stage"] == 3 and _copies(one) != _copies(other)
    # A single replica shards nothing.
    if name == "zero_stage":
        return one[name] != other[name] and max(one["dp"] * one["cp"], other["dp"] * other["cp"]) > 1
    return one[name] != other[name]


def _copies(words: Mapping[str, Any]) -> int:
    """Copies of the sharded state [1]."""
    return words["dp"] // max(words["shard_group"], 1) or 1


def _with(theirs: Plan, ours: Plan, name: str, task: PlanTask) -> Plan | str:
    """Plan with one field from a second plan, and dependent fields adapted; the reason where no plan exists."""
    words, other = theirs.words(), ours.words()
    # Copies stay where dp changes.
    copies = _copies(other if name == "shard_group" else words)
    words[name] = other[name]
    if name == "recompute":
        words["recompute_full"] = other["recompute_full"]
    words["sequence_parallel"] = words["sequence_parallel"] and words["tp"] > 1
    words["vpp"] = words["vpp"] if words["pp"] > 1 else 1
    # Interleaving is the choice of vpp.
    if words["schedule"] in ("1f1b", "interleaved"):
        words["schedule"] = "interleaved" if words["vpp"] > 1 else "1f1b"
    whole = _whole(words, task)
    if isinstance(whole, str):
        return whole
    dp = round(number(whole.dp))
    plan = Plan(**{**whole.words(), "shard_group": dp // copies if dp % copies == 0 else dp})
    broken = _broken(plan, task)
    return broken[0] if broken else plan


def _difference(name: str, theirs: Plan, ours: Plan, mine: ScoredPlan, changed: ScoredPlan | str) -> Difference:
    """Cost of a field: the plan against the plan with the value of the best plan."""
    one, other = theirs.words()[name], ours.words()[name]
    if isinstance(changed, str):
        return Difference(name, one, other, None, None, changed)
    return Difference(name, one, other, mine.step_time / changed.step_time - 1.0, mine.memory - changed.memory)


def _place(found: FoundPlans, scored: ScoredPlan) -> tuple[int, int]:
    """Rank of a plan among the plans that fit, and number of plans that fit, with equal work counted once [1]."""
    words, columns = scored.plan.words(), found.table.columns
    pace = scored.step_time / (words["dp"] * words["micro_batch_size"] * words["n_microbatches"])
    work = np.stack([np.asarray(column, float) for column in columns.values()])
    # Replicas and ranks of cp count alike, as in `FoundPlans.ranked`.
    names = list(columns)
    cp = columns["cp"].astype(float)
    for name, power in (("dp", 1), ("shard_group", 1), ("micro_batch_size", -1), ("cp", -1)):
        work[names.index(name)] *= cp**power
    # Rounding of times makes no plan faster.
    is_faster = np.log(found.pace) < math.log(pace) - 10.0**-SAME_DIGITS
    counts = [np.unique(work[:, found.fits & chosen], axis=1).shape[1] for chosen in (is_faster, True)]
    return 1 + counts[0], max(counts[1], 1 + counts[0])


@functools.cache
def published_designs() -> dict[str, dict[str, Any]]:
    """Published runs by name, from `data/published_designs.toml`."""
    return read_toml(data_path("published_designs.toml"))["designs"]


@dataclass(frozen=True)
class Comparison:
    """Published run beside the best plan for equal model, batch and cluster.

    Attributes:
        name: name of the run.
        published: plan of the run.
        measured: published step time [s].
        predicted: predicted step time of the published plan [s].
        memory: predicted peak memory of the published plan [byte].
        oom_probability: probability that the published plan runs out of memory [1].
        choice: best plans for equal model, batch and chips, with the attention kernel of the run.
    """

    name: str
    published: Plan
    measured: float
    predicted: float
    memory: float
    oom_probability: float
    choice: PlanChoice

    @property
    def error(self) -> float:
        """Predicted over published step time of the published plan, less 1 [1]."""
        return self.predicted / self.measured - 1.0

    @property
    def gain(self) -> float:
        """Share of the predicted step time that the best plan would save [1]."""
        return 1.0 - self.choice.best.step_time / self.predicted

    @property
    def differences(self) -> dict[str, tuple[Any, Any]]:
        """Published and best value of every field with different values, by field."""
        first, second = self.published.words(), self.choice.best.plan.words()
        return {name: (first[name], second[name]) for name in first if first[name] != second[name]}


def asked(design: Mapping[str, Any]) -> tuple[PlanQuestion, Plan]:
    """`PlanQuestion` of a published run, with the software of the run, and the published plan.

    Args:
        design: table of a run in `published_designs`.
    """
    shape, machine = model(design["model"], seq_len=design["seq_len"]), cluster(design["gpu"], design["n_gpus"])
    cells = {"gpu": design["gpu"], "precision": "bf16", "framework": design.get("framework"), **design.get("cells", {})}
    question = plan_question(shape, machine, design["global_batch_size_seqs"], cells)
    # The software of a run may state the recomputation.
    undecided = {name: getattr(Plan(), name) for name in DECIDED if name not in SWITCHES["recompute"].values()}
    plan = dataclasses.replace(question.space.software, **{**undecided, **design["plan"]})
    return question._replace(space=dataclasses.replace(question.space, software=plan)), plan


def compare_design(name: str, fit: AnyFit = "default") -> Comparison:
    """Best plan for the model, batch and cluster of a published run, beside the published plan.

    Args:
        name: name of a run in `published_designs`.
        fit: a fit, or the name or file of a fit.

    Returns:
        Published and best plan with step times.

    Raises:
        InputError: unknown name; lists the valid names.
    """
    known = published_designs()
    check_known("published design", name, known)
    record, (question, plan) = fit_of(fit), asked(known[name])
    fitted = record.coefficients(question.levels, question.n_chips)
    seconds, peak = (number(part(question.model, plan, question.cluster, fitted).total) for part in (step_time, memory))
    risk = float(probability_of_oom(peak, number(question.cluster.chip.hbm_bytes), question.usable(record)))
    return Comparison(name, plan, known[name]["step_time_s"], seconds, peak, risk, answered(question, record))
