"""`jaxscale predict` of one run by options."""

import json

import pytest

ONE = ("predict", "--model", "meta-llama/Llama-3.1-8B", "--gpu", "H100 SXM", "--n-gpus", 8, "--fit", "prior")


def test_one_run_is_completed(run):
    document = run(*ONE, "--global-batch", "0.25M tokens", "--seq-len", 4096, "--json").json
    (prediction,) = document["predictions"]
    assert prediction["predicted_step_time_s"] > 0.0
    assert "micro_batch_size = " in prediction["predicted_assumed"]
    stated = run(
        *ONE, "--global-batch", 64, "--seq-len", 4096, "--set", "tp=2", "--set", "micro_batch_size=1", "--json"
    )
    (other,) = stated.json["predictions"]
    assert other["predicted_assumed"] is None
    assert other["predicted_step_time_s"] >= prediction["predicted_step_time_s"] * (1 - 1e-6)


def test_notes_of_one_run_stand_below_it(run):
    line = (*ONE[:-2], "--global-batch", 64, "--seq-len", 4096)
    outcome = run(*line)
    head, row, blank, *notes = outcome.out.splitlines()[1:]
    document = run(*line, "--json").json
    assert "note" not in head and row.startswith("meta-llama/Llama-3.1-8B") and not blank
    assert notes and "; ".join(notes) == document["predictions"][0]["predicted_note"]


def test_a_model_from_a_file(run, tmp_path):
    config = {"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32}
    config |= {
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    # A stated length holds beside the file's.
    arguments = ("--seq-len", 2048, "--global-batch", 64, "--json")
    named = run(*ONE, *arguments).json["predictions"][0]
    own = run(*ONE[:2], file, *ONE[3:], *arguments).json["predictions"][0]
    assert own["predicted_step_time_s"] == pytest.approx(named["predicted_step_time_s"], rel=1e-4)
    told = run(*ONE[:2], file, *ONE[3:], *arguments[2:]).err
    assert "sequences of 4,096 tokens, as in pretraining; the file allows 131,072; state --seq-len" in told


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("predict",), "no table and no --model, --gpu, --n-gpus"),
        ((*ONE, "--set", "colour=red"), "--set colour: no such column"),
        ((*ONE, "--set", "tp=three"), "tp = 'three': not a number"),
        ((*ONE, "--framework", "megatorn"), "--framework = 'megatorn' is unknown; did you mean megatron-lm"),
        ((*ONE[:4], "H100", *ONE[5:]), "--gpu = 'H100': ambiguous"),
        ((*ONE, "--global-batch", "many"), "--global-batch = 'many': not a number"),
    ],
)
def test_refusals(run, arguments, expected):
    outcome = run(*arguments)
    assert outcome.code == 2 and outcome.out == ""
    assert expected in outcome.err and outcome.err.count("\n") == 1
