"""The best plan: it is the minimum, it fits, it says why, and impossible wishes get one clear line."""

import dataclasses
import json
import math

import numpy as np
import pytest

from jaxscale.base.errors import InputError
from jaxscale.calibration.memory_limit import MemoryLimit, memory_limit
from jaxscale.calibration.record import load_fit
from jaxscale.costs import evaluate
from jaxscale.costs.memory import memory
from jaxscale.costs.step import step_time
from jaxscale.hardware.catalogue import cluster
from jaxscale.models import model
from jaxscale.plans.best_plan import best_plan
from jaxscale.plans.choice import alternatives
from jaxscale.plans.enumerate import PlanSpace, PlanTable, enumerate_plans, within_domains
from jaxscale.plans.plan import Plan
from jaxscale.plans.plan_questions import every_plan, framework_space
from jaxscale.plans.rules import violations
from jaxscale.plans.score import FoundPlans, PlanTask, Scores, score_plans
from jaxscale.runs.predict import predict
from jaxscale.runs.reader import read_runs
from jaxscale.runs.run_levels import GUESSED
from jaxscale.runs.schema import COLUMNS

COEFFICIENTS = load_fit("prior").coefficients({"gpu": "h100-80gb"}, 32)
LLAMA, H100S = model("llama3-8b"), cluster("h100-80gb", 32)


@pytest.fixture(scope="module")
def choice():
    return best_plan(LLAMA, H100S, 256, fit="prior", top=20)


def test_scores_equal_the_model():
    table = enumerate_plans(LLAMA, 32, 256)
    scores = score_plans(LLAMA, table, H100S, COEFFICIENTS)
    for row in np.linspace(0, len(table) - 1, 3).astype(int):
        arguments = (LLAMA, table.plan(int(row)), H100S, COEFFICIENTS)
        assert scores.step_time[row] == pytest.approx(float(step_time(*arguments).total), rel=1e-5)
        assert scores.memory[row] == pytest.approx(float(memory(*arguments).total), rel=1e-5)


@pytest.mark.parametrize(
    ("name", "n_chips", "framework"), [("llama3-8b", 64, None), ("llama3-8b", 64, "nemo"), ("gpt2-small", 1, "hf")]
)
def test_table_row_of_the_best_plan_is_predicted_alike(tmp_path, name, n_chips, framework):
    """A plan as one row of a table has the time, the interval and the memory that it was chosen by."""
    levels = {"gpu": "h100-80gb", "precision": "bf16", "framework": framework}
    space, machine = framework_space(framework), cluster("h100-80gb", n_chips)
    chosen = best_plan(model(name, seq_len=1024), machine, 64, levels=levels, space=space, top=1)
    assert (
        best_plan(model(name, seq_len=1024), machine, 64, levels=levels).best.plan.words() == chosen.best.plan.words()
    )
    cells = {**chosen.best.plan.words(), "model": name, "gpu": "h100-80gb", "n_gpus": n_chips, "seq_len": 1024}
    cells |= {"framework": framework or "", "global_batch_size_seqs": 64, "activation_recompute": cells["recompute"]}
    # What software keeps stays a guess, as it was for the planner: a stated fact narrows the memory of a run.
    guessed = {name for stated, _ in GUESSED.values() for name in stated} - {"activation_recompute", "lora_rank"}
    columns = [column for column in cells if column in {one.name for one in COLUMNS} - guessed]
    table = tmp_path / "plan.csv"
    table.write_text("\n".join([",".join(columns), ",".join(str(cells[column]) for column in columns)]) + "\n")
    row = predict(read_runs(table))
    assert row.step_time[0] == pytest.approx(chosen.best.step_time, rel=1e-5)
    assert (row.lo[0], row.hi[0]) == pytest.approx(chosen.step_time_interval, rel=1e-5)
    assert row.memory[0] == pytest.approx(chosen.best.memory, rel=1e-5)
    assert row.oom_probability[0] == pytest.approx(chosen.best.oom_probability, rel=1e-3, abs=1e-12)
    # Kernels of one chip alone are known to be faster than those beside collectives.
    together, alone = (load_fit().coefficients(levels, count).layer_time_factor for count in (2, 1))
    assert alone < together == load_fit().coefficients(levels).layer_time_factor


