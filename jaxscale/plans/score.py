"""Step time and memory of many plans, of one or several models and clusters, by the program for tables of runs."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from jaxscale.base.arrays import stacked, with_columns
from jaxscale.calibration.coefficients import Coefficients, values_of
from jaxscale.costs.evaluate import BLOCK_ROWS, MEMORY_TERMS, Columns, collected, started
from jaxscale.costs.step import TERM_NAMES
from jaxscale.hardware.cluster import Cluster
from jaxscale.models.transformer import Transformer
from jaxscale.plans.enumerate import PlanTable
from jaxscale.plans.plan import Plan
from jaxscale.runs.arrays import RunBatch


class Scores(NamedTuple):
    """Scores of many plans in a search.

    Attributes:
        step_time: step time [s], [plan].
        memory: peak of the fullest chip [byte], [plan].
    """

    step_time: Float[np.ndarray, " plan"]
    memory: Float[np.ndarray, " plan"]


class Detail(NamedTuple):
    """Cost terms, memory terms and figures of one plan.

    Attributes:
        terms: step time by cause [s].
        memory_terms: peak memory by cause [byte].
        mfu: model flops over the 16-bit peak, attention counted in full [1].
        step_time: step time [s].
        memory: peak of the fullest chip [byte].
    """

    terms: dict[str, float]
    memory_terms: dict[str, float]
    mfu: float
    step_time: float
    memory: float


class Judged(NamedTuple):
    """Plans to be scored, with model, cluster and coefficients.

    Attributes:
        model: the transformer.
        table: the plans.
        cluster: chips and network.
        coefficients: fitted parameters.
    """

    model: Transformer
    table: PlanTable
    cluster: Cluster
    coefficients: Coefficients


def judge(every: Sequence[Judged], names: tuple[str, ...]) -> list[Columns]:
    """Columns of `jaxscale.costs.evaluate` for the plans of several tables, evaluated like one table.

    Args:
        every: models, clusters and their plans.
        names: requested columns.

    Returns:
        The columns of each table [plan].
    """
    lengths = [len(one.table) for one in every]
    owner = np.repeat(np.arange(len(every)), lengths)
    shared = stacked([(one.model, one.table.space.base, one.cluster) for one in every])
    # (coefficients, tables)
    coefficients = np.stack([values_of(one.coefficients) for one in every], axis=1)
    fields = every[0].table.columns
    columns = {name: np.concatenate([one.table.columns[name] for one in every]) for name in fields}
    blocks = []
    # Blocks of a fixed size need a single compilation.
    for start in range(0, len(owner), BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        model, software, cluster = _of_owners(shared, owner[rows])
        plan: Plan = with_columns(software, {name: column[rows].astype(float) for name, column in columns.items()})
        block = started(RunBatch(model, plan, cluster, np.ones(len(owner[rows]))), coefficients[:, owner[rows]])
        # Columns that are not requested are freed while later blocks are computed.
        blocks.append({name: block[name] for name in names})
    found = collected(blocks, len(owner), names)
    ends = np.cumsum(lengths)[:-1]
    parts = {name: np.split(column, ends) for name, column in found.items()}
    return [{name: parts[name][place] for name in names} for place in range(len(every))]


def _of_owners(shared: Any, owner: np.ndarray) -> Any:
    """Model, software and cluster of each row."""
    return jax.tree.map(lambda leaf: leaf[owner], shared)


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
    return score_tables([Judged(model, table, cluster, coefficients)])[0]


def score_tables(every: Sequence[Judged]) -> list[Scores]:
    """Step time and peak memory of the plans of several tables, see `judge`."""
    return [Scores(found["step_time"], found["memory"]) for found in judge(every, ("step_time", "memory"))]


def _of_plans(
    model: Transformer, plans: Sequence[Plan], cluster: Cluster, coefficients: Coefficients, names: Sequence[str]
) -> Columns:
    """Columns of a few arbitrary plans, by the program that scores tables of plans [plan]."""
    count = len(plans)
    model, cluster = _of_owners(stacked([(model, cluster)]), np.zeros(count, dtype=int))
    # (coefficients, plans)
    rows = np.repeat(np.asarray(values_of(coefficients))[:, None], count, axis=1)
    block = started(RunBatch(model, stacked(plans), cluster, np.ones(count)), rows)
    return {name: np.asarray(block[name])[:count] for name in names}


def time_plans(
    model: Transformer, plans: Sequence[Plan], cluster: Cluster, coefficients: Coefficients
) -> Float[np.ndarray, " plan"]:
    """Step time of a few arbitrary plans, by the program that scores tables of plans.

    Args:
        model: the transformer.
        plans: at most `BLOCK_ROWS` plans.
        cluster: chips and network.
        coefficients: fitted parameters.

    Returns:
        Times on the host [s], [plan].
    """
    return _of_plans(model, plans, cluster, coefficients, ["step_time"])["step_time"]


DETAILS = ("step_time", "memory", "mfu", *TERM_NAMES, *MEMORY_TERMS)


def detailed(model: Transformer, plans: Sequence[Plan], cluster: Cluster, coefficients: Coefficients) -> list[Detail]:
    """Time, memory and every cost term of a few arbitrary plans, see `time_plans`."""
    found = _of_plans(model, plans, cluster, coefficients, DETAILS)
    return [_detail(found, row) for row in range(len(plans))]


def _detail(found: Columns, row: int) -> Detail:
    """Numbers of one plan."""
    held = {name.removeprefix("memory_"): float(found[name][row]) for name in MEMORY_TERMS}
    terms = {name: float(found[name][row]) for name in TERM_NAMES}
    return Detail(terms, held, *(float(found[name][row]) for name in ("mfu", "step_time", "memory")))
