"""Integer designs lose nothing against brute force, keep what is stated, and are those that `plan` gives."""

import dataclasses
import importlib
import math
from pathlib import Path

import numpy as np
import pytest

import jaxscale as js
from jaxscale.base.arrays import number
from jaxscale.designs import rounding
from jaxscale.designs.shape_report import shape_report
from jaxscale.models.transformer import Transformer, n_params

LEVELS = {"gpu": "h100-80gb", "precision": "bf16"}


@pytest.fixture(scope="module")
def oracle():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[2] / "fits"))
        module = importlib.import_module("design_oracle")
        patch.setattr(module, "PLANS", 12)
        yield module


@pytest.fixture(scope="module")
def eight():
    """Ten days of eight H100, beside Llama 3 8B."""
    like = js.model("llama3-8b")
    return js.best_design(js.cluster("h100-80gb", 8), js.Budget(days=10), levels=LEVELS, like=like)


def test_no_design_of_a_wide_lattice_is_better(oracle, eight):
    """Some 1e5 exact designs by laws written out again; a built model of another size loses against them."""
    least, judged = oracle.brute_force(oracle.Case("h100-80gb", 8, 10.0), eight)
    assert judged > 5e4
    assert math.exp(eight.rounded.objective) < 1.01 * least
    assert math.exp(eight.like.objective) > 1.01 * least


def test_bounds_are_kept_without_loss(oracle):
    case = oracle.Case("a100-80gb", 16, 7.0, bounds=(("batch", 1.5e5),))
    levels = {**LEVELS, "gpu": "a100-80gb"}
    found = js.best_design(js.cluster("a100-80gb", 16), js.Budget(days=7), levels=levels, bounds=dict(case.bounds))
    assert found.to_json()["global_batch_tokens"] <= 1.5e5
    least, _ = oracle.brute_force(case, found)
    assert math.exp(found.rounded.objective) < 1.01 * least


def test_built_models_are_priced_with_their_best_plan(eight):
    """The plan of the built model is the one that the planner gives; the design costs less."""
    like = eight.like
    assert float(n_params(like.model)) == float(n_params(js.model("llama3-8b"))) and eight.like_cost > 0.0
    best = js.best_plan(like.model, js.cluster("h100-80gb", 8), number(like.plan.global_batch_size_seqs), levels=LEVELS)
    ours = eight.relaxed.problem.figures(like.values)["step_time_s"]
    assert ours == pytest.approx(best.best.step_time, rel=1e-6)
    document = eight.to_json()
    assert document["like"]["n_layers"] == 32 and document["like"]["loss"] > document["loss"]


@pytest.mark.parametrize(
    "cells", [{"framework": "megatron-lm"}, {"framework": "torchtitan", "optimizer_bytes": 8.0, "tp": 2}]
)
def test_shape_and_plan_give_one_answer(cells):
    """The design's plan, time and memory are those that `plan` gives for its model, batch and software."""
    from jaxscale.plans.best_plan import answered
    from jaxscale.plans.plan_questions import plan_question

    machine = js.cluster("h100-80gb", 16)
    document = shape_report("h100-80gb", 16, js.Budget(days=5), cells=cells)
    sizes = {name: document[name] for name in ("n_layers", "d_model", "n_heads", "n_kv_heads", "head_dim", "d_ff")}
    shape = Transformer(**sizes, seq_len=document["seq_len"], vocab_size=document["vocab_size"], gated_mlp=True)
    assert float(n_params(shape)) == pytest.approx(document["params"], rel=1e-9)
    batch = round(document["global_batch_tokens"] / document["seq_len"])
    stated = {"gpu": "h100-80gb", "precision": "bf16", **cells}
    best = answered(plan_question(shape, machine, batch, stated), js.load_fit()).best
    assert document["step_time_s"] == pytest.approx(best.step_time, rel=1e-6)
    assert document["memory_gb"] == pytest.approx(best.memory / 1e9, rel=1e-6)
    assert best.oom_probability <= 0.1
    assert document["plan"]["optimizer_bytes"] == best.plan.words()["optimizer_bytes"]
    if "tp" in cells:
        assert document["plan"]["tp"] == 2


def test_an_optimum_that_its_integer_design_beats_is_not_certified(eight):
    assert "certified as a local optimum" in eight.certificate
    better = eight.rounded._replace(objective=eight.relaxed.objective - 0.02)
    beaten = dataclasses.replace(eight, rounded=better)
    assert "not certified" in beaten.certificate and not beaten.to_json()["certified"]


def test_experts_stay_within_their_chips():
    """A bound on the chips of the experts, or on all weights, is kept, and bites."""
    machine, common = js.cluster("h100-80gb", 64), {"template": "mixtral-8x7b", "levels": LEVELS, "n_starts": 12}
    free = js.best_design(machine, js.Budget(days=10), **common)
    served = 0.5 * free.to_json()["serving_memory_gb"]
    bounds = {"expert_chips": 2.0, "serving_memory": served * 1e9}
    kept = js.best_design(machine, js.Budget(days=10), bounds=bounds, **common)
    assert kept.rounded.plan.ep <= 2.0 and kept.to_json()["serving_memory_gb"] <= served
    assert kept.rounded.objective > free.rounded.objective
    assert kept.prices["bound_on_serving_memory"] < 0.0


def test_relaxed_designs_of_like_sizes_count_once(eight):
    near = eight.relaxed.design
    assert len(rounding._unlike([near, near])) == 1
    far = near._replace(model=dataclasses.replace(near.model, d_model=2.0 * np.asarray(near.model.d_model)))
    assert len(rounding._unlike([near, far])) == 2
