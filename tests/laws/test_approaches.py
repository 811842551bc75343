"""Growth of the optimum with compute by three approaches: agreement with a known law, published tables, refusals."""

import numpy as np
import pytest

from jaxscale.base.errors import InputError
from jaxscale.laws.approaches import budgets_of, envelope, growth, isoflop_minima
from jaxscale.laws.loss import LossLaw
from jaxscale.laws.loss_fit import fit_law
from jaxscale.laws.loss_reader import loss_table, losses_of

TRUTH = LossLaw(1.8, 480.0, 2100.0, 0.35, 0.37)


@pytest.fixture(scope="module")
def law():
    """Law of exact isoFLOP runs, seven sizes around the optimum of each of six budgets."""
    flop = np.repeat(np.geomspace(1e19, 1e22, 6), 7)
    best = np.asarray(TRUTH.optimum(flop)[0])
    size = best * np.tile(np.geomspace(0.4, 2.5, 7), 6)
    tokens = flop / (6.0 * size)
    loss = np.asarray(TRUTH.loss(size, tokens))
    return fit_law(losses_of({"n_params": size, "tokens": tokens, "loss": loss}), "additive", prior=None, n_draws=0)


def test_parabolas_and_the_law_agree_on_exact_runs(law):
    assert [len(rows) for rows in budgets_of(law.table)] == [7] * 6
    flop, size, loss = isoflop_minima(law.table).T
    np.testing.assert_allclose(size, TRUTH.optimum(flop)[0], rtol=0.05)
    np.testing.assert_allclose(loss, TRUTH.loss(*TRUTH.optimum(flop)), rtol=1e-3)
    exponent = 0.37 / (0.35 + 0.37)
    assert growth(law, 3).params_exponent == pytest.approx(exponent, abs=1e-3)
    assert growth(law, 2).params_exponent == pytest.approx(exponent, abs=0.01)
    assert growth(law, 2).params_exponent + growth(law, 2).tokens_exponent == pytest.approx(1.0)
    assert growth(law, 1).params_exponent == pytest.approx(exponent, abs=0.1)


def test_the_vertex_of_a_parabola_is_found_from_sizes_on_either_side():
    flop, best = np.repeat([1e19, 1e21], 5), np.repeat([1e8, 1e9], 5)
    size = best * np.tile([0.8, 1.5, 2.5, 4.0, 6.0], 2)
    loss = np.repeat([3.0, 2.5], 5) + 0.2 * np.log(size / best) ** 2
    minima = isoflop_minima(losses_of({"n_params": size, "tokens": flop / (6.0 * size), "loss": loss}))
    np.testing.assert_allclose(minima, [[1e19, 1e8, 3.0], [1e21, 1e9, 2.5]], rtol=1e-6)


def test_marin_s_budgets_have_minima():
    table = loss_table("marin-nemotron")
    told = growth(fit_law(table, prior=None, n_draws=0), 2)
    assert len(told.flop) >= 4 and 0.0 < told.error < 0.1
    assert 0.3 < told.params_exponent < 0.7


def test_what_has_no_budgets_is_refused(law):
    with pytest.raises(InputError, match="expected 1, 2 or 3"):
        growth(law, 4)
    n = np.geomspace(1e7, 1e9, 12)
    line = losses_of({"n_params": n, "tokens": 20.0 * n, "loss": np.asarray(TRUTH.loss(n, 20.0 * n))})
    with pytest.raises(InputError, match="0 budgets of 4 sizes"):
        isoflop_minima(line)


def test_two_runs_are_no_envelope(law):
    with pytest.raises(InputError, match="2 runs on the lower envelope; expected at least three"):
        envelope(law.table.select(np.asarray([0, -1])))


def test_the_envelope_keeps_one_run_of_each_budget():
    """Seven sizes at the same compute but for a thousandth: the order of their compute says nothing."""
    flop = np.repeat(np.geomspace(1e19, 1e22, 6), 7) * np.tile(np.linspace(0.999, 1.001, 7), 6)
    size = np.asarray(TRUTH.optimum(flop)[0]) * np.tile(np.geomspace(0.4, 2.5, 7), 6)
    tokens = flop / (6.0 * size)
    table = losses_of({"n_params": size, "tokens": tokens, "loss": np.asarray(TRUTH.loss(size, tokens))})
    assert len(envelope(table)) == 6
    np.testing.assert_allclose(envelope(table)[:, 1], TRUTH.optimum(envelope(table)[:, 0])[0], rtol=0.05)
