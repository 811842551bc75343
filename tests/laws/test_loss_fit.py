"""Fits of laws of loss: published constants, the global optimum, intervals, extrapolation, doubts."""

import numpy as np
import pytest

import jaxscale as js
from jaxscale.base.errors import InputError
from jaxscale.laws import loss_solver
from jaxscale.laws.backtest import Rollout, _doubts, backtest_of, checked_law, rollout, upper_decade
from jaxscale.laws.loss import LossLaw
from jaxscale.laws.loss_fit import fit_law
from jaxscale.laws.loss_forms import prior_of
from jaxscale.laws.loss_reader import loss_table, losses_of, train_below_params
from jaxscale.laws.loss_solver import HUBER_DELTA, LANES, cluster_ids

NAMES = ("irreducible", "params_coefficient", "tokens_coefficient", "params_exponent", "tokens_exponent")
SHIPPED = (
    *("gemstones", "gemstones-cooldown", "gadre-c4", "gadre-redpajama", "gadre-refinedweb", "muennighoff", "olmo"),
)
"""Tables whose licences let them ship."""


def values(law):
    return [law.parameters[name]["value"] for name in NAMES]


@pytest.fixture(scope="module")
def epoch():
    """The fit of Besiroglu et al. 2024."""
    return fit_law(loss_table("chinchilla"), "additive", prior=None, likelihood="huber", n_draws=400)


def test_the_replication_of_chinchilla_is_reproduced(epoch):
    """Best fit of Besiroglu et al. 2024 in full precision, and its objective."""
    np.testing.assert_allclose(values(epoch), (1.8172, 477.8, 2143.0, 0.3473, 0.3672), rtol=3e-4)
    assert epoch.fitted.objective * HUBER_DELTA <= 0.00101828
    hoffmann = js.laws.loss_law("hoffmann")
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(values(epoch)[3:], (hoffmann.params_exponent, hoffmann.tokens_exponent), rtol=1e-2)


def test_standard_errors_are_those_of_the_replication(epoch):
    """Table 1 of Besiroglu et al. 2024, 4,000 resamplings: E 0.0257, alpha 0.0154, beta 0.0206."""
    drawn = epoch.samples
    for name, published in (("irreducible", 0.0257), ("params_exponent", 0.0154), ("tokens_exponent", 0.0206)):
        assert np.std(getattr(drawn, name)) == pytest.approx(published, rel=0.1)
    assert np.corrcoef(np.log(drawn.params_coefficient), drawn.params_exponent)[0, 1] > 0.9


@pytest.mark.parametrize(
    ("name", "published"),
    [("gemstones", (1.951, 0.2591, 0.5973)), ("gemstones-cooldown", (2.075, 0.3003, 0.5802))],
)
def test_gemstones_are_reproduced(name, published):
    """McLeish et al. 2025, fits of N and D: to three digits."""
    law = fit_law(loss_table(name), "additive", prior=None, likelihood="huber", n_draws=0)
    told = [law.parameters[number]["value"] for number in ("irreducible", "params_exponent", "tokens_exponent")]
    np.testing.assert_allclose(told, published, rtol=1e-3)


def test_known_numbers_are_recovered_from_exact_losses():
    truth = LossLaw(1.7, 60.0, 300.0, 0.22, 0.26, 0.45)
    generator = np.random.default_rng(1)
    n, d = np.exp(generator.uniform(17.0, 23.0, 60)), np.exp(generator.uniform(21.0, 26.0, 60))
    table = losses_of({"n_params": n, "tokens": d, "loss": np.asarray(truth.loss(n, d))})
    law = fit_law(table, prior=None, n_draws=2)
    np.testing.assert_allclose(values(law), list(vars(truth).values())[:5], rtol=1e-3)
    assert law.law.joint == pytest.approx(0.45, rel=1e-3)
    np.testing.assert_allclose(law.predict(n, d).loss, table.loss, rtol=1e-5)


