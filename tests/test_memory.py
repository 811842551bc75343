"""Peak memory against closed forms: Korthikanti's activations, ZeRO's shards, microbatches in flight."""

import jax
import numpy as np
import pytest
from registry import Configuration, as_arrays, changed, ideal_coefficients, random_configurations, stack

from jaxscale.base.arrays import as_arrays as arrays
from jaxscale.calibration.coefficients import prior_medians
from jaxscale.costs.memory import (
    Memory,
    layer_activation_bytes,
    memory,
    microbatches_at_the_end,
    microbatches_in_flight,
)
from jaxscale.hardware.catalogue import cluster
from jaxscale.models import model
from jaxscale.models.transformer import Transformer, n_params
from jaxscale.plans.local import local_plan
from jaxscale.plans.plan import Plan

compiled = jax.jit(lambda case: memory(*case))
IDEAL = {"gradient_memory_factor": 1.0, "logit_memory_bytes": 0.0}


def of(shape: Transformer, plan: Plan, **coefficients: float) -> Memory:
    """Memory without framework or stage boundaries on H100s."""
    machine = cluster("h100-80gb", plan.n_chips)
    return compiled(as_arrays(Configuration(shape, plan, machine, ideal_coefficients(**(IDEAL | coefficients)))))


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
    return tokens * d * (10.0 / split + 24.0 / tp + (5.0 * heads * length / (d * tp) if scores else 0.0))


@pytest.mark.parametrize("tp", [1, 8])
@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("scores", [False, True])
def test_activations_follow_korthikanti(tp: int, parallel: bool, scores: bool):
    shape = Transformer(48, 6144, 64, 2048)
    plan = Plan(tp=tp, micro_batch_size=4, sequence_parallel=parallel, flash_attention=not scores)
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
    per_token = 6144.0 * (4.0 + 2.0 + 2.0 * read + 4.0 * 2.0) + 16384.0 * (3.0 * 2.0 + read)
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
    assert held[1] - held[0] == pytest.approx(2.0 * 2048.0 * 2.0 * 6144.0, rel=1e-9)


@pytest.mark.parametrize(("ep", "split"), [(1, 8.0), (8, 1.0)])
def test_ranks_that_split_an_expert_keep_its_tokens_whole(ep: int, split: float):
    """Copies of a token for its two experts, of its full width, on each of the ranks that share these."""
    shape, coefficients = model("mixtral-8x7b"), prior_medians()
    plan = Plan(tp=8, ep=ep, sequence_parallel=True)
    two, three = (
        layer_activation_bytes(local_plan(*arrays((changed(shape, moe_top_k=k), plan))), coefficients)
        for k in (2.0, 3.0)
    )
    each = shape.seq_len * (2.0 * 2.0 * 2.0 * shape.d_ff_expert + 2.0 * split * shape.d_model) / 8.0
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
    assert microbatches_at_the_end(arrays(plan)) == pytest.approx(expected)


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
    assert held[0] == held[1]


@pytest.mark.parametrize(("precision", "width"), [("bf16", 18.0), ("fp8", 18.0), ("tf32", 16.0)])
def test_weights_gradients_and_moments_take_eighteen_bytes(precision: str, width: float):
    """Rajbhandari et al. 2020, section 3.1, with gradients accumulated in 32 bits: 2 + 4 + 12 bytes per parameter.

    Weights of 32 bits need no copy: 4 + 4 + 8.
    """
    shape = model("llama3-8b")
    peak = of(shape, Plan(precision=precision))
    held = float(n_params(shape)) - shape.d_model * (2.0 * shape.n_layers + 1.0)  # norms left out
    assert float(peak.weights + peak.gradients + peak.optimizer) == pytest.approx(width * held, rel=1e-9)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_zero_shards_one_state_after_the_other(stage: int):
    shape = model("llama3-8b")
    whole, sharded = of(shape, Plan(dp=64)), of(shape, Plan(dp=64, zero_stage=stage))
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
    ],
)
def test_microbatches_in_flight(plan: Plan, expected: float):
    assert float(microbatches_in_flight(plan)) == pytest.approx(expected, rel=1e-9)


SLOW_HOST, FAST_HOST = 1.0, 0.0
"""Time to launch a layer, far above and below what an H100 takes for one [s]."""


def transient_bytes(plan: Plan, host: float) -> float:
    """What transient activations take per element of the residual stream of a microbatch [byte]."""
    shape, kept = model("llama3-70b"), {"working_bytes": 3.0, "queued_bytes": 40.0, "host_time_layer": host}
    without, buffered = of(shape, plan, host_time_layer=host), of(shape, plan, **kept)
    elements = float(plan.micro_batch_size) * shape.seq_len * shape.d_model
    return float(buffered.activations - without.activations) / elements


@pytest.mark.parametrize(("stages", "share"), [(1.0, 0.0), (2.0, 0.0), (4.0, 0.5), (16.0, 0.875)])
def test_buffers_of_collectives_saturate_with_microbatches_in_flight(stages: float, share: float):
    """On every tensor-parallel rank whole."""
    plan = Plan(tp=8, pp=stages, micro_batch_size=2, n_microbatches=32)
    assert transient_bytes(plan, SLOW_HOST) == pytest.approx(3.0 + 40.0 * share, rel=1e-9)


