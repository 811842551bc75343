"""Fits on disk and by name."""

import dataclasses
import math

import chex
import numpy as np
import pytest

import jaxscale as js
from jaxscale._resources import fit_path
from jaxscale.calibration.coefficients import from_values, names, values_of
from jaxscale.calibration.record import Calibration, LevelEffect, MemoryLimit, Origin, Scatter
from jaxscale.calibration.store import to_toml
from jaxscale.fit.intervals import typical


def test_shipped_default_covers_catalogue():
    coefficients = js.load_fit("default")
    assert coefficients.calibration is not None
    for name in names():
        assert 0.0 < getattr(coefficients, name) < float("inf")
    known = {level for kind, level in coefficients.calibration.known if kind == "gpu"}
    assert {"a100-80gb", "h100-80gb", "gb200", "tpu-v5p"} <= known


def test_default_records_where_it_comes_from():
    record = js.load_fit().calibration
    assert record is not None
    assert {"runs", "data_sha256", "jax", "held_out_mape_percent"} <= set(dict(record.provenance))
    kinds = {scatter.kind for scatter in record.scatter}
    assert {"source", "framework", "unseen", "new_source", "new_model", "larger"} <= kinds


def test_what_no_fitted_run_had_widens_the_interval():
    scatters = (
        Scatter("source", "mine/f", 0.05, 0.1),
        Scatter("new_model", "mine/f", 0.2, 0.1),
        Scatter("larger", "", 0.3, 0.1),
        Scatter("unseen", "", 0.6, 0.1),
    )
    known = (("architecture", "d64"), ("framework", "f"), ("gpu", "a"), ("precision", "bf16"), ("source", "mine/f"))
    record = Calibration("fit", scatter=scatters, known=known, largest=(("mine/f", 64.0),))
    mine = {"source": "mine/f", "framework": "f", "architecture": "d64"}

    def kind(n_chips: float, **changes: str) -> str:
        return record.scatter_of({**mine, **changes}, n_chips).kind

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
    start = Calibration("start", known=(("gpu", "b"), ("precision", "fp8")))
    mine = Calibration("mine", scatter=scatters, known=(("source", "mine/f"), ("gpu", "a")), origin=Origin((), start))
    again = Calibration("again", scatter=scatters, known=mine.known, origin=Origin((), mine))
    levels = {"source": "mine/f", "framework": "f"}
    for record in (mine, again):
        assert record.scatter_of({**levels, "gpu": "a"}).kind == "source"
        assert record.scatter_of({**levels, "gpu": "b"}).kind == "new_source"
        assert record.scatter_of({**levels, "gpu": "a", "precision": "fp8"}).kind == "new_source"
        assert record.scatter_of({**levels, "gpu": "c"}).kind == "unseen"
    assert mine.from_start_alone({**levels, "gpu": "b"}) == ["gpu 'b'"]
    assert "gpu 'b'" not in mine.unseen({**levels, "gpu": "b"})
    assert mine.unseen({**levels, "gpu": "c"})[-1] == "gpu 'c'"


def test_what_the_start_answers_for_is_new_where_it_is_to_the_start():
    start = Calibration("start", known=(("source", "theirs/f"), ("framework", "f"), ("gpu", "b")))
    mine = Calibration("mine", known=(("source", "mine/g"), ("gpu", "a")), origin=Origin((), start))
    levels = {"source": "theirs/f", "framework": "f"}
    assert mine.unseen({**levels, "gpu": "b"}) == mine.from_start_alone({**levels, "gpu": "b"}) == []
    assert mine.unseen({**levels, "gpu": "a"}) == ["gpu 'a'"]


def test_a_new_source_of_a_known_framework_is_further_off_than_its_own_runs():
    """By what other sources of the framework were, when left out, else by what such sources typically were."""
    scatters = (
        Scatter("source", "a/f", 0.05, 0.1),
        Scatter("framework", "f", 0.05, 0.1),
        Scatter("framework", "g", 0.05, 0.3),
        Scatter("new_source", "f", 0.2, 0.05),
        Scatter("new_source", "", 0.3, 0.2),
    )
    record = Calibration("fit", scatter=scatters, known=(("framework", "f"), ("framework", "g"), ("source", "a/f")))
    assert record.scatter_of({"source": "a/f", "framework": "f"}).time == 0.05
    # The widest of time and of memory, wherever each is from.
    assert record.scatter_of({"source": "b/f", "framework": "f"}) == Scatter("new_source", "f", 0.2, 0.1)
    assert record.scatter_of({"framework": "g"}) == Scatter("new_source", "", 0.3, 0.3)
    assert record.scatter_of({"source": "a/f", "framework": "f", "attention_kernel": "flash9"}).kind == "new_source"
    assert record.unseen({"source": "b/f", "framework": "f"}) == ["source 'b/f'"]


