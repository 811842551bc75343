"""Peak memory against closed forms: Korthikanti's activations, ZeRO's shards, microbatches in flight."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from registry import Configuration, as_arrays, changed, ideal_coefficients, random_configurations, stack

from jaxscale.base.arrays import as_arrays as arrays
from jaxscale.calibration.coefficients import prior_medians
from jaxscale.costs.activations import LayerBytes, layer_bytes, microbatches_in_flight, reversing_bytes
from jaxscale.costs.memory import MOMENTS, Memory, held_at_moments, memory
from jaxscale.hardware.catalogue import cluster
from jaxscale.models import model
from jaxscale.models.transformer import Transformer, n_params
from jaxscale.plans.local import local_plan
from jaxscale.plans.plan import Plan

compiled = jax.jit(lambda case: memory(*case))
SUMS = 4.0
"""Of a softmax's sum that fused attention keeps per token and head [byte]."""


def of(shape: Transformer, plan: Plan, **coefficients: float) -> Memory:
    """Memory without framework or stage boundaries on H100s."""
    machine = cluster("h100-80gb", plan.n_chips)
    return compiled(as_arrays(Configuration(shape, plan, machine, ideal_coefficients(**coefficients))))


def layer_activation_bytes(local, coefficients):
    """Stored activations of the average layer [byte]."""
    return layer_bytes(local, coefficients).total


@pytest.fixture(scope="module")
def batch() -> Configuration:
    """Random valid configurations."""
    return stack(random_configurations(300))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_terms_add_up_to_the_total(batch: Configuration, dtype: type):
    peak = jax.jit(jax.vmap(lambda case: memory(*case)))(as_arrays(batch, dtype))
    added = np.sum([np.asarray(term, np.float64) for term in peak.terms().values()], axis=0)
    np.testing.assert_allclose(added, peak.total, rtol=1e-6)
    assert (np.abs((added - peak.weights) / peak.total - 1.0) > 1e-6).mean() > 0.9
    assert all((np.asarray(term) >= 0.0).all() for term in peak.terms().values())


def korthikanti(tokens: float, d: float, heads: float, length: float, tp: float, parallel: bool, scores: bool) -> float:
    """Activation bytes of one layer, arXiv 2205.05198, equations 1, 2, 4 and (without scores) 6."""
    split = tp if parallel else 1.0
    core = 5.0 * heads * length / (d * tp) if scores else SUMS * heads / (d * tp)
    return tokens * d * (10.0 / split + 24.0 / tp + core)


@pytest.mark.parametrize("tp", [1, 8])
@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("scores", [False, True])
def test_activations_follow_korthikanti(tp: int, parallel: bool, scores: bool):
    shape = Transformer(48, 6144, 64, 2048)
    plan = Plan(tp=tp, micro_batch_size=4, sequence_parallel=parallel, flash_attention=not scores, dropout=True)
    got = float(layer_activation_bytes(local_plan(*arrays((shape, plan))), ideal_coefficients()))
    expected = korthikanti(4.0 * 2048.0, 6144.0, 64.0, 2048.0, float(tp), parallel, scores)
    assert got == pytest.approx(expected, rel=1e-12)
    assert got != pytest.approx(korthikanti(4.0 * 2048.0, 6144.0, 64.0, 2048.0, tp + 1.0, parallel, scores), rel=1e-3)


@pytest.mark.parametrize(("precision", "width"), [("bf16", 2.0), ("fp8", 1.0), ("fp4", 0.5)])
@pytest.mark.parametrize("trained", [0.0, 1.0])
def test_inputs_of_matmuls_are_kept_as_these_read_them(precision: str, width: float, trained: float):
    """Those of norms, 4 d, attention and gates, of which three are kept for each output, stay in 16 bits.

    Of weights that are frozen no gradient needs an input.
    """
    shape = Transformer(48, 6144, 64, 2048, d_ff=16384, gated_mlp=True, trainable_share=trained)
    got = float(layer_activation_bytes(local_plan(*arrays((shape, Plan(precision=precision)))), ideal_coefficients()))
    read = trained * width
    per_token = 6144.0 * (4.0 + 2.0 * read + 4.0 * 2.0) + 16384.0 * (3.0 * 2.0 + read) + SUMS * 64.0
    assert got == pytest.approx(2048.0 * per_token, rel=1e-9)


