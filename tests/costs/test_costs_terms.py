"""Single cost terms against hand calculations."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cost_cases import H100, IDEAL, LINK, LLAMA, MIXTRAL, ONE_H100, ideal, on, plan, rates

from jaxscale.base.arrays import as_arrays
from jaxscale.costs import expert, tensor
from jaxscale.costs.attention import attention_forward, scan_forward
from jaxscale.costs.collectives import gather_time
from jaxscale.costs.context import attention_beside, key_value_ring
from jaxscale.costs.data import data_parallel, data_traffic
from jaxscale.costs.elementwise import elementwise_forward, logits_forward
from jaxscale.costs.host import launch_gaps_forward
from jaxscale.costs.machine import effective_link, machine_of
from jaxscale.costs.matmul import dense_forward, expert_forward, head_forward, matmul_time, seconds_per_flop
from jaxscale.costs.overlap import Passes, not_hidden
from jaxscale.costs.step import step_time
from jaxscale.costs.straggler import straggler_time
from jaxscale.hardware.catalogue import cluster
from jaxscale.hardware.formats import PRECISIONS
from jaxscale.models import model
from jaxscale.models.transformer import Transformer, model_flops, n_params
from jaxscale.plans.local import local_plan


def test_large_matmuls_run_at_the_peak_and_small_ones_below():
    big = matmul_time(1e6, 1e8, 3e4, rates(plan(), IDEAL))
    np.testing.assert_allclose(big, 2.0 * 1e6 * 1e8 / H100.chip.peak("bf16"), rtol=1e-9)
    # As wide as deep: the area of its output, 1e3 rows by d columns, is where it reaches half its speed.
    width = float(LLAMA.d_model)
    both = 1e8 * 2.0 / width
    halved = matmul_time(1e3, 1e8, both, rates(plan(), ideal(matmul_half_area=1e3 * width)))
    np.testing.assert_allclose(halved, 2.0 * 2.0 * 1e3 * 1e8 / H100.chip.peak("bf16"), rtol=1e-9)
    starved = matmul_time(1.0, 1e8, 3e4, rates(plan(), IDEAL))
    np.testing.assert_allclose(starved, 2.0 * 1e8 / 3.35e12, rtol=1e-9)


def test_thin_matmuls_expose_what_they_read_and_write():
    """One byte for each of d + w numbers of a token and matrix, at the memory's bandwidth, whatever the peak."""
    tokens, wide, thin = 1e3, 1e4, 16.0
    for width in (wide, thin):
        params = LLAMA.d_model * width
        full, exposed = (
            matmul_time(tokens, params, LLAMA.d_model + width, rates(plan(), ideal(matmul_exposed_bytes=each)))
            for each in (0.0, 1.0)
        )
        seconds = tokens * (LLAMA.d_model + width) / H100.chip.hbm_bandwidth
        np.testing.assert_allclose(exposed - full, seconds, rtol=1e-6)
        # What is exposed decides for a thin matmul, and hardly counts for a wide one.
        assert (seconds > full) == (width == thin)


def test_precision_chooses_the_peak():
    bf16, fp8 = (seconds_per_flop(H100.chip, plan(precision=word).precision, IDEAL) for word in ("bf16", "fp8"))
    np.testing.assert_allclose(bf16 / fp8, H100.chip.peak("fp8") / H100.chip.peak("bf16"), rtol=1e-9)


def test_a_format_without_units_is_multiplied_in_the_next_wider_one():
    """However poor the format's own efficiency; where a chip has units for it, that counts."""
    poor = ideal(fp8_efficiency=0.6, fp4_efficiency=0.4)
    of = {
        chip: [seconds_per_flop(where.chip, plan(precision=word).precision, poor) for word in ("bf16", "fp8", "fp4")]
        for chip, where in (("a100", as_arrays(cluster("a100-80gb", 8))), ("h100", H100))
    }
    np.testing.assert_allclose(of["a100"], of["a100"][0], rtol=1e-6)
    bf16, fp8, fp4 = of["h100"]
    np.testing.assert_allclose(bf16 / fp8, 0.6 * H100.chip.peak("fp8") / H100.chip.peak("bf16"), rtol=1e-6)
    assert fp4 == fp8


