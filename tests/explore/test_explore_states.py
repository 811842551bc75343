"""States of the page: their addresses, their figures against the public functions, and what the page may read."""

import csv
import dataclasses
import io
from pathlib import Path

import equinox as eqx
import jax
import jax.monitoring
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxscale as js
from jaxscale.explore import page_state
from jaxscale.explore.page_controls import opening_state, shown
from jaxscale.explore.page_server import bound_socket, is_local
from jaxscale.explore.page_state import SLIDERS, TABS, PageInputs, PageState, changes, page_inputs, state_of
from jaxscale.explore.page_tables import (
    count,
    headline,
    percent,
    phrases_of,
    ranked_plan_texts,
    tab_csv,
    tab_html,
    tab_records,
)
from jaxscale.explore.page_work import RESOURCES, SIZES, _plans, page_view, with_factors
from jaxscale.models.transformer import n_active_params
from jaxscale.report.style import seconds

STATE = PageState(model="llama2-7b", n_gpus=16, global_batch=64, pp=2, seq_len=2048)


@pytest.fixture(scope="module")
def inputs() -> PageInputs:
    """Shipped catalogues, and a fit that is no matter of calibration."""
    return page_inputs(fit="prior")


def seconds_of(state: PageState, inputs: PageInputs, cluster: js.Cluster | None = None) -> float:
    """Step time of the plan of a state by the public function, on the state's cluster or on another [s]."""
    view = page_view(state, inputs)
    model = js.model(state.model, seq_len=state.seq_len)
    coefficients = inputs.fit.coefficients(inputs.question(state).levels)
    return float(js.step_time(model, view.plan, cluster or inputs.cluster(state), coefficients).total)


def test_pages_have_the_inputs_of_the_command_else_the_catalogues(inputs: PageInputs, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(page_state, "_SERVED", [])
    first = page_state.served_inputs()
    assert first.fit.name == page_inputs().fit.name != inputs.fit.name and page_state.served_inputs() is first
    page_state.serve_inputs(inputs)
    assert page_state.served_inputs() is inputs


factors = st.sampled_from([0.25, 0.5, 1.0, 1.41, 4.0])


@given(
    st.builds(
        PageState,
        model=st.sampled_from(["llama3-8b", "a model & its file.toml"]),
        n_gpus=st.integers(1, 10**6),
        tp=st.sampled_from([0, 1, 8]),
        zero_stage=st.sampled_from(["", "0", "3"]),
        recompute=st.sampled_from(["", "full"]),
        network=factors,
        width=factors,
        tab=st.sampled_from(TABS),
    )
)
def test_a_state_and_its_address_are_one(state: PageState):
    from urllib.parse import parse_qsl

    texts = dict(parse_qsl(state.query(), keep_blank_values=True))
    assert state_of(texts) == state
    assert texts == changes(state)
    assert opening_state({**texts, "session_id": "x"}) == (state, "")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"n_gpu": "8"}, "'n_gpu' is no field"),
        ({"n_gpus": "many"}, "expected a whole number"),
        ({"n_gpus": "0"}, "expected a whole number from 1"),
        ({"network": "nan"}, "out of range"),
        ({"tab": "memory"}, "expected one of step"),
        ({"recompute": "some"}, "expected one of none"),
        ({"zero_stage": "4"}, "expected 0, 1, 2 or 3"),
    ],
)
def test_bad_addresses_are_refused(texts: dict[str, str], message: str):
    with pytest.raises(js.InputError, match=message):
        state_of(texts)