def test_a_fused_gate_keeps_its_inputs_alone():
    """Outputs of two matrices and their product, 6 f bytes instead of 8 f (Megatron-Core, fused_bias_swiglu.py)."""
    gated = Transformer(48, 6144, 64, 2048, d_ff=16384, gated_mlp=True)
    plain = Transformer(48, 6144, 64, 2048, d_ff=16384)
    for shape, saved in ((gated, 2.0 * 2048 * 16384), (plain, 0.0)):
        held = [
            float(layer_activation_bytes(local_plan(*arrays((shape, Plan(fused_glu=fused)))), ideal_coefficients()))
            for fused in (False, True)
        ]
        assert held[0] - held[1] == pytest.approx(saved, rel=1e-9)


def test_a_mixture_keeps_a_copy_of_its_tokens_for_every_expert():
    dense = Transformer(48, 6144, 64, 2048, d_ff=8192)
    mixture = Transformer(48, 6144, 64, 2048, d_ff_expert=4096, n_experts=8, moe_top_k=2)
    held = [
        float(layer_activation_bytes(local_plan(*arrays((shape, Plan()))), ideal_coefficients()))
        for shape in (dense, mixture)
    ]
    router = 8.0 * 8.0 + 16.0 * 2.0
    assert held[1] - held[0] == pytest.approx(2048.0 * (2.0 * 2.0 * 6144.0 + router), rel=1e-9)


@pytest.mark.parametrize(("ep", "split"), [(1, 8.0), (8, 1.0)])
def test_ranks_that_split_an_expert_keep_its_tokens_whole(ep: int, split: float):
    """Copies of a token for its two experts, of its full width, on each of the ranks that share these."""
    shape, coefficients = model("mixtral-8x7b"), prior_medians()
    plan = Plan(tp=8, ep=ep, sequence_parallel=True)
    two, three = (
        layer_activation_bytes(local_plan(*arrays((changed(shape, moe_top_k=k), plan))), coefficients)
        for k in (2.0, 3.0)
    )
    each = shape.seq_len * (2.0 * 2.0 * 2.0 * shape.d_ff_expert + 2.0 * split * shape.d_model + 16.0) / 8.0
    np.testing.assert_allclose(three - two, coefficients.activation_factor * each, rtol=1e-4)


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (Plan(pp=4, n_microbatches=16), 1.0),
        (Plan(pp=4, n_microbatches=16, schedule="gpipe"), 16.0),
        (Plan(pp=4, vpp=8, n_microbatches=16, schedule="interleaved"), 29.0 / 8.0),
        (Plan(pp=2, vpp=16, n_microbatches=2, schedule="interleaved"), 31.0 / 16.0),
        (Plan(n_microbatches=16), 1.0),
    ],
)
def test_microbatches_at_the_end(plan: Plan, expected: float):
    """An interleaved last stage holds (vpp - 1) pp + 1 of its chunks, each of a vpp-th of its layers."""
    assert microbatches_in_flight(arrays(plan), plan.pp - 1.0) == pytest.approx(expected)


def test_values_and_output_are_kept_at_their_own_width():
    """Queries and keys of DeepSeek-V3 are 192 wide, values and what attention puts out 128 (arXiv 2412.19437)."""
    held = []
    for width in (192, 128):
        shape = Transformer(61, 7168, 128, 4096, head_dim=192, v_head_dim=width)
        held.append(float(layer_activation_bytes(local_plan(*arrays((shape, Plan()))), ideal_coefficients())))
    assert held[0] - held[1] == pytest.approx(2.0 * 4096.0 * 2.0 * 128.0 * (192.0 - 128.0), rel=1e-6)


def test_selective_recomputation_drops_the_scores():
    shape = Transformer(48, 6144, 64, 2048)
    plain = Plan(flash_attention=False, recompute="selective")
    fused = Plan(flash_attention=True)
    held = [layer_activation_bytes(local_plan(*arrays((shape, plan))), ideal_coefficients()) for plan in (plain, fused)]
    # Fused attention keeps the sums of its softmax besides.
    assert float(held[1] - held[0]) == pytest.approx(SUMS * 2048.0 * 64.0, rel=1e-6)


