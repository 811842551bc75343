"""Figures of a fit are drawn from its numbers."""

import numpy as np
import pytest

import jaxscale as js
from jaxscale.base.documents import data_path
from jaxscale.calibration.coefficients import names
from jaxscale.report import figures, fit_report
from jaxscale.report.document import Picture
from jaxscale.report.reports import fit_figure, varied_columns
from jaxscale.report.style import png


@pytest.fixture(scope="module")
def result() -> js.FitResult:
    """A fit of the TPU runs from the shipped one."""
    return js.fit(js.read_runs(data_path("runs") / "maxtext_tpu.csv"), n_starts=1, n_folds=2)


@pytest.mark.parametrize("count", [0, 3])
def test_every_identified_coefficient_has_its_interval(result: js.FitResult, count: int, monkeypatch):
    monkeypatch.setattr(type(result), "identified", np.arange(len(names())) < count)
    figure = figures.coefficient_intervals(result)
    (axes,) = figure.axes
    identified = [label.get_text() for label in axes.get_yticklabels()]
    assert len(identified) == (np.sum(result.identified) or 6)
    drawn = sum(len(lines.get_segments()) for lines in axes.collections if hasattr(lines, "get_segments"))
    assert drawn == len(identified) < len(names())
    assert axes.get_title(loc="left").startswith(f"{np.sum(result.identified)} of {len(names())} coefficients")
    assert png(figure).startswith(b"\x89PNG")


def test_correlations_are_those_of_the_fit(result: js.FitResult):
    figure = figures.correlation_matrix(result, most=6)
    (image,) = figure.axes[0].images
    shown = [names().index(label.get_text()) for label in figure.axes[0].get_yticklabels()]
    np.testing.assert_allclose(image.get_array(), result.correlation[np.ix_(shown, shown)])
    assert len(shown) == 6


def test_profiles_are_drawn_with_the_interval_they_end_at(result: js.FitResult):
    figure = figures.profile_curves(result, most=2)
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert len(shown) == 2
    for axes in shown:
        name, _, unit = axes.get_xlabel().partition(" ")
        entry = result.parameters[name]
        assert unit == ("" if entry["unit"] == "1" else f"[{entry['unit']}]")
        band = axes.patches[0].get_extents().transformed(axes.transData.inverted())
        np.testing.assert_allclose([band.x0, band.x1], [entry["lo"], entry["hi"]])


def test_the_report_of_a_fit_has_its_figures_tables_and_doubts(result: js.FitResult):
    report = fit_report(result, "Fit of maxtext_tpu.csv")
    names_drawn = [block.name for block in report.blocks if isinstance(block, Picture)]
    assert names_drawn == [
        "predicted_against_measured",
        "residuals_by_column",
        "coefficients",
        "profiles",
        "correlation",
    ]
    text = report.to_markdown()
    assert "gpu tpu-v5e" in text and "gpu tpu-v5p" in text, "errors by the two chips"
    assert all(message[1:] in text for message in result.messages)


def test_dots_of_a_fit_are_its_errors(result: js.FitResult):
    """The measured time across, the predicted one up: the fitted error more, as a logarithm."""
    axes = fit_figure(result).axes[0]
    measured = np.exp(np.asarray(result.problem.log_time)[: result.n])
    dots = [line.get_xydata() for line in axes.get_lines() if line.get_marker() not in ("None", None, "")]
    drawn = {(round(x, 9), round(y, 9)) for x, y in np.log(np.concatenate(dots))}
    expected = np.log(measured), np.log(measured) + np.asarray(result.tested)
    assert drawn == {(round(x, 9), round(y, 9)) for x, y in zip(*expected, strict=True)}


def test_only_columns_that_vary_are_drawn(result: js.FitResult):
    columns = varied_columns(result.batch, result.levels)
    assert {"d_model", "gpu"} <= set(columns)
    assert "source" not in columns, "all of one"
    assert all(len(values) == result.n and len(set(values)) > 1 for values in columns.values())


def test_errors_far_beyond_all_others_stand_at_the_edge():
    errors = np.concatenate([np.linspace(-0.05, 0.05, 99), [2.0]])
    names = [f"table/framework/part {index % 7} with a long description" for index in range(100)]
    figure = figures.residuals_by_column(np.log1p(errors), {"part": names})
    axes = figure.axes[0]
    edge = max(line.get_ydata().max() for line in axes.lines if line.get_marker() == "^" and len(line.get_ydata()))
    assert edge < 200.0 and edge <= axes.get_ylim()[1]
    assert "1 beyond" in figure.get_suptitle()
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert len(set(labels)) == 7, "shortened names stay apart"
    assert not any(label.startswith("table") for label in labels)
    assert "beyond" not in figures.residuals_by_column(np.log1p(errors[:99]), {"part": names[:99]}).get_suptitle()
