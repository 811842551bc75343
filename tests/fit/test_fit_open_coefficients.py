"""What a fit cannot know, and what it claims beyond what hardware gives."""

import dataclasses
import importlib
from pathlib import Path

import numpy as np
import pytest

import jaxscale as js
from jaxscale.base.table import Table
from jaxscale.calibration.coefficients import names, priors
from jaxscale.fitting.summary import impossible_rates, summary_json, summary_parts


def with_centre(result: js.FitResult, **values: float) -> js.FitResult:
    """The fit with other pooled coefficients and no effects."""
    pooled = dataclasses.replace(result.fit.pooled, **values)
    return dataclasses.replace(result, fit=js.Fit("other", pooled))


def test_each_open_coefficient_names_the_run_that_would_tell_it(bloom_fit: js.FitResult):
    assert all(prior.told_by for prior in priors().values())
    said = [part for part in summary_parts(bloom_fit) if isinstance(part, str) and "is not identified" in part]
    still_open = [name for name, known in zip(names(), bloom_fit.identified, strict=True) if not known]
    told = summary_json(bloom_fit)["told_by"]
    assert set(told) == set(still_open) and "a mixture with ep above 1" in told["ep_overlap"]
    # In print the first of those that act in the runs, none of which has experts; the others are counted.
    named, count = [line.split()[0] for line in said], len(still_open) - len(said)
    assert 0 < len(named) <= 8 and set(named) <= set(still_open) - {"ep_overlap"}
    assert f"{count} more are not identified" in str(bloom_fit)


def test_print_lists_the_coefficients_that_the_runs_decide(bloom_fit: js.FitResult):
    tables = [part for part in summary_parts(bloom_fit) if isinstance(part, Table)]
    (table,) = (part for part in tables if part.title.startswith("Coefficients"))
    known = [name for name, known in zip(names(), bloom_fit.identified, strict=True) if known]
    assert [row[0] for row in table.rows] == known


@pytest.mark.parametrize(
    "values, said",
    [
        ({"scale_up_efficiency": 1.96}, "collectives reach 1.96 of the scale-up peak"),
        ({"matmul_efficiency": 0.9, "layer_time_factor": 0.75}, "matmuls run at 1.2"),
    ],
)
def test_rates_beyond_hardware_are_flagged_in_one_line(bloom_fit: js.FitResult, values, said):
    (line,) = impossible_rates(with_centre(bloom_fit, **values))
    assert line.startswith(said) and "is possible" in line and "\n" not in line


def test_possible_rates_are_not_flagged(bloom_fit: js.FitResult):
    assert not impossible_rates(bloom_fit)
    # Eight-bit matmuls say nothing of a table without them.
    assert not impossible_rates(with_centre(bloom_fit, fp8_efficiency=3.0, scale_up_efficiency=1.2))


@pytest.fixture(scope="module")
def clusters():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[2] / "fits"))
        yield importlib.import_module("made_up_clusters")


def test_made_up_clusters_obey_physics(clusters):
    """Steps are longer than their arithmetic at the peak, and shorter with more of any hidden rate."""
    for seed in range(5):
        cluster, random = clusters.made_up_cluster(seed), np.random.default_rng(seed)
        for run in (clusters.drawn_run(random) for _ in range(5)):
            layers, width, _ = clusters.MODELS[run.model]
            flop = 72.0 * layers * width**2 * run.batch * run.seq / run.chips
            step = clusters.step_of(cluster, run)
            assert step > flop / clusters.CHIPS[cluster.gpu][0]
            for name in ("matmul", "attention", "memory", "link", "network"):
                better = dataclasses.replace(cluster, **{name: 1.1 * getattr(cluster, name)})
                assert clusters.step_of(better, run) <= step * (1.0 + 1e-12), name


@pytest.mark.slow
def test_thirty_runs_of_a_made_up_cluster_foretell_its_others(clusters):
    """Three of the clusters of `fits/made_up_clusters.md`; over all of them 86 to 95 % of unseen runs are inside."""
    found = [clusters.verdict(seed) for seed in range(3)]
    assert np.median([one.median for one in found]) < 6.0
    assert 75.0 <= np.mean([one.covered for one in found]) <= 99.0
    assert np.median([one.factor for one in found]) < 1.3
    assert all(one.median < one.before for one in found)
