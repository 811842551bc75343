"""No figure moves unnoticed: predictions of every shipped run and figures of every wing are those stored here."""

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
import pytest
from record import PREDICTIONS, Recomputed, recomputed, stored_file
from wings import WINGS

TOLERANCE = 1e-6
"""Relative change of a figure that is none: predictions are stored in 32 bits, which keep 6e-8 [1]."""

TINY = 1e-10
"""Absolute change that is none: what rounding leaves of a time, or of a probability, that is zero [s] or [1]."""

FLOORS = {"gradient_norm": 1e-6, "kkt_residual": 1e-6, "shadow_prices": 1e-9}
"""Absolute change that is none, by part of a document: residuals of a search are rounding alone, and shadow prices are
differences in steps of 9e-12, of which one compiler gives a few more or less than another [1]."""

LISTED = 20
"""Changes that a failure lists [1]."""

ADVICE = "Figures moved: if intended, run python tests/guard/record.py in a commit of its own and say why"


def moved_predictions(old: Mapping[str, np.ndarray], new: Mapping[str, np.ndarray]) -> Iterator[str]:
    """Table, figure, row, old and new value of what differs."""
    for key in sorted(set(old) ^ set(new)):
        yield f"{key}: {'stored only' if key in old else 'not stored'}"
    for key in sorted(set(old) & set(new)):
        table, figure = key.split("/", 1)
        if old[key].shape != new[key].shape and figure != "note_texts":
            yield f"{table}, {figure}: {len(old[key])} rows, now {len(new[key])}"
        elif figure == "notes":
            before, after = (answers[f"{table}/note_texts"][answers[key]] for answers in (old, new))
            for row in np.flatnonzero(before != after):
                yield f"{table}, note, row {row}: {str(before[row])!r}, now {str(after[row])!r}"
        elif figure != "note_texts":
            same = np.isclose(new[key], old[key], rtol=TOLERANCE, atol=TINY, equal_nan=True)
            for row in np.flatnonzero(~same):
                yield f"{table}, {figure}, row {row}: {old[key][row]:.9g}, now {new[key][row]:.9g}"


def moved_document(old: Any, new: Any, place: str = "") -> Iterator[str]:
    """Place, old and new value of what differs between two JSON documents."""
    if isinstance(old, dict) and isinstance(new, dict):
        if list(old) != list(new):
            yield f"{place}: keys {', '.join(old)}; now {', '.join(new)}"
        for name in [name for name in old if name in new]:
            yield from moved_document(old[name], new[name], f"{place}.{name}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, pair in enumerate(zip(old, new, strict=True)):
            yield from moved_document(*pair, f"{place}[{index}]")
    elif is_number(old) and is_number(new):
        least = max((floor for part, floor in FLOORS.items() if part in place.split(".")), default=TINY)
        if abs(new - old) > max(TOLERANCE * abs(old), least):
            yield f"{place}: {old!r}, now {new!r}"
    elif type(old) is not type(new) or old != new:
        yield f"{place}: {old!r}, now {new!r}"


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def refuse(changes: Iterator[str]) -> None:
    found = list(changes)
    if found:
        more = [f"and {len(found) - LISTED} more"] * (len(found) > LISTED)
        pytest.fail("\n".join([f"{len(found)} differences", *found[:LISTED], *more, ADVICE]), pytrace=False)


@pytest.fixture(scope="module")
def stored_predictions() -> dict[str, np.ndarray]:
    with np.load(PREDICTIONS) as file:
        return dict(file)


def stored_wing(wing: str) -> dict[str, Any]:
    """Stored figures of a wing."""
    return json.loads(stored_file(wing).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def now() -> Iterator[Recomputed]:
    with recomputed(jax.config.jax_compilation_cache_dir) as answers:
        yield answers


def test_predictions_of_every_run(stored_predictions, now):
    refuse(moved_predictions(stored_predictions, now.predictions.result()))


@pytest.mark.parametrize("wing", WINGS)
def test_figures_of_a_wing(now, wing):
    refuse(moved_document(stored_wing(wing), now.wings[wing].result(), wing))


@pytest.mark.parametrize("figure", ["step_time", "memory_hi", "terms/matmul"])
def test_a_moved_prediction_is_told(stored_predictions, figure):
    key = f"mosaic_llm_foundry/{figure}"
    changed = stored_predictions | {key: stored_predictions[key].copy()}
    assert not list(moved_predictions(stored_predictions, changed))
    changed[key][7] *= 1.00001
    (said,) = moved_predictions(stored_predictions, changed)
    assert said.startswith(f"mosaic_llm_foundry, {figure}, row 7: ")
    with pytest.raises(pytest.fail.Exception, match="Figures moved"):
        refuse(iter([said]))


def test_a_moved_note_row_or_figure_is_told(stored_predictions):
    table = "bigscience_bloom_a100"
    notes = stored_predictions[f"{table}/notes"].copy()
    notes[3] = (notes[3] + 1) % len(stored_predictions[f"{table}/note_texts"])
    (said,) = moved_predictions(stored_predictions, stored_predictions | {f"{table}/notes": notes})
    assert said.startswith(f"{table}, note, row 3: ")
    short = stored_predictions | {f"{table}/lo": stored_predictions[f"{table}/lo"][1:]}
    assert list(moved_predictions(stored_predictions, short)) == [f"{table}, lo: 125 rows, now 124"]
    more = stored_predictions | {f"{table}/terms/new": notes}
    assert list(moved_predictions(stored_predictions, more)) == [f"{table}/terms/new: not stored"]


def test_a_moved_document_is_told():
    old = next(iter(stored_wing("core").values()))
    new = copy.deepcopy(old)
    assert not list(moved_document(old, new))
    new["top"][1]["step_time_s"] *= 1.00001
    new["best"]["sequence_parallel"] = 1
    new["reasons"][0] += "!"
    del new["searched"]
    said = [line.split(":")[0] for line in moved_document(old, new, "plan")]
    assert said == ["plan", "plan.best.sequence_parallel", "plan.top[1].step_time_s", "plan.reasons[0]"]


def larger(value: Any) -> Any:
    """A document whose numbers are all 1e-4 larger."""
    if isinstance(value, dict):
        return {name: larger(part) for name, part in value.items()}
    if isinstance(value, list):
        return [larger(part) for part in value]
    return value * (1.0 + 1e-4) if is_number(value) else value


def numbers(value: Any) -> int:
    """Numbers of a document of which 1e-4 is more than rounding may leave of a zero [1]."""
    if isinstance(value, dict):
        return sum(map(numbers, value.values()))
    if isinstance(value, list):
        return sum(map(numbers, value))
    return int(is_number(value) and 1e-4 * abs(value) > TINY)


@pytest.mark.parametrize("wing", WINGS)
def test_every_number_of_a_wing_is_held(wing):
    stored = stored_wing(wing)
    assert not list(moved_document(stored, copy.deepcopy(stored)))
    told = len(list(moved_document(stored, larger(stored))))
    # What is left are residuals of searches, which have floors of their own.
    assert 0.98 * numbers(stored) <= told <= numbers(stored)
