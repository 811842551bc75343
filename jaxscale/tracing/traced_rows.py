"""Rows of a runs table with a traced workload: the workload, and the plans that agree with each row."""

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from jaxscale import examples
from jaxscale.base.arrays import stated_or
from jaxscale.base.errors import InputError, nearest
from jaxscale.calibration.levels import Levels
from jaxscale.runs.checks import degrees
from jaxscale.runs.defaults import EmptyCells
from jaxscale.runs.run_levels import company_of, setup_name
from jaxscale.runs.schema import MODEL_FIELDS, Runs
from jaxscale.tables.categorical import Categorical, together
from jaxscale.tables.cells import show, translate
from jaxscale.tracing.class_plan import ClassPlan, batch_class
from jaxscale.tracing.class_plans import StatedDegrees, class_plans, split_names
from jaxscale.tracing.traced_workload import Workload, load_workload
from jaxscale.tracing.tracer import trace

OF_A_MODEL = (*MODEL_FIELDS, "seq_len")
"""Columns that describe a model, which a trace replaces."""

STEPS: tuple[str, ...] = tuple(vars(examples)["__all__"])
"""Names of the example training steps of the package."""

FOREIGN = ("cp", "ep", "vpp")
"""Degrees absent from plans over dimension classes."""

WHOLE_OR_NONE = (0.0, 3.0)
"""ZeRO stages of class plans: whole copies, or one copy shared by the chips of a group."""


def workload_named(name: str, folder: Path) -> Workload:
    """Workload by its name in a table; each file is read once.

    Args:
        name: file written by `Workload.save`, relative to the folder or to the working directory, or the name of a
            training step of `jaxscale.examples`.
        folder: folder of the table.

    Raises:
        InputError: no such file or step, or a file that holds no workload.
    """
    path = next((path for path in (folder / name, Path(name)) if path.is_file()), None)
    if path is not None:
        # Time and size of the file: a rewritten workload is read again.
        state = path.stat()
        return _read(path.resolve(), state.st_mtime_ns, state.st_size)
    if name in STEPS:
        return _traced(name)
    raise InputError(
        f"unknown workload; expected a file of `jaxscale trace ... --out` beside the table, or a step of "
        f"jaxscale.examples: {nearest(name, STEPS)}"
    )


@functools.lru_cache(maxsize=64)
def _read(path: Path, changed: int, size: int) -> Workload:
    """Workload of an unchanged file, cached: compiled programs are kept by the identity of the workload."""
    del changed, size
    return load_workload(path)


@functools.cache
def _traced(name: str) -> Workload:
    """Workload of an example training step at default sizes."""
    return trace(*getattr(examples, name)())


def workload_problems(
    runs: Runs, named: np.ndarray, is_catalogue_model: Callable[[str], bool], bad: Collection[int]
) -> dict[int, list[str]]:
    """Problems of rows with a workload, by row.

    Args:
        runs: the table.
        named: mask of rows with a workload [row].
        is_catalogue_model: whether a name is that of a model of the catalogue.
        bad: rows with problems already reported.
    """
    judged = named.copy()
    judged[list(bad)] = False
    names = runs.categories("workload")
    unreadable = {name: _unreadable(name, runs.path.parent) for name in names.take(np.flatnonzero(judged)).values}
    has_model = {column: named & ~_is_empty(runs, column) for column in OF_A_MODEL}
    has_model["model"] = named & runs.categories("model").matches(lambda name: bool(name) and is_catalogue_model(name))
    # An empty degree is 1.
    foreign = {column: named & (np.nan_to_num(runs.numbers(column), nan=1.0) > 1.0) for column in FOREIGN}
    stage = runs.numbers("zero_stage")
    problems: dict[int, list[str]] = {}
    for row in np.flatnonzero(judged).tolist():
        name, told = names[row], []
        if unreadable[name]:
            told.append(f"column 'workload' = {show(name)}: {unreadable[name]}")
        columns = [column for column, here in has_model.items() if here[row]]
        if columns:
            told.append(
                f"column 'workload' = {show(name)}: the row has columns of a model too ({', '.join(columns)}); "
                "expected either a workload or a model"
            )
        for column in (column for column, here in foreign.items() if here[row]):
            told.append(
                f"column {column!r} = '{runs.numbers(column)[row]:g}': plans of a traced workload have no such degree; "
                "expected an empty cell"
            )
        if not np.isnan(stage[row]) and stage[row] not in WHOLE_OR_NONE:
            told.append(
                f"column 'zero_stage' = '{stage[row]:g}': a traced workload has whole copies (0) or shards all of its "
                "state (3); expected 0, 3 or an empty cell"
            )
        if told:
            problems[row] = told
    return problems


