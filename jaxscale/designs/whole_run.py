r"""Whole run of a model under a plan: tokens, days, energy, price, and time lost to failures.

$$ D = D_0 \left(1 + \frac{B}{B_\mathrm{crit}}\right), \qquad t = \frac{D}{B}\,t_\mathrm{step}\,s, \qquad
   E = n P\,t, \qquad M = n p\,t $$

with the small-batch tokens $D_0$ of a goal, the slowdown s by failures and checkpoints (inverse of the goodput),
the number n, mean power P and price p of the chips. The laws are defined in `jaxscale.designs.time_to_loss`. Plans are
compared at equal $D_0$, hence at equal loss: a larger batch takes more tokens, and more chips fail more often.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
from jaxtyping import Array, ArrayLike

from jaxscale.base.arrays import filled_rows, host_arrays, number, with_fields
from jaxscale.base.errors import InputError, check_known
from jaxscale.base.jit import filter_jit
from jaxscale.base.show import Printout, printed
from jaxscale.base.units import DAY, HOUR, in_digits
from jaxscale.calibration.memory_limit import ACCEPTED_RISK
from jaxscale.calibration.record import AnyFit, Fit, fit_of
from jaxscale.costs.power import ChipPower, mean_chip_power
from jaxscale.costs.step import TERM_NAMES, StepTime
from jaxscale.designs.quantities import JOULE_PER_MWH
from jaxscale.designs.time_to_loss import Laws, default_laws, run_figures
from jaxscale.hardware.catalogue import Hardware, load_hardware
from jaxscale.hardware.cluster import Chip, Cluster
from jaxscale.models import model as model_of
from jaxscale.models.transformer import Transformer, n_params
from jaxscale.plans.best_plan import choice_of, cluster_and_chip, question_of_levels, refuse_none
from jaxscale.plans.choice import PlanChoice
from jaxscale.plans.enumerate import PlanSpace, PlanTable
from jaxscale.plans.plan_questions import PlanQuestion, find_plans
from jaxscale.plans.score import FoundPlans, Judged, judge

OBJECTIVES = ("step", "days", "price", "energy")
"""Objectives for the choice of a plan: the fastest step of all chips, or the least days, price or energy of the run."""

OPEN = ("chips", "batch")
"""Open choices beside the plan: fewer chips than stated, a different batch."""

FEWER_CHIPS = (1, 2, 4, 8)
"""Stated number of chips over the number of a candidate [1]."""

BATCHES = (0.25, 0.5, 1, 2, 4)
"""Batch of a candidate over the stated batch [1]."""

FEWEST_TOKENS, MOST_TOKENS = 1e6, 1e20
"""Range of the small-batch tokens of a run [token]."""


class WholeRun(eqx.Module):
    """Duration, loss, energy and price of a whole run; leaves may have an axis of plans.

    Attributes:
        loss: final loss [nat per token].
        tokens: training tokens [token].
        steps: optimizer steps [1].
        seconds: time from start to end, failures included [s].
        goodput: time of all steps over the time of the run [1].
        interruptions: expected failures of the job [1].
        checkpoint_interval: optimal time between checkpoints (Young) [s].
        energy: energy of all chips, without servers and cooling [J].
        chip_hours: chips times duration [h].
        price: price of all chips; nan without a stated price [currency of the price].
    """

    loss: Array
    tokens: Array
    steps: Array
    seconds: Array
    goodput: Array
    interruptions: Array
    checkpoint_interval: Array
    energy: Array
    chip_hours: Array
    price: Array

    def figures(self) -> dict[str, float]:
        """Results of a run by name, as in the JSON output: time [day], energy [MWh]; nan for an unknown price."""
        return {
            "tokens": number(self.tokens),
            "loss": number(self.loss),
            "steps": number(self.steps),
            "days": number(self.seconds) / DAY,
            "goodput": number(self.goodput),
            "interruptions": number(self.interruptions),
            "checkpoint_interval_s": number(self.checkpoint_interval),
            "energy_mwh": number(self.energy) / JOULE_PER_MWH,
            "chip_hours": number(self.chip_hours),
            "price": number(self.price),
        }


def whole_run(
    model: Transformer,
    cluster: Cluster,
    times: StepTime,
    batch_tokens: ArrayLike,
    small_batch_tokens: ArrayLike,
    laws: Laws | None = None,
    price_per_chip_hour: ArrayLike = np.nan,
) -> WholeRun:
    """Tokens, duration, loss, energy and price of a run, from the cost terms of a step; differentiable.

    Args:
        model: the transformer; the MLP ratio carries no penalty.
        cluster: chips of the job, with power limits.
        times: terms of a step, see `jaxscale.costs.step.step_time` [s].
        batch_tokens: B, tokens per step [token].
        small_batch_tokens: D_0 of the goal, see `small_batch_tokens_of` [token].
        laws: laws of loss, batch, failures and power; by default `default_laws`.
        price_per_chip_hour: p, in any currency [1/h].

    Returns:
        The results of the run.
    """
    laws = laws or default_laws()
    n_chips, failure, held = cluster.n_chips, laws.failure, n_params(model)
    run = run_figures(
        # The model as template: no penalty of the MLP ratio.
        model,
        model,
        laws,
        small_batch_tokens=small_batch_tokens,
        batch_tokens=batch_tokens,
        step_seconds=times.total,
        n_chips=n_chips,
    )
    # [h]
    chip_hours = run.seconds * n_chips / HOUR
    return WholeRun(
        loss=run.loss,
        tokens=run.tokens,
        steps=run.tokens / batch_tokens,
        seconds=run.seconds,
        goodput=1.0 / run.slowdown,
        interruptions=run.seconds * n_chips * failure.failures_per_chip_second,
        checkpoint_interval=failure.checkpoint_interval(held, n_chips),
        # E = n P t
        energy=run.seconds * n_chips * mean_chip_power(times, cluster.chip, laws.power),
        chip_hours=chip_hours,
        # M = n p t
        price=chip_hours * price_per_chip_hour,
    )


@dataclass(frozen=True)
class RunGoal:
    """Goal of a run, exactly one of: training tokens with the stated batch, or final loss.

    Attributes:
        tokens: D, training tokens [token].
        loss: L, final loss [nat per token].
    """

    tokens: float | None = None
    loss: float | None = None

    def __post_init__(self):
        """Raise an `InputError` for no goal, two goals, or a value out of range."""
        if (self.tokens is None) == (self.loss is None):
            raise InputError("goal of a run: expected exactly one of tokens and loss")
        if self.tokens is not None and not FEWEST_TOKENS <= self.tokens <= MOST_TOKENS:
            raise InputError(f"tokens = {self.tokens:g} is out of range; expected {FEWEST_TOKENS:g} to {MOST_TOKENS:g}")


def small_batch_tokens_of(
    goal: RunGoal, model: Transformer, batch_tokens: ArrayLike, laws: Laws | None = None
) -> float:
    """Tokens $D_0$ of a small-batch run with the loss of the goal [token].

    Args:
        goal: tokens at the batch, or a loss.
        model: the transformer.
        batch_tokens: B, tokens per step of the goal [token].
        laws: laws of loss, shape and batch; by default `default_laws`.

    Raises:
        InputError: the goal is out of reach for any run, or reached by every run.
    """
    laws = laws or default_laws()
    with jax.enable_x64(True):
        ends = [_goal_figures(model, laws, batch_tokens, tokens) for tokens in (FEWEST_TOKENS, MOST_TOKENS)]
        if goal.tokens is None:
            # The loss falls with the tokens.
            (most, least), wanted = (number(end.loss) for end in ends), float(goal.loss or 0.0)
            if not least < wanted < most:
                told = f"expected between {least:.4f} and {most:.4f} nat per token for this model"
                raise InputError(f"loss = {wanted:g} is out of reach; {told}")
        else:
            (least, most), wanted = (number(end.tokens) for end in ends), float(goal.tokens)
            if not least < wanted < most:
                told = f"with batches of {number(batch_tokens):.3g} tokens a run takes more than {least:.2g}"
                raise InputError(f"tokens = {wanted:g} is out of range; {told}")
        return number(_solved(model, laws, batch_tokens, wanted, goal.tokens is None))


def _goal_figures(model: Transformer, laws: Laws, batch_tokens: ArrayLike, tokens: ArrayLike) -> Any:
    """Loss and tokens of a run with a number of small-batch tokens."""
    sizes = {"small_batch_tokens": jnp.asarray(tokens), "batch_tokens": jnp.asarray(batch_tokens)}
    # Loss and tokens depend on neither step time nor chips.
    return run_figures(model, model, laws, **sizes, step_seconds=jnp.ones(()), n_chips=jnp.ones(()))


@filter_jit
def _solved(model: Transformer, laws: Laws, batch_tokens: ArrayLike, wanted: ArrayLike, is_loss: bool) -> Array:
    """Small-batch tokens for a loss or a number of tokens; differentiable in all arguments."""

    def miss(log_tokens: Array, given: Any) -> Array:
        shape, rules, batch, aim = given
        figures = _goal_figures(shape, rules, batch, jnp.exp(log_tokens))
        return jnp.log((figures.loss if is_loss else figures.tokens) / aim)

    lower, upper = np.log(FEWEST_TOKENS), np.log(MOST_TOKENS)
    # Sign by detection: the loss falls with the tokens, D rises.
    solver = optx.Bisection(rtol=1e-12, atol=1e-12, flip="detect")
    given = (model, laws, batch_tokens, wanted)
    options = {"lower": lower, "upper": upper}
    start = jnp.asarray(0.5 * (lower + upper))
    # Differentiable by the implicit function theorem.
    found = optx.root_find(miss, solver, start, given, options, max_steps=200, throw=False)
    return jnp.exp(found.value)


class RunCandidate(NamedTuple):
    """Plan of a run for a number of chips and a batch, with step time and results of the whole run.

    Attributes:
        question: model, chips and batch of the plan.
        found: scored plans of the question.
        row: row of the plan among the scored plans.
        step_time: step time [s].
        run: results of the whole run by name, see `WholeRun.figures`.
    """

    question: PlanQuestion
    found: FoundPlans
    row: int
    step_time: float
    run: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        """Chips, batch, plan, step time and results of the run, for JSON."""
        place = {"n_chips": self.question.n_chips, "global_batch_size_seqs": float(self.question.batch or 0)}
        plan = self.found.table.plan(self.row).words()
        price = self.run["price"] if np.isfinite(self.run["price"]) else None
        return {**place, "step_time_s": self.step_time, **self.run, "price": price, "plan": plan}


MEASURES = {"days": "days", "price": "chip_hours", "energy": "energy_mwh"}
"""Minimised figure of a run for each objective; the price is proportional to the chip hours."""


@printed(lambda choice: _shown(choice))
@dataclass(frozen=True, repr=False)
class RunChoice:
    """Plans of least duration, price and energy of a run, beside the plan with the fastest step.

    Attributes:
        objective: objective of the choice, from `OBJECTIVES`.
        best: plan of the least value of each objective; for `step` the plan with the fastest step on the stated
            chips with the stated batch.
        candidates: the best plan of each number of chips and batch by the objective.
        plans: ranked plans of the chosen chips and batch.
    """

    objective: str
    best: Mapping[str, RunCandidate]
    candidates: tuple[RunCandidate, ...]
    plans: PlanChoice

    @property
    def chosen(self) -> RunCandidate:
        """Best plan under the objective."""
        return self.best[self.objective]

    @property
    def days_interval(self) -> tuple[float, float]:
        """Ends of the 90 % interval of the duration, from the interval of the step time only [day]."""
        # Days are proportional to the step time.
        lo, hi = (end / self.plans.best.step_time for end in self.plans.step_time_interval)
        days = self.chosen.run["days"]
        return lo * days, hi * days

    def to_json(self) -> dict[str, Any]:
        """Results for the document of `jaxscale plan --json`."""
        return {
            "objective": self.objective,
            "days_interval": list(self.days_interval),
            **{name: candidate.to_json() for name, candidate in self.best.items()},
            "candidates": [candidate.to_json() for candidate in self.candidates],
            "differs": list(self.differences()),
        }

    def sentences(self) -> tuple[str, ...]:
        """Sentences on duration interval and failures of the chosen run, and on the plans of further objectives."""
        run, (lo, hi) = self.chosen.run, self.days_interval
        days, count, between = (run[name] for name in ("days", "interruptions", "checkpoint_interval_s"))
        # Hours between interruptions.
        failures = f"{in_digits(count)} interruptions, one in {in_digits(24.0 * days / count)} h"
        checkpoints = f"checkpoints every {in_digits(between / 60.0)} min"
        return (
            f"90 % interval of the days: {in_digits(lo)} to {in_digits(hi)}; {failures}; {checkpoints}",
            *self.differences(),
        )

    def differences(self) -> tuple[str, ...]:
        """Sentence per objective on savings and costs of its best plan, compared with the plan of the fastest step."""
        fastest, lines = self.best["step"], []
        for objective in MEASURES:
            other = self.best[objective]
            changes = {name: _change(other, fastest, key) for name, key in MEASURES.items()}
            if changes[objective] > -SAME:
                lines.append(f"least {objective}: the plan of the fastest step")
                continue
            saved, *others = (_told(name, changes[name]) for name in (objective, *changes.keys() - {objective}))
            lines.append(
                f"least {objective}: {saved} against the plan of the fastest step; {', '.join(sorted(others))}"
            )
        return tuple(lines)


def _shown(choice: RunChoice) -> Printout:
    """Whole runs of the best plans by objective."""
    rows = [
        (name, f"{one.question.n_chips:g}", f"{one.question.batch:g}", *(f"{one.run[key]:.4g}" for key in _PRINTED))
        for name, one in choice.best.items()
    ]
    heads = ("least", "chips", "batch", "tokens", "days", "goodput", "MWh", "chip hours")
    return Printout(f"RunChoice: plans by {choice.objective}", heads, rows, choice.sentences())


_PRINTED = ("tokens", "days", "goodput", "energy_mwh", "chip_hours")

SAME = 5e-4
"""Relative difference of two runs that counts as none [1]."""


def _told(name: str, change: float) -> str:
    """Change of a figure in words."""
    return f"{100.0 * change:+.1f} % {name}" if change < 1.0 else f"{1.0 + change:.1f} times the {name}"


def _change(one: RunCandidate, other: RunCandidate, key: str) -> float:
    """Relative excess of a figure of a run over a second run [1]."""
    return one.run[key] / other.run[key] - 1.0


def best_run(
    model: Transformer | str | Path,
    cluster: Cluster | str,
    global_batch: float | int,
    *,
    tokens: float | None = None,
    loss: float | None = None,
    n_chips: float | int | None = None,
    fit: AnyFit = "default",
    levels: Mapping[str, str | None] | None = None,
    space: PlanSpace | None = None,
    hardware: Hardware | None = None,
    **options: Any,
) -> RunChoice:
    """Plans of least duration, price and energy of a whole run, beside the plan with the fastest step.

    `js.best_run("llama3-8b", "h100-80gb", 1024, n_chips=512, tokens=2e12, objective="energy")`

    Args:
        model: the transformer, or name or file of a transformer.
        cluster: chips and network; or the name of a chip, beside `n_chips`.
        global_batch: B, sequences per step [sequence].
        tokens: training tokens; exactly one of `tokens` and `loss` is given [token].
        loss: final loss [nat per token].
        n_chips: number of chips, for a cluster given by the name of a chip [1].
        fit: a fit, or the name or file of a fit.
        levels: framework, precision and so on of the run, as in `best_plan`.
        space: open choices; by default every valid plan of the framework.
        hardware: catalogue of chips; by default the shipped catalogue.
        options: objective, open, price_per_chip_hour, laws, top, oom_probability; see `run_choice`.

    Raises:
        InputError: an unknown name, an argument out of range, a goal out of reach, or no plan that fits.
    """
    machine, gpu = cluster_and_chip(cluster, n_chips, hardware or load_hardware())
    shape = model if isinstance(model, Transformer) else model_of(model)
    question = question_of_levels(shape, machine, global_batch, {"gpu": gpu, **(levels or {})}, space)
    return run_choice(question, fit_of(fit), RunGoal(tokens, loss), **options)


def run_choice(
    question: PlanQuestion,
    fit: Fit,
    goal: RunGoal,
    *,
    objective: str = "step",
    open: Sequence[str] = (),
    price_per_chip_hour: float | None = None,
    laws: Laws | None = None,
    top: int = 10,
    oom_probability: float = ACCEPTED_RISK,
) -> RunChoice:
    """Plans of least duration, price and energy of a run, beside the plan with the fastest step.

    Args:
        question: model, cluster, batch and open choices of the plan.
        fit: calibration.
        goal: tokens with the batch of the question, or final loss.
        objective: quantity for the ranking of plans, from `OBJECTIVES`.
        open: varied numbers, from `OPEN`: chips down to an eighth, batch from a quarter to four times the stated value.
        price_per_chip_hour: price of a chip and hour, in any currency [1/h].
        laws: laws of loss, batch, failures and power; by default `default_laws`.
        top: number of plans to rank [1].
        oom_probability: accepted probability of running out of memory [1].

    Raises:
        InputError: an unknown word, a price missing or out of range, a goal out of reach, or no plan that fits.
    """
    for word, known, name in ((objective, OBJECTIVES, "objective"), *((word, OPEN, "open") for word in open)):
        check_known(f"{name} =", word, known)
    if price_per_chip_hour is not None and not 0.0 < price_per_chip_hour < 1e6:
        raise InputError(f"price = {price_per_chip_hour:g} is out of range; expected above 0, below 1e6 an hour")
    laws = laws or default_laws()
    model, seq_len = question.model, number(question.model.seq_len)
    needed = small_batch_tokens_of(goal, model, seq_len * float(question.batch or 0), laws)
    asked = _neighbours(question, open)
    tasks = [one.task(fit, oom_probability) for one in asked]
    found = find_plans(tasks)
    refuse_none(tasks[0], found[0])
    fitting = [place for place, one in enumerate(found) if len(one.table) and one.fits.any()]
    kept = [_worth_a_look(found[place], asked[place].cluster.chip, laws.power) for place in fitting]
    judged = [
        Judged(model, _rows_of(found[place].table, rows), asked[place].cluster, tasks[place].coefficients)
        for place, rows in zip(fitting, kept, strict=True)
    ]
    price = np.nan if price_per_chip_hour is None else price_per_chip_hour
    fixed = (needed, laws, price)
    groups = [
        _group(asked[place], found[place], rows, columns, fixed)
        for place, rows, columns in zip(fitting, kept, judge(judged, TERM_NAMES), strict=True)
    ]
    # The stated question comes first, and within it the fastest plan.
    best = {"step": groups[0].fastest}
    best |= {
        name: min((group.best(name) for group in groups), key=lambda one, key=key: one.run[key])
        for name, key in MEASURES.items()
    }
    chosen = best[objective]
    plans = choice_of(chosen.found, chosen.question, fit, top, oom_probability)
    return RunChoice(objective, best, tuple(group.best(objective) for group in groups), plans)


class _Group(NamedTuple):
    """Plans of one number of chips and one batch.

    Attributes:
        fastest: the plan of the fastest step.
        thriftiest: the plan of the least energy.
    """

    fastest: RunCandidate
    thriftiest: RunCandidate

    def best(self, objective: str) -> RunCandidate:
        """Plan of the least of an objective: with equal chips, days and price are proportional to the step time."""
        return self.thriftiest if objective == "energy" else self.fastest


PADDING = 64
"""Plans are padded to multiples of the number, so that few programs are compiled [1]."""


def _group(
    question: PlanQuestion, found: FoundPlans, rows: np.ndarray, columns: Mapping[str, np.ndarray], fixed: Any
) -> _Group:
    """Plans of the fastest step and of the least energy, by the terms of their steps.

    Args:
        rows: rows of the plans among the scored plans, the fastest first.
        columns: terms of their steps [s].
        fixed: small-batch tokens, laws and price.
    """
    batch = number(question.model.seq_len) * float(question.batch or 0)
    filled = filled_rows(len(rows), PADDING)
    terms = {name: np.asarray(columns[name], float)[filled] for name in TERM_NAMES}
    with jax.enable_x64(True):
        runs = _runs(*host_arrays((question.model, question.cluster, terms, batch, *fixed)))
        # Figures without an axis of plans are equal for all plans.
        runs = jax.tree.map(lambda leaf: np.broadcast_to(np.asarray(leaf), filled.shape)[: len(rows)], runs)
    # Costs in units of pace: the fastest plan keeps its pace; unexamined plans are assigned its power.
    cost = found.pace.copy()
    cost[rows] = found.pace[rows[0]] * runs.energy / runs.energy[0]
    by_energy = found._replace(cost=cost)

    def candidate(among: FoundPlans) -> RunCandidate:
        row = int(among.ranked(1)[0])
        run = jax.tree.map(lambda leaf: leaf[rows == row][0], runs)
        return RunCandidate(question, among, row, float(found.scores.step_time[row]), run.figures())

    return _Group(candidate(found), candidate(by_energy))


@filter_jit
def _runs(model: Transformer, cluster: Cluster, terms: Mapping[str, Array], *given: Any) -> WholeRun:
    """Runs of many plans, by the terms of their steps."""
    return whole_run(model, cluster, StepTime(**terms), *given)


def _neighbours(question: PlanQuestion, open: Sequence[str]) -> list[PlanQuestion]:
    """Stated question, then questions with different chips and batches where open."""
    chips = [question.n_chips / fewer for fewer in (FEWER_CHIPS if "chips" in open else (1,))]
    batches = [float(question.batch or 0) * share for share in (BATCHES if "batch" in open else (1,))]
    # Whole chips and sequences alone.
    pairs = [(n, batch) for n in chips for batch in batches if n == round(n) >= 1 and batch == round(batch) >= 1]
    # False comes first: the stated question leads.
    pairs.sort(key=lambda pair: pair != (question.n_chips, question.batch))
    return [
        question._replace(cluster=with_fields(question.cluster, {"n_chips": n}), batch=round(batch))
        for n, batch in pairs
    ]


def _worth_a_look(found: FoundPlans, chip: Chip, power: ChipPower) -> np.ndarray:
    """Rows of plans that certainly include the plan of least energy, the first ranked plan first."""
    idle, most = number(chip.idle_power), number(chip.max_power)
    shares = [number(power.share(kind)) for kind in ("compute", "memory", "network", "host")]
    least, largest = (idle + share * (most - idle) for share in (min(shares), max(shares)))
    first = int(found.ranked(1)[0])
    # E = P t: a plan slower by more than the ratio of powers cannot take less energy.
    near = found.fits & (found.pace <= found.pace[first] * largest / least)
    near[first] = False
    return np.concatenate([[first], np.flatnonzero(near)])


def _rows_of(table: PlanTable, rows: np.ndarray) -> PlanTable:
    """Subset of the plans of a table."""
    return replace(table, columns={name: column[rows] for name, column in table.columns.items()})
