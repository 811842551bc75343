"""`jaxscale plan`: JSON, models and chips of the user's own, refusals."""

import dataclasses

import numpy as np
import pytest

from jaxscale.calibration.record import load_fit
from jaxscale.models import model
from jaxscale.plans.plan import Plan
from jaxscale.plans.rules import violations

SMALL = ("plan", "--model", "llama3-8b", "--gpu", "h100-80gb", "--n-gpus", 16, "--global-batch", 32, "--fit", "prior")


def test_json(run):
    document = run(*SMALL, "--seq-len", 4096, "--top", 3, "--json").json
    assert {"best", "top", "searched", "exhaustive_optimum"} <= set(document)
    assert document["best"] == document["top"][0]
    assert len(document["top"]) == 3
    assert document["searched"] > 100
    assert document["exhaustive_optimum"] is True
    times = [plan["step_time_s"] for plan in document["top"]]
    assert times == sorted(times)
    words = dict(document["best"])
    figures = {name: words.pop(name) for name in ("step_time_s", "mfu", "memory_gb", "oom_probability")}
    assert 0.0 < figures["mfu"] < 1.0
    assert figures["memory_gb"] < 80.0
    lo, hi = document["step_time_interval_s"]
    assert lo < figures["step_time_s"] < hi
    plan = Plan(**words)
    assert violations(model("llama3-8b", seq_len=4096), plan, 16.0) == []
    assert plan.global_batch_size_seqs == 32.0


def test_table(run):
    outcome = run(*SMALL, "--top", 2)
    assert outcome.code == 0
    assert "Fastest plans" in outcome.out
    assert "90 % interval of the first plan's step: " in outcome.out


def test_model_and_chip_from_files(run, tmp_path):
    model, chip = tmp_path / "model.toml", tmp_path / "chip.toml"
    model.write_text("n_layers = 8\nd_model = 1024\nn_heads = 8\nseq_len = 1024\ngated_mlp = true\n")
    chip.write_text('[chips."my-chip"]\nmemory_gb = 64\nmemory_gb_per_s = 2000\npeak_tflops_bf16 = 300\n')
    arguments = ("plan", "--model", model, "--gpu", "my-chip", "--n-gpus", 4, "--global-batch", 8, "--fit", "prior")
    assert run(*arguments, "--hardware", chip, "--json").json["best"]["step_time_s"] > 0.0
    assert "'my-chip' is not in the hardware catalogue" in run(*arguments).err


def test_a_lower_accepted_risk_leaves_more_memory_free(run):
    """One 8B model on 8 chips of 40 GB: the fastest plan fills them as far as the risk allows."""
    arguments = ["plan", "--model", "llama3-8b", "--gpu", "a100-40gb", "--n-gpus", 8, "--global-batch", 32]
    risks = {risk: run(*arguments, "--oom-probability", risk, "--json").json["best"] for risk in (0.1, 0.5)}
    assert risks[0.1]["oom_probability"] <= 0.1
    assert risks[0.1]["memory_gb"] <= risks[0.5]["memory_gb"]
    assert risks[0.1]["step_time_s"] >= risks[0.5]["step_time_s"]


