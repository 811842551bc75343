"""Predictions for rows of a runs table with a traced workload."""

from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float

from jaxscale.base.arrays import in_blocks_of, stacked
from jaxscale.base.jit import filter_jit
from jaxscale.calibration.coefficients import from_values
from jaxscale.calibration.kernel_coefficients import KernelCoefficients, kernel_coefficients
from jaxscale.calibration.levels import Levels
from jaxscale.calibration.memory_limit import best_and_near
from jaxscale.calibration.record import Fit
from jaxscale.costs.memory import memory
from jaxscale.costs.step import TERM_NAMES
from jaxscale.costs.terms import terms_by_name
from jaxscale.hardware.catalogue import Hardware
from jaxscale.hardware.cluster import Cluster
from jaxscale.runs import Runs
from jaxscale.runs.arrays import clusters_of
from jaxscale.runs.predict import BESIDE, as_measured
from jaxscale.runs.row_kinds import RowAnswers
from jaxscale.tracing.class_plan import ClassPlan
from jaxscale.tracing.plan_time import traced_terms
from jaxscale.tracing.traced_rows import TracedRows, by_workload, traced_rows
from jaxscale.tracing.traced_workload import Workload

BLOCK = 64
"""Plans of a workload per call [1]; a fixed number needs one compilation."""


class _Cases(NamedTuple):
    """Pairs of a row and a plan that agrees with the row.

    Attributes:
        row: row of each case [case].
        plan: index of the plan in the question of the row [case].
        question: question of the row [case].
    """

    row: np.ndarray
    plan: np.ndarray
    question: np.ndarray


def predict_traced(runs: Runs, fit: Fit, hardware: Hardware) -> RowAnswers:
    """Predictions for the rows of a table in which every row names a traced workload.

    A row without a stated plan gets the best plan by `best_and_near`, with an interval over nearly equal plans.

    Args:
        runs: the table.
        fit: source of network coefficients, overlap, stragglers, paces and intervals; kernels have separate
            coefficients.
        hardware: catalogue of chips.
    """
    rows, n_rows = traced_rows(runs), len(runs)
    notes = np.asarray([rows.questions[place].reason for place in rows.question], dtype=object)
    assumed = np.full(n_rows, "", dtype=object)
    names = ("step_time", "lo", "hi", "memory", "memory_lo", "memory_hi", "oom_probability", *TERM_NAMES)
    numbers = {name: np.full(n_rows, np.nan) for name in names}
    cases = _cases(rows)
    if not len(cases.row):
        return RowAnswers(numbers, assumed, notes)
    found = _evaluated(runs, rows, cases, fit, hardware)
    n_chips = runs.numbers("n_gpus")
    is_measured = fit.workload_paces(rows.levels, n_chips).is_measured
    told = np.asarray(fit.notes(rows.levels.replace(is_measured, {"architecture": ""}), n_chips), dtype=object)
    # Cases are sorted by row: bounds of the cases of each row.
    bounds = np.searchsorted(cases.row, np.arange(n_rows + 1))
    for row in np.flatnonzero(np.diff(bounds)).tolist():
        places = np.arange(bounds[row], bounds[row + 1])
        near = best_and_near(found["step_time"][places], found["oom_probability"][places])
        best = places[near.best]
        for name, column in numbers.items():
            column[row] = found[name][best]
        # The interval covers plans of nearly equal time.
        numbers["lo"][row] *= near.fastest
        numbers["hi"][row] *= near.slowest
        question = rows.questions[cases.question[best]]
        assumed[row], notes[row] = question.assumed[cases.plan[best]], told[row]
    return RowAnswers(numbers, assumed, notes)


def _cases(rows: TracedRows) -> _Cases:
    """Pairs of every row with every plan of the row's question, row by row."""
    counts = np.asarray([len(question.plans) for question in rows.questions], dtype=int)[rows.question]
    row = np.repeat(np.arange(len(rows.question)), counts)
    first = np.cumsum(counts) - counts
    return _Cases(row, np.arange(len(row)) - first[row], rows.question[row])


