"""Choice among modes: a thousand fleets at once, prices, exact against relaxed, gradients, precision."""

import itertools
import time

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxscale.base.arrays import stacked
from jaxscale.islands.fleet import Links, uniform_links
from jaxscale.islands.island_plans import equal_finish, pace_of_rates
from jaxscale.islands.islands_choice import break_even_sweep, price_table
from jaxscale.islands.mode_scores import best_pipeline, candidate_subsets, ring_subset, sub_job, with_scaled_links
from jaxscale.islands.modes import (
    ACTIVATION_BYTES,
    MODES,
    IslandJob,
    loose_plan,
    mode_speed,
    pipeline_step,
    survey_fleets,
)
from jaxscale.islands.round_time import fleet_round, slowest_of

RATES = np.asarray([8e5, 3e5, 5e5, 2e5])


def job_of(bandwidth=1.25e9, count=3, latency=0.03):
    """A job of 7e9 parameters on unequal islands."""
    pace = pace_of_rates(RATES[:count], 4096.0, np.full(count, 0.05), granule=np.full(count, 16.0))
    links = jax.tree.map(np.asarray, uniform_links(count, bandwidth, latency))
    return jax.tree.map(np.asarray, IslandJob(pace, links, 7e9, 32.0, 4096.0, 1024.0))


def test_a_thousand_fleets_in_one_vmap():
    jobs = stacked([with_scaled_links(job_of(count=3), factor) for factor in np.geomspace(1e-3, 1e2, 1000)])
    periods = np.asarray([10.0, 30.0, 100.0, 300.0, 1000.0])
    survey_fleets(jobs, periods)
    started = time.perf_counter()
    table = np.asarray(survey_fleets(jobs, periods))
    assert time.perf_counter() - started < 5.0
    assert table.shape == (1000, len(MODES), 5) and np.isfinite(table).all()
    # Faster links never slow a mode down, and no mode is faster than all islands together.
    assert np.all(np.diff(table, axis=0) >= -1e-9 * table[1:])
    assert np.all(table <= RATES[:3].sum() * (1.0 + 1e-9))
    one = np.asarray(survey_fleets(stacked([job_of()]), periods))[0, MODES.index("local-updates"), 2]
    assert one == pytest.approx(float(mode_speed(job_of(), "local-updates", 100.0)), rel=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_paces_differentiate_in_both_precisions(mode):
    def log_speed(scale, dtype):
        job = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), job_of())
        scaled = with_scaled_links(job, jnp.exp(scale))
        return jnp.log(mode_speed(scaled, mode, jnp.asarray(50.0, dtype)))

    double = jax.value_and_grad(log_speed)(jnp.asarray(0.0), jnp.float64)
    single = jax.value_and_grad(log_speed)(jnp.asarray(0.0, jnp.float32), jnp.float32)
    chex.assert_tree_all_finite((double, single))
    assert float(single[0]) == pytest.approx(float(double[0]), rel=1e-5)
    assert float(single[1]) == pytest.approx(float(double[1]), abs=1e-3)
    ends = [float(log_speed(jnp.asarray(step), jnp.float64)) for step in (1e-4, -1e-4)]
    assert float(double[1]) == pytest.approx((ends[0] - ends[1]) / 2e-4, abs=1e-4)


@pytest.mark.parametrize("mode", ["data-parallel", "local-updates"])
def test_prices_are_gains_with_shares_optimal_again(mode):
    job = job_of(2e8)
    prices = price_table(job, mode, 30.0, None, ("a", "b", "c"))
    for place, name in enumerate("abc"):
        gains = []
        for step in (1e-4, -1e-4):
            slow = np.asarray(job.pace.seconds_per_sequence).copy()
            base = np.asarray(job.pace.base_time).copy()
            slow[place] *= np.exp(-step)
            base[place] *= np.exp(-step)
            pace = type(job.pace)(
                base, job.pace.base_sequences, slow, job.pace.granule, job.pace.microbatch, job.pace.seq_len
            )
            moved = IslandJob(pace, job.links, job.n_params, job.n_layers, job.d_model, job.sequences)
            gains.append(float(jnp.log(mode_speed(moved, mode, 30.0))))
        assert prices["islands"][name] == pytest.approx((gains[0] - gains[1]) / 2e-4, rel=1e-3)
    total = sum(prices["islands"].values()) + sum(prices["links"].values()) - sum(prices["latencies"].values())
    assert total == pytest.approx(1.0, abs=1e-9)


def test_shares_by_gradient_reach_the_closed_form():
    job, temperature = job_of(), 0.01
    optimiser = optax.adam(0.05)

    def smooth_time(logits):
        shares = jax.nn.softmax(logits)
        return slowest_of(job.pace.step(shares * job.sequences), temperature=temperature)

    def step(state, _):
        logits, moments = state
        changes, moments = optimiser.update(jax.grad(smooth_time)(logits), moments)
        return (optax.apply_updates(logits, changes), moments), None

    start = jnp.zeros(3)
    (logits, _), _ = jax.lax.scan(step, (start, optimiser.init(start)), None, length=600)
    finish, given = equal_finish(job.pace.offset, job.pace.seconds_per_sequence, job.sequences)
    assert np.asarray(jax.nn.softmax(logits)) == pytest.approx(np.asarray(given) / 1024.0, abs=2e-3)
    assert float(jnp.max(job.pace.step(jax.nn.softmax(logits) * job.sequences))) == pytest.approx(
        float(finish), rel=5e-3
    )
    equal = float(jnp.max(job.pace.step(jnp.full(3, 1024.0 / 3.0))))
    assert equal > 1.5 * float(finish), "negative control: equal shares are far from it"