def test_a_table_of_another_length_in_the_bucket_is_not_compiled_again(monkeypatch):
    table = loss_table("gadre-c4")
    fit_law(table, n_draws=20)

    def retraced(*arguments):
        raise AssertionError("the objective was traced again")

    monkeypatch.setattr(loss_solver, "objective", retraced)
    fit_law(table.select(np.arange(len(table) - 3)), n_draws=2 * LANES)
    fit_law(table, "additive", prior=None, n_draws=3)
    with pytest.raises(AssertionError, match="traced again"):
        fit_law(simulated(1500, np.random.default_rng(0), LossLaw(1.8, 480.0, 2100.0, 0.35, 0.37)), n_draws=3)


def simulated(count, generator, law, noise=0.01):
    n, d = np.exp(generator.uniform(17.0, 22.0, count)), np.exp(generator.uniform(21.0, 25.0, count))
    loss = np.asarray(law.loss(n, d)) * np.exp(noise * generator.standard_t(5, count))
    return losses_of({"n_params": n, "tokens": d, "loss": loss})


@pytest.mark.slow
def test_intervals_hold_where_the_law_is_true():
    """20 simulated tables of 40 runs: 90 % intervals of five numbers and of the optimum."""
    truth, generator = LossLaw(1.8, 480.0, 2100.0, 0.35, 0.37), np.random.default_rng(2)
    best = float(truth.optimum(1e23)[0])
    held, narrow = [], []
    for seed in range(20):
        law = fit_law(simulated(40, generator, truth), "additive", prior=None, n_draws=100, seed=seed)
        ends = [(law.parameters[name]["lo"], law.parameters[name]["hi"]) for name in NAMES]
        ends.append(law.optimum(1e23).n_params[1:])
        wanted = [*list(vars(truth).values())[:5], best]
        held.append([lo <= value <= hi for value, (lo, hi) in zip(wanted, ends, strict=True)])
        narrow.append(
            [
                abs(np.log(value / np.sqrt(lo * hi))) < 0.1 * np.log(hi / lo)
                for value, (lo, hi) in zip(wanted, ends, strict=True)
            ]
        )
    assert 0.80 <= np.mean(held) <= 0.98
    assert np.mean(narrow) < 0.5, "a fifth of the interval holds rarely"


def test_a_wrong_law_is_flagged_and_the_right_one_is_not():
    truth, generator = LossLaw(1.6, 70.0, 500.0, 0.21, 0.27, 0.35), np.random.default_rng(3)
    table = simulated(200, generator, truth, 0.003)
    wrong = backtest_of(fit_law(table, "additive", prior=None, n_draws=40), 40)
    assert any("form may be wrong" in doubt for doubt in wrong.doubts)
    right = backtest_of(fit_law(table, "joint", n_draws=40), 40)
    assert not right.doubts
    assert right.error_percent < 0.5 * wrong.error_percent
    assert right.coverage_90 > 0.8


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_a_miss_to_either_side_beyond_its_intervals_is_a_doubt(sign):
    """Of 30 rows with noise of a hundredth, a common miss of two hundredths tells, one of a thousandth does not."""
    law, rows = fit_law(loss_table("gadre-c4"), n_draws=0), np.ones(30)
    for miss, told in ((0.02, True), (0.001, False)):
        one = Rollout(1e20, 60, 30, rows, sign * miss * rows, 0.002 * rows, 0.01 * rows, 0.05 * rows)
        doubts = _doubts(law, [one])
        assert bool(doubts) is told
        assert not told or f"{100.0 * np.expm1(sign * miss):+.1f} %" in doubts[0]


def test_shuffled_losses_are_flagged():
    table = loss_table("gadre-c4")
    mixed = np.random.default_rng(0).permutation(table.loss)
    shuffled = losses_of({"n_params": table.n_params, "tokens": table.tokens, "loss": mixed})
    assert any("hardly depends" in doubt for doubt in fit_law(shuffled, n_draws=20).warnings)
    assert not any("hardly depends" in doubt for doubt in fit_law(table, n_draws=20).warnings)


def extrapolated(name, form, prior):
    """Rows above predicted from below: lower half of log compute and top decade, or as the authors split."""
    table, below = loss_table(name), train_below_params(name)
    rows = upper_decade(table) if below is None else (table.n_params < below, table.n_params > 2.0 * below)
    return rollout(table, *rows, lambda part: fit_law(part, form, prior=prior, n_draws=60))