def test_the_figures_of_a_state_are_those_of_the_public_functions(inputs: PageInputs):
    view = page_view(STATE, inputs)
    model, cluster = js.model("llama2-7b", seq_len=2048), js.cluster("h100-80gb", 16)
    choice = js.best_plan(
        model, cluster, 64, fit=inputs.fit, levels=inputs.question(STATE).levels, space=inputs.question(STATE).space
    )
    assert view.choice.best.plan.words() == choice.best.plan.words()
    assert choice.best.plan.words()["pp"] == 2
    coefficients = inputs.fit.coefficients(inputs.question(STATE).levels)
    step = js.step_time(model, choice.best.plan, cluster, coefficients)
    peak = js.memory(model, choice.best.plan, cluster, coefficients)
    assert view.step_time == pytest.approx(float(step.total), rel=1e-9)
    assert view.now.terms == pytest.approx({name: float(term) for name, term in step.terms().items()}, rel=1e-9)
    assert view.now.memory_terms == pytest.approx({name: float(term) for name, term in peak.terms().items()}, rel=1e-9)
    assert view.tokens_per_second == pytest.approx(64 * 2048 / float(step.total))
    assert view.oom_probability == pytest.approx(choice.best.oom_probability, rel=1e-9)
    assert view.setting.tokens == pytest.approx(20 * float(n_active_params(model)))
    other = page_view(dataclasses.replace(STATE, rank=4), inputs)
    assert other.step_time == pytest.approx(choice.top[3].step_time, rel=1e-6)
    assert other.step_time > view.step_time


def test_the_first_view_is_worked_out_from_the_ranking_alone(inputs: PageInputs):
    view = page_view(STATE, inputs)
    told = view.now
    assert "figures" not in vars(view), "no other program has run"
    row = [float(column[0]) for column in jax.tree.leaves(view.figures[2:])]
    assert [*told[2:5], *told.run] == pytest.approx(row, rel=1e-9)
    moved = page_view(dataclasses.replace(STATE, compute=2.0), inputs)
    assert moved.now.step_time < 0.9 * told.step_time and "figures" in vars(moved)


def test_factors_change_the_cluster_under_the_same_plan(inputs: PageInputs):
    base, faster = page_view(STATE, inputs), page_view(dataclasses.replace(STATE, network=2.0, compute=0.5), inputs)
    cluster = inputs.cluster(STATE)
    network = eqx.tree_at(lambda net: net.bandwidth, cluster.network, cluster.network.bandwidth * np.array([1.0, 2, 2]))
    chip = eqx.tree_at(lambda chip: chip.peak_flops, cluster.chip, np.asarray(cluster.chip.peak_flops) * 0.5)
    expected = seconds_of(STATE, inputs, js.Cluster(chip, network, cluster.n_chips))
    assert faster.step_time == pytest.approx(expected, rel=1e-9)
    assert faster.plan.words() == base.plan.words()
    assert faster.step_time > 1.1 * base.step_time


FACTORS = st.fixed_dictionaries({name: st.floats(0.25, 4.0) for name in (*SIZES, *RESOURCES)})


@given(FACTORS)
@settings(max_examples=8)
def test_factors_multiply_what_they_name_and_nothing_else(factors: dict[str, float]):
    """More chips are more replicas of the same batch; a wider model has more heads of the same width."""
    model, plan = js.model("llama2-7b", seq_len=2048), js.Plan(dp=8, tp=2, pp=2, n_microbatches=16, shard_group=4)
    cluster = js.cluster("h100-80gb", 32)
    shape, run, machine = with_factors(model, plan, cluster, factors)
    assert float(machine.n_chips) == pytest.approx(32 * factors["chips"])
    assert float(run.n_chips) == pytest.approx(float(machine.n_chips))
    assert float(run.shard_group / run.dp) == pytest.approx(0.5)
    assert float(run.global_batch_size_seqs) == pytest.approx(128 * factors["batch"])
    grown = {"d_model": "width", "n_heads": "width", "d_ff": "width", "n_layers": "depth", "vocab_size": "vocabulary"}
    for field, name in {**grown, "seq_len": "sequence length"}.items():
        assert float(getattr(shape, field) / getattr(model, field)) == pytest.approx(factors[name])
    assert float(shape.head_dim) == float(model.head_dim)
    levels = [factors[f"{level} bandwidth"] for level in ("scale-up", "scale-out", "spine")]
    np.testing.assert_allclose(machine.network.bandwidth, np.asarray(cluster.network.bandwidth) * levels)
    assert float(machine.chip.hbm_bandwidth / cluster.chip.hbm_bandwidth) == pytest.approx(factors["memory bandwidth"])


DEGREES = st.sampled_from([1, 2, 4])


