"""Crossovers, the best degree as a function of the number of chips, and what its uncertainty rests on."""

import numpy as np
import pytest

from jaxscale.calibration.coefficients import names
from jaxscale.calibration.record import load_fit
from jaxscale.trends.crossover import LAYOUTS, RETURN_TEMPERATURE, best_degrees, layout_speeds, overtaking
from jaxscale.trends.deployment_library import (
    CHANGES,
    coefficient_spreads,
    generations,
    sample_deployments,
    side_by_side,
    what_if,
)
from jaxscale.trends.outcome import Batch

CHIPS = np.asarray([128.0, 1024.0, 1024.0 * 1.05, 2048.0, 8192.0])


@pytest.fixture(scope="module")
def samples(paper):
    return sample_deployments(paper, 8, seed=1)


@pytest.fixture(scope="module")
def best(samples, weak):
    return best_degrees(samples, weak, CHIPS)


@pytest.fixture(scope="module")
def speeds(samples, weak):
    return layout_speeds(samples, weak, CHIPS, temperature=RETURN_TEMPERATURE)


def test_the_best_degree_moves_from_one_to_two_or_four(best):
    whole = 2.0 ** np.round(np.log2(best.degree[0]))
    assert whole[0] == 1.0
    assert 2.0 <= whole[3] <= 4.0
    assert np.all(np.diff(best.degree[0]) > 0.0)
    assert np.all(best.gain >= -1e-9)


def test_its_elasticity_is_that_of_the_curve(best):
    moved = np.log(best.degree[:, 2] / best.degree[:, 1]) / np.log(1.05)
    inside = (best.degree[:, 1] > 1.1) & (best.degree[:, 2] < 7.9)
    assert inside[0]
    mean = 0.5 * (best.elasticity[:, 1] + best.elasticity[:, 2])
    assert mean[inside] == pytest.approx(moved[inside], rel=0.1)


def test_the_best_degree_is_no_slower_than_whole_ones(best, speeds):
    order = list(LAYOUTS)
    gains = [speeds[:, order.index(f"FSDP, tp {degree}")] - speeds[:, 0] for degree in (2, 4, 8)]
    assert np.all(np.log1p(best.gain) >= np.max(gains, axis=0) - 1e-6)


def test_a_fixed_batch_leaves_every_replica_a_sequence(samples):
    found = best_degrees(samples, Batch(fixed=512.0), CHIPS)
    assert np.all(found.degree >= np.clip(CHIPS / 512.0, 1.0, 8.0) * (1.0 - 1e-9))


def test_hybrid_sharding_overtakes_first_and_context_parallelism_never(speeds):
    order = list(LAYOUTS)
    where = {name: overtaking(CHIPS, speeds, 0, order.index(name))[0] for name in order[1:]}
    assert where["HSDP, groups of 64"] < where["FSDP, tp 4"] < where["pp 4"]
    assert where["FSDP, cp 2"] == float("inf")


def test_overtaking_finds_a_known_crossing():
    n = np.geomspace(1.0, 100.0, 41)
    ahead = np.stack([np.zeros(41), np.log(n / 17.0)])[None]
    assert overtaking(n, ahead, 0, 1) == pytest.approx([17.0])
    assert overtaking(n, ahead, 0, 0) == pytest.approx([float("inf")])
    assert overtaking(n, -ahead, 1, 0) == pytest.approx([17.0])


def test_samples_vary_what_the_fit_leaves_open(paper, samples):
    spread = dict(zip(names(), coefficient_spreads(), strict=True))
    assert spread["framework_bytes"] == 0.0 < spread["fsdp_overlap"]
    assert spread["network_latency_scale"] > spread["link_latency_scale"] > 0.0, "stacks differ beyond a domain alone"
    values = np.asarray(samples.coefficients.fsdp_overlap)
    assert values[0] == pytest.approx(float(paper.coefficients.fsdp_overlap))
    assert np.std(np.log(values / (1.0 - values))) < 3.0 * spread["fsdp_overlap"]
    assert len(set(values.tolist())) == len(values)
    assert np.asarray(samples.cluster.network.latency)[1] == pytest.approx(np.asarray(paper.cluster.network.latency))


def test_drawn_step_times_are_about_as_uncertain_as_a_prediction(paper, weak):
    """Within a factor of two of the 90 % interval that the fit gives a stack that it never saw."""
    # Eight at a time share one compiled program with the other tests; the first of each is the centre.
    drawn_apart = (sample_deployments(paper, 8, seed) for seed in range(8))
    speeds = [layout_speeds(some, weak, CHIPS, temperature=RETURN_TEMPERATURE)[1:, 0] for some in drawn_apart]
    times = -np.concatenate(speeds)
    drawn = (np.quantile(times, 0.95, axis=0) - np.quantile(times, 0.05, axis=0)) / 2.0
    levels = {"framework": "pytorch-fsdp", "gpu": "h100-80gb", "precision": "bf16"}
    predicted = np.asarray([load_fit().interval(levels, chips).time for chips in CHIPS])
    assert np.all(drawn < 2.0 * predicted) and np.all(drawn > predicted / 2.0)


@pytest.fixture(scope="module")
def improved(paper, weak):
    found, _ = side_by_side(what_if(paper), weak, [256.0, 2048.0])
    speed = np.asarray(found.tokens_per_s_per_chip)
    return dict(zip(CHANGES, speed / speed[0] - 1.0, strict=True))


def test_every_improvement_helps_and_arithmetic_alone_ever_less(improved):
    assert all(np.all(gain >= -1e-9) for gain in improved.values())
    assert improved["arithmetic x 2"][0] > improved["arithmetic x 2"][1] > 0.0


def test_latencies_bind_at_scale_and_bandwidth_does_not(improved):
    hops = improved["latency inside / 2"] + improved["latency between / 2"]
    assert hops[0] < 0.01 < 0.15 < hops[1]
    assert improved["network bandwidth x 2"][1] < hops[1]


def test_newer_generations_are_faster_and_meet_the_ring_earlier(weak):
    found, fits = side_by_side(
        generations(chip_ids=("v100-32gb", "a100-80gb", "h100-80gb", "gb200")), weak, [64.0, 4096.0]
    )
    speed = np.asarray(found.tokens_per_s_per_chip)
    assert np.all(np.diff(speed[:, 0]) > 0.0)
    assert np.all(np.diff(speed[1:, 1] / speed[1:, 0]) < 0.0)
    assert not fits[0].any() and fits[2].all()
