"""Sweeps: same results on any number of devices, same files after a kill, refusals of one line."""

import dataclasses
import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from jaxscale.cli.main import main
from jaxscale.limits.frontier_scenario import stack_scenarios
from jaxscale.limits.relaxed_plan import survey
from jaxscale.limits.sweep import chunk_name, load_sweep, read_spec

SPEC = """
chunk = 5000
[axes.network_latency]
values = [1e-6, 4e-6, 1e-5]
[axes.dp]
from = 16
to = 65536
n = 40
[axes.training_flop]
from = 1e25
to = 1e31
n = 250
[plan]
tp_ff = 64
tp_width = 4
pp = 8
n_microbatches = 4
interleave = 4
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """A sweep of fixed plans, 30,000 points in 6 files."""
    path = tmp_path / "spec.toml"
    path.write_text(SPEC)
    return path


def hashes(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def start(spec: Path, out: Path, *more: str, devices: int = 1) -> subprocess.Popen:
    environment = {**os.environ, "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    command = [sys.executable, "-m", "jaxscale", "sweep", str(spec), "--out", str(out), *more]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def finish(running: subprocess.Popen) -> None:
    said = running.communicate(timeout=240)[1]
    assert running.returncode == 0, said


def test_points_are_the_product_of_the_axes(spec):
    sweep = read_spec(spec)
    assert (sweep.n_points, sweep.n_chunks) == (30_000, 6)
    columns = [sweep.columns(index) for index in range(sweep.n_chunks)]
    together = {name: np.concatenate([column[name] for column in columns]) for name in columns[0]}
    assert len(set(zip(*together.values(), strict=True))) == 30_000
    assert together["training_flop"][1] > together["training_flop"][0]
    assert together["dp"][249] == together["dp"][0] != together["dp"][250]


@pytest.mark.slow
def test_devices_and_kills_change_nothing(spec, tmp_path):
    one, eight = tmp_path / "one", tmp_path / "eight"
    assert main(["sweep", str(spec), "--out", str(one)]) == 0
    finish(start(spec, eight, devices=8))
    first, second = load_sweep(one), load_sweep(eight)
    assert len(first["utilisation"]) == 30_000
    np.testing.assert_allclose(second["utilisation"], first["utilisation"], rtol=1e-6)
    np.testing.assert_array_equal(second["feasible"], first["feasible"])
    assert 0.05 < first["feasible"].mean() < 0.95
    assert np.ptp(first["utilisation"]) > 0.3
    undisturbed = hashes(one)
    # What a kill leaves: some files whole, none in part. A file lost or another's content would show.
    for lost in (0, 3, 5):
        (one / chunk_name(lost)).unlink()
    assert hashes(one) != undisturbed
    assert main(["sweep", str(spec), "--out", str(one), "--resume"]) == 0
    assert hashes(one) == undisturbed


def test_refusals(spec, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["sweep", str(spec), "--out", str(out)]) == 0
    capsys.readouterr()
    assert main(["sweep", str(spec), "--out", str(out)]) == 2
    spec.write_text(SPEC.replace("n = 40", "n = 41"))
    assert main(["sweep", str(spec), "--out", str(out), "--resume"]) == 2
    for broken in (
        SPEC.replace("axes.dp", "axes.dpp"),
        SPEC.replace("n = 40", "m = 40"),
        SPEC.replace("to = 65536", "to = 1"),
        SPEC.replace("chunk = 5000", "chunk = 0"),
        "plan = 3\n" + SPEC,
        SPEC.replace("[axes.training_flop]", "[axes.training"),
    ):
        spec.write_text(broken)
        assert main(["sweep", str(spec), "--out", str(tmp_path / "new")]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 8 and not (tmp_path / "new").exists()


def test_two_processes_share_a_sweep(spec, tmp_path):
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    assert main(["sweep", str(spec), "--out", str(alone)]) == 0
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    common = ("--coordinator", address, "--n-processes", "2", "--process")
    for running in [start(spec, shared, *common, str(process)) for process in range(2)]:
        finish(running)
    assert hashes(shared) == hashes(alone)


def test_a_kill_in_the_middle_of_a_file_leaves_nothing(spec, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert main(["sweep", str(spec), "--out", str(whole)]) == 0
    running = start(spec, cut)
    while not list(cut.glob("chunk-*")) and running.poll() is None:
        time.sleep(0.01)
    running.kill()
    running.communicate()
    (cut / f".{Path(chunk_name(5)).stem}.abcd.npz").write_bytes(b"half a file")
    assert hashes(cut) != hashes(whole)
    assert main(["sweep", str(spec), "--out", str(cut), "--resume"]) == 0
    assert hashes(cut) == hashes(whole)


BEST_PLANS = """
chunk = 24
[axes.network_latency]
values = [1e-6, 4e-6, 1e-5]
[axes.training_flop]
from = 1e25
to = 1e31
n = 16
"""


@pytest.mark.slow
def test_best_plans_are_those_of_a_survey(tmp_path, capsys):
    spec, out = tmp_path / "best.toml", tmp_path / "out"
    spec.write_text(BEST_PLANS)
    assert main(["sweep", str(spec), "--out", str(out), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == {"folder": str(out), "n_points": 48, "n_files": 2, "n_computed": 2}
    found = load_sweep(out)
    sweep = read_spec(spec)
    slow = dataclasses.replace(sweep.scenario, network_latency=1e-5)
    expected = survey(sweep.axes["training_flop"], stack_scenarios([slow])).utilisation[0]
    assert len(found["utilisation"]) == 48 and (found["residual"] <= 1e-6).mean() > 0.9
    np.testing.assert_allclose(found["utilisation"][32:], expected, rtol=1e-6)
    assert not np.allclose(found["utilisation"][:16], expected, rtol=1e-2)
