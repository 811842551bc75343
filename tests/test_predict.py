"""Predictions for rows of a table: complete, incomplete, measured, planned."""

import numpy as np
import pytest

import jaxscale as js
from jaxscale.models.transformer import model_flops
from jaxscale.runs import write_table

HEADER = (
    "framework,n_layers,d_model,n_heads,seq_len,gpu,n_gpus,tp,pp,micro_batch_size,global_batch_size_seqs,"
    "step_time_s,status,peak_mem_gb,tokens_per_s_per_gpu,dp,cp,precision"
).split(",")
PLANNED = ["nanotron", "32", "4096", "32", "4096", "h100-80gb", "64", "4", "1", "1", "256", "", "", "", "", "", "", ""]


def _table(tmp_path, *changes: dict[str, str]) -> js.Runs:
    rows = [[change.get(name, cell) for name, cell in zip(HEADER, PLANNED, strict=True)] for change in changes]
    path = tmp_path / "runs.csv"
    write_table(path, HEADER, rows)
    return js.read_runs(path)


@pytest.fixture(scope="module")
def default() -> js.Fit:
    return js.load_fit("default")


def test_terms_add_up_and_interval_brackets(tmp_path, default: js.Fit):
    prediction = js.predict(_table(tmp_path, {}, {"tp": "8"}), default)
    np.testing.assert_allclose(sum(prediction.terms.values()), prediction.step_time, rtol=1e-6)
    assert (prediction.lo < prediction.step_time).all() and (prediction.step_time < prediction.hi).all()
    assert (prediction.memory_lo < prediction.memory).all() and (prediction.memory < prediction.memory_hi).all()


def test_measured_columns_are_never_read(tmp_path, default: js.Fit):
    planned = js.predict(_table(tmp_path, {}), default)
    measured = js.predict(_table(tmp_path, {"step_time_s": "123", "status": "ok"}), default)
    other = js.predict(_table(tmp_path, {"tp": "8"}), default)
    np.testing.assert_array_equal(planned.step_time, measured.step_time)
    assert planned.step_time[0] != other.step_time[0]
    assert np.isnan(planned.measured[0]) and measured.measured[0] == 123.0


def test_incomplete_rows_are_kept_with_a_reason(tmp_path, default: js.Fit):
    prediction = js.predict(_table(tmp_path, {}, {"seq_len": ""}), default)
    assert np.isfinite(prediction.step_time[0]) and np.isnan(prediction.step_time[1])
    assert "seq_len" in prediction.notes[1]


def test_a_throughput_without_chips_is_an_incomplete_row(tmp_path, default: js.Fit):
    prediction = js.predict(_table(tmp_path, {}, {"n_gpus": "", "tokens_per_s_per_gpu": "5000"}), default)
    assert np.isnan(prediction.measured[1]) and "n_gpus" in prediction.notes[1]


def test_sharding_that_is_assumed_is_told(tmp_path, default: js.Fit):
    """Ranks of replicas and of a context-parallel group share the weights of a model that does not fit."""
    large = {"framework": "nemo", "n_layers": "80", "d_model": "8192", "n_heads": "64", "tp": "1"}
    rows = [{**large, "n_gpus": "8", "dp": dp, "cp": cp} for dp, cp in (("8", ""), ("2", "4"), ("1", "8"))]
    prediction = js.predict(_table(tmp_path, {}, *rows), default)
    assert ["zero_stage is empty: taken as 3" in note for note in prediction.notes] == [False, True, True, True]
    np.testing.assert_allclose(prediction.memory[1:] / prediction.memory[1], 1.0, atol=0.6)


def test_an_optimizer_that_does_not_fit_is_sharded(tmp_path, default: js.Fit):
    """Replicas of 7e9 parameters hold 18 byte of each without ZeRO; ZeRO 1 and chips of 192 GB need no FSDP."""
    shape = {"n_layers": "32", "d_model": "4096", "n_heads": "32", "n_gpus": "8", "tp": "1", "dp": "8"}
    rows = [{**shape, "framework": "megatron-deepspeed"}, {**shape, "framework": "nemo"}]
    rows.append({**rows[0], "gpu": "b200"})
    notes = js.predict(_table(tmp_path, *rows), default).notes
    assert ["zero_stage is empty: taken as 3" in note for note in notes] == [True, False, False]


def test_a_format_that_the_chip_lacks_is_told_and_no_slower(tmp_path, default: js.Fit):
    formats = ("bf16", "fp8", "fp4")
    rows = [{"gpu": gpu, "precision": precision} for gpu in ("a100-80gb", "h100-80gb") for precision in formats]
    prediction = js.predict(_table(tmp_path, *rows), default)
    told = ["states no peak in" in note for note in prediction.notes]
    assert told == [False, True, True, False, False, True]
    assert (prediction.step_time[1:3] <= 1.02 * prediction.step_time[0]).all()
    assert prediction.step_time[4] < prediction.step_time[3]


def test_a_plan_that_cannot_be_is_predicted_with_a_note(tmp_path, default: js.Fit):
    prediction = js.predict(_table(tmp_path, {}, {"tp": "3", "n_gpus": "24"}), default)
    assert "predicted" not in prediction.notes[0]
    assert "predicted although tp = 3 must divide n_heads" in prediction.notes[1]
    assert np.isfinite(prediction.step_time).all()


