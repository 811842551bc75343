"""One question, one answer: rows of a runs table and deployments of trends take the same time."""

import numpy as np
import pytest

from jaxscale.runs import read_runs
from jaxscale.runs.predict import predict
from jaxscale.trends.deployment_library import deployment
from jaxscale.trends.layout import ParallelLayout
from jaxscale.trends.outcome import scaling_outcomes

CHIPS, DEGREES = (128, 2048), (1, 2, 4)
COLUMNS = "model,gpu,framework,n_gpus,tp,pp,seq_len,micro_batch_size,global_batch_size_seqs"


def table_of_runs(folder, framework):
    """Weak scaling with two sequences per chip, which names nothing but the framework besides degrees and batch."""
    rows = [f"llama2-7b,h100-80gb,{framework},{n},{tp},1,4096,{2 * tp},{2 * n}" for n in CHIPS for tp in DEGREES]
    path = folder / f"{framework}.csv"
    path.write_text("\n".join([COLUMNS, *rows]) + "\n", encoding="utf-8")
    return read_runs(path)


def times_of_trends(setup, zero_stage=3.0):
    """Step time of the same runs [s]."""
    n, tp = (np.asarray(column, float) for column in zip(*((n, tp) for n in CHIPS for tp in DEGREES), strict=True))
    return np.asarray(scaling_outcomes(setup, ParallelLayout(tp=tp, zero_stage=zero_stage), n, 2.0 * n).times.total)


@pytest.fixture(scope="module")
def predicted(tmp_path_factory):
    return predict(table_of_runs(tmp_path_factory.mktemp("runs"), "pytorch-fsdp")).step_time


def test_rows_and_trends_take_the_same_time(paper, predicted):
    assert times_of_trends(paper) == pytest.approx(predicted, rel=1e-6)


@pytest.mark.parametrize("other", [{"framework": "torchtitan"}, {"framework": "llm-foundry"}, {"fit": "prior"}])
def test_another_framework_or_fit_takes_another(predicted, other):
    assert np.abs(times_of_trends(deployment(**other)) / predicted - 1.0).max() > 0.01


@pytest.mark.parametrize("framework", ["nemo", "torchtitan"])
def test_frameworks_that_split_norms_and_overlap_agree_as_well(tmp_path, framework):
    """Their defaults differ with tp, and by execution, dispatcher and loss; the ZeRO stage is that of the layout."""
    runs = table_of_runs(tmp_path, framework)
    stage = 3.0 if framework == "torchtitan" else 1.0
    times = times_of_trends(deployment(framework=framework), zero_stage=stage)
    assert times == pytest.approx(predict(runs).step_time, rel=1e-6)


def test_throughput_falls_as_published_and_tensor_parallelism_takes_over(predicted):
    """-37 % per chip from 128 to 2,048 chips without tensor parallelism; the fastest degree there is 2 or 4.

    Nothing is fitted to the fall. Latencies that are measured on collectives alone foretell -31.8 %.
    """
    few, many = predicted.reshape(len(CHIPS), len(DEGREES))
    assert few[0] / many[0] - 1.0 == pytest.approx(-0.37, abs=0.055)
    assert DEGREES[int(np.argmin(few))] == 1
    assert DEGREES[int(np.argmin(many))] in (2, 4)
