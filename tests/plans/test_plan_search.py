"""The search for a plan by gradient: against all valid plans, many problems at once, and where nothing fits."""

import dataclasses
import importlib
import math
from pathlib import Path

import numpy as np
import pytest

from jaxscale.base.errors import InputError
from jaxscale.calibration.memory_limit import memory_limit
from jaxscale.calibration.record import load_fit
from jaxscale.hardware.catalogue import cluster
from jaxscale.models import model
from jaxscale.optimise.problems import Problems
from jaxscale.plans.best_plan import best_plan
from jaxscale.plans.enumerate import within_domains
from jaxscale.plans.plan import Plan
from jaxscale.plans.plan_questions import framework_space
from jaxscale.plans.relaxed_search import FAMILIES, PLAN_COORDINATES, PlanProblem, relax_plans, search_plans
from jaxscale.plans.rules import violations
from jaxscale.plans.score import PlanTask

CASES = (
    ("llama3-8b", "a100-80gb", 64, 96),
    ("mixtral-8x7b", "h100-80gb", 256, 512),
    ("gpt3-175b", "tpu-v5p", 512, 768),
    ("llama3-70b", "b200", 96, 384),
)


def problem(name: str, gpu: str, n_chips: int, batch: int) -> PlanTask:
    machine = cluster(gpu, n_chips)
    limit = memory_limit(float(machine.chip.hbm_bytes), load_fit("prior").memory_limit({}), 0.1)
    coefficients = load_fit("prior").coefficients({"gpu": gpu}, n_chips)
    return PlanTask(model(name), machine, batch, coefficients, limit, within_domains(framework_space(None), machine))


@pytest.fixture(scope="module")
def found():
    return search_plans([problem(*case) for case in CASES])


@pytest.mark.parametrize("index", range(len(CASES)))
def test_search_finds_the_best_of_all_plans(found, index):
    name, gpu, n_chips, batch = CASES[index]
    best = best_plan(model(name), cluster(gpu, n_chips), batch, fit="prior", exhaustive=True)
    answer = found[index]
    assert answer.fits[answer.best] and answer.scores.memory[answer.best] <= best.memory_limit
    plan = answer.table.plan(answer.best)
    assert violations(model(name), plan, n_chips) == []
    assert plan.global_batch_size_seqs == batch
    assert answer.scores.step_time[answer.best] <= 1.01 * best.best.step_time
    # Where there is something to choose: the median valid plan is far worse.
    assert np.median(answer.scores.step_time) > 1.2 * best.best.step_time


def test_optimum_is_stationary_and_within_bounds(found):
    assert sum(answer.relaxed.converged for answer in found) >= len(CASES) - 1
    for answer, case in zip(found, CASES, strict=True):
        assert float(answer.relaxed.plan.dp) <= math.gcd(case[2], case[3]) * (1.0 + 1e-3)
        assert answer.relaxed.residual < 1e-4


def test_problems_do_not_disturb_each_other(found):
    ((alone, *_),) = relax_plans([problem(*CASES[1])])
    assert alone.step_time == pytest.approx(found[1].relaxed.step_time, rel=1e-9)


def test_slsqp_agrees(found, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "fits"))
    oracle = importlib.import_module("choose_oracle")
    times = [math.log(answer.relaxed.step_time) for answer in found]
    for index in range(3):
        assert times[index] == pytest.approx(oracle.slsqp(problem(*CASES[index]), 1), abs=1e-3)
    # A little less memory is another problem.
    given = problem(*CASES[2])
    assert oracle.slsqp(given._replace(memory_limit=0.8 * given.memory_limit), 1) > times[2] + 1e-3


def test_slopes_equal_differences():
    case = problem(*CASES[1])
    continuous = PlanProblem(case.model, case.cluster, case.coefficients, case.batch, Plan(), FAMILIES[1])
    point, step = np.full((1, len(PLAN_COORDINATES)), 0.4), 1e-6
    _, slopes = Problems.of([continuous]).jacobian(point, range(3))
    many = Problems.of([continuous] * len(PLAN_COORDINATES))
    ahead, behind = (many.values(point + sign * step * np.eye(len(PLAN_COORDINATES))) for sign in (1, -1))
    np.testing.assert_allclose(slopes[0].T, (ahead - behind) / (2.0 * step), rtol=1e-5, atol=1e-6)


def test_best_plan_by_gradient_says_so():
    name, gpu, n_chips, batch = CASES[0]
    arguments = (model(name), cluster(gpu, n_chips), batch)
    quick = best_plan(*arguments, fit="prior", exhaustive=False)
    whole = best_plan(*arguments, fit="prior")
    assert whole.exhaustive and not quick.exhaustive
    assert quick.best.step_time == pytest.approx(whole.best.step_time, rel=0.01)
    assert quick.kkt_residual is not None and whole.kkt_residual is None
    assert quick.to_json()["exhaustive_optimum"] is False


def test_where_nothing_fits_the_answer_says_so():
    tight = problem(*CASES[0])._replace(memory_limit=1e8)
    (answer,) = search_plans([tight])
    assert not answer.fits.any()
    small = cluster("a100-80gb", 64)
    small = dataclasses.replace(small, chip=dataclasses.replace(small.chip, hbm_bytes=2e9))
    with pytest.raises(InputError, match="no plan fits in memory"):
        best_plan(model("llama3-8b"), small, 96, fit="prior", exhaustive=False)
