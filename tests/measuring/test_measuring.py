"""Records of chips from timings: what is known comes back, peaks bound rates, hardware files move predictions."""

import csv
import dataclasses
import functools
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxscale as js
from jaxscale.base.arrays import with_fields
from jaxscale.base.documents import data_path
from jaxscale.base.errors import InputError
from jaxscale.base.table import Table
from jaxscale.calibration.coefficients import chip_anchors, prior_medians
from jaxscale.calibration.kernel_coefficients import kernel_coefficients
from jaxscale.cli.main import main
from jaxscale.costs.collectives import gather_time, reduce_time
from jaxscale.costs.machine import effective_link
from jaxscale.hardware.catalogue import cluster
from jaxscale.hardware.cluster import Chip, Network
from jaxscale.hardware.formats import PRECISIONS
from jaxscale.measuring import measured_devices
from jaxscale.measuring.chip_record import ChipRecord, chip_record, fitted_links, fitted_matmuls
from jaxscale.measuring.measure_report import drift_text, record_tables
from jaxscale.measuring.measured_devices import Measurement
from jaxscale.measuring.timed_kernels import TimedKernel, every_kernel, program_of
from jaxscale.measuring.timing import CollectiveTiming, Drift, Stopwatch, Timing, drift_of
from jaxscale.tracing import kernel_rows, trace, traced_kernel_times

KERNELS = (
    *(TimedKernel("matmul", "forward", "bf16", d, d, d) for d in (512, 1024, 2048, 4096, 8192)),
    *(TimedKernel("matmul", "wgrad", "bf16", d, 4096, 4 * d) for d in (1024, 4096)),
    *(TimedKernel("stream", name, "bf16", m=65536, n=1024) for name in ("add", "gelu", "column_sum", "gather")),
    TimedKernel("optimizer", "adamw", "fp32", n=10**7),
    TimedKernel("launch", "chain", "fp32", m=16),
)
PEAK, BANDWIDTH = 4e14, 2e12
TRUE = {"matmul_efficiency": 0.6, "half_area": 2e5, "traffic_efficiency": 0.8, "kernel_launch": 6e-6}


def timing(kernel: TimedKernel, seconds: float) -> Timing:
    program = program_of(kernel)
    return Timing(kernel, seconds, seconds, seconds, program.flop, program.bytes)


@functools.cache
def true_times() -> tuple[float, ...]:
    """Times that a chip of known coefficients takes, by the terms of traced steps [s]."""
    c = with_fields(kernel_coefficients("prior"), TRUE)
    chip, seconds = Chip(np.full(len(PRECISIONS), PEAK), 8e10, BANDWIDTH, 100.0, 700.0), []
    for kernel in KERNELS:
        program = program_of(kernel)
        times = traced_kernel_times(kernel_rows(trace(program.function, *program.shapes)), chip, c)
        seconds.append(float(sum(times) - times.host_per_step))
    return tuple(seconds)


def timings_of(speed: float = 1.0) -> list[Timing]:
    """Timings of the kernels at a speed of the chip."""
    return [timing(kernel, seconds / speed) for kernel, seconds in zip(KERNELS, true_times(), strict=True)]


def record_of(timings: list[Timing], chip_id: str = "mine") -> ChipRecord:
    return chip_record(timings, chip_id=chip_id, memory_bytes=8e10, launch=1e-4)


@pytest.fixture(scope="module")
def record() -> ChipRecord:
    return record_of(timings_of())


def test_what_the_timings_were_made_of_comes_back(record: ChipRecord):
    peak = 1e12 * record.numbers["peak_tflops_bf16"]
    bandwidth = 1e9 * record.numbers["memory_gb_per_s"]
    assert record.kernels["matmul_efficiency"] * peak == pytest.approx(TRUE["matmul_efficiency"] * PEAK, rel=0.1)
    assert record.kernels["traffic_efficiency"] * bandwidth == pytest.approx(0.8 * BANDWIDTH, rel=0.1)
    assert record.kernels["kernel_launch"] == pytest.approx(TRUE["kernel_launch"], rel=0.2)
    assert np.median(np.abs(record.errors)) < 0.05


def test_no_kernel_is_faster_than_the_peak_of_its_record(record: ChipRecord):
    """The best matmul reaches nine tenths of the peak of a chip without a data sheet."""
    rates = [one.rate for one in timings_of() if one.kernel.op == "matmul"]
    assert max(rates) == pytest.approx(0.9e12 * record.numbers["peak_tflops_bf16"], rel=1e-9)
    assert 0.0 < record.anchor < 1.0


