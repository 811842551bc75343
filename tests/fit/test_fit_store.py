"""Fits on disk and by name."""

import dataclasses
import math

import chex
import jax
import numpy as np
import pytest

import jaxscale as js
from jaxscale.base.documents import fit_path
from jaxscale.calibration.base_record import LevelEffect
from jaxscale.calibration.coefficients import names, values_of
from jaxscale.calibration.intervals import Scatter
from jaxscale.calibration.levels import Levels
from jaxscale.calibration.memory_limit import MemoryLimit
from jaxscale.calibration.unstated import usable_if_stated, worth_stating
from jaxscale.fitting.held_out import typical


def fit_with(name: str, **record: object) -> js.Fit:
    """A fit that knows some things, with the priors' values."""
    return js.Fit(name, js.prior_medians(), **record)


def kind_of(fit: js.Fit, levels: dict, n_chips: float = 0.0) -> str:
    """Kind of the scatter that gives a run's interval its width."""
    width = fit.interval(levels, n_chips).time
    return next(scatter.kind for scatter in fit.scatter if scatter.time == width)


def shifts_of(fit: js.Fit, levels: dict) -> dict[str, float]:
    """Shifts of the coefficients' logs or logits by the levels of a run."""
    (row,) = fit.unconstrained(Levels.of_rows([levels])) - fit.unconstrained(
        Levels.of_rows([{"framework": "none of it"}])
    )
    return {name: pytest.approx(shift) for name, shift in zip(names(), row, strict=True) if abs(shift) > 1e-12}


def test_shipped_default_covers_catalogue():
    fit = js.load_fit("default")
    for name in names():
        assert 0.0 < getattr(fit.pooled, name) < float("inf")
    known = {level for kind, level in fit.known if kind == "gpu"}
    assert {"a100-80gb", "h100-80gb", "gb200", "tpu-v5p"} <= known


def test_default_records_where_it_comes_from():
    record = js.load_fit()
    assert {"runs", "data_sha256", "jax", "held_out_mape_percent"} <= set(dict(record.provenance))
    kinds = {scatter.kind for scatter in record.scatter}
    assert {"source", "unseen", "new_source", "new_model", "larger"} <= kinds


def test_what_no_fitted_run_had_widens_the_interval():
    scatters = (
        Scatter("source", "mine/f", 0.05, 0.1),
        Scatter("new_model", "mine/f", 0.2, 0.1),
        Scatter("larger", "", 0.3, 0.1),
        Scatter("unseen", "", 0.6, 0.1),
    )
    known = (("architecture", "d64"), ("framework", "f"), ("gpu", "a"), ("precision", "bf16"), ("source", "mine/f"))
    record = fit_with("fit", widths=scatters, known=known, largest=(("mine/f", 64.0),))
    mine = {"source": "mine/f", "framework": "f", "architecture": "d64"}

    def kind(n_chips: float, **changes: str) -> str:
        return kind_of(record, {**mine, **changes}, n_chips)

    assert kind(64.0) == "source" == kind(64.0, gpu="a", precision="bf16")
    assert kind(64.0, gpu="b") == "unseen" == kind(64.0, precision="fp8")
    assert kind(64.0, architecture="d128") == "new_model"
    assert kind(65.0) == "larger" == kind(65.0, architecture="d128")
    assert kind(65.0, source="yours", framework="g") == "unseen"


def test_a_chip_that_only_the_start_has_seen_sets_runs_apart_like_another_system():
    """Its pooled values still apply: a chip that neither has seen is further off."""
    scatters = (
        Scatter("source", "mine/f", 0.05, 0.1),
        Scatter("new_source", "", 0.3, 0.1),
        Scatter("unseen", "", 0.6, 0.1),
    )
    start = fit_with("start", known=(("gpu", "b"), ("precision", "fp8")))
    mine = fit_with("mine", widths=scatters, known=(("source", "mine/f"), ("gpu", "a")), parent=start)
    again = fit_with("again", widths=scatters, known=mine.known, parent=mine)
    levels = {"source": "mine/f", "framework": "f"}
    for record in (mine, again):
        assert kind_of(record, {**levels, "gpu": "a"}) == "source"
        assert kind_of(record, {**levels, "gpu": "b"}) == "new_source"
        assert kind_of(record, {**levels, "gpu": "a", "precision": "fp8"}) == "new_source"
        assert kind_of(record, {**levels, "gpu": "c"}) == "unseen"
    of_start, of_none = (mine.notes({**levels, "gpu": gpu}) for gpu in "bc")
    assert of_start.endswith("known from the start of the fit alone: gpu 'b'")
    assert of_start.count("gpu 'b'") == 1
    assert of_none.startswith("not in the fit, pooled values used: ") and of_none.endswith("gpu 'c'")


