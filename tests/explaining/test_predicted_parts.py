"""Intervals of components from draws of a model whose spread is known."""

from typing import Any

import numpy as np
import pytest

import jaxscale as js
from jaxscale.calibration.coefficients import prior_medians, priors
from jaxscale.explaining import predicted_parts
from jaxscale.explaining.predicted_parts import CLOSE, N_DRAWS, NAMES

BASE = np.linspace(1.0, 3.0, len(NAMES))
"""Times of the components without a move of a coefficient [s]."""

RUN = predicted_parts._Run(js.Transformer(32, 4096, 32), js.Plan(), js.cluster("h100-80gb", 8), prior_medians())
"""A run, which the draws here do not look at."""


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Components of the draws asked for so far, of a step whose components are powers of the coefficients."""
    powers = np.random.default_rng(1).uniform(-0.5, 0.5, (len(priors()), len(NAMES)))
    calls: list[np.ndarray] = []

    def evaluated(_: Any, moves: np.ndarray) -> np.ndarray:
        calls.append(BASE * np.exp(moves @ powers))
        return np.concatenate([[BASE], [1.2 * BASE], calls[-1]])

    monkeypatch.setattr(predicted_parts, "_evaluated", evaluated)
    return calls


@pytest.mark.parametrize("half", [0.05, 0.2, 0.4])
def test_draws_are_as_wide_as_the_step_and_ends_hold_nine_tenths(drawn: list[np.ndarray], half: float):
    middle, hidden, low, high = predicted_parts._drawn_parts(RUN, half)
    steps = drawn[-1].sum(axis=1)
    ends = np.quantile(steps, [0.05, 0.95])
    assert 0.5 * np.log(ends[1] / ends[0]) == pytest.approx(half, rel=1.5 * CLOSE)
    # Logarithms start at a thousandth of the step.
    moved = np.log((drawn[-1] + 1e-3 * BASE.sum()) / (BASE + 1e-3 * BASE.sum()))
    np.testing.assert_allclose((moved < -low).mean(axis=0), 0.05, atol=1.0 / N_DRAWS)
    np.testing.assert_allclose((moved > high).mean(axis=0), 0.05, atol=1.0 / N_DRAWS)
    np.testing.assert_array_equal(middle, BASE)
    # Collectives alone hide behind compute: a fifth of them appears without overlap.
    assert set(np.round(hidden / BASE, 9)) == {0.0, 0.2}


def test_what_nothing_moves_has_no_width(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(predicted_parts, "_evaluated", lambda _, moves: np.tile(BASE, (2 + len(moves), 1)))
    _, hidden, low, high = predicted_parts._drawn_parts(RUN, 0.2)
    assert not np.concatenate([hidden, low, high]).any()