@pytest.mark.parametrize(("precision", "width"), [("bf16", 18.0), ("fp8", 18.0), ("tf32", 16.0)])
def test_weights_gradients_and_moments_take_eighteen_bytes(precision: str, width: float):
    """Rajbhandari et al. 2020, section 3.1, with gradients accumulated in 32 bits: 2 + 4 + 12 bytes per parameter.

    Weights of 32 bits need no copy: 4 + 4 + 8.
    """
    shape = model("llama3-8b")
    peak = of(shape, Plan(precision=precision, n_microbatches=2))
    held = float(n_params(shape)) - shape.d_model * (2.0 * shape.n_layers + 1.0)  # norms left out
    assert float(peak.weights + peak.gradients + peak.optimizer) == pytest.approx(width * held, rel=1e-9)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_zero_shards_one_state_after_the_other(stage: int):
    shape = model("llama3-8b")
    whole, sharded = (of(shape, Plan(dp=64, zero_stage=one, n_microbatches=2)) for one in (0, stage))
    for first, name in enumerate(("optimizer", "gradients", "weights"), start=1):
        divisor = 64.0 if stage >= first else 1.0
        assert float(getattr(sharded, name)) == pytest.approx(float(getattr(whole, name)) / divisor, rel=1e-9)


def test_a_shard_group_shards_less_than_all_replicas():
    shape = model("llama3-8b")
    hybrid = of(shape, Plan(dp=64, zero_stage=3, shard_group=8))
    assert float(hybrid.weights) == pytest.approx(float(of(shape, Plan()).weights) / 8.0, rel=1e-9)


@pytest.mark.parametrize(("group", "held"), [(64, 1.0), (16, 4.0), (8, 8.0), (4, 8.0)])
def test_a_shard_group_shards_experts_over_the_replicas_inside_it(group: int, held: float):
    """With ep = 8 a group of 64 chips has 8 replicas of each expert, one of 8 or fewer a single one."""
    shape = model("mixtral-8x7b")
    whole, hybrid = (of(shape, Plan(dp=64, ep=8, zero_stage=3, shard_group=g)) for g in (64, group))
    experts = 32 * 3 * 4096 * 14336  # one of the eight on each chip
    dense = float(n_params(shape)) - 8 * experts - 4096 * 65
    grown = float(hybrid.weights - whole.weights)
    assert grown == pytest.approx(2.0 * (experts / 8 * (held - 1.0) + dense / 64 * (64 / group - 1.0)), rel=1e-3)


def test_tensor_and_pipeline_parallelism_split_the_weights():
    shape = model("llama3-70b")
    layers = of(shape, Plan()).weights - 2.0 * 2.0 * shape.vocab_size * shape.d_model
    split = of(shape, Plan(tp=8, pp=4, n_microbatches=8)).weights - 2.0 * shape.vocab_size * shape.d_model / 8.0
    assert float(split) == pytest.approx(float(layers) / 32.0, rel=1e-9)


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (Plan(pp=8, n_microbatches=64), 8.0),
        (Plan(pp=8, n_microbatches=4), 4.0),
        (Plan(pp=8, n_microbatches=64, schedule="gpipe"), 64.0),
        (Plan(pp=1, n_microbatches=64), 1.0),
        # Korthikanti et al. 2022, section 4.2.3: 1 + (p - 1) / (p v) times the layers of 1F1B's first stage.
        (Plan(pp=8, vpp=2, n_microbatches=64, schedule="interleaved"), 8.0 * (1.0 + 7.0 / 16.0)),
        (Plan(pp=8, vpp=4, n_microbatches=64, schedule="interleaved"), 8.0 * (1.0 + 7.0 / 32.0)),
        # DeepSeek-AI 2024, table 2: one more than 1F1B.
        (Plan(pp=8, n_microbatches=64, schedule="dualpipe"), 9.0),
    ],
)
def test_microbatches_in_flight(plan: Plan, expected: float):
    assert float(microbatches_in_flight(plan, 0.0)) == pytest.approx(expected, rel=1e-9)


