"""Read a serving table and refuse what is malformed, with file, line, column, value and what would be valid."""

from collections.abc import Collection
from pathlib import Path

import numpy as np

from jaxscale.base.errors import InputError, one_like
from jaxscale.hardware.catalogue import Hardware, load_hardware
from jaxscale.models import catalogue_model, model_fields
from jaxscale.runs.categorical import Categorical
from jaxscale.runs.cells import parse_cells, show
from jaxscale.runs.checks import Check
from jaxscale.runs.header import check_names
from jaxscale.runs.reader import coded_columns, csv_table, without_bad_rows
from jaxscale.runs.table import Runs
from jaxscale.serving.engine import CACHE_FORMATS, WEIGHT_FORMATS
from jaxscale.serving.tables.serving_columns import (
    OTHER_WORDS,
    SERVING_BY_NAME,
    SERVING_KINDS,
    SERVING_REQUIRED,
    SERVING_SHAPE,
)

WORDS = {"precision": WEIGHT_FORMATS, "kv_precision": CACHE_FORMATS, "serving": SERVING_KINDS}
"""Columns whose cells are words of a vocabulary."""


def read_serving(path: str | Path, *, skip_bad: bool = False, hardware: Hardware | None = None) -> Runs:
    """Read and check a serving table against the catalogues, `js.serving.read_serving("serving.csv")`.

    Args:
        path: a CSV file, UTF-8, comma-separated, with a header.
        skip_bad: drop bad rows instead of refusing the file.
        hardware: chips that the table may name; the shipped catalogue where None.

    Returns:
        The table.

    Raises:
        InputError: the file cannot be read as a serving table, or has bad rows; with `skip_bad`, if all are bad.
    """
    path = Path(path)
    header, records = csv_table(path)
    columns = tuple(map(_canonical, header))
    _check_columns(path, columns)
    lines, cells, n_cells = coded_columns(path, records, len(columns))
    if not len(lines):
        raise InputError(f"{path}: no data rows; expected one row per measurement below the header")
    known = {name: entry.id for name, entry in (hardware or load_hardware()).chips.items()}
    values, problems = {}, {row: f"{n} cells; expected {len(columns)}, as in the header" for row, n in n_cells.items()}
    for name, column in zip(columns, cells, strict=True):
        if name not in SERVING_BY_NAME:
            continue
        texts = list(map(str.strip, column.values))
        parsed = parse_cells(SERVING_BY_NAME[name], texts, known)
        bad, found = dict(parsed.problems), parsed.values
        if name in WORDS:
            found = [OTHER_WORDS.get(str(word), word) for word in found]
            bad |= {code: f"not known; expected one of {', '.join(WORDS[name])}"
                    for code, word in enumerate(found) if word and word not in WORDS[name]}  # fmt: skip
        values[name] = Categorical(column.codes, tuple(found))
        for row in np.flatnonzero(np.isin(column.codes, list(bad))).tolist():
            problems.setdefault(row, f"column {name!r} = {show(column[row].strip())}: {bad[column.codes[row]]}")
    runs = Runs(path, columns, lines, dict(zip(columns, cells, strict=True)), values)
    for check in _row_checks(runs):
        for row in np.flatnonzero(check.is_broken).tolist():
            problems.setdefault(row, check.problem(row))
    return without_bad_rows(runs, problems, skip_bad)


def _canonical(name: str) -> str:
    name = name.strip()
    return name.lower() if name.lower() in SERVING_BY_NAME else name


def _check_columns(path: Path, columns: tuple[str, ...]) -> None:
    """Refuse a header that is not one of a serving table."""
    check_names(path, columns)
    shape = () if "model" in columns else SERVING_SHAPE
    missing = [name for name in (*SERVING_REQUIRED, *shape) if name not in columns]
    if missing:
        close = one_like(missing[0], columns)
        least = f"{', '.join(SERVING_REQUIRED)} and model or {', '.join(SERVING_SHAPE)}"
        raise InputError(f"{path}:1: missing column {missing[0]!r}; expected at least {least}; {close}")


def _row_checks(runs: Runs) -> list[Check]:
    """Contradictions between cells that are each valid."""
    chips = runs.numbers("n_gpus")
    tp, pp = (np.nan_to_num(runs.numbers(name), nan=1.0) for name in ("tp", "pp"))
    heads, kv_heads = runs.numbers("n_heads"), runs.numbers("n_kv_heads")
    experts, top_k = np.nan_to_num(runs.numbers("n_experts"), nan=np.inf), runs.numbers("moe_top_k")
    return [
        Check(
            chips < tp * pp,
            lambda row: (
                f"column 'n_gpus' = '{chips[row]:.15g}': fewer than tp*pp = {tp[row]:g}*{pp[row]:g}; expected "
                f"at least {tp[row] * pp[row]:g}"
            ),
        ),
        Check(
            np.nan_to_num(heads % kv_heads) > 0.0,
            lambda row: (
                f"column 'n_kv_heads' = '{kv_heads[row]:.15g}': does not divide n_heads; expected a divisor of "
                f"{heads[row]:.15g}"
            ),
        ),
        Check(
            top_k > experts,
            lambda row: (
                f"column 'moe_top_k' = '{top_k[row]:.15g}': more than n_experts; expected at most {experts[row]:.15g}"
            ),
        ),
        _unknown_models(runs),
    ]


def _unknown_models(runs: Runs) -> Check:
    """Rows that name an unknown model where the table has no shape columns at all."""
    models = runs.categories("model")
    known: Collection[str] = model_fields()
    has_shape = all(name in runs.columns for name in SERVING_SHAPE)
    is_unknown = models.matches(lambda name: name is not None and catalogue_model(name) is None)
    return Check(
        is_unknown & (not has_shape),
        lambda row: (
            f"column 'model' = {show(models[row] or '')}: unknown model and no shape; "
            f"{one_like(models[row] or '', known)}, or {', '.join(SERVING_SHAPE)}"
        ),
    )
