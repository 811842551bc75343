"""Step time and memory of many plans in one compiled `vmap`.

Plans go through in blocks of one fixed size, so that the scorer compiles once in the life of a process, whatever the
model and the cluster: for few plans without optimisation.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float

from jaxscale._arrays import filled_rows, host_arrays, stacked
from jaxscale._compile.jit import filter_jit, small_jit
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.hardware.cluster import Cluster
from jaxscale.memory import Memory
from jaxscale.plan.plan import Plan
from jaxscale.plans.enumerate import PlanTable
from jaxscale.step import StepTime, model_flops_utilisation, step_and_memory
from jaxscale.workload import Transformer

SCORED_AT_A_TIME = 4096
"""Plans per call of the scorer: few enough to stay in cache [plan]."""


FEW = 16 * SCORED_AT_A_TIME
"""Plans up to which compiling in a third of the time saves more than scoring at half the speed costs [plan]."""


class Scores(NamedTuple):
    """Figures of many plans that a search compares.

    Attributes:
        step_time: [s], [plan].
        memory: peak of the fullest chip [byte], [plan].
    """

    step_time: Float[np.ndarray, " plan"]
    memory: Float[np.ndarray, " plan"]


class Detail(NamedTuple):
    """Every term of one plan.

    Attributes:
        terms: step time by cause [s].
        memory_terms: peak memory by cause [byte].
        mfu: model flops over the 16-bit peak, attention counted in full [1].
    """

    terms: dict[str, float]
    memory_terms: dict[str, float]
    mfu: float


class _Block(NamedTuple):
    """A block of plans, judged; every leaf [plan]."""

    times: StepTime
    peaks: Memory
    step_time: Array
    memory: Array
    mfu: Array


# One program for totals and terms: the model is traced once, and terms are made on the way to totals anyway.
def _judge(model: Transformer, plans: Plan, cluster: Cluster, coefficients: Coefficients) -> _Block:
    def one(plan: Plan) -> _Block:
        times, peaks = step_and_memory(model, plan, cluster, coefficients)
        total = times.total
        return _Block(times, peaks, total, peaks.total, model_flops_utilisation(model, plan, cluster, total))

    return jax.vmap(one)(plans)


@small_jit
def _judge_few(model: Transformer, plans: Plan, cluster: Cluster, coefficients: Coefficients) -> _Block:
    return _judge(model, plans, cluster, coefficients)


@filter_jit
def _judge_many(model: Transformer, plans: Plan, cluster: Cluster, coefficients: Coefficients) -> _Block:
    return _judge(model, plans, cluster, coefficients)


def _judged(count: int, model: Transformer, plans: Plan, cluster: Cluster, coefficients: Coefficients) -> _Block:
    """A block of a number of plans, by the program that suits the number."""
    program = _judge_few if count <= FEW else _judge_many
    return program(model, plans, cluster, coefficients)


def score_plans(model: Transformer, table: PlanTable, cluster: Cluster, coefficients: Coefficients) -> Scores:
    """Step time and peak memory of every plan of a table, by the exact model.

    Args:
        model: the transformer.
        table: the plans.
        cluster: chips and network.
        coefficients: fitted parameters.

    Returns:
        Host arrays in the order of the table.
    """
    model, cluster, coefficients = host_arrays((model, cluster, coefficients))
    size, totals = SCORED_AT_A_TIME, []
    for start in range(0, len(table), size):
        plans, _ = table.stacked(slice(start, start + size), size)
        block = _judged(len(table), model, plans, cluster, coefficients)
        totals.append((block.step_time, block.memory))
    if not totals:
        return Scores(np.zeros(0), np.zeros(0))
    # Reading only now lets the device work on one block while the host lays out the next.
    times, peaks = (np.concatenate([np.asarray(column) for column in columns]) for columns in zip(*totals, strict=True))
    return Scores(times[: len(table)], peaks[: len(table)])


def time_plans(
    model: Transformer, plans: Sequence[Plan], cluster: Cluster, coefficients: Coefficients
) -> Float[np.ndarray, " plan"]:
    """Step time of a few plans of any kind, by the program that scores tables of plans.

    Args:
        model: the transformer.
        plans: the plans.
        cluster: chips and network.
        coefficients: fitted parameters.

    Returns:
        Times on the host [s], [plan].
    """
    rows = filled_rows(len(plans), SCORED_AT_A_TIME)
    model, cluster, coefficients, few = host_arrays((model, cluster, coefficients, stacked(plans)))
    times = []
    for start in range(0, len(rows), SCORED_AT_A_TIME):
        block = jax.tree.map(lambda leaf, part=rows[start : start + SCORED_AT_A_TIME]: leaf[part], few)
        times.append(np.asarray(_judged(len(plans), model, block, cluster, coefficients).step_time))
    return np.concatenate(times)[: len(plans)]


def detail_plans(
    model: Transformer, table: PlanTable, cluster: Cluster, coefficients: Coefficients, rows: np.ndarray
) -> list[Detail]:
    """Every term of a few plans.

    Args:
        model: the transformer.
        table: the plans.
        cluster: chips and network.
        coefficients: fitted parameters.
        rows: which plans.

    Returns:
        The details of each row.
    """
    model, cluster, coefficients = host_arrays((model, cluster, coefficients))
    size, details = SCORED_AT_A_TIME, []
    for start in range(0, len(rows), size):
        picked = rows[start : start + size]
        plans, _ = table.stacked(picked, size)
        block = _judged(len(table), model, plans, cluster, coefficients)
        parts = block.times.terms(), block.peaks.terms()
        columns = [{name: np.asarray(term) for name, term in part.items()} for part in parts]
        utilisation = np.asarray(block.mfu)
        for row in range(len(picked)):
            terms, memory_terms = ({name: float(term[row]) for name, term in part.items()} for part in columns)
            details.append(Detail(terms, memory_terms, float(utilisation[row])))
    return details
