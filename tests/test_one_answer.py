"""One question has one answer at every door; `scripts/one_answer.py` asks sixty."""

import importlib
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def doors():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[1] / "scripts"))
        yield importlib.import_module("one_answer")


@pytest.mark.parametrize(
    "question",
    [
        ("llama3-8b", "h100-80gb", 64, 512, None),
        ("mixtral-8x7b", "h100-80gb", 128, 512, "nemo"),
        ("gemma2-9b", "tpu-v5p", 64, 256, "maxtext"),
        ("llama3.1-405b", "a100-80gb", 64, 512, "megatron-lm"),
    ],
)
def test_every_door_says_the_same(doors, question):
    asked = doors.Question(*question)
    assert not doors.differences(asked)
    assert doors.is_best(asked)


def test_the_comparison_can_fail(doors, monkeypatch):
    asked = doors.Question("llama3-8b", "h100-80gb", 64, 512, None)
    other = doors.by_plan(asked._replace(framework="nemo"))
    monkeypatch.setitem(doors.DOORS, "plan", lambda question: other)
    (difference,) = doors.differences(asked)
    assert difference.startswith("plan: ")


def test_frameworks_are_asked_for_plans_that_they_run(doors):
    """Megatron-LM has no ZeRO 2, which is the fastest where any software may run."""
    asked = doors.Question("llama3-8b", "h100-80gb", 64, 512, None)
    assert "ZeRO-2" in doors.by_table(asked).plan
    assert "ZeRO-2" not in doors.by_table(asked._replace(framework="megatron-lm")).plan


def test_every_door_takes_the_same_software(doors):
    """Plan, islands and trends say of a run with stated software what a row of a table with its cells says."""
    question, software = doors.SOFTWARE[1]
    assert not doors.software_differences(question, software)
    assert all(map(doors.is_one, doors.limits_answers(question.gpu, {"precision": "fp8", "optimizer_bytes": 6})))


def test_software_has_effect_at_every_door(doors):
    question, software = doors.SOFTWARE[1]
    usual, changed = (doors.stated_answers(question, cells) for cells in ({"moe_dispatcher": "alltoall"}, software))
    for door in ("plan", "islands", "trends"):
        assert not doors.is_one((usual[door][0], changed[door][0])), door


@pytest.mark.slow
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_built_model_in_a_budget_takes_the_software_too(doors, place):
    assert doors.is_one(doors.like_answers(*doors.SOFTWARE[place]))