@given(st.integers(1, 32), DEGREES, DEGREES, DEGREES, st.integers(1, 8))
def test_curves_over_chips_keep_the_batch_and_count_every_degree(dp: int, tp: int, pp: int, cp: int, m: int):
    """Replicas share the batch of the plan; chips are the product of all degrees."""
    plan = js.Plan(dp=dp, tp=tp, pp=pp, cp=cp, n_microbatches=m)
    plans, chips, n_replicas = _plans(plan)
    dps = np.asarray(plans.dp)
    np.testing.assert_allclose(chips, dps * tp * pp * cp)
    np.testing.assert_allclose(plans.global_batch_size_seqs, dp * m)
    assert dps[0] == dp and dp in dps[1 : 1 + n_replicas]
    assert (np.asarray(plans.n_microbatches) % 1 == 0).all() and (np.asarray(plans.shard_group) <= dps).all()


def test_a_state_is_changed_where_a_factor_is(inputs: PageInputs):
    names = (*SLIDERS, "width", "depth")
    assert not page_view(STATE, inputs).is_changed
    assert all(page_view(dataclasses.replace(STATE, **{name: 2.0}), inputs).is_changed for name in names)


def test_elasticities_are_slopes(inputs: PageInputs):
    view, coefficients = page_view(STATE, inputs), inputs.fit.coefficients(inputs.question(STATE).levels)
    model = js.model("llama2-7b", seq_len=2048)
    of_cluster = js.elasticity(
        lambda cluster: js.step_time(model, view.plan, cluster, coefficients).total, inputs.cluster(STATE)
    )
    assert view.elasticities["memory bandwidth"] == pytest.approx(float(of_cluster.chip.hbm_bandwidth), rel=1e-6)
    assert view.elasticities["scale-up bandwidth"] == pytest.approx(float(of_cluster.network.bandwidth[0]), abs=1e-9)
    assert view.elasticities["peak flop/s"] == pytest.approx(float(of_cluster.chip.peak_flops.sum()), rel=1e-6)
    assert set(SIZES) < set(view.elasticities)
    longer = seconds_of(dataclasses.replace(STATE, seq_len=2050), inputs)
    slope = np.log(longer / view.step_time) / np.log(2050 / 2048)
    assert view.elasticities["sequence length"] == pytest.approx(slope, rel=0.01)
    assert view.elasticities["chips"] < -0.5 < 0.5 < view.elasticities["width"]


def test_curves_pass_through_the_state(inputs: PageInputs):
    view = page_view(STATE, inputs)
    (_, *_), rows = tab_records(view, "chips")
    chips = {row[0]: row[1] for row in rows}
    assert chips[16.0] == pytest.approx(view.step_time, rel=1e-12)
    plan = view.plan
    half = eqx.tree_at(
        lambda p: (p.dp, p.n_microbatches, p.shard_group), plan, (plan.dp / 2, plan.n_microbatches * 2, plan.dp / 2)
    )
    model, coefficients = js.model("llama2-7b", seq_len=2048), inputs.fit.coefficients(inputs.question(STATE).levels)
    assert not js.violations(model, half, 8)
    expected = float(js.step_time(model, half, js.cluster("h100-80gb", 8), coefficients).total)
    assert chips[8.0] == pytest.approx(expected, rel=1e-9)
    assert chips[8.0] > 1.5 * chips[16.0]
    _, shapes = tab_records(view, "shape")
    here = [row for row in shapes if row[1:3] == (4096.0, 32.0)]
    assert {row[0] for row in here} == {"width", "depth"}
    assert all(row[3] == pytest.approx(float(js.n_params(model))) for row in here)
    for curve, column in (("width", 1), ("depth", 2)):
        points = np.asarray([row[1:] for row in shapes if row[0] == curve])
        assert (np.diff(points[:, column - 1]) > 0).all() and len(points) > 4
        assert (np.diff(points[:, 5]) > 0).all(), "larger models take longer"
        assert points[-1, 3] < points[0, 3], "and lose less"