def test_peaks_that_no_run_stated_scatter_as_those_of_an_unseen_stack(tmp_path):
    """No measured scatter of memory is no small one; time keeps its own."""
    scatters = (Scatter("source", "a/f", 0.05, math.nan), Scatter("unseen", "", 0.4, 0.2))
    record = Calibration("fit", scatter=scatters, known=(("source", "a/f"), ("framework", "f")))
    path = tmp_path / "fit.toml"
    path.write_text(to_toml(dataclasses.replace(js.prior_medians(), calibration=record), {}, "a fit"), encoding="utf-8")
    for known in (record, js.load_fit(path).calibration):
        found = known.scatter_of({"source": "a/f", "framework": "f"})
        assert (found.time, found.memory) == (0.05, 0.2)
    assert typical("new_model", [*scatters, Scatter("source", "b/f", 0.15, 0.2)]).memory == pytest.approx(0.2)
    assert math.isnan(typical("new_model", scatters[:1]).memory)


def test_a_level_of_the_name_of_nothing_is_no_effect_of_empty_cells():
    effect = LevelEffect("release", "None", (("straggler", 0.5),))
    assert Calibration("fit", effects=(effect,)).shifts({"release": None}) == {}
    assert Calibration("fit", effects=(effect,)).shifts({"release": "None"}) == {"straggler": 0.5}


def _of_one_cluster() -> Calibration:
    """What a fit of a user's own runs knows, among things that its start knew."""
    return Calibration(
        "mine",
        effects=(LevelEffect("source", "mine/f", (("straggler", 0.5),)), LevelEffect("framework", "g", ())),
        scatter=(Scatter("source", "mine/f", 0.05, 0.1), Scatter("unseen", "", 0.6, 0.3)),
        known=(("framework", "f"), ("framework", "g"), ("source", "mine/f")),
        limits=(MemoryLimit("mine/f", 0.9, 0.04),),
        own=(("source", "mine/f"), ("framework", "f")),
    )


@pytest.mark.parametrize("levels", [{}, {"source": ""}, {"framework": "f"}, {"source": "mine/f"}])
def test_a_run_that_names_no_source_is_one_of_the_fitted_cluster(levels: dict):
    record = _of_one_cluster()
    assert record.shifts(levels) == {"straggler": 0.5}
    assert record.scatter_of(levels).kind == "source"
    assert record.memory_limit_of(levels, 0.1).usable == 0.9


@pytest.mark.parametrize("levels", [{"framework": "g"}, {"source": "yours/f", "framework": "f"}])
def test_a_run_that_names_another_one_is_not(levels: dict):
    record = _of_one_cluster()
    assert record.shifts(levels) == {}
    assert record.scatter_of(levels).kind == "unseen"
    assert record.memory_limit_of(levels, 0.1) == MemoryLimit("", 1.0, 0.1)


def _from_a_start() -> Calibration:
    """The same, with the start, which knew of two clusters, one of them of the framework of the fitted runs."""
    start = Calibration(
        "start",
        effects=(LevelEffect("source", "yours/g", (("straggler", 0.2),)),),
        scatter=(Scatter("source", "yours/g", 0.07, 0.1), Scatter("framework", "g", 0.08, 0.1)),
        known=(("framework", "f"), ("framework", "g"), ("source", "theirs/f"), ("source", "yours/g")),
        limits=(MemoryLimit("yours/g", 0.8, 0.05),),
    )
    fitted = (("framework", "f"), ("source", "mine/f"))
    values = tuple(0.9 * value for value in values_of(js.prior_medians()))
    return dataclasses.replace(_of_one_cluster(), fitted=fitted, origin=Origin(values, start))


