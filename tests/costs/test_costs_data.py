"""Data parallelism and streams of weights: reduction, sharding, gathers, copies, accumulation, the optimizer step."""

import jax.numpy as jnp
import numpy as np
import pytest
from cost_cases import H100, IDEAL, LLAMA, MIXTRAL, ONE_H100, ideal, on, plan

from jaxscale.base.arrays import as_arrays
from jaxscale.costs.data import data_parallel
from jaxscale.costs.machine import effective_link
from jaxscale.costs.step import step_time
from jaxscale.costs.weight_streams import accumulation_time, head_accumulation_time, optimizer_time
from jaxscale.models import model
from jaxscale.models.transformer import n_params
from jaxscale.plans.local import local_plan
from jaxscale.plans.plan import Plan


def test_local_weights_add_up_to_the_model():
    shape = as_arrays(model("mixtral-8x7b"))
    norms, router = 4096.0 * 65.0, 32 * 8 * 4096.0
    whole = local_plan(shape, plan()).params
    np.testing.assert_allclose(whole.total, n_params(shape) - norms - router, rtol=1e-9)
    split = local_plan(shape, plan(dp=8, tp=2, ep=8, pp=4)).params
    np.testing.assert_allclose(split.layers, whole.layers / 8.0, rtol=1e-9)
    np.testing.assert_allclose(split.experts, whole.experts / 64.0, rtol=1e-9)


def test_plain_data_parallelism_reduces_gradients_and_hides_behind_the_backward_pass():
    eight = plan(dp=8)
    link = effective_link(H100.network, ideal(link_latency_scale=0.0))
    bare = data_parallel(*on(LLAMA, eight, link=link), jnp.asarray(0.0), jnp.asarray(0.0))
    gathered = local_plan(LLAMA, eight).params.total * 7.0 / 8.0 / 450e9
    np.testing.assert_allclose(bare.step, 8.0 * gathered, rtol=1e-6)
    assert bare.microbatch == 0.0
    hidden = data_parallel(
        *on(LLAMA, eight, ideal(dp_overlap=1.0), link=link), jnp.asarray(0.0), bare.step / (7.0 / 8.0)
    )
    assert abs(hidden.step) < 1e-9
    halved = data_parallel(*on(LLAMA, plan(dp=8, gradient_bytes=2), link=link), jnp.asarray(0.0), jnp.asarray(0.0))
    np.testing.assert_allclose(halved.step, 4.0 * gathered, rtol=1e-6)
    # Shards are reduced in 32 bits and gathered as the weights that they update.
    sharded = data_parallel(*on(LLAMA, plan(dp=8, zero_stage=1), link=link), jnp.asarray(0.0), jnp.asarray(0.0))
    np.testing.assert_allclose(sharded.step, 6.0 * gathered, rtol=1e-6)
    late = plan(dp=8, overlap_gradients=False)
    after = data_parallel(*on(LLAMA, late, ideal(dp_overlap=1.0), link=link), jnp.asarray(0.0), bare.step / (7.0 / 8.0))
    np.testing.assert_allclose(after.step, bare.step, rtol=1e-9)


def test_gradients_reduced_one_by_one_pay_the_latency_of_a_ring_each():
    """With 8 n replicas on n nodes 2 (7 n + n - 1) hops; buckets may take the shorter tree, and ZeRO pays for none."""
    link = effective_link(H100.network, ideal(collective_launch=0.0))

    def added(zero_stage: int, dp: int = 64, **counts: float) -> float:
        layout, nothing = plan(dp=dp, zero_stage=zero_stage), jnp.asarray(0.0)
        found = (data_parallel(*on(LLAMA, layout, c, link=link), nothing, nothing) for c in (ideal(**counts), IDEAL))
        with_counts, without = (time.step for time in found)
        return float(with_counts - without)

    for nodes in (1, 2, 8, 64):
        ring = 2.0 * (7.0 * nodes * link.latency[0] + (nodes - 1.0) * link.latency[1])
        rings = added(0, 8 * nodes, reduce_rings=9.0)
        np.testing.assert_allclose(rings, 9.0 * LLAMA.n_layers * ring, rtol=1e-6)
    assert added(0, 512, dp_buckets=9.0) < 0.2 * rings
    assert added(1, reduce_rings=9.0) == added(0, 1, reduce_rings=9.0) == 0.0