def _is_empty(runs: Runs, column: str) -> np.ndarray:
    return runs.categories(column).matches(lambda value: value is None)


def _unreadable(name: str, folder: Path) -> str:
    """Reason why a workload cannot be read; empty for a readable workload."""
    try:
        workload_named(name, folder)
    except InputError as error:
        return str(error)
    return ""


ASKED = ("workload", "n_gpus", "dp", "tp", "pp", "micro_batch_size", "n_microbatches", "global_batch_size_seqs") + (
    "zero_stage",
    "shard_group",
    "split_classes",
    "table_placement",
    "joint_statistics",
)
"""Columns that determine the plan of a row."""

STACK = "jax"
"""Default framework of a row: a traced workload is a JAX step."""


@dataclass(frozen=True)
class TracedQuestion:
    """Workload of rows with equal cells, and the plans that agree with the cells.

    Attributes:
        work: workload at the batch of the rows.
        plans: every plan that agrees; empty if the rows cannot be predicted.
        assumed: text on the assumed choices of each plan.
        reason: cause of the absence of plans; empty with plans.
    """

    work: Workload | None
    plans: tuple[ClassPlan, ...] = ()
    assumed: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class TracedRows:
    """Rows with a traced workload, described for the prediction.

    Attributes:
        question: index of the question of each row [row].
        questions: the distinct questions.
        machine: catalogue id of the chip, chips per scale-up domain [1] and scale-out bandwidth [Gbit/s] [row].
        levels: levels of each row.
        is_eager: whether a host launches each kernel [row].
        fused_norms: 1 where a row states fused norm kernels [1], [row].
    """

    question: Int[np.ndarray, " row"]
    questions: tuple[TracedQuestion, ...]
    machine: Categorical
    levels: Levels
    is_eager: np.ndarray
    fused_norms: np.ndarray


def traced_rows(runs: Runs) -> TracedRows:
    """Plans, machines and levels of rows with a traced workload, without use of measured columns."""
    known = degrees(runs)
    columns = {name: runs.categories(name) for name in ASKED}
    # A degree that follows from the stated degrees counts as stated.
    columns |= {name: Categorical.of_numbers(_degree(runs, name, known[name])) for name in ("dp", "tp", "pp")}
    has_chip = runs.categories("gpu").matches(lambda name: name is not None)
    asked = together(*columns.values(), Categorical(has_chip.astype(int), (False, True)))
    questions = tuple(_question(runs, dict(zip(columns, row, strict=False)), row[-1]) for row in asked.values)
    stack = together(runs.categories("framework"), runs.categories("execution"), EmptyCells(runs).filled("execution"))
    names = ("gpu", "gpus_per_node", "inter_node_gbit_per_s_per_gpu")
    return TracedRows(
        question=asked.codes,
        questions=questions,
        machine=together(*(runs.categories(name) for name in names)),
        levels=_levels(runs),
        is_eager=stack.matches(_is_eager),
        # An empty cell is no fused norm.
        fused_norms=np.nan_to_num(runs.numbers("fused_norm")),
    )


def _is_eager(stack: tuple[str | None, str | None, str | None]) -> bool:
    """Whether the software of a row launches each kernel: by the row's cell, else by the framework."""
    framework, stated, filled = stack
    # Without framework and execution, the row runs the traced program, which is compiled.
    return bool(framework or stated) and translate("execution", str(filled)) == "eager"


def _degree(runs: Runs, name: str, known: np.ndarray) -> np.ndarray:
    """Degree of each row: derived from all cells, else stated, nan if open; 1 on a single chip [1]."""
    degree = stated_or(known, runs.numbers(name))
    # A single chip splits nothing.
    return np.where(runs.numbers("n_gpus") == 1.0, 1.0, degree)


def _levels(runs: Runs) -> Levels:
    """Levels of rows: software, chip and system, with the workload as architecture."""
    setups = together(runs.categories("source"), runs.categories("framework"), EmptyCells(runs).default("apart"))
    frameworks = runs.categories("framework").map(lambda name: name or STACK)
    columns = {
        "source": setups.map(setup_name),
        "framework": frameworks,
        "release": runs.categories("release"),
        "gpu": runs.categories("gpu"),
        "architecture": runs.categories("workload"),
        "company": company_of(runs),
    }
    return Levels.of_columns({kind: column.array().tolist() for kind, column in columns.items()}, len(runs))


