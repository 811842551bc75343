"""Reports of laws of loss: figures show what the law says, in units; the report holds all of them."""

import dataclasses

import numpy as np
import pytest

from jaxscale.designs.design_result import DesignChoice
from jaxscale.designs.law_designs import LawDesign
from jaxscale.laws.approaches import growth
from jaxscale.laws.backtest import checked_law
from jaxscale.laws.fitted_law import load_law, save_law
from jaxscale.laws.law_report import choice_rows, law_report, optimum_report
from jaxscale.laws.loss_fit import fit_law
from jaxscale.laws.loss_reader import loss_table
from jaxscale.report.document import Picture, Table
from jaxscale.report.figures.loss_laws import (
    BEYOND,
    SHOWN,
    approaches_of,
    design_spread,
    isoflop_curves,
    loss_against_compute,
    optima_against_compute,
    plain_loss,
    rollout_errors,
)
from jaxscale.report.style import number_text, png


@pytest.fixture(scope="module")
def law():
    """Checked law of a small table."""
    return checked_law(fit_law(loss_table("gadre-refinedweb"), n_draws=20))


@pytest.fixture(scope="module")
def shaped():
    """Law with a shape term, in parameters without embeddings."""
    return fit_law(loss_table("gemstones-cooldown", "non-embedding"), "joint", ("shape",), prior=None, n_draws=0)


FIGURES = {
    "n_layers": 40.0, "d_model": 4096.0, "aspect": 102.4, "params": 1e10, "tokens": 2e11, "tokens_per_param": 20.0,
    "global_batch_tokens": 2e6, "loss": 2.3,
}  # fmt: skip
"""Figures of a design."""


@pytest.fixture
def design(law, monkeypatch):
    """A design with alternatives: half as deep under a drawn law, twice as wide under a shape law."""
    own = FIGURES
    for home in ("jaxscale.designs.law_designs", "jaxscale.report.figures.loss_laws"):
        monkeypatch.setattr(f"{home}.design_figures", lambda choice: own)
    others = {"draw 0": {**own, "n_layers": 20.0}, "shape law of Kaplan": {**own, "d_model": 8192.0}}
    every = [own, *others.values()]
    spread = {name: (min(one[name] for one in every), max(one[name] for one in every)) for name in own}
    flop = 6.0 * own["params"] * own["tokens"]
    return LawDesign(object.__new__(DesignChoice), flop, law.optimum(flop), spread, others)


def test_the_frontier_is_the_law(law):
    figure = loss_against_compute(law)
    assert png(figure).startswith(b"\x89PNG")
    axes = figure.axes[0]
    flop, loss = axes.lines[0].get_data()
    assert flop[-1] == pytest.approx(BEYOND * np.exp(law.span.log_flop))
    np.testing.assert_allclose(loss, [law.optimum(one).loss[0] for one in flop], rtol=1e-9)
    dots = axes.collections[0].get_offsets()
    np.testing.assert_allclose(dots[:, 1], law.table.loss)
    labels = (axes.get_xlabel(), axes.get_ylabel(), figure.axes[1].get_ylabel())
    assert labels == ("training compute 6ND [flop]", "loss [nat per token]", "parameters"), "a count has no unit"


def test_dots_leave_out_what_a_shape_costs(shaped):
    factor = shaped.table.loss / plain_loss(shaped)
    assert factor.min() > 0.995 and factor.max() > 1.01
    aspect = np.log(shaped.table.number("d_model") / shaped.table.number("n_layers"))
    entries = {name: entry["value"] for name, entry in shaped.parameters.items()}
    best = np.log(entries["shape_ratio"]) + entries["shape_drift"] * np.log(shaped.table.n_params / 1e9)
    np.testing.assert_allclose(factor, 1.0 + entries["shape_kappa"] * (aspect - best) ** 2, rtol=1e-9)


def test_the_optimum_of_a_law_with_a_shape_term_is_of_the_best_shape(shaped):
    best = shaped.optimum(1e22)
    assert best.loss[0] == pytest.approx(float(shaped.law.loss(best.n_params[0], best.n_tokens[0])), rel=1e-9)
    narrow = shaped.predict(best.n_params[0], best.n_tokens[0], {"log_aspect": np.zeros(1)}).loss[0]
    assert narrow > 1.02 * best.loss[0]