def test_fsdp_gathers_every_microbatch_and_hides_behind_compute():
    sharded = plan(dp=8, zero_stage=3)
    link = effective_link(H100.network, ideal(link_latency_scale=0.0))
    nothing = jnp.asarray(0.0)
    bare = data_parallel(*on(LLAMA, sharded, link=link), nothing, nothing)
    # Parameters twice in 16 bits, gradients once in 32.
    expected = 8.0 * local_plan(LLAMA, sharded).params.total * 7.0 / 8.0 / 450e9
    np.testing.assert_allclose(bare.microbatch, expected, rtol=1e-6)
    covered = data_parallel(
        *on(LLAMA, sharded, ideal(fsdp_overlap=1.0), link=link), jnp.asarray(10.0), jnp.asarray(20.0)
    )
    assert covered.microbatch == 0.0


def test_zero_two_scatters_the_gradients_of_every_microbatch():
    link = effective_link(H100.network, ideal(link_latency_scale=0.0))
    nothing = jnp.asarray(0.0)

    def exposed(stage: int, count: int, overlap: float = 0.0) -> list[float]:
        accumulating = plan(dp=8, zero_stage=stage, n_microbatches=count)
        found = data_parallel(
            *on(LLAMA, accumulating, ideal(dp_overlap=overlap), link=link), nothing, jnp.asarray(10.0)
        )
        return [float(found.step), float(found.microbatch * count)]

    scatter = 4.0 * float(local_plan(LLAMA, plan(dp=8)).params.total) * 7.0 / 8.0 / 450e9
    assert exposed(2, 4) == pytest.approx([exposed(1, 4)[0], 3.0 * scatter], rel=1e-6)
    assert exposed(1, 4)[1] == exposed(2, 1)[1] == exposed(2, 4, overlap=1.0)[1] == 0.0


def test_congestion_counts_the_nodes_that_a_collective_spans():
    """A group inside a node meets none, however many replicas there are; the copies of it do."""
    nothing, link = jnp.asarray(0.0), effective_link(H100.network, IDEAL)._replace(latency=(0.0, 0.0, 0.0))

    def times(congestion: float, **fields: int) -> tuple[float, float]:
        found = data_parallel(*on(LLAMA, plan(**fields), ideal(dp_congestion=congestion), link=link), nothing, nothing)
        return float(found.step), float(found.microbatch)

    inside, jammed = (times(c, dp=64, zero_stage=3, shard_group=8) for c in (0.0, 0.1))
    assert jammed[1] == pytest.approx(inside[1])
    assert jammed[0] == pytest.approx(1.3 * inside[0], rel=0.01)
    whole, slowed = (times(c, dp=64, zero_stage=3) for c in (0.0, 0.1))
    assert slowed[1] == pytest.approx(1.3 * whole[1], rel=0.01)


def test_hybrid_sharding_keeps_the_gathers_inside_the_group():
    link = effective_link(H100.network, IDEAL)
    inside, *outside = link.bandwidth
    link = link._replace(bandwidth=(inside, *(bandwidth / 4.0 for bandwidth in outside)))
    nothing = jnp.asarray(0.0)
    full = data_parallel(*on(LLAMA, plan(dp=64, zero_stage=3), link=link), nothing, nothing)
    hybrid = data_parallel(*on(LLAMA, plan(dp=64, zero_stage=3, shard_group=8), link=link), nothing, nothing)
    assert hybrid.microbatch < 0.7 * full.microbatch
    assert hybrid.step > full.step


@pytest.mark.parametrize("group", [1, 8, 32, 64])
def test_prefetch_takes_only_the_compute_that_it_needs(group: int):
    """The rest hides the reduction between copies: the better the prefetch the faster, and none is as without FSDP."""
    link, plain = effective_link(H100.network, IDEAL), plan(dp=64)
    passes = jnp.asarray(0.1), jnp.asarray(0.2)

    def seconds(layout: Plan, overlap: float) -> float:
        found = data_parallel(*on(LLAMA, layout, ideal(fsdp_overlap=overlap, dp_overlap=0.9), link=link), *passes)
        return float(found.step + found.microbatch)

    times = [seconds(plan(dp=64, zero_stage=3, shard_group=group), overlap) for overlap in np.linspace(0.0, 1.0, 11)]
    assert max(np.diff(times)) < 1e-9
    assert (times[-1] < 0.9 * times[0]) == (group > 1)
    if group == 1:
        assert times == pytest.approx([seconds(plain, 0.0)] * 11, rel=1e-3)


