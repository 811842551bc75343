"""Sweeps by their command: same results on any number of devices, same files after a kill, refusals of one line."""

import dataclasses
import errno
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from test_sweep_files import hashes

from jaxscale.cli.main import main
from jaxscale.limits import scenario as limits_scenario
from jaxscale.limits import stack_scenarios, survey
from jaxscale.sweeps import read_spec

pytest.importorskip("zarr")

from zarr.storage import LocalStore

from jaxscale.sweeps import open_sweep

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
    """A sweep of fixed plans, 30,000 points in 6 regions."""
    path = tmp_path / "spec.toml"
    path.write_text(SPEC)
    return path


def start(spec: Path, out: Path, *more: str, devices: int = 1) -> subprocess.Popen:
    environment = {**os.environ, "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    command = [sys.executable, "-m", "jaxscale", "sweep", str(spec), "--out", str(out), *more]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def finish(running: subprocess.Popen) -> None:
    said = running.communicate(timeout=240)[1]
    assert running.returncode == 0, said


def test_points_are_the_product_of_the_axes(spec):
    sweep = read_spec(spec)
    assert (sweep.n_points, sweep.n_regions) == (30_000, 6)
    columns = [sweep.columns(index) for index in range(sweep.n_regions)]
    together = {name: np.concatenate([column[name] for column in columns]) for name in columns[0]}
    assert len(set(zip(*together.values(), strict=True))) == 30_000
    assert together["training_flop"][1] > together["training_flop"][0]
    assert together["dp"][249] == together["dp"][0] != together["dp"][250]


@pytest.mark.slow
def test_devices_and_kills_change_nothing(spec, tmp_path):
    one, eight = tmp_path / "one", tmp_path / "eight"
    assert main(["sweep", str(spec), "--out", str(one)]) == 0
    finish(start(spec, eight, devices=8))
    first, second = open_sweep(one), open_sweep(eight)
    assert first.utilisation.shape == (3, 40, 250)
    np.testing.assert_allclose(second.utilisation, first.utilisation, rtol=1e-6)
    np.testing.assert_array_equal(second.feasible, first.feasible)
    assert 0.05 < first.feasible.mean() < 0.95
    assert np.ptp(first.utilisation.values) > 0.3
    undisturbed = hashes(one)
    # What a kill leaves: some regions whole, none in part. One lost or another's content would show.
    for lost in ("0/0/0", "1/1/0", "2/1/0"):
        (one / "utilisation" / "c" / lost).unlink()
    assert hashes(one) != undisturbed
    assert main(["sweep", str(spec), "--out", str(one), "--resume"]) == 0
    assert hashes(one) == undisturbed


BROKEN = {
    ("axes.dp", "axes.ddp"): "did you mean dp?",
    ("n = 40", "m = 40"): "expected either from, to and n, or values",
    ("to = 65536", "to = 1"): "is no range",
    ("chunk = 5000", "chunk = 0"): "chunk = 0 is out of range",
    ("\nchunk", "\nplan = 3\nchunk"): "not valid TOML",
    ("[axes.training_flop]", "[axes.training"): "not valid TOML",
    ("\nchunk", '\nof = "limts"\nchunk'): "did you mean limits?",
    ("training_flop]\nfrom = 1e25\nto = 1e31", "sparsity]\nfrom = 1\nto = 10"): "training_flop is missing",
    ("pp = 8", "pp = 8\ndp = 4"): "dp is an axis and fixed",
    ("values = [1e-6, 4e-6, 1e-5]", "values = [1e-6, 1e-6]"): "comes twice",
    ("values = [1e-6, 4e-6, 1e-5]", "values = [-1e-6]"): "is out of range",
}


def test_refusals(spec, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["sweep", str(spec), "--out", str(out)]) == 0
    capsys.readouterr()
    assert main(["sweep", str(spec), "--out", str(out)]) == 2
    assert "holds a sweep already" in capsys.readouterr().err
    spec.write_text(SPEC.replace("n = 40", "n = 41"))
    assert main(["sweep", str(spec), "--out", str(out), "--resume"]) == 2
    assert "holds another sweep" in capsys.readouterr().err
    for change, said in BROKEN.items():
        spec.write_text(SPEC.replace(*change))
        assert main(["sweep", str(spec), "--out", str(tmp_path / "new")]) == 2
        told = capsys.readouterr().err
        assert told.count("\n") == 1 and said in told
    assert not (tmp_path / "new").exists()
    spec.write_text(SPEC)
    for words, said in {
        ("--draw", "utilisatoin", "--plot", "a.png"): "did you mean utilisation?",
        ("--over", "dpp", "--plot", "a.png"): "did you mean dp?",
        ("--over", "dp"): "expected --plot or --report",
        ("--dask", "localhost:1", "--coordinator", "localhost:1", "--n-processes", "2"): "does not go with",
    }.items():
        assert main(["sweep", str(spec), "--out", str(tmp_path / "new"), *words]) == 2
        told = capsys.readouterr().err
        assert told.count("\n") == 1 and said in told


def test_a_full_disk_is_one_line(spec, tmp_path, capsys, monkeypatch):
    async def full(store: LocalStore, key: str, value) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(LocalStore, "set", full)
    assert main(["sweep", str(spec), "--out", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err == f"jaxscale: {tmp_path / 'out'}: no space left on device\n"


@pytest.mark.slow
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


@pytest.mark.slow
def test_two_workers_of_dask_share_a_sweep(spec, tmp_path):
    distributed = pytest.importorskip("distributed")
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    assert main(["sweep", str(spec), "--out", str(alone)]) == 0
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        finish(start(spec, shared, "--dask", cluster.scheduler_address))
    assert hashes(shared) == hashes(alone)


@pytest.mark.slow
def test_a_kill_in_the_middle_leaves_nothing(spec, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert main(["sweep", str(spec), "--out", str(whole)]) == 0
    running = start(spec, cut)
    while not list(cut.glob("utilisation/c/*/*/*")) and running.poll() is None:
        time.sleep(0.01)
    running.kill()
    running.communicate()
    (cut / "utilisation" / "c" / "2" / "1" / "0.abcd.partial").parent.mkdir(parents=True, exist_ok=True)
    (cut / "utilisation" / "c" / "2" / "1" / "0.abcd.partial").write_bytes(b"half a region")
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
    counts = {"n_points": 48, "n_regions": 3, "n_computed": 3, "n_unanswered": 0}
    assert document == {"folder": str(out), "of": "limits", **counts}
    found = open_sweep(out)
    slow = dataclasses.replace(limits_scenario(), network_latency=1e-5)
    expected = survey(read_spec(spec).axes["training_flop"], stack_scenarios([slow])).utilisation[0]
    assert (found.residual <= 1e-6).mean() > 0.9
    np.testing.assert_allclose(found.utilisation.sel(network_latency=1e-5), expected, rtol=1e-6)
    assert not np.allclose(found.utilisation[0], expected, rtol=1e-2)
