"""The table of coefficients: complete, physical, a pytree of floats."""

import jax
import numpy as np
import pytest
from registry import random_configurations

from jaxscale.coefficients import Coefficients, names, prior_medians, priors


def test_every_coefficient_has_a_prior_and_every_prior_a_meaning():
    assert set(priors()) == set(names())
    for name, prior in priors().items():
        assert prior.meaning.endswith("."), name
        assert prior.kind in ("positive", "fraction"), name
        assert 0.0 < prior.spread <= prior.spread_of_levels, name
        assert prior.source and prior.unit, name


@pytest.mark.parametrize("name", names())
def test_medians_are_in_their_range(name: str):
    prior = priors()[name]
    assert 0.0 < prior.median < (1.0 if prior.kind == "fraction" else float("inf"))
    if name.endswith("efficiency"):
        assert 0.05 < prior.median <= 1.0


def test_medians_make_a_tree_of_floats():
    leaves = jax.tree.leaves(prior_medians())
    assert len(leaves) == len(names())
    assert all(type(leaf) is float for leaf in leaves)


def test_a_missing_coefficient_is_refused():
    values = {name: 1.0 for name in names()[1:]}
    with pytest.raises(TypeError, match=names()[0]):
        Coefficients(**values)


def test_random_draws_keep_fractions_inside():
    drawn = [case.coefficients for case in random_configurations(20)]
    overlaps = np.asarray([one.dp_overlap for one in drawn])
    assert (overlaps > 0.0).all() and (overlaps < 1.0).all() and overlaps.std() > 0.01
