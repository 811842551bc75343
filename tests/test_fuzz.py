"""The fuzz of `scripts/fuzz.py`, briefly: no entry breaks a property, and planted faults are found."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxscale.base.errors import InputError

PATH = Path(__file__).parents[1] / "scripts" / "fuzz.py"
SPEC = importlib.util.spec_from_file_location("fuzz", PATH)
assert SPEC is not None and SPEC.loader is not None
fuzz = importlib.util.module_from_spec(SPEC)
sys.modules["fuzz"] = fuzz
SPEC.loader.exec_module(fuzz)

CASES = {"serving": 8, "runs": 25, "options": 15, "drawn runs": 150, "fits": 20}
"""Cases of the slower entries; of the others 60 [1]."""


def found(entry: str, n: int) -> list[Any]:
    """Violations of an entry."""
    return list(fuzz.HARNESS[entry](entry, 90_000, n))


@pytest.mark.parametrize("entry", fuzz.HARNESS)
def test_no_input_breaks_a_property(entry: str):
    assert not found(entry, CASES.get(entry, 60))


def raising(error: Exception) -> Callable[..., Any]:
    """A function that raises an error."""

    def function(*_: Any, **__: Any) -> None:
        raise error

    return function


READERS = {
    "a traceback": raising(KeyError("x")),
    "a value error without a line of its own": raising(ValueError("bad")),
    "a message of two lines": raising(InputError("one\ntwo")),
    "a message of nothing": raising(InputError("")),
    "a division by zero": lambda path: 1 / 0,
    "endless depth": raising(RecursionError("deep")),
}


@pytest.mark.parametrize("fault", READERS)
def test_faults_of_readers_are_found(fault: str):
    entry = fuzz.Entry(".toml", lambda: ["a = 1\n"], READERS[fault])
    assert len(list(entry.cases("planted", 0, 3))) == 3
    assert not list(fuzz.Entry(".toml", lambda: ["a = 1\n"], lambda path: None).cases("sound", 0, 3))


def test_a_slow_reader_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fuzz, "PATIENCE", -1.0)
    assert found("sweeps", 2)


def test_figures_of_a_model_that_are_not_positive_are_found(monkeypatch: pytest.MonkeyPatch):
    numbers = dict.fromkeys(("n_params", "n_active_params", "flop_per_token"), -1.0)
    monkeypatch.setattr(fuzz, "model_figures", lambda *_: numbers)
    assert found("config.json", 30)


def changing(which: str, factor: Callable[[Any, np.ndarray], Any]) -> Callable[..., Any]:
    """Evaluation whose column is multiplied by a factor of the runs."""
    evaluate = fuzz.evaluate_runs

    def evaluated(batch: Any, *rest: Any) -> dict[str, np.ndarray]:
        columns = dict(evaluate(batch, *rest))
        if which in columns:
            columns[which] = columns[which] * factor(batch, columns[which])
        return columns

    return evaluated


FAULTS = {
    "memory that is not a number": ("memory", lambda batch, _: np.nan),
    "memory below zero": ("memory", lambda batch, _: -1.0),
    "a step shorter than its flops": ("step_time", lambda batch, _: 1e-3),
    "wider heads in less time": ("step_time", lambda batch, _: 1.0 / np.asarray(batch.model.head_dim) ** 2),
    "more vocabulary in less time": ("step_time", lambda batch, _: 1.0 / np.asarray(batch.model.vocab_size) ** 2),
    "better links that slow a step": (
        "step_time",
        lambda batch, _: np.asarray(batch.cluster.network.bandwidth)[:, 1] ** 3,
    ),
    "a faster chip that slows a step": (
        "step_time",
        lambda batch, _: np.asarray(batch.cluster.chip.hbm_bandwidth) ** 3,
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_costs_are_found(fault: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fuzz, "evaluate_runs", changing(*FAULTS[fault]))
    assert found("drawn runs", 100)


def test_an_answer_that_depends_on_its_neighbours_is_found(monkeypatch: pytest.MonkeyPatch):
    predict = fuzz.js.predict

    def leaning(runs: Any) -> Any:
        answer = predict(runs)
        answer.step_time[:] *= 1.0 + 1e-9 * len(answer)
        return answer

    monkeypatch.setattr(fuzz.js, "predict", leaning)
    assert found("drawn runs", 100)
