"""Work of the page: the ranked plans of a state, and all figures of one of them from one compiled call."""

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jaxscale._arrays import host_arrays, number, with_fields
from jaxscale._compile.jit import filter_jit
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.calibration.memory_limit import probability_of_oom
from jaxscale.designs.relaxed_shape import WIDTH_FIELDS
from jaxscale.designs.time_to_loss import Laws, default_laws, run_figures
from jaxscale.explore.page_inputs import PageInputs
from jaxscale.explore.page_rows import CurveRows, page_rows
from jaxscale.explore.page_state import FIXABLE, SLIDERS, PageState
from jaxscale.hardware.cluster import Cluster
from jaxscale.memory import Memory
from jaxscale.plan.plan import Plan
from jaxscale.plans.best_plan import answered
from jaxscale.plans.choice import PlanChoice
from jaxscale.plans.sensitivity import IMPROVEMENTS, with_resource
from jaxscale.step import StepTime, model_flops_utilisation, step_and_memory, step_time, tokens_per_step
from jaxscale.workload import Transformer, n_active_params, n_params

RESOURCES = tuple(name for name in IMPROVEMENTS if name != "memory capacity")
SIZES = ("chips", "batch", "width", "depth", "sequence length", "vocabulary")
"""Quantities in which elasticities are told, besides the resources of the cluster."""

CHOICE_FIELDS = ("model", "gpu", "n_gpus", "global_batch", "seq_len", "framework", "precision", *FIXABLE)
"""Fields of a state on which the ranking of plans depends."""

MOST_CHOICES = 64
"""Rankings that are kept [1]."""


class RowFigures(NamedTuple):
    """Figures of models under plans.

    Attributes:
        times: terms of the step [s], [row].
        peaks: terms of the peak memory [byte], [row].
        step_time: [s], [row].
        memory: peak of the fullest chip [byte], [row].
        mfu: model flops over the 16-bit peak, attention counted in full [1], [row].
        loss: at the end of the run [nat per token], [row].
        run_seconds: duration of the run [s], [row].
        params: N [1], [row].
    """

    times: StepTime
    peaks: Memory
    step_time: Any
    memory: Any
    mfu: Any
    loss: Any
    run_seconds: Any
    params: Any


@dataclass(frozen=True)
class PageView:
    """All figures of a state.

    Attributes:
        state: what was asked for.
        choice: ranked plans, without factors.
        plan: the plan of the state.
        rows: models, plans and chips of `figures`.
        figures: of the state itself, then of its curves, with all factors.
        elasticities: change of the step time for a per cent of each quantity, with all factors [%].
        capacity: memory of a chip [byte].
        oom_probability: of the state itself, with all factors [1].
        run_tokens: that the run would take with small batches [token].
    """

    state: PageState
    choice: PlanChoice
    plan: Plan
    rows: CurveRows
    figures: RowFigures
    elasticities: Mapping[str, float]
    capacity: float
    oom_probability: float
    run_tokens: float

    @property
    def step_time(self) -> float:
        """Step time of the state [s]."""
        return float(self.figures.step_time[0])

    @property
    def tokens_per_second(self) -> float:
        """Throughput of all chips [token/s]."""
        return number(self.plan.global_batch_size_seqs) * float(self.rows.models.seq_len[0]) / self.step_time

    def terms(self) -> dict[str, float]:
        """Terms of the step of the state [s]."""
        return {name: float(np.asarray(term)[0]) for name, term in self.figures.times.terms().items()}

    def memory_terms(self) -> dict[str, float]:
        """Terms of the peak memory of the state [byte]."""
        return {name: float(np.asarray(term)[0]) for name, term in self.figures.peaks.terms().items()}


def page_view(state: PageState, inputs: PageInputs) -> PageView:
    """All figures of a state.

    Args:
        state: what is asked for.
        inputs: catalogues, fit and files.

    Raises:
        InputError: an unknown name, a number out of range, no valid plan or none that fits; one line.
    """
    choice = ranked_plans(state, inputs)
    plan = choice.top[min(state.rank, len(choice.top)) - 1].plan
    question = inputs.question(state)
    template, machine, levels = question.model, question.cluster, question.levels
    for name, what in SLIDERS.items():
        machine = with_resource(machine, what, getattr(state, name))
    # The last two levels of a network both lie between domains.
    machine = with_resource(machine, "spine bandwidth", state.network)
    rows = page_rows(template, plan, state.width, state.depth)
    tokens = state.tokens * number(n_active_params(template))
    fixed = host_arrays((template, machine, inputs.fit.coefficients(levels, number(machine.n_chips)), _laws(), tokens))
    evaluated, slopes = _evaluated(*host_arrays(rows[:3]), *fixed)
    figures = RowFigures(*evaluated[:2], *(np.asarray(column) for column in evaluated[2:]))
    capacity, usable = number(machine.chip.hbm_bytes), inputs.fit.memory_limit(levels, number(machine.n_chips))
    return PageView(
        state=state,
        choice=choice,
        plan=plan,
        rows=rows,
        figures=figures,
        elasticities={name: float(slope) for name, slope in slopes.items()},
        capacity=capacity,
        oom_probability=float(probability_of_oom(float(figures.memory[0]), capacity, usable)),
        run_tokens=tokens,
    )


