"""Names of chips at the door: taken, asked about or refused, and none taken for another."""

import pytest

from jaxscale.base.errors import InputError
from jaxscale.hardware.catalogue import ChipNames, load_hardware

MEANT = {
    "h100-80gb": ["H100 SXM", "H100-SXM5-80GB", "H100 80GB", "h100_80gb", "NVIDIA H100 80GB HBM3", "8x H100 SXM5 80GB"],
    "h100-80gb-pcie": ["NVIDIA H100 PCIe", "H100-PCIE-80GB", "h100 pcie"],
    "h100-nvl-94gb": ["NVIDIA H100 NVL", "H100-NVL"],
    "h200-141gb": ["H200", "NVIDIA H200"],
    "h800-80gb": ["H800 SXM", "h800-80gb"],
    "a100-80gb": ["A100 80GB", "A100-SXM4-80GB", "a100 80g", "p4de.24xlarge"],
    "a100-40gb": ["A100 40GB", "NVIDIA A100-SXM4-40GB"],
    "a100-40gb-pcie": ["NVIDIA A100-PCIE-40GB", "A100 PCIe 40 GB"],
    "v100-16gb": ["Tesla V100-SXM2-16GB"],
    "gh200-96gb": ["NVIDIA GH200 480GB", "GH200 96GB"],
    "mi250x": ["AMD Instinct MI250X"],
    "mi250": ["MI250"],
    "mi300x": ["AMD Instinct MI300X"],
    "mi355x": ["AMD Instinct MI355X"],
    "tpu-v4": ["TPU v4", "v4-8"],
    "tpu-v5e": ["v5e", "v5litepod", "v5litepod-256", "TPU v5 lite"],
    "tpu-v5p": ["v5p", "TPU v5p", "v5p-128"],
    "tpu-v6e": ["v6e", "trillium", "TPU v6 lite"],
    "tpu7x": ["TPU7x", "Ironwood"],
    "trn1": ["trn1", "Trainium"],
    "trn2": ["trn2", "AWS Trainium2"],
    "gaudi2": ["gaudi-2", "Intel Gaudi 2"],
    "gaudi3": ["Gaudi 3"],
    "ascend-910b": ["Ascend 910B", "Ascend910B"],
    "rtx3090-24gb": ["RTX 3090", "NVIDIA GeForce RTX 3090"],
    "rtx4090-24gb": ["RTX 4090", "RTX4090", "4090"],
    "rtx5090-32gb": ["NVIDIA GeForce RTX 5090"],
    "rtx6000-ada": ["RTX 6000 Ada", "NVIDIA RTX 6000 Ada Generation"],
    "rtx-pro-6000": ["RTX PRO 6000", "NVIDIA RTX PRO 6000 Blackwell Server Edition"],
    "rtx-a6000": ["A6000", "RTX A6000"],
    "a10": ["A10", "NVIDIA A10"],
    "a40": ["A40"],
    "l4": ["NVIDIA L4"],
    "t4": ["Tesla T4"],
    "gb10": ["GB10", "DGX Spark"],
}
AMBIGUOUS = {
    "H100": {"h100-80gb", "h100-80gb-pcie", "h100-96gb", "h100-nvl-94gb"},
    "NVIDIA A100": {"a100-40gb", "a100-40gb-pcie", "a100-80gb", "a100-80gb-pcie"},
    "A100 PCIe": {"a100-40gb-pcie", "a100-80gb-pcie"},
    "V100": {"v100-16gb", "v100-32gb"},
    "H800": {"h800-80gb", "h800-80gb-pcie"},
    "GH200": {"gh200-96gb", "gh200-144gb"},
    "H20": {"h20-96gb", "h20-141gb"},
    "RTX 6000": {"rtx6000-ada", "rtx-pro-6000"},
}
UNKNOWN = ["H100X", "MI300A", "RTX 3090 Ti", "4090D", "TPU v1", "B100", "P100", "80GB", "sxm", "Ascend 910", "", "gpu"]
UNKNOWN += ["5", "-1", "1.5"]

HARDWARE = load_hardware()


@pytest.mark.parametrize(("chip", "names"), MEANT.items())
def test_names_of_people_and_tools_are_taken(chip: str, names: list[str]):
    assert {name: HARDWARE[name].id for name in names} == dict.fromkeys(names, chip)
    assert all(HARDWARE[name.upper()].id == chip for name in names)


@pytest.mark.parametrize(("name", "chips"), AMBIGUOUS.items())
def test_ambiguous_names_ask(name: str, chips: set[str]):
    assert set(HARDWARE.names.meant(name)) == chips
    with pytest.raises(InputError) as caught:
        HARDWARE[name]
    assert all(chip in str(caught.value) for chip in chips) and "ambiguous" in str(caught.value)


@pytest.mark.parametrize("name", UNKNOWN)
def test_no_name_is_taken_for_another(name: str):
    assert HARDWARE.names.meant(name) == ()
    with pytest.raises(InputError, match="is not in the hardware catalogue"):
        HARDWARE[name]


def test_every_name_of_the_catalogue_means_its_chip():
    for name, entry in HARDWARE.chips.items():
        assert HARDWARE.names.meant(name) == (entry.id,)
        assert HARDWARE.names.meant(entry.name) == (entry.id,)


def test_names_of_two_chips_ask():
    names = ChipNames({"one-96gb": "one", "twin x1": "one", "two-96gb": "two", "Twin-X1": "two"})
    assert names.meant("TWIN X1") == ("one", "two")
    assert names.meant("one 96 GB") == ("one",)
