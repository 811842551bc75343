"""Rounds of work over islands: identities, elasticities, published bandwidth tables and hours."""

import csv

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxscale as js
from jaxscale.base.units import GBIT, HOUR
from jaxscale.islands.fleet import fleet_of, uniform_links
from jaxscale.islands.island_plans import best_shares, island_paces, pace_of_rates
from jaxscale.islands.round_time import (
    LinkTime,
    fleet_round,
    local_updates,
    required_bandwidth,
    ring_time,
    round_of,
    slowest_of,
    streaming,
    synchronous,
    tokens_per_second,
)

PLANS = (
    js.Plan(dp=32, tp=2, zero_stage=2, micro_batch_size=4, n_microbatches=6, sequence_parallel=True),
    js.Plan(dp=16, tp=4, zero_stage=3, shard_group=4, micro_batch_size=8, n_microbatches=2, sequence_parallel=True),
)


@pytest.fixture(scope="module")
def two():
    """Model, clusters, coefficients and pace of 64 H100 and 64 A100."""
    model, fit = js.model("llama2-7b"), js.load_fit("default")
    clusters = [js.cluster(chip, 64) for chip in ("h100-80gb", "a100-80gb")]
    numbers = [fit.coefficients({"gpu": chip, "precision": "bf16"}) for chip in ("h100-80gb", "a100-80gb")]
    fleet = fleet_of(clusters, uniform_links(2, 1.25e9), ("hopper", "ampere"))
    return model, clusters, numbers, island_paces([model, model], PLANS, fleet.clusters, numbers)


def test_the_pace_is_the_step_time(two):
    model, clusters, numbers, pace = two
    for island, (plan, cluster, coefficients) in enumerate(zip(PLANS, clusters, numbers, strict=True)):
        exact = float(js.step_time(model, plan, cluster, coefficients).total)
        assert float(pace.step(jnp.asarray([768.0, 256.0]))[island]) == pytest.approx(exact, rel=1e-12)
        more = js.Plan(**{**plan.words(), "n_microbatches": plan.n_microbatches * 3.0})
        wanted = float(js.step_time(model, more, cluster, coefficients).total)
        assert float(pace.step(jnp.asarray([2304.0, 768.0]))[island]) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("make", [synchronous, lambda share: local_updates(share, 1.0)])
def test_one_island_has_its_step_time(two, make):
    model, clusters, numbers, pace = two
    plan = make(jnp.ones(1))
    alone = fleet_round(pace.part([0]), uniform_links(1, 1e9), plan, n_params=6.7e9, sequences=768.0)
    exact = float(js.step_time(model, PLANS[0], clusters[0], numbers[0]).total)
    # The same sums; a compiled program may order them otherwise than one operation after another does.
    assert float(alone.total) == pytest.approx(exact, rel=1e-14)
    assert float(alone.utilisation) == 1.0


def test_islands_finish_together_and_the_step_time_confirms_it(two):
    model, clusters, numbers, pace = two
    given = np.asarray(best_shares(pace, 1024.0)) * 1024.0
    times = []
    for plan, cluster, coefficients, sequences in zip(PLANS, clusters, numbers, given, strict=True):
        count = float(sequences / (plan.micro_batch_size * plan.dp))
        whole = js.Plan(**{**plan.words(), "n_microbatches": count})
        times.append(float(js.step_time(model, whole, cluster, coefficients).total))
    assert times[0] == pytest.approx(times[1], rel=1e-7)


