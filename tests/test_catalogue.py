"""Catalogues by name: SI units, fallbacks that say so, files of the user's own, one-line refusals."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxscale.base.errors import InputError
from jaxscale.hardware.catalogue import NUMBERS, chip, cluster, load_hardware
from jaxscale.hardware.formats import PRECISIONS
from jaxscale.models import model, model_fields

REQUIRED_CHIPS = """v100-16gb v100-32gb a100-40gb a100-80gb h100-80gb h100-96gb h200 b200 gb200 b300 gb300 mi250x mi300x
mi325x mi355x tpu-v4 tpu-v5e tpu-v5p tpu-v6e gaudi2 l40s gtx580""".split()

MINE = """
[chips.mine]
memory_gb = 64
memory_gb_per_s = 1000
peak_tflops_bf16 = 200
domain_size = 4
link_gb_per_s = 100
"""


def written(path: Path, text: str) -> Path:
    """A hardware file with some text."""
    file = path / "hardware.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_h100_in_si_units():
    """NVIDIA H100 datasheet: 989.4 dense bf16 Tflop/s, 3.35 TB/s, 900 GB/s of NVLink both ways, 700 W.

    Of its 80 GiB a program may allocate 79.1.
    """
    h100 = chip("h100-80gb")
    assert float(h100.peak("bf16")) == pytest.approx(989.4e12, rel=1e-3)
    assert (h100.hbm_bandwidth, h100.max_power) == (3.35e12, 700.0)
    assert h100.hbm_bytes == pytest.approx(79.1 * 2**30, rel=1e-3)
    np.testing.assert_allclose(cluster("h100-80gb", 8).network.bandwidth[0], 450e9)


@pytest.mark.parametrize("chip_id", REQUIRED_CHIPS)
def test_promised_chips_are_there_and_physical(chip_id: str):
    one = cluster(chip_id, 64)
    assert (np.asarray(one.chip.peak_flops) > 1e11).all()
    assert 1e9 <= one.chip.hbm_bytes < 1e12
    assert (np.diff(one.network.domain_size) >= 0.0).all()
    assert (one.network.latency > 1e-8).all() and (one.network.latency < 1e-3).all()
    assert 0.0 < one.chip.idle_power < one.chip.max_power


def test_every_missing_number_says_what_stands_in():
    entry = load_hardware()["v100-32gb"]
    assert set(entry.stated) | set(entry.fallbacks) == set(NUMBERS)
    assert not set(entry.stated) & set(entry.fallbacks)
    assert entry.fallbacks["peak_tflops_fp8"]


def test_the_job_may_differ_from_the_reference_network():
    network = cluster("h100-80gb", 64, domain_size=4, bandwidth=25e9).network
    assert network.domain_size[0] == 4.0
    assert network.bandwidth[1] == 25e9


def test_numbers_of_chips_are_in_si_units():
    """Gigabytes are 1e9 bytes, Tflop/s 1e12 flop/s, microseconds 1e-6 s."""
    for entry in load_hardware().chips.values():
        n, one, network = entry.numbers, entry.chip(), entry.network()
        np.testing.assert_allclose(
            [one.hbm_bytes, one.hbm_bandwidth], [1e9 * n["memory_gb"], 1e9 * n["memory_gb_per_s"]]
        )
        np.testing.assert_allclose(one.peak_flops, [1e12 * n[f"peak_tflops_{kind}"] for kind in PRECISIONS])
        levels = ("link", "network", "spine")
        np.testing.assert_allclose(network.bandwidth, [1e9 * n[f"{level}_gb_per_s"] for level in levels])
        np.testing.assert_allclose(network.latency, [1e-6 * n[f"{level}_latency_us"] for level in levels])


@given(chip_id=st.sampled_from(REQUIRED_CHIPS), faster=st.floats(0.05, 20.0))
def test_a_stated_scale_out_link_carries_its_spine_along(chip_id: str, faster: float):
    """How much the spine is oversubscribed stays: all beyond the domain changes alike, and nothing else does."""
    usual = load_hardware()[chip_id].network()
    other = load_hardware()[chip_id].network(bandwidth=faster * float(usual.bandwidth[1]))
    np.testing.assert_allclose(other.bandwidth, usual.bandwidth * [1.0, faster, faster], rtol=1e-12)
    np.testing.assert_array_equal(other.latency, usual.latency)
    np.testing.assert_array_equal(other.domain_size, usual.domain_size)


def test_the_count_of_a_tray_means_the_whole_rack():
    """Hosts of a GB200 NVL72 hold 4 chips each, and their links reach all 72; any other count is a smaller domain."""
    sizes = [float(cluster("gb200", 512, domain_size=count).network.domain_size[0]) for count in (None, 4, 36)]
    assert sizes == [72.0, 72.0, 36.0]


def test_a_file_adds_chips_and_replaces_shipped_ones(tmp_path: Path):
    mine = load_hardware(written(tmp_path, MINE))
    assert chip("mine", mine).peak("bf16") == 200e12
    assert chip("h100-80gb", mine).hbm_bytes == chip("h100-80gb").hbm_bytes
    replaced = load_hardware(written(tmp_path, MINE.replace("chips.mine", 'chips."h100-80gb"')))
    assert chip("h100-80gb", replaced).hbm_bytes == 64e9
    assert "mine" not in load_hardware().chips


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no chips; expected at least one table"),
        ("[chips.mine", "not valid TOML"),
        ("[chips]\nmine = 3", "chips.mine must be a table"),
        (MINE.replace("memory_gb =", "memory_go ="), "'memory_go' is not a known number; did you mean memory_gb"),
        (MINE.replace("64", '"much"'), "chips.mine.memory_gb = 'much' is not a number; expected a number from 1e-09"),
        (MINE.replace("64", "-1"), "chips.mine.memory_gb = -1 is out of range; expected a number from 1e-09"),
        (MINE.replace("64", "nan"), "chips.mine.memory_gb = nan is out of range"),
        (MINE.replace("64", "true"), "chips.mine.memory_gb = True is not a number"),
        (MINE.replace("peak_tflops_bf16 = 200", ""), "peak_tflops_bf16 is missing"),
        (MINE.replace("link_gb_per_s = 100", ""), "link_gb_per_s is missing; a domain of several chips needs it"),
    ],
)
def test_malformed_files_are_refused_in_one_line(tmp_path: Path, text: str, message: str):
    file = written(tmp_path, text)
    with pytest.raises(InputError) as caught:
        load_hardware(file)
    assert message in str(caught.value) and str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="absent.toml: cannot be read"):
        load_hardware(tmp_path / "absent.toml")


def test_chips_are_found_in_letters_of_any_case():
    assert chip("H100-80GB").hbm_bytes == chip("h100-80gb").hbm_bytes


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(InputError, match="gpu 'h100-80' is not in the hardware catalogue; did you mean h100-80gb"):
        chip("h100-80")
    with pytest.raises(InputError, match="model 'llama3-9b' is not in the catalogue; did you mean .*llama3-8b"):
        model("llama3-9b")
    with pytest.raises(InputError, match="n_chips = 0 is out of range; expected at least 1"):
        cluster("h100-80gb", 0)


def test_models_by_any_case_and_alias():
    assert model("LLAMA3-8B").d_model == model("llama3-8b").d_model == 4096.0
    assert model("llama3-8b", n_layers=16).n_layers == 16.0
    assert len(model_fields()) >= 20