def _question(runs: Runs, row: Mapping[str, Any], has_chip: bool) -> TracedQuestion:
    """Plans that agree with the cells of a row."""
    missing = ([] if has_chip else ["gpu"]) + (["n_gpus"] if row["n_gpus"] is None else [])
    if missing:
        return TracedQuestion(None, reason=f"missing {', '.join(missing)}")
    try:
        work = workload_named(row["workload"], runs.path.parent)
        return _agreeing(work, row)
    except InputError as error:
        return TracedQuestion(None, reason=str(error))


def _agreeing(work: Workload, row: Mapping[str, Any]) -> TracedQuestion:
    """Plans of a workload that agree with the cells of a row."""
    if row["n_gpus"] == 1 and row["global_batch_size_seqs"] is None and row["n_microbatches"] is None:
        return TracedQuestion(work, (one_chip(work),), ("",))
    name = work.tables.class_names[batch_class(work)]
    batch = row["global_batch_size_seqs"]
    # Sizes change, kernels stay: a trace holds for every batch.
    work = work if batch is None else work.with_sizes({name: batch})
    stated = _stated(row)
    plans = tuple(class_plans(work, int(row["n_gpus"]), stated))
    if not plans:
        return TracedQuestion(None, reason=f"no plan of {row['workload']} on {row['n_gpus']:g} chips has these degrees")
    size = "" if batch is not None else f"global_batch_size_seqs = {work.classes()[name]:g}"
    return TracedQuestion(work, plans, tuple(_assumed(work, plan, stated, size) for plan in plans))


def one_chip(work: Workload) -> ClassPlan:
    """Plan on a single chip, for workloads with or without a data class."""
    ones = dict.fromkeys(("data", "shard", "tensor", "pipeline", "n_microbatches", "joint_statistics"), 1.0)
    split = np.zeros(len(work.tables.class_names))
    try:
        place = batch_class(work)  # the class of all plans, so that they stack
    except InputError:
        place = 0
    return ClassPlan(**ones, split=split, tables_by_table=0.0, tables_by_row=0.0, data_class=place)


def _stated(row: Mapping[str, Any]) -> StatedDegrees:
    """Degrees stated by a row or derived from its cells; None for open degrees."""
    data, tensor, pipeline = (None if np.isnan(row[name]) else float(row[name]) for name in ("dp", "tp", "pp"))
    count, micro, stage = row["n_microbatches"], row["micro_batch_size"], row["zero_stage"]
    is_whole = data is not None and tensor is not None and pipeline is not None
    # All degrees stated and no pipeline: the whole batch is a microbatch.
    if count is None and micro is None and is_whole and pipeline == 1.0:
        count = 1.0
    # Without a stated group, a copy is shared by all replicas.
    shard = row["shard_group"] or np.inf
    if stage is None:
        # Stated degrees without ZeRO are plain replicas.
        shard = 1.0 if is_whole else None
    elif stage == 0.0:
        shard = 1.0
    split, placement = row["split_classes"], row["table_placement"]
    names = None if split is None else tuple(one.strip() for one in split.split("+"))
    placed: Any = None if placement is None else translate("table_placement", str(placement))
    joint = row["joint_statistics"] is not False
    return StatedDegrees(data, tensor, pipeline, shard, count, micro, names, placed, joint)


def _assumed(work: Workload, plan: ClassPlan, stated: StatedDegrees, batch: str) -> str:
    """Choices of a plan that the row leaves open, as columns of a table."""
    words = [batch] if batch else []
    degrees_of = (
        ("dp", stated.data, plan.data),
        ("tp", stated.tensor, plan.tensor),
        ("pp", stated.pipeline, plan.pipeline),
    )
    words += [f"{name} = {degree:g}" for name, said, degree in degrees_of if said is None]
    if stated.shard is None:
        words.append(f"zero_stage = {3 if plan.shard > 1 else 0}")
    if stated.n_microbatches is None and stated.micro_batch is None:
        words.append(f"n_microbatches = {plan.n_microbatches:g}")
    if stated.split is None and plan.tensor > 1:
        words.append(f"split_classes = {'+'.join(split_names(work, plan))}")
    if stated.tables is None and (plan.tables_by_table or plan.tables_by_row):
        words.append(f"table_placement = {'table' if plan.tables_by_table else 'row'}")
    return ", ".join(words)


def by_workload(rows: TracedRows) -> dict[int, list[int]]:
    """Indices of the questions of each workload; the questions of a workload share a compiled program."""
    groups: dict[int, list[int]] = {}
    for place, question in enumerate(rows.questions):
        if question.work is not None:
            groups.setdefault(id(question.work.tables), []).append(place)
    return groups