def test_every_microbatch_streams_all_local_weights_whatever_its_size():
    """20 bytes per weight at the memory's bandwidth; sharding of the state over replicas changes nothing."""
    c, weights = ideal(accumulation_bytes=20.0), local_plan(LLAMA, plan()).params
    time = accumulation_time(*on(LLAMA, plan(), c))
    np.testing.assert_allclose(time, 20.0 * weights.layers / H100.chip.hbm_bandwidth, rtol=1e-6)
    head = LLAMA.vocab_size * LLAMA.d_model
    np.testing.assert_allclose(head_accumulation_time(*on(LLAMA, plan(), c)), time * head / weights.layers, rtol=1e-6)
    np.testing.assert_allclose(accumulation_time(*on(LLAMA, plan(micro_batch_size=8), c)), time, rtol=1e-9)
    np.testing.assert_allclose(accumulation_time(*on(LLAMA, plan(dp=8, zero_stage=3), c)), time, rtol=1e-9)
    np.testing.assert_allclose(accumulation_time(*on(LLAMA, plan(tp=4), c)), time / 4.0, rtol=1e-9)
    frozen = as_arrays(model("llama3-8b", trainable_share=0.0))
    assert accumulation_time(*on(frozen, plan(), c)) == 0.0
    assert accumulation_time(*on(LLAMA, plan())) == 0.0


def test_fsdp_copies_what_it_gathers_and_scatters():
    """22 further bytes per weight where a group of replicas shares them; nothing where each holds its own."""
    c, weights = ideal(fsdp_bytes=22.0), local_plan(LLAMA, plan()).params.layers
    assert accumulation_time(*on(LLAMA, plan(dp=8), c)) == 0.0
    assert accumulation_time(*on(LLAMA, plan(zero_stage=3), c)) == 0.0
    for sharers in ({"dp": 8}, {"cp": 8}, {"dp": 2, "cp": 4}):
        shared = accumulation_time(*on(LLAMA, plan(zero_stage=3, **sharers), c))
        np.testing.assert_allclose(shared, 22.0 * 7.0 / 8.0 * weights / H100.chip.hbm_bandwidth, rtol=1e-6)
    frozen = accumulation_time(*on(as_arrays(model("llama3-8b", trainable_share=0.0)), plan(dp=8, zero_stage=3), c))
    np.testing.assert_allclose(frozen, 12.0 * weights / H100.chip.hbm_bandwidth * 7.0 / 8.0, rtol=1e-6)


def test_experts_that_no_rank_shares_are_not_copied():
    """With ep = dp FSDP gathers dense weights alone; in two shard groups of experts both."""
    c, machine = ideal(fsdp_bytes=22.0), H100.chip.hbm_bandwidth
    weights = local_plan(MIXTRAL, plan(dp=8, ep=8)).params
    apart = accumulation_time(*on(MIXTRAL, plan(dp=8, ep=8, zero_stage=3), c))
    np.testing.assert_allclose(apart, 22.0 * 7.0 / 8.0 * weights.layers / machine, rtol=1e-6)
    shared = accumulation_time(*on(MIXTRAL, plan(dp=16, ep=8, zero_stage=3), c))
    expected = 22.0 * (15.0 / 16.0 * weights.layers + 0.5 * weights.experts) / machine
    np.testing.assert_allclose(shared, expected, rtol=1e-6)


def test_more_and_smaller_microbatches_accumulate_more_often():
    c = ideal(accumulation_bytes=20.0, matmul_exposed_bytes=0.0)
    one = step_time(LLAMA, plan(micro_batch_size=4), ONE_H100, c)
    four = step_time(LLAMA, plan(micro_batch_size=1, n_microbatches=4), ONE_H100, c)
    np.testing.assert_allclose(four.matmul, one.matmul, rtol=1e-6)
    np.testing.assert_allclose(four.memory_bound, 4.0 * one.memory_bound, rtol=1e-6)


def test_zero_splits_the_optimizer_step():
    coefficients = ideal(optimizer_bytes=40.0)
    whole = optimizer_time(*on(LLAMA, plan(dp=8), coefficients))
    np.testing.assert_allclose(whole, 40.0 * local_plan(LLAMA, plan()).params.total / 3.35e12, rtol=1e-9)
    np.testing.assert_allclose(optimizer_time(*on(LLAMA, plan(dp=8, zero_stage=1), coefficients)), whole / 8.0)