SLOW_HOST, FAST_HOST = 1.0, 0.0
"""Time to launch a layer, far above and below what an H100 takes for one [s]."""


def transient_bytes(plan: Plan, host: float) -> float:
    """What transient activations take per element of the residual stream of a microbatch [byte]."""
    shape, kept = model("llama3-70b"), {"queued_bytes": 40.0, "host_time_layer": host}
    plan = changed(plan, loss_bytes=0.0)
    without, buffered = of(shape, plan, host_time_layer=host), of(shape, plan, **kept)
    elements = float(plan.micro_batch_size) * shape.seq_len * shape.d_model
    return float(buffered.activations - without.activations) / elements


@pytest.mark.parametrize(("stages", "share"), [(1.0, 0.0), (2.0, 0.0), (4.0, 0.5), (16.0, 0.875)])
def test_buffers_of_collectives_saturate_with_microbatches_in_flight(stages: float, share: float):
    """On every tensor-parallel rank whole."""
    plan = Plan(tp=8, pp=stages, micro_batch_size=2, n_microbatches=32)
    assert transient_bytes(plan, SLOW_HOST) == pytest.approx(40.0 * share, rel=1e-9)


@pytest.mark.parametrize("stages", [1.0, 2.0, 4.0])
def test_buffers_of_collectives_wait_for_chips_that_hosts_are_ahead_of(stages: float):
    plan = Plan(tp=8, pp=stages, micro_batch_size=2, n_microbatches=32)
    assert transient_bytes(plan, FAST_HOST) == pytest.approx(40.0, rel=1e-9)
    alone = changed(plan, tp=1.0)
    assert transient_bytes(alone, FAST_HOST) == transient_bytes(alone, SLOW_HOST) == 0.0
    last = changed(plan, n_microbatches=stages)
    assert transient_bytes(last, FAST_HOST) == pytest.approx(transient_bytes(last, SLOW_HOST), rel=1e-9)


@pytest.mark.parametrize(("precision", "width"), [("fp32", 4.0), ("bf16", 2.0), ("fp8", 1.0), ("fp4", 0.5)])
def test_frozen_weights_take_the_width_of_the_matmuls(precision: str, width: float):
    shape = model("llama3-8b")
    adapters = changed(shape, trainable_share=0.0)
    trained, frozen = float(of(shape, Plan()).weights), float(of(adapters, Plan(precision=precision)).weights)
    assert frozen == pytest.approx(trained * width / 2.0, rel=1e-9)


def at_moments(shape: Transformer, plan: Plan, **coefficients: float) -> dict[str, dict[str, float]]:
    """What stands at each moment by the names of the terms, where hosts lead no chip."""
    held = held_at_moments(local_plan(*arrays((shape, plan))), ideal_coefficients(**coefficients), 0.0)
    return {moment: {name: float(term[place]) for name, term in held.items()} for place, moment in enumerate(MOMENTS)}