def test_no_name_of_a_framework_narrows_the_interval_of_a_stack_that_was_never_fitted(tmp_path, default: js.Fit):
    """A fitted stack has the interval of its own runs; another with the same framework that of unknown stacks."""
    fitted = {"source": "mosaic_llm_foundry", "framework": "llm-foundry"}
    others = ({"framework": name, "source": ""} for name in ("llm-foundry", "new-thing"))
    header, planned = (*HEADER, "source"), (*PLANNED, "")
    rows = [[row.get(name, cell) for name, cell in zip(header, planned, strict=True)] for row in (fitted, *others)]
    write_table(tmp_path / "runs.csv", header, rows)
    prediction = js.predict(js.read_runs(tmp_path / "runs.csv"), default)
    width = np.log(prediction.hi / prediction.lo)
    assert width[0] < 0.6 * width[1] and width[1] == pytest.approx(width[2])
    assert "new-thing" in prediction.notes[2] and "new-thing" not in prediction.notes[1]


def test_out_of_memory_probability_follows_the_batch(tmp_path, default: js.Fit):
    sizes = [{"micro_batch_size": str(size)} for size in (1, 4, 16)]
    prediction = js.predict(_table(tmp_path, *sizes), default)
    assert (np.diff(prediction.memory) > 0.0).all()
    assert (np.diff(prediction.oom_probability) >= 0.0).all()
    assert prediction.fits[0] and not prediction.fits[2]


def test_a_fit_may_be_a_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("[coefficients]\nmatmul_efficiency = 0.5\n")
    runs = _table(tmp_path, {})
    assert js.predict(runs, path).step_time == js.predict(runs, js.load_fit(path)).step_time


def test_a_fit_may_be_named(tmp_path, default: js.Fit):
    runs = _table(tmp_path, {})
    assert js.predict(runs, "default").step_time == js.predict(runs, default).step_time == js.predict(runs).step_time
    with pytest.raises(js.InputError, match="fit 'nothing' is not shipped"):
        js.predict(runs, "nothing")


def test_memory_is_compared_where_it_was_measured(tmp_path, default: js.Fit):
    peak = float(js.predict(_table(tmp_path, {}), default).memory[0]) / 1e9
    errors = js.predict(_table(tmp_path, {"peak_mem_gb": f"{2.0 * peak:.9g}"}, {}), default).errors()
    assert (errors["n_memory"], errors["n"]) == (1, 0)
    assert errors["memory_mape"] == pytest.approx(50.0, abs=1e-3)


def test_the_case_of_names_does_not_matter(tmp_path, default: js.Fit):
    small, capital = js.predict(_table(tmp_path, {"framework": "nanotron"}, {"framework": "Nanotron"}), default).hi
    assert small == capital


def test_errors_are_those_of_the_measured_rows(tmp_path, default: js.Fit):
    blind = js.predict(_table(tmp_path, {}), default)
    assert blind.errors()["mape"] is None
    time = float(blind.step_time[0])
    rows = [{"step_time_s": f"{time:.9g}", "status": "ok"}, {"step_time_s": f"{2.0 * time:.9g}", "status": "ok"}]
    errors = js.predict(_table(tmp_path, *rows), default).errors()
    assert errors["n"] == 2
    assert errors["mape"] == pytest.approx(25.0, abs=1e-3)
    assert errors["by"]["framework"]["nanotron"]["n"] == 2


@pytest.mark.parametrize("status", ["ok", ""])
def test_a_measured_run_without_a_status_ended(tmp_path, default: js.Fit, status: str):
    """Two measured runs, one of which is said not to fit, one that ran out of memory, one planned."""
    large = {"micro_batch_size": "64", "global_batch_size_seqs": "1024"}
    rows = [{"step_time_s": "1", "status": status}, {**large, "step_time_s": "9", "status": status}]
    rows += [{**large, "status": "oom", "peak_mem_gb": "79"}, large]
    prediction = js.predict(_table(tmp_path, *rows), default)
    assert prediction.status.tolist() == ["ok", "ok", "oom", ""]
    assert prediction.errors()["oom_accuracy"] == pytest.approx(2.0 / 3.0)
    assert prediction.errors()["n_memory"] == 0


def test_a_flop_rate_alone_is_a_time_where_its_convention_is_known():
    """A framework that counts attention in full says its flops; one of which nothing is known may count any."""
    run = {"n_layers": 32, "d_model": 4096, "n_heads": 32, "seq_len": 4096, "gpu": "h100-80gb", "n_gpus": 8, "tp": 1}
    run |= {"pp": 1, "micro_batch_size": 1, "global_batch_size_seqs": 64, "tflops_per_gpu": 400.0}
    table = {name: [value] * 2 for name, value in run.items()} | {"framework": ["maxtext", "somebody's own"]}
    found = js.predict(table)
    flop = float(model_flops(js.Transformer(32, 4096, 32, 4096))) * 64 * 4096
    np.testing.assert_allclose(found.measured[0], flop / (8 * 400e12), rtol=1e-5)
    assert np.isnan(found.measured[1])
