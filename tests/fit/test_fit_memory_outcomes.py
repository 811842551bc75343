"""Limits of memory from runs that ended and runs that ran out of it."""

import dataclasses

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxscale as js
from jaxscale.base.documents import data_path
from jaxscale.calibration.intervals import Scatter
from jaxscale.calibration.memory_limit import MemoryLimit, memory_limit, probability_of_oom
from jaxscale.calibration.record import Fit, load_fit
from jaxscale.fitting.memory_outcomes import Outcomes, fitted_limit, memory_limits, outcomes, with_memory_limits
from jaxscale.runs.measured import measured_runs

PEAK_SCATTER = 0.1
RECORD = Fit("fit", js.prior_medians(), widths=(Scatter("source", "mine", 0.1, PEAK_SCATTER),))


def runs_about(usable: float, scatter: float, n: int, sure: bool = False) -> Outcomes:
    """Runs whose memory ends at a share of the chip's, give or take a scatter."""
    rng = np.random.default_rng(0)
    log_use = rng.uniform(-1.5, 1.5, n)
    ran_out = log_use + scatter * rng.standard_normal(n) > np.log(usable)
    sources = np.asarray(["mine"] * n, dtype=object)
    return Outcomes(sources, sources, log_use, np.zeros(n, dtype=bool) if sure else ran_out)


@pytest.mark.parametrize(("usable", "scatter"), [(0.7, 0.2), (1.1, 0.1)])
def test_many_runs_tell_share_and_scatter(usable: float, scatter: float):
    with jax.enable_x64(True):
        (found,) = memory_limits(runs_about(usable, scatter, 2000), RECORD)
    assert found.source == "mine"
    assert found.usable == pytest.approx(usable, rel=0.06)
    assert found.scatter == pytest.approx(scatter, rel=0.25)


def test_few_runs_hardly_move_the_limit():
    few, many = runs_about(0.6, 0.2, 12), runs_about(0.6, 0.2, 2000)
    with jax.enable_x64(True):
        near, far = (fitted_limit("mine", runs, PEAK_SCATTER) for runs in (few, many))
    assert abs(np.log(near.usable)) < abs(np.log(far.usable))


def test_runs_that_all_ended_tell_no_limit():
    with jax.enable_x64(True):
        assert memory_limits(runs_about(0.7, 0.2, 100, sure=True), RECORD) == ()


@given(st.floats(0.01, 0.99), st.floats(0.5, 1.2), st.floats(0.02, 0.5))
def test_limit_is_the_peak_of_its_probability(probability: float, usable: float, scatter: float):
    limit, capacity = MemoryLimit("mine", usable, scatter), 80e9
    peak = memory_limit(capacity, limit, probability)
    assert probability_of_oom(peak, capacity, limit) == pytest.approx(probability, rel=1e-6)
    assert probability_of_oom(1.01 * peak, capacity, limit) > probability


def test_limits_are_those_of_the_source_and_kept_on_disk(tmp_path):
    fit = load_fit("default")
    path = tmp_path / "again.toml"
    fit.save(path)
    again = load_fit(path)
    levels = {"source": "ultrascale_playbook_h100/nanotron", "framework": "nanotron", "gpu": "h100-80gb"}
    limit, own = again.memory_limit(levels), again.limit_by_source[levels["source"]]
    assert limit == fit.memory_limit(levels)
    assert (limit.usable, limit.scatter) == (own.usable, own.scatter)
    elsewhere = again.memory_limit({"framework": "somebody's own"})
    assert elsewhere.usable == 1.0 and elsewhere.source == ""


def test_stated_probabilities_hold():
    """Of runs in a class of stated probability as many ran out; all memory with the scatter of peaks says too few."""
    fit = load_fit("default")
    runs = outcomes(js.read_runs(data_path("runs") / "ultrascale_playbook_h100.csv"), fit)
    assert runs is not None
    uses, sources = np.exp(runs.log_use), sorted(set(runs.sources))
    plain = {source: MemoryLimit("", 1.0, fit.interval({"source": source}).memory) for source in sources}
    fitted = {source: fit.memory_limit({"source": source}) for source in sources}
    classes = ((0.02, 0.2), (0.2, 0.5), (0.5, 0.8), (0.8, 0.98))

    def worst(limits: dict[str, MemoryLimit]) -> float:
        """Largest difference of a class, in standard errors of as many independent runs."""
        stated = np.zeros(len(uses))
        for source, limit in limits.items():
            own = np.asarray(runs.sources) == source
            stated[own] = probability_of_oom(uses[own], 1.0, limit)
        inside = [(low <= stated) & (stated < high) for low, high in classes]
        errors = [np.sqrt(np.sum(stated[rows] * (1.0 - stated[rows]))) for rows in inside]
        apart = [abs(np.sum(stated[rows] - runs.ran_out[rows])) for rows in inside]
        return float(np.max(np.asarray(apart) / np.asarray(errors)))

    assert worst(fitted) < 3.0
    assert worst(plain) > 6.0


def test_report_names_the_limit_that_a_table_shows(bloom_fit: js.FitResult):
    """BLOOM's table has five runs that ran out; a fit of its runs alone, which have a step time, knows none."""
    runs = js.read_runs(data_path("runs") / "bigscience_bloom_a100.csv")
    with jax.enable_x64(True):
        found = with_memory_limits(bloom_fit, [runs])
    (limit,) = found.memory_limits
    assert 0.8 < limit.usable < 1.2
    assert "run out of memory" in found.summary() and "run out of memory" not in bloom_fit.summary()
    assert found.to_json()["memory_limits"] == [dataclasses.asdict(limit)]


def test_runs_without_a_source_are_those_of_the_fitted_one(tmp_path):
    table = data_path("runs") / "bigscience_bloom_a100.csv"
    blank = tmp_path / table.name
    blank.write_text(table.read_text().replace("\nbigscience_bloom_a100,", "\n,"))
    own = (("framework", "megatron-deepspeed"), ("source", "mine/megatron-deepspeed"))
    fitted = Fit("mine", load_fit("default").pooled, own=own)
    found = outcomes(js.read_runs(blank), fitted)
    assert set(found.sources) == {"mine/megatron-deepspeed"}


def test_runs_without_a_status_that_were_measured_ended(tmp_path):
    """Where nothing is said, a step time says it."""
    table = data_path("runs") / "bigscience_bloom_a100.csv"
    blank = tmp_path / table.name
    blank.write_text(table.read_text().replace(",ok,", ",,"))
    runs = js.read_runs(blank)
    said, unsaid = (outcomes(table, load_fit("default")) for table in (js.read_runs(table), runs))
    assert ",ok," in table.read_text() and ",ok," not in blank.read_text()
    assert unsaid.ran_out.sum() == said.ran_out.sum()
    assert (~unsaid.ran_out).sum() == len(measured_runs(runs)[1]) > 60
