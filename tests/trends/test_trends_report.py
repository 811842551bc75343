"""Figure, table and document of a trend show the same numbers."""

import numpy as np
import pytest

from jaxscale.trends.crossover import marginal_returns
from jaxscale.trends.layout import ParallelLayout
from jaxscale.trends.outcome import peak_memory, scaling_outcomes
from jaxscale.trends.trends_report import Trend, document, trend_table, trends_figure

CHIPS = np.asarray([16.0, 100.0, 300.0, 1024.0, 2048.0, 9000.0])


@pytest.fixture(scope="module")
def trend(paper, weak) -> Trend:
    """Of a few numbers of chips; degrees are made up."""
    points = (paper, ParallelLayout(), CHIPS, np.asarray(weak.at(CHIPS)))
    degree = np.asarray([[1.0, 1.0, 2.0, 2.0, 2.0, 8.0], [1.0] * 6, [1.0, 2.0, 4.0, 4.0, 8.0, 8.0]])
    returns = marginal_returns(paper, ParallelLayout(), weak, CHIPS)
    gain = np.asarray([0.0, 0.0, 0.25, 0.5, 0.5, 1.0])
    return Trend(scaling_outcomes(*points), peak_memory(*points), returns, degree, gain, 0.5, 4096.0)


def test_lines_of_the_figure_are_those_of_the_document(trend: Trend):
    """Lines that are told in shares of the fewest chips start at one."""
    told = document(trend)
    lines = {line.get_label(): line.get_xydata() for axes in trends_figure(trend).axes for line in axes.get_lines()}
    chip = np.asarray(trend.returns.average)
    expected = {
        "average": chip / chip[0],
        "one more chip": told["return_of_last_chip"],
        "tokens per joule": told["tokens_per_joule"] / told["tokens_per_joule"][0],
        "tokens per dollar": told["tokens_per_dollar"] / told["tokens_per_dollar"][0],
        "MFU": 100.0 * told["mfu"],
        "exposed share of the step": 100.0 * told["exposed_share"],
        "fastest tp": told["best_tp"]["value"],
    }
    for name, values in expected.items():
        np.testing.assert_allclose(lines[name], np.stack([CHIPS, values], axis=1), err_msg=name)


def test_cells_of_the_table_are_numbers_of_the_document(trend: Trend):
    """In percent, Gbyte and millions, to the digits shown."""
    told, table = document(trend), trend_table(trend)
    cells = np.asarray([[float(cell.split()[0]) for cell in row] for row in table.rows]).T
    scales = {
        "n_chips": 1.0, "tokens_per_s_per_chip": 1.0, "mfu": 1e2, "exposed_share": 1e2, "memory_bytes": 1e-9,
        "chip_power_w": 1.0, "tokens_per_joule": 1.0, "tokens_per_dollar": 1e-6, "return_of_last_chip": 1e2,
    }  # fmt: skip
    for column, (name, scale) in zip(cells, scales.items(), strict=False):
        np.testing.assert_allclose(column, scale * np.asarray(told[name]), rtol=2e-2, atol=0.6, err_msg=name)
    np.testing.assert_array_equal(cells[-2:], [told["best_tp"]["value"], 1e2 * told["best_tp"]["gain"]])


def test_quantities_of_the_document_follow_from_each_other(trend: Trend):
    """Terms add up to the step; rates of a chip times chips are those of the run; an hour has 3600 s."""
    told = {name: np.asarray(value) for name, value in document(trend).items() if not isinstance(value, dict)}
    np.testing.assert_allclose(np.sum(list(document(trend)["terms_s"].values()), axis=0), told["step_time_s"])
    np.testing.assert_allclose(told["tokens_per_s_per_chip"] * CHIPS, told["tokens_per_s"])
    np.testing.assert_allclose(told["tokens_per_joule"] * told["chip_power_w"], told["tokens_per_s_per_chip"])
    np.testing.assert_allclose(told["tokens_per_chip_hour"], 3600.0 * told["tokens_per_s_per_chip"])
    assert ((told["exposed_share"] > 0.0) & (told["exposed_share"] < 1.0)).all()