def test_a_wider_model_is_whole_and_in_proportion(inputs: PageInputs):
    view = page_view(dataclasses.replace(STATE, width=1.41, depth=0.5), inputs)
    shape = jax.tree.map(lambda leaf: float(leaf[0]), view.rows.models)
    assert (shape.n_layers, shape.d_model % 128, shape.head_dim) == (16.0, 0.0, 128.0)
    assert shape.d_model == shape.n_heads * 128
    assert shape.d_ff / shape.d_model == pytest.approx(11008 / 4096, rel=0.02)
    same = page_view(STATE, inputs)
    assert float(same.rows.models.d_ff[0]) == 11008.0


def test_models_whose_heads_are_not_as_wide_as_they_are_many(inputs: PageInputs):
    state = PageState(model="qwen3-30b-a3b", n_gpus=32, global_batch=64, ep=8)
    template = inputs.transformer(state)
    assert float(template.d_model / template.n_heads) != float(template.head_dim)
    view = page_view(dataclasses.replace(state, width=2.0), inputs)
    assert float(view.rows.models.d_model[0]) == 2 * float(template.d_model)
    assert float(view.rows.models.head_dim[0]) == float(template.head_dim)
    assert np.isfinite(view.figures.step_time).all() and np.isfinite(view.figures.run.loss).all()


def test_one_program_serves_all_sliders(inputs: PageInputs):
    def work(state: PageState):
        view = page_view(state, inputs)
        return view.now, view.figures, view.elasticities

    work(STATE)
    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: compiled.append(event) if "backend_compile" in event else None
    )
    for name in (*SLIDERS, "width", "depth", "tokens"):
        work(dataclasses.replace(STATE, **{name: 2.0}))
    assert not compiled
    jax.jit(lambda x: x * 1.2345)(1.0)
    assert compiled, "the listener hears of programs"


@pytest.mark.parametrize("tab", TABS)
def test_every_view_is_saved(inputs: PageInputs, tab: str):
    view = page_view(dataclasses.replace(STATE, links=2.0, tab=tab), inputs)
    columns, rows = tab_records(view, tab)
    read = list(csv.reader(io.StringIO(tab_csv(view, tab))))
    assert tuple(read[0]) == columns and len(read) == 1 + len(rows)
    pairs = [pair for row, texts in zip(rows, read[1:], strict=True) for pair in zip(row, texts, strict=True)]
    assert all(float(text) == cell for cell, text in pairs if isinstance(cell, float))
    assert "<table>" in tab_html(view, tab)


@pytest.mark.parametrize("tab", TABS)
def test_every_view_is_drawn_by_the_rules_of_vega(inputs: PageInputs, tab: str):
    alt = pytest.importorskip("altair", reason="the page needs altair: the extras `explore` and `test`")
    from jaxscale.explore.page_charts import tab_charts

    for chart in tab_charts(page_view(dataclasses.replace(STATE, links=2.0), inputs), tab):
        drawn = chart.to_dict()  # checked against the schema of Vega-Lite
        assert drawn["width"] == "container" and drawn["description"]
        parts = [part["encoding"] for part in drawn["layer"]]
        assert any("tooltip" in encoding for encoding in parts)
        for part in drawn["layer"]:
            rows = part["data"]["values"]
            groups = [one if isinstance(one, list) else [one] for one in part["encoding"].values()]
            fields = {channel["field"] for group in groups for channel in group if "field" in channel}
            assert all(fields <= row.keys() for row in rows), "every mark has all that it shows"
        assert bool(drawn.get("params")) == (tab in ("plans", "chips", "shape")), "bars do not zoom"
        chart.layer[0].mark = "no such mark"
        with pytest.raises(alt.utils.schemapi.SchemaValidationError):
            chart.to_dict()


def test_chips_that_do_not_fit_are_marked(inputs: PageInputs):
    view = page_view(STATE, inputs)
    columns, rows = tab_records(view, "chips")
    told = [dict(zip(columns, row, strict=True)) for row in rows]
    limit = view.choice.memory_limit / 1e9
    assert all(row["fits"] == (row["memory_gb"] <= limit) for row in told)
    assert {row["fits"] for row in told} == {True, False}
    assert next(row for row in told if row["n_chips"] == 16.0)["fits"], "ranked plans fit"
    html = tab_html(view, "chips")
    assert html.count("<td>no</td>") == sum(not row["fits"] for row in told)


