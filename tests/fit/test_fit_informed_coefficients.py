"""Outside its scope a coefficient changes no prediction, on every kind of shipped run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxscale as js
from jaxscale.base.documents import run_tables
from jaxscale.calibration.coefficients import MEMORY_COEFFICIENTS, names
from jaxscale.fitting.fit_record import base_of
from jaxscale.fitting.informed_coefficients import bounds_memory, informed_coefficients
from jaxscale.fitting.objective import predicted_logs
from jaxscale.runs.arrays import Measured, concatenate
from jaxscale.runs.measured import measured_runs


@pytest.fixture(scope="module")
def measured() -> Measured:
    """Every row of every table: a ring too slow for the attention core to hide is rare."""
    return concatenate([measured_runs(js.read_runs(path))[0] for path in run_tables().values()])


@pytest.fixture(scope="module")
def bounds(measured: Measured) -> np.ndarray:
    """Whether all that is known of the memory of a run is that it fitted [row]."""
    return bounds_memory(measured, base_of(measured, js.load_fit("prior")))


@pytest.fixture(scope="module")
def inside(measured: Measured, bounds: np.ndarray) -> np.ndarray:
    """Scope of each coefficient [row, coefficient]."""
    return informed_coefficients(measured, bounds)


@pytest.fixture(scope="module")
def slopes(measured: Measured) -> np.ndarray:
    """Derivative of the logs of step time and memory by each coefficient [row, coefficient]."""
    rows = jnp.asarray(base_of(measured, js.load_fit("prior")))
    batch = jax.tree.map(jnp.asarray, measured.batch)
    return np.asarray(jax.jit(jax.grad(lambda u: jnp.sum(jnp.stack(predicted_logs(batch, u)))))(rows))


def test_coefficients_out_of_scope_move_nothing(inside: np.ndarray, slopes: np.ndarray):
    outside = ~inside
    step_only = np.asarray([name not in MEMORY_COEFFICIENTS for name in names()])
    np.testing.assert_allclose(slopes[:, step_only][outside[:, step_only]], 0.0, atol=1e-14)
    assert outside.any(axis=0).sum() >= 20


def test_most_coefficients_in_scope_move_something(inside: np.ndarray, slopes: np.ndarray):
    moved = np.asarray([np.abs(slopes[inside[:, i], i]).max(initial=0.0) > 0.0 for i in range(len(names()))])
    assert moved.all(), [name for name, moves in zip(names(), moved, strict=True) if not moves]


def test_biases_count_only_where_experts_have_them(inside: np.ndarray, slopes: np.ndarray):
    column = names().index("bias_passes")
    np.testing.assert_array_equal(inside[:, column], slopes[:, column] != 0.0)


def test_memory_counts_where_it_was_measured_and_a_bound_for_one_coefficient(
    measured: Measured, bounds: np.ndarray, inside: np.ndarray
):
    is_measured = np.isfinite(np.asarray(measured.peak_memory))
    by_driver = is_measured & (np.asarray(measured.batch.counted) > 0.0)
    np.testing.assert_array_equal(inside[:, names().index("framework_bytes")], by_driver)
    assert by_driver.any() and (is_measured & ~by_driver).any()
    np.testing.assert_array_equal(inside[:, names().index("activation_factor")], is_measured | bounds)
    assert bounds.any() and not (bounds & is_measured).any()