def test_what_the_start_answers_for_is_new_where_it_is_to_the_start():
    start = fit_with("start", known=(("source", "theirs/f"), ("framework", "f"), ("gpu", "b")))
    mine = fit_with("mine", known=(("source", "mine/g"), ("gpu", "a")), parent=start)
    levels = {"source": "theirs/f", "framework": "f"}
    assert mine.notes({**levels, "gpu": "b"}) == ""
    assert mine.notes({**levels, "gpu": "a"}) == "not in the fit, pooled values used: gpu 'a'"


def test_a_new_source_of_a_known_framework_is_further_off_than_its_own_runs():
    """By what other sources of the framework were, when left out, else by what such sources typically were."""
    scatters = (
        Scatter("source", "a/f", 0.05, 0.1),
        Scatter("framework", "f", 0.05, 0.1),
        Scatter("framework", "g", 0.05, 0.3),
        Scatter("new_source", "f", 0.2, 0.05),
        Scatter("new_source", "", 0.3, 0.2),
    )
    record = fit_with("fit", widths=scatters, known=(("framework", "f"), ("framework", "g"), ("source", "a/f")))
    assert record.interval({"source": "a/f", "framework": "f"}).time == 0.05
    # The widest of time and of memory, wherever each is from.
    assert record.interval({"source": "b/f", "framework": "f"}) == (0.2, 0.1)
    assert record.interval({"framework": "g"}) == (0.3, 0.3)
    assert kind_of(record, {"source": "a/f", "framework": "f", "attention_kernel": "flash9"}) == "new_source"
    assert record.notes({"source": "b/f", "framework": "f"}) == "not in the fit, pooled values used: source 'b/f'"


def test_peaks_that_no_run_stated_scatter_as_those_of_an_unseen_stack(tmp_path):
    """No measured scatter of memory is no small one; time keeps its own."""
    scatters = (Scatter("source", "a/f", 0.05, math.nan), Scatter("unseen", "", 0.4, 0.2))
    record = fit_with("fit", widths=scatters, known=(("source", "a/f"), ("framework", "f")))
    path = tmp_path / "fit.toml"
    record.save(path)
    for known in (record, js.load_fit(path)):
        assert known.interval({"source": "a/f", "framework": "f"}) == (0.05, 0.2)
    assert typical("new_model", [*scatters, Scatter("source", "b/f", 0.15, 0.2)]).memory == pytest.approx(0.2)
    assert math.isnan(typical("new_model", scatters[:1]).memory)


def test_a_level_of_the_name_of_nothing_is_no_effect_of_empty_cells():
    effect = LevelEffect("recipe", "None", (("straggler", 0.5),))
    assert shifts_of(fit_with("fit", effects=(effect,)), {"recipe": None}) == {}
    assert shifts_of(fit_with("fit", effects=(effect,)), {"recipe": "None"}) == {"straggler": 0.5}


def _of_one_cluster() -> js.Fit:
    """What a fit of a user's own runs knows, among things that its start knew."""
    return fit_with(
        "mine",
        effects=(LevelEffect("source", "mine/f", (("straggler", 0.5),)), LevelEffect("framework", "g", ())),
        widths=(Scatter("source", "mine/f", 0.05, 0.1), Scatter("unseen", "", 0.6, 0.3)),
        known=(("framework", "f"), ("framework", "g"), ("source", "mine/f")),
        limits=(MemoryLimit("mine/f", 0.9, 0.04),),
        own=(("source", "mine/f"), ("framework", "f")),
    )


