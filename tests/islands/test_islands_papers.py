"""Published systems as cases of the common equations, one short test each."""

import csv

import jax.numpy as jnp
import numpy as np
import pytest

import jaxscale as js
from jaxscale.islands.fleet import uniform_links
from jaxscale.islands.island_plans import best_shares, equal_finish, pace_of_rates
from jaxscale.islands.pipeline_split import best_cut
from jaxscale.islands.round_time import (
    fleet_round,
    local_updates,
    send_times,
    streaming,
    synchronous,
    tokens_per_second,
)

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


def test_activations_of_a_chain_cross_each_hop_once():
    links = uniform_links(3, 1e8, 0.05)
    hops = send_times(1e7, links)
    assert np.asarray(hops.moving).tolist() == [0.1, 0.1] and np.asarray(hops.waiting).tolist() == [0.05, 0.05]
