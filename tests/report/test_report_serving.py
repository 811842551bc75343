"""Reports of serving: predictions against measurements, engines under limits, where their time goes."""

import numpy as np
import pytest

import jaxscale as js
from jaxscale import serving
from jaxscale.report.document import Picture
from jaxscale.serving.serving_figures import serving_frontier
from jaxscale.serving.serving_report import engine_report, serving_errors, token_terms
from jaxscale.serving.serving_time import load_curve

MODEL, CLUSTER = js.model("llama3-8b"), js.cluster("h100-80gb", 2)
LIMITS = {"tpot": 0.03, "ttft": 2.0}


@pytest.fixture(scope="module")
def stack():
    """Coefficients without a fit."""
    return serving.load_serving_fit("prior").coefficients()


@pytest.fixture(scope="module")
def choice():
    """Engines of a small model on two chips."""
    return serving.best_serving_plan(MODEL, CLUSTER, 500, 200, tpot_limit=0.03, ttft_limit=2.0, fit="prior", top=3)


def pictures(report):
    """Names of the figures of a report."""
    return [block.name for block in report.blocks if isinstance(block, Picture)]


def test_a_curve_of_loads_passes_through_the_choice(choice, stack):
    best = choice.best
    load = float(best.requests.concurrency)
    loads = np.geomspace(1.0, 8.0 * load, 70)  # more than one block
    times = load_curve(MODEL, best.engine, CLUSTER, best.requests, stack, np.append(loads, load))
    assert times.tpot.shape == (71,)
    assert times.tpot[-1] == pytest.approx(best.tpot, rel=1e-5)
    assert times.ttft[-1] == pytest.approx(best.ttft, rel=1e-5)
    assert np.all(np.diff(times.tpot[:-1]) > -1e-9) and np.all(np.diff(times.throughput[:-1]) > -1e-6)
    crowded = loads > 1.1 * times.max_batch[0]
    assert crowded.any() and np.all(times.waiting[:-1][crowded] > 10.0 * times.waiting[0])


def test_terms_of_a_step_add_up_to_the_time_per_token(choice, stack):
    best = choice.best
    loads = np.asarray([1.0, float(best.requests.concurrency)])
    times = load_curve(MODEL, best.engine, CLUSTER, best.requests, stack, loads)
    terms = token_terms(times, [0, 1], loads, float(stack.pace))
    label, first = next(iter(terms.items()))
    assert label == "1 in flight" and set(first) == {"weights", "attention", "collectives", "floors", "prompts"}
    assert [sum(parts.values()) for parts in terms.values()] == pytest.approx(times.tpot.tolist(), rel=1e-6)
    assert list(terms.values())[1]["prompts"] > 0.1 * best.tpot, "a decode pass alone is shorter than a step"
    assert first["weights"] > first["attention"], "one sequence reads weights for the most part"
    guessed = token_terms(times, [0], loads, float(stack.pace), yielded=2.0)
    assert guessed["1 in flight"]["weights"] == pytest.approx(0.5 * first["weights"])


def test_the_frontier_is_drawn_with_each_engine_and_the_limit(choice):
    axes = serving_frontier(choice, 0.03).axes[0]
    np.testing.assert_allclose(axes.lines[0].get_xdata(), 1e3 * choice.frontier[:, 0])
    labels = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    assert labels == ["frontier of all engines", *(scored.label for scored in choice.top), "limit"]
    assert "limit" not in [line.get_label() for line in serving_frontier(choice).axes[0].lines]


def test_the_report_of_a_choice_holds_its_figures(choice, stack, tmp_path):
    report = engine_report(choice, MODEL, CLUSTER, stack, "Engines", LIMITS)
    assert pictures(report) == ["frontier", "load", "decode", "prefill"]
    page = report.save(tmp_path / "report").read_text(encoding="utf-8")
    assert page.count("<img") == 4 and choice.best.label in page and "TPOT at most 0.03 s" in page


def test_the_report_of_predictions_compares_what_is_measured():
    runs = serving.read_serving(js.data_path("serving/nvidia_fastertransformer.csv"))
    runs = runs.take(np.arange(200, 230))
    prediction = serving.predict_serving(runs, "prior")
    report = serving_errors(runs, prediction, "Predictions")
    measured = [name for name in prediction.errors(runs)]
    assert measured and pictures(report)[:2] == [f"{measured[0]}_measured", f"{measured[0]}_intervals"]
    assert len(pictures(report)) >= 2 * len(measured)
    assert "30 of 30 rows predicted" in report.to_html()


def test_nothing_measured_is_told(tmp_path):
    path = tmp_path / "plans.csv"
    path.write_text("model,gpu,n_gpus,tp,batch_size,input_len,output_len\nllama3-8b,h100-80gb,1,1,8,500,200\n")
    runs = serving.read_serving(path)
    report = serving_errors(runs, serving.predict_serving(runs, "prior"), "Plans")
    assert not pictures(report) and "measures none" in report.to_html()
