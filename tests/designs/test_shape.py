"""Width against depth: the relaxed optimum is stationary, the integer one is the best of its lattice and valid."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from jaxscale.calibration.coefficients import prior_medians
from jaxscale.designs.integer_designs import Wish, possible
from jaxscale.designs.relaxed_shape import depth_of, stretched
from jaxscale.designs.shape_lattice import at_whole_sizes
from jaxscale.designs.shape_search import search_shape
from jaxscale.errors import InputError
from jaxscale.hardware.catalogue import cluster
from jaxscale.laws.loss import ShapeLaw
from jaxscale.memory import memory
from jaxscale.models import model
from jaxscale.plan.plan import Plan
from jaxscale.plan.rules import violations
from jaxscale.step import step_time
from jaxscale.workload import n_params

COEFFICIENTS = prior_medians()
LLAMA, H100S = model("llama3-8b"), cluster("h100-80gb", 32)
PLAN = Plan(dp=8, tp=2, pp=2, zero_stage=1, micro_batch_size=1, n_microbatches=16, sequence_parallel=True)


@pytest.fixture(scope="module")
def search():
    return search_shape(LLAMA, PLAN, H100S, COEFFICIENTS)


def test_stretching_by_one_changes_nothing():
    same = stretched(LLAMA, LLAMA.d_model, LLAMA.n_layers)
    assert float(n_params(same)) == pytest.approx(float(n_params(LLAMA)), rel=1e-12)
    assert float(same.n_kv_heads) == LLAMA.n_kv_heads


@pytest.mark.parametrize("name", ["llama3-8b", "gpt3-175b", "mixtral-8x7b"])
def test_depth_keeps_the_parameters(name):
    template = model(name)
    for width in (1024.0, 3000.0, 9000.0):
        depth = depth_of(template, jnp.asarray(width), n_params(template))
        assert float(n_params(stretched(template, width, depth))) == pytest.approx(float(n_params(template)), rel=1e-9)


def test_relaxed_optimum_is_stationary_and_beats_a_grid(search):
    assert search.gradient_norm < 1e-6
    lowest = search.objective.min()
    assert search.relaxed["objective"] <= lowest + 1e-12
    widths = search.trajectory[..., 0]
    assert widths.min() < 0.5 * search.relaxed["d_model"] < 2.0 * search.relaxed["d_model"] < widths.max()


def test_all_starts_agree(search):
    np.testing.assert_allclose(search.trajectory[:, -1, 0], search.relaxed["d_model"], rtol=0.02)


def test_more_steps_do_not_worsen(search):
    longer = search_shape(LLAMA, PLAN, H100S, COEFFICIENTS, n_steps=200)
    assert longer.relaxed["objective"] <= search.relaxed["objective"] + 1e-9
    assert longer.integer["objective"] == pytest.approx(search.integer["objective"], abs=1e-9)


def test_integer_design_is_valid_and_exact(search):
    shape = search.model
    assert violations(shape, PLAN, 32) == []
    assert shape.d_model % 128 == 0
    assert shape.n_layers % PLAN.pp == 0
    assert shape.n_heads * shape.head_dim == shape.d_model
    assert shape.n_heads % shape.n_kv_heads == 0
    assert bool(memory(shape, PLAN, H100S, COEFFICIENTS).fits)
    assert float(n_params(shape)) == pytest.approx(float(n_params(LLAMA)), rel=0.03)
    assert search.step_time == pytest.approx(float(step_time(shape, PLAN, H100S, COEFFICIENTS).total), rel=1e-9)


def test_key_value_heads_of_a_design_suit_its_ranks():
    """A quarter of 48 heads would be cut by eight ranks: eight heads, or sixteen, are the nearest that are not."""
    twelve, eight = (
        at_whole_sizes(LLAMA, np.full(1, 48.0 * 128.0), np.full(1, 32.0), 128, np.full(1, tp)) for tp in (4, 8)
    )
    assert twelve.n_kv_heads == [12.0]
    assert eight.n_kv_heads in ([8.0], [16.0])


def test_designs_leave_no_group_astride_two_domains():
    wish = Wish(4096.0, 32.0, 1.0, 256.0, 1.0, tp=6, cp=1, pp=1, vpp=1, ep=1, zero_stage=1, recompute=False)
    assert possible([wish], LLAMA, 96, domain_size=8.0) == []
    assert possible([wish], LLAMA, 96, domain_size=72.0) == [wish]


def test_integer_design_is_the_best_of_its_lattice(search):
    lattice = search.lattice
    assert lattice.admitted.sum() > 10
    assert lattice.objective[lattice.best] == lattice.objective[lattice.admitted].min()
    assert abs(search.gap) < 0.02
    assert search.gain >= -0.01


def test_without_penalty_the_model_gets_wide():
    """The aspect penalty is what keeps the depth: without it shallow and wide is fastest."""
    free = search_shape(LLAMA, PLAN, H100S, COEFFICIENTS, law=ShapeLaw(kappa=0.0, ratio=64.0))
    strict = search_shape(LLAMA, PLAN, H100S, COEFFICIENTS, law=ShapeLaw(kappa=1.0, ratio=64.0))
    assert free.integer["d_model"] > 1.5 * strict.integer["d_model"]
    assert strict.relaxed["d_model"] / strict.relaxed["n_layers"] == pytest.approx(64.0, rel=0.05)
    assert free.step_time / free.integer["params"] < strict.step_time / strict.integer["params"]


def test_another_size():
    small = search_shape(LLAMA, PLAN, H100S, COEFFICIENTS, params=1e9)
    assert float(n_params(small.model)) == pytest.approx(1e9, rel=0.05)
    assert small.step_time > 0.0
    assert math.isfinite(small.gap)


def test_too_large_for_the_chips():
    with pytest.raises(InputError, match="no shape of 2e\\+12 parameters fits in 84.9 GB"):
        search_shape(LLAMA, PLAN, H100S, COEFFICIENTS, params=2e12)
    with pytest.raises(InputError, match="params"):
        search_shape(LLAMA, PLAN, H100S, COEFFICIENTS, params=-1.0)
