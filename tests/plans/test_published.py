"""Published runs: valid plans, the batch they state, and a choice that is at least as fast by the model."""

import pytest

from jaxscale.base.errors import InputError
from jaxscale.calibration.memory_limit import probability_of_oom
from jaxscale.calibration.record import load_fit
from jaxscale.costs.memory import memory
from jaxscale.models import model
from jaxscale.models.transformer import model_flops, n_params
from jaxscale.plans.against import asked, compare_design, published_designs
from jaxscale.plans.plan import Plan
from jaxscale.plans.rules import violations

NAMES = list(published_designs())


@pytest.mark.parametrize("name", NAMES)
def test_published_plans_are_valid(name):
    design = published_designs()[name]
    plan = Plan(**design["plan"])
    assert violations(model(design["model"], seq_len=design["seq_len"]), plan, design["n_gpus"]) == []
    assert plan.global_batch_size_seqs == design["global_batch_size_seqs"]
    assert design["source"] and design["date"] and design["note"]


def tokens_per_second(design):
    return design["global_batch_size_seqs"] * design["seq_len"] / design["step_time_s"]


def test_step_times_are_the_published_throughputs():
    """Llama 3: 400 Tflop/s per GPU; Megatron: 163 with recomputation; PaLM: 46.2 % MFU of 275 Tflop/s."""
    designs = published_designs()
    llama, palm, megatron = (designs[name] for name in ("llama3-405b", "palm-540b", "megatron-1t"))
    per_token = float(model_flops(model("llama3.1-405b", seq_len=8192), causal=True))
    assert per_token * tokens_per_second(llama) / 16384 == pytest.approx(400e12, rel=0.02)
    palm_flops = float(model_flops(model("palm-540b", seq_len=2048)))
    assert palm_flops * tokens_per_second(palm) / 6144 / 275e12 == pytest.approx(0.462, rel=0.02)
    eight = 8.0 * float(n_params(model("megatron-1t"))) * tokens_per_second(megatron) / 3072
    assert eight == pytest.approx(163e12, rel=0.03)


FULL = {"llama3-405b": 0.55, "deepseek-v3": 0.4}
"""Runs that fill their chips, as their reports say, and what the model gives them: see docs/choose.md."""


@pytest.mark.parametrize("name", NAMES)
def test_published_plans_are_allowed(name):
    """Each ran: it has a probability of running out of at most 0.25."""
    design = published_designs()[name]
    question, plan = asked(design)
    fit = load_fit("default")
    peak = memory(question.model, plan, question.cluster, fit.coefficients(question.levels, question.n_chips))
    risk = probability_of_oom(float(peak.total), float(peak.capacity), question.usable(fit))
    assert risk <= FULL.get(name, 0.25)


@pytest.mark.parametrize("name", ["bloom-176b", "mpt-30b"])
def test_the_choice_is_no_slower_by_the_model(name):
    comparison = compare_design(name, "prior")
    if comparison.memory <= comparison.choice.memory_limit:
        assert comparison.gain >= -1e-9
    assert comparison.choice.best.memory <= comparison.choice.memory_limit
    assert abs(comparison.error) < 0.6
    assert all(before != after for before, after in comparison.differences.values())


def test_an_unknown_run_is_refused():
    with pytest.raises(InputError, match="expected one of llama3-405b"):
        compare_design("gpt-9")
