"""Marginal returns equal finite differences; the last worthwhile chip is where they cross."""

import equinox as eqx
import numpy as np
import pytest

from jaxscale.trends.crossover import RETURN_TEMPERATURE, Totals, last_worthwhile_chip, marginal_returns
from jaxscale.trends.layout import ParallelLayout
from jaxscale.trends.outcome import scaling_outcomes

CHIPS = np.asarray([16.0, 100.0, 300.0, 1024.0, 2048.0, 9000.0])
STEP = 1e-4
CAP = 450.0


@pytest.fixture(scope="module")
def capped(paper):
    return eqx.tree_at(lambda s: s.power_cap, paper, CAP)


@pytest.fixture(scope="module")
def returns(capped, weak):
    return marginal_returns(capped, ParallelLayout(), weak, CHIPS)


def totals(deployment, batch, n) -> Totals:
    found = scaling_outcomes(deployment, ParallelLayout(), n, np.asarray(batch.at(n)), RETURN_TEMPERATURE)
    return Totals(*(np.asarray(x) for x in (found.tokens_per_s, found.system_power, found.dollars_per_s)))


def test_returns_along_chips_equal_finite_differences(capped, weak, returns):
    more, fewer = (totals(capped, weak, CHIPS * factor) for factor in (1.0 + STEP, 1.0 - STEP))
    tokens, watts, dollars = (high - low for high, low in zip(more, fewer, strict=True))
    assert np.asarray(returns.per_chip) == pytest.approx(tokens / (2.0 * STEP * CHIPS), rel=1e-3)
    assert np.asarray(returns.per_watt) == pytest.approx(tokens / watts, rel=1e-3)
    assert np.asarray(returns.per_dollar) == pytest.approx(tokens / dollars, rel=1e-3)


def test_returns_along_the_power_cap_equal_finite_differences(capped, weak, returns):
    at = (totals(eqx.tree_at(lambda s: s.power_cap, capped, CAP * f), weak, CHIPS) for f in (1.0 + STEP, 1.0 - STEP))
    more, fewer = at
    tokens, watts, _ = (high - low for high, low in zip(more, fewer, strict=True))
    assert np.asarray(returns.per_watt_of_cap) == pytest.approx(tokens / watts, rel=1e-3)


def test_the_average_is_no_marginal_return(returns):
    """The comparison above can fail: where chips wait, throughput per chip is another number."""
    assert np.all(np.asarray(returns.average / returns.per_chip)[CHIPS >= 2048.0] > 1.3)


def test_returns_diminish(returns):
    assert np.all(np.diff(np.asarray(returns.per_chip)) < 0.0)
    assert np.all(np.diff(np.asarray(returns.per_dollar)) < 0.0)


def test_a_cap_that_does_not_bind_returns_nothing(paper, weak):
    found = marginal_returns(paper, ParallelLayout(), weak, CHIPS)
    assert np.all(np.asarray(found.per_watt_of_cap) == 0.0)


def test_the_last_worthwhile_chip_returns_the_share(paper, weak):
    half = last_worthwhile_chip(paper, ParallelLayout(), weak, 0.5)
    more = last_worthwhile_chip(paper, ParallelLayout(), weak, 0.25)
    n = np.asarray([8.0, half, more, 64.0, 128.0, 256.0])
    found = marginal_returns(paper, ParallelLayout(), weak, n)
    share = np.asarray(found.per_chip) / float(found.average[0])
    assert share[1] == pytest.approx(0.5, abs=1e-3)
    assert share[2] == pytest.approx(0.25, abs=1e-3)
    assert half < more
    assert last_worthwhile_chip(paper, ParallelLayout(), weak, 1e-9, largest=1e4) == float("inf")
    with pytest.raises(ValueError, match="expected share > 0"):
        last_worthwhile_chip(paper, ParallelLayout(), weak, 0.0)
