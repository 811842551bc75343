"""Runs as arrays: buckets of rows, and what is taken of each row without its neighbours."""

import numpy as np
import pytest

import jaxscale as js
from jaxscale.base.documents import data_path
from jaxscale.hardware.catalogue import load_hardware
from jaxscale.models import model_fields
from jaxscale.runs import describe_rows
from jaxscale.runs.arrays import ROW_BUCKETS, assemble, bucket_of, padded
from jaxscale.runs.measured import describe_runs


@pytest.mark.parametrize("n", [1, 2, 127, 128, 129, 1000, ROW_BUCKETS[-1] - 1, ROW_BUCKETS[-1] + 1, 10**6])
def test_every_number_of_rows_has_a_bucket(n: int):
    assert n <= bucket_of(n) and bucket_of(bucket_of(n)) == bucket_of(n)


def test_small_tables_share_a_bucket():
    """Negative control: a large one has another."""
    assert {bucket_of(n) for n in range(1, 129)} == {128} != {bucket_of(129)}


def test_padding_copies_the_first_row_and_keeps_the_others():
    column, table = padded((np.asarray([3.0, 1.0, 2.0]), np.arange(6.0).reshape(3, 2)), 3)
    assert column.shape == (128,) and table.shape == (128, 2)
    np.testing.assert_array_equal(column[:4], [3.0, 1.0, 2.0, 3.0])
    np.testing.assert_array_equal(table[2:4], [[4.0, 5.0], [0.0, 1.0]])


def test_sharding_is_inferred_of_each_row_alone():
    """A table of mixed plans says the same of a row as one that has no other row."""
    runs = js.read_runs(data_path("runs") / "nvidia_nemo_perf_summary.csv")
    described = describe_runs(runs)
    inferred = described.is_inferred_fsdp
    assert described.batch is not None and inferred.any() and not inferred.all()
    rows = [*np.flatnonzero(inferred)[:4], *np.flatnonzero(~inferred)[:4]]
    models = model_fields()
    stated = [describe_rows(runs.take(described.index[[row]]), lambda name: models.get(name.lower())) for row in rows]
    alone = [assemble(row, load_hardware()).plan.zero_stage[0] for row in stated]
    np.testing.assert_array_equal(alone, np.asarray(described.batch.plan.zero_stage)[rows])
    assert alone[0] != stated[0].numbers["zero_stage"][0]


A_RECIPE = {
    "source": "mine", "gpu": "h100-sxm", "n_gpus": 512, "seq_len": 8192, "tp": 1, "pp": 1, "dp": 512, "zero_stage": 3,
    "micro_batch_size": 1, "global_batch_size_seqs": 512, "framework": "torchtitan",
}  # fmt: skip


def test_selective_by_operation_keeps_no_matmul_of_routed_experts():
    """Negative controls: dense layers keep more, and full recomputation drops all of either."""
    words = ("selective", "selective", "full")
    rows = [
        A_RECIPE | {"activation_recompute": word, "model": name}
        for word, name in zip(words, ("qwen3-30b-a3b", "llama3-8b", "qwen3-30b-a3b"), strict=True)
    ]
    batch = describe_runs(js.read_runs(rows)).batch
    assert batch is not None
    np.testing.assert_allclose(batch.plan.recompute_full, [0.8, 0.6, 1.0])
    # As much of a forward pass is done again as of dense layers.
    again = np.asarray(batch.plan.recompute_full * batch.plan.recompute_cost)
    np.testing.assert_allclose(again[:2], again[0])
