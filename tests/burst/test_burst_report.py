"""The document behind the command line: complete, JSON, refusals in one line."""

import json

import numpy as np
import pytest

from jaxscale.base.errors import InputError
from jaxscale.burst import burst_report
from jaxscale.burst.burst_report import BURSTS, burst_comparison, burst_verdict


@pytest.fixture(scope="module")
def report():
    return burst_report("vgg", n_chips=8, batch=32)


def test_report_holds_the_published_example(report):
    """VGG-16, correct synchronisation: 44.79, 13.77 and 11.95 ms."""
    assert report == json.loads(json.dumps(report, allow_nan=False))
    np.testing.assert_allclose(report["single_gpu_time_s"], 44.79e-3, rtol=1e-3)
    np.testing.assert_allclose(report["data_parallel"]["time_s"], 13.77e-3, rtol=1e-3)
    np.testing.assert_allclose(report["burst"]["time_s"], 11.95e-3, rtol=0.01)
    np.testing.assert_allclose(report["released_planner"]["time_s"], 11.95e-3, rtol=1e-3)


def test_report_adds_up(report):
    plan = report["plan"]
    assert len(plan) == 37
    np.testing.assert_allclose(sum(row["time_s"] for row in plan), report["burst"]["time_s"], rtol=1e-6)
    used = sum(row["time_s"] * row["gpus"] for row in plan)
    np.testing.assert_allclose(used, report["burst"]["gpu_seconds"], rtol=1e-6)
    assert report["multiplexing"]["ideal"]["ratio"] > report["multiplexing"]["cluster"]["ratio"] > 1.2
    assert report["multiplexing"]["static_partition"]["best_as_fast"] is None
    prices = report["prices"]
    assert prices["bandwidth"] < 0 < prices["latency"]


def test_bursts_are_the_answer_where_nothing_as_fast_gives_more(report):
    """VGG-16 at 32 samples: 1.7 times the throughput, inside the published 1.2 to 2.4."""
    best = report["ways"][0]
    assert best["way"] == BURSTS and 1.2 <= best["ratio"] <= 2.4
    assert burst_verdict(report).startswith(f"best: {BURSTS}") and "fastest" not in burst_verdict(report)


def test_a_static_partition_is_the_answer_where_bursts_are_slower_and_give_less():
    document = burst_report("inception_v3", n_chips=8, batch=16)
    ways = {way["way"]: way for way in document["ways"]}
    best, bursts = document["ways"][0], ways[BURSTS]
    assert best["way"] == "data parallel on 4, background jobs on 4"
    assert best["time_s"] <= bursts["time_s"] and best["ratio"] > bursts["ratio"]
    assert bursts["ratio"] < 1.0 and document["burst"]["time_s"] > 1.2 * document["data_parallel"]["time_s"]
    told = burst_verdict(document)
    assert "no faster" in told and "fastest: data parallel" in told
    assert [row[0] for row in burst_comparison(document).rows][:-1] == list(ways)
    # No way is missing, none of the slower ones stands before one that is as fast as bursts.
    slower = [way["time_s"] > bursts["time_s"] for way in document["ways"]]
    assert slower == sorted(slower) and len(ways) == 6


def test_networks_without_profile_are_planned_analytically():
    report = burst_report("unet", n_chips=2, batch=4)
    assert report["layer_times"] == "analytical"
    assert 0 < report["burst"]["time_s"] <= report["single_gpu_time_s"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"network": "lenet"}, "expected one of"),
        ({"n_chips": 6}, "power of two"),
        ({"n_chips": 1 << 20}, "up to 65536"),
        ({"batch": 0}, "at least 1"),
        ({"bandwidth": -1.0}, "above 0"),
        ({"latency": float("nan")}, "finite"),
        ({"amplification_limit": 1.0}, "above 1"),
        ({"synchronisation": "none"}, "correct or released"),
        ({"layer_times": "guess"}, "auto, measured, analytical"),
        ({"network": "unet", "layer_times": "measured"}, "no measured time"),
        ({"background_batch": -2.0}, "positive"),
    ],
)
def test_bad_input_is_one_line(arguments, message):
    with pytest.raises(InputError, match=message) as caught:
        burst_report(**arguments)
    assert "\n" not in str(caught.value)
