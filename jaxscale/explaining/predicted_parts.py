"""Predicted time of the step components that a kernel trace shows, with intervals, and hidden time of collectives.

In a trace, kernels of the head and of recomputation equal kernels of the layers: the head is divided into matmuls
and memory-bound work, full recomputation in the proportions of the forward pass.

Intervals of components: the coefficients are drawn with their spreads between stacks (`data/coefficients.toml`), all
scaled by a factor such that the interval of drawn step times matches the interval of `predict`.

The kernel name of a collective states the operation, not the parallel group. The group follows, in this order, from a
description in the trace, from the ranks (tensor-parallel ranks are neighbours), from the degrees of the plan if one
degree is above 1, and else from the frequency: collectives of layers run many times a step, of gradients and gathers
less often.
"""

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxscale.base.arrays import as_arrays
from jaxscale.base.documents import read_toml
from jaxscale.base.jit import small_jit
from jaxscale.calibration.coefficients import Coefficients, constrain_values, from_values, priors, unconstrain
from jaxscale.calibration.record import Fit
from jaxscale.costs import attention, matmul
from jaxscale.costs.machine import machine_of
from jaxscale.costs.microbatch import microbatch_times
from jaxscale.costs.step import times_of_step
from jaxscale.hardware.cluster import Cluster
from jaxscale.models.transformer import Transformer
from jaxscale.plans.local import local_plan
from jaxscale.plans.plan import Plan
from jaxscale.runs.measured import Described
from jaxscale.runs.predict import Prediction

PARTS: Mapping[str, tuple[str, ...]] = {
    "matmul": ("matmul",),
    "attention": ("attention",),
    "memory_bound": ("memory_bound",),
    "optimizer": ("optimizer",),
    "tensor_parallel": ("tensor_parallel",),
    "context_parallel": ("context_parallel",),
    "expert_parallel": ("expert_parallel",),
    "data_parallel": ("data_parallel", "straggler"),
    "pipeline": ("pipeline_bubble", "pipeline_imbalance", "pipeline_transfer"),
    "host": ("launch_gaps", "host", "host_per_step"),
}
"""Components of a step that the trace of a rank can separate, and the cost terms of each. Collectives over all replicas
include waits for late ranks, receives include waits for neighbouring stages. Head and recomputation are divided by
their kernels (`predicted_parts`)."""

NAMES = tuple(PARTS)
COLLECTIVES = ("tensor_parallel", "context_parallel", "expert_parallel", "data_parallel", "pipeline")
IS_COLLECTIVE = np.asarray([name in COLLECTIVES for name in NAMES])
HOST = NAMES.index("host")

DEGREE_OF = {"tp": "tensor_parallel", "cp": "context_parallel", "ep": "expert_parallel", "dp": "data_parallel"}
"""Step component of the collectives of each degree of a plan."""

SPOKEN = "tensor_parallel", "data_parallel"
"""Step components whose collectives have equal names."""

SPOKEN_KINDS = "all_gather", "reduce_scatter", "all_reduce", "other"
"""Operations of the collectives of `SPOKEN`."""


class CollectiveGroup(NamedTuple):
    """Group of ranks of a collective, as recorded in a trace.

    Attributes:
        described: name or description of the group; empty if absent.
        size: number of ranks [1]; 0 if unknown.
        stride: distance of neighbouring ranks [1]; 0 if unknown.
        operation: the collective operation, if the kernel's name does not state it; else empty.
        elements: number of elements of a message [1]; 0 if unknown.
        stream: stream of the collective, which identifies the group if the ranks are unknown.
    """

    described: str = ""
    size: int = 0
    stride: int = 0
    operation: str = ""
    elements: int = 0
    stream: str = ""

    def without_size(self) -> "CollectiveGroup":
        """Copy of the group without the message size."""
        return self._replace(elements=0)


@functools.cache
def kernel_term_table() -> dict[str, Any]:
    """Contents of `kernel_terms.toml`: rules from kernel names to components, usual causes, facts."""
    return read_toml(Path(__file__).with_name("kernel_terms.toml"))


@functools.cache
def _patterns(table: str) -> tuple[tuple[re.Pattern[str], Mapping[str, str]], ...]:
    return tuple((re.compile(rule["pattern"], re.IGNORECASE), rule) for rule in kernel_term_table()[table])


