"""Steps of reinforcement learning: terms, splits, published times, and the command."""

import dataclasses
import functools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import jaxscale as js
from jaxscale.base.arrays import with_fields
from jaxscale.cli.main import main
from jaxscale.rollouts import RolloutBatch, RolloutStep, published_steps, published_table
from jaxscale.rollouts.rollout_report import length_remark, published_reports, steps_table
from jaxscale.rollouts.rollout_step import TERMS
from jaxscale.rollouts.split_search import shared_batch

BATCH = RolloutBatch(128, 8, 256, 512, 1.0, 2048)


@functools.cache
def step_of(**options: object) -> RolloutStep:
    """Step of a model of 1B on 16 chips."""
    return js.rollout_step("llama3.2-1b", "h100-80gb", BATCH, n_chips=16, **options)  # pyright: ignore


def total_of(step: RolloutStep) -> float:
    """Sum of the terms less the overlap, by the document [s]."""
    document = step.to_json()
    *terms, overlap = (document[f"{name}_s"] for name in TERMS)
    return sum(terms) - overlap


def test_terms_add_up():
    shared, split = step_of(), step_of(mode="split")
    for step in (shared, split, *split.alternatives):
        assert step.total == pytest.approx(total_of(step)) and step.total > 0.0
        assert all(getattr(step, name) >= 0.0 for name in TERMS)
    assert shared.overlap == 0.0 and shared.n_chips == split.n_chips == 16.0
    # Control: a term left out is missed.
    assert total_of(shared) - shared.training != pytest.approx(shared.total)


def test_the_longer_side_counts_unless_on_policy():
    beside, waiting = step_of(mode="split"), step_of(mode="split", on_policy=True)
    sides = (beside.generation + beside.tail, beside.scoring + beside.training)
    assert beside.total == pytest.approx(max(sides) + beside.transfer)
    assert beside.total != pytest.approx(min(sides) + beside.transfer)
    assert waiting.overlap == 0.0 and waiting.total > beside.total


@pytest.mark.parametrize("on_policy", [False, True])
def test_the_best_split_is_as_good_as_every_other(on_policy: bool):
    best = step_of(mode="split", on_policy=on_policy)
    splits = [one for one in best.alternatives if one.mode == "split"]
    assert [one.generation_chips for one in splits] == list(range(1, 16))
    assert all(best.total <= one.total for one in splits)
    assert max(one.total for one in splits) > 1.1 * best.total  # negative control: splits differ
    alone = step_of(mode="split", on_policy=on_policy, generation_chips=int(best.generation_chips))
    assert alone.total == pytest.approx(best.total, rel=1e-5)


def test_the_price_of_the_tail_is_what_the_step_is_longer():
    shared = step_of(price=2.0)
    assert shared.tail_seconds == pytest.approx(shared.tail) and shared.tail > 0.0
    assert shared.tail_price == pytest.approx(2.0 * shared.tail * 16.0 / 3600.0)
    assert np.isnan(step_of().tail_price)
    split = next(one for one in step_of(mode="split").alternatives if one.generation_chips == 15.0)
    equal = max(split.generation, split.scoring + split.training)
    assert split.tail_seconds == pytest.approx(split.total - split.transfer - equal, abs=1e-6)


def test_intervals_hold_the_step_and_move_with_each_side():
    shared, split = step_of(), step_of(mode="split")
    for step in (shared, *split.alternatives):
        lo, hi = step.interval
        assert 0.0 < lo < step.total < hi
    # Sides in turn add as independent errors: between that of one side alone and the sum of both.
    sides = (shared.generation + shared.tail, shared.scoring + shared.training)
    moves = [
        side * (ends[1] - 1.0) for side, ends in zip(sides, (shared.generation_ends, shared.training_ends), strict=True)
    ]
    assert max(moves) < shared.interval[1] - shared.total < sum(moves)
    certain = dataclasses.replace(shared, generation_ends=(1.0, 1.0))
    assert certain.interval[1] - certain.total == pytest.approx(moves[1])
    # Beside a far longer side the shorter one says nothing.
    hidden = dataclasses.replace(split, generation=1e3 * split.total).overlapped()
    assert dataclasses.replace(hidden, training_ends=(1.0, 1.0)).interval == pytest.approx(hidden.interval)
    assert dataclasses.replace(hidden, generation_ends=(1.0, 1.0)).interval[1] < hidden.interval[1]


def test_unknown_engines_have_wider_intervals():
    known = step_of()
    other = step_of(engine="an-engine-of-my-own")
    assert other.generation_ends[1] > known.generation_ends[1]
    assert other.training_ends == known.training_ends


def test_ppo_scores_and_trains_more_models():
    grpo, ppo = step_of(), step_of(algorithm="ppo")
    assert ppo.scoring == pytest.approx(3.0 * grpo.scoring, rel=1e-3)
    assert ppo.training == pytest.approx(2.0 * grpo.training, rel=1e-3)
    assert ppo.generation == pytest.approx(grpo.generation)
    assert step_of(updates=4).training > grpo.training


def test_chips_share_a_batch_evenly():
    assert shared_batch(1024.0, 64.0) == 1024 and shared_batch(1000.0, 64.0) == 1024
    assert shared_batch(2048.0, 192.0) == 2112 and shared_batch(10.0, 64.0) == 16
    assert shared_batch(2.0, 7.0) == 2
    assert all(shared_batch(4096.0, float(n)) % n == 0 for n in range(1, 200))


