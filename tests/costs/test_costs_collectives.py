"""Collectives against their closed forms."""

from math import comb

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from registry import ideal_coefficients

from jaxscale.costs.collectives import dispatch_time, gather_time, ranks_per_level, reduce_time, send_time
from jaxscale.costs.machine import Link, effective_link
from jaxscale.hardware.cluster import Network

VOLUME = 1e9
MANY = 1e12  # experts, so many that those of a token differ anyway
powers = st.sampled_from([1.0, 2.0, 4.0, 8.0, 16.0, 64.0, 512.0, 4096.0])


def link(
    sizes: tuple[float, ...] = (8.0, 256.0, 1e12),
    bandwidth: tuple[float, ...] = (400e9, 50e9, 25e9),
    latency: tuple[float, ...] = (1e-6, 5e-6, 20e-6),
    link_peers: float = 1.0,
) -> Link:
    """A network of three levels whose launches cost nothing."""
    network = Network(np.asarray(sizes), np.asarray(bandwidth), np.asarray(latency), link_peers)
    return effective_link(network, ideal_coefficients())


@given(n=powers, stride=powers)
def test_ranks_of_all_levels_multiply_to_the_group(n: float, stride: float):
    ranks = [float(rank) for rank in ranks_per_level(n, stride, link(), 0.0)]
    assert np.prod(ranks) == n
    assert all(rank >= 1.0 for rank in ranks)
    assert ranks[0] == min(max(8.0 / stride, 1.0), n)


@given(n=powers, stride=powers, temperature=st.sampled_from([0.01, 0.1]))
def test_smooth_ranks_multiply_to_the_group_and_stay_near(n: float, stride: float, temperature: float):
    exact = np.asarray(ranks_per_level(n, stride, link(), 0.0))
    smooth = np.asarray(ranks_per_level(n, stride, link(), temperature))
    assert np.prod(smooth) == pytest.approx(n, rel=1e-9)
    assert np.abs(np.log(smooth / exact)).max() <= (2.0 + 2.0 * np.log(4096.0)) * temperature
    if n == 1.0:
        np.testing.assert_array_equal(smooth, 1.0)


@given(n=powers)
def test_ring_latency_is_one_hop_per_further_rank(n: float):
    one_level = link(sizes=(1e12, 1e12, 1e12))
    assert float(gather_time(0.0, n, 1.0, one_level)) == pytest.approx((n - 1.0) * 1e-6, rel=1e-9)
    assert float(dispatch_time(0.0, 2.0, MANY, n, 1.0, one_level)) == pytest.approx((n - 1.0) * 1e-6, rel=1e-9)