def _evaluated(runs: Runs, rows: TracedRows, cases: _Cases, fit: Fit, hardware: Hardware) -> dict[str, np.ndarray]:
    """Predictions of all cases, by name [case]."""
    n_chips = runs.numbers("n_gpus")
    answered = np.unique(cases.row)
    place = np.searchsorted(answered, cases.row)
    clusters = clusters_of(rows.machine.take(answered), n_chips[answered], hardware)
    # Rows share coefficients by combination of levels.
    table, combination = fit.coefficient_table(rows.levels.take(answered))
    matrix = np.stack(jax.tree.leaves(table))[:, combination]
    own = [hardware.kernels.get(hardware[gpu].id) for gpu, *_ in rows.machine.values]
    stacks = stacked([kernel_coefficients("pytorch"), *(kernel_coefficients("jax", of_chip) for of_chip in own)])
    # Eager rows have coefficients of PyTorch, compiled rows of JAX on the chip.
    stack = np.where(rows.is_eager[answered], 0, 1 + rows.machine.codes[answered])
    kernels = jax.tree.map(lambda leaf: np.asarray(leaf)[stack], stacks)
    fused = rows.fused_norms[answered]
    found = {name: np.full(len(cases.row), np.nan) for name in ("step_time", "memory", BESIDE, *TERM_NAMES)}
    for questions in by_workload(rows).values():
        mine = np.flatnonzero(np.isin(cases.question, questions))
        asked = [rows.questions[question] for question in cases.question[mine]]
        plans = stacked([one.plans[plan] for one, plan in zip(asked, cases.plan[mine], strict=True)])
        # (cases, classes)
        sizes = np.stack([np.asarray(one.work.sizes, float) for one in asked])  # pyright: ignore[reportOptionalMemberAccess]
        tables = asked[0].work.tables  # pyright: ignore[reportOptionalMemberAccess]
        of_case = jax.tree.map(
            lambda leaf, mine=mine: np.asarray(leaf)[place[mine]], (clusters, matrix.T, kernels, fused)
        )
        work = Workload(sizes[0], tables)
        answers = in_blocks_of(BLOCK, lambda part, work=work: _evaluate(work, *part), (sizes, plans, *of_case))
        for name, values in answers.items():
            found[name][mine] = values
    capacity = np.asarray(clusters.chip.hbm_bytes)[place]
    return _paced(found, rows.levels.take(cases.row), n_chips[cases.row], capacity, fit)


def _paced(
    found: dict[str, np.ndarray], levels: Levels, n_chips: np.ndarray, capacity: np.ndarray, fit: Fit
) -> dict[str, np.ndarray]:
    """Predictions of cases multiplied by the pace of the workload, with intervals [case]."""
    paces = fit.workload_paces(levels, n_chips)
    times = {name: found[name] * np.exp(paces.log_pace) for name in ("step_time", *TERM_NAMES)}
    return as_measured(fit.with_intervals({**found, **times}, levels, n_chips, capacity, paces.half_width))


@filter_jit
def _evaluate(
    work: Workload,
    sizes: Float[Array, "case class"],
    plans: ClassPlan,
    clusters: Cluster,
    coefficients: Float[Array, "case coefficient"],
    kernels: KernelCoefficients,
    fused_norms: Float[Array, " case"],
) -> dict[str, Array]:
    """Step time and its terms [s], and peak memory [byte], of cases of one workload [case]."""

    def one(sizes: Array, plan: ClassPlan, cluster: Cluster, values: Array, kernels: Any, fused: Array) -> Any:
        local, c = Workload(sizes, work.tables), from_values(list(values))
        terms = traced_terms(local, plan, cluster, c, kernels, fused_norms=fused)
        every = terms_by_name(terms, TERM_NAMES)
        held = memory(local, plan, cluster, c)
        return {**every, "step_time": sum(terms.values()), "memory": held.total, BESIDE: held.framework}

    return jax.vmap(one)(sizes, plans, clusters, coefficients, kernels, fused_norms)