@functools.lru_cache(maxsize=1 << 16)
def rule_of(name: str) -> tuple[str, str]:
    """Step component and collective operation of a kernel, from its name; empty without a matching rule."""
    for pattern, rule in _patterns("rules"):
        if pattern.search(name):
            return rule["term"], rule.get("collective", "")
    return "", ""


def parts_of(
    names: Sequence[str], groups: Sequence[CollectiveGroup], counts: Int[np.ndarray, " kind"], plan: Mapping[str, Any]
) -> tuple[Int[np.ndarray, " kind"], Bool[np.ndarray, " kind"]]:
    """Step component of each type of kernel (name and group), as an index in `NAMES`.

    Args:
        names: kernel name of each type.
        groups: collective group of each type.
        counts: number of kernels of each type [1].
        plan: degrees of parallelism by name [1].

    Returns:
        Components, `memory_bound` without a matching rule; whether a rule matches [kind].
    """
    found, known = [], []
    often: dict[CollectiveGroup, int] = {}
    for name, group, count in zip(names, groups, counts, strict=True):
        if rule_of(name)[1] in SPOKEN_KINDS:
            # A group counts over messages of all sizes.
            own = group.without_size()
            often[own] = often.get(own, 0) + int(count)
    # Collectives of layers run most often.
    most = max(often, key=lambda group: often[group], default=None)
    for name, group in zip(names, groups, strict=True):
        term, kind = rule_of(name)
        known.append(bool(term))
        if term == "collective":
            term = _part_of_collective(kind, group, plan, group.without_size() == most and len(often) > 1)
        found.append(NAMES.index(term or "memory_bound"))
    return np.asarray(found, int), np.asarray(known, bool)


def _part_of_collective(kind: str, group: CollectiveGroup, plan: Mapping[str, Any], is_most_often: bool) -> str:
    """Step component of a collective by its group, its operation and the plan."""
    if told := next((rule["term"] for pattern, rule in _patterns("groups") if pattern.search(group.described)), ""):
        return told
    # Letters alone: all_to_all and AllToAll are equal.
    operation = re.sub(r"[^a-z]", "", group.operation.lower())
    above = [part for degree, part in DEGREE_OF.items() if plan.get(degree, 1.0) > 1.0]
    if kind == "all_to_all" or operation.startswith("alltoall"):
        return (
            "expert_parallel" if "context_parallel" not in above or "expert_parallel" in above else "context_parallel"
        )
    if kind == "send_recv":
        if plan.get("pp", 1.0) > 1.0:
            return "pipeline"
        # Without stages: ring attention, or experts.
        return "context_parallel" if "context_parallel" in above else "expert_parallel"
    tp = plan.get("tp", 1.0)
    if group.size > 1 and group.stride and tp > 1.0:
        # Tensor-parallel ranks are neighbours.
        return "tensor_parallel" if group.size == tp and group.stride == 1 else "data_parallel"
    if tp > 1.0 and group.size not in (0, tp):
        return "data_parallel"
    possible = [part for part in SPOKEN if part in above]
    if len(possible) == 1:
        return possible[0]
    # In a single replica all experts and sequences are neighbours.
    return "tensor_parallel" if len(possible) == 2 and is_most_often else "data_parallel"


N_DRAWS = 94
"""Draws behind the interval of a component [1]."""

CLOSE, SCALES = 0.05, (0.02, 2.0)
"""Relative tolerance between the drawn and the predicted interval of the step, and bounds of the factor on the spreads
[1]."""

LEAST_HALF_WIDTH = 0.1
"""Minimum half-width of the interval of the log time of a component: kernels of a stack differ as much between
versions of a library (companion tables, data/companion) [1]."""

LEAST_SHARE = 0.01
"""Minimum half-width of the interval of a component, as a share of the step [1]."""


ROUNDING = 1e-7
"""Share of a step below which the time of a component is rounding error of 32-bit numbers [1]."""


class PredictedParts(NamedTuple):
    """Predicted time of each component of a step, with 90 % intervals [part].

    Attributes:
        middle: predicted time [s]; the sum is the step time.
        lo: lower end of the central 90 % interval [s].
        hi: upper end of the interval [s].
        hidden: time of collectives hidden by compute [s].
    """

    middle: Float[np.ndarray, " part"]
    lo: Float[np.ndarray, " part"]
    hi: Float[np.ndarray, " part"]
    hidden: Float[np.ndarray, " part"]


class _Run(NamedTuple):
    """Arguments of the step-time model."""

    model: Transformer
    plan: Plan
    cluster: Cluster
    coefficients: Coefficients