def test_published_steps_state_their_source_and_assumptions():
    steps = published_steps()
    assert len({one.report for one in steps}) >= 3 and len(steps) >= 15
    assert all(one.seconds > 0.0 and one.assumed for one in steps)
    reports = published_reports()["reports"].values()
    assert all(report["title"] and report["date"] and report["recorded"] for report in reports)
    chat = next(one for one in steps if one.settings["model"] == "opt-13b" and one.settings["n_gpus"] == 64)
    assert chat.seconds == pytest.approx(1.25 * 3600.0 / 129.0, rel=1e-4)
    assert chat.error == pytest.approx(chat.predicted.total / chat.seconds - 1.0)
    longer = dataclasses.replace(chat, seconds=2.0 * chat.seconds)
    assert longer.error != pytest.approx(chat.error)
    exact = dataclasses.replace(chat, seconds=chat.predicted.total)
    assert exact.is_inside and not dataclasses.replace(exact, seconds=100.0 * exact.seconds).is_inside
    assert "opt-13b" in published_table([chat]).text(80)


@pytest.mark.slow
def test_the_page_shows_every_published_step():
    page = Path(__file__).parents[2].joinpath("docs/rollouts.md").read_text(encoding="utf-8")
    steps = published_steps()
    shown = published_table(steps).text(100)
    assert shown in page
    median = 100.0 * np.median([abs(one.error) for one in steps])
    assert f"The median error is {median:.0f} %" in page
    changed = [dataclasses.replace(one, seconds=1.1 * one.seconds) for one in steps]
    assert published_table(changed).text(100) not in page


WORDS = ["rollout", "--model", "llama3.2-1b", "--gpu", "h100-80gb", "--n-gpus", "16", "--prompts", "128"]
WORDS += ["--input-len", "256", "--output-len", "512", "--max-output-len", "2048", "--quiet"]


def test_the_command_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    outputs = ["--plot", str(tmp_path / "split.png"), "--report", str(tmp_path / "report"), "--price", "2"]
    assert main([*WORDS, "--mode", "split", *outputs]) == 0
    shown = capsys.readouterr().out
    assert "price of the tail: " in shown and "shared" in shown and "training plan: dp" in shown
    assert (tmp_path / "split.png").stat().st_size > 10_000 and (tmp_path / "report" / "report.html").exists()
    assert main([*WORDS, "--mode", "split", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    step = step_of(mode="split")
    assert document["step_s"] == pytest.approx(step.total, rel=1e-3)
    assert document["step_interval_s"] == pytest.approx(step.interval, rel=1e-3)
    assert document["tail_cost"]["price"] is None and len(document["alternatives"]) == 16
    assert max(map(len, steps_table(step, "Step").text(80).splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--length-cv", "-1"], "--length-cv = -1 is out of range; expected"),
        (["--algorithm", "dpo"], "algorithm = 'dpo' is unknown; expected one of grpo, ppo"),
        (["--mode", "both"], "mode = 'both' is unknown; expected one of shared, split"),
        (["--generation-gpus", "8"], "--generation-gpus = 8 beside mode = 'shared'; expected mode 'split'"),
        (["--mode", "split", "--generation-gpus", "16"], "--generation-gpus = 16 is out of range; expected 1 to 15"),
        (["--critic", "llama3-8b"], "critic of grpo"),
        (["--price", "0"], "price = 0 is out of range"),
        (["--price", "1e6"], "price = 1e+06 is out of range; expected above 0, below 1e6"),
        (["--output-len", "4096"], "--output-len = 4096 exceeds --max-output-len = 2048; expected a mean of at most"),
        (["--engine-precision", "fp7"], "precision 'fp7' is unknown; expected one of"),
        (["--model", "llama3.1-405b", "--n-gpus", "1"], "no engine fits on 1 chips"),
    ],
)
def test_bad_input_is_one_line(words: list[str], says: str, capsys: pytest.CaptureFixture[str]):
    assert main([*WORDS, *words]) == 2
    told = capsys.readouterr().err
    assert says in told and told.count("\n") == 1


def test_answers_beyond_the_positions_of_a_model_are_remarked():
    model = js.model("llama3-8b")
    free, short = RolloutBatch(512, 8, 512, 2048), RolloutBatch(512, 8, 512, 2048, 1.0, 8192)
    long, brief = (dataclasses.replace(step_of(), longest_len=length) for length in (30804.0, 7000.0))
    assert "ends at 31316 tokens, beyond the 8192 tokens of training sequences" in length_remark(long, free, model)[0]
    assert not length_remark(brief, free, model) and not length_remark(long, short, model)
    learned = with_fields(model, {"position_embeddings": 1024})
    assert "beyond the 1024 learned positions" in length_remark(brief, free, learned)[0]


ALONE = """
import sys
import jaxscale as js
js.predict, js.best_plan, js.serving.rollout_time
import jaxscale.cli.plan, jaxscale.cli.predict
print([name for name in sys.modules if name.startswith("jaxscale.rollouts.")])
"""


def test_predict_and_plan_do_without():
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
