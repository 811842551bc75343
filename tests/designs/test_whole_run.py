"""Whole runs: days, energy and price against their definitions, published runs, and the best plan by each objective."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxscale as js
from jaxscale.base.errors import InputError
from jaxscale.calibration.record import load_fit
from jaxscale.costs.power import energy_terms
from jaxscale.costs.step import TERM_NAMES, step_time
from jaxscale.designs.time_to_loss import default_laws, with_interruptions
from jaxscale.designs.whole_run import RunGoal, small_batch_tokens_of, whole_run
from jaxscale.hardware.catalogue import cluster
from jaxscale.models import model
from jaxscale.plans.against import asked, published_designs
from jaxscale.plans.best_plan import question_of_levels
from jaxscale.plans.plan import Plan
from jaxscale.plans.plan_questions import find_plans
from jaxscale.plans.score import Judged, judge

LAWS, LLAMA, PRIOR = default_laws(), model("llama3-8b"), load_fit("prior")
BATCH = 64 * float(LLAMA.seq_len)


def small(tokens: float = 1e12, batch: float = BATCH):
    return small_batch_tokens_of(RunGoal(tokens=tokens), LLAMA, batch, LAWS)


def run_on(n_chips: float = 64.0, laws=LAWS, tokens: float = 1e12, price: float = 2.0):
    chips = cluster("h100-80gb", int(n_chips))
    times = step_time(LLAMA, Plan(dp=n_chips, zero_stage=3), chips, PRIOR.coefficients())
    return times, whole_run(LLAMA, chips, times, BATCH, small(tokens), laws, price)


def test_days_are_tokens_over_pace_and_goodput():
    times, run = run_on()
    pace = BATCH / float(times.total)
    assert float(run.tokens) == pytest.approx(1e12, rel=1e-5)
    assert float(run.seconds) == pytest.approx(1e12 / pace / float(run.goodput), rel=1e-5)
    hours = float(run.seconds) / 3600.0
    assert float(run.chip_hours) == pytest.approx(64.0 * hours, rel=1e-6)
    assert float(run.price) == pytest.approx(2.0 * 64.0 * hours, rel=1e-6)
    chip = cluster("h100-80gb", 64).chip
    joules = sum(map(float, energy_terms(times, chip, LAWS.power).values()))
    steps = float(run.steps) / float(run.goodput)
    assert float(run.energy) == pytest.approx(64.0 * joules * steps, rel=1e-5)
    assert float(chip.idle_power) < float(run.energy) / float(run.seconds) / 64.0 < float(chip.max_power)


def test_more_failures_never_take_fewer_days():
    runs = [run_on(laws=with_interruptions(LAWS, rate))[1] for rate in (1e-6, 1e-4, 4.7e-4, 1e-2, 1.0)]
    days, goodput = ([float(getattr(run, name)) for run in runs] for name in ("seconds", "goodput"))
    assert days == sorted(days) and goodput == sorted(goodput, reverse=True)
    assert goodput[0] == pytest.approx(1.0, abs=2e-3)
    per_day = float(runs[2].interruptions) / (float(runs[2].seconds) / 86400.0) / 64.0
    assert per_day == pytest.approx(4.7e-4, rel=1e-5)


def test_goodput_falls_with_chips():
    assert float(run_on(64)[1].goodput) > float(run_on(4096)[1].goodput)


def test_a_goal_is_met_and_differentiates():
    """The loss of a goal is reached, and small-batch tokens move with it as differences say."""
    with jax.enable_x64(True):
        needed = small_batch_tokens_of(RunGoal(loss=2.2), LLAMA, BATCH, LAWS)
        times = step_time(LLAMA, Plan(dp=64, zero_stage=3), cluster("h100-80gb", 64), PRIOR.coefficients())
        run = whole_run(LLAMA, cluster("h100-80gb", 64), times, BATCH, needed, LAWS)
        assert float(run.loss) == pytest.approx(2.2, rel=1e-9)

        def tokens(scale):
            laws = eqx.tree_at(lambda every: every.loss.tokens_coefficient, LAWS, LAWS.loss.tokens_coefficient * scale)
            return small_batch_tokens_of(RunGoal(loss=2.2), LLAMA, BATCH, laws)

        slope = (float(tokens(1.0 + 1e-5)) - float(tokens(1.0 - 1e-5))) / 2e-5

        def seconds(scale):
            scaled = jax.tree.map(lambda term: term * scale, times)
            return whole_run(LLAMA, cluster("h100-80gb", 64), scaled, BATCH, needed, LAWS).seconds

        assert float(jax.grad(seconds)(1.0)) == pytest.approx(float(run.seconds), rel=1e-9)
    # The law without experts in closed form: D ~ B^(1 / beta).
    assert slope / float(needed) == pytest.approx(1.0 / float(LAWS.loss.tokens_exponent), rel=1e-3)
    assert float(run.price) != float(run.price), "no price, no money"


def test_larger_batches_take_more_tokens_to_the_same_loss():
    needed = small()
    chips = cluster("h100-80gb", 64)
    times = step_time(LLAMA, Plan(dp=64, zero_stage=3), chips, PRIOR.coefficients())
    few, many = (whole_run(LLAMA, chips, times, batch, needed, LAWS) for batch in (BATCH, 4.0 * BATCH))
    assert float(many.tokens) > float(few.tokens) and float(many.loss) == float(few.loss)


PUBLISHED = {
    # Tokens; chip hours; how far the run of the published step may be from them.
    # Llama 3.1 model card (2024-07): 30.84e6 H100 hours for 405B, 15.6e12 tokens.
    "llama3-405b": (15.6e12, 30.84e6, 0.03),
    # BigScience, BLOOM, arXiv 2211.05100, and Luccioni et al., arXiv 2211.02001, table 1: 1,082,990 A100 hours, 366e9
    # tokens. 117.5 days of 384 GPUs: beside failures, restarts by hand and a slower first half.
    "bloom-176b": (366e9, 1_082_990.0, 0.14),
}


def published(name: str, laws=LAWS, is_measured: bool = True):
    design = published_designs()[name]
    question, plan = asked(design)
    times = step_time(
        question.model,
        plan,
        question.cluster,
        load_fit("default").coefficients(question.levels, question.n_chips),
    )
    if is_measured:
        times = jax.tree.map(lambda term: term * design["step_time_s"] / float(times.total), times)
    batch = design["global_batch_size_seqs"] * design["seq_len"]
    needed = small_batch_tokens_of(RunGoal(tokens=PUBLISHED[name][0]), question.model, batch, laws)
    return whole_run(question.model, question.cluster, times, batch, needed, laws)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_chip_hours(name):
    _, hours, error = PUBLISHED[name]
    run = published(name)
    assert float(run.chip_hours) == pytest.approx(hours, rel=error)
    assert float(published(name, is_measured=False).chip_hours) == pytest.approx(hours, rel=error + 0.08)
    # Ten times the failures and the hours are too many, or (few chips) go up.
    worse = published(name, with_interruptions(LAWS, 10.0 * 4.74e-4))
    assert float(worse.chip_hours) > 1.02 * float(run.chip_hours)


def test_goodput_of_llama_3():
    """Over 90 % effective training time, 419 unexpected interruptions in 54 days (arXiv 2407.21783, section 3.3.4)."""
    run = published("llama3-405b")
    assert 0.90 < float(run.goodput) < 0.93
    assert float(run.interruptions) / (float(run.seconds) / 86400.0) * 54.0 == pytest.approx(419.0, rel=0.01)
    ten = published("llama3-405b", with_interruptions(LAWS, 10.0 * 4.74e-4))
    assert float(ten.goodput) < 0.6


def test_energy_of_bloom():
    """433 MWh (Luccioni et al. 2022), which is the hours at 400 W each: the mean power of a chip is within 15 %."""
    run = published("bloom-176b")
    assert float(run.energy) / float(run.chip_hours) / 3600.0 == pytest.approx(433_196e3 / 1_082_990, rel=0.15)


@pytest.fixture(scope="module")
def question():
    return question_of_levels(model("llama3-8b", seq_len=4096), cluster("h100-80gb", 16), 64, {"gpu": "h100-80gb"})


def test_the_least_energy_is_that_of_all_plans(question):
    """Every plan that fits by the energy of its terms, without the bound that spares most of them."""
    chosen = js.best_run(question.model, question.cluster, 64, tokens=1e11, fit="prior", objective="energy")
    task = question.task(PRIOR)
    (found,) = find_plans([task])
    (terms,) = judge([Judged(task.model, found.table, task.cluster, task.coefficients)], TERM_NAMES)
    times = js.StepTime(**{name: jnp.asarray(terms[name]) for name in TERM_NAMES})
    parts = energy_terms(times, task.cluster.chip, LAWS.power).values()
    joules = np.sum([np.asarray(part, float) for part in parts], axis=0)
    least = joules[found.fits].min()
    assert float(chosen.chosen.run["energy_mwh"]) <= float(chosen.best["step"].run["energy_mwh"])
    fastest = joules[int(found.ranked(1)[0])]
    ratio = float(chosen.chosen.run["energy_mwh"]) / float(chosen.best["step"].run["energy_mwh"])
    assert ratio == pytest.approx(least / fastest, rel=1e-4)
    assert chosen.plans.best.plan.words() == chosen.chosen.to_json()["plan"]


def test_fewer_chips_save_money_and_cost_days(question):
    opened = js.best_run(
        question.model, question.cluster, 64, tokens=1e11, fit="prior", objective="price", open=("chips", "batch"),
        price_per_chip_hour=2.0,
    )  # fmt: skip
    every = [one.run for one in opened.candidates]
    assert len({(one.question.n_chips, one.question.batch) for one in opened.candidates}) == len(every) > 4
    for objective, key in {"days": "days", "price": "price"}.items():
        assert opened.best[objective].run[key] == min(run[key] for run in every)
    step, price = opened.best["step"], opened.best["price"]
    assert (step.question.n_chips, step.question.batch) == (16, 64)
    assert price.run["price"] <= step.run["price"] and opened.best["days"].run["days"] <= step.run["days"]
    assert opened.plans.best.plan.n_chips == price.question.n_chips
    saved = price.run["price"] / step.run["price"] - 1.0
    (line,) = (line for line in opened.differences() if line.startswith("least price"))
    assert f"{100.0 * saved:+.1f} % price" in line or saved > -5e-4
    # As asked, nothing is open: days and price go with the fastest step.
    closed = js.best_run(question.model, question.cluster, 64, tokens=1e11, fit="prior")
    assert closed.best["days"].run == closed.best["step"].run and len(closed.candidates) == 1


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "expected exactly one of tokens and loss"),
        ({"tokens": 1e12, "loss": 2.0}, "expected exactly one"),
        ({"tokens": 1.0}, "tokens = 1 is out of range"),
        ({"loss": 1.0}, "loss = 1 is out of reach; expected between"),
        ({"tokens": 1e11, "objective": "speed"}, "objective = 'speed' is unknown; expected one of step, days"),
        ({"tokens": 1e11, "open": ("moon",)}, "open = 'moon' is unknown"),
        ({"tokens": 1e11, "price_per_chip_hour": -1.0}, "price = -1 is out of range"),
    ],
)
def test_refusals(question, given, expected):
    with pytest.raises(InputError, match=expected):
        js.best_run(question.model, question.cluster, 64, fit="prior", **given)


def test_a_rate_of_interruptions_is_checked():
    assert with_interruptions(LAWS, None) is LAWS
    with pytest.raises(InputError, match="interruptions = 0 is out of range"):
        with_interruptions(LAWS, 0.0)
