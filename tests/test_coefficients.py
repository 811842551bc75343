"""The table of coefficients: complete, physical, a pytree of floats."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry import changed, random_configurations, stack

from jaxscale.calibration.coefficients import Coefficients, names, prior_medians, priors
from jaxscale.costs.step import step_time


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
    assert all(isinstance(leaf, float) for leaf in leaves)


def test_a_missing_coefficient_is_refused():
    values = {name: 1.0 for name in names()[1:]}
    with pytest.raises(TypeError, match=names()[0]):
        Coefficients(**values)


def test_random_draws_keep_fractions_inside():
    drawn = [case.coefficients for case in random_configurations(20)]
    overlaps = np.asarray([one.dp_overlap for one in drawn])
    assert (overlaps > 0.0).all() and (overlaps < 1.0).all() and overlaps.std() > 0.01


@pytest.fixture(scope="module")
def slopes() -> Callable[[str, float], np.ndarray]:
    """Derivative of the log step time by one coefficient, where it has some value, in cases of many kinds [case]."""
    cases = stack(random_configurations(192))
    gradients = jax.jit(jax.vmap(jax.grad(lambda case: jnp.log(step_time(*case).total))))

    def at(name: str, value: float) -> np.ndarray:
        there = changed(cases, **{f"coefficients__{name}": np.full(192, value)})
        return np.asarray(getattr(gradients(there).coefficients, name))

    return at


EXTREMES = {"positive": (1e-9, 1e3), "fraction": (1e-6, 1.0 - 1e-6)}
"""A small and a large value of a coefficient, by its kind, in its own unit."""


@pytest.mark.parametrize("name", [name for name, prior in priors().items() if prior.hides_where])
def test_terms_hide_where_their_coefficient_says(name: str, slopes: Callable[[str, float], np.ndarray]):
    """Where a term hides it has no slope in some cases in which it has one where it shows, and never the reverse."""
    small, large = (slopes(name, value) != 0.0 for value in EXTREMES[priors()[name].kind])
    hidden, shown = (small, large) if priors()[name].hides_where == "small" else (large, small)
    assert (shown & ~hidden).any()
    assert not (hidden & ~shown).any()


def test_a_term_that_hides_nowhere_always_has_a_slope(slopes: Callable[[str, float], np.ndarray]):
    """Negative control of the slopes: what the host does once per step is never hidden."""
    for value in EXTREMES["positive"]:
        assert (slopes("step_time", value) != 0.0).all()