@given(n=powers)
def test_ring_bandwidth_moves_all_but_one_share(n: float):
    one_level = link(sizes=(1e12, 1e12, 1e12), latency=(0.0, 0.0, 0.0))
    expected = VOLUME * (n - 1.0) / n / 400e9
    assert float(gather_time(VOLUME, n, 1.0, one_level)) == pytest.approx(expected, rel=1e-9)
    assert float(dispatch_time(VOLUME, 1.0, 64.0, n, 1.0, one_level)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("n", [2.0, 4.0, 8.0])
def test_groups_without_a_switch_use_the_links_between_their_members(n: float):
    """Each of n chips has n - 1 of its 7 links within the group, and sends to one of them over one."""
    mesh, switch = (link(latency=(0.0, 0.0, 0.0), link_peers=peers) for peers in (7.0, 1.0))
    for collective in (gather_time, reduce_time):
        inside, through = (float(collective(VOLUME, n, 1.0, network)) for network in (mesh, switch))
        assert inside == pytest.approx(through * 7.0 / (n - 1.0))
    exchange = [float(dispatch_time(VOLUME, 1.0, MANY, n, 1.0, network)) for network in (mesh, switch)]
    assert exchange[0] == pytest.approx(exchange[1] * 7.0 / (n - 1.0))
    assert float(send_time(VOLUME, 1.0, n, mesh)) == pytest.approx(7.0 * VOLUME / 400e9)
    assert float(gather_time(VOLUME, 512.0, 8.0, mesh)) == pytest.approx(float(gather_time(VOLUME, 512.0, 8.0, switch)))


@given(n=powers, stride=powers)
def test_levels_of_equal_bandwidth_are_one_flat_ring(n: float, stride: float):
    assume(n > 1.0)
    flat = link(bandwidth=(100e9, 100e9, 100e9), latency=(0.0, 0.0, 0.0))
    expected = VOLUME * (n - 1.0) / n / 100e9
    assert float(gather_time(VOLUME, n, stride, flat)) == pytest.approx(expected, rel=1e-9)
    faster = link(bandwidth=(200e9, 200e9, 200e9), latency=(0.0, 0.0, 0.0))
    assert float(gather_time(VOLUME, n, stride, faster)) == pytest.approx(expected / 2.0, rel=1e-9)


def test_two_levels_by_hand():
    """64 ranks, 8 per node: 63/64 of V inside, an eighth of it between the nodes over each rank's own link.

    Of the 63 hops of the ring 7 are between nodes (NCCL, tuning.cc: intra steps = steps - inter steps).
    """
    slow = link(bandwidth=(400e9, 20e9, 10e9))
    expected = 56e-6 + 7 * 5e-6 + 63.0 / 64.0 * VOLUME / 8.0 / 20e9
    assert float(gather_time(VOLUME, 64.0, 1.0, slow)) == pytest.approx(expected, rel=1e-9)
    fast = link(bandwidth=(400e9, 100e9, 100e9))
    assert float(gather_time(VOLUME, 64.0, 1.0, fast)) == pytest.approx(91e-6 + 63.0 / 64.0 * VOLUME / 400e9, rel=1e-9)


@given(n=powers, stride=powers)
def test_an_all_reduce_moves_as_much_as_a_scatter_and_a_gather(n: float, stride: float):
    free = link(latency=(0.0, 0.0, 0.0))
    twice = 2.0 * float(gather_time(VOLUME, n, stride, free))
    assert float(reduce_time(VOLUME, n, stride, free)) == pytest.approx(twice, rel=1e-9)


@pytest.mark.parametrize(
    ("nodes", "inside", "between"), [(1, 7.0, 0.0), (2, 14.0, 1.0), (4, 7.0, 4.64), (31, 7.0, 10.0), (1023, 7.0, 20.0)]
)
def test_an_all_reduce_takes_rings_of_few_nodes_and_trees_of_many(nodes: int, inside: float, between: float):
    """Two passes; a ring runs through every node, a tree through one, with two hops per level of 1, 3, 7, ... nodes."""
    network = link(sizes=(8.0, 1e12, 1e12))
    expected = 2.0 * (inside * 1e-6 + between * 5e-6)
    assert float(reduce_time(0.0, 8.0 * nodes, 1.0, network)) == pytest.approx(expected, rel=1e-3)
    smooth = float(reduce_time(0.0, 8.0 * nodes, 1.0, network, 0.01))
    assert smooth == pytest.approx(expected, rel=0.2)


def test_tokens_cross_the_network_once_per_node_by_hand():
    """Of 64 ranks in 8 nodes, a token with 8 experts reaches 64 (1 - (63/64)^8) ranks in 8 (1 - (7/8)^8) nodes."""
    inside = VOLUME * 64.0 * (1.0 - (63.0 / 64.0) ** 8) * 7.0 / 8.0 / 400e9
    between = VOLUME * 8.0 * (1.0 - (7.0 / 8.0) ** 8) * 7.0 / 8.0 / 50e9
    time = float(dispatch_time(VOLUME, 8.0, MANY, 64.0, 1.0, link()))
    assert time == pytest.approx(42e-6 + inside + between, rel=1e-6)
    assert time < 8.0 * float(dispatch_time(VOLUME, 1.0, MANY, 64.0, 1.0, link()))


@pytest.mark.parametrize(("copies", "experts"), [(2, 8), (4, 16), (8, 128), (1, 16), (22, 512)])
@pytest.mark.parametrize("n", [2, 8])
def test_the_experts_of_a_token_differ(copies: int, experts: int, n: int):
    """The hypergeometric law: all k miss the E / n experts of a rank in C(E - E / n, k) of C(E, k) ways."""
    flat = link(sizes=(1e12, 1e12, 1e12), latency=(0.0, 0.0, 0.0))
    reached = 1.0 - comb(experts - experts // n, copies) / comb(experts, copies)
    time = float(dispatch_time(VOLUME, float(copies), float(experts), float(n), 1.0, flat))
    assert time == pytest.approx(VOLUME * (n - 1.0) * reached / 400e9, rel=6e-3)
    if copies > 1:
        assert time > float(dispatch_time(VOLUME, float(copies), MANY, float(n), 1.0, flat))


@given(n=powers, copies=st.sampled_from([1.0, 2.0, 8.0]))
def test_more_experts_per_token_cost_more_until_every_rank_is_reached(n: float, copies: float):
    assume(n > 1.0)
    flat = link(sizes=(1e12, 1e12, 1e12), latency=(0.0, 0.0, 0.0))
    times = [float(dispatch_time(VOLUME, k, MANY, n, 1.0, flat)) for k in (copies, 2.0 * copies, 1e9)]
    assert times[0] < times[1] or times[1] == pytest.approx(times[2])
    assert times[2] == pytest.approx(VOLUME * (n - 1.0) / 400e9)


def test_stride_pushes_ranks_out_of_the_domain():
    ranks = [[float(r) for r in ranks_per_level(8.0, stride, link(), 0.0)] for stride in (1.0, 2.0, 8.0, 256.0)]
    assert ranks == [[8, 1, 1], [4, 2, 1], [1, 8, 1], [1, 1, 8]]


@pytest.mark.parametrize("temperature", [0.0, 0.02])
@pytest.mark.parametrize(
    "collective", [gather_time, reduce_time, lambda volume, *rest: dispatch_time(volume, 8.0, 128.0, *rest)]
)
def test_one_rank_costs_nothing(collective, temperature: float):
    assert float(collective(VOLUME, 1.0, 4.0, link(), temperature)) == pytest.approx(0.0, abs=1e-14)
    assert float(collective(VOLUME, 2.0, 4.0, link(), temperature)) > 0.0


@pytest.mark.parametrize(("stride", "stages"), [(4, 8), (4, 16), (8, 8), (2, 64)])
def test_a_chain_over_a_spine_is_the_mean_of_its_hops(stride: int, stages: int):
    """Each chip sends to the one `stride` further on, over the lowest level that both share."""
    sizes = (8, 16, 10**12)
    spine = link(sizes=tuple(map(float, sizes)), latency=(0.0, 0.0, 0.0))
    senders = range(stride * (stages - 1))
    levels = [next(k for k, size in enumerate(sizes) if chip // size == (chip + stride) // size) for chip in senders]
    expected = np.mean([VOLUME / float(spine.bandwidth[level]) for level in levels])
    assert len(set(levels)) > 1
    assert float(send_time(VOLUME, float(stride), float(stages), spine)) == pytest.approx(expected, rel=1e-9)


def test_launches_count_once_per_collective():
    network = Network(np.asarray([8.0, 256.0, 1e12]), np.full(3, 1e30), np.zeros(3))
    launching = effective_link(network, ideal_coefficients(collective_launch=1e-5))
    times = [float(gather_time(VOLUME, n, 1.0, launching)) for n in (1.0, 2.0, 512.0)]
    assert times == pytest.approx([0.0, 1e-5, 1e-5], abs=1e-15)


def test_a_send_takes_the_link_it_crosses():
    inside, node, far = 1e-6 + VOLUME / 400e9, 5e-6 + VOLUME / 50e9, 20e-6 + VOLUME / 25e9
    assert float(send_time(VOLUME, 1.0, 8.0, link())) == pytest.approx(inside)  # all stages in one domain
    assert float(send_time(VOLUME, 8.0, 8.0, link())) == pytest.approx(node)  # every stage fills a domain
    # Sixteen chips in domains of eight: one of the three pairs of neighbouring stages is split.
    assert float(send_time(VOLUME, 4.0, 4.0, link())) == pytest.approx(2.0 / 3.0 * inside + node / 3.0)
    assert float(send_time(VOLUME, 1e9, 4.0, link())) == pytest.approx(far)


@pytest.mark.parametrize(("stride", "stages"), [(1.0, 8.0), (8.0, 8.0), (4.0, 4.0), (64.0, 16.0)])
def test_a_smooth_send_is_near_the_exact_one(stride, stages):
    exact, smooth = (float(send_time(VOLUME, stride, stages, link(), t)) for t in (0.0, 0.01))
    assert smooth == pytest.approx(exact, rel=0.1)
