"""Serving under load: queues in their limits, the event loop, Little's law, percentiles, tables."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from serving_cases import DENSE, USUAL

import jaxscale as js
from jaxscale import serving
from jaxscale.base.arrays import with_fields
from jaxscale.models.transformer import n_params
from jaxscale.serving.serving_predict import hardware_limits
from jaxscale.serving.under_load import bounded_utilisation

STREAM = serving.Requests(1e6, 600, 200, request_rate=8.0)
ONE = js.cluster("h100-80gb", 1)
loaded = jax.jit(serving.serving_under_load, static_argnames="temperature")
KINDS = ("ttft", "tpot", "e2e")


def load(requests=STREAM, coefficients=USUAL, engine=None, model=DENSE, temperature=0.0, **changes):
    arrays = (model, engine or serving.Engine(), ONE, with_fields(requests, changes), coefficients)
    return loaded(*jax.tree.map(jnp.asarray, arrays), temperature=temperature)


@pytest.mark.parametrize("gaps", [0.0, 1.0])
def test_more_requests_are_never_faster_and_percentiles_are_ordered(gaps):
    before = None
    for rate in (0.1, 2.0, 8.0, 16.0, 24.0, 40.0):
        found = load(request_rate=rate, gap_variance=gaps)
        for kind in KINDS:
            times = getattr(found, kind)
            assert 0.0 < times.p50 <= times.p90 <= times.p99
            if before is not None:
                assert all(
                    getattr(times, name) >= 0.9999 * getattr(getattr(before, kind), name) for name in vars(times)
                )
        assert found.throughput <= 1.0001 * found.saturation * 200
        before = found


def test_a_vanishing_rate_is_an_empty_engine():
    found = load(request_rate=1e-6)
    alone = float(USUAL.pace * found.times.alone)
    assert float(found.tpot.mean) == pytest.approx(alone, rel=1e-3), "steps without a prompt of others"
    assert float(found.throughput) == pytest.approx(200e-6, rel=1e-3)
    assert float(load(request_rate=4.0).tpot.mean) > 1.03 * alone


@pytest.mark.parametrize("utilisation", [0.3, 0.6, 0.8])
@pytest.mark.parametrize(("gaps", "lengths", "factor"), [(1.0, 1.0, 1.0), (1.0, 0.0, 0.5)])
def test_an_engine_with_one_place_is_a_queue_with_one_server(utilisation, gaps, lengths, factor):
    """Wait of M/M/1, rho / (1 - rho) services, and of M/D/1, half of it."""
    usual = eqx.tree_at(lambda c: c.jitter, USUAL, 1e-6)
    one = {"concurrency": 1.0, "gap_variance": gaps, "length_variance": lengths}
    most = load(coefficients=usual, **one)
    found = load(coefficients=usual, request_rate=utilisation * most.saturation, **one)
    service = 1.0 / float(found.saturation)
    wait = float(found.ttft.mean) - float(found.times.ttft)
    assert wait == pytest.approx(factor * utilisation / (1.0 - utilisation) * service, rel=0.02)
    if factor == 1.0:
        # The time in an M/M/1 queue is exponential.
        share = service / (1.0 - utilisation)
        assert float(found.e2e.p99) == pytest.approx(share * np.log(100.0), rel=0.05)


def test_a_closed_loop_keeps_littles_law():
    for clients in (1.0, 16.0, 64.0):
        found = load(request_rate=0.0, concurrency=clients)
        rate = found.throughput / 200.0
        assert float(rate * (found.e2e.mean - found.times.waiting)) == pytest.approx(clients, rel=1e-4)
    stream = load(request_rate=8.0)
    in_batch = 8.0 * 199.0 * stream.tpot.mean
    assert float(stream.n_sequences - in_batch) == pytest.approx(1.0, abs=0.1), "and itself: Poisson arrivals"
    constant = load(request_rate=8.0, gap_variance=0.0)
    assert float(constant.n_sequences) == pytest.approx(float(8.0 * 199.0 * constant.tpot.mean), rel=1e-3)


@pytest.mark.slow
def test_gradients_of_percentiles_agree_with_differences():
    def logs(point):
        rate, length, bandwidth = jnp.exp(point)
        chip = eqx.tree_at(lambda c: c.hbm_bandwidth, ONE.chip, bandwidth)
        cluster = eqx.tree_at(lambda c: c.chip, ONE, chip)
        requests = with_fields(STREAM, {"request_rate": rate, "output_len": length})
        found = serving.serving_under_load(DENSE, serving.Engine(), cluster, requests, USUAL, temperature=0.05)
        return jnp.log(jnp.stack([getattr(found, kind).p99 for kind in KINDS]))

    with jax.enable_x64(True):
        point = jnp.log(jnp.asarray([12.0, 200.0, 3.35e12]))
        gradient = jax.jit(jax.jacfwd(logs))(point)
        function = jax.jit(logs)
        differences = [(function(point.at[i].add(1e-5)) - function(point.at[i].add(-1e-5))) / 2e-5 for i in range(3)]
    assert np.asarray(gradient).T == pytest.approx(np.asarray(differences), rel=2e-3, abs=1e-6)
    assert np.all(gradient[:, 0] > 0.0) and np.all(gradient[:, 2] < 0.0)


def test_a_burst_waits_for_prompts_and_then_for_places():
    burst = serving.Requests(1, 600, 200, at_limit=1, n_requests=100)
    small, large = load(burst), load(burst, n_requests=4000.0)
    spread = float(small.ttft.p90 - small.ttft.p50)
    steps = 600 / serving.Engine().token_budget * 0.5 * (small.times.alone + small.times.decode.total)
    each = np.hypot(USUAL.pace * (small.times.in_line + steps), USUAL.request_floor)
    assert spread == pytest.approx(float(0.4 * 100 * each), rel=1e-3)
    late = float(large.ttft.p99 - large.ttft.p90)
    assert late == pytest.approx(float(0.09 * 4000 / large.saturation), rel=1e-3)
    assert large.e2e.mean > 2.0 * small.e2e.mean


LENGTHS = {
    "equal": (0.0, lambda count, mean: np.full(count, float(mean))),
    "uniform": (1.0 / 3.0, lambda count, mean: np.random.default_rng(0).integers(1, 2 * mean, count).astype(float)),
    "exponential": (1.0, lambda count, mean: np.ceil(np.random.default_rng(0).exponential(mean, count))),
}
"""Squared coefficient of variation of answers, and answers, by their distribution."""


@pytest.mark.parametrize(
    ("places", "count", "n_in", "n_out", "lengths"),
    [(400, 400, 215, 100, "exponential"), (128, 500, 215, 100, "uniform"), (50, 200, 2000, 50, "equal")],
)
def test_a_burst_agrees_with_the_engine_step_by_step(places, count, n_in, n_out, lengths):
    """Throughput within 5 %; mean and tail of first tokens, mean whole times and times per token within a tenth."""
    variance, drawn = LENGTHS[lengths]
    answers = drawn(count, n_out)
    coefficients = eqx.tree_at(lambda c: (c.batch_limit, c.request_floor), USUAL, (float(places), 1e-6))
    sent = serving.Requests(1e6, n_in, float(answers.mean()), n_requests=count)
    arguments: list[Any] = list(jax.tree.map(jnp.asarray, (DENSE, serving.Engine(), ONE, sent, coefficients)))
    run = serving.simulate_requests(*arguments, jnp.zeros(count), jnp.asarray(answers), places=places, n_steps=2500)
    fields = {"at_limit": 1.0, "length_variance": variance}
    found = load(with_fields(sent, fields), request_rate=0.0, coefficients=coefficients)
    first, whole = np.asarray(run.ttft), np.asarray(run.e2e)
    assert np.isfinite(whole).all()
    assert float(found.throughput) == pytest.approx(float(run.throughput), rel=0.05)
    assert float(found.ttft.mean) == pytest.approx(first.mean(), rel=0.1)
    assert float(found.ttft.p99) == pytest.approx(np.quantile(first, 0.99), rel=0.1)
    assert float(found.e2e.mean) == pytest.approx(whole.mean(), rel=0.1)
    assert float(found.e2e.p99) == pytest.approx(np.quantile(whole, 0.99), rel=0.2)
    each = np.asarray(run.tpot)[answers > 1]
    assert float(found.tpot.mean) == pytest.approx(each.mean(), rel=0.1)
    # Negative control: without the drain of unequal answers, the run would be that much faster.
    assert variance == 0.0 or float(found.saturation * answers.mean()) > 1.08 * float(run.throughput)


@pytest.mark.parametrize(("clients", "count", "n_in", "n_out"), [(32, 96, 1024, 256), (8, 200, 512, 128)])
def test_a_closed_loop_starts_with_a_rush_and_drains_at_its_end(clients, count, n_in, n_out):
    """The engine step by step, answers of uneven lengths: the first requests come at once, the last run alone."""
    requests = serving.Requests(clients, n_in, n_out, n_requests=count, length_variance=1.0 / 3.0)
    answers = np.random.default_rng(0).integers(1, 2 * n_out, count).astype(float)
    arguments: list[Any] = list(jax.tree.map(jnp.asarray, (DENSE, serving.Engine(), ONE, requests, USUAL)))
    steps = int(2.5 * count / clients * n_out) + 2000
    run = serving.simulate_requests(*arguments, jnp.zeros(count), jnp.asarray(answers), places=clients, n_steps=steps)
    found, waits = load(requests), np.asarray(run.ttft)
    assert float(found.throughput) == pytest.approx(float(run.throughput), rel=0.07)
    assert float(found.ttft.mean) == pytest.approx(waits.mean(), rel=0.15)
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        assert float(getattr(found.ttft, name)) == pytest.approx(np.quantile(waits, share), rel=0.15), name
    many = load(requests, n_requests=50.0 * count)
    assert float(many.ttft.p99) < 0.5 * np.quantile(waits, 0.99), "negative control: a rush among many"
    assert float(many.throughput) > float(found.throughput)


def simulated(requests, rate, gaps, places, model=DENSE, count=1200):
    random = np.random.default_rng(1)
    waits = random.exponential(1.0, count) if gaps else np.ones(count)
    sent = with_fields(requests, {"concurrency": 1e6})
    arguments: list[Any] = list(jax.tree.map(jnp.asarray, (model, serving.Engine(), ONE, sent, USUAL)))
    found = load(requests, model=model, request_rate=rate, gap_variance=gaps, concurrency=float(places))
    steps = int(1.3 * count / rate / float(found.tpot.mean)) + 2000
    arrivals, answers = jnp.asarray(np.cumsum(waits / rate)), jnp.full(count, requests.output_len)
    run = serving.simulate_requests(*arguments, arrivals, answers, places=places, n_steps=steps)
    kept = slice(count // 5, -count // 10)
    return found, np.asarray(run.e2e)[kept], np.asarray(run.ttft)[kept]


@pytest.mark.slow
@pytest.mark.parametrize("case", range(6))
def test_the_event_loop_agrees_below_80_percent_of_saturation(case):
    random = np.random.default_rng(case)
    prompt, answer = float(random.integers(100, 1500)), float(random.integers(60, 250))
    places, gaps = int(random.choice([24, 64, 128])), float(case % 2)
    requests = serving.Requests(1e6, prompt, answer)
    top = float(load(requests, request_rate=1.0, concurrency=float(places)).saturation)
    for share in (0.3, 0.75):
        found, e2e, _ = simulated(requests, share * top, gaps, places)
        assert np.isfinite(e2e).all()
        assert float(found.e2e.mean) == pytest.approx(e2e.mean(), rel=0.03)
    wrong = load(requests, request_rate=0.3 * top, gap_variance=gaps, concurrency=float(places))
    assert float(wrong.e2e.mean) != pytest.approx(e2e.mean(), rel=0.03), "negative control: another rate"


def table(path, *rows):
    columns = dict.fromkeys(key for row in rows for key in row)
    lines = [",".join(columns), *(",".join(row.get(key, "") for key in columns) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


ROW = {"model": "llama3-8b", "gpu": "h100-80gb", "framework": "vllm", "input_len": "600", "output_len": "200"}
RATED = {**ROW, "arrival": "constant", "request_rate": "8", "concurrency": ""}


@pytest.mark.slow
def test_a_table_answers_rates_and_arrivals(tmp_path):
    rows = (RATED, {**RATED, "request_rate": "16"}, {**RATED, "arrival": "poisson"}, {**ROW, "concurrency": "16"})
    rows = (*rows, {**RATED, "request_rate": "200"})
    found = serving.predict_serving(serving.read_serving(table(tmp_path / "t.csv", *rows)))
    columns = found.columns()
    for kind in KINDS:
        times = np.stack([columns[f"predicted_{kind}_{name}_s"] for name in ("p50", "p90", "p99")])
        assert np.all(np.diff(times[:, :3], axis=0) >= 0.0)
        assert np.all(times[:, 1] > times[:, 0]), "twice the rate is slower"
        assert np.isnan(times[:, 3]).all(), "a row that states no arrivals has no percentiles"
    assert columns["predicted_e2e_p99_s"][2] > columns["predicted_e2e_p99_s"][0], "Poisson arrivals have a longer tail"
    notes = columns["predicted_note"]
    assert "beyond" in notes[4] and not any("beyond" in note for note in notes[:4])
    rate = columns["predicted_saturation_rate"]
    assert columns["predicted_saturation_rate_lo"][0] < rate[0] < columns["predicted_saturation_rate_hi"][0]
    assert columns["predicted_output_tokens_per_s_total"][:2] == pytest.approx([1600.0, 3200.0])


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"request_rate": ""}, "arrivals at a rate have one"),
        ({"arrival": "closed", "concurrency": "4"}, "bursts and closed loops have no rate"),
        ({"serving": "static"}, "static and disagg serving have no arrivals"),
        ({"arrival": "sometimes"}, "arrival"),
    ],
)
def test_what_a_table_states_about_arrivals_has_to_agree(tmp_path, changes, told):
    with pytest.raises(js.InputError, match=told):
        serving.read_serving(table(tmp_path / "t.csv", {**RATED, **changes}))


def reading(chip, n_chips=1):
    """Time to read the 16-bit weights of Llama 3 8B but its table of embeddings, which a step looks up [s]."""
    weights = 2.0 * (float(n_params(DENSE)) - float(DENSE.vocab_size * DENSE.d_model))
    return weights / (n_chips * float(js.cluster(chip, 1).chip.hbm_bandwidth))


@pytest.mark.parametrize("fit", ["default", "prior"])
def test_ends_of_percentiles_are_in_order_and_possible(tmp_path, fit):
    new, one = {**RATED, "framework": "my-own"}, {"concurrency": "1"}
    mixed = {**RATED, "model": "mixtral-8x7b", "gpu": "b200", "length_cv": "1"}
    burst = {**ROW, "arrival": "burst", "n_requests": "300"}
    rows = (RATED, {**RATED, "request_rate": "24"}, new, mixed, burst, {**ROW, **one}, {**ROW, "batch_size": "4"})
    found = serving.predict_serving(serving.read_serving(table(tmp_path / "t.csv", *rows)), fit)
    for ends in (found.lo, found.values, found.hi):
        for kind in KINDS:
            times = np.stack([ends[f"{kind}_{name}_s"] for name in ("p50", "p90", "p99")])[:, :5]
            assert np.all(np.diff(times, axis=0) >= 0.0), kind
    for name, value in found.values.items():
        told = np.isfinite(value)
        assert np.all((found.lo[name] <= value)[told] & (value <= found.hi[name])[told]), name
        if name.startswith(("ttft", "tpot")):
            assert np.all(found.lo[name][told & (np.arange(7) != 3)] >= 0.999 * reading("h100-80gb")), name
    # Requests that arrive, or that clients have in flight, limit the answers.
    rate = found.hi["output_tokens_per_s_total"]
    assert rate[:2] == pytest.approx([1600.0, 4800.0])
    assert np.all(rate[5:] <= np.asarray([1.0, 4.0]) / reading("h100-80gb") * 200 / 199)


def test_no_request_outlasts_its_run(tmp_path):
    """The answers of 2,000 requests at the lowest throughput are the longest run; an endless stream has no such end."""
    ended = {**RATED, "request_rate": "60", "n_requests": "2000"}
    found = serving.predict_serving(serving.read_serving(table(tmp_path / "t.csv", ended, {**ended, "n_requests": ""})))
    longest = 2000.0 * float(ROW["output_len"]) / found.lo["output_tokens_per_s_total"]
    names = [name for name in found.hi if name.startswith(("ttft", "e2e"))]
    assert len(names) == 8 and all(found.hi[name][0] <= longest[0] * (1.0 + 1e-9) for name in names)
    assert found.hi["ttft_p99_s"][0] == pytest.approx(longest[0])
    ended_by, endless_by = found.hi["ttft_p99_s"] / found.values["ttft_p99_s"]
    assert endless_by > ended_by


def test_limits_of_the_hardware_are_those_of_the_data_sheet():
    def limits(engine=None, **changes):
        parts = (DENSE, engine or serving.Engine(), ONE, with_fields(STREAM, {"request_rate": 0.0, **changes}))
        return {name: float(value) for name, value in hardware_limits(*parts).items()}

    alone = limits(concurrency=1.0, input_len=1.0)
    assert alone["tpot_s"] == pytest.approx(reading("h100-80gb"), rel=1e-3)
    assert alone["output_tokens_per_s_total"] == pytest.approx(1.0 / reading("h100-80gb"), rel=1e-3)
    assert limits(serving.Engine(tp=2), input_len=1.0)["tpot_s"] == pytest.approx(0.5 * alone["tpot_s"], rel=1e-3)
    assert limits(draft_tokens=1.0)["tpot_s"] == pytest.approx(0.5 * limits()["tpot_s"])
    inner = float(n_params(DENSE) - 2.0 * DENSE.vocab_size * DENSE.d_model)
    assert limits(input_len=8192.0)["ttft_s"] == pytest.approx(2.0 * 8192.0 * inner / 989.4e12, rel=0.01)
    uneven = limits(length_variance=1.0)
    assert uneven["ttft_p50_s"] <= limits()["ttft_p50_s"] and uneven["ttft_s"] == limits()["ttft_s"]
    # No software is faster than the hardware.
    for requests in (STREAM, with_fields(STREAM, {"request_rate": 0.0, "concurrency": 64.0})):
        found = load(requests)
        floor = hardware_limits(DENSE, serving.Engine(), ONE, requests)
        for kind, name in zip(KINDS, ("ttft_s", "tpot_s", "e2e_latency_s"), strict=True):
            assert getattr(found, kind).mean > floor[name]
        assert found.throughput <= floor["output_tokens_per_s_total"]


@pytest.mark.parametrize("load", [{}, {"batch_size": "4"}, {"concurrency": "8"}, {"request_rate": "8"}])
def test_a_model_that_does_not_fit_has_no_batch_and_a_note(tmp_path, load):
    bare = {**ROW, "n_gpus": "1", "tp": "1", **load}
    large, half = {**bare, "model": "llama3-70b"}, {**bare, "model": "llama3-70b", "n_gpus": "2", "tp": "2"}
    latent = {**bare, "model": "deepseek-v3", "gpu": "h800-80gb", "n_gpus": "8", "tp": "8", "precision": "fp8"}
    # A prompt so long that one request fills the memory several times.
    rows = (large, latent, {**bare, "input_len": "3e6"}, half, bare)
    found = serving.predict_serving(serving.read_serving(table(tmp_path / "t.csv", *rows)))
    assert found.max_batch[:3].tolist() == [0.0] * 3 and 1.0 <= found.max_batch[3] < found.max_batch[4] < 1e5
    memory = f"{float(ONE.chip.hbm_bytes) / 1e9:.0f} GB of a chip"
    assert f"weights of 141 GB exceed the {memory}" in found.notes[0]
    assert f"weights of 84 GB leave no room for a request in the {memory}" in found.notes[1]
    assert f"weights of 16 GB leave no room for a request in the {memory}" in found.notes[2]
    assert not any("fit: " in note for note in found.notes[3:])


def test_the_note_of_an_overload_says_where_the_queue_ends(tmp_path):
    endless = {**RATED, "request_rate": "200", "arrival": "poisson", "n_requests": ""}
    rows = (endless, {**endless, "n_requests": "500"}, {**endless, "request_rate": "2"})
    found = serving.predict_serving(serving.read_serving(table(tmp_path / "t.csv", *rows)))
    rate = found.values["saturation_rate"][0]
    in_all = rate * found.values["e2e_latency_s"][0]
    assert f"saturation of {rate:.3g} requests/s" in found.notes[0]
    assert f"assumed: the queue of 98 % of saturation, {in_all:.0f} requests in flight or waiting" in found.notes[0]
    assert "to the end of the run of 500 requests" in found.notes[1] and "beyond" not in found.notes[2]


def test_what_a_scheduler_admits_is_its_default_or_stated(tmp_path):
    """On A100 vLLM admits 256 sequences, on H100 1,024; the note says so where more are sent."""
    burst = {**RATED, "request_rate": "", "arrival": "burst", "n_requests": "1000", "framework": "vllm", "release": ""}
    rows = (
        {**burst, "gpu": "a100-80gb", "max_sequences": ""},
        {**burst, "gpu": "a100-80gb", "max_sequences": "256"},
        {**burst, "gpu": "a100-80gb", "max_sequences": "1024"},
        {**burst, "gpu": "h100-80gb", "max_sequences": ""},
    )
    found = serving.predict_serving(serving.read_serving(table(tmp_path / "t.csv", *rows)))
    times = found.values["tpot_s"]
    assert times[0] == pytest.approx(times[1]) and times[2] > 1.5 * times[0], "more sequences share each step"
    told = ["max_sequences = 256, the default of the framework" in note for note in found.notes]
    assert told == [True, False, False, False]


def test_a_rate_far_beyond_saturation_waits_as_long_as_one_twice_beyond():
    """The power of the bound on the utilisation overflows in 32 bits, and nobody would wait."""
    twice, far = (float(bounded_utilisation(jnp.float32(rate))) for rate in (2.0, 1e4))
    assert twice == pytest.approx(far, rel=1e-5) and 0.97 < far < 1.0
    assert float(bounded_utilisation(jnp.float32(0.3))) == pytest.approx(0.3, rel=1e-5)
    assert np.isfinite(jax.grad(bounded_utilisation)(jnp.float32(1e4)))


def test_stages_of_a_pipeline_read_the_prompts_of_a_burst_side_by_side():
    burst = {"request_rate": 0.0, "at_limit": 1.0, "n_requests": 1000.0, "input_len": 400.0, "output_len": 3.0}
    whole, halves = (load(engine=serving.Engine(pp=pp), **burst) for pp in (1, 2))
    for found in (whole, halves):
        assert min(float(found.tpot.p50), float(found.tpot.mean)) > 0.0
        assert float(found.e2e.mean) == pytest.approx(float(found.ttft.mean + 2.0 * found.tpot.mean), rel=1e-5)
    # A prompt takes as long, but two are read at a time.
    assert float(halves.ttft.mean) < 0.8 * float(whole.ttft.mean)
