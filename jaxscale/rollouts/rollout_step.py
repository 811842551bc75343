r"""Time of one step of reinforcement learning: rollouts and training, on shared or split chips, and the best split.

$$ t = T_{gen} + T_{tail} + T_{score} + T_{train} + T_{transfer} - T_{overlap} $$

On shared chips, and on split chips that wait for each other (on-policy), nothing overlaps. Where the trainer works on
the answers of the preceding step, $T_{overlap} = \min(T_{gen} + T_{tail}, T_{score} + T_{train})$, so that only the
longer of generation and training counts.

The errors of generation and of training are independent. With the ends $f_i$ of their 90 % intervals,
$t_{hi} = t + \sqrt{\sum_i (t(f_i) - t)^2}$, and $t_{lo}$ is analogous.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import hypot
from pathlib import Path
from typing import Any

from jaxscale.base.arrays import number
from jaxscale.base.errors import InputError, check_known
from jaxscale.base.show import Printout, printed
from jaxscale.base.units import HOUR, plural, quantity
from jaxscale.calibration.record import AnyFit, fit_of
from jaxscale.hardware.catalogue import Hardware, load_hardware
from jaxscale.hardware.cluster import Cluster
from jaxscale.models import model as model_of
from jaxscale.models.transformer import Transformer
from jaxscale.plans.best_plan import cluster_and_chip
from jaxscale.plans.plan import in_short
from jaxscale.rollouts.rollout_batch import RolloutBatch
from jaxscale.rollouts.split_search import SplitSearch, SplitTimes
from jaxscale.serving import Engine, ServingFit, batch_time_ends, load_serving_fit, stack_levels

ALGORITHMS = {"grpo": (), "ppo": ("reward", "critic")}
"""Models that score answers beside the reference, by algorithm; a critic is trained as well."""

MODES = ("shared", "split")
"""Phases in turn on the same chips, or generation on some chips beside training on the others."""

TERMS = ("generation", "tail", "scoring", "training", "transfer", "overlap")
"""Terms of a step, the last of which is taken off."""

SHARES = tuple(part / 16.0 for part in range(1, 16))
"""Shares of the chips that generate, of which whole numbers of chips are tried [1]."""


@printed(lambda step: _shown(step))
@dataclass(frozen=True, repr=False)
class RolloutStep:
    """Time of one step of reinforcement learning by term.

    Attributes:
        mode: `shared` or `split`.
        on_policy: whether training waits for the answers of its own step.
        generation_chips: generating chips; all chips if shared [1].
        training_chips: scoring and training chips; all chips if shared [1].
        engine: copies and degrees of the engines.
        plan: degrees of the training of the actor, by name.
        generation: time of prompts and answers, if all answers had the mean length [s].
        tail: additional time of generation due to unequal lengths of answers [s].
        scoring: time of the forward passes of reference, reward model and critic [s].
        training: time of training the actor, and the critic if present [s].
        transfer: time to send new weights to the engines [s].
        overlap: time during which generation and training run concurrently [s].
        mean_len: mean length of an answer [token].
        longest_len: expected longest answer of the last wave [token].
        in_flight: concurrent answers of a copy [1].
        generation_ends: ends of the 90 % interval of generation over its prediction [1].
        training_ends: ends of the 90 % interval of scoring and training over their prediction [1].
        price_per_chip_hour: price in any currency; nan if not stated [1/h].
        alternatives: steps of all modes and splits that were compared, by generating chips.
    """

    mode: str
    on_policy: bool
    generation_chips: float
    training_chips: float
    engine: Engine
    plan: Mapping[str, Any]
    generation: float
    tail: float
    scoring: float
    training: float
    transfer: float
    overlap: float
    mean_len: float
    longest_len: float
    in_flight: float
    generation_ends: tuple[float, float]
    training_ends: tuple[float, float]
    price_per_chip_hour: float = float("nan")
    alternatives: tuple["RolloutStep", ...] = ()

    @property
    def total(self) -> float:
        """Time of the step: the sum of the terms less the overlap [s]."""
        return self.generation + self.tail + self.scoring + self.training + self.transfer - self.overlap

    @property
    def interval(self) -> tuple[float, float]:
        """Ends of the 90 % interval of the step time, with independent errors of generation and training [s]."""
        lo, hi = (
            hypot(self.slowed(generating, 1.0).total - self.total, self.slowed(1.0, training).total - self.total)
            for generating, training in zip(self.generation_ends, self.training_ends, strict=True)
        )
        return self.total - lo, self.total + hi

    @property
    def engine_words(self) -> str:
        """Degrees and copies of the engines as short text."""
        degrees = (("tp", self.engine.tp), ("pp", self.engine.pp), ("dp", self.engine.attention_dp))
        words = [f"{name} {number(value):g}" for name, value in degrees if value > 1.0 or name == "tp"]
        copies = number(self.engine.copies)
        return "  ".join([*words, f"{copies:g} {plural(copies, 'copy')} of {self.in_flight:.3g} answers"])

    @property
    def n_chips(self) -> float:
        """Number of chips of the step [1]."""
        return self.generation_chips + (self.training_chips if self.mode == "split" else 0.0)

    @property
    def tail_seconds(self) -> float:
        """Increase of the step time by unequal lengths of answers [s]."""
        return self.total - self.overlapped(tail=0.0).total

    @property
    def tail_chip_hours(self) -> float:
        """Chip-hours that unequal lengths of answers cost per step [h]."""
        return self.tail_seconds * self.n_chips / HOUR

    @property
    def tail_price(self) -> float:
        """Price that unequal lengths of answers cost per step; nan without a stated price [currency of the price]."""
        return self.tail_chip_hours * self.price_per_chip_hour

    def overlapped(self, **terms: float) -> "RolloutStep":
        """Copy of the step with some terms replaced and the overlap recomputed."""
        step = replace(self, **terms)
        sides = (step.generation + step.tail, step.scoring + step.training)
        return replace(step, overlap=min(sides) if step.mode == "split" and not step.on_policy else 0.0)

    def slowed(self, generation: float, training: float) -> "RolloutStep":
        """Copy of the step with the times of generation and of training multiplied by factors [1]."""
        return self.overlapped(
            generation=generation * self.generation,
            tail=generation * self.tail,
            scoring=training * self.scoring,
            training=training * self.training,
        )

    def figures(self) -> dict[str, Any]:
        """Mode, chips, terms and interval of the step as JSON values."""
        return {
            "mode": self.mode,
            "on_policy": self.on_policy,
            "generation_gpus": self.generation_chips,
            "training_gpus": self.training_chips,
            "step_s": self.total,
            "step_interval_s": list(self.interval),
            **{f"{name}_s": getattr(self, name) for name in TERMS},
        }

    def to_json(self) -> dict[str, Any]:
        """JSON document of the step: terms, cost of the tail, lengths, engine, plan, and terms of every alternative."""
        degrees = {name: number(getattr(self.engine, name)) for name in ("tp", "pp", "attention_dp", "copies")}
        return {
            **self.figures(),
            "tail_cost": {
                "seconds": self.tail_seconds, "chip_hours": self.tail_chip_hours, "price": self.tail_price,
            },
            "mean_output_len": self.mean_len,
            "longest_output_len": self.longest_len,
            "engine": {**degrees, "in_flight": self.in_flight},
            "plan": dict(self.plan),
            "alternatives": [one.figures() for one in self.alternatives],
        }  # fmt: skip


def _shown(step: RolloutStep) -> Printout:
    """Terms of a step with their shares."""
    rows = [(name, quantity(getattr(step, name), "s")) for name in TERMS]
    lo, hi = (quantity(end, "s") for end in step.interval)
    notes = (f"90 % interval: {lo} to {hi}", f"engine: {step.engine_words}; plan: {in_short(step.plan)}")
    return Printout(f"RolloutStep: {quantity(step.total, 's')} on {step.n_chips:g} chips", ("", ""), rows, notes)


def rollout_step(
    model: Transformer | str | Path,
    cluster: Cluster | str,
    batch: RolloutBatch,
    *,
    n_chips: float | int | None = None,
    algorithm: str = "grpo",
    mode: str = "shared",
    on_policy: bool = False,
    generation_chips: int | None = None,
    updates: int = 1,
    reward: Transformer | str | Path | None = None,
    critic: Transformer | str | Path | None = None,
    engine: str = "vllm",
    engine_precision: str = "bf16",
    cells: Mapping[str, Any] | None = None,
    price: float = float("nan"),
    fit: AnyFit = "default",
    serving_fit: ServingFit | str | Path = "default",
    hardware: Hardware | None = None,
) -> RolloutStep:
    """Time of one step of reinforcement learning, with the fastest engine, training plan and split of the chips.

    `js.rollout_step("llama3-8b", "h100-80gb", js.rollouts.RolloutBatch(512, 8, 512, 2048), n_chips=64)`

    Args:
        model: the actor, or name or file of the actor.
        cluster: chips and network; or the name of a chip, beside `n_chips`.
        batch: prompts, answers and their lengths.
        n_chips: number of chips, with a cluster given by the name of a chip [1].
        algorithm: `grpo` (reference, and a reward model if given) or `ppo` (reference, reward and critic).
        mode: `shared` for phases in turn on the same chips, `split` for generation concurrent with training.
        on_policy: whether split chips wait for each other; else the trainer is one step behind.
        generation_chips: generating chips in the mode `split`; the best number where None [1].
        updates: optimizer steps on equal shares of the answers [1].
        reward: reward model; for PPO the shape of the actor where None.
        critic: critic of PPO; the shape of the actor where None.
        engine: serving framework.
        engine_precision: format of the weights of the engines.
        cells: stated plan and software of training, by column of a runs table.
        price: price of a chip and hour, in any currency; nan if not stated [1/h].
        fit: a fit of training, or its name or file.
        serving_fit: a fit of serving, or its name or file.
        hardware: catalogue of chips; the shipped catalogue where None.

    Returns:
        The fastest step of the mode, with the steps of all compared modes and splits.

    Raises:
        InputError: an unknown name, a number out of range, or no engine or plan that fits.
    """
    catalogue = hardware or load_hardware()
    machine, gpu = cluster_and_chip(cluster, n_chips, catalogue)
    count = number(machine.n_chips)
    _check(algorithm, mode, count, generation_chips, updates, price)
    actor = model if isinstance(model, Transformer) else model_of(model)
    beside = _scorers(actor, algorithm, {"reward": reward, "critic": critic})
    levels = {} if gpu is None else stack_levels(engine, gpu, actor, serving="static", hardware=catalogue)
    served = load_serving_fit(serving_fit)
    search = SplitSearch(
        scored=(actor, *beside.values()),
        trained=(actor, *(one for name, one in beside.items() if name == "critic")),
        cluster=machine,
        batch=batch,
        updates=updates,
        stack=served.coefficients(**levels),
        precision=engine_precision,
        cells={"gpu": gpu, "precision": "bf16", **(cells or {})},
        fit=fit_of(fit, catalogue),
    )
    splits = _splits(count) if generation_chips is None else [float(generation_chips)]
    found = search.times([(count, count), *((chips, count - chips) for chips in splits)])
    refused = found[:1] if mode == "shared" else found[1:]
    if not any(times.fits for times in refused):
        raise InputError(next((times.refusal for times in refused if times.refusal), "no split fits"))
    facts = {
        "mean_len": number(batch.mean_len),
        "generation_ends": batch_time_ends(served, levels),
        "price_per_chip_hour": price,
    }
    steps = [_step_of(times, MODES[min(place, 1)], on_policy, facts) for place, times in enumerate(found) if times.fits]
    best = min((step for step in steps if step.mode == mode), key=lambda step: step.total)
    return replace(best, alternatives=tuple(sorted(steps, key=lambda step: step.generation_chips)))


def _check(algorithm: str, mode: str, n_chips: float, generation_chips: int | None, updates: int, price: float) -> None:
    """Refuse unknown words and numbers out of range."""
    for name, word, known in (("algorithm", algorithm, tuple(ALGORITHMS)), ("mode", mode, MODES)):
        check_known(f"{name} =", word, known)
    if mode == "split" and n_chips < 2.0:
        raise InputError(f"mode = 'split' on {n_chips:g} chips; expected at least 2")
    if generation_chips is not None and (mode != "split" or not 1 <= generation_chips < n_chips):
        if mode != "split":
            raise InputError(f"generation_chips = {generation_chips} beside mode = {mode!r}; expected mode 'split'")
        valid = f"1 to {n_chips - 1.0:g}"
        raise InputError(f"generation_chips = {generation_chips} is out of range; expected {valid}")
    if updates < 1:
        raise InputError(f"updates = {updates} is out of range; expected a whole number of at least 1")
    if price <= 0.0 or price >= 1e6:
        raise InputError(f"price = {price:g} is out of range; expected above 0, below 1e6 an hour")


def _scorers(actor: Transformer, algorithm: str, given: Mapping[str, Any]) -> dict[str, Transformer]:
    """Reward model and critic of an algorithm, in the shape of the actor if not given."""
    if given["critic"] is not None and "critic" not in ALGORITHMS[algorithm]:
        raise InputError(f"critic of {algorithm}, which has none; expected algorithm 'ppo'")
    shapes = {name: one if isinstance(one, Transformer) else model_of(one) for name, one in given.items() if one}
    return {name: shapes.get(name, actor) for name in given if name in (*ALGORITHMS[algorithm], *shapes)}


def _splits(n_chips: float) -> list[float]:
    """Numbers of generating chips to be compared [1]."""
    return sorted({float(round(share * n_chips)) for share in SHARES} - {0.0, n_chips})


def _step_of(times: SplitTimes, mode: str, on_policy: bool, facts: Mapping[str, Any]) -> RolloutStep:
    """Step of one split, with its overlap."""
    waits = on_policy or mode == "shared"
    return RolloutStep(**times.terms, **facts, mode=mode, on_policy=waits, overlap=0.0).overlapped()