def test_framework_and_precision(run):
    """Plans take what the framework fixes, and the speed of its fitted runs."""
    arguments = ("plan", "--model", "llama3-8b", "--gpu", "h100-80gb", "--n-gpus", 16, "--global-batch", 32)
    plain, named, narrow = (
        run(*arguments, "--top", 1, "--json", *more).json["best"]
        for more in ((), ("--framework", "NeMo"), ("--framework", "nemo", "--precision", "fp8"))
    )
    assert plain["gradient_bytes"] == 4.0
    assert named["gradient_bytes"] == narrow["gradient_bytes"] == 2.0
    assert (named["precision"], narrow["precision"]) == ("bf16", "fp8")
    assert narrow["step_time_s"] < named["step_time_s"] != plain["step_time_s"]


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--n-gpus", 0, "--n-gpus = 0 is out of range"),
        ("--global-batch", -8, "--global-batch = -8 is out of range"),
        ("--global-batch", "4M", "--global-batch = 4M is neither sequences nor tokens; expected sequences"),
        ("--top", 0, "--top = 0 is out of range"),
        ("--seq-len", 0, "--seq-len = 0 is out of range"),
        ("--model", "gpt-9", "model 'gpt-9' is not in the catalogue"),
        ("--gpu", "potato", "gpu 'potato' is not in the hardware catalogue"),
        ("--fit", "potato", "fit 'potato' is not shipped"),
        ("--framework", "potato", "--framework = 'potato' is unknown; known: "),
        ("--framework", "torchtian", "--framework = 'torchtian' is unknown; did you mean torchtitan"),
        ("--write", "nanotronn", "--write = 'nanotronn' has no writer; did you mean nanotron?"),
        ("--precision", "fp3", "precision = 'fp3'; expected one of"),
        ("--oom-probability", 1.5, "--oom-probability = 1.5 is out of range; expected a number between 0 and 1"),
    ],
)
def test_refusals(run, option, value, expected):
    arguments = list(SMALL)
    if option in arguments:
        arguments[arguments.index(option) + 1] = value
    else:
        arguments += [option, value]
    outcome = run(*arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    assert expected in outcome.err
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n_layers = 8\nd_model = 1024\n", "missing n_heads"),
        ("n_layers = 8\nd_model = 1024\nheads = 8\n", "'heads' is not a field of a model; did you mean n_heads"),
        ('n_layers = "8"\n', "is not a number"),
        ("n_layers = 3.5\nd_model = 1024\nn_heads = 8\n", "n_layers = 3.5 is no whole number"),
        ("n_layers = 8\nd_model = 1024\nn_heads = -1\n", "expected a number above 0"),
        ("n_layers = \n", "not valid TOML"),
        ('model = "llama"\n', "model = 'llama' is no table; expected [model]"),
    ],
)
def test_a_model_file_with_a_mistake(run, tmp_path, text, expected):
    path = tmp_path / "model.toml"
    path.write_text(text)
    arguments = list(SMALL)
    arguments[2] = path
    outcome = run(*arguments)
    assert outcome.code == 2
    assert outcome.err.startswith(f"jaxscale: {path}: ")
    assert expected in outcome.err


def test_a_format_that_the_chip_lacks_is_told(run):
    arguments = list(SMALL)
    arguments[4] = "A100-80GB"
    outcome = run(*arguments, "--precision", "FP8", "--seq-len", 2048, "--top", 1)
    assert outcome.code == 0
    assert "a100-80gb states no peak in fp8: 1 x peak_tflops_bf16" in outcome.err
    assert "states no peak" not in run(*SMALL, "--precision", "fp8", "--seq-len", 2048, "--top", 1).err


def test_the_frameworks_of_a_fit_are_named_where_none_is_chosen(run, tmp_path):
    """A fit of runs of two: neither is meant, so their common values answer, and that is said."""
    start = load_fit("prior")
    own = (("framework", "mine"), ("framework", "nemo"), ("source", "here/nemo"))
    fit = dataclasses.replace(start, name="mine", fitted=own)
    fit.save(tmp_path / "own.toml")
    alone = (*SMALL[:-1], tmp_path / "own.toml", "--seq-len", 2048, "--top", 1)
    assert "--framework" not in run(*alone).err
    dataclasses.replace(fit, parent=start).save(tmp_path / "own.toml")
    assert "the fit knows runs of mine, nemo: name one by --framework" in run(*alone).err
    assert "name one" not in run(*alone, "--framework", "nemo").err


def test_a_batch_for_any_number_of_chips_is_told(run):
    """1,000 chips have 5^3 among their factors: dp must have what tp and pp cannot take."""
    arguments = list(SMALL)
    arguments[6], arguments[8] = 1000, 256
    refusal = run(*arguments).err
    assert "dp must divide the batch; expected a multiple of one of 5," in refusal
    arguments[8] = 1000
    assert run(*arguments, "--top", 1).code == 0


RUN = (*SMALL, "--seq-len", 4096, "--tokens", "1e11", "--price", 2)


def test_the_whole_run(run):
    """Days, price and energy stand on the screen and in the document, which without a goal has none."""
    document = run(*RUN, "--objective", "energy", "--open", "chips", "--top", 2, "--json").json
    whole = document["run"]
    assert whole["objective"] == "energy" and "run" not in run(*SMALL, "--top", 1, "--json").json
    step, energy = whole["step"], whole["energy"]
    assert energy["energy_mwh"] <= step["energy_mwh"] and step["n_chips"] == 16
    assert step["days"] == pytest.approx(1e11 / (32 * 4096) * step["step_time_s"] / step["goodput"] / 86400, rel=1e-6)
    assert step["price"] == pytest.approx(16 * step["days"] * 24 * 2, rel=1e-6)
    assert document["best"]["dp"] == energy["plan"]["dp"]
    lo, hi = whole["days_interval"]
    assert lo < energy["days"] < hi
    screen = run(*RUN, "--open", "chips", "--top", 2).out
    assert "The whole run" in screen and "least energy: " in screen and "interruptions, one in" in screen
    worse = run(*RUN, "--interruptions", 5, "--top", 1, "--json").json["run"]["step"]
    assert worse["days"] > step["days"] and worse["goodput"] < step["goodput"]