def test_the_logits_head_stays_in_sixteen_bits():
    heads = {word: head_forward(*on(LLAMA, plan(precision=word))) for word in ("bf16", "fp8", "fp4", "fp32")}
    assert heads["fp8"] == heads["fp4"] == heads["bf16"] < heads["fp32"]


def test_a_frozen_head_has_no_gradients_of_weights():
    passes = {
        share: step_time(as_arrays(model("llama3-8b", trainable_share=share)), plan(), ONE_H100, IDEAL).head
        for share in (0.0, 1.0)
    }
    np.testing.assert_allclose(passes[1.0] - passes[0.0], head_forward(*on(LLAMA, plan())), rtol=1e-5)


def test_tensor_parallelism_divides_the_matmuls():
    whole, split = (dense_forward(*on(LLAMA, plan(tp=tp))) for tp in (1, 8))
    np.testing.assert_allclose(whole / split, 8.0, rtol=1e-9)


def test_experts_work_as_a_dense_model_of_their_active_width():
    """Beside them every token gets a score for each of the eight experts."""
    dense = as_arrays(Transformer(8, 4096, 32, 8192, d_ff=8192, gated_mlp=True))
    mixture = as_arrays(Transformer(8, 4096, 32, 8192, d_ff_expert=4096, gated_mlp=True, n_experts=8, moe_top_k=2))
    mlp = dense_forward(*on(dense, plan())) - dense_forward(*on(mixture, plan()))
    router = 8 * 2.0 * 8192 * 4096 * 8 / H100.chip.peak("bf16")
    for ep in (1, 8):
        np.testing.assert_allclose(expert_forward(*on(mixture, plan(ep=ep))), mlp + router, rtol=1e-9)
    assert expert_forward(*on(LLAMA, plan())) == 0.0


def test_an_encoder_attends_to_all_tokens():
    """Twice what a causal mask leaves of fused attention, and of the model's flops with it."""
    encoder = eqx.tree_at(lambda m: m.causal, LLAMA, 0.0)
    fused = [attention_forward(*on(shape, plan())) for shape in (encoder, LLAMA)]
    np.testing.assert_allclose(fused[0], 2.0 * fused[1], rtol=1e-6)
    stored = [attention_forward(*on(shape, plan(flash_attention=False))) for shape in (encoder, LLAMA)]
    np.testing.assert_allclose(*stored, rtol=1e-9)
    assert model_flops(encoder, causal=True) == model_flops(encoder) == model_flops(LLAMA) > model_flops(LLAMA, True)


def test_copies_of_sharded_weights_are_reduced_layer_by_layer():
    """Between two copies of FSDP's shards each layer pays the latency of a collective of its own, whatever its size."""
    sized = plan(dp=64, zero_stage=3, shard_group=32, overlap_gradients=False)
    parts = [data_parallel(*on(LLAMA, sized, ideal(fsdp_overlap=overlap)), 1.0, 2.0).step for overlap in (0.0, 1.0)]
    traffic = data_traffic(*on(LLAMA, sized))
    whole = traffic.between_copies + (LLAMA.n_layers - 1.0) * traffic.copies_latency
    np.testing.assert_allclose(parts, whole, rtol=1e-6)
    assert traffic.copies_latency > 0.0
    one_copy = data_traffic(*on(LLAMA, plan(dp=64, zero_stage=3)))
    assert one_copy.between_copies == one_copy.copies_latency == 0.0


def test_a_scan_takes_six_flops_per_channel_and_state():
    shape = as_arrays(model("nemotron-h-56b"))
    flops = 6.0 * 256 * 16384 * 54 * float(shape.seq_len)
    whole = scan_forward(*on(shape, plan()))
    np.testing.assert_allclose(whole, flops / H100.chip.peak("bf16"), rtol=1e-9)
    slow, narrow = ideal(scan_efficiency=0.1), plan(precision="fp8")
    np.testing.assert_allclose(scan_forward(*on(shape, narrow, slow)), 10.0 * whole, rtol=1e-9)
    np.testing.assert_allclose(scan_forward(*on(shape, plan(tp=8))), whole / 8.0, rtol=1e-9)
    assert scan_forward(*on(LLAMA, plan(), slow)) == 0.0


