"""Possible values of the blank cells of a run, and the predicted step time for each value."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxscale.base.errors import InputError
from jaxscale.calibration.record import Fit
from jaxscale.explaining.predicted_parts import NAMES, PredictedParts, kernel_term_table, middle_parts
from jaxscale.hardware.catalogue import Hardware
from jaxscale.runs.measured import describe_runs
from jaxscale.runs.predict import Prediction, predict_described
from jaxscale.runs.reader import read_runs
from jaxscale.runs.row_kinds import of_a_kind
from jaxscale.runs.schema import CARRIED

SAME = 0.002
"""Relative change of a step below which a value counts as without effect [1]."""


@dataclass(frozen=True)
class Fact:
    """Possible value of a blank cell of a run, with the predicted times for the value.

    Attributes:
        column: column of the runs table.
        word: value of the cell.
        part: component of the step with the largest change.
        part_time: predicted time of the component with the value [s].
        step_time: predicted time of the step with the value [s].
    """

    column: str
    word: str
    part: str
    part_time: float
    step_time: float

    def to_json(self) -> dict[str, Any]:
        """Fact for the JSON document, in SI units."""
        return {
            "column": self.column,
            "word": self.word,
            "part": self.part,
            "part_time_s": self.part_time,
            "step_time_s": self.step_time,
        }


def facts_of(
    prediction: Prediction,
    parts: PredictedParts,
    fit: Fit,
    hardware: Hardware,
    names: Sequence[str] | None = None,
) -> tuple[Fact, ...]:
    """Possible values of the blank cells of a single run that would change the predicted step.

    Args:
        prediction: prediction of the run.
        parts: predicted components of the step.
        fit: fit of the prediction.
        hardware: catalogue of chips.
        names: components of interest; by default all.
    """
    runs, table = prediction.runs, kernel_term_table()
    wanted = dict.fromkeys(column for name in names or NAMES for column in table["terms"][name]["facts"])
    cells = {name: value for name, value in runs.rows[0].values.items() if value is not None and name not in CARRIED}
    cells |= {name: column[0] for name, column in runs.texts().items() if column[0] and name not in CARRIED}
    blank = [column for column in wanted if not cells.get(column) and column in table["words"]]
    asked = [(column, word) for column in blank for word in table["words"][column]]
    if of_a_kind(runs).any() or not asked:
        return ()
    try:
        rows = [
            # The place outlasts the removal of bad rows.
            {**dict.fromkeys(blank), **cells, column: word, "source_row": str(place)}
            for place, (column, word) in enumerate(asked)
        ]
        changed = read_runs(rows, skip_bad=True, hardware=hardware)
    except InputError:
        # No value is compatible with the rest of the row.
        return ()
    described = describe_runs(changed, hardware)
    found = predict_described(changed, described, fit)
    places = [int(text) for text in changed.column("source_row")]
    facts = []
    for row, time in enumerate(found.step_time.tolist()):
        if not np.isfinite(time) or abs(time / float(prediction.step_time[0]) - 1.0) < SAME:
            continue
        column, word = asked[places[row]]
        own = middle_parts(found, described, fit, row)
        moved = [name for name in names or NAMES if column in table["terms"][name]["facts"]]
        part = max(moved, key=lambda name, own=own: abs(own[NAMES.index(name)] - parts.middle[NAMES.index(name)]))
        facts.append(Fact(column, word, part, float(own[NAMES.index(part)]), time))
    return tuple(facts)
