"""`jaxscale serving`: predictions beside all input columns, fits, refusals."""

import csv

import pytest

from jaxscale import data_path


@pytest.fixture
def table(tmp_path):
    """Some rows of a shipped table."""
    lines = (data_path("serving") / "nvidia_fastertransformer.csv").read_text(encoding="utf-8").splitlines()
    path = tmp_path / "table.csv"
    path.write_text("\n".join(lines[:1] + lines[200:230]) + "\n", encoding="utf-8")
    return path


def test_predict_adds_its_columns(run, table, tmp_path):
    out = tmp_path / "out.csv"
    done = run("serving", "predict", table, "--out", out)
    assert done.code == 0 and "30 of 30 rows predicted" in done.out
    with out.open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    header = table.read_text(encoding="utf-8").splitlines()[0].split(",")
    assert list(rows[0])[: len(header)] == header
    for name in ("ttft_s", "tpot_s", "e2e_latency_s", "output_tokens_per_s_total"):
        for row in rows:
            low, value, high = (float(row[f"predicted_{name}{end}"]) for end in ("_lo", "", "_hi"))
            assert 0 < low <= value <= high
    assert all(float(row["predicted_memory_gb"]) > 1 and float(row["predicted_max_batch"]) >= 1 for row in rows)
    assert "predicted_note" in rows[0]


def test_reports_hold_figures(run, table, tmp_path):
    done = run(
        "serving",
        "predict",
        table,
        "--fit",
        "prior",
        "--report",
        tmp_path / "predicted",
        "--json",
        "--plot",
        tmp_path / "a.svg",
    )
    assert done.code == 0 and done.json["n_predicted"] == 30
    assert (tmp_path / "predicted" / "e2e_latency_s_measured.png").is_file()
    words = "serving plan --model llama3-8b --gpu h100-80gb --n-gpus 2 --input-len 500 --output-len 200".split()
    assert run(*words, "--report", tmp_path / "plan", "--plot", tmp_path / "b.svg").code == 0
    assert all("<svg" in (tmp_path / name).read_text() for name in ("a.svg", "b.svg"))
    assert {"frontier.png", "load.png", "decode.png"} <= {one.name for one in (tmp_path / "plan").iterdir()}


def test_measured_columns_are_not_read(run, table, tmp_path):
    before = run("serving", "predict", table, "--json").json["predictions"]
    text = table.read_text(encoding="utf-8").splitlines()
    names = text[0].split(",")
    with table.open(encoding="utf-8") as stream:
        rows = [{**row, "e2e_latency_s": "123", "output_tokens_per_s_total": ""} for row in csv.DictReader(stream)]
    with table.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, fieldnames=names)
        writer.writeheader()
        writer.writerows(rows)
    assert run("serving", "predict", table, "--json").json["predictions"] == before


def test_fit_writes_a_fit_that_predict_reads(run, table, tmp_path):
    fit = tmp_path / "mine.toml"
    done = run("serving", "fit", table, "--out", fit, "--json")
    assert done.code == 0
    after = done.json["errors_in_sample"]["e2e_latency_s"]["median_ape"]
    assert after <= done.json["errors_before"]["e2e_latency_s"]["median_ape"] + 0.5
    again = run("serving", "predict", table, "--fit", fit, "--json").json
    assert again["errors"]["e2e_latency_s"]["median_ape"] == pytest.approx(after, rel=1e-3)


def test_bad_input_is_one_line(run, table, tmp_path):
    done = run("serving", "predict", tmp_path / "absent.csv")
    assert done.code == 2 and done.err.count("\n") == 1 and "absent.csv" in done.err
    assert run("serving", "fit", table, "--out", tmp_path / "fit.txt").code == 2
    assert run("serving", "predict", table, "--fit", "potato").code == 2
    assert run("serving", "predict", table, "--out", table).code == 2


def test_plan_keeps_its_limits(run):
    words = "serving plan --model llama3-8b --gpu h100-80gb --n-gpus 2 --input-len 500 --output-len 200".split()
    done = run(*words, "--tpot", "0.03", "--dollars-per-gpu-hour", "2", "--json")
    best = done.json["best"]
    assert best["tpot_s"] <= 0.03 and best["memory_gb"] < 85
    per_second = best["output_tokens_per_s_per_gpu"]
    assert best["dollars_per_million_tokens"] == pytest.approx(2 / 3600 / per_second * 1e6)
    text = run(*words)
    assert text.code == 0 and "tokens/s per chip" in text.out
    refused = run(*words, "--tpot", "1e-6")
    assert refused.code == 2 and "is possible" in refused.err
