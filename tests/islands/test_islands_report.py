"""Figures of joined islands."""

import numpy as np
import pytest

from jaxscale.islands.islands_choice import IslandsChoice, ScoredMode
from jaxscale.islands.islands_report import time_figure


@pytest.mark.parametrize("unit", [1.0, 1e-3])
def test_bars_of_a_round_stand_end_to_end_whatever_their_unit(unit):
    terms = {"compute": 3.0 * unit, "imbalance": 1.0 * unit, "exchange": 2.0 * unit, "latency": 0.5 * unit}
    work = {"east": 4.0 * unit, "west": 2.5 * unit}
    best = ScoredMode("data-parallel", ("east", "west"), 1e6, 3.0, (2.0, 4.0), 1.0, {}, {}, terms, work)
    choice = IslandsChoice(best, (best,), {}, {}, None, 2.0, (1.0, 1.0), (0.0, 0.0), {}, {})
    (axes,) = time_figure(choice).axes
    bars = np.asarray([(bar.get_y(), bar.get_x(), bar.get_width()) for bar in axes.patches]).reshape(2, 3, 3)
    for (_, starts, lengths), own in zip(np.moveaxis(bars, 2, 1), (4.0, 2.5), strict=True):
        np.testing.assert_allclose(lengths, (own, 4.0 - own, 2.5), atol=1e-12)
        np.testing.assert_allclose(starts, (0.0, own, 4.0), atol=1e-12)