def test_one_compilation_for_all_problems(choice, monkeypatch):
    """Another model, cluster, batch and number of plans does not trace the model again."""
    assert choice.searched > 0

    def retraced(*arguments):
        raise AssertionError("the scorer was traced again")

    monkeypatch.setattr(evaluate, "step_and_memory", retraced)
    other = best_plan(model("llama3-70b"), cluster("a100-80gb", 64), 128, fit="prior")
    assert choice.searched < other.searched


def test_best_is_the_fastest_that_fits(choice):
    table = enumerate_plans(LLAMA, 32, 256)
    scores = score_plans(LLAMA, table, H100S, COEFFICIENTS)
    fits = scores.memory <= choice.memory_limit
    assert choice.searched == len(table)
    assert choice.infeasible == np.sum(~fits)
    assert choice.exhaustive
    assert choice.best.step_time == pytest.approx(scores.step_time[fits].min(), rel=1e-5)
    assert violations(LLAMA, choice.best.plan, 32) == []
    assert choice.best.memory <= choice.memory_limit < 80e9


def test_terms_add_up(choice):
    for scored in choice.top:
        assert sum(scored.terms.values()) == pytest.approx(scored.step_time, rel=1e-5)
        assert sum(scored.memory_terms.values()) == pytest.approx(scored.held, rel=1e-5)
        assert 0.0 < scored.mfu < 1.0
        assert 0.0 <= scored.oom_probability <= 0.1 + 1e-9


def test_the_interval_is_that_of_runs_like_the_planned_one(choice):
    """Within a factor of two without a calibration; with one, narrower where the stack is one that it knows."""
    lo, hi = choice.step_time_interval
    assert (choice.best.step_time / lo, hi / choice.best.step_time) == pytest.approx((2.0, 2.0))
    small = cluster("h100-80gb", 8)
    known, unknown = (
        best_plan(LLAMA, small, 64, levels={"gpu": "h100-80gb", "source": source}).step_time_interval
        for source in ("nvidia_dgxc_benchmarking/nemo-megatron", "new-thing")
    )
    assert known[1] / known[0] < 0.8 * unknown[1] / unknown[0]


def test_no_group_lies_astride_two_domains():
    """On three quarters of a power of two tp 6 and 12 divide chips and heads, but not nodes of eight."""
    shape = model("gpt3-175b")
    chips = cluster("h100-80gb", 384)
    listed = enumerate_plans(shape, 384, 768, PlanSpace(zero_stage=(1,)))
    assert {6, 12} <= set(listed.columns["tp"].tolist())
    within = enumerate_plans(shape, 384, 768, within_domains(PlanSpace(zero_stage=(1,)), chips))
    assert set(within.columns["tp"].tolist()) == {1, 2, 4, 8, 16, 24, 32, 48, 96}
    assert within.space.domain_size == 8.0


def test_ranked_in_order(choice):
    times = [scored.step_time for scored in choice.top]
    assert len(times) == 20
    np.testing.assert_allclose(times, sorted(times), rtol=2e-6)


def test_equally_fast_plans_are_ranked_by_memory():
    scores = Scores(np.asarray([2.0, 1.0, 1.0, 0.5]), np.asarray([1.0, 3.0, 2.0, 9.0]))
    every = enumerate_plans(LLAMA, 32, 256, PlanSpace(tp=(1,), pp=(1,), cp=(1,), zero_stage=(0, 1, 2, 3)))
    rows = np.flatnonzero(every.columns["micro_batch_size"] == 1)[:4]
    table = PlanTable({name: column[rows] for name, column in every.columns.items()}, every.space)
    assert FoundPlans(table, scores, 8.0, 4).ranked().tolist() == [2, 1, 0]


def test_alternatives_differ_in_one_decision(choice):
    assert choice.alternatives
    for alternative in choice.alternatives:
        assert alternative.before != alternative.after
        # Nothing that fits may beat the best plan.
        assert alternative.time_change >= -1e-5 or not alternative.fits
    assert all("->" in reason and "%" in reason for reason in choice.reasons)
    assert any("does not fit" in reason for reason in choice.reasons)


def test_a_plan_that_turns_to_fsdp_shards_over_all_replicas():
    """One decision and not two: a shard group of one rank would shard nothing."""
    shape, chips = model("llama3-8b"), cluster("h100-80gb", 64)
    space = PlanSpace(zero_stage=(2, 3), tp=(1,), pp=(1,), cp=(1,))
    (found,) = every_plan([PlanTask(shape, chips, 256, COEFFICIENTS, np.inf, space)])
    best = int(np.flatnonzero(found.table.columns["zero_stage"] == 2)[0])
    (turned,) = [one for one in alternatives(found, best) if one.decision == "zero_stage"]
    assert turned.after == 3 and turned.memory_change < 0.0