def predicted_parts(prediction: Prediction, described: Described, fit: Fit) -> PredictedParts:
    """Predicted time of each component of the step of the first row of a table, with intervals [s].

    Args:
        prediction: prediction of the table.
        described: models, plans and clusters of the rows, with open choices completed.
        fit: fit of the prediction.
    """
    step, ends = float(prediction.step_time[0]), (float(prediction.lo[0]), float(prediction.hi[0]))
    half, run = float(np.log(ends[1] / ends[0])) / 2.0, _run_of(described, fit, 0)
    if run is None:
        # Without draws, each component has the width of the step.
        width = np.full(len(NAMES), half)
        return _with_ends(_of_terms(prediction, 0), width, width, step, np.zeros(len(NAMES)))
    middle, hidden, low, high = _drawn_parts(run, half)
    # Rounding leaves a small rest of a component of zero.
    middle = np.where(middle > ROUNDING * middle.sum(), middle, 0.0)
    scale = step / middle.sum()
    found = _with_ends(middle * scale, low, high, step, hidden * scale)
    # A single component cannot move the step beyond the interval of the step.
    least, most = found.middle - LEAST_SHARE * step, found.middle + LEAST_SHARE * step
    lo = np.maximum(found.lo, np.minimum(least, found.middle - (step - ends[0])))
    hi = np.minimum(found.hi, np.maximum(most, found.middle + (ends[1] - step)))
    return found._replace(lo=np.maximum(lo, 0.0), hi=hi)


def middle_parts(prediction: Prediction, described: Described, fit: Fit, row: int) -> Float[np.ndarray, " part"]:
    """Predicted time of each component of the step of a row, without intervals [s]; arguments as `predicted_parts`."""
    run = _run_of(described, fit, row)
    if run is None:
        return _of_terms(prediction, row)
    # Row 0 is the centre; the shape of draws shares the compiled program.
    parts = _evaluated(run, np.zeros((N_DRAWS, len(priors()))))[0]
    return parts * float(prediction.step_time[row]) / parts.sum()


def _run_of(described: Described, fit: Fit, row: int) -> _Run | None:
    """Arguments of the step-time model of a row; None for a traced workload."""
    place = np.flatnonzero(described.index == row)
    if described.batch is None or not len(place):
        return None
    table, combination = fit.coefficient_table(described.levels)
    given = jax.tree.map(lambda leaf: leaf[place[0]], described.batch)
    own = jax.tree.map(lambda leaf: np.asarray(leaf)[combination[place[0]]], table)
    return _Run(given.model, given.plan, given.cluster, own)


def _of_terms(prediction: Prediction, row: int) -> Float[np.ndarray, " part"]:
    """Components of a traced workload without a separate head; recomputation counts as matmuls [s]."""
    terms = {name: float(values[row]) for name, values in prediction.terms.items()}
    middle = np.asarray([sum(terms[name] for name in names) for names in PARTS.values()])
    middle[NAMES.index("matmul")] += terms["head"] + terms["recompute"]
    return middle


def _with_ends(
    middle: np.ndarray, low: np.ndarray, high: np.ndarray, step: float, hidden: np.ndarray
) -> PredictedParts:
    """Components with intervals of at least the minimum width, from the distances of log ends [1]."""
    low, high = np.maximum(low, LEAST_HALF_WIDTH), np.maximum(high, LEAST_HALF_WIDTH)
    lo = np.minimum(middle * np.exp(-low), middle - LEAST_SHARE * step)
    hi = np.maximum(middle * np.exp(high), middle + LEAST_SHARE * step)
    return PredictedParts(middle, np.maximum(lo, 0.0), hi, hidden)


