"""Products of two features against closed forms: sends of virtual stages, groups of experts, split experts, scans."""

import numpy as np
import pytest
from physics_cases import (
    GRADIENTS,
    MATMULS,
    NO_LATENCY,
    SENDS,
    STREAMS,
    TENSORS,
    TOKENS,
    UNHIDDEN,
    case,
    lossy,
    steps,
    terms,
)
from registry import Configuration, changed

import jaxscale as js

H100 = js.cluster("h100-80gb", 8)
PEAK, HBM = float(H100.chip.peak("bf16")), float(H100.chip.hbm_bandwidth)
BANDWIDTH, LATENCY = np.asarray(H100.network.bandwidth), np.asarray(H100.network.latency)
DENSE = js.Transformer(24, 4096, 32, 4096, d_ff=12288, gated_mlp=True, vocab_size=50304)


def sends(**plan: float | str) -> Configuration:
    """A pipeline whose stages fill domains of 8 chips, with dropped-in degrees."""
    return case(DENSE, js.Plan(tp=4, cp=2, micro_batch_size=2, **plan), lossy(11))


@pytest.mark.parametrize(("stages", "virtual"), [(2, 1), (4, 1), (4, 3), (8, 3), (2, 6)])
def test_every_virtual_stage_sends_each_microbatch_on_and_back(stages: int, virtual: int):
    """Hops between domains: 2 (m v + p - 1) crossings of (p - 1) / p of the boundaries, 2 bytes per element."""
    m, schedule = 16, "interleaved" if virtual > 1 else "1f1b"
    one = sends(pp=stages, vpp=virtual, n_microbatches=m, schedule=schedule)
    c = one.coefficients
    volume = 2.0 * 2 * 4096 / 2 * 4096 / 4
    hop = c.network_latency_scale * LATENCY[1] + volume / (c.scale_out_efficiency * BANDWIDTH[1])
    expected = c.pp_exposed * 2.0 * (m * virtual + stages - 1) * (stages - 1) / stages * hop
    assert terms(SENDS, steps(one))[0] == pytest.approx(expected, rel=1e-9)


def test_further_microbatches_of_virtual_stages_are_sent_as_often_as_there_are_of_these():
    """Ratios alone: whatever a send costs, a microbatch more costs v times as many."""
    counts = [(virtual, m) for virtual in (1, 2, 3) for m in (8, 16)]
    found = terms(SENDS, steps(*(sends(pp=4, vpp=v, n_microbatches=m, schedule="interleaved") for v, m in counts)))
    further = found[1::2] - found[::2]
    np.testing.assert_allclose(further / further[0], (1.0, 2.0, 3.0), rtol=1e-9)


EXPERT_WIDTH = 1536
MIXTURE = js.Transformer(
    24, 4096, 32, 4096, d_ff=12288, gated_mlp=True, vocab_size=50304, n_experts=16, moe_top_k=1,
    d_ff_expert=EXPERT_WIDTH,
)  # fmt: skip
EXPERT_GROUPS = {
    # dp, tp, ep, shard group of ZeRO: replicas of an expert lie ep * etp chips apart
    "a domain apart": ({"dp": 64, "ep": 8}, 8, 8),
    "half a domain apart": ({"dp": 64, "ep": 4}, 16, 4),
    "tp and ep fill a domain": ({"dp": 32, "tp": 2, "ep": 4}, 8, 8),
    "tp given to ep": ({"dp": 32, "tp": 2, "ep": 64}, 1, 64),
    "two domains apart": ({"dp": 64, "tp": 2, "ep": 8}, 8, 16),
}


