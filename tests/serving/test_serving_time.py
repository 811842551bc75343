"""Physics of serving: Little's law, sums of steps, scalings, cache, experts, memory and limits."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from serving_cases import DENSE, H100, LARGE, LATENT, USUAL, WINDOWS, times

import jaxscale as js
from jaxscale import serving
from jaxscale.hardware.formats import PRECISIONS
from jaxscale.models.model_catalogue import cached_width
from jaxscale.models.transformer import n_params
from jaxscale.serving.forward_pass import (
    EXPERT_TILE,
    engine_shares,
    experts_touched,
    stored_per_sequence,
    weight_times,
)
from jaxscale.serving.serving_coefficients import mixes_prompts
from jaxscale.serving.serving_memory import SharedPrefixes

MODELS = {"dense": DENSE, "latent": LATENT, "windows": WINDOWS, "hybrid": js.model("nemotron-h-56b")}
ONLINE = serving.Requests(concurrency=32, input_len=1000, output_len=500)


@pytest.mark.parametrize("name", MODELS)
def test_littles_law_closes(name):
    found = times(MODELS[name], serving.Engine(tp=8, copies=2, precision="fp8"), ONLINE)
    rate = found.throughput / ONLINE.output_len
    latency = found.ttft - found.waiting + (ONLINE.output_len - 1) * found.tpot
    assert float(rate * latency) == pytest.approx(float(found.n_sequences), rel=1e-6)
    assert float(found.n_sequences) == pytest.approx(32, rel=1e-6)
    assert float(found.e2e) == pytest.approx(float(found.ttft + 499 * found.tpot), rel=1e-6)


def test_a_static_batch_is_the_sum_of_its_steps():
    engine, n_out = serving.Engine(tp=2), 64.0
    load = serving.Requests(concurrency=4, input_len=512, output_len=n_out, continuous=0)
    found = times(DENSE, engine, load)

    def step(context):
        return serving.decode_pass(DENSE, engine, H100, USUAL, n_sequences=4.0, context=context).total

    explicit = float(jax.vmap(step)(512.0 + jnp.arange(1.0, n_out)).sum())
    first = serving.prefill_pass(DENSE, engine, H100, USUAL, n_sequences=4.0, input_len=512.0).total
    assert float(found.e2e) == pytest.approx(float(first) + explicit + USUAL.first_token, rel=1e-6)
    # With windows the step is not affine in the context, and the middle is only near the mean.
    short = jax.vmap(lambda s: serving.decode_pass(WINDOWS, engine, H100, USUAL, n_sequences=4.0, context=s).attention)
    contexts = jnp.arange(1.0, 300.0)
    assert float(short(contexts).mean()) != pytest.approx(float(short(jnp.asarray([150.0]))[0]), rel=1e-3)


def test_sparse_attention_reads_a_window_of_a_cache_that_holds_all():
    sparse, engine = js.model("glm-5"), serving.Engine(tp=8)
    assert float(sparse.window) == 2048.0
    read, stored = (float(of(sparse, engine, 8000.0)) for of in (serving.cache_per_sequence, stored_per_sequence))
    assert stored == pytest.approx(8000 * 576 * 2 * float(sparse.n_layers), rel=1e-6)
    assert read < 0.6 * stored
    plain = [float(of(WINDOWS, engine, 8000.0)) for of in (serving.cache_per_sequence, stored_per_sequence)]
    assert plain[0] == pytest.approx(plain[1], rel=1e-6), "negative control: a window drops the keys behind it"


def scaled(cluster, coefficients, factor):
    """Every rate times a factor, every fixed time divided by it."""
    chip = eqx.tree_at(
        lambda c: (c.peak_flops, c.hbm_bandwidth),
        cluster.chip,
        (cluster.chip.peak_flops * factor, cluster.chip.hbm_bandwidth * factor),
    )
    network = eqx.tree_at(lambda n: n.bandwidth, cluster.network, cluster.network.bandwidth * factor)
    fixed = ("layer_floor", "step_floor", "sequence_floor", "collective_latency", "link_ramp", "first_token")
    moved = [getattr(coefficients, name) / factor for name in fixed]
    changed = eqx.tree_at(lambda c: [getattr(c, name) for name in fixed], coefficients, moved)
    return eqx.tree_at(lambda c: (c.chip, c.network), cluster, (chip, network)), changed


@pytest.mark.parametrize("name", ["dense", "latent"])
@pytest.mark.parametrize("continuous", [0.0, 1.0])
def test_all_times_scale_with_all_rates(name, continuous):
    load = eqx.tree_at(lambda r: r.continuous, ONLINE, continuous)
    engine = serving.Engine(tp=4, attention_dp=2 if name == "latent" else 1)
    cluster, coefficients = scaled(H100, USUAL, 3.0)
    before, after = times(MODELS[name], engine, load), times(MODELS[name], engine, load, cluster, coefficients)
    for field in ("ttft", "tpot", "e2e"):
        assert float(getattr(before, field)) == pytest.approx(3.0 * float(getattr(after, field)), rel=1e-6)
    only_rates = times(MODELS[name], engine, load, cluster, USUAL)
    assert float(before.tpot) != pytest.approx(3.0 * float(only_rates.tpot), rel=1e-3)


def test_caches_have_their_published_sizes():
    """DeepSeek-V3 caches 70 kB per token in 16 bits, Llama 3 70B 328 kB: 61 (512 + 64) 2 and 80 2 8 128 2 byte."""
    engine = serving.Engine()
    per_token = [float(serving.cache_per_sequence(model, engine, 1.0)) for model in (LATENT, LARGE)]
    assert per_token == pytest.approx([61 * 576 * 2, 80 * 2 * 8 * 128 * 2])
    assert float(cached_width(LATENT)) == 576


def test_tensor_parallelism_splits_the_cache_up_to_the_key_value_heads():
    sizes = [float(serving.cache_per_sequence(LARGE, serving.Engine(tp=tp), 1000.0)) for tp in (1, 4, 8, 16)]
    assert sizes[0] / np.asarray(sizes) == pytest.approx([1, 4, 8, 8])
    latent = [float(serving.cache_per_sequence(LATENT, serving.Engine(tp=tp), 1000.0)) for tp in (1, 8)]
    assert latent[0] == pytest.approx(latent[1])


def test_windows_hold_no_more_than_a_window():
    engine = serving.Engine()
    short, long = (float(serving.cache_per_sequence(WINDOWS, engine, s)) for s in (128.0, 12800.0))
    # Half of the layers grow a hundredfold, half stay.
    assert long / short == pytest.approx(50.5)


def test_experts_touched_by_few_and_many_tokens():
    assert float(experts_touched(LATENT, 1.0)) == pytest.approx(8.0)
    assert float(experts_touched(LATENT, 1e5)) == pytest.approx(256.0)
    assert float(experts_touched(LATENT, 32.0)) == pytest.approx(256 * (1 - (1 - 8 / 256) ** 32))
    assert float(experts_touched(DENSE, 7.0)) == pytest.approx(1.0, rel=1e-4)


def test_weights_weigh_what_the_model_has():
    memory = serving.serving_memory(DENSE, serving.Engine(), H100, n_sequences=0.0, context=1000.0)
    assert float(memory.weights) == pytest.approx(2.0 * float(n_params(DENSE)), rel=1e-3)
    split = serving.serving_memory(DENSE, serving.Engine(tp=2, pp=2), H100, n_sequences=0.0, context=1000.0)
    assert float(split.weights) == pytest.approx(float(memory.weights) / 4)


def test_the_largest_batch_fills_the_memory_and_no_more():
    engine = serving.Engine(tp=2)
    batch = float(serving.max_batch(LARGE, serving.Engine(tp=8), H100, 4096.0))
    assert batch > 100
    most = float(serving.max_batch(DENSE, engine, H100, 2048.0))
    memory = serving.serving_memory(DENSE, engine, H100, n_sequences=most, context=2048.0)
    assert float(memory.total) == pytest.approx(0.92 * H100.chip.hbm_bytes, rel=1e-6)


def test_more_requests_than_fit_wait():
    engine = serving.Engine(tp=1, precision="bf16")
    room = times(DENSE, engine, serving.Requests(concurrency=1, input_len=8000, output_len=500)).max_batch
    over, full = (
        times(DENSE, engine, serving.Requests(concurrency=factor * room, input_len=8000, output_len=500))
        for factor in (2.0, 1.0)
    )
    # Twice the requests wait as long again, at the same time per token.
    assert float(over.tpot) == pytest.approx(float(full.tpot), rel=1e-6)
    served = full.ttft - full.waiting + 499 * full.tpot
    assert float(over.waiting - full.waiting) == pytest.approx(float(served), rel=1e-3)


def test_guessing_without_luck_costs_and_with_luck_pays():
    def tpot(draft, acceptance):
        load = eqx.tree_at(lambda r: (r.draft_tokens, r.acceptance), ONLINE, (float(draft), float(acceptance)))
        return float(times(LARGE, serving.Engine(tp=8), load).tpot)

    assert tpot(1, 0.0) > tpot(0, 0.7)
    assert tpot(1, 0.9) < 0.65 * tpot(0, 0.7)


def test_cached_prompts_are_not_worked_off_again():
    def ttft(hit):
        load = serving.Requests(concurrency=1, input_len=8000, output_len=10, prefix_hit=hit)
        return float(times(LARGE, serving.Engine(tp=8), load).ttft)

    assert ttft(0.9) < 0.5 * ttft(0.0)


def test_sequences_of_few_prefixes_hold_as_many_as_random_draws():
    random = np.random.default_rng(0)
    for groups, n in ((1, 5), (8, 20), (150, 60)):
        drawn = np.mean([len(np.unique(random.integers(groups, size=n))) for _ in range(4000)])
        assert float(SharedPrefixes(6000.0, float(groups)).held(float(n))) == pytest.approx(drawn, rel=0.01)


def test_memory_admits_sequences_of_one_prefix_by_their_own_tokens():
    engine, context = serving.Engine(precision="fp8"), 6500.0
    one, usual = SharedPrefixes(6000.0, 1.0), (DENSE, engine, js.cluster("h100-80gb", 1), context, 0.0)
    prefix, each = (float(stored_per_sequence(DENSE, engine, length)) for length in (6000.0, context))
    room = float(serving.max_batch(*usual)) * each
    assert float(serving.max_batch(*usual, one)) == pytest.approx((room - prefix) / (each - prefix), rel=1e-3)
    many, none = SharedPrefixes(6000.0, 1e9), SharedPrefixes(6000.0, 0.0)
    for unshared in (many, none):
        assert float(serving.max_batch(*usual, unshared)) == pytest.approx(room / each, rel=1e-3)


def test_prefixes_beyond_memory_are_read_again():
    """Hits fall with the number of prefixes, from all of them to none, and the first token comes later."""

    def found(groups, prompt=6500.0):
        load = serving.Requests(8.0, prompt, 500, prefix_hit=6000 / 6500, prefix_groups=groups)
        return times(DENSE, serving.Engine(), load, js.cluster("h100-80gb", 1))

    fresh, first = np.asarray([(found(n).fresh, found(n).ttft) for n in (0.0, 1.0, 20.0, 100.0, 200.0, 1e6)]).T
    assert fresh[:3] == pytest.approx(500.0, rel=1e-4), "room for 65 prefixes of 0.8 GB"
    assert fresh[-1] == pytest.approx(6500.0, rel=0.02)
    assert (np.diff(fresh) > -1e-3).all() and (np.diff(first) > -1e-6).all() and first[-1] > 3.0 * first[0]
    assert float(found(200.0, 65.0).fresh) == pytest.approx(5.0, rel=1e-4), "negative control: short ones all fit"


def test_a_draft_token_takes_a_layer_and_the_logits_head():
    engine = serving.Engine(tp=8)

    def step(tokens):
        return serving.decode_pass(LARGE, engine, H100, USUAL, n_sequences=1.0, context=1000.0, tokens_each=tokens)

    plain, guessing = step(1.0), step(4.0)
    assert float(plain.drafts) == 0.0
    layer = (float(guessing.weights + guessing.attention + guessing.collectives)) / 80 + USUAL.layer_floor
    head = 128256 * 8192 * 2.0 / 8 / (USUAL.weight_bandwidth * float(H100.chip.hbm_bandwidth))
    assert float(guessing.drafts) == pytest.approx(3.0 * (layer + head), rel=1e-5)


def test_pipelines_lower_no_latency_but_raise_throughput():
    load = serving.Requests(concurrency=128, input_len=500, output_len=500)
    one, four = (times(LARGE, serving.Engine(tp=2, pp=pp, precision="fp8"), load) for pp in (1, 4))
    assert float(four.throughput) > 1.3 * float(one.throughput)
    single = serving.Requests(concurrency=1, input_len=500, output_len=500, continuous=0)
    one, four = (times(LARGE, serving.Engine(tp=2, pp=pp, precision="fp8"), single) for pp in (1, 4))
    assert float(four.tpot) >= float(one.tpot)


@pytest.mark.parametrize("temperature", [0.0, 0.1])
def test_gradients_agree_with_differences(temperature):
    def log_tpot(logs):
        batch, bandwidth, width, heads = jnp.exp(logs)
        model = js.Transformer(
            32, width, 32, n_kv_heads=heads, head_dim=128, d_ff=14336, gated_mlp=1, vocab_size=128256
        )
        chip = eqx.tree_at(lambda c: c.hbm_bandwidth, H100.chip, bandwidth)
        cluster = eqx.tree_at(lambda c: c.chip, H100, chip)
        load = serving.Requests(concurrency=batch, input_len=1000.0, output_len=500.0)
        found = serving.serving_time(model, serving.Engine(tp=2), cluster, load, USUAL, temperature)
        return jnp.log(found.tpot) + jnp.log(found.ttft)

    point = jnp.log(jnp.asarray([20.0, 3.35e12, 4096.0, 8.0]))
    gradient = jax.jit(jax.grad(log_tpot))(point)
    function = jax.jit(log_tpot)
    differences = [(function(point.at[i].add(1e-5)) - function(point.at[i].add(-1e-5))) / 2e-5 for i in range(4)]
    assert np.asarray(gradient) == pytest.approx(np.asarray(differences), rel=1e-4, abs=1e-7)
    assert np.all(np.asarray(gradient) != 0.0)


def all_reduce(n_bytes, **coefficients):
    """Time of one of the 64 all-reduces of a decode step of Llama 3 8B on 8 chips [s]."""
    changed = eqx.tree_at(lambda c: [getattr(c, name) for name in coefficients], USUAL, list(coefficients.values()))
    n_sequences = n_bytes / (2.0 * DENSE.d_model)
    step = serving.decode_pass(DENSE, serving.Engine(tp=8), H100, changed, n_sequences=n_sequences, context=100.0)
    return float(step.collectives) / 64.0


@pytest.mark.parametrize(("precision", "halvings"), [("bf16", 0.0), ("fp8", 1.0), ("fp4", 2.0)])
def test_narrow_formats_reach_a_smaller_part_of_a_higher_peak(precision, halvings):
    """Matmuls of a long prompt on B200 take (1 / 2 narrow)^h of those in 16 bits, whose peak doubles h times."""
    chips = js.cluster("b200", 8)

    def work(word, **changed):
        usual = eqx.tree_at(lambda c: [getattr(c, name) for name in changed], USUAL, list(changed.values()))
        engine = serving.Engine(precision=word)
        return serving.prefill_pass(DENSE, engine, chips, usual, n_sequences=1.0, input_len=8192.0).weights

    wide = work("bf16", narrow_matmul=1.0)
    for part in (1.0, 0.7):
        expected = (2.0 * part) ** -halvings
        # The head, one token of 8,192, stays in 16 bits.
        assert float(work(precision, narrow_matmul=part) / wide) == pytest.approx(expected, rel=2e-3)


def test_tiles_of_experts_are_filled_by_half_in_the_end():
    """Twice the tokens cost less than twice the time: each of 256 experts pays for half a tile of rows once."""

    def work(model, n_tokens):
        engine = serving.Engine()
        tokens = {"n_tokens": jnp.asarray(n_tokens), "n_logits": 0.0, "efficiency": USUAL.prefill_matmul}
        return weight_times(model, engine, H100, engine_shares(model, engine, H100), USUAL, **tokens)[1]

    saved = float(2.0 * work(LATENT, 8192.0) - work(LATENT, 16384.0))
    flops = 2.0 * LATENT.n_experts * 0.5 * EXPERT_TILE * 58 * 3 * 7168 * 2048
    rate = H100.chip.peak_flops[PRECISIONS.index("bf16")] * USUAL.prefill_matmul * USUAL.expert_bandwidth
    assert saved == pytest.approx(float(flops / rate), rel=1e-3)
    assert float(2.0 * work(DENSE, 8192.0) - work(DENSE, 16384.0)) == pytest.approx(0.0, abs=1e-3 * saved)


def test_ranks_in_lockstep_wait_for_the_prompts_of_all():
    """Eight ranks with lockstep 1 wait for as many prompts as one rank of eight times their sequences."""

    def prompts(ranks, lockstep):
        load = serving.Requests(concurrency=64, input_len=8192, output_len=1e6)
        usual = eqx.tree_at(lambda c: (c.lockstep, c.first_token), USUAL, (lockstep, 0.0))
        # With passes of their own, prompts take their whole time.
        engine = serving.Engine(attention_dp=ranks, precision="fp8", mixed_passes=0.0)
        found = times(LATENT, engine, load, coefficients=usual)
        return float((found.ttft - found.waiting - found.decode.total) / found.prefill.total)

    alone, together, one = prompts(8, 0.0), prompts(8, 1.0), prompts(1, 0.0)
    assert alone == pytest.approx(1.0 + 8 * USUAL.queue, rel=1e-2)
    assert together == pytest.approx(1.0 + 64 * USUAL.queue, rel=1e-2)
    assert prompts(1, 1.0) == pytest.approx(one, rel=1e-6), "a rank by itself waits for none"


@pytest.mark.parametrize(
    ("latency", "measured"),
    [
        # All-reduce of 1, 4 and 16 MiB on 8 H100 (NVIDIA aiconfigurator-core 0.12.0): NCCL 2.27, TensorRT-LLM 1.0.
        (7.3e-6, (25.4e-6, 50.5e-6, 121.9e-6)),
        (2.8e-6, (26.0e-6, 51.9e-6, 122.3e-6)),
    ],
)
def test_links_reach_their_bandwidth_with_large_messages_alone(latency, measured):
    sizes = (2.0**20, 2.0**22, 2.0**24)
    with_ramp, without = (
        [all_reduce(size, collective_latency=latency, link=1.0, link_ramp=ramp) for size in sizes]
        for ramp in (4e-5, 1e-12)
    )
    assert with_ramp == pytest.approx(measured, rel=0.25)
    assert with_ramp[2] == pytest.approx(measured[2], rel=0.1)
    assert without[2] < 0.75 * measured[2], "latency and full bandwidth alone are too quick"
    # The ramp grows as the root of the message.
    alone = [a - b for a, b in zip(with_ramp, without, strict=True)]
    assert alone[1] == pytest.approx(2.0 * alone[0], rel=1e-3)
    assert alone[2] == pytest.approx(2.0 * alone[1], rel=1e-3)


def test_a_single_client_waits_for_no_prompt_but_its_own():
    """A client that asks for two tokens at a time is nearly always reading a prompt, and nobody is ahead of it."""
    alone = times(DENSE, serving.Engine(), serving.Requests(concurrency=1, input_len=30_000, output_len=2))
    empty = times(DENSE, serving.Engine(), serving.Requests(concurrency=1, input_len=30_000, output_len=2000))
    assert float(alone.behind) == pytest.approx(float(empty.behind), rel=1e-5)
    # Two clients wait for at most one prompt more.
    both = times(DENSE, serving.Engine(), serving.Requests(concurrency=2, input_len=30_000, output_len=2))
    prompt = float(USUAL.pace * both.prefill.total)
    assert float(alone.behind) < float(both.behind) <= 2.0 * float(alone.behind) + prompt


def test_prompts_beside_running_sequences_read_the_weights_once():
    """A short prompt in a step that reads for its sequences costs next to nothing; alone it costs a read."""

    def added(n_sequences, engine, length=8.0, model=DENSE, **drafts):
        prompt = {"n_sequences": n_sequences, "n_prompts": 1.0, "input_len": length, **drafts}
        return float(serving.prompts_in_step(model, engine, H100, USUAL, **prompt))

    mixed, apart = serving.Engine(), serving.Engine(mixed_passes=0.0)
    alone = serving.prefill_pass(DENSE, mixed, H100, USUAL, n_sequences=1.0, input_len=8.0)
    assert added(0.0, mixed) == pytest.approx(float(alone.total - alone.floors), rel=1e-3)
    assert added(16.0, mixed) < 1e-3 * added(0.0, mixed)
    assert added(16.0, apart) == pytest.approx(float(alone.total - alone.floors), rel=1e-6), "negative control"
    # The flops of a long prompt are hidden behind the read of the step in part.
    long = serving.prefill_pass(DENSE, mixed, H100, USUAL, n_sequences=1.0, input_len=4096.0)
    read = serving.decode_pass(DENSE, mixed, H100, USUAL, n_sequences=16.0, context=1.0).weights
    assert float(long.total - long.floors - read) < added(16.0, mixed, 4096.0) < float(long.total - long.floors)
    # A step takes the time of its tokens, whichever sequences they are of.
    assert added(8.0, mixed, 4096.0, tokens_each=2.0) == pytest.approx(added(16.0, mixed, 4096.0), rel=1e-9)
    # Of mixtures, prompts use further experts.
    assert added(16.0, mixed, model=LATENT) > 2.0 * added(512.0, mixed, model=LATENT)


@pytest.mark.parametrize(
    ("level", "mixed"),
    [
        ("vllm 0.6.3", False),
        ("vllm 0.11.0", True),
        ("vllm ", True),
        ("sglang 0.5.9", False),
        ("tensorrt-llm 0.14.0", True),
        ("own 1", True),
    ],
)
def test_frameworks_mix_prompts_by_their_release(level, mixed):
    assert mixes_prompts(level) is mixed


def test_slopes_of_a_single_client_are_finite():
    def first(clients):
        load = serving.Requests(concurrency=clients, input_len=512, output_len=128)
        return serving.serving_time(LATENT, serving.Engine(tp=8), H100, load, USUAL).ttft

    assert np.isfinite(jax.grad(first)(1.0)) and np.isfinite(jax.grad(first)(2.0))


@pytest.mark.parametrize("continuous", [0.0, 1.0])
def test_ranks_without_a_request_answer_nothing(continuous):
    def found(clients):
        load = serving.Requests(concurrency=clients, input_len=512, output_len=128, continuous=continuous)
        return times(LATENT, serving.Engine(attention_dp=8, precision="fp8"), load)

    one, eight = found(1.0), found(8.0)
    assert float(one.throughput * one.e2e) == pytest.approx(128.0, rel=5e-3), "Little's law of one client"
    assert float(8.0 * one.throughput) == pytest.approx(float(eight.throughput), rel=1e-6)
    assert float(one.n_sequences) == 1.0