@pytest.mark.slow
def test_extrapolation_of_shipped_tables_by_priors_of_other_sources():
    joint = [extrapolated(name, "joint", "shipped") for name in SHIPPED]
    errors = np.asarray([100.0 * one.mean_error for one in joint])
    assert np.exp(np.log(errors).mean()) < 1.6
    assert np.median(errors) < 1.5
    assert np.mean([one.coverage for one in joint]) > 0.85
    assert np.median([np.median(one.half_width) for one in joint]) < 0.08
    assert 0.2 <= np.mean([one.error.mean() > 0.0 for one in joint]) <= 0.8
    additive = [extrapolated(name, "additive", None) for name in SHIPPED]
    others = np.asarray([100.0 * one.mean_error for one in additive])
    assert np.exp(np.log(others).mean()) > 2.0 * np.exp(np.log(errors).mean())
    bare = np.abs(additive[0].error) <= np.hypot(additive[0].parameters, additive[0].noise)
    assert bare.mean() < 0.3 < joint[0].coverage, "numbers and noise alone do not cover the error of the form"


def test_a_shipped_table_is_not_its_own_prior():
    own, other = prior_of("shipped", "joint", family="gadre"), prior_of("shipped", "joint")
    assert own.name == "without-gadre" and other.name == "shipped"
    assert not np.array_equal(own.mean, other.mean)
    assert prior_of("shipped", "joint", family="somebody").name == "shipped"
    with pytest.raises(InputError, match="expected shipped or none"):
        prior_of("mine", "joint")


def test_the_own_backtest_widens_the_discrepancy_only():
    table = loss_table("gadre-refinedweb")
    law = fit_law(table.select(upper_decade(table)[0]), n_draws=40)
    wider = checked_law(law)
    assert wider.backtest.rollouts
    assert law.discrepancy <= wider.discrepancy <= 3.0 * law.discrepancy
    far = wider.predict(1e11, 2e12)
    assert far.discrepancy[0] > wider.predict(1e8, 2e9).discrepancy[0]


def test_checkpoints_of_a_run_and_shapes_are_drawn_together():
    table = loss_table("gemstones")
    clusters = cluster_ids(table)
    assert clusters.max() + 1 == 22, "one cluster for each shape"
    together = fit_law(table, "additive", prior=None, n_draws=60)
    alone = fit_law(table, "additive", prior=None, n_draws=60, cluster="rows")
    name = "params_exponent"
    assert np.std(getattr(together.samples, name)) > 2.0 * np.std(getattr(alone.samples, name))
    with pytest.raises(InputError, match="not a column"):
        cluster_ids(table, "colour")


def test_laws_survive_a_file(tmp_path):
    table = loss_table("gadre-c4")
    law = checked_law(fit_law(table, n_draws=30))
    js.laws.save_law(law, tmp_path / "law.toml")
    back = js.laws.load_law(tmp_path / "law.toml")
    points = ([1e9, 7e9, 1e11], [2e10, 1.4e11, 2e12])
    for one, other in zip(law.predict(*points), back.predict(*points), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-3)
    np.testing.assert_allclose(law.predict(*points).loss, back.predict(*points).loss, rtol=1e-4)
    assert back.parameters.keys() == law.parameters.keys() and back.warnings == law.warnings
    (tmp_path / "cut.toml").write_text("[law]\nform = 'joint'\n")
    with pytest.raises(InputError, match="cut or of another version; expected a whole law of loss"):
        js.laws.load_law(tmp_path / "cut.toml")


def test_the_upper_decade_is_a_factor_of_ten():
    flop = np.asarray([1e18, 2e18, 5e18, 9.5e18, 1.05e19, 1e20])
    table = losses_of({"n_params": flop / 6e10, "tokens": np.full(6, 1e10), "loss": np.full(6, 3.0)})
    is_fitted, is_predicted = upper_decade(table, 0.2)
    assert np.flatnonzero(is_predicted).tolist() == [4, 5]
    assert is_fitted.tolist() == [True, True, False, False, False, False]
