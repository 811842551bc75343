"""`jaxscale islands`: document, tables, report, refusals."""

import math

import pytest

import jaxscale as js

FLEET = js.data_path("fleets/h100_and_a100.toml")
COMMAND = ("islands", FLEET, "--model", "llama2-7b", "--global-batch", 1024)


@pytest.fixture(scope="module")
def stored():
    return {}


@pytest.fixture
def document(run, stored):
    if not stored:
        stored["document"] = run(*COMMAND, "--json").json
    return stored["document"]


def test_the_document_says_how_to_join(document):
    best = document["best"]
    assert best["mode"] == document["modes"][0]["mode"]
    assert best["tokens_per_s"] == document["tokens_per_s"] and best["days_to_loss"] == document["days_to_loss"]
    assert sum(best["shares"].values()) == pytest.approx(1.0)
    assert sum(best["amounts"].values()) == 1024
    days = [mode["days_to_loss"] for mode in document["modes"]]
    assert days == sorted(days)
    assert {mode["mode"] for mode in document["modes"]} == {
        "alone", "data-parallel", "pipeline", "local-updates", "streaming"
    }  # fmt: skip
    for mode in document["modes"]:
        low, high = mode["days_to_loss_interval"]
        assert low < mode["days_to_loss"] < high


def test_worth_and_prices(document):
    assert set(document["worth"]) == {"hopper", "ampere"}
    assert document["worth"]["hopper"] > document["worth"]["ampere"] > 1.0
    # All that the pace depends on: seconds of compute, of bytes and of latency.
    kinds = document["prices"]
    total = sum(kinds["islands"].values()) + sum(kinds["links"].values()) - sum(kinds["latencies"].values())
    assert total == pytest.approx(1.0, abs=0.02)
    assert 0.001 < document["break_even_gbit_per_s"] < 10.0


def test_the_best_number_of_inner_steps_is_finite(document):
    low, high = document["best_inner_steps_interval"]
    assert 1.0 < low <= high < 5000.0
    low, high = document["rise_of_two_replicas_interval"]
    assert document["sign_of_two_replicas_open"] == (low < 0.0 < high)


def test_tables_and_report(run, tmp_path):
    outcome = run(*COMMAND, "--report", tmp_path / "report", "--plot", tmp_path / "days.svg")
    assert outcome.code == 0
    assert "Modes, the fewest days first" in outcome.out and "joining pays from" in outcome.out
    assert (tmp_path / "report" / "report.html").stat().st_size > 1e4 and "<svg" in (tmp_path / "days.svg").read_text()
    assert {path.name for path in (tmp_path / "report").glob("*.png")} == {"bandwidth.png", "days.png", "time.png"}


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("--model", "nothing"), "not in the catalogue"),
        (("--global-batch", 0), "--global-batch = 0 is out of range"),
        (("--global-batch", 1), "batch = 1 sequences for 2 islands"),
        (("--loss", 0), "--loss = 0 is out of range"),
        (("--loss", 1.0), "loss = 1 is out of reach"),
    ],
)
def test_bad_input_is_one_line(run, arguments, said):
    given = dict(zip(COMMAND[2::2], COMMAND[3::2], strict=True)) | dict(
        zip(arguments[::2], arguments[1::2], strict=True)
    )
    outcome = run("islands", FLEET, *(part for pair in given.items() for part in pair))
    assert outcome.code == 2
    assert said in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1
    assert not outcome.out


def test_a_malformed_fleet_is_one_line(run, tmp_path):
    path = tmp_path / "fleet.toml"
    path.write_text(FLEET.read_text(encoding="utf-8").replace("gbit_per_s = 10", "gbit_per_s = -10"), encoding="utf-8")
    outcome = run("islands", path, *COMMAND[2:])
    assert outcome.code == 2 and "gbit_per_s = -10 is out of range" in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1


def test_an_island_too_small_for_one_sequence_is_named(run, tmp_path):
    path = tmp_path / "fleet.toml"
    text = FLEET.read_text(encoding="utf-8").replace('"a100-80gb"\nn_gpus = 64', '"v100-16gb"\nn_gpus = 1')
    path.write_text(text, encoding="utf-8")
    outcome = run("islands", path, "--model", "llama3-405b", "--global-batch", 64)
    assert outcome.code == 2 and "island ampere: 1 chip of 16.9 GB cannot hold one layer" in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1


def test_one_island_is_alone(run, tmp_path):
    path = tmp_path / "fleet.toml"
    path.write_text('[islands.only]\ngpu = "h100-80gb"\nn_gpus = 64\n', encoding="utf-8")
    document = run("islands", path, *COMMAND[2:], "--json").json
    assert [mode["mode"] for mode in document["modes"]] == ["alone"]
    assert document["break_even_gbit_per_s"] is None and math.isfinite(document["days_to_loss"])


def test_days_under_a_fitted_law_of_the_loss(run, tmp_path, document):
    law = tmp_path / "law.toml"
    assert run("law", "fit", "--table", "gadre-c4", "--draws", 20, "--out", law).code == 0
    fitted = run(*COMMAND, "--law", law, "--json").json
    low, high = fitted["best_inner_steps_interval"]
    assert 1.0 < low <= high < 5000.0 and low <= fitted["best"]["inner_steps"] <= high
    widths = [math.log(one["days_to_loss_interval"][1] / one["days_to_loss_interval"][0]) for one in (document, fitted)]
    assert widths[1] > 1.02 * widths[0], "the law's own uncertainty joins that of step times and of looseness"
    assert fitted["loss"] != pytest.approx(document["loss"], rel=0.005), "the other law has another loss"
    close = run(*COMMAND, "--law", law, "--loss", 2.14)
    assert "% of the drawn laws no number of tokens reaches the loss" in close.out and "above" in close.out
    refused = run(*COMMAND, "--law", FLEET)
    assert refused.code == 2 and len(refused.err.strip().splitlines()) == 1


def test_a_batch_in_tokens_is_that_in_sequences(run):
    (command, fleet, *words), batch = COMMAND[:-2], COMMAND[-1]
    in_sequences = run(command, fleet, *words, "--global-batch", batch, "--json")
    in_tokens = run(command, fleet, *words, "--global-batch", f"{batch * 4096} tokens", "--json")
    assert in_tokens.code == 0, in_tokens.err
    assert in_tokens.json == in_sequences.json
    other = run(command, fleet, *words, "--global-batch", "0.5M tokens", "--json")
    assert other.json != in_sequences.json