def test_the_peak_is_what_stands_at_the_fullest_moment():
    """Its terms are those of that moment alone: no logits where a layer is reversed, no activations in an update."""
    shape, seen = model("llama3-8b"), set()
    for plan in (Plan(), Plan(micro_batch_size=8, recompute="full"), Plan(recompute="full"), Plan(tp=8)):
        moments = at_moments(shape, plan)
        fullest = max(moments, key=lambda moment: sum(moments[moment].values()))
        seen.add(fullest)
        peak = of(shape, plan)
        assert {name: float(term) for name, term in peak.terms().items()} == pytest.approx(moments[fullest], rel=1e-6)
        assert float(peak.total) == pytest.approx(sum(moments[fullest].values()), rel=1e-6)
        assert (
            moments["loss"]["logits"]
            > 0.0
            == moments["reversing, last stage"]["logits"]
            == moments["optimizer, middle"]["activations"]
        )
    assert len(seen) > 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_smooth_peak_is_little_more_than_the_fullest_moment(dtype: type):
    cases = as_arrays(stack(random_configurations(50)), dtype)
    exact, smooth = (jax.jit(jax.vmap(lambda case, t=t: memory(*case, temperature=t)))(cases) for t in (0.0, 0.01))
    ratio = np.asarray(smooth.total, np.float64) / np.asarray(exact.total, np.float64)
    assert (ratio > 0.97).all() and (ratio < 1.06).all() and (ratio > 1.0 + 1e-5).any()


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("tp", [1, 4])
@pytest.mark.parametrize("stored", [0.0, 1e12])
def test_reversing_a_layer_holds_the_gradients_counted_one_by_one(gated: bool, tp: int, stored: float):
    """The larger of two moments, in tensors of 16 bits of t tokens, d and f / tp.

    At the gate, all activations of the MLP are still stored, and there are the gradients of the product's other factor
    and of one matrix. At the input these are gone; there are gradients of the MLP's one or two inner tensors, of the
    residual stream and of its input, and of its two or three matrices. With the stream split, three gathered tensors.
    """
    t, d, f = 2 * 512, 256, 1024
    shape = Transformer(8, d, 8, 512, d_ff=f, gated_mlp=gated)
    local = local_plan(shape, Plan(tp=tp, micro_batch_size=2, sequence_parallel=True))
    matrix, inner, stream = d * f // tp, t * f // tp, t * d // tp
    at_gate = inner * gated + matrix
    at_input = inner * (1 + gated) + 2 * stream + matrix * (2 + gated)
    expected = 2 * max(at_gate, at_input - stored / 2) + 3 * 2 * (t * d - stream)
    found = reversing_bytes(local, LayerBytes(jnp.asarray(0.0), jnp.asarray(stored)))
    assert float(found) == pytest.approx(expected, rel=1e-6)


def test_gradients_stand_at_the_loss_where_microbatches_came_before():
    """One microbatch makes them anew; several, or a buffer of them, hold them from the first on."""
    shape = model("llama3-8b")
    anew, several, buffered = (
        at_moments(shape, plan) for plan in (Plan(), Plan(n_microbatches=2), Plan(kept_gradients=True))
    )
    assert (
        anew["loss"]["gradients"] == 0.0 < anew["last layer"]["gradients"] < anew["optimizer, first stage"]["gradients"]
    )
    assert several["loss"]["gradients"] == buffered["loss"]["gradients"] == anew["optimizer, first stage"]["gradients"]


def test_copies_of_gradients_are_for_replicas():
    shape, copied = model("llama3-8b"), {"gradient_copy_bytes": 2.0, "n_microbatches": 2}
    alone, more = (of(shape, Plan(dp=dp, **copied)).gradients for dp in (1, 8))
    assert float(more) == pytest.approx(1.5 * float(alone), rel=1e-9)


def test_gpipe_holds_more_than_1f1b():
    """All 64 microbatches of the ten layers of a stage in place of eight."""
    shape = model("llama3-70b")
    plans = {word: Plan(tp=8, pp=8, n_microbatches=64, schedule=word, loss_bytes=0) for word in ("gpipe", "1f1b")}
    layer = float(layer_activation_bytes(local_plan(*arrays((shape, plans["1f1b"]))), ideal_coefficients()))
    gpipe, other = (float(of(shape, plan).activations) for plan in plans.values())
    assert gpipe - other == pytest.approx((64 - 8) * 10 * layer, rel=1e-3)


def test_gpipe_holds_all_logits_and_1f1b_those_of_one_microbatch():
    shape = model("llama3-8b")
    gpipe, other = (at_moments(shape, Plan(tp=2, pp=4, n_microbatches=8, schedule=word)) for word in ("gpipe", "1f1b"))
    assert gpipe["loss"]["logits"] == pytest.approx(8.0 * other["loss"]["logits"], rel=1e-9)


@pytest.mark.parametrize("width", [2.0, 14.0])
def test_logits_take_what_their_loss_makes_of_them(width: float):
    """The whole vocabulary of a microbatch, or of an eighth of it."""
    shape = model("llama3-8b", seq_len=16384)
    for chunked, tokens in ((False, 16384.0), (True, 2048.0)):
        held = at_moments(shape, Plan(loss_bytes=width, chunked_loss=chunked))["loss"]["logits"]
        assert held == pytest.approx(width * tokens * shape.vocab_size, rel=1e-9)


