"""Rows that name a traced workload: the same prediction as by hand, open rows completed, bad rows told in one line."""

import csv
from pathlib import Path

import numpy as np
import pytest

import jaxscale as js
from jaxscale.base.documents import data_path
from jaxscale.costs.step import TERM_NAMES
from jaxscale.examples import decoder_steps

SHAPE = {"n_layers": 2, "d_model": 512, "n_heads": 4, "n_kv_heads": 4, "d_ff": 2048, "vocab_size": 8192}
BATCH, SPLIT = "tokens[1]", ("state.0.down[1]", "state.0.key[2].0")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> tuple[js.Workload, Path]:
    """A small decoder, and the folder with its file."""
    folder = tmp_path_factory.mktemp("workloads")
    traced = js.trace(*decoder_steps.decoder(**SHAPE))
    traced.save(folder / "decoder.json")
    return traced, folder


def table(folder: Path, *rows: dict[str, str]) -> Path:
    """A table of rows with different columns."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    path = folder / "runs.csv"
    lines = [",".join(columns), *(",".join(row.get(name, "") for name in columns) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def row(**cells: object) -> dict[str, str]:
    """A row that names the decoder."""
    return {"workload": "decoder.json", "gpu": "h100-80gb", **{name: str(cell) for name, cell in cells.items()}}


def model_row(**cells: object) -> dict[str, str]:
    """A row that names a model."""
    shape = {"model": "llama3-8b", "seq_len": "8192", "tp": "8", "pp": "1", "micro_batch_size": "1", "gpu": "h100-80gb"}
    return {**shape, "n_gpus": "8", "global_batch_size_seqs": "64", **{name: str(cell) for name, cell in cells.items()}}


def test_predictions_are_those_of_the_plan_that_a_row_states(work: tuple[js.Workload, Path]):
    traced, folder = work
    runs = table(
        folder,
        row(n_gpus=1),
        row(n_gpus=8, dp=8, global_batch_size_seqs=64),
        row(n_gpus=8, dp=8, zero_stage=3, global_batch_size_seqs=64, n_microbatches=2),
        row(n_gpus=8, dp=2, tp=4, pp=1, global_batch_size_seqs=64, split_classes="+".join(SPLIT)),
    )
    found = js.predict(js.read_runs(runs))
    larger = traced.with_sizes({BATCH: 64})
    plans = [
        (traced, js.class_plan(traced)),
        (larger, js.class_plan(larger, data=8)),
        (larger, js.class_plan(larger, data=8, shard=8, n_microbatches=2)),
        (larger, js.class_plan(larger, data=2, tensor=4, split=SPLIT)),
    ]
    coefficients = js.load_fit("default").coefficients({"framework": "jax", "gpu": "h100-80gb"})
    for place, (one, plan) in enumerate(plans):
        cluster = js.cluster("h100-80gb", 8 if place else 1)
        terms = js.step_time(one, plan, cluster, coefficients)
        assert found.step_time[place] == pytest.approx(float(terms.total), rel=1e-5)
        held = js.memory(one, plan, cluster, coefficients)
        assert found.memory[place] == pytest.approx(float(held.allocated), rel=1e-5)
        for name in TERM_NAMES:
            assert found.terms[name][place] == pytest.approx(float(getattr(terms, name)), rel=1e-4, abs=1e-12)
    assert np.all((found.lo < found.step_time) & (found.step_time < found.hi))
    assert np.all(found.assumed[1:] == "") and len(set(found.step_time.tolist())) == 4


def test_an_open_row_gets_the_best_plan(work: tuple[js.Workload, Path]):
    traced, folder = work
    found = js.predict(js.read_runs(table(folder, row(n_gpus=8, global_batch_size_seqs=16), row(n_gpus=8, tp=2))))
    best = js.best_plan(traced, js.cluster("h100-80gb", 8), 16).best  # pyright: ignore[reportAttributeAccessIssue]
    assert found.step_time[0] <= best.step_time * 1.02
    assert found.assumed[0].startswith(f"dp = {best.plan.data:g}, tp = {best.plan.tensor:g}")
    assert found.hi[0] / found.step_time[0] > found.step_time[0] / found.lo[0] > 1.0  # alternatives are slower
    assert "tp =" not in found.assumed[1] and "split_classes = state.0" in found.assumed[1]


def test_models_and_workloads_share_a_table(work: tuple[js.Workload, Path]):
    _, folder = work
    alone = js.predict(js.read_runs(table(folder, model_row(step_time_s=9.0))))
    mixed = js.predict(
        js.read_runs(table(folder, row(n_gpus=1), model_row(step_time_s=9.0), row(n_gpus=1, step_time_s=0.5)))
    )
    assert mixed.step_time[1] == alone.step_time[0] and mixed.terms["matmul"][1] == alone.terms["matmul"][0]
    assert mixed.step_time[0] == mixed.step_time[2]  # a measured time steers nothing
    assert mixed.measured[2] == 0.5 and mixed.errors()["n"] == 2


def test_eager_frameworks_have_kernels_of_their_own(work: tuple[js.Workload, Path]):
    _, folder = work
    runs = table(folder, row(n_gpus=1), row(n_gpus=1, framework="torchtitan"), row(n_gpus=1, framework="jax"))
    compiled, eager, named = js.predict(js.read_runs(runs), fit="prior").step_time
    assert compiled == named != eager


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (row(n_gpus=1) | {"workload": "resnet51"}, r"'workload' = 'resnet51': unknown workload; .* resnet50"),
        (row(n_gpus=1, n_layers=4, seq_len=128), r"columns of a model too \(n_layers, seq_len\); expected either"),
        (row(n_gpus=1, model="llama3-8b"), r"columns of a model too \(model\); expected either"),
        (row(n_gpus=8, dp=4, cp=2), r"'cp' = '2': plans of a traced workload have no such degree; expected an empty"),
        (row(n_gpus=8, dp=8, zero_stage=1), r"'zero_stage' = '1': .*; expected 0, 3 or an empty cell"),
        (row(n_gpus=8, dp=8, table_placement="spread"), r"'table_placement' = 'spread': not known; expected one of"),
    ],
)
def test_a_bad_row_gets_one_clear_line(work: tuple[js.Workload, Path], bad: dict[str, str], told: str):
    _, folder = work
    path = table(folder, row(n_gpus=1), bad)
    with pytest.raises(js.InputError, match=told) as error:
        js.read_runs(path)
    assert "\n" not in str(error.value) and f"{path}:3: column" in str(error.value)
    assert len(js.read_runs(path, skip_bad=True)) == 1


def test_a_file_that_holds_no_workload_is_told(work: tuple[js.Workload, Path]):
    _, folder = work
    (folder / "other.json").write_text("{}", encoding="utf-8")
    with pytest.raises(js.InputError, match="other.json.*holds no workload"):
        js.read_runs(table(folder, row(n_gpus=1) | {"workload": "other.json"}))


def test_a_plan_that_there_is_not_leaves_its_row_unanswered(work: tuple[js.Workload, Path]):
    _, folder = work
    runs = table(folder, row(n_gpus=8, tp=8, pp=1, dp=1, split_classes="tokens[1]"), row(n_gpus=6, pp=3), row())
    found = js.predict(js.read_runs(runs), fit="prior")
    assert np.isnan(found.step_time).all()
    assert "cannot be split over tensor" in found.notes[0] and "no plan of decoder.json" in found.notes[1]
    assert found.notes[2] == "missing n_gpus"


def test_norms_over_the_whole_batch_wait_for_each_other(tmp_path: Path):
    rows = [
        {"workload": "resnet50", "gpu": "h100-80gb", "n_gpus": str(n), "dp": str(n), "joint_statistics": joint}
        for n, joint in ((8, ""), (8, "false"), (1, ""), (1, "false"))
    ]
    found = js.predict(js.read_runs(table(tmp_path, *rows)), fit="prior")
    assert found.terms["data_parallel"][0] > found.terms["data_parallel"][1]
    assert found.step_time[2] == found.step_time[3] and found.terms["matmul"][0] == found.terms["matmul"][1]


def test_steps_measured_on_one_chip_are_predicted(tmp_path: Path):
    """ResNet-50 and DiT-XL/2 on one H100, of which the coefficients saw neither."""
    with data_path("workloads/h100_jax_workloads.csv").open(encoding="utf-8", newline="") as stream:
        measured = [one for one in csv.DictReader(stream) if one["workload"] in ("resnet50", "dit-xl")]
    names = {"resnet50": "resnet50", "dit-xl": "dit"}
    rows = [
        {
            **{"workload": names[one["workload"]], "gpu": "h100-80gb", "n_gpus": "1"},
            **{"global_batch_size_seqs": one["batch"], "step_time_s": one["step_time_s"]},
        }
        for one in measured
    ]
    found = js.predict(js.read_runs(table(tmp_path, *rows))).errors()
    assert found["n"] == len(measured) >= 5 and found["mape"] < 12.0 and found["coverage_90"] == 1.0
    halved = [{**one, "step_time_s": str(float(one["step_time_s"]) / 3)} for one in rows]
    assert js.predict(js.read_runs(table(tmp_path, *halved))).errors()["coverage_90"] == 0.0


CHIPS = {
    "NVIDIA A100-PCIe-80GB": "a100-80gb-pcie",
    "NVIDIA H100-PCIe-80GB": "h100-80gb-pcie",
    "NVIDIA H100-SXM5-80GB": "h100-80gb",
}
"""Chips of MLPerf submissions that the catalogue has, as these spell them."""


def rows_of_residual_networks(least: int, most: int) -> list[dict[str, str]]:
    """Rows of ResNet-50 of MLPerf on so many chips, in MXNet, as a runs table has them."""
    with data_path("workloads/mlperf_vision.csv").open(encoding="utf-8", newline="") as stream:
        measured = [
            one
            for one in csv.DictReader(stream)
            if one["benchmark"] == "resnet"
            and one["accelerator"] in CHIPS
            and float(one["gradient_accumulation_steps"] or 1) == 1
        ]
    return [
        {
            **{"workload": "resnet50", "gpu": CHIPS[one["accelerator"]], "n_gpus": one["n_accelerators"]},
            **{"dp": one["n_accelerators"], "global_batch_size_seqs": one["global_batch_size"].split(".")[0]},
            **{"execution": "cuda-graphs", "joint_statistics": "false", "step_time_s": one["step_time_s"]},
        }
        for one in measured
        if least <= int(one["n_accelerators"]) <= most
    ]


@pytest.mark.parametrize(("least", "most", "mean", "median"), [(1, 8, 8.0, 4.0), (64, 4000, 5.0, 5.0)])
def test_residual_networks_with_fused_norms_are_predicted(
    tmp_path: Path, least: int, most: int, mean: float, median: float
):
    """ResNet-50 of MLPerf in MXNet, whose norms are fused with activation and addition; none was seen by a fit."""
    rows = rows_of_residual_networks(least, most)
    fused = js.predict(js.read_runs(table(tmp_path, *({**one, "fused_norm": "true"} for one in rows)))).errors()
    assert fused["n"] == len(rows) > 5 and fused["mape"] < mean and fused["median_ape"] < median
    assert js.predict(js.read_runs(table(tmp_path, *rows))).errors()["median_ape"] > 15.0
