"""Fits of laws: published constants from published runs, known constants from made-up ones."""

import csv

import numpy as np
import pytest

from jaxscale._resources import data_path
from jaxscale.errors import InputError
from jaxscale.laws.law_fits import fit_critical_batch, fit_loss_law, power_law
from jaxscale.laws.loss import batch_law, law_table, loss_law


def columns(name, *wanted):
    with data_path(name).open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [np.asarray([row[key] for row in rows]) for key in wanted]


@pytest.fixture(scope="module")
def refit():
    params, tokens, loss = columns("restricted/chinchilla_svg_loss.csv", "params", "tokens_derived", "loss_nats")
    kept = np.argsort(loss.astype(float))[:-5]
    return fit_loss_law(*(column.astype(float)[kept] for column in (params, tokens, loss)), n_samples=30)


def test_refit_gives_the_published_constants(refit):
    """Besiroglu et al. 2024, best grid fit: 1.8172, 477.842, 2143.86, 0.347313, 0.367183."""
    published = (1.8172, 477.842, 2143.86, 0.347313, 0.367183)
    np.testing.assert_allclose(list(vars(refit.law).values()), published, rtol=5e-4)
    shipped = loss_law("besiroglu-refit")
    np.testing.assert_allclose(list(vars(refit.law).values()), list(vars(shipped).values()), rtol=1e-4)


def test_errors_are_the_published_ones(refit):
    published = {"irreducible": 0.0257, "params_coefficient": 124.5, "tokens_coefficient": 1293.0}
    published |= {"params_exponent": 0.0154, "tokens_exponent": 0.0206}
    for name, samples in vars(refit.samples).items():
        assert np.std(samples) == pytest.approx(published[name], rel=0.4)
    numbers = refit.samples
    correlation = np.corrcoef(np.log(numbers.params_coefficient), numbers.params_exponent)[0, 1]
    assert correlation > 0.9


def test_known_constants_are_found():
    generator, law = np.random.default_rng(1), loss_law("hoffmann")
    params, tokens = np.exp(generator.uniform(17, 24, 80)), np.exp(generator.uniform(21, 27, 80))
    exact = np.asarray(law.loss(params, tokens))
    found = fit_loss_law(params, tokens, exact, n_samples=2)
    np.testing.assert_allclose(list(vars(found.law).values()), list(vars(law).values()), rtol=1e-2)
    noisy = fit_loss_law(params, tokens, exact * np.exp(generator.normal(0.0, 0.05, 80)), n_samples=2)
    assert noisy.objective > 10.0 * found.objective


def test_critical_batches_of_zhang():
    names, params, batch, steps = columns(
        "companion/critical_batch_size_zhang2024.csv", "model", "params", "batch_size_tokens", "steps_to_target"
    )
    models = list(dict.fromkeys(names))
    fits = [fit_critical_batch(*(c[names == name].astype(float) for c in (batch, steps))) for name in models]
    assert max(fit.misfit for fit in fits) < 0.1
    sizes = [float(params[names == name][0]) for name in models]
    coefficient, exponent, error = power_law(sizes, [fit.critical for fit in fits])
    table = law_table("batch", "zhang-refit")
    assert exponent == pytest.approx(table["params_exponent"], rel=1e-3)
    assert coefficient == pytest.approx(table["coefficient"], rel=1e-2)
    assert 0.02 < error < 0.04
    assert float(batch_law("zhang-refit").critical(302e6, 6e9, 3.07)) == pytest.approx(fits[2].critical, rel=0.15)


def test_optimal_sizes_of_porian_grow_as_the_square_root():
    """Porian et al. 2024: with their corrections the exponent of Kaplan's 0.88 becomes Chinchilla's 0.5."""
    keys = ("dataset", "hparams", "decay", "param_count", "flops", "n")
    dataset, hparams, decay, counted, flops, size = columns("companion/porian2024_compute_optimal_pairs.csv", *keys)
    told = np.char.str_len(size) > 0

    def exponent(rows):
        return power_law(flops[rows & told].astype(float), size[rows & told].astype(float))[1]

    first = (dataset == "rw") & (hparams == "base") & (decay == "kaplan") & (counted == "kaplan")
    assert exponent(first) > 0.8
    last = (dataset == "rw") & (hparams == "tuned") & (counted == "standard")
    assert last.sum() > 3
    assert exponent(last) == pytest.approx(0.5, abs=0.04)


def test_bad_columns_are_refused():
    with pytest.raises(InputError, match="equally long"):
        fit_loss_law([1e9] * 12, [1e10] * 11, [2.0] * 12)
    with pytest.raises(InputError, match="at least 10"):
        fit_loss_law([1e9], [1e10], [2.0])
    with pytest.raises(InputError, match="no trade"):
        fit_critical_batch([1e5, 1e6, 1e7], [1e4, 2e4, 8e4])