@pytest.mark.parametrize("group", EXPERT_GROUPS)
def test_replicas_of_experts_reduce_gradients_as_far_apart_as_they_are(group: str):
    """Twice (n - 1) / n of the gradients of further experts cross the slowest level, on every ring of a domain.

    With congestion, of c for each doubling of the domains that the group spans; the dense part cancels.
    """
    degrees, replicas, apart = EXPERT_GROUPS[group]
    c = lossy(12, **UNHIDDEN, **NO_LATENCY)
    wide = changed(MIXTURE, d_ff_expert=2.0 * EXPERT_WIDTH)
    now, wider = terms(GRADIENTS, steps(*(case(shape, js.Plan(**degrees), c) for shape in (MIXTURE, wide))))
    inside = max(8 // apart, 1)
    congestion = 1.0 + c.dp_congestion * np.log2(max(replicas * apart / 8.0, 1.0))
    split = degrees.get("tp", 1) if degrees["ep"] < 64 else 1
    gradients = 4.0 * 24 * 16 / degrees["ep"] * 3 * 4096 * EXPERT_WIDTH / split
    slowest = 1.0 / (inside * c.scale_out_efficiency * BANDWIDTH[1]) if replicas > 1 else 0.0
    if inside > 1:
        slowest = max(slowest, 1.0 / (c.scale_up_efficiency * BANDWIDTH[0]))
    expected = 2.0 * (replicas - 1) / replicas * congestion * gradients * slowest
    assert wider - now == pytest.approx(expected, rel=1e-6, abs=1e-9 * now)


def test_experts_a_domain_apart_have_no_use_for_links_within_one():
    """Neighbouring experts would: the control of the stride."""
    plan, c = js.Plan(dp=64, ep=8), lossy(13, **UNHIDDEN, **NO_LATENCY)
    added = []
    for up, out in ((1.0, 1.0), (0.25, 1.0), (1.0, 0.5)):
        network = BANDWIDTH * np.asarray([up, out, out])
        pair = [
            changed(case(changed(MIXTURE, d_ff_expert=width), plan, c), cluster__network__bandwidth=network)
            for width in (EXPERT_WIDTH, 2.0 * EXPERT_WIDTH)
        ]
        added.append(np.diff(terms(GRADIENTS, steps(*pair)))[0])
    np.testing.assert_allclose(np.asarray(added) / added[0], (1.0, 1.0, 2.0), rtol=1e-6)


@pytest.mark.parametrize(("ep", "within"), [(4, 4), (8, 4), (16, 4), (16, 8)])
def test_tokens_of_split_experts_travel_as_far_as_their_ranks_are_apart(ep: int, within: int):
    """A token with one expert crosses a level with the probability that it is elsewhere on that: 1 - 1 / r.

    Ranks of the group lie 2 apart where tensor parallelism splits experts in two, side by side where it does not.
    """
    tp = 2 if within == 4 else 1
    one = case(MIXTURE, js.Plan(dp=32, tp=tp, ep=ep, n_microbatches=3, micro_batch_size=2), lossy(14, **UNHIDDEN))
    c, across = one.coefficients, ep // within
    volume = 2.0 * 2 * 4096 / tp * 4096
    up = c.link_latency_scale * LATENCY[0] * (within - 1)
    out = c.network_latency_scale * LATENCY[1] * (across - 1)
    moved = volume * ((1 - 1 / within) / (c.scale_up_efficiency * BANDWIDTH[0]))
    moved += volume * (1 - 1 / across) / (c.scale_out_efficiency * BANDWIDTH[1])
    each = c.collective_launch + up + out + moved
    # Dispatch and combine, forward and backward, of 24 layers and three microbatches.
    expected = c.layer_time_factor * 3 * 24 * 4 * each
    assert terms(TOKENS, steps(one))[0] == pytest.approx(expected, rel=1e-9)


def matmul_case(tp: int, ep: int, **changes: float) -> Configuration:
    """A mixture whose experts are split tp ways, or not at all."""
    plan = js.Plan(dp=8, tp=tp, ep=ep, micro_batch_size=4, n_microbatches=2)
    return case(MIXTURE, plan, lossy(15, **changes))


SPLITS = [(1, 1, 1), (2, 1, 2), (4, 2, 4), (4, 32, 1)]
"""tp, ep, and the ways in which each expert is split."""


@pytest.mark.parametrize(("tp", "ep", "split"), SPLITS)
def test_waves_are_lost_at_the_rims_of_local_matrices(tp: int, ep: int, split: int):
    """A matrix d by w, with as many outputs as rows either way, loses (d + w) half areas whatever its tokens are.

    Of an expert that is split w is a part of its width; all that a chip holds of them lose alike.
    """
    area = 1e6
    now, more = (matmul_case(tp, ep, matmul_half_area=times * area) for times in (1.0, 2.0))
    c = now.coefficients
    attention = 4 * (4096 + 4096 / tp)
    experts = 16 / ep * 3 * (4096 + EXPERT_WIDTH / split)
    router = 4096 + 16
    rims = 24 * (attention + experts + router)
    lost = 3.0 * rims * area / (c.matmul_efficiency * PEAK)
    found = terms(MATMULS, steps(now, more))
    assert found[1] - found[0] == pytest.approx(2 * c.layer_time_factor * lost, rel=1e-9)


@pytest.mark.parametrize(("tp", "ep", "split"), SPLITS)
def test_tokens_are_read_and_written_at_the_widths_of_local_matrices(tp: int, ep: int, split: int):
    """Numbers that matmuls read and write: d + w of a token and matrix, of an expert for the tokens sent to it."""
    now, more = (matmul_case(tp, ep, matmul_exposed_bytes=bytes_) for bytes_ in (0.3, 0.9))
    c, tokens = now.coefficients, 4 * 4096
    attention = tokens * 4 * (4096 + 4096 / tp)
    experts = tokens * split / tp * 3 * (4096 + EXPERT_WIDTH / split)
    router = tokens * (4096 + 16)
    traffic = 3.0 * 24 * 0.6 * (attention + experts + router)
    expected = 2 * c.layer_time_factor * traffic / (c.hbm_efficiency * HBM)
    found = terms(MATMULS, steps(now, more))
    assert found[1] - found[0] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("tp", "ep", "split"), SPLITS)
