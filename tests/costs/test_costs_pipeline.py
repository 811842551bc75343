"""Stages of a pipeline and transfers between them against hand calculations."""

import jax.numpy as jnp
import numpy as np
import pytest
from cost_cases import IDEAL, LLAMA, on, plan
from hypothesis import given
from hypothesis import strategies as st

from jaxscale.base.arrays import as_arrays
from jaxscale.costs.machine import effective_link
from jaxscale.costs.pipeline import PassShares, bubble_time, imbalance_time, stage_times, transfer_time
from jaxscale.hardware.catalogue import cluster
from jaxscale.models.transformer import Transformer
from jaxscale.plans.local import local_plan
from jaxscale.plans.stages import DIVISIBLE, busiest_layers, first_stage_layers, head_in_layers, last_stage_layers

EQUAL_PASSES = PassShares(jnp.asarray(1.0 / 3.0), jnp.asarray(1.0 / 3.0))


@given(st.integers(1, 200), st.integers(1, 64))
def test_busiest_layers_is_the_ceiling_on_whole_numbers(layers: int, stages: int):
    assert float(busiest_layers(float(layers), float(stages))) == pytest.approx(-(-layers // stages), abs=1e-9)
    divided = float(busiest_layers(float(layers), float(stages), DIVISIBLE))
    assert divided == pytest.approx(layers / stages) and -(-layers // stages) - 1.0 < divided


@given(st.integers(1, 200), st.integers(1, 64))
def test_slightly_smooth_layers_are_whole(layers: int, stages: int):
    whole = -(-layers // stages)
    assert float(busiest_layers(float(layers), float(stages), DIVISIBLE / 4.0)) == pytest.approx(whole, abs=1e-6)
    between = float(busiest_layers(float(layers), float(stages), 0.7 * DIVISIBLE))
    assert layers / stages - 1e-6 <= between <= whole + 1e-6


@given(st.floats(1.0, 100.0), st.floats(1.0, 16.0))
def test_busiest_layers_is_continuous_and_at_least_the_mean(layers: float, stages: float):
    here, there = (float(busiest_layers(value, stages)) for value in (layers, layers * (1.0 + 1e-9)))
    assert abs(there - here) < 1e-5
    assert here >= layers / stages - 1e-9
    assert float(busiest_layers(layers, 1.0)) == layers


def test_head_on_the_last_stage_sets_the_pace_unless_balanced():
    shape = as_arrays(Transformer(32, 4096, 32, vocab_size=128256))
    four = plan(pp=4, n_microbatches=8)
    head = head_in_layers(shape)
    even = stage_times(local_plan(shape, four), jnp.asarray(32.0), head)
    np.testing.assert_allclose([even.total, even.busiest], [32.0 + head, 8.0 + head])
    balanced = stage_times(local_plan(shape, plan(pp=4, balanced_stages=True)), jnp.asarray(32.0), head)
    np.testing.assert_allclose(balanced.busiest, 9.0)
    even = stage_times(local_plan(shape, four), jnp.asarray(32.0), jnp.asarray(4.0))
    np.testing.assert_allclose(bubble_time(local_plan(shape, four), even, EQUAL_PASSES), 24.0)
    np.testing.assert_allclose(imbalance_time(local_plan(shape, four), even), 8 * 3.0)
    # A single stage has neither, whatever its layers and head.
    one = stage_times(local_plan(shape, plan(balanced_stages=True)), jnp.asarray(32.0), jnp.asarray(4.7))
    np.testing.assert_allclose(
        [bubble_time(local_plan(shape, plan()), one, EQUAL_PASSES), imbalance_time(local_plan(shape, plan()), one)],
        0.0,
        atol=1e-12,
    )


@pytest.mark.parametrize(("stages", "first", "last"), [(1, 16, 16), (2, 10, 6), (4, 5, 1), (8, 3, 0)])
def test_stages_balanced_by_cost_count_the_head_as_layers_whatever_limits_their_pace(stages, first, last):
    shape = as_arrays(Transformer(16, 2048, 32, d_ff=8192, gated_mlp=True, vocab_size=131072))
    np.testing.assert_allclose(head_in_layers(shape), 4.0)
    balanced = plan(pp=stages, balanced_stages=True)
    np.testing.assert_allclose(first_stage_layers(shape, balanced), first)
    np.testing.assert_allclose(last_stage_layers(shape, balanced), last)
    # A head that takes no time, as where the host sets the pace of the layers, leaves them where they are.
    slowest = stage_times(local_plan(shape, balanced), jnp.asarray(16.0), jnp.asarray(0.0)).busiest
    np.testing.assert_allclose(slowest, first)
    np.testing.assert_allclose(first_stage_layers(shape, plan(pp=stages)), 16 / stages)


def test_the_first_of_balanced_stages_holds_more_weights():
    shape = as_arrays(Transformer(16, 2048, 32, d_ff=8192, gated_mlp=True, vocab_size=131072))
    even, balanced = (local_plan(shape, plan(pp=2, balanced_stages=by_cost)).params for by_cost in (False, True))
    np.testing.assert_allclose(balanced.layers, even.layers * 10.0 / 8.0)
    np.testing.assert_allclose(balanced.embedding, even.embedding)


def test_transfers_cross_each_boundary_both_ways():
    machine = effective_link(cluster("h100-80gb", 64).network, IDEAL)
    time = transfer_time(*on(LLAMA, plan(dp=8, pp=2, n_microbatches=4), link=machine))
    hop = 2.0 * 8192 * 4096 / 50e9
    np.testing.assert_allclose(time, 2 * (4 + 1) * 0.5 * hop, rtol=0.05)