def test_autocasts_keep_a_wide_stream_and_a_copy_for_each_matmul():
    """Per token 8 d more: 32-bit inputs of two norms, 4 d, and of five matmuls the inputs, 10 d instead of 4 d.

    At the loss a 16-bit copy of every weight but the embedding stands too.
    """
    shape, per_layer = model("llama3-8b"), []
    for autocast in (False, True):
        local = local_plan(*arrays((shape, Plan(autocast=autocast))))
        per_layer.append(float(layer_activation_bytes(local, ideal_coefficients())))
    elements = float(shape.seq_len * shape.d_model)
    assert per_layer[1] - per_layer[0] == pytest.approx((4.0 + 6.0) * elements, rel=1e-9)
    casts = at_moments(shape, Plan(autocast=True))["loss"]["buffers"] - at_moments(shape, Plan())["loss"]["buffers"]
    weights = float(local_plan(shape, Plan()).params.layers) + shape.vocab_size * shape.d_model
    assert casts == pytest.approx(2.0 * weights, rel=1e-9)


def test_weights_in_32_bits_are_their_own_master_copy():
    """4 and 8 byte in place of 2 and 12 (Rajbhandari et al. 2020, section 3.1)."""
    shape = model("llama3-8b")
    pair, alone = of(shape, Plan()), of(shape, Plan(wide_weights=True))
    assert float(alone.weights) == pytest.approx(2.0 * float(pair.weights), rel=1e-9)
    assert float(alone.optimizer) == pytest.approx(float(pair.optimizer) * 8.0 / 12.0, rel=1e-9)


def test_quantised_weights_leave_embeddings_in_16_bits():
    """NF4 takes half a byte and 4 byte for each 64 weights; one matrix stands as matmuls read it."""
    shape = changed(model("llama3-8b"), trainable_share=0.0)
    local = local_plan(shape, Plan())
    layers, embedding = float(local.params.layers), float(local.params.embedding)
    one = 2.0 * shape.d_model * shape.d_ff
    held = float(of(shape, Plan(weight_bytes=0.5)).weights)
    assert held == pytest.approx(0.5625 * (layers + embedding) + 1.5 * embedding + one, rel=2e-2)
    assert held == pytest.approx(0.5625 * layers + 2.0 * embedding + one, rel=3e-2)
    assert float(of(shape, Plan()).weights) == pytest.approx(2.0 * (layers + embedding), rel=1e-9)


def test_a_peak_by_the_allocator_leaves_out_what_the_driver_holds():
    peak = of(model("llama3-8b"), Plan(), framework_bytes=2e9)
    assert float(peak.measured(1.0)) == float(peak.total)
    assert float(peak.total - peak.measured(0.0)) == pytest.approx(2e9)


def test_full_recomputation_keeps_two_bytes_per_element():
    """Korthikanti et al. 2022, table 2: full recomputation stores `2 s b h` per layer."""
    shape = Transformer(100, 6144, 64, 2048, vocab_size=1)
    kept = at_moments(shape, Plan(recompute="full"))["loss"]["activations"]
    ends = 2.0 * 2.0 * 2048 * 6144  # input and output of the last norm
    assert kept == pytest.approx(100 * 2.0 * 2048 * 6144 + ends, rel=1e-9)


def test_capacity_decides_what_fits():
    shape, plan = model("llama3-8b"), Plan()
    roomy = memory(shape, plan, cluster("b300", 1), prior_medians())
    tight = memory(shape, plan, cluster("v100-16gb", 1), prior_medians())
    assert bool(roomy.fits) and not bool(tight.fits)
    assert roomy.total == tight.total