OF_FACTS = (
    Scatter("unseen", "", 0.2, 0.1, 0.05),
    Scatter("eager", "", 0.4, math.nan),
    Scatter("unstated", "loss_bytes", 0.0, 0.2, 0.12),
    Scatter("unstated", "optimizer_bytes", 0.0, 0.3, 0.25),
)


def test_what_a_run_leaves_to_a_guess_widens_its_interval_and_its_note_names_what_to_state():
    fit = fit_with("fit", widths=OF_FACTS)
    stated = {"execution": "compiled"}
    blank = {**stated, "unstated": "loss_bytes and optimizer_bytes"}
    cases = {
        (0.2, 0.1, 0.05, ""): stated,
        (0.4, 0.1, 0.05, ""): {"execution": "eager"},
        (0.4, 0.1, 0.05, "state execution: ends of the time interval 2.2x -> 1.5x apart if compiled"): {"unstated": ""},
        (0.2, 0.2, 0.12, "state loss_bytes: ends of the memory interval 1.9x -> 1.4x apart"): {
            **stated,
            "unstated": "loss_bytes",
        },
        # The widest fact is named first.
        (0.2, 0.3, 0.25, "state optimizer_bytes: ends of the memory interval 2.7x -> 1.9x apart"): blank,
    }
    (*widths, notes) = zip(*cases, strict=True)
    levels = Levels.of_rows([{"execution": None, "unstated": None, **one} for one in cases.values()])
    assert worth_stating(fit, levels).tolist() == list(notes)
    for row, (time, memory, above) in zip(cases.values(), zip(*widths, strict=True), strict=True):
        assert fit.interval(row) == (time, memory)
        assert fit.memory_limit(row).scatter == above
    usable = usable_if_stated(fit, Levels.of_rows([blank]), 8.0, 100e9, 0.1)
    assert usable == ("state optimizer_bytes: 73 -> 86 GB usable",)
    assert usable_if_stated(fit, Levels.of_rows([stated]), 8.0, 100e9, 0.1) == ()


@pytest.mark.parametrize("levels", [{}, {"source": ""}, {"framework": "f"}, {"source": "mine/f"}])
def test_a_run_that_names_no_source_is_one_of_the_fitted_cluster(levels: dict):
    record = _of_one_cluster()
    assert shifts_of(record, levels) == {"straggler": 0.5}
    assert kind_of(record, levels) == "source"
    assert record.memory_limit(levels).usable == 0.9


@pytest.mark.parametrize("levels", [{"framework": "g"}, {"source": "yours/f", "framework": "f"}])
def test_a_run_that_names_another_one_is_not(levels: dict):
    record = _of_one_cluster()
    assert shifts_of(record, levels) == {}
    assert kind_of(record, levels) == "unseen"
    assert record.memory_limit(levels) == MemoryLimit("", 1.0, 0.3)


def _from_a_start() -> js.Fit:
    """The same, with the start, which knew of two clusters, one of them of the framework of the fitted runs."""
    start = js.Fit(
        "start",
        jax.tree.map(lambda value: 0.9 * value, js.prior_medians()),
        effects=(LevelEffect("source", "yours/g", (("straggler", 0.2),)),),
        widths=(Scatter("source", "yours/g", 0.07, 0.1), Scatter("framework", "g", 0.08, 0.1)),
        known=(("framework", "f"), ("framework", "g"), ("source", "theirs/f"), ("source", "yours/g")),
        limits=(MemoryLimit("yours/g", 0.8, 0.05),),
    )
    fitted = (("framework", "f"), ("source", "mine/f"))
    return dataclasses.replace(_of_one_cluster(), fitted=fitted, parent=start)


def test_the_start_answers_for_clusters_that_it_alone_has_seen():
    fit = _from_a_start()
    for levels in ({"source": "yours/g", "framework": "g"}, {"framework": "g"}, {"source": "theirs/f"}):
        chex.assert_trees_all_close(fit.coefficients(levels), fit.parent.coefficients(levels), rtol=1e-6)
        assert fit.interval(levels) == fit.parent.interval(levels)
    assert fit.memory_limit({"source": "yours/g"}).usable == 0.8
    for levels in ({}, {"source": "mine/f"}, {"framework": "f"}, {"source": "new/f", "framework": "f"}, {"gpu": "a"}):
        assert not fit.seen.only_parent_knows(Levels.of_rows([levels])).any()
    assert fit.seen.only_parent_knows(Levels.of_rows([{"framework": "g"}])).all()