def test_equal_timings_give_an_equal_record_and_slower_ones_another(record: ChipRecord, tmp_path: Path):
    again, slower = record_of(timings_of()), record_of(timings_of(0.5))
    again.save(tmp_path / "again.toml")
    record.save(tmp_path / "first.toml")
    assert (tmp_path / "again.toml").read_text() == (tmp_path / "first.toml").read_text()
    assert slower.numbers["peak_tflops_bf16"] == pytest.approx(0.5 * record.numbers["peak_tflops_bf16"])


def test_a_known_chip_keeps_its_data_sheet_and_gets_an_anchor():
    half = record_of(timings_of(0.5), "h100-80gb")
    assert half.is_known
    assert half.numbers["peak_tflops_bf16"] == js.load_hardware()["h100-80gb"].numbers["peak_tflops_bf16"]
    assert half.anchor < chip_anchors()["h100-80gb"]


def test_the_anchor_of_a_published_table_is_that_of_the_catalogue():
    with data_path("companion/gemm_efficiency.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["gpu"] == "a100-80gb-pcie" and row["op"] == "matmul"]
    sizes = np.asarray([[float(row[axis]) for row in rows] for axis in "mkn"])
    rates = 312e12 * np.asarray([float(row["efficiency"]) for row in rows])
    is_gradient = np.asarray([row["layout"] == "NT" for row in rows])
    anchor = fitted_matmuls(sizes, is_gradient, rates, cluster("a100-80gb", 1))[0]["matmul_efficiency"]
    slow = fitted_matmuls(sizes, is_gradient, 0.8 * rates, cluster("a100-80gb", 1))[0]["matmul_efficiency"]
    assert anchor == pytest.approx(chip_anchors()["a100-80gb"], rel=0.01)
    assert slow < 0.85 * anchor


def ring_timings() -> list[CollectiveTiming]:
    """Times of rings over links of 200 GB/s."""
    network = Network(np.array([8.0, 8.0, 1e12]), np.full(3, 2e11), np.full(3, 3e-6))
    link, timings = effective_link(network, prior_medians()), []
    for n in (2, 4, 8):
        for size in (2**16, 2**22, 2**28):
            for name, time in (("all_reduce", reduce_time), ("all_gather", gather_time)):
                seconds = float(time(float(size), float(n), 1.0, link))
                timings.append(CollectiveTiming(name, n, size, seconds, seconds, seconds))
    return timings


def test_bandwidth_of_links_comes_back_from_the_times_of_rings():
    found = fitted_links(ring_timings())
    assert found["link_gb_per_s"] == pytest.approx(200.0, rel=0.02)
    assert not fitted_links([])


QUESTION = "predict --model llama3-8b --gpu mine --n-gpus 8 --global-batch 64 --json --quiet --hardware".split()


def test_a_record_loads_by_hardware_and_its_anchor_moves_predictions(record: ChipRecord, tmp_path: Path, capsys):
    file = tmp_path / "mine.toml"
    record.save(file)
    hardware = js.load_hardware(file)
    assert hardware.anchors == {"mine": pytest.approx(record.anchor, rel=1e-5)}
    assert hardware.kernels["mine"]["kernel_launch"] == pytest.approx(record.kernels["kernel_launch"], rel=1e-5)
    text, seconds = file.read_text(), []
    for share in (record.anchor, 0.5 * record.anchor):
        file.write_text(text.replace(f"matmul_efficiency = {record.anchor:.6g}", f"matmul_efficiency = {share:.6g}"))
        assert main([*QUESTION, str(file)]) == 0
        seconds.append(json.loads(capsys.readouterr().out)["predictions"][0]["predicted_step_time_s"])
    assert 1.3 * seconds[0] < seconds[1] < 2.0 * seconds[0]


def test_coefficients_of_kernels_in_a_hardware_file_move_traced_steps(record: ChipRecord, tmp_path: Path, capsys):
    file, seconds = tmp_path / "mine.toml", []
    for share in (1.0, 0.5):
        kernels = {**record.kernels, "matmul_efficiency": share * record.kernels["matmul_efficiency"]}
        file.write_text("")
        ChipRecord(**{**vars(record), "kernels": kernels}).save(file)
        words = ["trace", "jaxscale.examples:decoder", "--set", "n_layers=2", "--gpu", "mine", "--json", "--quiet"]
        assert main([*words, "--hardware", str(file)]) == 0
        seconds.append(json.loads(capsys.readouterr().out)["step_time_s"])
    assert 1.3 * seconds[0] < seconds[1] < 2.0 * seconds[0]


@pytest.mark.parametrize("slowdown", [0.0, 0.02, 0.2])
def test_a_kernel_that_slows_down_tells_of_clocks(slowdown: float):
    noise = np.random.default_rng(0).normal(0.0, 0.02, 90)
    seconds = 0.01 * np.exp(noise) * (1.0 + slowdown * np.linspace(0.0, 1.5, 90))
    assert drift_of(seconds).throttles == (slowdown > 0.1)
    # A program beside it makes times long here and there, which is no drift.
    assert not drift_of(0.01 * np.where(np.arange(90) % 4, 1.0, 3.0)).throttles
    assert not drift_of(seconds[:6]).throttles


@pytest.mark.parametrize(
    ("drift", "told"),
    [
        (Drift(-0.87, 0.42), "Too noisy to tell whether clocks throttle"),
        (Drift(0.02, 0.3), "Too noisy"),
        (Drift(-0.5, 0.01), "Too noisy"),
        (Drift(0.02, 0.01), "Clocks hold: one repeated matmul took 1.02 times"),
        (Drift(0.3, 0.05), "CLOCKS THROTTLE"),
        (Drift(0.0, float("inf")), "Too few repeats"),
    ],
)
def test_clocks_hold_only_where_the_noise_would_tell(record: ChipRecord, drift: Drift, told: str):
    found = Measurement(dataclasses.replace(record, drift=drift), (), (), "cpu", 20.0)
    assert drift_text(found).startswith(told)


def test_a_measurement_is_written_whole_within_its_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys):
    """Two devices whose kernels and collectives take known times: what was asked and timed is in both files."""
    budgets: list[float] = []

    def kernels_timed(watch: Stopwatch, kernels: Sequence[TimedKernel]) -> list[Timing]:
        budgets.append(watch.seconds)
        return [timing(kernel, seconds) for kernel, seconds in zip(kernels, true_times(), strict=True)]

    def collectives_timed(devices: Sequence[Any], seconds: float) -> list[CollectiveTiming]:
        budgets.append(seconds)
        return ring_timings()

    monkeypatch.setattr(jax, "local_devices", lambda: 2 * jax.devices("cpu")[:1])
    monkeypatch.setattr(Stopwatch, "time_all", kernels_timed)
    monkeypatch.setattr(measured_devices, "every_kernel", lambda platform: KERNELS)
    monkeypatch.setattr(measured_devices, "time_collectives", collectives_timed)
    out, timings = tmp_path / "chip.toml", tmp_path / "timings.csv"
    words = f"--out {out} --timings {timings} --name mine --seconds 50 --json --quiet"
    assert main(["measure", *words.split()]) == 0
    assert budgets == pytest.approx([40.0, 10.0])
    document, entry = json.loads(capsys.readouterr().out), js.load_hardware(out)["mine"]
    with timings.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert document["n_timings"] == len(rows) == len(KERNELS) + len(ring_timings())
    assert {row["gpu"] for row in rows} == {document["id"]} == {"mine"}
    assert [float(row["median_s"]) for row in rows[: len(KERNELS)]] == pytest.approx(true_times(), rel=1e-3)
    rates = [one.rate for one in timings_of() if one.kernel.op == "matmul"]
    assert document["attained"]["bf16"] == pytest.approx(max(rates), rel=1e-6)
    assert entry.numbers["link_gb_per_s"] == pytest.approx(200.0, rel=0.02)
    assert entry.numbers["domain_size"] == 2.0