@pytest.mark.parametrize("count", [2, 3, 8])
def test_equal_islands_on_endless_links_multiply_the_pace(count):
    links = uniform_links(count, 1e15)
    single = pace_of_rates(jnp.asarray([1e5]), 4096.0)
    pace = pace_of_rates(jnp.full(count, 1e5), 4096.0)
    for plan in (synchronous(jnp.full(count, 1 / count)), local_updates(jnp.full(count, 1 / count), 50.0)):
        time = fleet_round(pace, links, plan, n_params=1e9, sequences=256.0)
        speed = tokens_per_second(pace, plan, time, 256.0)
        assert float(speed) == pytest.approx(count * float(single.tokens_per_s[0]), rel=1e-4)
    slow = fleet_round(
        pace, uniform_links(count, 1e8), synchronous(jnp.full(count, 1 / count)), n_params=1e9, sequences=8.0
    )
    assert float(slow.utilisation) < 0.1


def test_elasticities_in_all_seconds_add_up_to_one():
    # Every time of a round is proportional to seconds of compute, seconds per byte or latency.
    rates, shares = jnp.asarray([3e5, 1e5, 2e5]), jnp.asarray([0.5, 0.2, 0.3])

    def log_time(logs):
        compute, byte, latency = jnp.exp(logs)
        links = uniform_links(3, 1e8 / byte, 0.03 * latency)
        pace = pace_of_rates(rates / compute, 4096.0, offset=0.1 * compute)
        plan = local_updates(shares, 20.0)
        return jnp.log(fleet_round(pace, links, plan, n_params=1e9, sequences=512.0).total)

    elasticities = jax.grad(log_time)(jnp.zeros(3))
    assert float(jnp.sum(elasticities)) == pytest.approx(1.0, abs=1e-9)
    assert float(jnp.min(elasticities)) > 1e-6


def test_terms_add_up_and_hiding_takes_bytes_and_latencies_alike():
    time = round_of(jnp.asarray([3.0, 5.0]), LinkTime(jnp.asarray(2.0), jnp.asarray(1.0)), hidden=1.5, tail=0.25)
    assert float(time.total) == pytest.approx(5.0 + 1.5 + 0.25)
    assert float(time.compute) == 4.0 and float(time.imbalance) == 1.0
    assert float(time.exchange) == pytest.approx(1.0) and float(time.latency) == pytest.approx(0.5)
    hidden = round_of(jnp.asarray([3.0, 5.0]), LinkTime(jnp.asarray(2.0), jnp.asarray(1.0)), hidden=4.0)
    assert float(hidden.total) == 5.0


def test_a_quorum_waits_for_its_number():
    times = jnp.asarray([5.0, 1.0, 3.0])
    assert [float(slowest_of(times, count)) for count in (1.0, 2.0, 2.5, 3.0)] == [1.0, 3.0, 4.0, 5.0]
    assert float(slowest_of(times)) == 5.0
    assert float(slowest_of(times, temperature=0.02)) == pytest.approx(5.0, rel=1e-3)
    slopes = jax.grad(lambda values: slowest_of(values, temperature=0.3))(times)
    assert float(jnp.min(slopes)) > 0.0


def test_a_ring_is_as_slow_as_its_slowest_hop():
    links = uniform_links(4, 1e9, 0.01)
    ring = ring_time(4e9, links)
    assert float(ring.moving) == pytest.approx(2.0 * 3 / 4 * 4.0)
    assert float(ring.waiting) == pytest.approx(6 * 0.01)
    slow = jnp.asarray(links.bandwidth).at[1, 2].set(5e8)
    worse = ring_time(4e9, js.islands.Links(slow, links.latency, links.uplink))
    assert float(worse.moving) == pytest.approx(2.0 * float(ring.moving))
    # A ring that does not use that link is not slowed.
    other = ring_time(4e9, js.islands.Links(slow, links.latency, links.uplink), jnp.asarray([0, 2, 1, 3]))
    assert float(other.moving) == pytest.approx(float(ring.moving))
    assert float(ring_time(4e9, uniform_links(1, 1e9)).total) == 0.0


GRID = np.logspace(-1, 3, 50) * GBIT
"""Bandwidths on which the authors of both tables looked for a utilisation [byte/s]."""