def _drawn_parts(run: _Run, half: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Components, hidden collectives [s], and distances of the 5 % and 95 % quantiles of logarithms [1], [part].

    Args:
        run: arguments of the step-time model.
        half: half-width of the interval of the logarithm of the step [1].
    """
    # Spread between stacks where known, else of the prior.
    spread = np.asarray([prior.levels.get("stack", prior.spread) for prior in priors().values()])
    # A fixed seed: equal runs give equal intervals.
    moves, scale = np.random.default_rng(0).standard_normal((N_DRAWS, len(spread))) * spread, 1.0
    parts = np.empty((0, len(NAMES)))
    for _ in range(3):
        parts = _evaluated(run, scale * moves)
        # Rows 0 and 1 are the run, and the run without overlap.
        ends = np.quantile(parts[2:].sum(axis=1), [0.05, 0.95])
        reached = float(np.log(ends[1] / ends[0])) / 2.0
        if not reached > 0.0 or abs(reached / half - 1.0) < CLOSE:
            break
        # The width is about proportional to the spreads.
        scale = float(np.clip(scale * half / reached, *SCALES))
    middle, whole = parts[0], parts[1]
    # Hidden time appears once nothing overlaps.
    hidden = np.where([name in HIDDEN for name in NAMES], np.maximum(whole - middle, 0.0), 0.0)
    # Keeps the logarithm of a component near 0 finite.
    floor = 1e-3 * middle.sum()
    ratio = np.log((np.quantile(parts[2:], [0.05, 0.95], axis=0) + floor) / (middle + floor))
    return middle, hidden, np.maximum(-ratio[0], 0.0), np.maximum(ratio[1], 0.0)


def _evaluated(run: _Run, moves: Float[np.ndarray, "draw coefficient"]) -> Float[np.ndarray, "row part"]:
    """Components of the run, of the run without hidden collectives, and of each draw, by one program [s].

    Args:
        run: arguments of the step-time model.
        moves: changes of the coordinates of the coefficients in each draw [1].
    """
    centre = unconstrain(run.coefficients)
    coordinates = np.concatenate([centre[None], centre[None], centre + moves])
    coefficients = from_values(list(np.asarray(constrain_values(coordinates)).T))
    # Row 1 without overlap.
    shown = np.arange(len(coordinates)) != 1
    bare = {name: getattr(coefficients, name) * shown for name in WITHOUT_OVERLAP}
    given = as_arrays((run.model, run.plan, run.cluster, replace(coefficients, **bare)))
    return np.asarray(_parts_of_draws(*given), float)


@small_jit
def _parts_of_draws(
    model: Transformer, plan: Plan, cluster: Cluster, coefficients: Coefficients
) -> Float[Array, "draw part"]:
    """Components of the step for each draw of the coefficients [s]."""
    return jax.vmap(lambda some: parts_of_step(model, plan, cluster, some))(coefficients)


def parts_of_step(
    model: Transformer, plan: Plan, cluster: Cluster, coefficients: Coefficients
) -> Float[Array, " part"]:
    """Time of the step components that a trace shows; the sum is `step_time(...).total`.

    Args:
        model: the transformer.
        plan: degrees, batch, schedule.
        cluster: chips and network.
        coefficients: fitted parameters.

    Returns:
        Time of each component, in the order of `NAMES` [s].
    """
    local, machine = local_plan(model, plan), machine_of(cluster, coefficients)
    layers = microbatch_times(local, machine, coefficients)
    terms = times_of_step(local, machine, coefficients, layers).terms()
    trainable = model.trainable_share
    # Forward, data, and weights where trained.
    logits = (2.0 + trainable) * matmul.head_forward(local, machine, coefficients) * plan.n_microbatches / plan.pp
    logits = jnp.minimum(logits, terms["head"])
    again = plan.recompute_full * plan.recompute_cost
    # Forward attention: the total over 1 + backward factor.
    core = layers.attention / (1.0 + attention.attention_backward_factor(plan))
    done_again = {
        # Forward takes 1 of 2 + trainable passes.
        "matmul": again * layers.matmul / (2.0 + trainable),
        # Selective recomputation repeats attention, but for flash kernels.
        "attention": (again + plan.recompute_selective * (1.0 - plan.flash_attention)) * core,
        # A third of the passes is forward.
        "memory_bound": again * layers.memory_bound / 3.0,
        "host": again * layers.launch_gaps / 3.0,
    }
    total = sum(done_again.values())
    # Repeated kernels in proportion, with the sum of the term.
    share = terms["recompute"] / jnp.where(total > 0.0, total, 1.0)
    parts = {part: sum(terms[name] for name in names) for part, names in PARTS.items()}
    parts["matmul"] = parts["matmul"] + logits
    parts["memory_bound"] = parts["memory_bound"] + terms["head"] - logits
    return jnp.stack([parts[name] + share * done_again.get(name, 0.0) for name in NAMES])


WITHOUT_OVERLAP = ("tp_overlap", "cp_overlap", "ep_overlap", "dp_overlap", "fsdp_overlap")
"""Coefficients of the hidden share of collectives."""

HIDDEN = ("tensor_parallel", "context_parallel", "expert_parallel", "data_parallel")
"""Step components with collectives that compute may hide."""
