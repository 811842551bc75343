"""`jaxscale trace`: the document of a step, and of what a compiler makes of it."""

import json
from pathlib import Path

import pytest

import jaxscale as js
from jaxscale.tracing import absent_devices

SMALL = ("--set", "n_layers=2", "d_model=64", "n_heads=4", "n_kv_heads=4", "d_ff=256", "vocab_size=512")
STEP = ("trace", "jaxscale.examples:decoder", *SMALL)


def test_a_step_is_saved_and_told(run, tmp_path: Path):
    outcome = run(*STEP, "--out", tmp_path / "work.json", "--gpu", "h100-80gb", "--json")
    assert outcome.code == 0, outcome.err
    document, saved = json.loads(outcome.out), js.load_workload(tmp_path / "work.json")
    assert document["flop"] == pytest.approx(float(saved.flop()))
    assert sum(document["terms_s"].values()) == pytest.approx(document["step_time_s"])
    assert "compiled" not in document


def test_arguments_may_be_set_together_or_one_by_one(run):
    together = run(*STEP, "--json").json
    alone = [word for pair in SMALL[1:] for word in ("--set", pair)]
    assert run("trace", "jaxscale.examples:decoder", *alone, "--json").json["flop"] == together["flop"]
    twice = run("trace", "jaxscale.examples:decoder", *SMALL, "--set", "n_layers=4", "--json")
    assert twice.code == 2 and "--set n_layers=4 beside n_layers=2; expected one of them" in twice.err


DLRM = ("trace", "jaxscale.examples.recommendation_steps:square_dlrm", "--gpu", "a100-40gb", "--n-gpus", 128, "--json")


def test_a_plan_places_tables_and_shards_weights(run):
    """DLRM-A on 128 A100: the longest exchange is that of look-ups, 1.5 of the published 54 ms whatever the words."""
    copied, apart, sharded = (
        run(*DLRM, *plan).json for plan in ((), ("--plan", "tables=table"), ("--plan", "tables=table", "shard=128"))
    )
    assert 0.5 < apart["step_time_s"] / 54.0e-3 < 2.0 and copied["step_time_s"] > 50.0 * apart["step_time_s"]
    assert apart["terms_s"]["expert_parallel"] > 26.4e-3 > copied["terms_s"]["expert_parallel"]
    # Full sharding gathers twice and scatters once, and updates a share of the weights.
    assert sharded["terms_s"]["data_parallel"] > apart["terms_s"]["data_parallel"]
    assert sharded["terms_s"]["optimizer"] < apart["terms_s"]["optimizer"]
    assert 1.0 < sharded["step_time_s"] / apart["step_time_s"] < 72.96 / 54.0 * 1.05


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ("tabels=table", "did you mean tables"),
        ("shard=0", "whole number"),
        ("pipeline=3", "does not divide"),
        ("tables=nowhere", "expected table, row or replicated"),
    ],
)
def test_what_no_plan_has_is_refused_in_one_line(run, plan, message):
    outcome = run(*STEP, "--gpu", "h100-80gb", "--n-gpus", 8, "--plan", plan)
    assert outcome.code == 2 and message in outcome.err and len(outcome.err.strip().splitlines()) == 1
    assert "needs chips" in run(*STEP, "--plan", "shard=8").err


def test_what_a_compilation_lacks_is_told_in_one_line(run, monkeypatch: pytest.MonkeyPatch):
    outcome = run(*STEP, "--compile")
    assert outcome.code == 2 and outcome.err.strip().endswith(
        "--compile needs a chip; expected --gpu ID (see docs/workloads.md)"
    )
    monkeypatch.setattr(absent_devices, "PLUGIN", "jax_plugins.no_such_compiler")
    outcome = run(*STEP, "--compile", "--gpu", "h100-80gb")
    assert outcome.code == 2 and "expected `pip install 'jaxscale[aot]'" in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1


def test_a_chip_of_ones_own(run, tmp_path: Path):
    own = tmp_path / "own.toml"
    own.write_text('[chips."c"]\nmemory_gb = 64\nmemory_gb_per_s = 2000\npeak_tflops_bf16 = 300\n')
    slow = run(*STEP, "--gpu", "c", "--hardware", own, "--json").json["step_time_s"]
    own.write_text(own.read_text().replace("2000", "4000"))
    assert 0.0 < run(*STEP, "--gpu", "c", "--hardware", own, "--json").json["step_time_s"] < slow
    assert "'c' is not in the hardware catalogue" in run(*STEP, "--gpu", "c").err


OWN = """
import jax, jax.numpy as jnp
W, X = (jax.ShapeDtypeStruct((8, 8), jnp.float32) for _ in range(2))
def step(w, x): return (w @ x).sum()
def one(pair): return (pair[0] @ pair[1]).sum()
def alone(w): return (w @ w).sum()
def flat(): return step, W, X
def pair(): return step, (W, X)
def jitted(): return jax.jit(step), (W, X)
def tree(): return one, (W, X)
def single(): return alone, (W,)
def short(): return step, W
def text(): return step, (W, "a")
"""


def test_forms_of_a_step_and_its_arguments(run, tmp_path: Path, monkeypatch):
    (tmp_path / "own_step_forms.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    forms = ("flat", "pair", "jitted", "tree", "single")
    flop = {run("trace", f"own_step_forms:{form}", "--json").json["flop"] for form in forms}
    assert len(flop) == 1
    for form in ("short", "text"):
        outcome = run("trace", f"own_step_forms:{form}")
        assert outcome.code == 2 and len(outcome.err.strip().splitlines()) == 1, outcome.err
        assert "expected a tuple of a step and its arguments, as (step, state, batch) or" in outcome.err