def test_flops_of_experts_do_not_depend_on_how_they_are_split(tp: int, ep: int, split: int):
    """2 flops per active weight and token, forward, and twice that backward."""
    one = matmul_case(tp, ep, matmul_half_area=0.0, matmul_exposed_bytes=0.0)
    c, tokens = one.coefficients, 4 * 4096
    weights = 4 * 4096**2 / tp + 3 * 4096 * EXPERT_WIDTH / tp + 4096 * 16
    expected = 2 * c.layer_time_factor * 3.0 * 24 * 2 * tokens * weights / (c.matmul_efficiency * PEAK)
    assert terms(MATMULS, steps(one))[0] == pytest.approx(expected, rel=1e-9)


def hybrid(inner: float, state: float) -> js.Transformer:
    """State-space layers alone."""
    return js.Transformer(
        24, 4096, 32, 4096, n_attention_layers=0, n_mlp_layers=0, n_ssm_layers=24, ssm_d_inner=inner, ssm_state=state,
        ssm_groups=8, vocab_size=50304,
    )  # fmt: skip


@pytest.mark.parametrize("tp", [1, 4])
def test_scans_stream_their_channels_and_their_state(tp: int):
    """Two numbers per channel, input and gate, and two per state, its ways in and out (arXiv 2405.21060, section 7)."""
    plan, c = js.Plan(tp=tp, micro_batch_size=2), lossy(16)
    shapes = [hybrid(8192, 1024), hybrid(8192, 2048), hybrid(16384, 1024)]
    now, states, channels = terms(STREAMS, steps(*(case(shape, plan, c) for shape in shapes)))
    weights = 24 * 4096 / tp * c.accumulation_bytes / (c.hbm_efficiency * HBM)
    per_number = 3.0 * 2 * 4096 * 24 * 2 * c.hidden_passes / tp / (c.hbm_efficiency * HBM)
    factor = c.layer_time_factor
    assert states - now == pytest.approx(factor * 1024 * (2 * per_number + 2 * weights), rel=1e-9)
    assert channels - now == pytest.approx(factor * 8192 * (2 * per_number + 3 * weights), rel=1e-9)


def test_scans_take_flops_for_every_channel_and_state_of_its_group():
    """6 N flops per token and channel forward, at an efficiency of their own, and twice that backward."""
    plan, c = js.Plan(tp=2), lossy(17)
    time = terms("attention", steps(case(hybrid(8192, 1024), plan, c)))[0]
    flops = 24 * 4096 / 2 * 6.0 * 1024 / 8 * 8192
    assert time == pytest.approx(c.layer_time_factor * 3.0 * flops / (c.scan_efficiency * PEAK), rel=1e-9)


@pytest.mark.parametrize("tp", [4, 16])
def test_activations_are_gathered_and_scattered_for_each_block_and_way(tp: int):
    """2 gathers of 2 bytes per element, of (n - 1) / n of them, over the slowest level, forward and again backward."""
    one = case(DENSE, js.Plan(tp=tp, n_microbatches=3), lossy(18, **UNHIDDEN))
    c, nodes = one.coefficients, max(tp // 8, 1)
    hops = c.link_latency_scale * LATENCY[0] * (tp // nodes - 1) * nodes
    hops += c.network_latency_scale * LATENCY[1] * (nodes - 1)
    bandwidth = c.scale_up_efficiency * BANDWIDTH[0]
    if nodes > 1:
        bandwidth = min(bandwidth, 8 * c.scale_out_efficiency * BANDWIDTH[1])
    gather = c.collective_launch + hops + 2.0 * 4096 * 4096 * (tp - 1) / tp / bandwidth
    blocks = 2 * 24
    expected = c.layer_time_factor * 3 * blocks * 4 * gather
    assert terms(TENSORS, steps(one))[0] == pytest.approx(expected, rel=1e-9)


def test_each_further_predicted_token_takes_one_more_pass_of_the_logits_head():
    """Matmul and traffic of the logits of 1 + k tokens are 1 + k times those of one."""
    shapes = [js.Transformer(24, 4096, 32, 4096, vocab_size=50304, n_predict_layers=k) for k in (0, 1, 2)]
    found = terms("head", steps(*(case(shape, js.Plan(dp=2, tp=4), lossy(31)) for shape in shapes)))
    np.testing.assert_allclose(found / found[0], (1.0, 2.0, 3.0), rtol=1e-9)