@pytest.mark.parametrize("stages", [1.0, 2.0, 4.0])
def test_buffers_of_collectives_wait_for_chips_that_hosts_are_ahead_of(stages: float):
    plan = Plan(tp=8, pp=stages, micro_batch_size=2, n_microbatches=32)
    assert transient_bytes(plan, FAST_HOST) == pytest.approx(3.0 + 40.0, rel=1e-9)
    alone = changed(plan, tp=1.0)
    assert transient_bytes(alone, FAST_HOST) == transient_bytes(alone, SLOW_HOST) == pytest.approx(3.0, rel=1e-9)
    last = changed(plan, n_microbatches=stages)
    assert transient_bytes(last, FAST_HOST) == pytest.approx(transient_bytes(last, SLOW_HOST), rel=1e-9)


@pytest.mark.parametrize(("precision", "width"), [("fp32", 4.0), ("bf16", 2.0), ("fp8", 1.0), ("fp4", 0.5)])
def test_frozen_weights_take_the_width_of_the_matmuls(precision: str, width: float):
    shape = model("llama3-8b")
    adapters = changed(shape, trainable_share=0.0)
    trained, frozen = float(of(shape, Plan()).weights), float(of(adapters, Plan(precision=precision)).weights)
    assert frozen == pytest.approx(trained * width / 2.0, rel=1e-9)


def test_gpipe_holds_more_than_1f1b():
    shape = model("llama3-70b")
    held = {word: of(shape, Plan(tp=8, pp=8, n_microbatches=64, schedule=word)) for word in ("gpipe", "1f1b")}
    assert float(held["gpipe"].activations / held["1f1b"].activations) == pytest.approx(8.0, rel=1e-9)


def test_gpipe_holds_all_logits_and_1f1b_those_of_one_microbatch():
    shape = model("llama3-8b")
    plans = [Plan(tp=2, pp=4, n_microbatches=8, schedule=word, recompute="full") for word in ("gpipe", "1f1b")]
    gpipe, other = (of(shape, plan, logit_memory_bytes=1000.0) for plan in plans)
    assert float((gpipe.logits + gpipe.activations) / (other.logits + other.activations)) == pytest.approx(8.0, rel=0.1)


def test_logits_are_gone_before_a_layer_is_recomputed():
    """The larger of the two counts, not their sum."""
    shape = model("llama3-8b")
    plan = Plan(recompute="full")
    layer = float(layer_activation_bytes(local_plan(*arrays((shape, plan))), ideal_coefficients()))
    per_byte = shape.seq_len * shape.vocab_size
    for share in (0.5, 1.0, 2.0):
        logits = float(of(shape, plan, logit_memory_bytes=share * layer / per_byte).logits)
        assert logits == pytest.approx(max(share - 1.0, 0.0) * layer, abs=1e-6 * layer)


def test_full_recomputation_keeps_two_bytes_per_element():
    """Korthikanti et al. 2022, table 2: full recomputation stores `2 s b h` per layer."""
    shape = Transformer(100, 6144, 64, 2048, vocab_size=1)
    kept = of(shape, Plan(recompute="full")).activations
    layer = float(layer_activation_bytes(local_plan(*arrays((shape, Plan()))), ideal_coefficients()))
    assert float(kept) == pytest.approx(100 * 2.0 * 2048 * 6144 + layer, rel=1e-9)


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
    sharded = of(shape, Plan(dp=8, zero_stage=3, gradient_bytes=width))
    layer = float(local_plan(shape, Plan(dp=8)).params.layers) / shape.n_layers
    vocabulary = float(shape.vocab_size * shape.d_model)
    weights, gradients = 2.0 * (2.0 * layer + 2.0 * vocabulary), (2.0 + width) * layer + 2.0 * vocabulary
    assert float(sharded.buffers) == pytest.approx(weights + gradients, rel=1e-6)
    frozen = of(changed(shape, trainable_share=0.0), Plan(dp=8, zero_stage=3))
    assert float(frozen.buffers) == pytest.approx(weights, rel=1e-6)
    assert float(of(shape, Plan(dp=8, zero_stage=2)).buffers) == 0.0


@pytest.mark.parametrize(("shared", "zero_stage"), [(1, 0), (8, 2)])
def test_gradients_take_the_width_in_which_they_are_reduced(shared: int, zero_stage: int):
    shape = model("llama3-8b")
    wide, narrow = (of(shape, Plan(dp=8, zero_stage=zero_stage, gradient_bytes=width)) for width in (4, 2))
    assert float(wide.gradients) == pytest.approx(
        4.0 * float(local_plan(shape, Plan()).params.total) / shared, rel=1e-9
    )
    assert float(narrow.gradients) == pytest.approx(0.5 * float(wide.gradients), rel=1e-9)


def test_experts_that_no_rank_shares_need_no_buffer():
    """With ep = dp FSDP holds the dense weights of two layers and their gradients whole, and the outermost unit."""
    shape = model("mixtral-8x7b")
    apart = of(shape, Plan(dp=8, ep=8, zero_stage=3, gradient_bytes=2))
    held = local_plan(shape, Plan(dp=8, ep=8)).params
    dense, head = float(held.layers) / shape.n_layers, shape.vocab_size * shape.d_model
    assert float(apart.buffers) == pytest.approx(2.0 * (4.0 * dense + float(held.embedding) + head), rel=1e-6)
    assert float(of(shape, Plan(dp=16, ep=8, zero_stage=3, gradient_bytes=2)).buffers) > 2.0 * float(apart.buffers)
