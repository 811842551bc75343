"""`jaxscale hardware` and `--hardware`: chips of the user's own."""

import pytest
from cli_tables import read_rows

CHIP = """
[chips."my-chip"]
memory_gb = 100
memory_gb_per_s = 3000
peak_tflops_bf16 = 500
domain_size = 8
link_gb_per_s = 200
"""


@pytest.fixture
def own(tmp_path):
    """A hardware file with one chip."""
    path = tmp_path / "own.toml"
    path.write_text(CHIP)
    return path


def test_list(run):
    outcome = run("hardware")
    assert outcome.code == 0
    assert "h100-80gb" in outcome.out
    chips = run("hardware", "--json").json["chips"]
    assert len(chips) >= 20
    assert all(entry["id"] == name for name, entry in chips.items())


def test_show_one(run):
    document = run("hardware", "a100-80gb", "--json").json
    assert document["numbers"]["peak_tflops_bf16"] == 312
    assert document["sources"]["memory_gb"]
    assert "312" in run("hardware", "a100-80gb").out


def test_check_a_file_and_name_its_fallbacks(run, own):
    outcome = run("hardware", "--hardware", own)
    assert outcome.code == 0
    assert "valid; 1 chip: my-chip" in outcome.err
    assert "not stated: 1 x link_gb_per_s" in outcome.out
    assert run("hardware", "my-chip", "--hardware", own, "--json").json["fallbacks"]["network_gb_per_s"]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("memory_gb = 100", "", "memory_gb is missing"),
        ("= 3000", '= "fast"', "is not a number"),
        ("= 500", "= -1", "out of range"),
        ("domain_size", "domain_sise", "'domain_sise' is not a known number"),
        ("[chips", "[[[", "not valid TOML"),
    ],
)
def test_a_file_with_a_mistake(run, own, old, new, expected):
    own.write_text(CHIP.replace(old, new))
    outcome = run("hardware", "--hardware", own)
    assert outcome.code == 2
    assert outcome.out == ""
    assert expected in outcome.err
    assert outcome.err.count("\n") == 1


def test_a_missing_file(run, tmp_path):
    assert run("hardware", "--hardware", tmp_path / "none.toml").code == 2


def test_predict_on_a_chip_of_the_users_own(run, own, table, tmp_path):
    path = table({"gpu": "my-chip"})
    assert "not in the hardware catalogue" in run("predict", path, "--fit", "prior").err
    out = tmp_path / "out.csv"
    assert run("predict", path, "--fit", "prior", "--hardware", own, "--out", out).code == 0
    slow = float(read_rows(out)[0]["predicted_step_time_s"])
    own.write_text(CHIP.replace("500", "1000"))
    assert run("predict", path, "--fit", "prior", "--hardware", own, "--out", out).code == 0
    assert float(read_rows(out)[0]["predicted_step_time_s"]) < slow
