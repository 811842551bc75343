"""The published curve and the numbers read off it; each with what a wrong model would give."""

import numpy as np
import pytest
from powers_of_two import integer_survey

from jaxscale.limits.batch_time import SmoothOverlap
from jaxscale.limits.frontier_scenario import scenario
from jaxscale.limits.limits_report import published_curve


def rms_points(solved, row) -> float:
    """Distance from the published curve, percentage points."""
    curve = published_curve()
    published = np.interp(np.log(solved.training_flop), np.log(curve[:, 0]), curve[:, 1])
    return 100.0 * float(np.sqrt(np.mean((solved.utilisation[row] - published) ** 2)))


def test_curve_within_two_points(solved, row):
    assert rms_points(solved, row["default"]) <= 2.0
    for other in ("causal-pipeline", "no-overlap", "batch-cube-root"):
        assert rms_points(solved, row[other]) > 4.0


@pytest.mark.slow
def test_powers_of_two_with_constants_of_their_own():
    sizes = 10.0 ** np.arange(25.0, 31.75, 0.1)
    curve = published_curve()
    published = np.interp(np.log(sizes), np.log(curve[:, 0]), curve[:, 1])

    def rms(name: str) -> float:
        one = scenario(name)
        found = integer_survey(sizes, one, SmoothOverlap(one.overlap_exponent)).utilisation
        return 100.0 * float(np.sqrt(np.mean((np.asarray(found) - published) ** 2)))

    assert rms("powers-of-two") <= 2.6
    # Constants of relaxed plans make up for rounding that is now there.
    assert rms("default") > 3.5


def test_plateau(solved, row):
    assert solved.utilisation[row["default"], 0] == pytest.approx(0.698, abs=0.01)
    assert solved.utilisation[row["no-overlap"], 0] < 0.65


@pytest.mark.parametrize(("log_flop", "percent"), [(29.0, 49.7), (30.0, 30.0), (31.0, 14.9)])
def test_utilisation_at_round_numbers(solved, row, log_flop, percent):
    def at(name: str) -> float:
        return 100.0 * float(np.interp(log_flop, np.log10(solved.training_flop), solved.utilisation[row[name]]))

    assert at("default") == pytest.approx(percent, abs=6.0)
    assert abs(at("global-nvlink") - percent) > 6.0


def test_thresholds(log10_thresholds):
    found = log10_thresholds("default")
    assert 28.3 <= found["end_of_linear"] <= 29.0
    assert found["tenth"] == pytest.approx(31.3, abs=0.2)
    assert found["wall"] == pytest.approx(31.7, abs=0.25)
    wrong = log10_thresholds("batch-cube-root")
    assert not 28.3 <= wrong["end_of_linear"] <= 29.0 and wrong["tenth"] > 31.5 and wrong["wall"] > 31.95


def test_one_domain_for_all_chips_moves_the_end_of_linear_scaling(log10_thresholds):
    assert log10_thresholds("global-nvlink")["end_of_linear"] == pytest.approx(30.0, abs=0.4)
    assert log10_thresholds("node-64")["end_of_linear"] < 29.6


def test_history_check(log10_thresholds):
    assert 26.0 <= log10_thresholds("gtx580")["end_of_linear"] < log10_thresholds("v100")["end_of_linear"]


def test_points_are_certified_optima_or_certainly_infeasible(solved, row):
    for name in ("default", "global-nvlink", "v100"):
        assert solved.certified[row[name]].all()
    # Where latency acts alone, optima are not unique, and a search may end beside a certificate.
    whole = [index for name, index in row.items() if not name.startswith("latency-only")]
    assert solved.certified[whole].mean() >= 0.99


def test_bandwidth_without_latency_moves_the_wall_little(log10_thresholds):
    default, unlimited = log10_thresholds("default"), log10_thresholds("infinite-network-bandwidth")
    assert unlimited["wall"] - default["wall"] < 0.3
    assert log10_thresholds("zero-network-latency")["wall"] - default["wall"] > 1.0