def test_measured_rates_stand_beside_the_data_sheet():
    """At half the speed, every share is half of that at full speed."""
    shares = []
    for speed in (1.0, 0.5):
        found = Measurement(record_of(timings_of(speed), "h100-80gb"), tuple(timings_of(speed)), (), "gpu", 1.0)
        (rates, *_) = [block for block in record_tables(found) if isinstance(block, Table)]
        shares.append({row[0]: float(row[3]) for row in rates.rows if row[3]})
    assert {"matmul bf16", "memory", "anchor of training"} <= shares[0].keys() == shares[1].keys()
    assert shares[0]["matmul bf16"] == pytest.approx(100.0 * max(one.rate for one in timings_of()[:7]) / 989e12, abs=1)
    assert all(shares[1][name] < 0.6 * share for name, share in shares[0].items())


CHIP = "[chips.mine]\nmemory_gb = 80\nmemory_gb_per_s = 2000\npeak_tflops_bf16 = 400\n"


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ('[[anchors]]\nchips = ["yours"]\nmatmul_efficiency = 0.5', "'yours' is no chip of the file"),
        ('[[anchors]]\nchips = ["mine"]\nmatmul_efficiency = 1.5', "out of range"),
        ('[[anchors]]\nchips = ["mine"]', "not a number"),
        ("[kernels.mine]\nspeed = 2", "'speed' is not a coefficient"),
        ("[kernels.mine]\nhalf_area = -1", "out of range"),
        ("[kernels.yours]\nhalf_area = 1", "'yours' is no chip of the file"),
        ("[kernels]\nmine = 3", "kernels must be tables of numbers"),
        ("[[kernels]]\nmine = 3", "kernels must be tables of numbers"),
        ("[anchors]\nmine = 3", "anchors must be tables"),
        ("domain_size = 8", "link_gb_per_s is missing"),
        ("domain_size = 0.5\nlink_gb_per_s = 1", "out of range"),
        ("[chips.yours]\nmemory_gb = 80", "memory_gb_per_s is missing"),
    ],
)
def test_mistakes_in_a_record_are_refused_in_a_line(more: str, told: str, tmp_path: Path):
    (tmp_path / "mine.toml").write_text(CHIP + more)
    with pytest.raises(InputError, match=told) as error:
        js.load_hardware(tmp_path / "mine.toml")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "words",
    ["--seconds 1", "--seconds nan", "--quick --seconds 50", "--timings absent/t.csv", "--plot figure.gif"],
)
def test_what_cannot_be_done_is_refused_before_anything_is_timed(words: str, tmp_path: Path, capsys):
    assert main(["measure", "--out", str(tmp_path / "chip.toml"), *words.split()]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) <= 2
    assert not list(tmp_path.iterdir())


