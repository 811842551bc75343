"""Elasticities: exact on power laws, equal to finite differences, and obeying the identity of the unit of time."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxscale.base.arrays import host_arrays
from jaxscale.base.errors import InputError
from jaxscale.base.jit import filter_jit
from jaxscale.calibration.coefficients import prior_medians, priors
from jaxscale.costs.step import step_time
from jaxscale.hardware.catalogue import cluster
from jaxscale.models import model
from jaxscale.plans.plan import Plan
from jaxscale.plans.sensitivity import elasticity, named_elasticities

COEFFICIENTS = prior_medians()
H100S = cluster("h100-80gb", 256)
ARGUMENTS = (
    model("llama3-70b"),
    Plan(dp=16, tp=4, pp=4, vpp=2, zero_stage=1, n_microbatches=16, sequence_parallel=True, schedule="interleaved"),
    H100S,
    COEFFICIENTS,
)
NAMES = ("model", "plan", "cluster", "coefficients")


def total(transformer, plan, chips, coefficients):
    return step_time(transformer, plan, chips, coefficients).total


def test_power_law():
    result = elasticity(lambda x, y: 3.0 * x["a"] ** 2 / y, ({"a": 5.0}, jnp.asarray(7.0)))
    assert float(result[0]["a"]) == pytest.approx(2.0)
    assert float(result[1]) == pytest.approx(-1.0)


def test_single_argument_and_zero_leaf():
    result = elasticity(lambda x: jnp.sum(x) + 1.0, np.asarray([0.0, 1.0]))
    np.testing.assert_allclose(result, [0.0, 0.5])
    assert float(elasticity(lambda x: jnp.sqrt(x) + 1.0, 0.0)) == 0.0, "an infinite slope at zero gives no nan"


def test_non_positive_function_is_refused():
    with pytest.raises(InputError, match="expected a positive finite number"):
        elasticity(lambda x: -x, 1.0)


@pytest.fixture(scope="module")
def elasticities():
    return elasticity(total, ARGUMENTS)


def test_same_structure(elasticities):
    assert jax.tree.structure(elasticities) == jax.tree.structure(ARGUMENTS)


def test_equals_finite_differences(elasticities):
    run, arguments = filter_jit(total), host_arrays(ARGUMENTS)
    for pick in (
        lambda a: a[0].d_ff,
        lambda a: a[2].chip.hbm_bandwidth,
        lambda a: a[3].tp_overlap,
        lambda a: a[3].matmul_efficiency,
    ):
        up, down = (run(*eqx.tree_at(pick, arguments, replace_fn=lambda x, f=f: x * f)) for f in (1.001, 1 / 1.001))
        slope = float(jnp.log(up / down)) / (2.0 * np.log(1.001))
        assert float(pick(elasticities)) == pytest.approx(slope, rel=1e-4)


def test_unit_of_time(elasticities):
    """Euler: with time in other units every rate and latency scales, and so must the step; the sum is -1 exactly."""
    flat = dict(named_elasticities(elasticities, NAMES))
    rates = sum(value for name, value in flat.items() if "peak_flops" in name or "bandwidth" in name)
    seconds = [f"coefficients.{name}" for name, prior in priors().items() if prior.unit == "s"]
    latencies = sum(value for name, value in flat.items() if "network.latency" in name or name in seconds)
    assert rates - latencies == pytest.approx(-1.0, abs=1e-6)
    assert abs(rates + 1.0) > 1e-3, "negative control: the latencies count"


def test_named_is_sorted(elasticities):
    pairs = named_elasticities(elasticities, NAMES)
    sizes = [abs(value) for _, value in pairs]
    assert sizes == sorted(sizes, reverse=True)
    assert "cluster.chip.peak_flops[2]" in dict(pairs)
    assert dict(pairs)["cluster.chip.idle_power"] == 0.0