def test_the_start_answers_for_clusters_that_it_alone_has_seen():
    record = _from_a_start()
    fit = dataclasses.replace(js.prior_medians(), calibration=record)
    begun = from_values(record.origin.values, record.origin.record)
    for levels in ({"source": "yours/g", "framework": "g"}, {"framework": "g"}, {"source": "theirs/f"}):
        chex.assert_trees_all_close(js.resolve(fit, levels), js.resolve(begun, levels), rtol=1e-6)
        assert record.scatter_of(levels) == record.origin.record.scatter_of(levels)
    assert record.memory_limit_of({"source": "yours/g"}, 0.1).usable == 0.8
    for levels in ({}, {"source": "mine/f"}, {"framework": "f"}, {"source": "new/f", "framework": "f"}, {"gpu": "a"}):
        assert record.origin_of(levels) is None


@pytest.mark.parametrize("record", [_of_one_cluster(), _from_a_start()], ids=["alone", "from a start"])
def test_a_record_is_the_same_on_disk(tmp_path, record: Calibration):
    path = tmp_path / "mine.toml"
    path.write_text(to_toml(dataclasses.replace(js.prior_medians(), calibration=record), {}, "a fit"))
    loaded = js.load_fit(path).calibration
    if record.origin is not None:
        np.testing.assert_allclose(loaded.origin.values, record.origin.values, rtol=1e-5)
        loaded = dataclasses.replace(loaded, origin=dataclasses.replace(loaded.origin, values=record.origin.values))
    assert loaded == record


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
    assert js.load_fit(path).calibration == js.load_fit("bigscience_bloom_a100").calibration


def test_a_fit_without_one_coefficient_is_refused(tmp_path):
    """A file of one's own may state some coefficients only; one that a fit wrote states all."""
    text = to_toml(js.prior_medians(), {}, "a fit")
    path = tmp_path / "mine.toml"
    path.write_text(text.replace("[coefficients.tp_overlap]", "[other]"))
    with pytest.raises(js.InputError, match="coefficients.tp_overlap is missing; expected a whole fit"):
        js.load_fit(path)


def test_any_name_and_any_fraction_survives_on_disk(tmp_path):
    nasty = 'my\ncluster\t"x" \\ \x7f \u00e9'
    record = Calibration(
        "fit", effects=(LevelEffect("source", nasty, (("straggler", 0.5),)),), known=(("source", nasty),)
    )
    fit = dataclasses.replace(js.prior_medians(), calibration=record, tp_overlap=0.99999999)
    path = tmp_path / "mine.toml"
    path.write_text(to_toml(fit, {}, "a fit"), encoding="utf-8")
    loaded = js.load_fit(path)
    assert loaded.calibration.effects == record.effects and loaded.calibration.known == record.known
    assert loaded.tp_overlap == 0.99999999


def test_largest_clusters_are_kept_on_disk():
    record = js.load_fit().calibration
    assert record is not None
    largest = dict(record.largest)
    assert largest["vtrain_a100_ground_truth/megatron-deepspeed"] == 512.0
    assert largest["mosaic_llm_foundry/llm-foundry"] < max(largest.values())


def test_unseen_frameworks_get_wider_intervals():
    record = js.load_fit().calibration
    assert record is not None
    places = [
        {"source": "mosaic_llm_foundry/llm-foundry", "framework": "llm-foundry"},
        {"source": "another/llm-foundry", "framework": "llm-foundry"},
        {"framework": "somebody's own"},
    ]
    known, new_source, unseen = (record.scatter_of({**place, "gpu": "h100-80gb"}) for place in places)
    assert known.time < new_source.time < unseen.time
    assert [entry.kind for entry in (known, new_source, unseen)] == ["source", "new_source", "unseen"]
    assert record.scatter_of({**places[0], "gpu": "gtx580"}).kind == "unseen"
    assert record.scatter_of({"framework": "megatron-deepspeed", "gpu": "gtx580"}).kind == "unseen"
    assert record.scatter_of({"framework": "nanotron", "gpu": "h100-80gb"}).kind == "new_source"


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
        ("[coefficients]\n[origin.coefficients]\nnonsense = 1\n", "^[^(]*nonsense is not a coefficient"),
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
    assert loaded.matmul_efficiency == 0.5
    assert loaded.hbm_efficiency == js.prior_medians().hbm_efficiency


def test_records_that_state_no_memory_are_equal_when_read_twice():
    """Unequal ones would compile again."""
    first, again = (js.load_fit("mosaic_llm_foundry").calibration for _ in range(2))
    assert first is not None and any(math.isnan(scatter.memory) for scatter in first.scatter)
    assert first == again and hash(first) == hash(again)
    assert dataclasses.replace(first, scatter=first.scatter[1:]) != again
