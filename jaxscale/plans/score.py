"""Step time and memory of many plans in one compiled `vmap`.

Plans go through in blocks of one fixed size, so that the scorer compiles once in the life of a process, whatever the
model, the cluster and the number of plans.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxscale._compile import filter_jit
from jaxscale.calibration.coefficients import Coefficients
from jaxscale.hardware.cluster import Cluster
from jaxscale.memory import Memory
from jaxscale.plan.plan import Plan
from jaxscale.plans.enumerate import PlanTable
from jaxscale.step import StepTime, model_flops_utilisation, step_and_memory
from jaxscale.workload import Transformer

BLOCK = 32768
"""Plans per call of the scorer: enough to keep every core busy, few enough to stay in cache [plan]."""

SMALL_BLOCK = 4096
"""The same for a short table [plan]."""

DETAIL_BLOCK = 64
"""Plans per call where every term is kept [plan]."""


class Scores(NamedTuple):
    """What a search compares.

    Attributes:
        step_time: [s], [plan].
        memory: peak of the fullest chip [byte], [plan].
    """

    step_time: Float[np.ndarray, " plan"]
    memory: Float[np.ndarray, " plan"]


class Detail(NamedTuple):
    """All that is known of one plan.

    Attributes:
        terms: step time by cause [s].
        memory_terms: peak memory by cause [byte].
        mfu: model flops over the 16-bit peak, attention counted in full [1].
    """

    terms: dict[str, float]
    memory_terms: dict[str, float]
    mfu: float


def as_arrays(tree: Any) -> Any:
    """Every number of a module as an array of the default precision: other values then never compile anew."""
    dtype = jnp.result_type(float)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), tree)


@filter_jit
def _score_block(model: Transformer, plans: Plan, cluster: Cluster, coefficients: Coefficients) -> tuple[Array, Array]:
    def one(plan: Plan) -> tuple[Array, Array]:
        times, peak = step_and_memory(model, plan, cluster, coefficients)
        return times.total, peak.total

    return jax.vmap(one)(plans)


@filter_jit
def _detail_block(
    model: Transformer, plans: Plan, cluster: Cluster, coefficients: Coefficients
) -> tuple[StepTime, Memory, Array]:
    def one(plan: Plan) -> tuple[StepTime, Memory, Array]:
        times, peak = step_and_memory(model, plan, cluster, coefficients)
        return times, peak, model_flops_utilisation(model, plan, cluster, times.total)

    return jax.vmap(one)(plans)


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
    fixed = as_arrays((model, cluster, coefficients))
    size = BLOCK if len(table) > BLOCK // 2 else SMALL_BLOCK
    starts = range(0, len(table), size)
    blocks = [_scored(_score_block, fixed, table, slice(start, start + size), size) for start in starts]
    if not blocks:
        return Scores(np.zeros(0), np.zeros(0))
    # Reading only now lets the device work on one block while the host lays out the next.
    times, peaks = (np.concatenate([np.asarray(block[part]) for block in blocks]) for part in (0, 1))
    return Scores(times[: len(table)], peaks[: len(table)])


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
    fixed = as_arrays((model, cluster, coefficients))
    details = []
    for start in range(0, len(rows), DETAIL_BLOCK):
        block = rows[start : start + DETAIL_BLOCK]
        times, peaks, utilisation = _scored(_detail_block, fixed, table, block, DETAIL_BLOCK)
        by_name = [{name: np.asarray(term) for name, term in part.terms().items()} for part in (times, peaks)]
        for row in range(len(block)):
            seconds, bytes_ = ({name: float(term[row]) for name, term in terms.items()} for terms in by_name)
            details.append(Detail(seconds, bytes_, float(utilisation[row])))
    return details


def _scored(compiled: Any, fixed: tuple[Any, Any, Any], table: PlanTable, rows: Any, size: int) -> Any:
    model, cluster, coefficients = fixed
    plans, _ = table.stacked(rows, size)
    return compiled(model, plans, cluster, coefficients)
