"""Published systems as cases of the common equations, one short test each."""

import csv
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import jaxscale as js
from jaxscale.base.errors import InputError
from jaxscale.islands.batch_shares import best_shares, equal_finish
from jaxscale.islands.exchange import LinkTime, ring_time, send_times
from jaxscale.islands.fleet import uniform_links
from jaxscale.islands.loose import local_updates, streaming, synchronous
from jaxscale.islands.pace import pace_of_rates
from jaxscale.islands.papers.partitioned_learning import best_partition
from jaxscale.islands.papers.published_exchanges import (
    compression_ratios,
    graph_cut_words,
    local_loss_time,
    subnetwork_compute,
    subnetwork_exchange,
    subnetwork_plan,
)
from jaxscale.islands.pipeline_split import best_cut, pipeline_time
from jaxscale.islands.placement import best_placement, placement_cost
from jaxscale.islands.round_time import fleet_round, round_of, tokens_per_second

SHARES = jnp.asarray([0.5, 0.5])
PACE = pace_of_rates(jnp.asarray([2e5, 2e5]), 2048.0, granule=4.0)


def speed(plan, links, n_params=1e9):
    """Tokens per second of two equal islands [token/s]."""
    return float(
        tokens_per_second(PACE, plan, fleet_round(PACE, links, plan, n_params=n_params, sequences=128.0), 128.0)
    )


def test_synchronous_training_is_local_updates_of_one_step_that_hide_nothing():
    links = uniform_links(2, 1e8, 0.01)
    assert speed(synchronous(SHARES, hidden_backward=0.0), links) == pytest.approx(
        speed(local_updates(SHARES, 1.0), links)
    )
    assert speed(synchronous(SHARES), links) > speed(local_updates(SHARES, 1.0), links)


def test_adaptive_batches_settle_where_islands_finish_together():
    """Batches that follow update counts, b_i += beta (u_i - mean u), come to rest at the closed form."""
    offset, slow = np.asarray([0.2, 0.1, 0.4]), np.asarray([0.01, 0.03, 0.02])
    batch = np.full(3, 60.0)
    for _ in range(4000):
        updates = 1.0 / (offset + slow * batch)
        batch = batch + 2.0 * (updates - updates.mean())
        batch *= 180.0 / batch.sum()
    finish, given = equal_finish(offset, slow, 180.0)
    assert batch == pytest.approx(np.asarray(given), rel=1e-4)
    assert float(finish) == pytest.approx(float(np.max(offset + slow * batch)), rel=1e-4)


def test_partitioned_learning_fills_bandwidth_like_water():
    draws = np.random.default_rng(2)
    for case in range(12):
        compute, send = draws.uniform(0.5, 5.0, 4), draws.uniform(0.1, 3.0, 4)
        fixed = draws.uniform(0.0, 0.2, 4) * (case % 2)
        found = best_partition(compute, send, fixed)
        # The same problem by sequential quadratic programming over x, r and T.
        start = np.concatenate([np.asarray(found.param_share), np.asarray(found.bandwidth_share)]) * 0.9 + 0.025
        done = minimize(
            lambda z: z[8],
            np.append(start, 1.5 * float(found.time)),
            constraints=[
                {"type": "eq", "fun": lambda z: np.asarray([z[:4].sum() - 1.0, z[4:8].sum() - 1.0])},
                {"type": "ineq", "fun": lambda z, a=compute, c=send, o=fixed: z[8] - o - z[:4] * (a + c / z[4:8])},
            ],
            bounds=[(0.0, 1.0)] * 4 + [(1e-9, 1.0)] * 4 + [(0.0, None)],
            method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 2000},
        )
        assert float(found.time) == pytest.approx(done.fun, rel=1e-6)