def test_materialised_attention_pays_for_its_scores():
    coefficients = ideal(score_bytes=10.0)
    fused = attention_forward(*on(LLAMA, plan(), coefficients))
    plain = attention_forward(*on(LLAMA, plan(flash_attention=False), coefficients))
    scores = 32.0 * 32.0 * 8192.0**2
    np.testing.assert_allclose(plain - 2.0 * fused, scores * 10.0 / 3.35e12, rtol=1e-9)


@pytest.mark.parametrize(
    ("precision", "width", "core"), [("tf32", 2.0, "tf32"), ("fp32", 2.0, "fp32"), ("fp8", 1.0, "bf16")]
)
def test_only_32_bit_inputs_widen_what_is_outside_the_matmuls(precision, width, core):
    wide, usual = plan(tp=2, precision=precision), plan(tp=2)
    passes = ideal(residual_passes=10.0, hidden_passes=5.0)
    traffic = [elementwise_forward(*on(LLAMA, one, passes)) for one in (wide, usual)]
    np.testing.assert_allclose(traffic[0] / traffic[1], width, rtol=1e-9)
    sent = [
        tensor.tensor_collectives(*on(LLAMA, one)[:2]).forward for one in (wide, plan(tp=2, micro_batch_size=width))
    ]
    np.testing.assert_allclose(*sent, rtol=1e-9)
    peaks = np.asarray(H100.chip.peak_flops)
    fused = [attention_forward(*on(LLAMA, one)) for one in (wide, usual)]
    expected = peaks[PRECISIONS.index("bf16")] / peaks[PRECISIONS.index(core)]
    np.testing.assert_allclose(fused[0] / fused[1], expected, rtol=1e-9)


def test_sequence_parallelism_splits_the_residual_stream_only():
    residual, hidden = ideal(residual_passes=10.0), ideal(hidden_passes=10.0)
    with_, without = plan(tp=8, sequence_parallel=True), plan(tp=8)
    assert (float(local_plan(LLAMA, with_).sequence_split), float(local_plan(LLAMA, without).sequence_split)) == (
        8.0,
        1.0,
    )
    streams = [elementwise_forward(*on(LLAMA, one, residual)) for one in (without, with_)]
    np.testing.assert_allclose(streams[0] / streams[1], 8.0, rtol=1e-9)
    np.testing.assert_allclose(streams[0], 32 * 10 * 2.0 * 8192 * 4096 / 3.35e12, rtol=1e-9)
    inner = [elementwise_forward(*on(LLAMA, one, hidden)) for one in (without, with_)]
    np.testing.assert_allclose(inner[0], inner[1], rtol=1e-12)


def test_each_expert_of_a_token_adds_traffic_of_its_own():
    passes = ideal(hidden_passes=3.0, routed_passes=8.0)
    shapes = [Transformer(8, 4096, 32, 8192, d_ff_expert=2048, n_experts=16, moe_top_k=top_k) for top_k in (1, 2)]
    one, two = (elementwise_forward(*on(as_arrays(shape), plan(tp=2), passes)) for shape in shapes)
    np.testing.assert_allclose(two - one, 8 * 8.0 * 8192 * (2048 + 4096) / 2 * 2.0 / 3.35e12, rtol=1e-6)
    # Shared experts see every token where it lies, as dense layers do.
    shared = as_arrays(Transformer(8, 4096, 32, 8192, d_ff_expert=2048, n_experts=16, moe_top_k=1, n_shared_experts=1))
    added = elementwise_forward(*on(shared, plan(tp=2), passes)) - one
    np.testing.assert_allclose(added, 8 * 3.0 * 8192 * 2048 / 2 * 2.0 / 3.35e12, rtol=1e-6)


