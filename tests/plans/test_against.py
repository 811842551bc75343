"""A plan against the best one: its place, its differences and what they cost, and what is no plan of these chips."""

import math

import pytest

import jaxscale as js
from jaxscale.base.errors import InputError
from jaxscale.calibration.record import load_fit
from jaxscale.plans.against import PLAN_SPREAD, AgainstBest, against_best
from jaxscale.plans.best_plan import choice_of, searched
from jaxscale.plans.plan import Plan
from jaxscale.plans.plan_questions import plan_question
from jaxscale.plans.score import time_plans

FIT = load_fit("prior")
MODEL, CLUSTER = js.model("llama3-8b"), js.cluster("h100-80gb", 32)
CELLS = {"gpu": "h100-80gb", "precision": "bf16", "framework": "megatron-lm"}
QUESTION = plan_question(MODEL, CLUSTER, 128, CELLS)


@pytest.fixture(scope="module")
def found():
    return searched(QUESTION, FIT)


def compared(found, stated) -> AgainstBest:
    return against_best(QUESTION, stated, FIT, found=found)


def test_the_best_plan_is_the_first_and_costs_nothing(found):
    best = choice_of(found, QUESTION, FIT, 1, 0.1).best
    against = compared(found, best.plan)
    assert (against.rank, against.time_cost, against.differences, against.fits) == (1, 0.0, (), True)
    assert against.probability_slower == 0.5 and not against.is_told_apart
    assert against.theirs.step_time == pytest.approx(best.step_time, rel=1e-6)


def test_what_is_not_stated_is_completed_as_the_planner_would(found):
    assert compared(found, {}).rank == 1
    degrees = {"tp": 2.0, "pp": 1.0}
    completed = compared(found, degrees).theirs.plan.words()
    assert (completed["tp"], completed["pp"], completed["dp"]) == (2, 1, 16)


def test_a_worse_plan_is_later_and_each_change_costs_what_it_says(found):
    """Costs have the sign of the change in time of the plan itself with one value of the best."""
    stated = {"tp": 4.0, "pp": 2.0, "micro_batch_size": 1.0, "activation_recompute": "full", "sequence_parallel": False}
    against = compared(found, stated)
    assert against.rank > 10 and against.time_cost > 0.3 and against.is_told_apart
    costs = {one.field: one for one in against.differences}
    assert costs["recompute"].time_cost > 0.15 and costs["recompute"].memory_cost < 0.0
    assert costs["sequence_parallel"].time_cost > 0.0 and costs["sequence_parallel"].memory_cost > 0.0
    assert [one.field for one in against.differences][0] == "recompute"
    words = against.theirs.plan.words()
    task = QUESTION.task(FIT)
    other = Plan(**{**words, "sequence_parallel": True})
    before, after = time_plans(MODEL, [against.theirs.plan, other], CLUSTER, task.coefficients)
    assert costs["sequence_parallel"].time_cost == pytest.approx(before / after - 1.0, rel=1e-5)


def test_two_plans_are_told_apart_by_what_they_do_not_share(found):
    """Negative control: a plan of nearly the same time is not."""
    near = compared(found, {**found.table.plan(int(found.ranked(3)[2])).words(), "activation_recompute": "none"})
    assert near.rank <= 3 and 0.0 <= near.time_cost < 0.05 and not near.is_told_apart
    assert 0.5 <= near.probability_slower < 0.75
    share = math.log1p(near.time_cost) / (math.sqrt(2.0) * PLAN_SPREAD)
    assert near.probability_slower == pytest.approx(0.5 + share * 0.3989, abs=0.02)


def test_a_plan_that_does_not_fit_has_a_place_by_its_time(found):
    large = compared(found, {"tp": 1.0, "pp": 1.0, "cp": 1.0, "micro_batch_size": 4.0, "recompute_modules": "none"})
    assert not large.fits and large.theirs.oom_probability > 0.5
    assert "does not fit" in large.summary()


def test_what_a_file_says_of_another_run_is_told(found):
    stated = {"tp": 2.0, "n_gpus": 64.0, "gpu": "a100-80gb", "model": "llama3-70b", "global_batch_size_seqs": 256.0}
    notes = compared(found, stated).notes
    assert {note.split(" = ")[0] for note in notes} >= {"n_gpus", "gpu", "n_layers", "global_batch_size_seqs"}
    assert "n_gpus = 64 there, 32 here" in notes
    assert compared(found, {"tp": 2.0, "n_gpus": 32.0}).notes == ()


@pytest.mark.parametrize(
    ("stated", "told"),
    [
        ({"tp": 3.0, "pp": 1.0}, "has tp 3, pp 1: 32 chips are no multiple of tp . pp . cp = 3"),
        (
            {"tp": 1.0, "pp": 1.0, "micro_batch_size": 3.0},
            "128 sequences are no multiple of dp . micro_batch_size = 96",
        ),
    ],
)
def test_what_is_no_plan_of_these_chips_is_refused(found, stated, told):
    with pytest.raises(InputError, match=told):
        compared(found, stated)


def test_the_python_face_takes_names():
    levels = {"precision": "bf16", "framework": "megatron-lm"}
    against = js.compare_plan({"tp": 2}, "llama3-8b", "h100-80gb", 128, n_chips=32, fit="prior", levels=levels)
    assert against.rank == 1 and "rank 1 of" in repr(against)
    assert against.to_json()["theirs"]["tp"] == 2