def ranked_plans(state: PageState, inputs: PageInputs) -> PlanChoice:
    """Ranked plans of a state, without factors: those of `jaxscale plan`; rankings used last are kept."""
    default = PageState()
    asked = {name: getattr(state, name) for name in CHOICE_FIELDS}
    return _ranked(dataclasses.replace(default, **asked), _Held(inputs))


class _Held:
    """Inputs as a key: the same object is the same key."""

    def __init__(self, inputs: PageInputs):
        self.inputs = inputs

    def __hash__(self) -> int:
        return id(self.inputs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held) and other.inputs is self.inputs


@functools.lru_cache(maxsize=MOST_CHOICES)
def _ranked(state: PageState, held: _Held) -> PlanChoice:
    return answered(held.inputs.question(state), held.inputs.fit)


@functools.cache
def _laws() -> Laws:
    return default_laws()


# One program for every state: all numbers trace, and curves have a fixed number of points.
@filter_jit
def _evaluated(
    models: Transformer,
    plans: Plan,
    n_chips: Float[ArrayLike, " row"],
    template: Transformer,
    cluster: Cluster,
    coefficients: Coefficients,
    laws: Laws,
    tokens: Float[ArrayLike, ""],
) -> tuple[RowFigures, dict[str, Array]]:
    def one(model: Transformer, plan: Plan, chips: Array) -> RowFigures:
        where = with_fields(cluster, {"n_chips": chips})
        times, peaks = step_and_memory(model, plan, where, coefficients)
        total, batch = times.total, tokens_per_step(model, plan)
        sizes = {"small_batch_tokens": tokens, "batch_tokens": batch, "step_seconds": total, "n_chips": chips}
        run = run_figures(model, template, laws, **sizes)
        mfu = model_flops_utilisation(model, plan, where, total)
        return RowFigures(times, peaks, total, peaks.total, mfu, run.loss, run.seconds, n_params(model))

    model, plan = jax.tree.map(lambda leaf: jnp.asarray(leaf)[0], (models, plans))

    def log_time(logs: dict[str, Array]) -> Array:
        factors = {name: jnp.exp(log) for name, log in logs.items()}
        return jnp.log(step_time(*with_factors(model, plan, cluster, factors), coefficients).total)

    slopes = jax.grad(log_time)({name: jnp.zeros(()) for name in (*SIZES, *RESOURCES)})
    return jax.vmap(one)(models, plans, jnp.asarray(n_chips)), slopes


def with_factors(
    model: Transformer, plan: Plan, cluster: Cluster, factors: Mapping[str, ArrayLike]
) -> tuple[Transformer, Plan, Cluster]:
    """Model, plan and cluster with multiples of `SIZES` and of resources; the batch stays where chips change.

    Args:
        model: the transformer.
        plan: degrees and batch.
        cluster: chips and network.
        factors: by name of the quantity [1].
    """
    width, chips = jnp.asarray(factors["width"]), jnp.asarray(factors["chips"])
    sizes = {name: getattr(model, name) * width for name in ("d_model", "n_heads", "n_kv_heads", *WIDTH_FIELDS)}
    sizes["n_layers"] = model.n_layers * jnp.asarray(factors["depth"])
    sizes["seq_len"] = model.seq_len * jnp.asarray(factors["sequence length"])
    sizes["vocab_size"] = model.vocab_size * jnp.asarray(factors["vocabulary"])
    degrees = {name: getattr(plan, name) * chips for name in ("dp", "shard_group")}
    degrees["n_microbatches"] = plan.n_microbatches * jnp.asarray(factors["batch"]) / chips
    for name in RESOURCES:
        cluster = with_resource(cluster, name, factors[name])
    cluster = with_fields(cluster, {"n_chips": cluster.n_chips * chips})
    return with_fields(model, sizes), with_fields(plan, degrees), cluster
