"""The fit of serving stacks: what it recovers, what a stranger gets, files, few rows."""

import csv
import importlib
import tomllib
from types import SimpleNamespace

import numpy as np
import pytest

import jaxscale as js
from jaxscale import InputError, data_path, serving
from jaxscale.base.documents import fit_path
from jaxscale.calibration.base_record import LevelEffect
from jaxscale.calibration.levels import Levels
from jaxscale.serving.fit_serving import drawn_by_group
from jaxscale.serving.serving_problem import MeasuredServing, widths_of
from jaxscale.serving.serving_record import ServingWidths
from jaxscale.serving.serving_rows import describe_serving


def subset(path, source, keep, change=lambda row: row):
    """Rows of a shipped table that a condition keeps, changed."""
    with (data_path("serving") / source).open(encoding="utf-8") as stream:
        rows = [change(dict(row)) for row in csv.DictReader(stream) if keep(row)]
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return serving.read_serving(path)


def test_intervals_hold_what_they_say():
    rng = np.random.default_rng(0)
    n = 4000
    words = {"serving": "online", "kind": "gqa dense", "stack": "vllm h100"}
    levels = Levels.of_columns({kind: [word] * n for kind, word in words.items()}, n)
    errors = 0.2 * rng.normal(size=n)
    groups = np.repeat(np.arange(n // 20), 20).astype(str)
    widths = ServingWidths(widths_of({"seen": errors}, np.full(n, "tpot_s", dtype=object), levels, groups))
    lo, hi = widths.interval("tpot_s", "online", "dense", "vllm h100", "seen")
    assert (lo, hi) == pytest.approx((-0.329, 0.329), abs=0.02)
    # Of a rate, which the table lacks, the ends swap.
    swapped = widths.interval("output_tokens_per_s_total", "online", "dense", "", "seen")
    assert swapped == pytest.approx((-hi, -lo))
    assert widths.interval("tpot_s", "online", "dense", "", "framework") == pytest.approx((-np.log(4), np.log(4)))


def test_stacks_that_few_groups_tell_of_share_their_width():
    """Twelve stacks of two groups err by 0.6, one of 40 groups by 0.1: a small one gets the wide interval."""
    rng = np.random.default_rng(0)
    stacks = np.concatenate([np.repeat([f"engine-{i} h100" for i in range(12)], 20), np.repeat("vllm h100", 400)])
    groups = np.repeat(np.arange(64), 10).astype(str)
    errors = np.where(stacks == "vllm h100", 0.1, 0.6) * rng.normal(size=64)[groups.astype(int)]
    columns = {"serving": ["static"] * 640, "kind": ["gqa dense"] * 640, "stack": stacks.tolist()}
    levels = Levels.of_columns(columns, 640)
    targets = np.full(640, "e2e_latency_s", dtype=object)
    widths = ServingWidths(widths_of({"seen": errors}, targets, levels, groups))
    small, large = (
        widths.interval("e2e_latency_s", "static", "dense", s, "seen") for s in ("engine-3 h100", "vllm h100")
    )
    assert small[1] - small[0] > 3.0 * (large[1] - large[0])
    assert large[1] - large[0] == pytest.approx(0.33, abs=0.12)


def test_small_stacks_share_their_width_with_models_of_their_density():
    """Mixtures err by 0.6 on every small stack, dense models by 0.1."""
    n_groups, each = 24, 4
    stacks = np.repeat([f"engine-{i} h100" for i in range(n_groups // 2)], 2 * each)
    is_mixture = np.repeat(np.arange(n_groups) % 2 == 1, each)
    errors = np.where(is_mixture, 0.6, 0.1) * np.random.default_rng(0).normal(size=n_groups * each)
    kinds = np.where(is_mixture, "gqa mixture", "gqa dense").tolist()
    columns = {"serving": ["static"] * len(stacks), "kind": kinds, "stack": stacks.tolist()}
    targets, groups = np.full(len(stacks), "tpot_s", dtype=object), np.repeat(np.arange(n_groups), each).astype(str)
    widths = ServingWidths(widths_of({"seen": errors}, targets, Levels.of_columns(columns, len(stacks)), groups))
    dense, mixture = (
        np.diff(widths.interval("tpot_s", "static", density, "engine-3 h100", "seen"))[0]
        for density in ("dense", "mixture")
    )
    assert mixture > 3.0 * dense > 0.0


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


def test_rows_are_drawn_from_as_many_groups_as_there_are():
    groups = np.repeat(np.asarray(["a", "b", "c", "d"], dtype=object), (50, 20, 3, 1))
    drawn = drawn_by_group(groups, 10)
    assert len(set(drawn.tolist())) == 10
    assert [np.count_nonzero(groups[drawn] == name) for name in "abcd"] == [3, 3, 3, 1]
    # Drawn row by row, a group of 50 would bring most.
    assert np.count_nonzero(groups[np.random.default_rng(0).permutation(74)[:10]] == "a") > 4


def test_a_fit_without_intervals_is_read_again(tmp_path):
    """As a refinement of the priors by a few rows has none."""
    effects = (LevelEffect("chip", "x", (("link", 0.1),)),)
    bare = serving.ServingFit("bare", serving.load_serving_fit("prior").centre, effects)
    bare.save(tmp_path / "bare.toml")
    again = serving.load_serving_fit(tmp_path / "bare.toml")
    assert again.coefficients(chip="x").link > again.coefficients().link and again.widths == ()


def test_files_that_are_no_fits(tmp_path):
    (tmp_path / "bad.toml").write_text("x = 1\n", encoding="utf-8")
    with pytest.raises(InputError, match="not a fit of serving stacks"):
        serving.load_serving_fit(tmp_path / "bad.toml")
    with pytest.raises(InputError, match="is not shipped"):
        serving.load_serving_fit("potato")
    with pytest.raises(InputError, match="'chips' is no kind of level; expected one like chip"):
        serving.load_serving_fit().coefficients(chips="h100-80gb")
    text = fit_path("serving.toml").read_text(encoding="utf-8")
    (tmp_path / "bad.toml").write_text(text.replace("[coefficients.link]", "[coefficients.links]", 1), encoding="utf-8")
    with pytest.raises(InputError, match="coefficients.links is not a coefficient"):
        serving.load_serving_fit(tmp_path / "bad.toml")
    serving.load_serving_fit().save(tmp_path / "serving.toml")
    whole = (tmp_path / "serving.toml").read_text(encoding="utf-8")
    (tmp_path / "bad.toml").write_text(whole[: whole.rindex("[[widths]]")], encoding="utf-8")
    with pytest.raises(InputError, match="expected a whole fit of serving stacks"):
        serving.load_serving_fit(tmp_path / "bad.toml")
    with pytest.raises(InputError, match="not a fit but a fit of serving stacks"):
        js.load_fit(tmp_path / "serving.toml")


def test_the_shipped_file_is_read_to_the_letter_and_as_older_versions_wrote_it(tmp_path):
    """Log coefficients of a stack are the sums of the numbers in the text, an unknown fork those of its framework."""
    table = tomllib.loads(fit_path("serving.toml").read_text(encoding="utf-8"))
    fit = serving.load_serving_fit()
    levels = {"framework": "my-vllm-fork", "chip": "h100-80gb", "model": "nobody's"}
    names = {**levels, "framework": "vllm"}
    shifts = [entry["shifts"] for entry in table["effects"] if names.get(entry["kind"]) == entry["level"]]
    assert len(shifts) == 2
    (found,) = fit.unconstrained(Levels.of_rows([levels]))
    centre = {name: entry["value"] for name, entry in table["coefficients"].items()}
    for name, log in zip(centre, found, strict=True):
        assert log == pytest.approx(np.log(centre[name]) + sum(one.get(name, 0.0) for one in shifts))
    # Files of before have their coefficients in one table, and not those that came later.
    old = "\n".join(f"{name} = {value!r}" for name, value in centre.items() if name != "jitter")
    (tmp_path / "old.toml").write_text(f'name = "old"\nn_rows = 1\n[centre]\n{old}\n', encoding="utf-8")
    before = serving.load_serving_fit(tmp_path / "old.toml").centre
    assert before == {**centre, "jitter": serving.usual_coefficients().jitter}
    assert [vars(width) for width in fit.widths] == table["widths"] and fit.n_rows == table["n_rows"]
    assert not np.allclose(found, fit.unconstrained(Levels.of_rows([{**levels, "chip": "nobody's"}])))


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
    # All answers of a static batch end together, so that throughput and latency have one error.
    rate, time = "output_tokens_per_s_total", "e2e_latency_s"
    for found in (seen, unseen):
        tokens = found.values[rate] * found.values[time]
        assert found.lo[rate] == pytest.approx(tokens / found.hi[time])
        assert np.all(found.hi[rate] <= tokens / found.lo[time] * (1.0 + 1e-6))


@pytest.mark.parametrize(
    ("name", "attention"), [("llama3-70b", "gqa"), ("deepseek-v3", "mla"), ("gpt-oss-120b", "gqa-window")]
)
def test_levels_of_a_planned_engine_are_those_of_a_row(tmp_path, name, attention):
    path = tmp_path / "t.csv"
    path.write_text(
        "model,framework,gpu,n_gpus,tp,serving,concurrency,input_len,output_len,attention\n"
        f"{name},vllm,h100-80gb,8,8,online,16,1024,128,{attention}\n"
    )
    rows = describe_serving(serving.read_serving(path))
    planned = serving.stack_levels("vllm", "h100-80gb", js.model(name), name=name)
    assert planned == {kind: rows.levels.row(0)[kind] for kind in planned}
    assert {"kind", "generation", "line", "pair", "serving"} <= set(planned)
    path.write_text(path.read_text().replace(f",{attention}\n", ",\n"))
    unstated = describe_serving(serving.read_serving(path))
    assert unstated.levels.row(0)["kind"] == planned["kind"], "the catalogue knows the attention of a model"
    fit = serving.load_serving_fit()
    bare = fit.coefficients(framework="vllm", chip="h100-80gb", stack="vllm h100-80gb")
    of_kind = fit.coefficients(
        **{"framework": "vllm", "chip": "h100-80gb", "stack": "vllm h100-80gb"}, kind=planned["kind"]
    )
    floors = [coefficients.layer_floor for coefficients in (of_kind, bare)]
    assert floors[0] != pytest.approx(floors[1], rel=0.01), "kinds differ in the floor of a layer"


def test_the_calibration_says_nothing_where_nobody_listens(monkeypatch: pytest.MonkeyPatch):
    # The function of this name hides its module.
    module = importlib.import_module("jaxscale.serving.fit_serving")

    class Solving(Exception):
        """The solver has been reached."""

    def solved(*_, **__):
        raise Solving

    mixed = SimpleNamespace(weights=lambda counted: np.ones(1))
    problem, told = SimpleNamespace(mixed=mixed), []
    groups = MeasuredServing._fields.index("groups")
    fields = [np.zeros(2) if at == groups else None for at in range(len(MeasuredServing._fields))]
    measured = tuple.__new__(MeasuredServing, fields)
    monkeypatch.setattr(module, "serving_problem", lambda _: problem)
    monkeypatch.setattr(module, "solve_mixed", solved)
    for progress in (None, told.append):
        with pytest.raises(Solving):
            module.fit_and_hold_out(measured, progress=progress)
    assert told == ["fitting 1 measurements of 2 rows"]


def test_percentiles_without_stated_arrivals_do_not_count(tmp_path):
    """A row of a client says nothing of how requests arrive: the percentiles beside its mean change no fit."""

    def with_percentile(row):
        return {**row, "ttft_p99_s": "9.9"}

    def keeps(row):
        return row["serving"] == "online" and row["model"] == "llama3-8b" and row["status"] != "oom"

    plain, told = (
        subset(tmp_path / f"{name}.csv", "aiconfigurator_silicon.csv", keeps, change).take(np.arange(12))
        for name, change in {"plain": dict, "told": with_percentile}.items()
    )
    effects = [serving.fit_serving(runs, name="own").effects for runs in (plain, told)]
    assert effects[0] == effects[1]


def test_arrivals_have_widths_of_their_own():
    """Runs in closed loops err by 0.6, those of clients without stated arrivals by 0.1; no burst was measured."""
    rng = np.random.default_rng(0)
    n = 1600
    arrivals = np.repeat(["closed", ""], n // 2)
    columns = {"serving": ["online"] * n, "kind": ["gqa dense"] * n, "stack": ["vllm h100"] * n}
    levels = Levels.of_columns({**columns, "arrivals": arrivals.tolist()}, n)
    errors = np.where(arrivals == "closed", 0.6, 0.1) * rng.normal(size=n)
    groups = np.repeat(np.arange(n // 20), 20).astype(str)
    widths = ServingWidths(widths_of({"seen": errors}, np.full(n, "tpot_s", dtype=object), levels, groups))
    closed, online, burst = (
        np.diff(widths.interval("tpot_s", kind, "dense", "vllm h100", "seen"))[0]
        for kind in ("closed", "online", "burst")
    )
    assert closed == pytest.approx(2.0 * 1.645 * 0.6, rel=0.1)
    assert online == pytest.approx(2.0 * 1.645 * 0.1, rel=0.1)
    assert burst > online
