"""A launch file placed among the plans of a search is the run that `read` and `predict` see in the file."""

import math
from pathlib import Path

import pytest

import jaxscale as js
from jaxscale.calibration.record import load_fit
from jaxscale.cli.plan import row_plan, stated_row
from jaxscale.launch.readers.read_run import LAUNCH_ENDINGS, run_of
from jaxscale.plans.best_plan import scored_plans
from jaxscale.plans.plan_questions import plan_question
from jaxscale.runs.defaults import known_frameworks
from jaxscale.runs.schema import MODEL_FIELDS

FOLDER = Path(__file__).parent / "files"
FILES = sorted(path.name for path in FOLDER.iterdir() if path.suffix in LAUNCH_ENDINGS)
HARDWARE, FIT = js.load_hardware(), load_fit("prior")


@pytest.mark.parametrize("name", FILES)
def test_a_launch_file_has_the_time_and_memory_of_its_row(name: str):
    row = stated_row(FOLDER / name, HARDWARE)
    row = {column: value for column, value in row.items() if column not in MODEL_FIELDS}
    model = "mixtral-8x7b" if (row.get("ep") or 1.0) > 1.0 else "llama3-8b"
    ranks = math.prod(row.get(column) or 1.0 for column in ("tp", "pp", "cp"))
    chips = row.get("n_gpus") or ranks * (row.get("dp") or 8.0)
    batch = chips / ranks * (row.get("micro_batch_size") or 1.0) * (row.get("n_microbatches") or 8.0)
    run = {"model": model, "gpu": "h100-80gb", "n_gpus": chips, "seq_len": 4096.0}
    run["global_batch_size_seqs"] = row.get("global_batch_size_seqs") or batch
    prediction = js.predict({**row, **run}, FIT)
    framework = row.get("framework") if row.get("framework") in known_frameworks() else None
    cells = {"gpu": "h100-80gb", "framework": framework, "precision": row.get("precision") or "bf16"}
    cluster = js.cluster("h100-80gb", int(chips))
    question = plan_question(js.model(model, seq_len=4096), cluster, run["global_batch_size_seqs"], cells)
    plan = row_plan(model, question, row, FIT, HARDWARE)
    assert plan is not None
    (placed,) = scored_plans(question.task(FIT), question.usable(FIT), [plan])
    assert placed.step_time == pytest.approx(prediction.step_time[0], rel=1e-5)
    assert placed.memory == pytest.approx(prediction.memory[0], rel=1e-5)


PIPELINE = (
    "torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py --tensor-model-parallel-size 4"
    " --pipeline-model-parallel-size 2 --num-layers 32 --seq-length 4096 --bf16 --use-distributed-optimizer"
)


@pytest.mark.parametrize(
    ("options", "chunks"),
    [
        ("", "1"),
        (" --num-layers-per-virtual-pipeline-stage 16", "1"),
        (" --num-layers-per-virtual-pipeline-stage 4", "4"),
        (" --num-layers-per-virtual-pipeline-stage $LAYERS", None),
    ],
)
def test_degrees_without_an_option_are_one(tmp_path: Path, options: str, chunks: str | None):
    path = tmp_path / "a.sh"
    path.write_text(PIPELINE + options)
    cells = run_of(path).cells
    assert (cells.get("vpp"), cells["cp"], cells["ep"]) == (chunks, "1", "1")


def test_a_degree_of_an_unknown_variable_stays_open(tmp_path: Path):
    path = tmp_path / "a.sh"
    path.write_text(f"{PIPELINE} --context-parallel-size $CP")
    assert "cp" not in run_of(path).cells