LEVELS = {
    "source": ("mine/f", "yours/g", "ultrascale_playbook_h100/nanotron", "new/f", None),
    "framework": ("f", "g", "llm-foundry", "nobody's", None),
    "gpu": ("h100-80gb", "gtx580", None, None),
    "precision": ("fp8", None, None),
    "number_format": ("mxfp8", "another", None),
    "architecture": ("d4096 h32 e1 s0", "d1 h1 e1 s0", None),
    "sequences": ("s2048", "s1"),
}


@pytest.mark.parametrize(
    "fit", [_of_one_cluster(), _from_a_start(), js.load_fit()], ids=["own", "of a start", "shipped"]
)
def test_many_runs_at_once_are_answered_as_one_by_one(fit: js.Fit):
    """Columns of levels give what each run's own levels give, and runs differ."""
    rng = np.random.default_rng(0)
    rows = [{kind: names[rng.integers(len(names))] for kind, names in LEVELS.items()} for _ in range(60)]
    levels, n_chips = Levels.of_rows(rows), 10.0 ** rng.integers(0, 6, len(rows))
    values = np.stack(jax.tree.leaves(fit.coefficients_of(levels)), axis=1)
    widths, limits, notes = (of(levels, n_chips) for of in (fit.interval, fit.memory_limit, fit.notes))
    for index, (row, count) in enumerate(zip(rows, n_chips, strict=True)):
        np.testing.assert_array_equal(values[index], values_of(fit.coefficients(row)))
        assert fit.interval(row, count) == (widths.time[index], widths.memory[index])
        limit = fit.memory_limit(row, count)
        assert (limit.usable, limit.scatter) == (limits.usable[index], limits.scatter[index])
        assert fit.notes(row, count) == notes[index]
        assert fit.most_chips(row) == fit.most_chips(levels)[index]
    for answers in (values.sum(axis=1), widths.time, limits.scatter, notes):
        assert len(set(answers)) > 1


@pytest.mark.parametrize("record", [_of_one_cluster(), _from_a_start()], ids=["alone", "from a start"])
def test_a_record_is_the_same_on_disk(tmp_path, record: js.Fit):
    path = tmp_path / "mine.toml"
    record.save(path)
    loaded = js.load_fit(path)
    if record.parent is not None:
        np.testing.assert_allclose(values_of(loaded.parent.pooled), values_of(record.parent.pooled), rtol=1e-5)
        loaded = dataclasses.replace(loaded, parent=dataclasses.replace(loaded.parent, centre=record.parent.pooled))
    np.testing.assert_allclose(values_of(loaded.pooled), values_of(record.pooled), rtol=1e-5)
    assert dataclasses.replace(loaded, centre=record.pooled) == record


def test_a_fit_that_ends_early_is_refused(tmp_path):
    """Effects, scatter or limits that are missing would change predictions without a word."""
    text = fit_path("bigscience_bloom_a100.toml").read_text(encoding="utf-8")
    tables = text.split("\n\n[")
    path = tmp_path / "mine.toml"
    for kept in range(2, len(tables), 7):
        path.write_text("\n\n[".join(tables[:kept]), encoding="utf-8")
        with pytest.raises(js.InputError, match="expected a whole fit"):
            js.load_fit(path)
    path.write_text(text, encoding="utf-8")
    assert js.load_fit(path) == js.load_fit("bigscience_bloom_a100")


def test_a_saved_fit_from_before_a_cost_term_still_loads(tmp_path):
    """The coefficient that it lacks is that of the priors; nothing else changes, nor does a run without the term."""
    text, path = fit_path("default.toml").read_text(encoding="utf-8"), tmp_path / "older.toml"
    path.write_text(text.replace("[coefficients.scan_efficiency]", "[unused]", 1), encoding="utf-8")
    older, shipped = js.load_fit(path), js.load_fit("default")
    prior = js.prior_medians().scan_efficiency
    assert shipped.pooled.scan_efficiency != prior == older.pooled.scan_efficiency
    assert older == dataclasses.replace(shipped, centre=dataclasses.replace(shipped.pooled, scan_efficiency=prior))
    setting, levels = (js.Plan(dp=8), js.cluster("h100-80gb", 8)), {"source": shipped.fitted[-1][1]}
    for name, is_moved in (("llama3-8b", False), ("nemotron-h-56b", True)):
        times = [js.step_time(js.model(name), *setting, fit.coefficients(levels)).total for fit in (older, shipped)]
        assert (times[0] != times[1]) == is_moved


