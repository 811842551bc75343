"""Paces of traced workloads: recovered, shrunk, with intervals that hold, beside fits of models in one table."""

import csv
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxscale as js
from jaxscale.base.documents import data_path
from jaxscale.calibration.kernel_coefficients import kernel_priors
from jaxscale.calibration.levels import Levels
from jaxscale.calibration.record import WorkloadPace, paces_of
from jaxscale.fitting import fitting
from jaxscale.runs.arrays import Measured

CHIPS = {
    "NVIDIA A100-PCIe-80GB": "a100-80gb-pcie",
    "NVIDIA H100-PCIe-80GB": "h100-80gb-pcie",
    "NVIDIA H100-SXM5-80GB": "h100-80gb",
}
"""Chips of MLPerf submissions that the catalogue has, as these spell them."""

START = js.load_fit()
"""The shipped fit, read once."""

Rows = Sequence[dict[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two workloads, each of two large matmuls."""

    def step(weights: dict[str, jax.Array], x: jax.Array) -> dict[str, jax.Array]:
        def loss(w: dict[str, jax.Array]) -> jax.Array:
            return jnp.sum((jax.nn.relu(x @ w["up"]) @ w["down"]) ** 2)

        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))

    folder = tmp_path_factory.mktemp("workloads")
    shape = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.bfloat16)
    work = js.trace(step, {"up": shape((8192, 4096)), "down": shape((4096, 8192))}, shape((1024, 8192)))
    for name in ("one.json", "other.json"):
        work.save(folder / name)
    return folder


def read(folder: Path, rows: Rows) -> js.Runs:
    """A table of rows with different columns."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [",".join(columns), *(",".join(str(row.get(name, "")) for name in columns) for row in rows)]
    (folder / "runs.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return js.read_runs(folder / "runs.csv")


def rows_of(workload: str, gpu: str, batches: Sequence[int]) -> Rows:
    """Rows of one chip."""
    return [{"workload": workload, "gpu": gpu, "n_gpus": 1, "global_batch_size_seqs": batch} for batch in batches]


def measured(folder: Path, rows: Rows, paces: Sequence[float], seed: int = 0, noise: float = 0.02) -> js.Runs:
    """The rows with the times of steps that take so much longer than predicted, with some noise."""
    times = js.predict(read(folder, rows), fit=START).step_time
    times = times * np.exp(np.asarray(paces) + noise * np.random.default_rng(seed).normal(size=len(rows)))
    return read(folder, [{**row, "step_time_s": time} for row, time in zip(rows, times, strict=True)])


def pace_of(fit: js.Fit, workload: str, gpu: str) -> WorkloadPace:
    """Pace of a workload on a chip."""
    return next(pace for pace in fit.paces if (pace.workload, pace.gpu) == (workload, gpu))


BATCHES = tuple(range(8192, 40960, 4096))


def test_known_paces_are_recovered_and_predict_further_rows(folder: Path):
    rows = [
        row
        for workload, gpu in (("one.json", "h100-80gb"), ("one.json", "a100-80gb"), ("other.json", "h100-80gb"))
        for row in rows_of(workload, gpu, BATCHES)
    ]
    paces = np.repeat([0.25, 0.1, -0.15], len(BATCHES))
    result = js.fit(measured(folder, rows, paces), start=START, name="mine")
    assert isinstance(result, js.PaceResult) and result.n == len(rows)
    assert [
        pace_of(result.fit, one, gpu).log_pace
        for one, gpu in (("one.json", "h100-80gb"), ("one.json", "a100-80gb"), ("other.json", "h100-80gb"))
    ] == pytest.approx([0.25, 0.1, -0.15], abs=0.03)
    assert result.mape_cv < 4.0 < 12.0 < result.mape_before
    # A saved fit predicts further rows as this one does, nearer than before, with intervals that hold.
    result.save(folder / "mine.toml")
    kept = js.load_fit(folder / "mine.toml")
    further = measured(folder, rows, paces, seed=1)
    before, after = (js.predict(further, fit=fit).errors() for fit in (START, kept))
    assert after["mape"] < 4.0 < 12.0 < before["mape"] and after["coverage_90"] >= 0.85
    found, again = (js.predict(further, fit=fit) for fit in (result.fit, kept))
    assert again.step_time == pytest.approx(found.step_time, rel=1e-4)
    assert sum(found.terms.values()) == pytest.approx(found.step_time, rel=1e-5)
    assert np.all(found.hi / found.lo < 1.25) and not any(found.notes)


def test_one_row_moves_its_workload_on_its_chip_and_little_else(folder: Path):
    true = 0.2
    start = measured(folder, rows_of("one.json", "h100-80gb", (16384,)), [true], noise=0.0)
    one = js.fit(start, start=START).fit
    pace = pace_of(one, "one.json", "h100-80gb")
    assert 0.8 * true < pace.log_pace < true
    # Small paces shrink as normal ones do: spread over spread and noise, here of one measurement.
    spreads = kernel_priors()["paces"]
    variance = spreads["workload"]["spread"] ** 2 + spreads["workload_on_chip"]["spread"] ** 2
    small = js.fit(measured(folder, rows_of("one.json", "h100-80gb", (16384,)), [0.01], noise=0.0), start=START).fit
    shrunk = 0.01 * variance / (variance + spreads["noise"]["spread"] ** 2)
    assert pace_of(small, "one.json", "h100-80gb").log_pace == pytest.approx(shrunk, rel=0.1)
    assert pace.log_pace - pace.half_width < true < pace.log_pace + pace.half_width
    many = js.fit(
        measured(folder, rows_of("one.json", "h100-80gb", BATCHES), [true] * len(BATCHES), noise=0.0), start=START
    ).fit
    of_many = pace_of(many, "one.json", "h100-80gb")
    assert abs(of_many.log_pace - true) < 0.3 * abs(pace.log_pace - true) and of_many.half_width < pace.half_width
    # On another chip the interval is wide; another workload stays where it was, and more chips have the usual interval.
    others = [
        *rows_of("one.json", "a100-80gb", (16384,)),
        *rows_of("other.json", "h100-80gb", (16384,)),
        {"workload": "one.json", "gpu": "h100-80gb", "n_gpus": 8, "dp": 8, "global_batch_size_seqs": 131072},
    ]
    runs = read(folder, others)
    before, after = (js.predict(runs, fit=fit) for fit in (START, one))
    ratio = after.step_time / before.step_time
    assert 1.0 < ratio[0] < 1.0 + 0.25 * true and ratio[1] == pytest.approx(1.0, abs=1e-6)
    assert ratio[2] == pytest.approx(np.exp(pace.log_pace), rel=1e-4)
    assert np.log(after.hi / after.lo)[0] > 2.0 * pace.half_width
    assert (after.hi / after.lo)[1:] == pytest.approx((before.hi / before.lo)[1:], rel=1e-5)


def test_a_workload_of_twice_the_predicted_time_is_followed(folder: Path):
    """Heavy tails: no row of a slow workload is taken for a wrong one; a wrong row among many is."""
    slow = measured(folder, rows_of("one.json", "h100-80gb", (16384,)), [0.7], noise=0.0)
    pace = pace_of(js.fit(slow, start=START).fit, "one.json", "h100-80gb")
    assert pace.log_pace == pytest.approx(0.7, abs=0.03) and pace.half_width < 0.15
    paces = [0.1] * (len(BATCHES) - 1) + [0.8]
    one_wrong = js.fit(measured(folder, rows_of("one.json", "h100-80gb", BATCHES), paces, noise=0.0), start=START).fit
    assert pace_of(one_wrong, "one.json", "h100-80gb").log_pace == pytest.approx(0.1, abs=0.02)


def test_rows_without_a_pace_of_their_own_leave_the_prediction(folder: Path):
    """Negative control: what is measured as predicted has no pace, and scatter alone widens the interval."""
    rows = rows_of("one.json", "h100-80gb", BATCHES)
    as_predicted = js.fit(measured(folder, rows, [0.0] * len(rows), noise=0.0), start=START).fit
    scattered = js.fit(measured(folder, rows, [0.0] * len(rows), noise=0.2), start=START).fit
    exact, wide = (pace_of(fit, "one.json", "h100-80gb") for fit in (as_predicted, scattered))
    assert (
        abs(exact.log_pace) < 1e-3 and abs(wide.log_pace) < wide.half_width and wide.half_width > 3 * exact.half_width
    )


def test_a_fit_goes_on_from_the_paces_of_its_start(folder: Path):
    rows = rows_of("one.json", "h100-80gb", BATCHES)
    runs = measured(folder, rows, [0.3] * len(rows), noise=0.0)
    first = js.fit(runs, start=START).fit
    second = js.fit(runs, start=first)
    assert isinstance(second, js.PaceResult)
    assert second.mape_before < 1.0
    assert pace_of(second.fit, "one.json", "h100-80gb").log_pace == pytest.approx(0.3, abs=0.005)


def test_a_table_of_both_kinds_fits_each(folder: Path, bloom_fit: js.FitResult, monkeypatch: pytest.MonkeyPatch):
    """Rows of models go to the fit of coefficients, rows of workloads to that of paces, about its outcome."""
    with (data_path("runs") / "bigscience_bloom_a100.csv").open(encoding="utf-8", newline="") as stream:
        models = [row for row in csv.DictReader(stream) if row["status"] == "ok" and row["n_heads"]]
    rows = rows_of("one.json", "h100-80gb", BATCHES[:4])
    times = measured(folder, rows, [0.2] * len(rows), noise=0.0).numbers("step_time_s")
    workloads = [{**row, "step_time_s": time} for row, time in zip(rows, times, strict=True)]
    given = []

    def fit_measured(runs: Measured, **_: Any) -> js.FitResult:
        given.append(runs)
        return bloom_fit

    monkeypatch.setattr(fitting, "fit_measured", fit_measured)
    both = js.fit(read(folder, [*models[:2], *workloads, *models[2:]]), start=START, name="both")
    assert isinstance(both, js.FitResult) and both.paces is not None and both.paces.n == 4
    assert both.fit.pooled == bloom_fit.fit.pooled and not bloom_fit.fit.paces
    assert 0.15 < pace_of(both.fit, "one.json", "h100-80gb").log_pace < 0.2
    (alone,) = given
    assert len(alone.step_time) == bloom_fit.n and both.paces.rows.lines.tolist() == [4, 5, 6, 7]
    assert both.summary().endswith(f"\n\n{both.paces.summary()}")


def test_a_row_that_cannot_be_fitted_is_told(folder: Path):
    with pytest.raises(js.InputError, match="no row of a traced workload can be fitted.*none has one"):
        js.fit(read(folder, rows_of("one.json", "h100-80gb", (8192,))))
    with pytest.raises(js.InputError, match="line 2: missing n_gpus"):
        js.fit(read(folder, [{"workload": "one.json", "gpu": "h100-80gb", "n_gpus": "", "step_time_s": 0.1}]))


def mlperf_rows(benchmarks: Sequence[str], workload: str) -> Rows:
    """Rows of MLPerf of up to 8 chips, by chip and batch."""
    with data_path("workloads/mlperf_vision.csv").open(encoding="utf-8", newline="") as stream:
        return [
            {
                **{"workload": workload, "gpu": CHIPS[one["accelerator"]], "n_gpus": one["n_accelerators"]},
                **{"dp": one["n_accelerators"], "global_batch_size_seqs": one["global_batch_size"].split(".")[0]},
                **{"joint_statistics": "false", "step_time_s": one["step_time_s"]},
            }
            for one in csv.DictReader(stream)
            if one["benchmark"] in benchmarks
            and one["accelerator"] in CHIPS
            and float(one["gradient_accumulation_steps"] or 1) == 1
            and int(one["n_accelerators"]) <= 8
        ]


@pytest.mark.parametrize(
    ("benchmarks", "workload"),
    [(("unet3d",), "unet3d"), pytest.param(("ssd", "retinanet"), "retinanet", marks=pytest.mark.slow)],
)
def test_one_row_of_each_workload_and_chip_predicts_the_others(
    tmp_path: Path, benchmarks: Sequence[str], workload: str
):
    rows = mlperf_rows(benchmarks, workload)
    seen = [next(row for row in rows if row["gpu"] == gpu) for gpu in CHIPS.values()]
    others = [row for row in rows if row not in seen]
    fit = js.fit(read(tmp_path, seen), start=START).fit
    runs = read(tmp_path, others)
    before, after = (js.predict(runs, fit=one).errors() for one in (START, fit))
    assert after["n"] == len(others) > 25
    assert after["median_ape"] < 3.0 < before["median_ape"] and after["coverage_90"] > 0.85


def test_paces_fall_back_from_pair_to_workload_to_chip():
    paces = (
        WorkloadPace("a", "x", 0.1, 0.05, 8.0),
        WorkloadPace("a", "", 0.2, 0.3, 8.0),
        WorkloadPace("", "x", 0.3, 0.3, 8.0),
    )
    names = (("a", "x"), ("a", "y"), ("b", "x"), ("b", "y"), ("a", "x"))
    levels = Levels.of_rows([{"architecture": workload, "gpu": gpu} for workload, gpu in names])
    found = paces_of(paces, levels, np.asarray([8.0, 1.0, 1.0, 1.0, 9.0]))
    assert found.log_pace.tolist() == [0.1, 0.2, 0.3, 0.0, 0.1]
    assert np.isfinite(found.half_width).tolist() == [True, True, False, False, False]
    assert found.is_measured.tolist() == [True, True, False, False, True]