def test_minima_lie_on_their_curves(law):
    axes = isoflop_curves(law).axes[0]
    curves = [line for line in axes.lines if len(line.get_xdata()) == 60]
    minima = [line for line in axes.lines if line.get_marker() == "D" and len(line.get_xdata())]
    assert len(curves) == len(minima) >= 5
    for curve, minimum in zip(curves, minima, strict=True):
        size, loss = curve.get_data()
        assert minimum.get_ydata()[0] <= loss.min() * (1.0 + 1e-9)
        assert size[np.argmin(loss)] == pytest.approx(minimum.get_xdata()[0], rel=0.15)


def test_rollouts_show_every_miss(law):
    figure = rollout_errors(law)
    assert len(figure.axes) >= len(law.backtest.rollouts) >= 2
    for axes, one in zip(figure.axes, law.backtest.rollouts, strict=False):
        shown = {container.get_label(): len(container[0].get_xdata()) for container in axes.containers}
        assert sum(shown.values()) == one.n_predicted
        assert shown["interval holds"] == round(one.coverage * one.n_predicted)


def test_optima_grow_as_the_exponents_say(law, design):
    figure = optima_against_compute(law, {"10 days": design})
    exponents = growth(law, 3)
    for axes, slope in zip(figure.axes, (exponents.params_exponent, exponents.tokens_exponent), strict=False):
        flop, values = axes.lines[0].get_data()
        assert np.polyfit(np.log(flop), np.log(values), 1)[0] == pytest.approx(slope, rel=1e-6)
    for axes, value in zip(figure.axes, (1e10, 2e11, 20.0), strict=True):
        (mark,) = [line for line in axes.lines if line.get_label() == "design of 10 days"]
        assert mark.get_ydata()[0] == pytest.approx(value) and mark.get_xdata()[0] == pytest.approx(1.2e22)


def test_a_spread_marks_each_alternative(design):
    axes = design_spread({"10 days": design}).axes[0]
    marks = np.concatenate([np.stack(line.get_data(), axis=1) for line in axes.lines if line.get_marker() == "o"])
    assert len(marks) == 2 * len(SHOWN)
    moved = marks[np.abs(marks[:, 0] - 1.0) > 1e-9]
    assert sorted(moved[:, 0]) == pytest.approx([0.5, 2.0])


def test_the_report_of_a_fit_holds_its_figures(law, tmp_path):
    report = law_report(law, "Law")
    names = [block.name for block in report.blocks if isinstance(block, Picture)]
    assert names == ["loss_against_compute", "residuals_by_column", "rollouts", "isoflop", "optima"]
    page = report.save(tmp_path / "report").read_text(encoding="utf-8")
    assert page.count("<img") == len(names) and ("What to doubt" in page) == bool(law.warnings)
    assert f"parameters: {law.count}" in page
    unchecked = law_report(
        dataclasses.replace(law, count="", backtest=None, warnings=("one budget alone",)), "Law"
    ).to_html()
    assert "Beyond the runs" not in unchecked and "One budget alone." in unchecked
    assert "the count of parameters is not stated" in unchecked


def test_the_report_of_optima_tells_what_designs_hang_on(law, design, tmp_path):
    save_law(law, tmp_path / "law.toml")
    stored = load_law(tmp_path / "law.toml")
    assert approaches_of(stored) == [None, None], "a law from a file has no runs"
    optima = [stored.optimum(1e22)]
    report = optimum_report(stored, optima, {"10 days": design}, "Optima")
    assert [block.name for block in report.blocks if isinstance(block, Picture)] == ["optima", "design_spread"]
    assert sum(isinstance(block, Table) for block in report.blocks) == 2
    alone = optimum_report(stored, optima, {}, "Optima")
    assert [block.name for block in alone.blocks if isinstance(block, Picture)] == ["optima"]


def test_counts_of_parameters_are_not_mixed(design):
    same = choice_rows(design.to_json())
    assert ("params", "1e+10") == same[3][:2] and same[3][2] != "-"
    less = dataclasses.replace(design, flop=0.9 * design.flop)
    rows = {row[0]: row for row in choice_rows(less.to_json())}
    assert rows["params as the law counts"][1] == "9e+09"
    assert rows["params"][2] == rows["tokens_per_param"][2] == "-"


@pytest.mark.parametrize(("value", "shown"), [(1e6, "$10^{6}$"), (3e8, r"$3\cdot 10^{8}$"), (12000.0, "12\u2009000")])
def test_large_numbers_are_powers_of_ten(value, shown):
    assert number_text(value) == shown