def test_skewed_experts(run):
    """The screen tells the load of the hottest rank and what is dropped, by sums; equal experts are not told."""
    mixture = ("plan", "--model", "qwen3-30b-a3b", "--gpu", "h100-80gb", "--n-gpus", 32, "--global-batch", 64)
    mixture = (*mixture, "--fit", "prior", "--set", "ep=8", "--set", "pp=1", "--top", 1)
    even, skewed = run(*mixture), run(*mixture, "--set", "expert_skew=0.5", "--set", "capacity_factor=1.5")
    assert "experts: the hottest" not in even.out
    share = np.arange(1, 129) ** -0.5
    taken = np.minimum(share / share.sum(), 1.5 / 128.0)
    load = 8.0 * taken.reshape(-1, 8).sum(axis=0).max()
    assert f"experts: the hottest of 8 ranks has {load:.2f} times the mean tokens" in skewed.out
    assert f"{100.0 * (1.0 - taken.sum()):.1f} % of the copies are dropped" in skewed.out


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (("--price", 2), "--price is of a whole run; expected --tokens or --loss beside it"),
        (("--open", "chips"), "--open is of a whole run"),
        (("--tokens", "1e11", "--loss", 2), "--tokens beside --loss"),
        (("--tokens", "1e11", "--objective", "price"), "--objective price needs --price"),
        (("--tokens", "1e11", "--objective", "speed"), "objective = 'speed' is unknown; expected one of step"),
        (("--loss", 1.0), "loss = 1 is out of reach; expected between"),
        (("--tokens", "1e11", "--interruptions", 0), "interruptions = 0 is out of range"),
        (("--tokens", "1e11", "--open", "batch", "--against", "x.csv"), "--against beside --open"),
    ],
)
def test_refusals_of_a_run(run, more, expected):
    outcome = run(*SMALL, *more)
    assert outcome.code == 2 and expected in outcome.err


def test_a_recipe_without_interleaving_is_not_given_any(run, tmp_path):
    recipe = tmp_path / "recipe.sh"
    options = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --micro-batch-size 1 --bf16"
    recipe.write_text(f"torchrun --nproc-per-node 8 pretrain_gpt.py {options} --use-distributed-optimizer\n")
    place = ("--model", "llama3-8b", "--gpu", "h100-80gb", "--n-gpus", 8, "--global-batch", 64, "--fit", "prior")
    theirs = run("plan", *place, "--against", recipe, "--json").json["against"]["theirs"]
    assert (theirs["pp"], theirs["vpp"], theirs["schedule"], theirs["cp"]) == (2, 1, "1f1b", 1)
    cells = ("model=llama3-8b", "gpu=h100-80gb", "n_gpus=8", "seq_len=8192", "global_batch_size_seqs=64")
    stated = [part for cell in cells for part in ("--set", cell)]
    assert run("read", recipe, *stated, "--out", tmp_path / "runs.csv").code == 0
    (row,) = run("predict", tmp_path / "runs.csv", "--fit", "prior", "--json").json["predictions"]
    assert theirs["step_time_s"] == pytest.approx(row["predicted_step_time_s"], rel=1e-5)


def test_links_between_nodes(run, tmp_path):
    """Two nodes have one order; its links are told, and the rest of a run is for another question."""
    file = tmp_path / "links.csv"
    file.write_text("node,a,b\na,,20\nb,30,\n")
    found = run(*SMALL, "--top", 1, "--links", file, "--json").json["placement"]
    assert sorted(found["nodes"]) == ["a", "b"]
    assert found["gain"] >= 0.0
    assert f"nodes in order: {' '.join(found['nodes'])}" in run(*SMALL, "--top", 1, "--links", file).out
    assert (
        "--links beside --tokens or --loss; expected one of them" in run(*SMALL, "--links", file, "--tokens", 1e12).err
    )
    wide = ("plan", "--model", "llama3-8b", "--gpu", "h100-80gb", "--n-gpus", 32, "--global-batch", 32)
    assert "links of 2 nodes: 32 chips, 8 in a node, make 4 nodes" in run(*wide, "--links", file).err
