"""Search for the fastest engine and training plan of each split of the chips in a step of reinforcement learning."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxscale.base.arrays import host_arrays, in_blocks_of, number, stacked, with_fields
from jaxscale.base.errors import InputError
from jaxscale.base.jit import array_jit
from jaxscale.calibration.intervals import interval_ends
from jaxscale.calibration.record import Fit
from jaxscale.hardware.cluster import Cluster
from jaxscale.models.transformer import Transformer
from jaxscale.plans.best_plan import refuse_none
from jaxscale.plans.plan_questions import find_plans, plan_question
from jaxscale.plans.score import FoundPlans, PlanTask
from jaxscale.rollouts.generation_time import GenerationTime, generation_time
from jaxscale.rollouts.rollout_batch import RolloutBatch
from jaxscale.serving import Engine, ServingCoefficients, ServingSpace, engine_table, prefill_pass, serving_memory

STAGES = (1, 2, 4, 8)
"""Pipeline stages of engines, of which the fewest count that fit [1]."""

SEQUENCE_BLOCK = 64.0
"""Tokens to a multiple of which the mean sequence of training is rounded up, so that ranks may divide it [token]."""

MOST_SCORED = 3
"""Models that score answers at most; a program for so many serves every algorithm [1]."""

BLOCK = 64
"""Engines that are evaluated at a time [1]."""


class SplitTimes(NamedTuple):
    """Times of the fastest engine and training plan of one split of the chips.

    Attributes:
        terms: fields of a `RolloutStep` by name; empty if nothing fits.
        refusal: reason why nothing fits; else empty.
    """

    terms: Mapping[str, Any]
    refusal: str = ""

    @property
    def fits(self) -> bool:
        """Whether an engine and a training plan fit in memory."""
        return bool(self.terms)


class EngineTimes(NamedTuple):
    """Engines with their times, each leaf [engine].

    Attributes:
        engine: copies and degrees.
        time: time of generation.
        scoring: chip time of all forward passes that score [s].
        transfer: time to send new weights to a chip [s].
    """

    engine: Engine
    time: GenerationTime
    scoring: np.ndarray
    transfer: np.ndarray


class ScoredTraining(NamedTuple):
    """Scored plans for the training of one model.

    Attributes:
        task: model, chips and limits.
        found: scored plans.
        ends: ends of the 90 % interval of step times over their prediction [1].
    """

    task: PlanTask
    found: FoundPlans
    ends: tuple[float, float]


class SplitSearch(NamedTuple):
    """Models, chips and software of a step of reinforcement learning, for the comparison of splits of the chips.

    Attributes:
        scored: the reference, in the shape of the actor, and further models that score answers.
        trained: the actor, and the critic if present.
        cluster: all chips, and the network.
        batch: prompts, answers and lengths.
        updates: optimizer steps on equal shares of the answers [1].
        stack: coefficients of the serving software.
        precision: format of the weights of the engines.
        cells: plan and software of training, by column of a runs table.
        fit: calibration of training.
    """

    scored: tuple[Transformer, ...]
    trained: tuple[Transformer, ...]
    cluster: Cluster
    batch: RolloutBatch
    updates: int
    stack: ServingCoefficients
    precision: str
    cells: Mapping[str, Any]
    fit: Fit

    def times(self, splits: Sequence[tuple[float, float]]) -> list[SplitTimes]:
        """Times of the fastest engine and plan of each split, given as numbers of generating and of training chips."""
        engines = self._engines([generating for generating, _ in splits])
        plans = self._plans([training for _, training in splits])
        return [self._fastest(*one) for one in zip(splits, engines, plans, strict=True)]

    def _engines(self, chips: Sequence[float]) -> list[EngineTimes]:
        """Engines of each number of chips with their times, all evaluated together."""
        space = ServingSpace(precisions=(self.precision,), pp=STAGES, disaggregated=False)
        domain = number(np.asarray(self.cluster.network.domain_size)[0])
        sizes = (number(self.batch.input_len), number(self.batch.output_len), np.ones(1))
        tables = [engine_table(self.trained[0], n, domain, space, *sizes).engine for n in chips]
        every = host_arrays(jax.tree.map(lambda *leaves: np.concatenate(leaves), *tables))
        count = len(self.scored)
        scored = stacked([*self.scored, *self.scored[:1] * (MOST_SCORED - count)])
        scores = np.arange(MOST_SCORED) < count
        fixed = jax.device_put(host_arrays((self.trained[0], self.cluster, self.stack, self.batch, scored, scores)))
        time, scoring, transfer = in_blocks_of(BLOCK, lambda rows: _timed(rows, *fixed), every)
        whole = EngineTimes(every, time, scoring, transfer)
        ends = np.cumsum([0, *(len(table.tp) for table in tables)])
        parts = [slice(*pair) for pair in zip(ends[:-1], ends[1:], strict=True)]
        return [jax.tree.map(lambda leaf, own=own: leaf[own], whole) for own in parts]

    def _plans(self, chips: Sequence[float]) -> list[list[ScoredTraining]]:
        """Scored plans of every trained model on each number of chips."""
        length = number(self.batch.input_len + self.batch.mean_len)
        whole = {"seq_len": SEQUENCE_BLOCK * np.ceil(length / SEQUENCE_BLOCK)}
        answers = number(self.batch.n_answers) / self.updates
        questions = []
        for n in chips:
            machine = with_fields(self.cluster, {"n_chips": n})
            for model in self.trained:
                batch = shared_batch(answers, n)
                questions.append(plan_question(with_fields(model, whole), machine, batch, self.cells))
        tasks = [question.task(self.fit) for question in questions]
        ends = [interval_ends(1.0, self.fit.interval(question.levels, question.n_chips).time) for question in questions]
        every, each = list(map(ScoredTraining, tasks, find_plans(tasks), ends)), len(self.trained)
        return [every[place : place + each] for place in range(0, len(every), each)]

    def _fastest(self, chips: tuple[float, float], engines: EngineTimes, plans: Sequence[ScoredTraining]) -> SplitTimes:
        """Times of the fastest engine and the fastest plans of one split."""
        fits = engines.time.room >= 1.0
        if not fits.any():
            return SplitTimes({}, f"no engine fits on {chips[0]:g} chips; expected more chips or fewer bits")
        try:
            for each in plans:
                refuse_none(each.task, each.found)
        except InputError as error:
            return SplitTimes({}, str(error))
        fits &= engines.engine.pp == np.min(engines.engine.pp[fits])
        spent = engines.time.prefill + engines.time.decode + engines.time.tail + engines.transfer
        spent = spent + engines.scoring / chips[1]
        best = int(np.argmin(np.where(fits, spent, np.inf)))
        own = jax.tree.map(lambda leaf: leaf[best], engines)
        ranked = [(each.found, int(each.found.ranked(1)[0])) for each in plans]
        actor, place = ranked[0]
        return SplitTimes({
            "generation_chips": chips[0],
            "training_chips": chips[1],
            "engine": own.engine,
            "plan": actor.table.plan(place).words(),
            "generation": float(own.time.prefill + own.time.decode),
            "tail": float(own.time.tail),
            "scoring": float(own.scoring) / chips[1],
            "training_ends": plans[0].ends,
            "training": self.updates * sum(float(found.scores.step_time[row]) for found, row in ranked),
            "transfer": float(own.transfer),
            "longest_len": float(own.time.longest_len),
            "in_flight": float(own.time.in_flight),
        })  # fmt: skip


@array_jit
def _timed(
    engines: Engine,
    actor: Transformer,
    cluster: Cluster,
    stack: ServingCoefficients,
    batch: RolloutBatch,
    scored: Transformer,
    scores: Float[Array, " model"],
) -> tuple[GenerationTime, Array, Array]:
    """Generation, chip time of scoring and transfer of weights for several engines.

    Args:
        scored: models that may score answers, each leaf [model].
        scores: 1 for models that score, else 0 [1], [model].
    """
    network, length = cluster.network, batch.input_len + batch.mean_len
    leaves_domain = cluster.n_chips > network.domain_size[0]
    bandwidth = jnp.where(leaves_domain, network.bandwidth[1], network.bandwidth[0])
    is_sent = jnp.where(cluster.n_chips > 1.0, 1.0, 0.0)

    def one(engine: Engine) -> tuple[GenerationTime, Array, Array]:
        ranks = engine.pp * engine.attention_dp
        work = {"n_sequences": batch.n_answers / ranks, "input_len": length}
        passes = jax.vmap(lambda model: prefill_pass(model, engine, cluster, stack, **work).total)(scored)
        weights = serving_memory(actor, engine, cluster, n_sequences=0.0, context=1.0).weights
        chip_time = stack.pace * jnp.sum(scores * passes) * ranks * engine.tp
        return generation_time(actor, engine, cluster, stack, batch), chip_time, is_sent * weights / bandwidth

    return jax.vmap(one)(engines)


def shared_batch(answers: float, n_chips: float) -> int:
    """Least batch of at least a number of answers that data-parallel replicas can share evenly [sequence].

    The batch is a multiple of the largest divisor of the chips that is at most the number of answers, among divisors
    with the whole odd factor of the chips, or among powers of two if no such divisor is small enough.
    """
    whole = round(n_chips)
    power = whole & -whole
    units = [unit << bit for unit in (whole // power, 1) for bit in range(power.bit_length()) if unit << bit <= answers]
    unit = max(units, default=1)
    return int(unit * np.ceil(answers / unit - 1e-9))
