"""`jaxscale read`: a log to a table that `predict` answers."""

import csv

LINES = "\n".join(
    f" iteration {step}/ 100 | elapsed time per iteration (ms): {ms} | global batch size: 64 |"
    for step, ms in enumerate((9000, 2000, 2010, 1990), 1)
)
OPTIONS = (
    "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 1 --micro-batch-size 1 --seq-length 4096"
    " --bf16 --use-distributed-optimizer\n"
)


def test_a_log_becomes_a_table(run, tmp_path):
    log, launch, out = tmp_path / "train.log", tmp_path / "launch.sh", tmp_path / "runs.csv"
    log.write_text(LINES)
    launch.write_text(OPTIONS)
    stated = ("--set", "model=llama3-8b", "--set", "gpu=H100 SXM", "--set", "n_gpus=8")
    outcome = run("read", log, "--config", launch, *stated, "--out", out)
    assert outcome.code == 0 and "left open" not in outcome.err
    with out.open() as file:
        (row,) = csv.DictReader(file)
    assert (row["step_time_s"], row["tp"], row["zero_stage"], row["gpu"]) == ("2", "2", "1", "H100 SXM")
    predicted = run("predict", out, "--fit", "prior", "--json").json
    assert predicted["n_predicted"] == predicted["n"] == 1
    document = run("read", log, "--json").json
    assert "gpu" in document["rows"][0]["left_open"]
    assert document["rows"][0]["cells"]["global_batch_size_seqs"] == "64"


def test_refusals(run, tmp_path):
    log = tmp_path / "train.log"
    log.write_text("nothing\n")
    for arguments in (("read",), ("read", log), ("read", log, "--set", "gpu"), ("read", log, "--out", log)):
        outcome = run(*arguments)
        assert outcome.code == 2 and outcome.out == "" and outcome.err.count("\n") == 1