def test_any_name_and_any_fraction_survives_on_disk(tmp_path):
    nasty = 'my\ncluster\t"x" \\ \x7f \u00e9'
    record = fit_with("fit", effects=(LevelEffect("source", nasty, (("straggler", 0.5),)),), known=(("source", nasty),))
    nearly_one = dataclasses.replace(js.prior_medians(), tp_overlap=0.99999999)
    path = tmp_path / "mine.toml"
    dataclasses.replace(record, centre=nearly_one).save(path)
    loaded = js.load_fit(path)
    assert loaded.effects == record.effects and loaded.known == record.known
    assert loaded.pooled.tp_overlap == 0.99999999


def test_largest_clusters_are_kept_on_disk():
    record = js.load_fit()
    largest = dict(record.largest)
    assert largest["vtrain_a100_ground_truth/megatron-deepspeed"] == 512.0
    assert largest["mosaic_llm_foundry/llm-foundry"] < max(largest.values())


def test_stacks_that_were_never_fitted_get_the_intervals_of_those_left_out():
    """Whatever their framework is called; wider for mixtures, and on chips without timed kernels."""
    record = js.load_fit()
    known, namesake, other = (
        record.interval({**place, "gpu": "h100-80gb"}).time
        for place in (
            {"source": "mosaic_llm_foundry/llm-foundry", "framework": "llm-foundry"},
            {"source": "another/llm-foundry", "framework": "llm-foundry"},
            {"framework": "somebody's own"},
        )
    )
    assert known < 0.6 * namesake and namesake == other
    mixture, chip = (record.interval(place).time for place in ({"mixture": "any"}, {"gpu": "gtx580"}))
    assert other < min(mixture, chip)


def test_unknown_names_are_refused_with_the_known_ones():
    with pytest.raises(js.InputError, match="default"):
        js.load_fit("no-such-fit")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("name = 'x'\n", "not a fit"),
        ("[coefficients.matmul_efficiency]\nvalue = -1\n", "out of range"),
        ("[coefficients.fsdp_overlap]\nvalue = 1.5\n", "between 0 and 1"),
        ("[coefficients.nonsense]\nvalue = 1\n", "not a coefficient"),
        ("[coefficients", "not valid TOML"),
        ("[coefficients]\n[[scatter]]\nkind = 'source'\n", "cut or of another version"),
        ("[coefficients]\n[[effects]]\nkind = 'gpu'\nlevel = 'a'\n", "'shifts' is missing"),
        ("[coefficients]\n[known]\nsite = 3\n", "cut or of another version"),
        ("[coefficients]\n[parent.coefficients]\nnonsense = 1\n", "^[^(]*nonsense is not a coefficient"),
    ],
)
def test_malformed_files_are_refused(tmp_path, text: str, complaint: str):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(js.InputError, match=complaint) as error:
        js.load_fit(path)
    assert "\n" not in str(error.value)


def test_a_file_may_state_some_coefficients_only(tmp_path):
    path = tmp_path / "some.toml"
    path.write_text("[coefficients]\nmatmul_efficiency = 0.5\n")
    loaded = js.load_fit(path)
    assert loaded.pooled.matmul_efficiency == 0.5
    assert loaded.pooled.hbm_efficiency == js.prior_medians().hbm_efficiency


def test_fits_that_state_no_memory_are_equal_when_read_twice():
    first, again = (js.load_fit("mosaic_llm_foundry") for _ in range(2))
    assert any(math.isnan(scatter.memory) for scatter in first.scatter)
    assert first == again and hash(first) == hash(again)
    assert dataclasses.replace(first, widths=first.scatter[1:]) != again