def test_times_of_partitioned_learning_have_elasticities_that_add_up_to_one():
    compute, send, fixed = (jnp.asarray(x) for x in ([1.0, 2.0, 4.0], [0.5, 0.2, 0.9], [0.1, 0.05, 0.2]))

    def log_time(logs):
        return jnp.log(
            best_partition(compute * jnp.exp(logs[0]), send * jnp.exp(logs[1]), fixed * jnp.exp(logs[2])).time
        )

    slopes = jax.grad(log_time)(jnp.zeros((3, 3)))
    assert float(jnp.sum(slopes)) == pytest.approx(1.0, abs=1e-5)
    without = best_partition(compute, send)
    rate = jnp.sum(without.bandwidth_share / (compute * without.bandwidth_share + send))
    assert float(without.time) == pytest.approx(1.0 / float(rate), rel=1e-6)


def test_local_updates_divide_traffic_by_their_steps():
    links = uniform_links(2, 1e7)
    exchange = [
        fleet_round(PACE, links, local_updates(SHARES, steps), n_params=1e9, sequences=128.0).exchange
        for steps in (10.0, 100.0)
    ]
    assert float(exchange[0]) == pytest.approx(float(exchange[1]))
    times = [
        1.0 / speed(local_updates(SHARES, steps), links) - 1.0 / speed(local_updates(SHARES, 1e12), links)
        for steps in (10.0, 100.0)
    ]
    assert times[0] == pytest.approx(10.0 * times[1], rel=1e-6)


def test_streaming_has_the_traffic_of_local_updates_and_hides_it():
    links = uniform_links(2, 1e7)
    bare = streaming(SHARES, 100.0, 10.0, hidden_steps=0.0, bits=32.0)
    assert speed(bare, links) == pytest.approx(speed(local_updates(SHARES, 100.0), links), rel=1e-9)
    assert speed(streaming(SHARES, 100.0, 10.0, hidden_steps=2.0, bits=32.0), links) > speed(bare, links)
    all_hidden = streaming(SHARES, 100.0, 10.0, hidden_steps=1e3, bits=4.0)
    assert speed(all_hidden, uniform_links(2, 1e9)) == pytest.approx(float(jnp.sum(PACE.tokens_per_s)), rel=1e-9)


def test_local_losses_have_no_bubble():
    stages, hops = jnp.asarray([1.0, 2.0, 1.5]), jnp.asarray([0.1, 0.1])
    whole = pipeline_time(stages, hops, 8.0)
    assert float(local_loss_time(stages, hops, 8.0)) == 16.0 < float(whole)
    assert float(whole) - 16.0 == pytest.approx(1.0 + 1.5 + 2.0 * 0.2)
    assert float(local_loss_time(stages, hops, 8.0, head=0.25)) == 20.0


def test_subnetworks_exchange_their_part_alone():
    links, share = uniform_links(4, 1e8), jnp.full(4, 0.25)
    whole = ring_time(4e9, links).total
    part = subnetwork_exchange(subnetwork_plan(share, share, 50.0), links, 1e9).total
    # x N each way over a link instead of 2 (P - 1) / P N round a ring.
    assert float(part) / float(whole) == pytest.approx(2.0 * 0.25 / (2.0 * 3 / 4))
    assert float(subnetwork_compute(0.25)) == 0.25**2 and float(subnetwork_compute(0.25, 0.0)) == 0.25


def test_a_vertex_cut_sends_its_clones():
    words = graph_cut_words(1e6, 128.0, 2.94, 8.0)
    assert float(words) == pytest.approx(2.0 * 1.94 * 1e6 * 128.0 / 8.0)
    assert float(graph_cut_words(1e6, 128.0, 1.0, 8.0)) == 0.0
    assert float(graph_cut_words(1e6, 128.0, 2.94, 8.0, delay=5.0)) == pytest.approx(float(words) / 5.0)
    rising = [float(graph_cut_words(1e6, 128.0, factor, 8.0)) for factor in (1.5, 2.0, 4.0)]
    assert rising == sorted(rising)
    # A delayed exchange hides behind the epochs until the next one.
    epoch, exchange = jnp.asarray([3.0, 3.0]), LinkTime(jnp.asarray(5.0), jnp.asarray(0.0))
    assert float(round_of(epoch, exchange).total) == 8.0
    assert float(round_of(5.0 * epoch, exchange, hidden=15.0).total) / 5.0 == 3.0


