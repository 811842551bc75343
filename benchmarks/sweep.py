"""A sweep of ten million plans: one device against eight, killed at random and resumed, and shared by two processes.

Run: python benchmarks/sweep.py [points along the last axis]
"""

import hashlib
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from jaxscale.sweeps import open_sweep

SPEC = """
chunk = 65536
[axes.network_latency]
values = [1e-6, 2e-6, 4e-6, 8e-6, 1.6e-5]
[axes.network_bandwidth]
from = 1e10
to = 1e12
n = 20
[axes.dp]
from = 1
to = 1048576
n = 100
[axes.training_flop]
from = 1e25
to = 1e31
n = {sizes}
[plan]
tp_ff = 64
tp_width = 4
pp = 8
n_microbatches = 4
interleave = 4
"""
KILLS = 5


def start(spec: Path, out: Path, devices: int, *more: str) -> subprocess.Popen[bytes]:
    """A sweep in a process of its own with so many virtual devices."""
    environment = {**os.environ, "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    command = [sys.executable, "-m", "jaxscale", "sweep", str(spec), "--out", str(out), *more]
    return subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)


def finished(spec: Path, out: Path, devices: int, *more: str) -> float:
    """Wall time of a whole sweep [s]."""
    wall = time.perf_counter()
    assert start(spec, out, devices, *more).wait() == 0
    return time.perf_counter() - wall


def hashes(folder: Path) -> dict[str, str]:
    """Digest of every file of a folder."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def n_files(folder: Path) -> int:
    """Regions of which a result is there."""
    return sum(path.is_file() for path in folder.glob("utilisation/c/**/*"))


def killed(spec: Path, out: Path) -> list[int]:
    """Files after each of several kills, each at a random time after the first file of its run."""
    chance = random.Random(0)
    counts = [0]
    for attempt in range(KILLS):
        running = start(spec, out, 8, *(("--resume",) if attempt else ()))
        while n_files(out) <= counts[-1] and running.poll() is None:
            time.sleep(0.01)
        time.sleep(chance.uniform(0.0, 1.5))
        running.send_signal(signal.SIGKILL)
        running.wait()
        counts.append(n_files(out))
    return counts[1:]


def shared(spec: Path, out: Path) -> None:
    """The sweep by two processes on this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    common = ("--coordinator", address, "--n-processes", "2", "--process")
    running = [start(spec, out, 1, *common, str(process)) for process in range(2)]
    assert [one.wait() for one in running] == [0, 0]


def main() -> None:
    sizes = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    count = 10_000 * sizes
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spec = folder / "spec.toml"
        spec.write_text(SPEC.format(sizes=sizes))
        one, eight, cut, two = (folder / part for part in ("one", "eight", "cut", "two"))
        for out, devices in ((one, 1), (eight, 8)):
            wall = finished(spec, out, devices)
            print(f"{devices} CPU device(s): {count:,} points in {wall:.1f} s, {count / wall:,.0f} points/s")
        first, second = open_sweep(one).load(), open_sweep(eight).load()
        assert first.utilisation.size == count
        apart = float(np.abs(second.utilisation / first.utilisation - 1.0).max())
        print(f"largest relative difference {apart:.1e}; {100 * float(first.feasible.mean()):.1f} % feasible")
        assert np.array_equal(first.feasible, second.feasible) and apart < 1e-6
        print(f"files after each kill: {killed(spec, cut)} of {n_files(eight)}")
        finished(spec, cut, 8, "--resume")
        assert hashes(cut) == hashes(eight)
        print(f"killed {KILLS} times and resumed: the same {len(hashes(cut))} files")
        shared(spec, two)
        assert hashes(two) == hashes(one)
        print("two processes: the same files as one")


if __name__ == "__main__":
    main()
