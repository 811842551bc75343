"""`jaxscale law`: fit, predict, optimum and compare through files, and their JSON."""

import csv

import numpy as np
import pytest
from cli_tables import read_rows

from jaxscale.base.errors import InputError
from jaxscale.laws import loss_fit
from jaxscale.laws.backtest import upper_decade
from jaxscale.laws.loss_reader import loss_table


@pytest.fixture(scope="module")
def halves(tmp_path_factory):
    """Lower half of a table by log compute, and its top decade, as files."""
    table, folder = loss_table("gadre-refinedweb"), tmp_path_factory.mktemp("halves")
    paths = []
    for name, rows in zip(("low", "high"), upper_decade(table), strict=True):
        part = table.select(rows)
        paths.append(folder / f"{name}.csv")
        with paths[-1].open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(part.columns)
            writer.writerows(zip(*(part.cells[column] for column in part.columns), strict=True))
    return paths


@pytest.fixture(scope="module")
def law(halves, tmp_path_factory):
    """Path of the law of the lower half."""
    return tmp_path_factory.mktemp("law") / "law.toml"


def test_fit_then_predict_what_was_held_out(run, halves, law, tmp_path):
    low, high = halves
    fitted = run("law", "fit", low, "--out", law, "--json", "--draws", 60)
    assert fitted.code == 0, fitted.err
    document = fitted.json
    assert {"form", "parameters", "n", "backtest", "warnings"} <= set(document)
    assert document["form"] == "joint" and document["n"] == len(read_rows(low))
    for entry in document["parameters"].values():
        assert {"value", "lo", "hi", "identified"} == set(entry)
        assert entry["lo"] <= entry["hi"]
    assert {"error_percent", "coverage_90"} <= set(document["backtest"])
    assert "backtest" in fitted.err
    out = tmp_path / "out.csv"
    told = run("law", "predict", law, high, "--out", out)
    assert told.code == 0, told.err
    rows, given = read_rows(out), read_rows(high)
    assert [{name: row[name] for name in given[0]} for row in rows] == given
    told, lo, hi, measured = (
        np.asarray([float(row[name]) for row in rows])
        for name in ("predicted_loss", "predicted_loss_lo", "predicted_loss_hi", "loss")
    )
    assert (lo < told).all() and (told < hi).all()
    assert np.abs(told / measured - 1.0).mean() < 0.06
    assert ((lo < measured) & (measured < hi)).mean() > 0.6


def test_the_losses_of_the_points_are_not_read(run, halves, law, tmp_path):
    if not law.exists():
        assert run("law", "fit", halves[0], "--out", law, "--draws", 60).code == 0
    rows = read_rows(halves[1])
    bare = tmp_path / "bare.csv"
    bare.write_text("\n".join(["n_params,tokens", *(f"{row['n_params']},{row['tokens']}" for row in rows)]) + "\n")
    whole = run("law", "predict", law, halves[1], "--json").json["predictions"]
    assert run("law", "predict", law, bare, "--json").json["predictions"] == whole


def test_reports_hold_figures(run, law, halves, tmp_path):
    if not law.exists():
        assert run("law", "fit", halves[0], "--out", law, "--draws", 60).code == 0
    fitted = run("law", "fit", halves[0], "--draws", 20, "--report", tmp_path / "fit", "--plot", tmp_path / "fit.svg")
    assert fitted.code == 0 and "report.html" in fitted.err and "<svg" in (tmp_path / "fit.svg").read_text()
    assert {"loss_against_compute.png", "isoflop.png", "rollouts.png"} <= {
        one.name for one in (tmp_path / "fit").iterdir()
    }
    told = run(
        "law",
        "optimum",
        law,
        "--flop",
        1e22,
        "--report",
        tmp_path / "optimum",
        "--json",
        "--plot",
        tmp_path / "best.pdf",
    )
    assert told.code == 0 and told.json["designs"] == []
    assert (tmp_path / "optimum" / "optima.png").is_file()


def test_optimum_is_told_with_intervals(run, halves, law):
    if not law.exists():
        assert run("law", "fit", halves[0], "--out", law, "--draws", 60).code == 0
    outcome = run("law", "optimum", law, "--flop", 1e20, 1e22, "--json")
    assert outcome.code == 0, outcome.err
    small, large = outcome.json["optima"]
    assert 6.0 * small["n_params"]["value"] * small["n_tokens"]["value"] == pytest.approx(1e20)
    assert small["n_params"]["lo"] < small["n_params"]["value"] < small["n_params"]["hi"]
    assert large["loss"]["value"] < small["loss"]["value"]
    assert "tokens per parameter" in run("law", "optimum", law).out
    assert run("law", "optimum", law, "--flop", 0).code == 2
    alone = run("law", "optimum", law, "--days", 3)
    assert alone.code == 2 and "go together" in alone.err


def test_every_option_of_a_fit_reaches_it(run, monkeypatch):
    """None is left at its default in silence."""
    asked = {}

    def fit(table, form, terms, *, progress, **others):
        asked.update(others, form=form, terms=tuple(terms), n=len(table))
        raise InputError("asked")

    monkeypatch.setattr(loss_fit, "fit_law", fit)
    words = "--form additive --terms batch --prior none --likelihood huber --cluster rows --draws 7 --seed 3"
    assert "asked" in run("law", "fit", "--table", "gadre-c4", *words.split()).err
    table = loss_table("gadre-c4")
    told = {"prior": None, "likelihood": "huber", "cluster": "rows", "n_draws": 7, "seed": 3}
    assert asked == {"form": "additive", "terms": ("batch",), "n": len(table), **told}


def test_forms_are_compared_by_prediction(run):
    outcome = run("law", "compare", "--table", "gadre-refinedweb", "--forms", "joint", "additive", "--json")
    assert outcome.code == 0, outcome.err
    forms = outcome.json["forms"]
    assert [entry["form"] for entry in forms] == ["joint", "additive"]
    assert forms[0]["error_percent"] < forms[1]["error_percent"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("law", "fit"), "exactly one of them"),
        (("law", "fit", "--table", "nobody"), "is unknown"),
        (("law", "fit", "--table", "gadre-c4", "--form", "power"), "expected one of joint"),
        (("law", "fit", "--table", "gadre-c4", "--prior", "mine"), "expected shipped or none"),
        (("law", "fit", "--table", "gadre-c4", "--out", "law.json"), "ends in .toml"),
        (("law", "fit", "--table", "gadre-c4", "--where", "group=rpj"), "does not go with --table"),
        (("law", "predict", "absent.toml", "points.csv"), "absent.toml"),
    ],
)
def test_bad_arguments_get_one_line(run, arguments, message):
    outcome = run(*arguments)
    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.err.strip().count("\n") == 0


def test_another_count_of_parameters_is_refused(run, halves, law, tmp_path):
    if not law.exists():
        assert run("law", "fit", halves[0], "--out", law, "--draws", 60).code == 0
    points = tmp_path / "points.csv"
    points.write_text("n_params,n_params_kind,tokens\n1e9,non-embedding,2e10\n")
    outcome = run("law", "predict", law, points)
    assert outcome.code == 2 and "no count of parameters is 'total'" in outcome.err