def test_biases_are_added_to_the_outputs_of_routed_experts_alone():
    mixture = {"d_ff_expert": 2048, "n_experts": 16, "moe_top_k": 2}
    plain, biased, dense = (
        elementwise_forward(
            *on(as_arrays(Transformer(8, 4096, 32, 8192, **shape)), plan(tp=2), ideal(bias_passes=10.0))
        )
        for shape in (mixture, {**mixture, "expert_bias": True}, {"expert_bias": True})
    )
    assert plain == dense == 0.0
    np.testing.assert_allclose(biased, 8 * 10.0 * 8192 * 2 * 4096 / 2 * 2.0 / 3.35e12, rtol=1e-6)


def test_a_mixture_layer_pays_for_each_of_its_experts():
    coefficients = ideal(moe_expert_time=1e-5)
    np.testing.assert_allclose(launch_gaps_forward(local_plan(MIXTRAL, plan()), coefficients), 32 * 8 * 1e-5, rtol=1e-9)
    assert launch_gaps_forward(local_plan(LLAMA, plan()), coefficients) == 0.0


def test_logits_are_a_tensor_of_tokens_by_vocabulary():
    once = logits_forward(*on(LLAMA, plan(tp=2, vocab_parallel_loss=True), ideal(logit_bytes=12.0)))
    np.testing.assert_allclose(3.0 * once, 8192 * 128256 / 2 * 12.0 / 3.35e12, rtol=1e-9)


def test_tensor_parallelism_pays_two_all_reduces_per_layer():
    expected = 32 * 2 * 2 * gather_time(2.0 * 8192 * 4096, 8.0, 1.0, LINK)
    np.testing.assert_allclose(tensor.tensor_collectives(*on(LLAMA, plan(tp=8))[:2]), (expected, expected), rtol=1e-9)
    across = tensor.tensor_collectives(*on(LLAMA, plan(tp=16))[:2])
    assert across.forward > 1.1 * expected


def test_sequence_parallelism_gathers_inputs_again_for_gradients_of_weights():
    sharded, frozen = plan(tp=8, sequence_parallel=True), as_arrays(model("llama3-8b", trainable_share=0.0))
    once, more = tensor.tensor_collectives(*on(LLAMA, sharded)[:2])
    np.testing.assert_allclose(more, 1.5 * once, rtol=1e-9)
    np.testing.assert_allclose(tensor.tensor_collectives(*on(frozen, sharded)[:2]), (once, once), rtol=1e-9)


@pytest.mark.parametrize(
    ("sequence_parallel", "forward", "backward"), [(True, 3.0 / 4.0, 4.0 / 6.0), (False, 1.0, 1.0)]
)
def test_eight_bit_matmuls_gather_half_as_many_bytes_and_scatter_as_many(sequence_parallel, forward, backward):
    link = effective_link(H100.network, ideal(link_latency_scale=0.0))
    narrow, usual = (plan(tp=8, sequence_parallel=sequence_parallel, precision=word) for word in ("fp8", "bf16"))
    times = [np.asarray(tensor.tensor_collectives(*on(LLAMA, one, link=link)[:2])) for one in (narrow, usual)]
    np.testing.assert_allclose(times[0] / times[1], (forward, backward), rtol=1e-6)


def test_collectives_hide_behind_a_share_of_the_matmuls_beside_them():
    costs, nothing = Passes(jnp.asarray(10.0), jnp.asarray(15.0)), Passes(jnp.asarray(0.0), jnp.asarray(0.0))
    beside = Passes(jnp.asarray(5.0), jnp.asarray(10.0))
    for overlap, expected in ((0.0, (10, 15)), (0.2, (9, 13)), (1.0, (5, 5))):
        np.testing.assert_allclose(not_hidden(costs, beside, overlap), expected, rtol=1e-9)
    assert tuple(not_hidden(nothing, beside, 0.5)) == (0.0, 0.0)
    assert tuple(not_hidden(costs, Passes(jnp.asarray(30.0), jnp.asarray(30.0)), 0.5)) == (0.0, 0.0)


