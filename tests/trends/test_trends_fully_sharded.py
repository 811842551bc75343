"""Flat rings: the closed form of NCCL, what hybrid sharding and tensor parallelism take off it."""

import jax
import numpy as np
import pytest

from jaxscale.costs.machine import effective_link
from jaxscale.trends.layout import ParallelLayout, layer_gather, memory_at, plan_at
from jaxscale.trends.outcome import best_tensor_degree, scaling_outcomes, weak_scaling


def ring(deployment, layout, n):
    """Latency of one gather of the sharding group [s]."""
    plan = plan_at(deployment.software, layout, n, 2.0 * n)
    gathered = layer_gather(deployment.model, plan, deployment.cluster, deployment.coefficients, 1.0)
    return float(gathered.latency), float(gathered.transfer)


@pytest.mark.parametrize("n, tp", [(64, 1), (2048, 1), (2048, 4), (2048, 8)])
def test_the_latency_is_that_of_a_ring_through_every_chip(paper, n, tp):
    latency, fitted = paper.cluster.network.latency, paper.coefficients
    inside, between = latency[0] * fitted.link_latency_scale, latency[1] * fitted.network_latency_scale
    ranks, domains = n / tp, n / 8
    link = effective_link(paper.cluster.network, paper.coefficients)
    expected = float(link.launch) + (ranks - domains) * inside + (domains - 1.0) * between
    assert ring(paper, ParallelLayout(tp=tp), n)[0] == pytest.approx(expected, rel=1e-9)


def test_latency_falls_with_the_sharding_group_and_transfer_does_not_grow(paper):
    latency, transfer = zip(
        *(ring(paper, ParallelLayout(shard_group=g), 2048.0) for g in (8, 64, 512, 2048)), strict=True
    )
    assert np.all(np.diff(latency) > 0.0)
    assert np.all(np.diff(transfer) >= 0.0)


def test_a_smaller_sharding_group_takes_more_memory(paper):
    peaks = [float(memory_at(paper, ParallelLayout(shard_group=g), 2048.0, 4096.0).total) for g in (8, 64, 2048)]
    assert peaks[0] > peaks[1] > peaks[2]


def test_terms_add_up_and_weak_scaling_keeps_the_work_of_a_chip(paper):
    curve = weak_scaling(paper, [64, 512, 4096], 2.0)
    total = np.sum([np.asarray(term) for term in curve.times.terms().values()], axis=0)
    assert total == pytest.approx(np.asarray(curve.times.total), rel=1e-12)
    assert np.asarray(curve.global_batch_size_seqs) == pytest.approx(2.0 * np.asarray(curve.n_chips))
    assert np.asarray(curve.times.matmul) == pytest.approx(float(curve.times.matmul[0]))
    assert np.all(np.diff(np.asarray(curve.tokens_per_s_per_chip)) < 0.0)
    assert np.all(np.diff(np.asarray(curve.tokens_per_s)) > 0.0)


def test_strong_scaling_divides_the_work(paper):
    chips = np.asarray([64.0, 128.0, 256.0])
    curve = scaling_outcomes(paper, ParallelLayout(), chips, np.full(3, 512.0))
    assert np.asarray(curve.times.attention) * np.asarray(curve.n_chips) == pytest.approx(
        float(curve.times.attention[0]) * 64.0
    )
    assert np.all(np.diff(np.asarray(curve.mfu)) < 0.0)


def test_the_best_degree_leaves_every_replica_a_sequence(paper):
    degree, found = best_tensor_degree(paper, [16.0, 256.0], np.asarray([32.0, 32.0]))
    assert np.all(32.0 * degree / np.asarray([16.0, 256.0]) >= 1.0)
    same = scaling_outcomes(paper, ParallelLayout(tp=degree), np.asarray([16.0, 256.0]), 32.0)
    assert np.asarray(found.mfu) == pytest.approx(np.asarray(same.mfu))
    with pytest.raises(ValueError, match="below one sequence"):
        best_tensor_degree(paper, [1024.0], np.asarray([32.0]))


def test_single_precision_gives_the_same_curve(paper):
    n = [16.0, 512.0, 8192.0]
    exact = np.asarray(weak_scaling(paper, n, 2.0).tokens_per_s)
    with jax.enable_x64(False):
        single = weak_scaling(paper, n, 2.0).tokens_per_s
    assert single.dtype == np.float32
    assert np.asarray(single) == pytest.approx(exact, rel=1e-4)


def test_a_plan_has_the_degrees_of_its_layout_and_takes_the_whole_batch(paper):
    """Degrees that all differ: tp pp cp dp are the chips, m b dp the sequences."""
    layout = ParallelLayout(tp=2, pp=3, cp=5, ep=4, n_microbatches=6, shard_group=8, zero_stage=1)
    plan = plan_at(paper.software, layout, 960.0, 1024.0)
    kept = ("tp", "pp", "cp", "ep", "n_microbatches", "shard_group", "zero_stage")
    assert {name: float(getattr(plan, name)) for name in kept} == {name: getattr(layout, name) for name in kept}
    assert float(plan.tp * plan.pp * plan.cp * plan.dp) == 960.0
    assert float(plan.micro_batch_size * plan.n_microbatches * plan.dp) == pytest.approx(1024.0)
    assert float(plan_at(paper.software, layout, 120.0, 1024.0).shard_group) == 4.0