def test_compression_follows_the_pace_of_the_pipeline():
    hops, pace = jnp.asarray([0.2, 1.0, 10.0, 40.0]), 2.0
    ratios = compression_ratios(hops, pace)
    assert ratios.tolist() == [1.0, 1.0, 15.0, 60.0]
    assert float(jnp.max(jnp.where(ratios > 1.0, 3.0 * hops / ratios, hops))) <= pace
    # A smaller ratio on a slow hop would set the pace.
    assert 3.0 * float(hops[2]) / (0.9 * float(ratios[2])) > pace


def test_an_uneven_batch_uses_the_slack_of_fast_cards():
    with js.data_path("restricted/timm_uneven_batch.csv").open(encoding="utf-8") as file:
        even, uneven = (float(row["images_per_s"]) for row in csv.DictReader(file))
    # The slow cards set the pace: 200 images each in the time that the fast ones take for 300.
    step = 800.0 / even
    pace = pace_of_rates(jnp.asarray([300.0, 300.0, 200.0, 200.0]) / step, 1.0)
    share = best_shares(pace, 1000.0)
    assert share.tolist() == pytest.approx([0.3, 0.3, 0.2, 0.2])
    assert 1000.0 / float(jnp.max(pace.step(share * 1000.0))) == pytest.approx(uneven, rel=0.05)


def test_layers_by_bandwidth_beat_layers_by_capacity():
    with js.data_path("restricted/exo_nodes.csv").open(encoding="utf-8") as file:
        nodes = [(float(row["ram_gb"]), float(row["stream_triad_gb_per_s"])) for row in csv.DictReader(file)]
    memory, bandwidth = np.asarray(nodes).T
    per_layer = np.repeat(1e3 / bandwidth[:, None], 40, axis=1)  # milliseconds of 1 GB of weights
    capacity = np.round(40 * memory / memory.sum())
    assert np.max(capacity * per_layer[:, 0]) == pytest.approx(34.88, abs=0.01)
    hops = np.zeros(4)
    # Many microbatches: the slowest stage is all that counts. Without hops the order does not matter.
    slowest = best_cut(per_layer, hops, 1e9).time / 1e9
    assert slowest == pytest.approx(29.07, abs=0.01)
    assert 40.0 / bandwidth.sum() * 1e3 == pytest.approx(27.66, abs=0.01)
    assert 40 * per_layer.min() == pytest.approx(113.9, abs=0.05)
    assert np.sum(capacity * per_layer[:, 0]) == pytest.approx(132.6, abs=0.3)


def test_placement_is_exact_for_few_nodes_and_avoids_slow_links():
    draws = np.random.default_rng(4)
    for pipelines, count in ((1, 6), (2, 6), (3, 6), (2, 4)):
        bandwidth = draws.lognormal(0.0, 0.6, (count, count)) * 1e9
        best = best_placement(bandwidth, pipelines, 1e8, 1e9)
        orders = (np.asarray(order).reshape(pipelines, -1) for order in itertools.permutations(range(count)))
        assert best.exact
        assert best.cost == pytest.approx(min(placement_cost(bandwidth, nodes, 1e8, 1e9) for nodes in orders))
    bandwidth = draws.lognormal(0.0, 0.6, (12, 12)) * 1e9
    best = best_placement(bandwidth, 3, 1e8, 1e9)
    chance = [placement_cost(bandwidth, draws.permutation(12).reshape(3, -1), 1e8, 1e9) for _ in range(300)]
    assert not best.exact and best.cost < min(chance)
    with pytest.raises(InputError, match="do not divide"):
        best_placement(bandwidth, 5, 1e8, 1e9)


def test_activations_of_a_chain_cross_each_hop_once():
    links = uniform_links(3, 1e8, 0.05)
    hops = send_times(1e7, links)
    assert np.asarray(hops.moving).tolist() == [0.1, 0.1] and np.asarray(hops.waiting).tolist() == [0.05, 0.05]
