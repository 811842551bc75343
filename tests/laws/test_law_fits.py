"""Fits of the critical batch and of power laws: published constants from published runs."""

import csv

import numpy as np
import pytest

from jaxscale.base.documents import data_path
from jaxscale.base.errors import InputError
from jaxscale.laws.approaches import fit_critical_batch, power_law
from jaxscale.laws.loss import batch_law, law_table


def columns(name, *wanted):
    with data_path(name).open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [np.asarray([row[key] for row in rows]) for key in wanted]


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


PORIAN = {
    ("base", "long", "kaplan", "kaplan"): 0.835,
    ("base", "long", "kaplan", "standard"): 0.706,
    ("base", "short", "kaplan", "standard"): 0.602,
    ("base", "short", "chinchilla", "standard"): 0.571,
    ("tuned", "short", "const", "standard"): 0.497,
}
"""Exponents of the optimal size: Kaplan's set-up, then last layer, warm-up, decay and tuning corrected."""


def test_optimal_sizes_of_porian_grow_as_published():
    """Porian et al. 2024, table 1: with their corrections Kaplan's exponent becomes Chinchilla's."""
    keys = ("file", "dataset", "hparams", "warmup", "decay", "param_count", "flops", "n", "n_star_std")
    file, dataset, *setting, flops, size, error = columns("companion/porian2024_compute_optimal_pairs.csv", *keys)
    told = (file == "summary_df") & (dataset == "rw") & (np.char.str_len(size) > 0)
    exponents = {}
    for wanted in PORIAN:
        rows = told & np.all([column == word for column, word in zip(setting, wanted, strict=True)], axis=0)
        assert rows.sum() >= 11
        exponents[wanted] = power_law(*(column[rows].astype(float) for column in (flops, size, error)))[1]
    assert exponents == pytest.approx(PORIAN, abs=0.01)
    assert max(exponents.values()) - min(exponents.values()) > 0.3, "the corrections matter"


def test_sparsity_multiplies_both_extremes_and_leaves_the_critical_batch():
    """K = c1 / B + c2, with one factor on c1 and c2 (arXiv 2003.11316, whose batches are these)."""
    batch = np.tile(2.0 ** np.arange(1, 15), 3)
    sparsity = np.repeat([0.0, 0.5, 0.9], 14)
    rough = np.repeat([1.0, 1.4, 2.5], 14)
    steps = rough * (300.0 + 9e4 / batch)
    fit = fit_critical_batch(batch, steps * (1.0 + 0.02 * np.cos(7.0 * np.arange(42))), sparsity)
    assert fit.critical == pytest.approx(300.0, rel=0.05) and fit.misfit < 0.03
    assert fit.roughness == pytest.approx({0.0: 1.0, 0.5: 1.4, 0.9: 2.5}, rel=0.03)
    alone = fit_critical_batch(batch[:14], steps[:14])
    assert (alone.critical, alone.roughness) == (pytest.approx(300.0), {})
    # Where sparsity moves the noise alone the critical batch is not common, which the misfit tells.
    assert fit_critical_batch(batch, 300.0 + rough * 9e4 / batch, sparsity).misfit > 0.2


def test_sizes_of_models_have_no_common_critical_batch():
    """A negative control on measured runs: seven sizes of Zhang et al. in place of sparsities."""
    names, batch, steps = columns(
        "companion/critical_batch_size_zhang2024.csv", "model", "batch_size_tokens", "steps_to_target"
    )
    place = np.unique(names, return_inverse=True)[1]
    assert fit_critical_batch(batch.astype(float), steps.astype(float), place).misfit > 0.3


def test_bad_columns_are_refused():
    with pytest.raises(InputError, match="no trade"):
        fit_critical_batch([1e5, 1e6, 1e7], [1e4, 2e4, 8e4])