@pytest.mark.parametrize("width", [2.0, 4.0])
def test_fsdp_holds_two_layers_and_their_gradients_whole(width: float):
    """Zhao et al. 2023, section 3.3: two units at a time, the one that runs and one that is gathered or scattered.

    Embeddings stay gathered until the step ends, and with them the gradient of the head, which is known first. Frozen
    weights have none.
    """
    shape = model("llama3-8b")
    sharded = at_moments(shape, Plan(dp=8, zero_stage=3, gradient_bytes=width))
    layer = float(local_plan(shape, Plan(dp=8)).params.layers) / shape.n_layers
    vocabulary = float(shape.vocab_size * shape.d_model)
    weights, gradients = 2.0 * (2.0 * layer + 2.0 * vocabulary), (2.0 + width) * layer + 2.0 * vocabulary
    assert sharded["reversing, last stage"]["buffers"] == pytest.approx(weights + gradients, rel=1e-6)
    assert sharded["loss"]["buffers"] == pytest.approx(weights, rel=1e-6)
    assert sharded["optimizer, first stage"]["buffers"] == 0.0
    frozen = at_moments(changed(shape, trainable_share=0.0), Plan(dp=8, zero_stage=3))
    assert frozen["reversing, last stage"]["buffers"] == pytest.approx(weights, rel=1e-6)
    assert at_moments(shape, Plan(dp=8, zero_stage=2))["reversing, last stage"]["buffers"] == 0.0


@pytest.mark.parametrize(("shared", "zero_stage"), [(1, 0), (8, 2)])
def test_gradients_take_the_width_in_which_they_are_reduced(shared: int, zero_stage: int):
    shape = model("llama3-8b")
    fields = {"dp": 8, "zero_stage": zero_stage, "n_microbatches": 2}
    wide, narrow = (of(shape, Plan(**fields, gradient_bytes=width)) for width in (4, 2))
    assert float(wide.gradients) == pytest.approx(
        4.0 * float(local_plan(shape, Plan()).params.total) / shared, rel=1e-9
    )
    assert float(narrow.gradients) == pytest.approx(0.5 * float(wide.gradients), rel=1e-9)


def test_experts_that_no_rank_shares_need_no_buffer():
    """With ep = dp FSDP holds the dense weights of two layers and their gradients whole, and the outermost unit."""
    shape = model("mixtral-8x7b")
    apart, more = (
        at_moments(shape, Plan(dp=dp, ep=8, zero_stage=3, gradient_bytes=2))["reversing, last stage"]["buffers"]
        for dp in (8, 16)
    )
    held = local_plan(shape, Plan(dp=8, ep=8)).params
    dense, head = float(held.layers) / shape.n_layers, shape.vocab_size * shape.d_model
    assert apart == pytest.approx(2.0 * (4.0 * dense + float(held.embedding) + head), rel=1e-6)
    assert more > 2.0 * apart


@pytest.mark.parametrize("n_microbatches", [1, 2, 8])
def test_rank_0_holds_the_first_stage(n_microbatches: int):
    """Microbatches in flight on the first stage of two are two at most, and the loss is on the last stage."""
    shape = changed(model("llama3.2-1b"), vocab_size=131072)
    plan = Plan(pp=2, n_microbatches=n_microbatches, micro_batch_size=8, kept_gradients=True)
    peak, moments = of(shape, plan), at_moments(shape, plan)
    names = ("reversing, first stage", "last layer", "optimizer, first stage")
    totals = {name: sum(moments[name].values()) for name in moments}
    assert float(peak.first_stage) == pytest.approx(max(totals[name] for name in names), rel=1e-6)
    assert float(peak.measured(-1.0)) == pytest.approx(float(peak.first_stage - peak.framework), rel=1e-6)
    assert float(peak.measured(0.0)) == pytest.approx(float(peak.total - peak.framework), rel=1e-6)
    assert n_microbatches > 1 or float(peak.first_stage) < 0.9 * totals["loss"]


def test_a_pipeline_of_one_stage_has_no_other():
    peak = of(model("llama3-8b"), Plan(micro_batch_size=2))
    assert float(peak.first_stage) == float(peak.total)


@pytest.mark.parametrize("share", [0.0, 0.3, 1e3])
def test_what_an_allocator_keeps_is_reserved_until_the_chip_is_full(share: float):
    """A peak of reserved memory holds free blocks; allocations do not, nor what decides whether a run fits."""
    peak = of(model("llama3.2-1b"), Plan(cached_share=share))
    beyond = float(peak.measured(0.5) - peak.measured(0.0))
    assert beyond == pytest.approx(
        min(share * float(peak.activations + peak.logits), float(peak.capacity - peak.total)), rel=1e-6
    )
    assert float(peak.measured(1.0) - peak.measured(0.5)) == pytest.approx(float(peak.framework), abs=1e3)
    assert float(peak.total) == float(of(model("llama3.2-1b"), Plan()).total)


