"""Figures of Fernandez et al. (arXiv 2411.13055): reached with two fitted latencies, shown without them too."""

import dataclasses

import numpy as np
import pytest

from jaxscale.calibration.store import load_fit
from jaxscale.trends.deployment_library import (
    calibrated,
    deployment,
    fitted_overlay,
    fitted_table,
    table,
    unfitted_overlay,
)
from jaxscale.trends.published_scaling import FIGURES, published_values, reproduce


@pytest.mark.parametrize("figure", ["throughput_fall", "power_fall", "a100_mfu", "h100_mfu"])
def test_a_published_figure_is_within_its_tolerance(fitted_answers, figure):
    value, tolerance = published_values()[figure]
    assert abs(fitted_answers.values[figure] - value) <= tolerance


def test_tensor_parallelism_gains_what_is_accepted(fitted_answers):
    least, most = table()["published"]["tensor_parallel_gain"]["accepted"]
    assert least <= fitted_answers.values["tensor_parallel_gain"] <= most


def test_strong_scaling_falls_from_about_forty_to_below_fifteen_per_cent(fitted_answers):
    (few, tolerance), (many, _) = (published_values()[f"strong_scaling_mfu_{size}"] for size in ("few", "many"))
    assert abs(fitted_answers.values["strong_scaling_mfu_few"] - few) <= tolerance
    assert fitted_answers.values["strong_scaling_mfu_many"] < many


def test_the_best_tensor_parallel_degree_moves_from_one_to_two_or_four(fitted_answers, unfitted_answers):
    assert fitted_answers.best_degree[0] == unfitted_answers.best_degree[0] == 1.0
    assert 2.0 <= fitted_answers.best_degree[1] <= 4.0


def test_the_pooled_fit_foretells_part_of_the_fall_and_the_move_without_any_fitted_latency():
    pooled = reproduce(unfitted_overlay(), load_fit())
    assert 1 / 3 < pooled.values["throughput_fall"] / published_values()["throughput_fall"][0] < 4 / 3
    assert pooled.best_degree[0] == 1.0 and 2.0 <= pooled.best_degree[1] <= 4.0


def test_tensor_parallel_collectives_of_the_workload_block_and_those_of_named_levels_need_not():
    assert float(deployment().coefficients.tp_overlap) == 0.0
    assert float(deployment(levels={"framework": "nemo"}).coefficients.tp_overlap) > 0.1


def test_chips_without_runs_in_the_workloads_table_have_pooled_coefficients():
    assert calibrated("h100-80gb") == load_fit(table()["workload"]["fit"])
    assert calibrated("b200") == load_fit() != calibrated("h100-80gb")


def test_only_latencies_and_two_powers_are_fitted():
    before, after = unfitted_overlay(), fitted_overlay()
    changed = {name for name in before.power if before.power[name] != after.power[name]}
    assert changed == {"memory", "network"}
    for name in changed:
        entry = table()["power"][name]
        assert abs(after.power[name] - entry["value"]) < 2.0 * entry["spread"]
    assert set(fitted_table()["hop_latency"]["fitted_to"]) == {"throughput_fall", "tensor_parallel_gain"}
    assert set(fitted_table()["provenance"]["power_fitted_to"]) == {"power_level", "tensor_parallel_power"}
    ratio = np.log(np.asarray(after.hop_latency) / np.asarray(before.hop_latency))
    assert np.all(np.abs(ratio) < 2.0 * np.asarray(before.spread))


def test_the_stored_answers_are_those_of_the_model(fitted_answers, unfitted_answers):
    for name in FIGURES:
        stored = fitted_table()["answers"][name]
        assert fitted_answers.values[name] == pytest.approx(stored["fitted"], rel=0.03)
        assert unfitted_answers.values[name] == pytest.approx(stored["unfitted"], rel=0.03)


def test_without_ring_latency_the_throughput_would_not_fall():
    instant = dataclasses.replace(fitted_overlay(), hop_latency=(1e-12, 1e-12))
    answers = reproduce(instant)
    value, tolerance = published_values()["throughput_fall"]
    assert abs(answers.values["throughput_fall"] - value) > tolerance
    assert answers.best_degree[1] == 1.0