@pytest.mark.parametrize("moving", [0.0, 0.5])
def test_a_pipeline_takes_each_stage_once_and_the_slowest_again(moving):
    """64 microbatches of 16 sequences; hops that take a time come once each way, or again where they are slowest."""
    size, share = 16.0, np.asarray([0.2, 0.3, 0.5])
    stages = share * size * 4096.0 / RATES[:3]
    volume = ACTIVATION_BYTES * 4096.0 * size * 4096.0
    job = job_of(volume / moving if moving else 1e30, latency=0.0)
    expected = 0.05 * share.max() + stages.sum() + 2.0 * 2.0 * moving + 63.0 * max(stages.max(), moving)
    assert stages.max() < 0.5
    assert float(pipeline_step(job, share)) == pytest.approx(expected, rel=1e-6)


def brute_pipeline(job, held):
    """Least time of whole layers over all islands, all orders and all cuts [s]."""
    count, depth = len(held), int(job.n_layers)
    best = np.inf
    for order in itertools.permutations(range(count)):
        part = sub_job(job, order)
        for cuts in itertools.combinations(range(1, depth), count - 1):
            layers = np.diff([0, *cuts, depth])
            if np.all(layers <= held[list(order)]):
                best = min(best, float(pipeline_step(part, layers / depth)))
    return best


def test_pipelines_are_exact_against_brute_force():
    draws = np.random.default_rng(9)
    for _ in range(6):
        count, depth = 3, 6
        pace = pace_of_rates(draws.uniform(1e5, 1e6, count), 2048.0, granule=np.full(count, 8.0))
        links = Links(
            draws.uniform(1e7, 1e9, (count, count)), draws.uniform(0.0, 0.05, (count, count)), np.full(count, 1e15)
        )
        job = jax.tree.map(np.asarray, IslandJob(pace, links, 1e9, float(depth), 2048.0, 64.0))
        held = draws.integers(2, depth + 1, count).astype(float)
        found = best_pipeline(job, range(count), held)
        assert found is not None and found.layers.sum() == depth
        assert found.time == pytest.approx(brute_pipeline(job, held), rel=1e-9)
    assert best_pipeline(job, range(count), np.ones(count)) is None


def test_the_ring_avoids_the_slow_link():
    bandwidth = np.full((4, 4), 1e9)
    bandwidth[0, 1] = bandwidth[1, 0] = 1e7
    base = job_of(count=4)
    job = IslandJob(base.pace, Links(bandwidth, base.links.latency, base.links.uplink), 7e9, 32.0, 4096.0, 1024.0)
    order = ring_subset(job, range(4))
    hops = {frozenset(pair) for pair in zip(order, (*order[1:], order[0]), strict=True)}
    assert frozenset((0, 1)) not in hops
    assert len(candidate_subsets(range(4))) == 11 and len(candidate_subsets(range(8))) == 9


def test_a_pipeline_over_the_link_beats_data_parallelism_where_it_moves_less():
    """On slow links the pace is set by bytes: the pipeline wins exactly if B d < N."""
    for sequences, wins in ((128.0, True), (4096.0, False)):
        base = job_of(1e6, count=2, latency=0.0)
        job = IslandJob(base.pace, base.links, 7e9, 32.0, 4096.0, sequences)
        tokens = sequences * 4096.0
        assert (tokens * 4096.0 < 7e9) == wins
        share = jnp.asarray([0.5, 0.5])
        piped = float(job.tokens / pipeline_step(job, share))
        # Gradients in as many bits as activations.
        plan = loose_plan(job, "data-parallel", 1.0)
        halved = 8.0 * ACTIVATION_BYTES / float(plan.bits)
        together = float(mode_speed(with_scaled_links(job, 1.0 / halved), "data-parallel"))
        assert (piped > together) == wins


def test_break_even_is_where_the_fleet_beats_its_best_island():
    job = job_of(1.25e9, count=2)
    periods, alone = [10.0, 100.0, 1000.0], 1.0 / RATES[0]
    sweep = break_even_sweep(job, periods, 1.0, np.ones((2, 3)), alone)
    assert 0.0 < sweep.break_even < 1.25e9
    at = with_scaled_links(job, sweep.break_even / 1.25e9)
    fastest = max(float(mode_speed(at, mode, steps)) for mode in MODES for steps in periods)
    assert fastest == pytest.approx(RATES[0], rel=0.02)
    for gain in sweep.gain.values():
        assert np.all(np.diff(gain) >= -1e-9 * gain[1:])
    never = break_even_sweep(job, periods, 1.0, np.ones((2, 3)), 1e-9 * alone)
    assert np.isinf(never.break_even)


def test_terms_of_a_mode_add_up():
    for mode in ("data-parallel", "local-updates", "streaming"):
        job = job_of()
        plan = loose_plan(job, mode, 50.0)
        terms = fleet_round(job.pace, job.links, plan, n_params=job.n_params, sequences=job.sequences)
        assert sum(float(term) for term in terms.terms().values()) == pytest.approx(float(terms.total), rel=1e-12)