def test_tensor_parallel_collectives_run_beside_gradients_of_weights_and_matmuls_taken_piece_by_piece():
    """A plain all-reduce of the forward pass has nothing to hide behind; gathers and scatters have, within a node."""
    frozen = as_arrays(model("llama3-8b", trainable_share=0.0))
    full = {"sequence_parallel": True, "tp_overlap": "full"}
    within, across = plan(tp=8, **full), plan(tp=16, **full)
    for shape, layout, expected in (
        (LLAMA, plan(tp=8, tp_overlap="none"), (0, 0)),
        (LLAMA, plan(tp=8, sequence_parallel=True, tp_overlap="backward"), (0, 10)),
        (LLAMA, plan(tp=8, tp_overlap="backward"), (0, 10)),
        (frozen, plan(tp=8, tp_overlap="backward"), (0, 0)),
        (LLAMA, within, (10, 10)),
        (frozen, within, (10, 0)),
        (LLAMA, across, (5, 10)),
    ):
        np.testing.assert_allclose(tensor.matmuls_beside(*on(shape, layout)[:2], 10.0), expected, rtol=1e-9)


def test_all_to_alls_run_beside_the_matmuls_of_other_tokens():
    frozen = as_arrays(model("llama3-8b", trainable_share=0.0))
    np.testing.assert_allclose(expert.compute_beside_exchanges(local_plan(LLAMA, plan()), 10.0, 4.0), (10, 20))
    np.testing.assert_allclose(expert.compute_beside_exchanges(local_plan(frozen, plan()), 10.0, 4.0), (10, 10))
    beside = local_plan(LLAMA, plan(moe_overlap=True))
    np.testing.assert_allclose(expert.compute_beside_exchanges(beside, 10.0, 4.0), (14, 28))


def test_the_key_value_ring_hides_behind_attention():
    eight = plan(cp=8)
    ring, back = key_value_ring(*on(LLAMA, eight)[:2])
    np.testing.assert_allclose(ring, 32 * gather_time(2.0 * 8192 * 8 * 256, 8.0, 1.0, LINK), rtol=1e-9)
    # Gradients travel back with keys and values; the fused backward pass takes 2.5 times as long as the forward one.
    np.testing.assert_allclose(back, 2.0 * ring, rtol=1e-9)
    beside = attention_beside(local_plan(LLAMA, eight), ring)
    np.testing.assert_allclose(beside, (7.0 / 8.0 * ring, 2.5 * 7.0 / 8.0 * ring), rtol=1e-9)
    shown = not_hidden(Passes(ring, back), beside, 0.5)
    np.testing.assert_allclose(shown, (ring * (1.0 - 0.5 * 7.0 / 8.0), ring * (2.0 - 1.25 * 7.0 / 8.0)), rtol=1e-9)


@pytest.mark.parametrize(("tp", "heads"), [(1, 8.0), (4, 2.0), (8, 1.0), (32, 1.0)])
def test_a_rank_of_the_ring_passes_on_whole_key_value_heads(tp: int, heads: float):
    """Llama 3 8B has 8 of them: more ranks hold copies."""
    ring = key_value_ring(*on(LLAMA, plan(cp=8, tp=tp))[:2]).forward
    np.testing.assert_allclose(ring, 32 * gather_time(2.0 * 8192 * heads * 256, 8.0, tp, LINK), rtol=1e-9)


def test_experts_exchange_tokens_twice_per_layer():
    ranks_reached = 2.0  # one expert on each rank, two for each token
    volume = 2.0 * MIXTRAL.seq_len * ranks_reached * 4096
    expected = 2 * 32 * 7.0 / 8.0 * volume / 450e9
    np.testing.assert_allclose(expert.expert_exchange(*on(MIXTRAL, plan(ep=8))[:2]), (expected, expected), rtol=0.02)
    assert tuple(expert.expert_exchange(*on(LLAMA, plan(ep=8))[:2])) == (0.0, 0.0)


