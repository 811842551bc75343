"""Figures of a fit are drawn from its numbers."""

import numpy as np
import pytest

import jaxscale as js
from jaxscale._resources import data_path
from jaxscale.coefficients import names
from jaxscale.report import figures
from jaxscale.report.style import png


@pytest.fixture(scope="module")
def result() -> js.FitResult:
    """A fit of the TPU runs from the shipped one."""
    return js.fit(js.read_runs(data_path("runs") / "maxtext_tpu.csv"), n_starts=1, n_folds=2)


def test_every_coefficient_has_its_interval(result: js.FitResult):
    figure = figures.coefficient_intervals(result)
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == list(names())
    drawn = sum(len(lines.get_segments()) for lines in axes.collections if hasattr(lines, "get_segments"))
    assert drawn == len(names())
    assert png(figure).startswith(b"\x89PNG")


def test_correlations_are_those_of_the_fit(result: js.FitResult):
    figure = figures.correlation_matrix(result, most=6)
    (image,) = figure.axes[0].images
    shown = [names().index(label.get_text()) for label in figure.axes[0].get_yticklabels()]
    np.testing.assert_allclose(image.get_array(), result.correlation[np.ix_(shown, shown)])
    assert len(shown) == 6
