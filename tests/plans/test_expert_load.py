"""Load of the hottest rank of experts: closed forms against sums, time and memory that follow, drops and placement."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from jaxscale.base.errors import InputError
from jaxscale.calibration.coefficients import prior_medians
from jaxscale.costs.memory import memory
from jaxscale.costs.step import step_time
from jaxscale.hardware.catalogue import cluster
from jaxscale.models import model
from jaxscale.plans.expert_load import dropped_share, fitted_skew, hottest_load, power_sum, rank_loads
from jaxscale.plans.plan import Plan

MIXTURE, CHIPS, NUMBERS = model("deepseek-v3", n_layers=16), cluster("h100-80gb", 64), prior_medians()
SPREAD = Plan(dp=64, ep=64, zero_stage=1, n_microbatches=4)


def under(**facts) -> Plan:
    return dataclasses.replace(SPREAD, **facts)


def seconds(**facts) -> dict[str, float]:
    times = step_time(MIXTURE, under(**facts), CHIPS, NUMBERS)
    return {"total": float(times.total), **{name: float(term) for name, term in times.terms().items()}}


def peak(**facts) -> float:
    return float(memory(MIXTURE, under(**facts), CHIPS, NUMBERS).total)


@pytest.mark.parametrize("skew", [0.0, 0.3, 1.0, 1.0001, 2.5])
@pytest.mark.parametrize("count", [1, 5, 8, 9, 300])
def test_sums_of_powers(skew, count):
    terms = (0.25 + np.arange(count)) ** -skew
    assert float(power_sum(0.25, count, skew)) == pytest.approx(terms.sum(), rel=1e-5)
    assert float(power_sum(0.3, count, max(skew, 0.1))) < float(power_sum(0.25, count, max(skew, 0.1)))


@pytest.mark.parametrize("skew", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize(("experts", "ranks"), [(8, 8), (64, 8), (256, 64), (256, 1)])
def test_the_hottest_rank_of_a_power_law(skew, experts, ranks):
    """The closed form is the largest of the loads that are added up rank by rank, with and without a capacity."""
    share = np.arange(1.0, experts + 1.0) ** -skew
    share /= share.sum()
    plan = Plan(dp=ranks, ep=ranks, expert_skew=skew)
    assert float(hottest_load(experts, 1, plan)) == pytest.approx(rank_loads(share, ranks).max(), rel=1e-5)
    for capacity in (1.0, 1.25):
        capped = np.minimum(share, capacity / experts)
        held = dataclasses.replace(plan, capacity_factor=capacity)
        load = capped.reshape(-1, ranks).sum(axis=0).max() * ranks
        assert float(hottest_load(experts, 1, held)) == pytest.approx(load, rel=1e-5)
        assert float(dropped_share(experts, held)) == pytest.approx(1.0 - capped.sum(), abs=1e-5)


@pytest.mark.parametrize("skew", [0.3, 0.8, 1.0, 2.0])
@pytest.mark.parametrize(("experts", "ranks"), [(64, 8), (256, 64), (256, 8)])
def test_placement_by_load_is_no_hotter(skew, experts, ranks):
    """Greedy placement against dealing out, and its closed form within 7 % of the greedy rule."""
    share = np.arange(1.0, experts + 1.0) ** -skew
    greedy, dealt = rank_loads(share, ranks, True), rank_loads(share, ranks)
    assert greedy.max() <= dealt.max() and greedy.mean() == pytest.approx(1.0)
    plan = Plan(dp=ranks, ep=ranks, expert_skew=skew, balanced_experts=True)
    assert float(hottest_load(experts, 1, plan)) == pytest.approx(greedy.max(), rel=0.07)
    assert float(hottest_load(experts, 1, plan)) < dealt.max()


def test_equal_experts_change_nothing():
    """Without skew the load is one to the last bit, whatever the degrees; a capacity of one then drops nothing."""
    every: tuple[dict[str, Any], ...] = ({}, {"capacity_factor": 1.0}, {"balanced_experts": True})
    for ep, experts in ((1, 8.0), (3, 24.0), (8, 8.0), (64, 256.0), (7, 1e5)):
        for facts in every:
            assert float(hottest_load(experts, 2.0, Plan(dp=64 * ep, ep=ep, **facts))) == 1.0
    assert float(dropped_share(256.0, under(capacity_factor=1.0))) == 0.0
    assert seconds() == seconds(expert_load=1.0) == seconds(capacity_factor=1.0)
    assert peak() == peak(balanced_experts=True)


def test_more_skew_is_never_faster_and_holds_more():
    steps = [seconds(expert_skew=skew) for skew in (0.0, 0.1, 0.3, 0.6, 1.0)]
    for name in ("total", "matmul", "expert_parallel"):
        values = [step[name] for step in steps]
        assert values == sorted(values) and values[-1] > 1.05 * values[0]
    assert [step["attention"] for step in steps] == [steps[0]["attention"]] * 5
    held = [peak(expert_skew=skew) for skew in (0.0, 0.3, 1.0)]
    assert held == sorted(held) and held[-1] > held[0]
    # Ranks that hold all experts, and dense models, know no skew.
    alone = Plan(dp=64, zero_stage=3)
    dense = model("llama3-8b")
    for shape, plan in ((MIXTURE, alone), (dense, alone)):
        even, skewed = (
            float(step_time(shape, dataclasses.replace(plan, expert_skew=skew), CHIPS, NUMBERS).total)
            for skew in (0.0, 1.0)
        )
        assert skewed == pytest.approx(even, rel=1e-5)


def test_the_hottest_rank_by_hand():
    """Routed matmuls and both exchanges of the hottest rank grow with its load, as far as fixed times allow."""
    even, double, triple = (seconds(expert_load=load)["matmul"] for load in (1.0, 2.0, 3.0))
    assert triple - double == pytest.approx(double - even, rel=1e-3)
    assert peak(expert_load=3.0) - peak(expert_load=2.0) == pytest.approx(
        peak(expert_load=2.0) - peak(expert_load=1.0), rel=1e-3
    )


def test_a_capacity_caps_the_time():
    skewed, capped, even = (
        seconds(**facts)["total"]
        for facts in ({"expert_skew": 1.0}, {"expert_skew": 1.0, "capacity_factor": 1.0}, {"capacity_factor": 1.0})
    )
    assert capped <= even * (1.0 + 1e-6) < skewed
    share = float(dropped_share(256.0, under(expert_skew=1.0, capacity_factor=1.0)))
    loads = np.arange(1.0, 257.0) ** -1.0
    assert share == pytest.approx(1.0 - np.minimum(loads / loads.sum(), 1.0 / 256.0).sum(), abs=1e-5)
    assert 0.4 < share < 0.7
    assert seconds(expert_skew=1.0, balanced_experts=True)["total"] <= skewed


@pytest.mark.parametrize("skew", [0.0, 0.4, 1.0])
def test_slopes(skew):
    """The derivative of the step in the skew against differences; at a skew of 0 against a forward one."""

    def total(value):
        return step_time(MIXTURE, dataclasses.replace(SPREAD, expert_skew=value), CHIPS, NUMBERS).total

    with jax.enable_x64(True):
        low, high = (skew - 1e-5, skew + 1e-5) if skew else (1e-7, 1e-5)
        difference = (float(total(high)) - float(total(low))) / (high - low)
        slope = float(jax.grad(total)(skew))
    assert slope == pytest.approx(difference, rel=1e-3)
    assert slope > 0.0


def test_measured_experts():
    """A skew is found again from counts in any order; more of it from a steeper law."""
    random = np.random.default_rng(0)
    counts = random.permutation(1e6 * np.arange(1.0, 65.0) ** -0.8)
    assert fitted_skew(counts) == pytest.approx(0.8, abs=1e-4)
    assert fitted_skew(np.full(64, 7.0)) == pytest.approx(0.0, abs=1e-4)
    drawn = random.multinomial(100_000, counts / counts.sum())
    assert fitted_skew(drawn) == pytest.approx(0.8, abs=0.02)
    with pytest.raises(InputError, match="expected a divisor"):
        rank_loads(counts, 7)
    with pytest.raises(InputError, match="counts of experts"):
        fitted_skew([-1.0, 2.0])


def test_words_of_a_plan():
    """A plan of its own words is the same plan, with the load of its experts and without."""
    assert Plan(**SPREAD.words()).words() == SPREAD.words()
    assert not SPREAD.words()["capacity_factor"]
    stated = under(expert_skew=0.5, capacity_factor=1.25, balanced_experts=True)
    assert Plan(**stated.words()).words() == stated.words()
    assert stated.words()["capacity_factor"] == 1.25
