"""Exact and smooth maxima, and what becomes a float leaf."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxscale.base.arrays import as_arrays, as_float, filled_rows
from jaxscale.base.smooth import (
    exposed,
    larger,
    log2_above_one,
    p_norm,
    p_norm_smaller,
    positive_part,
    smaller,
    smooth_max,
    smooth_min,
    soft_maximum,
    soft_minimum,
)

positive = st.floats(1e-6, 1e12)
temperatures = st.sampled_from([0.0, 0.001, 0.02, 0.2])


@given(positive, positive, temperatures)
def test_smooth_extremes_stay_within_their_bounds(first: float, second: float, temperature: float):
    largest, smallest = max(first, second), min(first, second)
    slack = 1e-12 * largest
    upper, lower = smooth_max(first, second, temperature), smooth_min(first, second, temperature)
    assert largest - slack <= upper <= largest + 0.5 * temperature * (first + second) + slack
    assert smallest / (1.0 + temperature) - slack <= lower <= smallest * (1.0 + 1e-12)
    np.testing.assert_allclose(upper * lower, first * second, rtol=1e-9)


def test_the_bound_is_reached_at_a_tie():
    assert smooth_max(3.0, 3.0, 0.1) == pytest.approx(3.0 * 1.1)
    assert smooth_max(3.0, 3.0, 0.0) == 3.0


@given(st.floats(-50.0, 50.0), temperatures)
def test_positive_part_stays_within_its_width(value: float, temperature: float):
    part = positive_part(value, temperature)
    assert max(value, 0.0) - 1e-12 <= part <= max(value, 0.0) + temperature + 1e-12


def test_smooth_forms_have_a_slope_at_the_tie_and_exact_ones_its_average():
    for temperature in (0.0, 0.02):
        assert jax.grad(smooth_max)(1.0, 1.0, temperature) == pytest.approx(0.5 * (1.0 + temperature))
        assert jax.grad(positive_part)(0.0, temperature) == pytest.approx(0.5)
    assert jax.grad(smooth_max)(2.0, 1.0, 0.0) == 1.0


def test_exact_extremes_are_those_of_numpy():
    numbers = np.asarray([-2.0, 0.0, 3.0, np.finfo(np.float64).max, np.inf, np.nan])
    first, second = (column.ravel() for column in np.meshgrid(numbers, numbers))
    np.testing.assert_array_equal(larger(first, second), np.maximum(first, second))
    np.testing.assert_array_equal(smaller(first, second), np.minimum(first, second))


@pytest.mark.parametrize("function", [larger, smaller])
def test_exact_extremes_have_the_slopes_of_their_choice(function: Callable[[float, float], jax.Array]):
    slopes = jax.grad(function, (0, 1))
    of_larger = (1.0, 0.0) if function is larger else (0.0, 1.0)
    assert slopes(3.0, 2.0) == of_larger and slopes(2.0, 3.0) == of_larger[::-1]
    assert slopes(2.0, 2.0) == (0.5, 0.5)


@pytest.mark.parametrize("temperature", [0.0, 0.02])
def test_zero_arguments_have_finite_slopes(temperature: float):
    for function in (smooth_max, exposed):
        assert np.isfinite(jax.grad(function, argnums=(0, 1))(0.0, 0.0, temperature)).all()


def test_exposed_is_what_cover_leaves():
    assert exposed(5.0, 2.0, 0.0) == 3.0
    assert exposed(2.0, 5.0, 0.0) == 0.0


def test_doublings():
    assert log2_above_one(8.0, 0.0) == pytest.approx(3.0)
    assert log2_above_one(0.25, 0.0) == 0.0
    assert log2_above_one(8.0, 0.01) == pytest.approx(3.0, rel=1e-3)
    assert 0.0 < log2_above_one(0.25, 0.01) < 1e-3


@pytest.mark.parametrize("value", [3, True, np.int64(3), np.float32(3.0), np.bool_(True)])
def test_numbers_become_floats(value: object):
    """Of a type that filters of equinox take for an array, and that is a float all the same."""
    leaf = as_float(value)
    assert eqx.is_inexact_array(leaf) and isinstance(leaf, float)


def test_arrays_become_floating_and_tracers_pass():
    assert as_float(np.arange(3)).dtype == np.float64
    assert as_float(np.arange(3, dtype=np.float32)).dtype == np.float32
    assert jax.jit(as_float)(jnp.ones(2)).shape == (2,)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(as_arrays({"a": 1.0, "b": np.ones(2)})))


def test_norms_lie_between_the_maximum_and_the_sum():
    times = np.asarray([3.0, 4.0, 0.0])
    assert float(p_norm(times, 1.0)) == pytest.approx(7.0)
    assert float(p_norm(times, 2.0)) == pytest.approx(5.0)
    assert float(p_norm(times, 300.0)) == pytest.approx(4.0)
    assert np.isfinite(jax.grad(lambda x: p_norm(x, 2.0))(jnp.asarray(times))).all()
    assert float(p_norm_smaller(jnp.asarray(2.0), jnp.asarray(9.0), 16)) == pytest.approx(2.0)
    assert float(p_norm_smaller(jnp.asarray(2.0), jnp.asarray(2.0), 16)) == pytest.approx(2.0 * 2.0 ** (-1.0 / 16.0))


def test_log_sum_exp_is_off_by_at_most_the_temperature_times_the_logarithm_of_the_count():
    values, temperature = jnp.asarray([1.0, 1.0, 0.5]), 0.1
    above = float(soft_maximum(values, temperature, 0)) - 1.0
    assert temperature * np.log(2.0) < above < temperature * np.log(3.0)
    assert float(soft_minimum(-values, temperature, 0)) == pytest.approx(-1.0 - above)


@pytest.mark.parametrize(("count", "rows"), [(1, [0, 0, 0]), (3, [0, 1, 2]), (4, [0, 1, 2, 3, 3, 3])])
def test_tables_are_filled_up_with_their_last_row(count: int, rows: list[int]):
    assert filled_rows(count, 3).tolist() == rows
