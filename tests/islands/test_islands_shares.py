"""Shares of batch and layers among unequal islands: closed forms, exact solvers against brute force, orders."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from jaxscale.base.errors import InputError
from jaxscale.islands.island_plans import best_shares, equal_finish, pace_of_rates, whole_shares
from jaxscale.islands.pipeline_split import (
    best_cut,
    best_order,
    best_permutation,
    divided_at_will,
    least_divided,
    order_cost,
    pipeline_time,
)

ISLANDS = st.lists(st.tuples(st.floats(0.0, 3.0), st.floats(0.01, 1.0)), min_size=1, max_size=5)


@given(ISLANDS, st.floats(1.0, 200.0))
def test_equal_finish_is_the_optimum_of_the_linear_programme(islands, batch):
    offset, slow = (np.asarray(column) for column in zip(*islands, strict=True))
    finish, given_ = equal_finish(offset, slow, batch)
    count = len(slow)
    # Least T with o_i + r_i B_i <= T for islands that work; an island may also stay away, which is its own corner.
    best = np.inf
    for active in itertools.product((False, True), repeat=count):
        if not any(active):
            continue
        chosen = np.asarray(active)
        rows = np.concatenate([np.diag(slow), -np.ones((count, 1))], axis=1)[chosen]
        bounds = [(0.0, None) if on else (0.0, 0.0) for on in active] + [(0.0, None)]
        cost = np.append(np.zeros(count), 1.0)
        done = linprog(
            cost, A_ub=rows, b_ub=-offset[chosen], A_eq=[[*np.ones(count), 0.0]], b_eq=[batch], bounds=bounds
        )
        best = min(best, done.fun)
    assert float(finish) == pytest.approx(best, rel=1e-6)
    assert float(jnp.sum(given_)) == pytest.approx(batch, rel=1e-9)
    working = np.asarray(given_) > 1e-9 * batch
    assert np.asarray(offset + slow * given_)[working] == pytest.approx(float(finish), rel=1e-9)


def test_a_gradient_of_the_optimum_is_a_price():
    """Envelope theorem: the slope of the least time agrees with differences between re-optimised times."""
    offset, slow = jnp.asarray([0.5, 0.1, 0.3]), jnp.asarray([0.02, 0.05, 0.03])
    slopes = jax.grad(lambda numbers: equal_finish(offset, numbers, 100.0)[0])(slow)
    for island in range(3):
        step = 1e-5 * float(slow[island])
        ends = [float(equal_finish(offset, slow.at[island].add(sign * step), 100.0)[0]) for sign in (1.0, -1.0)]
        assert float(slopes[island]) == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-3)


def test_an_island_with_a_long_offset_gets_nothing():
    finish, given_ = equal_finish(jnp.asarray([0.0, 10.0]), jnp.asarray([0.1, 0.001]), 50.0)
    assert (float(finish), float(given_[1])) == (5.0, 0.0)
    assert float(best_shares(pace_of_rates(jnp.asarray([1e3, 1e3]), 1.0), 10.0)[0]) == 0.5


def least_whole(offset, slow, batch):
    """Least time of the slowest island over all whole divisions, by brute force [s]."""
    best = np.inf
    for cuts in itertools.combinations_with_replacement(range(batch + 1), len(slow) - 1):
        given_ = np.diff([0, *cuts, batch])
        best = min(best, np.max(np.where(given_ > 0, offset + slow * given_, 0.0)))
    return best


def test_whole_shares_are_exact_against_brute_force():
    rng = np.random.default_rng(3)
    for _ in range(200):
        count = int(rng.integers(2, 6))
        offset, slow = rng.uniform(0.0, 0.5, count), rng.uniform(0.05, 1.0, count)
        batch = int(rng.integers(1, 13))
        pace = pace_of_rates(1.0 / slow, 1.0, offset)
        given_ = whole_shares(pace, batch)
        assert given_.sum() == batch
        taken = np.max(np.where(given_ > 0, offset + slow * given_, 0.0))
        assert taken == pytest.approx(least_whole(offset, slow, batch), rel=1e-9)


def test_whole_shares_come_in_granules():
    pace = pace_of_rates(np.asarray([3e5, 1e5]), 4096.0, granule=np.asarray([16.0, 8.0]))
    assert whole_shares(pace, 128).tolist() == [96.0, 32.0]
    with pytest.raises(InputError, match="expected at least one sequence"):
        whole_shares(pace, 0)


def least_cut(times, hops, m, held):
    """Least time over all contiguous cuts, by brute force [s]."""
    count, depth = times.shape
    best = np.inf
    for cuts in itertools.combinations(range(1, depth), count - 1):
        ends = [0, *cuts, depth]
        if any(ends[s + 1] - ends[s] > held[s] for s in range(count)):
            continue
        stages = [times[s, ends[s] : ends[s + 1]].sum() for s in range(count)]
        best = min(best, sum(stages) + 2.0 * sum(hops) + (m - 1.0) * max([*stages, *hops]))
    return best


def test_cuts_are_exact_against_brute_force():
    rng = np.random.default_rng(5)
    for _ in range(200):
        count, depth = int(rng.integers(2, 6)), int(rng.integers(6, 10))
        times, hops = rng.uniform(0.1, 1.0, (count, depth)), rng.uniform(0.0, 1.5, count - 1)
        held, m = rng.integers(2, depth + 1, count), float(rng.integers(1, 20))
        if held.sum() < depth:
            continue
        cut = best_cut(times, hops, m, most_layers=held)
        assert cut.layers.sum() == depth and np.all(cut.layers <= held) and np.all(cut.layers >= 1)
        assert cut.time == pytest.approx(least_cut(times, hops, m, held), rel=1e-9)


def test_what_does_not_fit_is_refused():
    with pytest.raises(InputError, match="4 layers do not fit: the islands hold 3"):
        best_cut(np.ones((2, 4)), np.zeros(1), 4.0, most_layers=np.asarray([1, 2]))
    with pytest.raises(InputError, match="2 layers are fewer than 3 islands"):
        best_cut(np.ones((3, 2)), np.zeros(2), 4.0)


@given(st.lists(st.floats(0.1, 5.0), min_size=1, max_size=5), st.floats(1.0, 100.0))
def test_divisible_layers_are_the_optimum_of_the_linear_programme(whole, m):
    slow = np.asarray(whole)
    count = len(slow)
    # Least sum tau_i x_i + (m - 1) u with tau_i x_i <= u, sum x = 1.
    done = linprog(
        np.append(slow, m - 1.0),
        A_ub=np.concatenate([np.diag(slow), -np.ones((count, 1))], axis=1),
        b_ub=np.zeros(count),
        A_eq=[[*np.ones(count), 0.0]],
        b_eq=[1.0],
    )
    time, share = divided_at_will(slow, m)
    assert float(time) == pytest.approx(done.fun, rel=1e-6)
    assert float(pipeline_time(share * slow, jnp.zeros(count - 1), m)) == pytest.approx(done.fun, rel=1e-6)
    assert least_divided(slow, m) == pytest.approx(done.fun, rel=1e-6)


def test_one_microbatch_is_a_latency_and_many_are_a_throughput():
    stages, hops = jnp.asarray([1.0, 3.0, 2.0]), jnp.asarray([0.5, 0.25])
    assert float(pipeline_time(stages, hops, 1.0)) == 6.0 + 1.5
    assert float(pipeline_time(stages, hops, 1e6)) / 1e6 == pytest.approx(3.0, rel=1e-4)
    slow_hop = pipeline_time(stages, jnp.asarray([7.0, 0.25]), 1e6)
    assert float(slow_hop) / 1e6 == pytest.approx(7.0, rel=1e-4)


@pytest.mark.parametrize("goal", ["slowest", "sum"])
@pytest.mark.parametrize("closed", [True, False])
def test_orders_are_exact_against_all_permutations(goal, closed):
    rng = np.random.default_rng(7)
    for count in (2, 3, 4, 5, 6, 7):
        costs = rng.uniform(0.1, 1.0, (count, count))
        best = best_order(costs, goal, closed)
        every = best_permutation(lambda order, costs=costs: order_cost(costs, order, goal, closed), count)
        assert best.exact and sorted(best.order.tolist()) == list(range(count))
        assert best.cost == pytest.approx(every[1])


def test_many_islands_are_ordered_well_and_too_many_for_permutations_refused():
    rng = np.random.default_rng(11)
    costs = rng.lognormal(0.0, 0.5, (16, 16))
    best = best_order(costs)
    assert not best.exact
    assert best.cost <= min(order_cost(costs, rng.permutation(16), "slowest") for _ in range(200))
    with pytest.raises(InputError, match="expected at most 7"):
        best_permutation(lambda order: 0.0, 8)
    with pytest.raises(InputError, match="square matrix"):
        best_order(np.ones((2, 3)))
