"""Fits of the critical batch and of power laws: published constants from published runs."""

import csv

import numpy as np
import pytest

from jaxscale.base.errors import InputError
from jaxscale.base.resources import data_path
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


def test_bad_columns_are_refused():
    with pytest.raises(InputError, match="no trade"):
        fit_critical_batch([1e5, 1e6, 1e7], [1e4, 2e4, 8e4])
