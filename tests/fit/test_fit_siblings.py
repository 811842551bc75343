"""Runs that contradict runs like them are found from measured times alone."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxscale as js
from jaxscale.base.arrays import with_fields
from jaxscale.base.documents import data_path
from jaxscale.fitting.fitting import fit
from jaxscale.runs import table_checks
from jaxscale.runs.arrays import Measured
from jaxscale.runs.measured import measured_runs
from jaxscale.runs.table_checks import contradicted, families, pairs_within


@pytest.fixture(scope="module")
def sweep() -> Measured:
    """Plans of the Ultra-Scale sweep with step times that follow one rule."""
    measured, _ = measured_runs(js.read_runs(data_path("runs") / "ultrascale_playbook_h100.csv"))
    family = families(measured)
    measured = measured.take(family == np.bincount(family).argmax())
    plan = measured.batch.plan
    slot = plan.micro_batch_size**0.7 / plan.pp**0.9
    return _with_times(measured, (plan.n_microbatches + plan.pp - 1.0) * slot)


def _with_times(measured: Measured, times: np.ndarray) -> Measured:
    return dataclasses.replace(measured, step_time=times)


def test_runs_that_follow_a_rule_contradict_nobody(sweep: Measured):
    assert len(sweep.batch) > 20
    assert not contradicted(sweep).any()


@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_a_run_far_off_is_found_and_its_siblings_are_not(sweep: Measured, factor: float):
    for row in range(0, len(sweep.batch), 5):
        times = np.where(np.arange(len(sweep.batch)) == row, factor, 1.0) * sweep.step_time
        found = np.flatnonzero(contradicted(_with_times(sweep, times)))
        assert row in found and len(found) <= 2, (row, found)


@given(st.floats(1e-3, 1e3))
def test_the_unit_of_time_does_not_matter(scale: float):
    measured, _ = measured_runs(js.read_runs(data_path("runs") / "bigscience_bloom_a100.csv"))
    scaled = _with_times(measured, scale * np.asarray(measured.step_time))
    np.testing.assert_array_equal(contradicted(scaled), contradicted(measured))


def test_runs_of_other_software_are_no_siblings(sweep: Measured):
    n = len(sweep.batch)
    levels = sweep.levels.with_columns({"release": tuple(str(row) for row in range(n))})
    alone = dataclasses.replace(sweep, step_time=np.random.default_rng(0).lognormal(0.0, 3.0, n), levels=levels)
    assert not contradicted(alone).any()
    together = _with_times(sweep, alone.step_time)
    assert contradicted(together).sum() > n // 4


def test_a_fit_names_the_lines():
    runs = js.read_runs(data_path("runs") / "mlperf_llm_training.csv")
    measured, index = measured_runs(runs)
    suspects = index[contradicted(measured)]
    said: list[str] = []
    fit(runs, n_starts=1, n_folds=2, progress=said.append)
    (sentence,) = [line for line in said if "siblings" in line]
    assert f"{len(suspects)} of {len(index)} runs" in sentence
    assert all(str(runs.rows[position].line) in sentence for position in suspects)


def test_an_empty_table_has_no_suspects(sweep: Measured):
    assert len(contradicted(sweep.take(np.zeros(len(sweep.batch), dtype=bool)))) == 0


@pytest.mark.parametrize("virtual", [1.0, 4.0])
def test_ideal_pipelines_contradict_nobody(sweep: Measured, virtual: float):
    r"""Of v virtual stages, $T = W / p (m + (p - 1) / v)$; interleaving makes deep pipelines fast."""
    plan = sweep.batch.plan
    interleaved = with_fields(plan, {"vpp": np.full_like(plan.vpp, virtual), "n_microbatches": 2.0 * plan.pp})
    batch = dataclasses.replace(sweep.batch, plan=interleaved)
    work = plan.micro_batch_size / plan.pp
    times = work * (interleaved.n_microbatches + (plan.pp - 1.0) / virtual)
    assert not contradicted(dataclasses.replace(sweep, batch=batch, step_time=times)).any()


@pytest.mark.parametrize("at_once", [1, 5, 10**6])
def test_every_pair_of_a_group_is_met_once(monkeypatch: pytest.MonkeyPatch, at_once: int):
    """In however many blocks."""
    monkeypatch.setattr(table_checks, "PAIRS_AT_ONCE", at_once)
    groups = np.asarray([2, 0, 2, 1, 2, 0])
    met = [pair for block in pairs_within(groups) for pair in zip(*(rows.tolist() for rows in block), strict=True)]
    expected = [(i, j) for i in range(6) for j in range(6) if i != j and groups[i] == groups[j]]
    assert sorted(met) == expected