def test_json_document(choice):
    document = json.loads(json.dumps(choice.to_json()))
    assert set(document) >= {"best", "top", "searched", "exhaustive_optimum"}
    assert set(document["best"]) >= {"dp", "tp", "pp", "recompute", "step_time_s", "mfu", "memory_gb"}
    assert document["exhaustive_optimum"] is True
    words = choice.best.plan.words()
    rebuilt = Plan(**words)
    assert rebuilt.words() == words
    assert choice.summary().startswith("best plan: dp")


def test_more_memory_is_never_slower(choice):
    roomy = cluster("h200", 32)
    roomy_chip = best_plan(LLAMA, roomy, 256, fit="prior", oom_probability=0.4)
    strict = best_plan(LLAMA, roomy, 256, fit="prior", oom_probability=0.01)
    assert roomy_chip.best.step_time <= strict.best.step_time
    assert roomy_chip.infeasible < strict.infeasible


def test_a_smaller_space_is_never_faster(choice):
    small = best_plan(LLAMA, H100S, 256, fit="prior", space=PlanSpace(tp=(8,)))
    assert small.best.step_time >= choice.best.step_time
    assert small.searched < choice.searched


def test_memory_limit_is_the_quantile_of_a_lognormal():
    random = np.random.default_rng(0)
    usable = MemoryLimit("mine", 0.9, 0.1)
    limit = memory_limit(80e9, usable, 0.1)
    peaks = limit * np.exp(0.1 * random.standard_normal(200000))
    assert np.mean(peaks > 0.9 * 80e9) == pytest.approx(0.1, abs=0.003)
    assert memory_limit(80e9, usable, 0.5) == pytest.approx(0.9 * 80e9)
    assert memory_limit(80e9, usable, 0.05) < limit
    assert math.isclose(memory_limit(80e9, MemoryLimit("mine", 1.0, 0.0), 0.01), 80e9)


def test_nothing_fits_names_term_and_remedy():
    with pytest.raises(InputError, match=r"optimizer \(.* GB\); expected a chip of \d+ GB, about \d+ chips") as error:
        best_plan(model("gpt3-175b"), cluster("a100-80gb", 8), 8, fit="prior")
    assert "\n" not in str(error.value)


def test_no_valid_plan_names_a_batch():
    with pytest.raises(InputError, match="expected a multiple of one of"):
        flat = PlanSpace(cp=(1,), pp=(1,))
        best_plan(model("gpt3-175b"), cluster("h100-80gb", 1024), 3, fit="prior", space=flat)
    with pytest.raises(InputError, match="tp = 3; expected another n_chips or tp"):
        best_plan(LLAMA, cluster("h100-80gb", 8), 8, fit="prior", space=PlanSpace(tp=(3,)))


@pytest.mark.parametrize("wrong", [{"batch": 1.5}, {"batch": 0}, {"top": 0}, {"oom_probability": 0.0}])
def test_bad_arguments_get_one_line(wrong):
    batch = wrong.pop("batch", 256)
    with pytest.raises(InputError, match="out of range; expected"):
        best_plan(LLAMA, H100S, batch, fit="prior", **wrong)


def test_full_recomputation_costs_a_whole_pass_in_software_with_a_cheaper_habit():
    """The habit of torchtitan is recomputation by operation; a plan with `full` is that of the row that says so."""
    space = dataclasses.replace(framework_space("torchtitan"), recompute=("full",))
    levels = {"gpu": "h100-80gb", "framework": "torchtitan"}
    best = best_plan("llama3-8b", "h100-80gb", 256, n_chips=32, space=space, levels=levels, fit="prior").best
    words = best.plan.words()
    names = ("dp", "tp", "pp", "vpp", "cp", "zero_stage", "shard_group", "micro_batch_size", "sequence_parallel")
    row = {name: words[name] for name in names} | {"schedule": words["schedule"], "activation_recompute": "full"}
    row |= {"model": "llama3-8b", "framework": "torchtitan", "gpu": "h100-80gb", "n_gpus": 32, "seq_len": 8192}
    predicted = predict(read_runs([{**row, "global_batch_size_seqs": 256}]), fit="prior")
    assert predicted.step_time[0] == pytest.approx(best.step_time, rel=1e-5)