def test_the_headline_is_in_words(inputs: PageInputs):
    view = page_view(STATE, inputs)
    words = headline(view)
    assert words["step"] == seconds(view.step_time)
    assert (words["layers x width"], words["parameters"]) == ("32 x 4096", "6.74 B")
    vpp = view.plan.words()["vpp"]
    assert f"pp 2 x {vpp}" in phrases_of(view.plan.words()) and vpp > 1
    assert [percent(share) for share in (0.51954, 3.2e-5, 0.0)] == ["52.0 %", "< 0.1 %", "0 %"]
    assert [count(number) for number in (8.03e9, 1.25e8, 1.0e12)] == ["8.03 B", "125 M", "1 T"]


def test_plans_are_told_apart_and_what_they_share_is_told_once(inputs: PageInputs):
    ranked = [scored.plan.words() for scored in page_view(STATE, inputs).choice.top]
    lines, shared = ranked_plan_texts(ranked)
    assert len(set(lines)) == len(lines) > 1
    assert "pp\u00a02" in shared.split("  ") or len({words["vpp"] for words in ranked}) > 1
    assert all(phrase not in line.split("  ") for phrase in shared.split("  ") for line in lines)
    same = [dict(words, fused_norm=False) if rank else words for rank, words in enumerate(ranked[:1] * 2)]
    (first, second), _ = ranked_plan_texts(same)
    assert first != second, "choices without a phrase are told where they differ"
    (first, second), _ = ranked_plan_texts(ranked[:1] * 2)
    assert first == second
    assert ranked_plan_texts(ranked[:1])[1] == "", "a plan alone shares nothing"


def test_states_without_a_plan_are_refused_in_one_line(inputs: PageInputs):
    values = dataclasses.asdict(dataclasses.replace(STATE, tp=64))
    seen = shown(inputs, values)
    assert seen.view is None and seen.refusal and "\n" not in seen.refusal
    assert shown(inputs, {**values, "tp": 0}).view is not None


def test_the_page_reads_no_file_that_it_was_not_given(tmp_path: Path):
    mine, other = tmp_path / "mine.toml", tmp_path / "other.toml"
    for path in (mine, other):
        path.write_text("n_layers = 8\nd_model = 1024\nn_heads = 8\n", encoding="utf-8")
    inputs = page_inputs((str(mine),), fit="prior")
    mine.unlink()  # read once, when the command began
    assert inputs.models()[0] == str(mine)
    assert float(inputs.transformer(PageState(model=str(mine))).d_model) == 1024.0
    with pytest.raises(js.InputError, match="is not in the catalogue"):
        inputs.transformer(PageState(model=str(other)))


def scope(host: str, client: str = "127.0.0.1", origin: str | None = None) -> dict[str, object]:
    """A request in the terms of ASGI."""
    headers = [(b"host", host.encode())] + ([(b"origin", origin.encode())] if origin else [])
    return {"type": "http", "client": (client, 5), "headers": headers}


@pytest.mark.parametrize(
    ("request_", "local"),
    [
        (scope("127.0.0.1:80"), True),
        (scope("localhost:80", origin="http://localhost:80"), True),
        (scope("evil.example:80"), False),
        (scope("127.0.0.1:80", origin="http://evil.example"), False),
        (scope("127.0.0.1:80", origin="http://127.0.0.1:81"), False),
        (scope("127.0.0.1:80", client="192.0.2.7"), False),
        ({"type": "http", "client": None, "headers": []}, False),
    ],
)
def test_other_machines_and_other_sites_are_refused(request_: dict[str, object], local: bool):
    assert is_local(request_) is local


def test_the_socket_belongs_to_this_machine_alone():
    with bound_socket(0) as listening:
        host, port = listening.getsockname()
        assert host == "127.0.0.1"
        with pytest.raises(js.InputError, match="expected a free port"):
            bound_socket(port)
    with pytest.raises(js.InputError, match="out of range"):
        bound_socket(70000)