def read(name):
    """Rows of a table of the data folder."""
    with js.data_path(name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def cells(ring_words=16.0):
    """Steps of the grid between computed and published bandwidth, one for each published cell."""
    steps = []
    for row in read("restricted/diloco_required_bandwidth.csv"):
        if not row["required_gbit_per_s"]:
            continue
        method, step = row["method"], float(row["step_time_s"])
        volume, inner = ring_words / 8.0 * float(row["n_params"]), float(row["inner_steps"])
        fragments = float(row["n_layers"]) / 3.0 if method.startswith("streaming") else 1.0
        volume = volume / fragments / (4.0 if method.endswith("fp4") else 1.0)
        hidden = 2.0 / 3.0 * step + (step if "overlap" in method else 0.0)
        tail = volume / float(row["n_layers"]) if method.startswith("data-parallel") else 0.0
        compute = step if method.startswith("data-parallel") else inner * step / fragments
        wanted = float(row["compute_utilisation_percent"]) / 100.0
        found = float(required_bandwidth(volume, compute, wanted, hidden, tail))
        published = int(np.argmin(np.abs(np.log(GRID / (float(row["required_gbit_per_s"]) * GBIT)))))
        steps.append(int(np.searchsorted(GRID, found)) - 1 - published)
    return np.asarray(steps)


def test_bandwidth_tables_follow_without_a_fitted_number():
    steps = cells()
    assert len(steps) == 149
    assert np.mean(np.abs(steps) <= 1) >= 0.95
    assert np.mean(np.abs(cells(ring_words=32.0)) <= 1) < 0.5


def test_a_round_at_the_required_bandwidth_has_the_utilisation():
    for tail in (0.0, 2e8):
        bandwidth = required_bandwidth(1e9, 10.0, 0.9, 0.5, tail)
        body = LinkTime((1e9 - tail) / bandwidth, jnp.zeros(()))
        time = round_of(jnp.asarray([10.0]), body, hidden=0.5, tail=tail / bandwidth)
        assert float(time.utilisation) == pytest.approx(0.9, rel=1e-9)


def simulated_hours(steps, plan, step_time):
    """Hours of a run of 1e9 parameters on a link of 1 Gbit/s between two replicas that each send all of their words."""
    pace = pace_of_rates(jnp.full(2, 1e6 / step_time), 1.0)
    links = uniform_links(2, GBIT)
    time = fleet_round(pace, links, plan, n_params=1e9, sequences=2e6, order=None)
    return float(time.total / plan.period) * steps / HOUR


def test_hours_of_streaming_follow():
    rows = {
        (row["method"][:9], float(row["n_tokens"])): row for row in read("restricted/streaming_diloco_wall_clock.csv")
    }
    for tokens in (25e9, 100e9, 250e9):
        row = rows["data-para", tokens]
        step_time, steps = 0.1, float(row["hours_infinite_bandwidth"]) * HOUR / 0.1
        share = jnp.full(2, 0.5)
        gradients = synchronous(share, bits=16.0)
        # The backward pass of a whole step hides, as each step is one microbatch.
        pace = pace_of_rates(jnp.full(2, 1e6 / step_time), 1.0, granule=1e6)
        time = fleet_round(pace, uniform_links(2, GBIT), gradients, n_params=1e9, sequences=2e6)
        assert float(time.total) * steps / HOUR == pytest.approx(float(row["hours_1_gbit_per_s"]), rel=0.05)
        if ("streaming", tokens) not in rows:
            continue
        streamed = streaming(share, 100.0, 8.0, hidden_steps=1.0 + 2.0 / 3.0, bits=4.0)
        hours = simulated_hours(steps, streamed, step_time)
        assert hours == pytest.approx(float(rows["streaming", tokens]["hours_1_gbit_per_s"]), rel=0.05)
        waiting = simulated_hours(steps, streaming(share, 100.0, 8.0, hidden_steps=0.0, bits=16.0), step_time)
        assert waiting > 1.3 * float(rows["streaming", tokens]["hours_1_gbit_per_s"])
