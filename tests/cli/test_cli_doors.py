"""From a config.json to launch settings in three commands, and back."""

import json
import sys


def test_from_a_configuration_to_a_launch(run, tmp_path, llama_config):
    config, launch = tmp_path / "config.json", tmp_path / "launch.sh"
    config.write_text(json.dumps(llama_config))
    assert "8.03e9 parameters" in run("model", config).out
    cluster = ("--gpu", "H100 SXM", "--n-gpus", 16, "--global-batch", "64", "--seq-len", 4096, "--fit", "prior")
    plan = ("plan", "--model", config, *cluster, "--top", 1)
    document = run(*plan, "--write", "megatron-lm", "--json").json
    launch.write_text(document["settings"]["text"])
    (row,) = run("read", launch, "--json").json["rows"]
    best, cells = document["settings"]["plan"], row["cells"]
    assert document["settings"]["not_expressed"] == [] and len(document["top"]) == 1
    assert (float(cells["tp"]), float(cells["pp"])) == (best["tp"], best["pp"])
    assert float(cells["global_batch_size_seqs"]) == 64.0
    refused = run(*plan, "--write", "pax")
    assert refused.code == 2 and "--write = 'pax' has no writer" in refused.err


def test_the_page_says_what_it_needs(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "marimo", None)  # as where it is not installed
    refused = run("explore")
    assert refused.code == 2 and refused.err.count("\n") == 1
    assert 'pip install "jaxscale[explore]"' in refused.err


def test_choices_have_the_names_of_headings(run):
    """`--set` knows the further names of columns that a table of runs may have."""
    asked = ("predict", "--model", "llama2-7b", "--gpu", "h100-80gb", "--n-gpus", 16, "--global-batch", "64", "--json")
    steps = [
        run(*asked, "--set", f"{name}={size}").json["predictions"][0]["predicted_step_time_s"]
        for name, size in (("micro_batch_size", 4), ("mbs", 4), ("mbs", 1))
    ]
    assert steps[0] == steps[1] != steps[2]
    twice = run(*asked, "--set", "mbs=4", "--set", "micro_batch_size=1")
    assert twice.code == 2 and "states micro_batch_size twice" in twice.err


def test_a_ranking_of_stated_choices(run):
    plan = ("plan", "--model", "llama2-7b", "--gpu", "h100-80gb", "--n-gpus", 16, "--global-batch", "64")
    stated = run(*plan, "--fit", "prior", "--set", "tp=2", "--set", "recompute=full", "--json").json
    assert {(row["tp"], row["recompute"]) for row in stated["top"]} == {(2, "full")}
    assert len({row["tp"] for row in run(*plan, "--fit", "prior", "--top", 40, "--json").json["top"]}) > 1
    for choice, words in (
        ("tq=2", "no such column; expected one like tp"),
        ("tp=two", "expected a whole number"),
        ("recompute=some", "full"),
    ):
        refused = run(*plan, "--set", choice)
        assert refused.code == 2 and words in refused.err


def test_a_file_in_the_wrong_place_is_told(run, tmp_path, monkeypatch):
    """A file where a name or a different kind of file belongs: missing, a file of chips, or a table."""
    monkeypatch.chdir(tmp_path)
    for name, more in (("runs", "notes"), ("served", "ISL"), ("trained", "Sequence Length")):
        (tmp_path / f"{name}.csv").write_text(f"model,gpu,{more}\nllama3-8b,h100-80gb,1024\n")
    chips = ("plan", "--model", "llama3-8b", "--n-gpus", 8, "--global-batch", 8, "--gpu", "chips.toml")
    for words, expected in (
        (("hardware", "chips.toml"), "chips.toml: cannot be read (no such file"),
        (chips, "beside --hardware chips.toml"),
        (("model", "runs.csv"), "a table, where JSON is expected; `jaxscale predict` takes"),
        (("predict", "served.csv"), "a table of serving is read by `jaxscale serving predict`"),
        (("serving", "predict", "trained.csv"), "a table of training runs is read by `jaxscale predict`"),
        (("measure", "--out", "chip.csv"), "expected .toml at its end"),
    ):
        refused = run(*words)
        assert refused.code == 2 and expected in refused.err
