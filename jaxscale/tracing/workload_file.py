"""Files of traced workloads: JSON of sizes, kernels, stored values and names; no code and no weights."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from jaxscale.base.documents import LARGEST, parsed_json, read_text
from jaxscale.base.errors import InputError
from jaxscale.base.files import write_whole
from jaxscale.tracing.workload_tables import QUANTITIES, Terms, WorkloadTables

FORMAT = "jaxscale workload 1"
"""Name and version of the format."""


def write_tables(path: str | Path, tables: WorkloadTables, sizes: np.ndarray) -> None:
    """Write a workload as one JSON document.

    Args:
        path: file to write.
        tables: of the workload.
        sizes: of its classes [1].

    Raises:
        InputError: the file cannot be written.
    """
    document: dict[str, Any] = {"format": FORMAT, "sizes": sizes.tolist()}
    for name in WorkloadTables.__dataclass_fields__:
        value = getattr(tables, name)
        if name == "terms":
            document[name] = {quantity: _term_lists(terms) for quantity, terms in value.items()}
        elif isinstance(value, Terms):
            document[name] = _term_lists(value)
        else:
            document[name] = value.tolist() if isinstance(value, np.ndarray) else list(value)
    write_whole(path, json.dumps(document, separators=(",", ":")))


def _term_lists(terms: Terms) -> dict[str, list[Any]]:
    return {"row": terms.row.tolist(), "factor": terms.factor.tolist(), "classes": terms.classes.tolist()}


def read_tables(path: str | Path) -> tuple[np.ndarray, WorkloadTables]:
    """Sizes [1] and tables of a workload from a file.

    Raises:
        InputError: the file is missing, or holds no workload.
    """
    try:
        document = parsed_json(read_text(Path(path), 4 * LARGEST, "a file that `Workload.save` wrote"))
    except InputError:
        raise
    except ValueError:
        document = None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InputError(f"{path}: holds no workload; expected a file that `Workload.save` wrote, of format {FORMAT!r}")
    try:
        return np.asarray(document["sizes"], float), _tables(document)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: is incomplete ({error}); expected a file that `Workload.save` wrote") from None


def _tables(document: dict[str, Any]) -> WorkloadTables:
    fields: dict[str, Any] = {}
    for name, field in WorkloadTables.__dataclass_fields__.items():
        value = document[name]
        if name == "terms":
            fields[name] = {quantity: _terms(value[quantity]) for quantity in QUANTITIES}
        elif field.type is Terms:
            fields[name] = _terms(value)
        elif field.type is np.ndarray:
            fields[name] = np.asarray(value, float)
        else:
            fields[name] = tuple(tuple(one) if isinstance(one, list) else one for one in value)
    return WorkloadTables(**fields)


def _terms(lists: dict[str, Any]) -> Terms:
    row, factor = np.asarray(lists["row"], np.int32), np.asarray(lists["factor"], float)
    return Terms(row, factor, np.asarray(lists["classes"], np.int32).reshape(len(row), -1 if len(row) else 1))
