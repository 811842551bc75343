"""Intervals from held-out runs."""

import numpy as np
import pytest

from jaxscale.fit.intervals import half_width


def test_runs_of_a_new_group_fall_inside_as_often_as_stated():
    """Errors that a group shares: the quantile of all runs alone covers too few, with the groups counted enough."""
    rng = np.random.default_rng(0)
    inside, naive, draws = 0, 0, 2000
    for _ in range(draws):
        shared = np.abs(rng.standard_normal(13))
        groups = np.repeat(np.arange(12), 10)
        errors = shared[groups]
        inside += shared[12] <= half_width(errors, groups)
        naive += shared[12] <= np.quantile(errors, 0.9)
    assert inside / draws == pytest.approx(0.9, abs=0.03)
    assert naive / draws < 0.87


def test_few_groups_take_the_largest_error():
    assert half_width(np.asarray([1.0, 2.0, 3.0]), np.asarray([0, 1, 1])) == 3.0
