"""Fleets from TOML: what is read, and one clear line for everything that is wrong."""

import numpy as np
import pytest

import jaxscale as js
from jaxscale.base.errors import InputError
from jaxscale.islands.fleet import NO_LIMIT, fleet_of, host_rate, read_fleet, uniform_links

GOOD = """
[islands.east]
gpu = "h100-80gb"
n_gpus = 64
[islands.west]
gpu = "a100-80gb"
n_gpus = 32
uplink_gbit_per_s = 4
[links]
gbit_per_s = 10
latency_ms = 30
"""


def read(folder, text):
    """Fleet of a text."""
    path = folder / "fleet.toml"
    path.write_text(text, encoding="utf-8")
    return read_fleet(path)


def test_a_fleet_is_read(tmp_path):
    stated = read(tmp_path, GOOD)
    fleet = stated.fleet
    assert fleet.names == ("east", "west") and stated.chips == ("h100-80gb", "a100-80gb")
    assert np.asarray(fleet.clusters.n_chips).tolist() == [64.0, 32.0]
    assert float(fleet.cluster(1).chip.hbm_bytes) == float(js.chip("a100-80gb").hbm_bytes)
    assert float(np.asarray(fleet.links.bandwidth)[0, 1]) == 1.25e9
    assert float(np.asarray(fleet.links.latency)[0, 1]) == 0.03
    # The uplink is narrower than the link.
    assert float(fleet.links.rate[0, 1]) == 0.5e9 == float(host_rate(fleet.links)[1, 0])
    assert fleet.part([1]).names == ("west",)


def test_pairs_and_matrices(tmp_path):
    pair = GOOD + '[[links.pair]]\nbetween = ["west", "east"]\ngbit_per_s = 1\n'
    assert np.asarray(read(tmp_path, pair).fleet.links.bandwidth)[0, 1] == 0.125e9
    matrix = GOOD.replace("gbit_per_s = 10\n", "gbit_per_s = [[0, 8], [16, 0]]\n")
    links = read(tmp_path, matrix).fleet.links
    assert np.asarray(links.bandwidth)[0, 1] == 1e9 and np.asarray(links.bandwidth)[1, 0] == 2e9
    assert np.isfinite(np.asarray(links.rate)).all()


def test_chips_of_the_file_itself(tmp_path):
    own = '[chips."mine"]\npeak_tflops_bf16 = 100\nmemory_gb = 24\nmemory_gb_per_s = 900\n'
    fleet = read(tmp_path, GOOD.replace('"a100-80gb"', '"mine"') + own).fleet
    assert float(fleet.cluster(1).chip.hbm_bytes) == 24e9


def test_one_island_needs_no_links(tmp_path):
    fleet = read(tmp_path, '[islands.only]\ngpu = "h100-80gb"\nn_gpus = 8\n').fleet
    assert fleet.n_islands == 1 and float(np.asarray(fleet.links.uplink)[0]) == NO_LIMIT


@pytest.mark.parametrize(
    "old, new, said",
    [
        ('"h100-80gb"', '"h1000"', "islands.east.gpu 'h1000' is not in the hardware catalogue"),
        ("n_gpus = 64", "n_gpus = 0", "islands.east.n_gpus = 0 is out of range; expected a number of at least 1"),
        ("n_gpus = 64", "n_gpus = 1.5", "no whole number"),
        ("n_gpus = 64", 'n_gpus = "many"', "is not a number"),
        ("n_gpus = 64", "chips = 64", "'chips' is not a known key"),
        ("n_gpus = 64\n", "", "islands.east: n_gpus is missing"),
        ("gbit_per_s = 10\n", "gbit_per_s = 0\n", "links.gbit_per_s = 0 is out of range; expected a number above 0"),
        ("gbit_per_s = 10\n", "gbit_per_s = -1\n", "links.gbit_per_s = -1 is out of range"),
        ("gbit_per_s = 10\n", "gbit_per_s = nan\n", "links.gbit_per_s = nan is out of range"),
        ("gbit_per_s = 10\n", "", "links.gbit_per_s is missing"),
        ("gbit_per_s = 10\n", "gbit_per_s = [[0, 1]]\n", "links.gbit_per_s has 1 rows; expected 2"),
        ("gbit_per_s = 10\n", "gbit_per_s = [[0, 1], [1]]\n", "row of west has 1 numbers; expected 2"),
        ("gbit_per_s = 10\n", "gbit_per_s = [[0, 1], [0, 0]]\n", "west -> east = 0 is out of range"),
        (
            "latency_ms = 30",
            "latency_ms = -1",
            "links.latency_ms = -1 is out of range; expected",
        ),
        ("latency_ms = 30", "delay = 30", "'delay' is not a known key"),
        ("[links]", "[linkage]", "'linkage' is not a known key; did you mean links?"),
        ("[links]\ngbit_per_s = 10\nlatency_ms = 30", "", "[links] is missing"),
        ("[links]", '[[links.pair]]\nbetween = ["east", "north"]\n[links.more]', "'more' is not a known key"),
        ("uplink_gbit_per_s = 4", "uplink_gbit_per_s = 0", "uplink_gbit_per_s = 0 is out of range"),
        ("[islands.east]", "[islands.east", "not valid TOML"),
    ],
)
def test_a_mistake_gets_one_line(tmp_path, old, new, said):
    assert old in GOOD
    with pytest.raises(InputError) as caught:
        read(tmp_path, GOOD.replace(old, new, 1))
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert "fleet.toml" in str(caught.value)


def test_a_pair_of_unknown_islands(tmp_path):
    for ends, said in (('["east", "north"]', "'north' is not an island"), ('["east"]', "names of two islands")):
        with pytest.raises(InputError, match=said):
            read(tmp_path, GOOD + f"[[links.pair]]\nbetween = {ends}\ngbit_per_s = 1\n")


def test_no_islands(tmp_path):
    with pytest.raises(InputError, match="no islands"):
        read(tmp_path, "[links]\ngbit_per_s = 1\n")
    with pytest.raises(InputError, match="cannot be read"):
        read_fleet(tmp_path / "missing.toml")


def test_links_of_another_size_are_refused():
    clusters = [js.cluster("h100-80gb", 8), js.cluster("h100-80gb", 8)]
    with pytest.raises(InputError, match="bandwidth is 3 x 3; expected 2 x 2"):
        fleet_of(clusters, uniform_links(3, 1e9))
    good = uniform_links(2, 1e9)
    with pytest.raises(InputError, match="expected a number above 0"):
        fleet_of(clusters, uniform_links(2, -1e9))
    with pytest.raises(InputError, match="expected at least 0"):
        fleet_of(clusters, uniform_links(2, 1e9, -1.0))
    with pytest.raises(InputError, match="different names"):
        fleet_of(clusters, good, ("one", "one"))
    with pytest.raises(InputError, match="at least one"):
        fleet_of([], good)
