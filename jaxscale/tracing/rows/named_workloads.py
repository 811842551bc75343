"""Traced workloads that rows of a runs table name: files, or training steps of the package; what is wrong with rows."""

import functools
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np

from jaxscale import examples
from jaxscale.base.errors import InputError, nearest
from jaxscale.runs.schema import MODEL_FIELDS
from jaxscale.runs.table import Runs
from jaxscale.tables.cells import show
from jaxscale.tracing.traced_workload import Workload, load_workload
from jaxscale.tracing.tracer import trace

OF_A_MODEL = (*MODEL_FIELDS, "seq_len")
"""Columns that describe a model: a trace has all of it."""

STEPS: tuple[str, ...] = tuple(vars(examples)["__all__"])
"""Names of the training steps of the package."""

FOREIGN = ("cp", "ep", "vpp")
"""Degrees that plans over dimension classes lack."""

WHOLE_OR_NONE = (0.0, 3.0)
"""Stages of ZeRO that such plans have: whole copies, or one copy among the chips of a group."""


def workload_named(name: str, folder: Path) -> Workload:
    """Workload by its name in a table; each file is read once.

    Args:
        name: a file that `Workload.save` wrote, relative to the folder or to the present one, or the name of a
            training step of `jaxscale.examples`.
        folder: of the table.

    Returns:
        The workload.

    Raises:
        InputError: no such file or step, or a file that holds no workload.
    """
    path = next((path for path in (folder / name, Path(name)) if path.is_file()), None)
    if path is not None:
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
    """Workload of a file as it is at a moment: compiled programs are kept by the identity of the workload."""
    del changed, size
    return load_workload(path)


@functools.cache
def _traced(name: str) -> Workload:
    """Workload of a training step of the package, at the sizes that it has by default."""
    return trace(*getattr(examples, name)())


def workload_problems(
    runs: Runs, named: np.ndarray, is_catalogue_model: Callable[[str], bool], bad: Collection[int]
) -> dict[int, list[str]]:
    """What is wrong with rows that name a workload, by row.

    Args:
        runs: the table.
        named: which rows name one [row].
        is_catalogue_model: whether a name is that of a model of the catalogue.
        bad: rows whose problems are told already.
    """
    judged = named.copy()
    judged[list(bad)] = False
    names = runs.categories("workload")
    unreadable = {name: _unreadable(name, runs.path.parent) for name in names.take(np.flatnonzero(judged)).values}
    has_model = {column: named & ~_is_empty(runs, column) for column in OF_A_MODEL}
    has_model["model"] = named & runs.categories("model").matches(lambda name: bool(name) and is_catalogue_model(name))
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
    """Why a workload cannot be read; empty where it can."""
    try:
        workload_named(name, folder)
    except InputError as error:
        return str(error)
    return ""
