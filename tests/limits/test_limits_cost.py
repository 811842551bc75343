"""Energy and money of the runs of the data-movement model, and what light costs."""

import numpy as np
import pytest

import jaxscale as js
from jaxscale.base.errors import InputError
from jaxscale.base.units import YEAR
from jaxscale.hardware.catalogue import load_hardware
from jaxscale.limits.frontier_scenario import load_scenarios, scenario_tables
from jaxscale.limits.study import RunCost, cheaper_from, optical_bandwidth, paid_run, run_cost

SIZES = np.array([1e25, 1e26, 1e27])
FULL = np.full(3, 0.7)


def any_cost(name, utilisation=FULL):
    return run_cost(SIZES, utilisation, load_scenarios()[name], scenario_tables()[name], load_hardware())


def cost(name="default", utilisation=FULL) -> RunCost:
    found = any_cost(name, utilisation)
    assert found is not None
    return found


def test_a_run_at_the_plateau_by_hand():
    """At the highest utilisation every chip computes all the time: the limit of the board, and the host beside it."""
    found = cost()
    seconds = SIZES / (1978.9e12 * 0.7)
    assert found.power == pytest.approx(700.0 + 575.0)
    np.testing.assert_allclose(found.energy, seconds * 1275.0, rtol=1e-4)
    rate = 57300.0 / (4.0 * YEAR) + 0.081 / 3.6e6 * 1.3 * 1275.0
    np.testing.assert_allclose(found.money, seconds * rate, rtol=1e-4)
    assert found.optics_power == found.optics_capital == 0.0


def test_light_by_hand():
    """Six transceivers of 1.6 Tbit/s, 30 W and 1,000 dollars for each port, beyond the 50 GB/s of the chip's system."""
    found, packaged = cost("optical-interconnect"), cost("co-packaged-optics")
    ports = 8.0 * (1e12 - 50e9) / 1.6e12
    assert found.optics_power == pytest.approx(6.0 * 30.0 * ports)
    assert packaged.optics_power == pytest.approx(6.0 * 9.0 * ports)
    assert found.optics_capital == packaged.optics_capital == pytest.approx(6000.0 * ports)
    assert (cost().energy < packaged.energy).all()
    assert (packaged.energy < found.energy).all()


def test_only_what_copper_cannot_join_is_light():
    library = load_scenarios()
    assert optical_bandwidth(library["node-64"], 50e9) == 0.0
    assert optical_bandwidth(library["node-576"], 50e9) == library["node-576"].link_bandwidth
    assert optical_bandwidth(library["infinite-network-bandwidth"], 50e9) == np.inf
    assert not np.isfinite(cost("infinite-network-bandwidth").money).any()


def test_a_lower_utilisation_costs_more_and_beyond_the_wall_nothing_can_be_paid():
    full, lower = cost(), cost(utilisation=np.array([0.7, 0.35, 0.0]))
    assert lower.energy[0] == full.energy[0]
    # A chip that waits draws less than one that computes.
    assert full.energy[1] < lower.energy[1] < 2.0 * full.energy[1]
    assert np.isinf(lower.energy[2]) and np.isinf(lower.money[2])


def test_chips_without_a_price_have_no_cost():
    assert any_cost("gtx580") is None
    assert any_cost("h100-in-four-years") is None
    with pytest.raises(InputError, match="optics = 'fibre' is not known"):
        run_cost(SIZES, FULL, load_scenarios()["default"], {"gpu": "h100-80gb", "optics": "fibre"}, load_hardware())


def test_crossings_lie_between_the_points_of_a_curve():
    rising, flat = np.array([1.0, 10.0, 100.0]), np.array([10.0, 20.0, 40.0])
    between = cheaper_from(SIZES, flat, rising)
    assert 1e26 < between < 1e27
    assert np.log(np.interp(np.log(between), np.log(SIZES), np.log(rising))) > 0.0
    assert cheaper_from(SIZES, rising, flat) == 1e25
    assert cheaper_from(SIZES, flat + 100.0, rising) == np.inf
    assert paid_run(SIZES, rising, 10.0) == pytest.approx(1e26)
    assert paid_run(SIZES, rising, 0.5) == np.inf


def test_systems_are_those_of_the_trends():
    assert js.trends.system_of("h100-80gb")["host_power_w"]["value"] == 575