def test_timed_programs_count_their_flop():
    square = program_of(TimedKernel("matmul", "dgrad", "bf16", 64, 32, 16))
    assert square.flop == 2 * 64 * 32 * 16
    assert square.bytes == 2 * (64 * 32 + 16 * 32 + 64 * 16)
    x, w = (jnp.ones(shape.shape, jnp.bfloat16) for shape in square.shapes)
    assert square.function(x, w).shape == (64, 16)


def test_timed_programs_compute_what_they_count():
    """One of each kind by its traced program: half the pairs of attention count, and scores twice in its gradient."""
    shares = {("attention", "forward"): 1.0 / 2.0, ("attention", "backward"): 7.0 / 6.0 / 2.0}
    kinds = {one[:2]: one for one in every_kernel("gpu") if one.op != "optimizer"}
    assert {op for op, _ in kinds} >= {"attention", "grouped_matmul", "launch", "matmul", "stream"}
    for kind, one in kinds.items():
        program = program_of(one)
        counted = float(trace(program.function, *program.shapes).flop("matmul"))
        assert program.flop == pytest.approx(shares.get(kind, 1.0) * counted), kind
        assert program.bytes > 0.0


def test_gradients_of_a_layer_have_the_flop_of_its_matmuls():
    """Up and down projection with both gradients, 8 t d^2 each, for t = 2 d and 8 d tokens at every width."""
    matmuls = [one for one in every_kernel("gpu") if one.op == "matmul" and not one.m == one.k == one.n]
    widths = {min(one.m, one.k, one.n) for one in matmuls}
    assert len(widths) >= 3
    for d in widths:
        found = [one for one in matmuls if min(one.m, one.k, one.n) == d]
        flops = sorted(program_of(one).flop for one in found)
        assert flops == [8 * tokens * d * d for tokens in (2 * d, 8 * d) for _ in range(4)]
        assert sorted(one.variant for one in found) == sorted(2 * ("forward", "forward", "dgrad", "wgrad"))


@pytest.mark.slow
def test_two_devices_are_measured_end_to_end(tmp_path: Path):
    command = [sys.executable, "-m", "jaxscale", "measure", "--out", "cpu.toml", "--timings", "cpu.csv", "--json"]
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    command = ["env", *(f"{key}={value}" for key, value in flags.items()), *command, "--seconds", "30"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    document = json.loads(done.stdout)
    hardware = js.load_hardware(tmp_path / "cpu.toml")
    assert hardware["cpu"].numbers["domain_size"] == 2.0
    with (tmp_path / "cpu.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == document["n_timings"]
    assert {"matmul", "stream", "launch", "all_reduce"} <= {row["op"] for row in rows}
    peak = 1e12 * hardware["cpu"].numbers["peak_tflops_fp32"]
    matmuls = [row for row in rows if row["op"] == "matmul" and row["dtype"] == "fp32"]
    assert all(float(row["flops"]) / float(row["median_s"]) <= peak * (1.0 + 1e-5) for row in matmuls)
