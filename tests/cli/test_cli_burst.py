"""`jaxscale burst`: the published iteration times, tables, refusals."""

import pytest

VGG = ("burst", "--network", "vgg16", "--n-gpus", 8, "--global-batch", 32)


def test_json_reproduces_the_released_planner(run):
    """DeepPool, examples/vgg.py on 8 GPUs: 44.79, 11.99 and 11.59 ms, 57.3 GPU-ms."""
    document = run(*VGG, "--synchronisation", "released", "--json").json
    released = document["released_planner"]
    assert document["single_gpu_time_s"] == pytest.approx(44.79e-3, rel=0.01)
    assert document["data_parallel"]["time_s"] == pytest.approx(11.99e-3, rel=0.01)
    assert released["time_s"] == pytest.approx(11.59e-3, rel=0.01)
    assert released["gpu_seconds"] == pytest.approx(57.3e-3, rel=0.01)


def test_bandwidth_is_in_gigabytes_and_latency_in_microseconds(run):
    fast, slow = (run(*VGG, *extra, "--json").json for extra in ((), ("--bandwidth-gb-per-s", 2.66)))
    late = run(*VGG, "--latency-us", 2400, "--json").json
    assert slow["bandwidth_byte_per_s"] == pytest.approx(fast["bandwidth_byte_per_s"] / 100)
    assert slow["data_parallel"]["time_s"] > fast["data_parallel"]["time_s"]
    assert late["latency_s"] == pytest.approx(10 * fast["latency_s"])
    assert late["burst"]["time_s"] > fast["burst"]["time_s"]


def test_tables(run):
    outcome = run(*VGG)
    assert outcome.code == 0
    assert "conv 3x3 64" in outcome.out
    assert "with background jobs" in outcome.out


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--network", "alexnet-9", "network 'alexnet-9' is unknown"),
        ("--n-gpus", 7, "--n-gpus = 7 is out of range; expected a power of two"),
        ("--global-batch", 0, "batch = 0: expected at least 1 sample"),
        ("--bandwidth-gb-per-s", 0, "--bandwidth-gb-per-s = 0 is out of range; expected above 0"),
        ("--latency-us", "nan", "--latency-us = nan is out of range"),
        ("--amplification-limit", 1, "--amplification-limit = 1.0: expected a finite number above 1"),
        ("--synchronisation", "none", "none"),
    ],
)
def test_refusals(run, option, value, expected):
    outcome = run("burst", option, value)
    assert outcome.code == 2
    assert expected in outcome.err
    assert outcome.err.count("\n") == 1
