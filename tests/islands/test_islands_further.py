"""Modes of published systems: their penalties, their times as limits of known ones, what is not published."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxscale as js
from jaxscale.base.errors import InputError
from jaxscale.islands.choose_fleet import best_fleet_plan
from jaxscale.islands.fleet import fleet_of, read_fleet, uniform_links
from jaxscale.islands.further_modes import gradient_delay, published_modes, tokens_factor
from jaxscale.islands.pipeline_split import PLAIN, ChainWay, pipeline_time

MODES = published_modes()
STAGES, HOPS, WAITS = np.asarray([0.02, 0.03, 0.025]), np.asarray([0.05, 0.01]), np.asarray([1e-3, 2e-3])


@pytest.mark.parametrize(("mode", "factor"), [("asynchronous", 5.81), ("asynchronous-rotated", 1.27)])
def test_late_gradients_cost_the_published_steps_at_32_stages_and_none_at_one(mode, factor):
    assert float(tokens_factor(MODES[mode], gradient_delay(32))) == pytest.approx(factor, rel=1e-3)
    assert float(tokens_factor(MODES[mode], gradient_delay(1))) == 1.0
    assert float(gradient_delay(32)) == pytest.approx(32 / math.sqrt(3.0), rel=0.03)


def test_with_many_microbatches_in_an_update_gradients_are_one_update_late():
    delays = [float(gradient_delay(8, count)) for count in (1, 2, 4, 8, 64)]
    assert delays == sorted(delays, reverse=True)
    assert delays[-1] == delays[-2] == pytest.approx(math.sqrt(7 / 8))


def test_one_update_late_lies_between_the_published_losses_of_two_optimisers():
    """10e9 parameters, 200e9 tokens: 0.005 nats later with Muon, more than 0.2 with AdamW (arXiv 2606.30634)."""
    law, tokens = js.laws.loss_law(), 200e9
    factor = tokens_factor(MODES["asynchronous"], 1.0)
    rise = float(law.loss(10e9, tokens / factor) - law.loss(10e9, tokens))
    assert 0.005 < rise < 0.2


def test_subnetworks_cost_the_published_steps():
    found = [float(tokens_factor(MODES["subnetworks"], count)) for count in (2.0, 4.0)]
    assert found == pytest.approx([1.32 / 1.25, 1.31 / 1.02], abs=0.01)


def test_factors_differentiate_where_nothing_is_late():
    for x in (0.0, 1.0, 30.0):
        slope = jax.grad(lambda x: tokens_factor(MODES["subnetworks"], x))(jnp.asarray(x))
        assert np.isfinite(float(slope)) and float(slope) >= 0.0


def test_the_plain_way_is_the_pipeline_and_one_that_never_waits_its_slowest_stage():
    for count in (1.0, 4.0, 64.0):
        plain = float(pipeline_time(STAGES, HOPS, count, WAITS))
        assert PLAIN.time(STAGES, HOPS, count, WAITS) == pytest.approx(plain)
        late = ChainWay(waits=False).time(STAGES, HOPS, count, WAITS)
        assert late == pytest.approx(count * 0.05) and late < plain
        # Local losses send nothing back, synthetic labels nothing at all.
        forward = ChainWay(backward_words=0.0).time(STAGES, HOPS, count, WAITS)
        assert plain - forward == pytest.approx(HOPS.sum() + WAITS.sum())
        assert ChainWay(False, 0.0, 0.0).time(STAGES, HOPS, count, WAITS) == pytest.approx(count * 0.03)


def test_a_link_sends_as_much_as_does_not_hold_up_a_stage():
    way = ChainWay(least_words=0.25)
    assert way.sent(STAGES, HOPS) == pytest.approx([0.6, 1.0])
    assert way.sent(STAGES, 10.0 * HOPS) == pytest.approx([0.25, 0.3])
    times = [way.time(STAGES, scale * HOPS, 64.0, WAITS) for scale in (0.1, 1.0, 10.0)]
    assert times == sorted(times) and times[2] < PLAIN.time(STAGES, 10.0 * HOPS, 64.0, WAITS)


def test_stages_in_a_row_win_without_waiting_only_below_a_number_of_microbatches():
    """The bubble (P - 1) / m is worth more than c tau below some m."""
    stages, none = np.full(8, 0.02), np.zeros(7)
    worth = []
    for count in (1.0, 2.0, 4.0, 16.0, 64.0):
        saved = PLAIN.time(stages, none, count, none) / ChainWay(waits=False).time(stages, none, count, none)
        worth.append(saved / float(tokens_factor(MODES["asynchronous"], gradient_delay(8, count))))
    assert worth[0] > 1.0 > worth[-1]


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"synthetic.factor": 1.2}, "did you mean synthetic-labels"),
        ({"compressed.words_sent": 1.0}, "no such number"),
        ({"synthetic-labels.factor": 0.9}, "expected 1 to"),
        ({"compressed.least_words": 0.0}, "out of range"),
        ({"local-losses.factor": 1.1}, "table of errors"),
    ],
)
def test_what_cannot_be_stated_is_refused(stated, message):
    with pytest.raises(InputError, match=message):
        published_modes(stated)


@pytest.fixture(scope="module")
def choice():
    def of(bandwidth, stated=None):
        fleet = fleet_of([js.cluster("h100-80gb", 8)] * 2, uniform_links(2, bandwidth, 1e-3))
        return best_fleet_plan(js.model("gpt2-xl"), fleet, 256, modes=stated)

    return of


def test_unpublished_penalties_give_a_pace_and_days_where_they_are_stated(choice):
    plain, told = choice(1.25e8), choice(1.25e8, {"synthetic-labels.factor": 1.2, "sub-models.factor": 1.5})
    before, after = ({mode.mode: mode for mode in one.further} for one in (plain, told))
    assert before["synthetic-labels"].days is None and before["sub-models"].days is None
    assert after["synthetic-labels"].factor == pytest.approx(1.2) and after["sub-models"].factor == pytest.approx(1.5)
    assert after["synthetic-labels"].days is not None
    assert after["synthetic-labels"].tokens_per_s == before["synthetic-labels"].tokens_per_s
    # The ranking does not know them.
    assert plain.best == told.best and {mode.mode for mode in plain.modes}.isdisjoint(before)
    days = [mode.days for mode in plain.further if mode.days is not None]
    assert days == sorted(days)
    pipeline = next(mode for mode in plain.modes if mode.mode == "pipeline")
    assert before["compressed"].tokens_per_s > pipeline.tokens_per_s and before["compressed"].words < 1.0
    assert before["asynchronous"].tokens_per_s >= pipeline.tokens_per_s
    # Parts of the network that send nothing are as fast as both islands on half of the work.
    fastest = sum(mode.tokens_per_s for mode in plain.modes if mode.mode == "alone")
    assert before["sub-models"].tokens_per_s == pytest.approx(2.0 * fastest, rel=0.05)


@pytest.mark.slow
def test_activations_of_4_bits_over_500_mbit_per_s_are_a_third_slower_than_whole_ones_over_10_gbit():
    """GPT-2 1.5B on eight V100: 31 % slower (arXiv 2206.01299), which no uncompressed pipeline comes near."""
    paces = {}
    for name in ("10gbit", "500mbit"):
        stated = read_fleet(js.data_path(f"fleets/eight_v100_{name}.toml"), slow_loss=0.05)
        found = best_fleet_plan(js.model("gpt2-xl"), stated.fleet, 32)
        paces[name] = {mode.mode: mode.tokens_per_s for mode in (*found.modes, *found.further)}
    assert paces["10gbit"]["pipeline"] / paces["500mbit"]["compressed"] == pytest.approx(1.31, abs=0.05)
    assert paces["10gbit"]["pipeline"] / paces["500mbit"]["pipeline"] > 2.0