def test_only_split_experts_gather_the_tokens_sent_to_them():
    """With ep over all ranks no expert is split and attention alone gathers; split in eight, k times the tokens do."""
    shape = as_arrays(Transformer(32, 4096, 32, 131072, d_ff_expert=14336, n_experts=8, moe_top_k=2))
    one = 2.0 * 32 * gather_time(2.0 * 131072 * 4096, 8.0, 1.0, LINK)
    folded, split = (tensor.tensor_collectives(*on(shape, plan(tp=8, ep=ep))[:2]).forward for ep in (8, 1))
    np.testing.assert_allclose((folded, split), (one, 3.0 * one), rtol=0.02)
    shared = eqx.tree_at(lambda m: m.n_shared_experts, shape, 2.0)
    np.testing.assert_allclose(
        tensor.tensor_collectives(*on(shared, plan(tp=8, ep=8))[:2]).forward, 2.0 * one, rtol=1e-6
    )


def test_experts_on_a_projection_send_less_and_hold_less():
    """A quarter of the width: a quarter of the traffic and of an expert's weights; projections see every token."""
    fields = {"d_ff_expert": 14336, "n_experts": 8, "moe_top_k": 2, "gated_mlp": True}
    full, latent = (as_arrays(Transformer(32, 4096, 32, 131072, **fields, moe_latent_size=size)) for size in (0, 1024))
    sent = [expert.expert_exchange(*on(shape, plan(ep=8))[:2]).forward for shape in (full, latent)]
    np.testing.assert_allclose(sent[0] / sent[1], 4.0, rtol=0.02)
    gone = n_params(full) - n_params(latent)
    np.testing.assert_allclose(gone, 32 * (8 * 3 * 3072 * 14336 - 2 * 4096 * 1024), rtol=1e-9)
    held = [local_plan(shape, plan(ep=8)).params for shape in (full, latent)]
    np.testing.assert_allclose(held[0].experts / held[1].experts, 4.0, rtol=1e-9)
    np.testing.assert_allclose(held[1].layers - held[0].layers, 32 * 2 * 4096 * 1024, rtol=1e-9)
    times = [expert_forward(*on(shape, plan())) for shape in (full, latent)]
    every_token = (4096 * 8, 4096 * 8 + 2 * 4096 * 1024)  # the router, and projections
    flops = [2 * 3 * width * 14336 + shared for width, shared in zip((4096, 1024), every_token, strict=True)]
    np.testing.assert_allclose(times[0] / times[1], flops[0] / flops[1], rtol=1e-6)


def test_stragglers_grow_with_the_doublings_of_the_nodes():
    times = [
        straggler_time(machine_of(cluster("h100-80gb", n), IDEAL), ideal(straggler=0.01), 2.0) for n in (4, 8, 64, 1024)
    ]
    np.testing.assert_allclose(times, [0.0, 0.0, 0.06, 0.14], atol=1e-12)


def test_a_sharper_link_never_costs_more():
    slope = jax.grad(lambda bandwidth: gather_time(1e9, 64.0, 1.0, LINK._replace(bandwidth=bandwidth)))(LINK.bandwidth)
    assert all(float(one) <= 0.0 for one in slope) and min(float(one) for one in slope) < 0.0


def test_larger_heads_are_never_faster():
    """Each matrix reads and writes its own widths: heads that grow alone make no other matrix quicker."""
    base = {"n_layers": 8, "d_model": 4096, "n_heads": 32, "seq_len": 4096, "head_dim": 128, "v_head_dim": 128}
    exposed = ideal(matmul_half_area=1e6, matmul_exposed_bytes=2.0)
    latent = {"kv_lora_rank": 512, "rope_head_dim": 64, "n_kv_heads": 32}
    for kind in (
        {"n_kv_heads": 8},
        latent,
        {"n_kv_heads": 8, "attention_gate": 1},
        {"n_kv_heads": 8, "q_lora_rank": 512},
    ):
        for change in ({"head_dim": 256}, {"v_head_dim": 256}, {"n_heads": 64}, {"n_kv_heads": 32}):
            small, large = (
                float(dense_forward(*on(as_arrays(Transformer(**{**base, **kind, **more})), plan())[:2], exposed))
                for more in ({}, change)
            )
            grows = not (kind is latent and "n_kv_heads" in change)
            assert large > small if grows else large == small, (kind, change)
