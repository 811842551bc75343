"""The fit of serving stacks: what it recovers, what a stranger gets, files, few rows."""

import csv

import numpy as np
import pytest

from jaxscale import InputError, data_path, serving
from jaxscale.serving.calibrate.mixed_effects import Block, MixedProblem, solve_mixed
from jaxscale.serving.calibrate.serving_widths import ServingWidths, widths_of


def subset(path, source, keep, change=lambda row: row):
    """Rows of a shipped table that a condition keeps, changed."""
    with (data_path("serving") / source).open(encoding="utf-8") as stream:
        rows = [change(dict(row)) for row in csv.DictReader(stream) if keep(row)]
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return serving.read_serving(path)


def linear_problem(true, codes, noise=0.0, seed=0):
    """Logarithms that are a coefficient by level plus noise."""
    rng = np.random.default_rng(seed)
    n = len(codes)

    def evaluate(logs):
        return logs[:, 0] + 0.5 * logs[:, 1], np.tile([1.0, 0.5], (n, 1))

    logs = np.asarray(true)[codes] + noise * rng.normal(size=n)
    names = tuple(map(str, range(len(true))))
    blocks = (
        Block("centre", 0, np.zeros(n, dtype=int), ("",), 1.0, is_free=False),
        Block("stack", 0, codes, names, 0.5),
    )
    base = np.zeros((n, 2))
    return MixedProblem(evaluate, base, np.arange(n), logs, np.zeros(n, dtype=int), blocks)


def test_effects_of_levels_are_recovered_and_shrunk():
    true = np.asarray([0.3, -0.2, 0.5])
    codes = np.repeat([0, 1, 2], [100, 100, 1])
    problem = linear_problem(true, codes, noise=0.05)
    found = solve_mixed(problem, np.ones(201, dtype=bool))
    centre, levels = found.effects[0], found.effects[1:]
    assert centre + levels[:2] == pytest.approx(true[:2], abs=0.02)
    # A single row moves its level part of the way only.
    assert abs(levels[2]) < abs(true[2] - centre)
    assert found.noise[0] == pytest.approx(0.05, rel=0.25)


def test_a_level_without_rows_stays_at_its_prior():
    codes = np.repeat([0, 1], 50)
    problem = linear_problem([0.4, -0.4], codes, noise=0.02)
    found = solve_mixed(problem, codes == 0, steps=6)
    assert found.effects[2] == pytest.approx(0.0, abs=1e-9)
    assert abs(found.effects[1] + found.effects[0] - 0.4) < 0.02


def test_outliers_do_not_decide():
    codes = np.zeros(100, dtype=int)
    problem = linear_problem([0.2], codes, noise=0.03)
    problem.log_measured[:10] += 5.0
    found = solve_mixed(problem, np.ones(100, dtype=bool))
    assert found.effects.sum() == pytest.approx(0.2, abs=0.05)
    assert problem.log_measured.mean() > 0.6


def test_intervals_hold_what_they_say():
    rng = np.random.default_rng(0)
    n = 4000
    levels = {name: np.full(n, word, dtype=object) for name, word in
              (("serving", "online"), ("kind", "gqa dense"), ("stack", "vllm h100"))}  # fmt: skip
    errors = 0.2 * rng.normal(size=n)
    groups = np.repeat(np.arange(n // 20), 20).astype(str)
    widths = ServingWidths(widths_of({"seen": errors}, np.full(n, "tpot_s", dtype=object), levels, groups))
    lo, hi = widths.interval("tpot_s", "online", "dense", "vllm h100", "seen")
    assert (lo, hi) == pytest.approx((-0.329, 0.329), abs=0.02)
    # Of a rate, which the table lacks, the ends swap.
    swapped = widths.interval("output_tokens_per_s_total", "online", "dense", "", "seen")
    assert swapped == pytest.approx((-hi, -lo))
    assert widths.interval("tpot_s", "online", "dense", "", "framework") == pytest.approx((-np.log(4), np.log(4)))


def test_the_shipped_fit_answers_its_own_tables(tmp_path):
    """Static FasterTransformer runs in sample within 10 % at the median, the 22 runs of arXiv 2407.14645 within 5 %."""
    for source, most in (("nvidia_fastertransformer.csv", 10.0), ("nvidia_nemo_llama2.csv", 5.0)):
        runs = serving.read_serving(data_path("serving") / source)
        error = serving.predict_serving(runs).errors(runs)["e2e_latency_s"]
        assert error["median_ape"] < most
        assert 0.8 <= error["coverage_90"] <= 1.0
        unfitted = serving.predict_serving(runs, "prior").errors(runs)["e2e_latency_s"]
        assert unfitted["median_ape"] > error["median_ape"]


def test_a_few_rows_teach_a_new_stack(tmp_path):
    """Rows of a stack that runs 1.6 times slower than any seen: ten of them, then the others."""

    def slower(row):
        return {**row, "framework": "my-engine", "release": "", "e2e_latency_s": str(1.6 * float(row["e2e_latency_s"]))}

    def keeps(row):
        return row["model"] == "gpt-20b" and row["status"] == "ok"

    runs = subset(tmp_path / "new.csv", "nvidia_fastertransformer.csv", keeps, slower)
    few = runs.take(np.arange(0, len(runs), len(runs) // 10))
    rest = runs.take(np.setdiff1d(np.arange(len(runs)), np.arange(0, len(runs), len(runs) // 10)))
    stranger = serving.predict_serving(rest).errors(rest)["e2e_latency_s"]
    fit = serving.fit_serving(few)
    fitted = serving.predict_serving(rest, fit).errors(rest)["e2e_latency_s"]
    assert fitted["median_ape"] < 12.0 < stranger["median_ape"]
    fit.save(tmp_path / "fit.toml")
    again = serving.load_serving_fit(tmp_path / "fit.toml")
    assert serving.predict_serving(rest, again).errors(rest)["e2e_latency_s"]["median_ape"] == pytest.approx(
        fitted["median_ape"], rel=1e-3
    )


def test_files_that_are_no_fits(tmp_path):
    (tmp_path / "bad.toml").write_text("x = 1\n", encoding="utf-8")
    with pytest.raises(InputError, match="not a fit of serving stacks"):
        serving.load_serving_fit(tmp_path / "bad.toml")
    with pytest.raises(InputError, match="is not shipped"):
        serving.load_serving_fit("potato")


def test_what_is_new_of_a_row_is_told_and_widens_its_interval(tmp_path):
    keep = lambda row: row["model"] == "gpt-20b" and row["tp"] == "8"  # noqa: E731
    known = subset(tmp_path / "a.csv", "nvidia_fastertransformer.csv", keep)
    new = subset(
        tmp_path / "b.csv", "nvidia_fastertransformer.csv", keep, lambda row: {**row, "framework": "my-engine"}
    )
    seen, unseen = serving.predict_serving(known), serving.predict_serving(new)
    widths = [np.log(p.hi["e2e_latency_s"] / p.lo["e2e_latency_s"]) for p in (seen, unseen)]
    assert np.all(widths[1] > widths[0])
    assert "framework my-engine" in unseen.notes[0] and "not seen" not in seen.notes[0]
