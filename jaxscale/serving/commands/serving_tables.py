"""Writing of serving predictions."""

import math
from pathlib import Path
from typing import Any

from jaxscale.runs.table import Runs
from jaxscale.serving.serving_predict import ServingPrediction
from jaxscale.tables.writer import write_extended


def write_serving(path: Path, runs: Runs, prediction: ServingPrediction) -> None:
    """Write a table with its predictions, whole or not at all; columns of an earlier prediction are replaced."""
    added = {name: [_cell(value) for value in values.tolist()] for name, values in prediction.columns().items()}
    write_extended(path, runs.texts(), added)


def prediction_cells(prediction: ServingPrediction) -> list[dict[str, Any]]:
    """Columns that `serving predict --out` adds to each row; None where a row gets no prediction."""
    columns = {name: values.tolist() for name, values in prediction.columns().items()}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _cell(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.7g}" if math.isfinite(value) else ""