def test_of_frozen_weights_no_gradient_reads_a_normalised_tensor():
    """32-bit copies of the inputs of two norms are kept, 2 d a norm beyond 16 bits; with gains, the outputs too."""
    plans = [Plan(fused_norm=fused) for fused in (False, True)]

    def kept(trained: float, plan: Plan) -> float:
        shape = Transformer(48, 6144, 64, 2048, trainable_share=trained)
        return float(layer_activation_bytes(local_plan(*arrays((shape, plan))), ideal_coefficients()))

    frozen, trained = (kept(share, plans[0]) - kept(share, plans[1]) for share in (0.0, 1.0))
    assert frozen == pytest.approx(2.0 * 2.0 * 6144.0 * 2048.0, rel=1e-9)
    assert trained == pytest.approx(2.0 * frozen, rel=1e-9)


def test_adapters_of_queries_keep_no_input_of_the_mlp():
    """Of unstated rank, the input of each target once: d of attention, d and f further ones of all linear layers."""
    shape = Transformer(48, 6144, 64, 2048, d_ff=16384, gated_mlp=True, trainable_share=0.0)

    def kept(targets: str, width: float) -> float:
        local = local_plan(*arrays((shape, Plan(adapter_bytes=width, lora_targets=targets))))
        return float(layer_activation_bytes(local, ideal_coefficients())) / 2048.0

    none = kept("all-linear", 0.0)
    assert kept("q+v", 4.0) - none == pytest.approx(4.0 * 6144.0, rel=1e-9)
    assert kept("all-linear", 4.0) - none == pytest.approx(4.0 * (3.0 * 6144.0 + 16384.0), rel=1e-9)


def test_casts_are_of_weights_that_are_trained():
    """A compiled step casts 32-bit weights, 2 byte of each of the layers and the head; frozen ones are in 16 bits."""
    plan = Plan(compiled=1.0, wide_weights=True, n_microbatches=2)
    trained, frozen = (changed(model("llama3-8b"), trainable_share=share) for share in (1.0, 0.0))
    casts = [at_moments(shape, plan)["loss"]["buffers"] for shape in (trained, frozen)]
    params = local_plan(trained, Plan()).params
    assert casts[0] == pytest.approx(2.0 * (float(params.layers) + 128256 * 4096), rel=1e-6)
    assert casts[1] == 0.0


@pytest.mark.parametrize("zero_stage", [1, 2, 3])
def test_gradients_follow_an_offloaded_optimizer(zero_stage: int):
    """From ZeRO-2 on a rank sends its share of reduced gradients to the host; whole gradients stay."""
    shape = model("llama3-8b")
    plans = [Plan(dp=8, zero_stage=zero_stage, n_microbatches=2, offload_optimizer=share) for share in (0.0, 1.0)]
    kept, sent = (at_moments(shape, plan)["loss"]["gradients"] for plan in plans)
    assert sent == (kept if zero_stage == 1 else 0.0) and kept > 0.0


@pytest.mark.parametrize(("tp", "n_microbatches"), [(8, 8), (8, 1), (1, 8)])
def test_buffers_freed_in_order_queue_nothing(tp: int, n_microbatches: int):
    """Records of streams hold buffers of tensor-parallel collectives of several microbatches, references none."""
    shape = model("llama3-8b")
    plans = [Plan(tp=tp, pp=4, n_microbatches=n_microbatches, queued_collectives=queues) for queues in (True, False)]
    recorded, kept = (at_moments(shape, plan, queued_bytes=60.0)["loss"]["activations"] for plan in plans)
    last = at_moments(shape, plans[0], queued_bytes=60.0)["reversing, first stage"]["activations"]
    first = at_moments(shape, plans[1], queued_bytes=60.0)["reversing, first stage"]["activations"]
    waits = tp > 1 and n_microbatches > 2
    assert recorded == kept
    assert last - first == pytest.approx(60.0 * 0.5 * shape.seq_len * shape.d_model if waits else 0.0, rel=1e-6)
