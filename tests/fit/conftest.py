"""A fit of a real table that several modules look at from different sides."""

import jax
import pytest

import jaxscale as js
from jaxscale.base.documents import data_path
from jaxscale.fitting.fitting import fit_measured
from jaxscale.runs.arrays import Measured
from jaxscale.runs.measured import measured_runs


def bloom_runs() -> Measured:
    """Runs of the BLOOM table: real plans, few enough for a quick fit."""
    return measured_runs(js.read_runs(data_path("runs") / "bigscience_bloom_a100.csv"))[0]


@pytest.fixture(scope="session")
def measured() -> Measured:
    """The runs of `bloom_fit`."""
    return bloom_runs()


@pytest.fixture(scope="session")
def bloom_fit() -> js.FitResult:
    """A fit of the BLOOM table from the priors alone."""
    with jax.enable_x64(True):
        return fit_measured(bloom_runs(), n_starts=1, n_folds=2)
