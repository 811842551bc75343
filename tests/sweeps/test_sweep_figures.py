"""Figures of sweeps: a curve, a line for each word, or a map over any two axes."""

import numpy as np
import pytest

from jaxscale.base.errors import InputError
from jaxscale.sweeps.sweep_figure import sweep_figure, sweep_report

xarray = pytest.importorskip("xarray")


@pytest.fixture
def dataset():
    """A finished sweep over a word and two numbers, of which one plan is invalid."""
    words, few, many = ["none", "full"], np.asarray([3.0, 1.0, 2.0]), np.geomspace(1e9, 1e12, 5)
    time = np.arange(1.0, 31.0).reshape(2, 3, 5)
    valid = np.ones(time.shape, bool)
    valid[0, 1, 2] = False
    dims = ("recompute", "pp", "network_bandwidth")
    return xarray.Dataset(
        {"step_time": (dims, time, {"units": "s"}), "valid": (dims, valid)},
        {
            "recompute": words,
            "pp": ("pp", few, {"units": "1"}),
            "network_bandwidth": ("network_bandwidth", many, {"units": "byte/s"}),
        },
        {"of": "step_time", "gpu": "h100-80gb"},
    )


def test_words_are_lines(dataset):
    (axes,) = sweep_figure(dataset, "step_time", ("recompute", "network_bandwidth")).axes
    assert [line.get_label() for line in axes.lines] == ["none", "full"]
    assert axes.get_xscale() == "log" and axes.get_xlabel() == "network bandwidth [byte/s]"
    np.testing.assert_array_equal(axes.lines[1].get_ydata(), dataset.step_time[1, 1])
    assert "pp 1" in axes.get_title(loc="left") + axes.get_title()


def test_an_axis_is_drawn_in_its_order(dataset):
    (axes,) = sweep_figure(dataset, "step_time", ("pp",)).axes
    assert axes.lines[0].get_xdata().tolist() == [1.0, 2.0, 3.0] and axes.get_xscale() == "linear"
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), dataset.step_time[1, [1, 2, 0], 2])


def test_two_numbers_are_a_map_without_what_is_not_valid(dataset):
    chosen = dataset.sel(recompute=["none"])
    axes = sweep_figure(chosen).axes[0]
    (mesh,) = axes.collections
    cells = np.ma.asarray(mesh.get_array()).reshape(3, 5)
    assert cells.mask.sum() == 1 and cells.mask[0, 2]
    assert (axes.get_yscale(), axes.get_xscale()) == ("linear", "log")


@pytest.mark.parametrize(
    ("result", "axes", "said"),
    [
        ("step_tme", (), "did you mean step_time"),
        (None, ("ppp",), "did you mean pp"),
        (None, ("pp", "pp"), "one or two different"),
        (None, ("recompute",), "expected one of numbers"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(dataset, result, axes, said):
    with pytest.raises(InputError, match=said):
        sweep_figure(dataset, result, axes)


def test_the_report_tells_axes_and_what_is_fixed(dataset, tmp_path):
    text = sweep_report(dataset).save(tmp_path).read_text()
    assert "network_bandwidth" in text and "gpu h100-80gb" in text and "byte/s" in text
