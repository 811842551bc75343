"""Identities that hold whatever the coefficients: of efficiencies, recomputation, stages and frozen weights."""

import numpy as np
import pytest
from physics_cases import (
    AGAIN,
    CORE,
    GAPS,
    GRADIENTS,
    MATMULS,
    NO_LATENCY,
    RING,
    STREAMS,
    TENSORS,
    TOKENS,
    UNHIDDEN,
    UPDATE,
    case,
    lossy,
    peaks,
    peaks_of,
    steps,
    steps_of,
    terms,
)
from registry import Configuration, changed, random_configurations, stack

import jaxscale as js
from jaxscale.hardware.formats import PRECISIONS


@pytest.fixture(scope="module")
def batch() -> Configuration:
    """Random valid configurations with random coefficients."""
    return stack(random_configurations(192, seed=5))


def scaled(batch: Configuration, part: str, places: slice | int, efficiencies: tuple[str, ...]) -> tuple:
    """A datasheet's rate doubled, without and with the efficiencies that multiply it halved."""
    rate = batch
    for name in part.split("__"):
        rate = getattr(rate, name)
    doubled = np.array(rate)
    doubled[..., places] *= 2.0
    rates = {part: doubled}
    halves = {f"coefficients__{name}": 0.5 * getattr(batch.coefficients, name) for name in efficiencies}
    return changed(batch, **rates), changed(batch, **rates, **halves)


FP8, FP4 = PRECISIONS.index("fp8"), PRECISIONS.index("fp4")
PAIRS = {
    "peaks": (
        "cluster__chip__peak_flops",
        slice(None),
        ("matmul_efficiency", "attention_efficiency", "scan_efficiency"),
    ),
    "memory": ("cluster__chip__hbm_bandwidth", slice(None), ("hbm_efficiency",)),
    "scale-up": ("cluster__network__bandwidth", 0, ("scale_up_efficiency",)),
    "scale-out": ("cluster__network__bandwidth", slice(1, None), ("scale_out_efficiency",)),
    "latency of links": ("cluster__network__latency", 0, ("link_latency_scale",)),
    "latency of the network": ("cluster__network__latency", slice(1, None), ("network_latency_scale",)),
}
"""Numbers of a datasheet, and the coefficients that turn each into what programs reach."""


@pytest.mark.parametrize("pair", PAIRS)
def test_only_an_efficiency_times_its_datasheet_rate_counts(batch: Configuration, pair: str):
    now, (doubled, balanced) = steps_of(batch), scaled(batch, *PAIRS[pair])
    same, other = steps_of(balanced), steps_of(doubled)
    for name, term in now.terms().items():
        np.testing.assert_allclose(getattr(same, name), term, rtol=1e-9, atol=1e-12, err_msg=name)
    assert (np.abs(other.total / now.total - 1.0) > 1e-6).mean() > 0.1


@pytest.mark.parametrize(("place", "efficiency"), [(FP8, "fp8_efficiency"), (FP4, "fp4_efficiency")])
def test_an_efficiency_of_a_narrow_format_counts_with_its_peak(place: int, efficiency: str):
    """On a chip whose narrow units are faster than its wide ones, whichever of the two is doubled."""
    word = PRECISIONS[place]
    shape, plan = js.model("llama3-8b"), js.Plan(dp=2, tp=4, precision=word)
    one = stack(
        [case(shape, plan, lossy(seed, fp8_efficiency=0.8, fp4_efficiency=0.7), chip="b200") for seed in (1, 2)]
    )
    doubled, balanced = scaled(one, "cluster__chip__peak_flops", place, (efficiency,))
    now, same, other = (steps_of(each) for each in (one, balanced, doubled))
    np.testing.assert_allclose(same.total, now.total, rtol=1e-9)
    assert (other.matmul < 0.8 * now.matmul).all()


FIELDS = {"d_ff": 12288, "vocab_size": 50304, "seq_len": 4096}
DENSE = js.Transformer(24, 4096, 32, n_kv_heads=8, gated_mlp=True, **FIELDS)
MIXTURE = js.Transformer(24, 4096, 32, n_kv_heads=8, n_experts=16, moe_top_k=2, d_ff_expert=2048, **FIELDS)
ATTENTION_ALONE = js.Transformer(24, 4096, 32, n_mlp_layers=0, **FIELDS)
MLP_ALONE = js.Transformer(24, 4096, 32, n_attention_layers=0, **FIELDS)
SCANS_ALONE = js.Transformer(
    24, 4096, 32, n_attention_layers=0, n_mlp_layers=0, n_ssm_layers=24, ssm_d_inner=8192, ssm_state=1024, ssm_groups=8,
    **FIELDS,
)  # fmt: skip
FROZEN = js.Transformer(24, 4096, 32, n_kv_heads=8, trainable_share=0, **FIELDS)

FORWARD_SHARES = {MATMULS: 3.0, CORE: 3.5, STREAMS: 3.0, GAPS: 3.0, TENSORS: 2.0, TOKENS: 2.0, RING: 3.0}
"""Forward passes that each term is worth, without recomputation: gradients of inputs and weights take a pass each, the
fused attention core 2.5; gradients of keys and values go round with them."""
LAYERS = {
    "attention": (ATTENTION_ALONE, {"tp": 4}, {}),
    "materialised attention": (ATTENTION_ALONE, {"flash_attention": False}, {CORE: 3.0}),
    "mlp": (MLP_ALONE, {"tp": 4}, {}),
    "both": (DENSE, {"tp": 8}, {}),
    "pieces": (DENSE, {"tp": 8, "sequence_parallel": True}, {TENSORS: 2.5}),
    "experts": (MIXTURE, {"dp": 2, "tp": 4, "ep": 8}, {}),
    "split experts": (MIXTURE, {"tp": 8, "ep": 1}, {}),
    "scans": (SCANS_ALONE, {"tp": 2}, {CORE: 3.0}),
    "ring": (DENSE, {"cp": 8}, {}),
    "ring of materialised attention": (DENSE, {"cp": 4, "tp": 2, "flash_attention": False}, {CORE: 3.0}),
    "frozen": (FROZEN, {"tp": 8}, {MATMULS: 2.0}),
}
"""Models of one kind of layer, plans, and the terms that are worth another number of forward passes."""
BARE = UNHIDDEN | {
    "host_time_layer": 0.0, "host_time_tp_network": 0.0, "host_time_tp_node": 0.0, "accumulation_bytes": 0.0
}  # fmt: skip


@pytest.fixture(scope="module")
def recomputed() -> dict[str, list[js.StepTime]]:
    """Steps of each kind of layer with nothing recomputed, and with all."""
    cases = [
        case(shape, js.Plan(**plan, n_microbatches=3, micro_batch_size=2, recompute=word), lossy(3, **BARE), domain=4)
        for shape, plan, _ in LAYERS.values()
        for word in ("none", "full")
    ]
    found = steps(*cases)
    return {kind: found[2 * index : 2 * index + 2] for index, kind in enumerate(LAYERS)}


@pytest.mark.parametrize("kind", LAYERS)
def test_full_recomputation_adds_one_forward_pass_of_every_layer(recomputed: dict, kind: str):
    none, full = recomputed[kind]
    worth = FORWARD_SHARES | LAYERS[kind][2]
    passes = {name: float(getattr(none, name)) / share for name, share in worth.items()}
    straggling = float(none.total / (none.total - none.straggler))
    assert float(getattr(none, AGAIN)) == 0.0
    added = float(full.total - none.total)
    assert added == pytest.approx(straggling * sum(passes.values()), rel=1e-9)
    collectives = (TENSORS, TOKENS, RING)
    for name in collectives:
        grown = float(getattr(full, name) - getattr(none, name))
        assert grown == pytest.approx(passes[name], rel=1e-9, abs=1e-15)
    computed = sum(time for name, time in passes.items() if name not in collectives)
    assert float(getattr(full, AGAIN)) == pytest.approx(computed, rel=1e-9)
    assert added > 0.0


def test_each_kind_of_layer_has_something_of_its_own_to_recompute(recomputed: dict):
    """The comparison above can fail: every term is a good part of some pass."""
    for name, share in FORWARD_SHARES.items():
        parts = [float(getattr(none, name) / share / (full.total - none.total)) for none, full in recomputed.values()]
        assert max(parts) > 0.01, name
    scans = recomputed["scans"][0]
    assert float(scans.attention) > 0.1 * float(scans.total)


PIPELINED = {"n_microbatches": 8, "dp": 4, "tp": 2}
TIED = {stages: js.Plan(**PIPELINED, pp=stages) for stages in (1, 2, 4, 8)}


def tied_case(tied: bool, vocabulary: float, plan: js.Plan, **fields: float) -> Configuration:
    """A model that may tie its embeddings."""
    shape = js.Transformer(
        24, 4096, 32, n_kv_heads=8, d_ff=12288, vocab_size=vocabulary, tied_embeddings=tied, **fields
    )
    return case(shape, plan, lossy(4))


NO_WORDS = 1e-9
"""A vocabulary without weight [token]."""


@pytest.mark.parametrize("state", ["weights", "gradients", "optimizer"])
@pytest.mark.parametrize("stages", [2, 4, 8])
def test_stages_hold_the_model_together_and_tied_embeddings_twice(state: str, stages: int):
    """Each end of a pipeline needs the shared matrix: the lookup at its begin, the logits at its end."""

    def held(tied: bool, pp: int) -> float:
        """On all ranks of tp and stages, from what the first stage holds of layers and of embeddings."""
        full, layers = peaks(*(tied_case(tied, words, TIED[pp]) for words in (50304.0, NO_WORDS)))
        ends = min(pp, 2)
        per_stage, per_end = float(getattr(layers, state)), float(getattr(full, state) - getattr(layers, state))
        return 2.0 * (pp * per_stage + ends * per_end)

    whole = {tied: held(tied, 1) for tied in (False, True)}
    matrix = whole[False] - whole[True]
    assert held(False, stages) == pytest.approx(whole[False], rel=1e-9)
    assert held(True, stages) == pytest.approx(whole[True] + matrix, rel=1e-9)
    params = {tied: float(js.n_params(tied_case(tied, 50304.0, TIED[1]).model)) - 4096 * 49 for tied in whole}
    assert whole[True] / whole[False] == pytest.approx(params[True] / params[False], rel=1e-9)
    assert matrix / whole[False] == pytest.approx(50304 * 4096 / params[False], rel=1e-9)


def test_ends_of_a_pipeline_do_as_much_for_tied_embeddings_as_for_two():
    """The same gradients are reduced and the same weights updated from two stages on; on a single one fewer."""
    plans = [*TIED.values()]
    found = {tied: steps(*(tied_case(tied, 256000.0, plan) for plan in plans)) for tied in (False, True)}
    for name in (GRADIENTS, UPDATE):
        tied, untied = (terms(name, found[one]) for one in (True, False))
        np.testing.assert_allclose(tied[1:], untied[1:], rtol=1e-9)
        assert tied[0] < 0.95 * untied[0]


SLOW_HOST = 1.0
"""Time to launch a layer, far above what a chip takes for one: no host is ahead of its chip [s]."""


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize(("stages", "count"), [(3, 3), (4, 32), (8, 8)])
def test_the_last_stage_of_1f1b_holds_what_one_stage_with_one_microbatch_does(stages: int, count: int, recompute: str):
    """Its logits made the largest of all: transient activations are those of one microbatch, not of all in flight."""
    coefficients = lossy(6, host_time_layer=SLOW_HOST)
    fields = {"tp": 4, "micro_batch_size": 2, "recompute": recompute, "loss_bytes": 3000.0}
    pipeline = case(DENSE, js.Plan(pp=stages, n_microbatches=count, **fields), coefficients)
    alone = case(changed(DENSE, n_layers=24.0 / stages), js.Plan(**fields), coefficients)
    doubled = changed(pipeline, coefficients__queued_bytes=2.0 * coefficients.queued_bytes)
    last, single, queued = (float(peak.activations + peak.logits) for peak in peaks(pipeline, alone, doubled))
    assert last == pytest.approx(single, rel=1e-9)
    assert queued == pytest.approx(last, rel=1e-12)
    first, more = (
        float(peak.activations) for peak in peaks(*(changed(one, plan__loss_bytes=0.0) for one in (pipeline, doubled)))
    )
    assert more > 1.02 * first


@pytest.mark.parametrize(("stages", "virtual"), [(4, 1), (4, 2), (8, 3), (2, 12)])
def test_the_last_stage_waits_for_all_but_the_last_of_its_chunks(stages: int, virtual: int):
    """Of v chunks all but one hold p microbatches, the last chunk one: 2 bytes per element of each input kept."""
    coefficients = lossy(6)
    fields = {**FIRST, "schedule": "interleaved" if virtual > 1 else "1f1b"}
    plan = js.Plan(pp=stages, vpp=virtual, n_microbatches=8 * stages, **fields)
    found = peaks(*(case(DENSE, one, coefficients) for one in (plan, js.Plan(**FIRST))))
    held = [float(peak.activations + peak.logits) for peak in found]
    chunks = (virtual - 1) * stages + 1
    inputs = 2.0 * 2 * 4096 * 4096 * 24 / stages / virtual * chunks
    once = 2.0 * 2 * 4096 * 4096 * 24
    assert held[0] - held[1] == pytest.approx(inputs - once, rel=1e-6)


FIRST = {"micro_batch_size": 2, "recompute": "full", "loss_bytes": 3000.0}
"""One stage with one microbatch."""


SHARDED = {"0": {}, "1": {"zero_stage": 1}, "2": {"zero_stage": 2}, "hybrid": {"zero_stage": 1, "shard_group": 4}}


@pytest.mark.parametrize("zero", SHARDED)
def test_a_model_without_trained_weights_sends_and_keeps_no_gradients(zero: str):
    plan = js.Plan(dp=32, tp=2, n_microbatches=4, **SHARDED[zero])
    for shape in (DENSE, MIXTURE):
        for share, sends in ((0.0, False), (1.0, True)):
            one = case(changed(shape, trainable_share=share), plan, lossy(7, **UNHIDDEN))
            slow = changed(one, cluster__network__bandwidth=0.5 * np.asarray(one.cluster.network.bandwidth))
            now, later = terms(GRADIENTS, steps(one, slow))
            assert (later > 1.5 * now) == sends
            if not sends:
                assert later == pytest.approx(now, rel=1e-12)
            peak = peaks(one)[0]
            assert (float(peak.gradients) > 0.0) == (float(peak.optimizer) > 0.0) == sends
            assert (float(steps(one)[0].optimizer) > 0.0) == sends


def test_gradients_are_sent_for_the_share_of_weights_that_is_trained():
    """Gathers of FSDP, two of 16 bits per weight and microbatch, stay; its scatters, of 32 bits, go with the share."""
    coefficients = lossy(8, **UNHIDDEN, **NO_LATENCY)
    shares = (0.0, 0.25, 1.0)

    def times(**fields: float) -> np.ndarray:
        plan = js.Plan(dp=32, tp=2, n_microbatches=4, **fields)
        found = steps(*(case(changed(DENSE, trainable_share=share), plan, coefficients) for share in shares))
        return terms(GRADIENTS, found)

    plain, sharded = times(), times(zero_stage=3)
    np.testing.assert_allclose(plain / plain[-1], shares, atol=1e-12)
    np.testing.assert_allclose(sharded / sharded[0], [1.0, 1.25, 2.0], rtol=1e-9)
    # An all-reduce once moves as much as two gathers of 32 bits.
    np.testing.assert_allclose(sharded[-1] / plain[-1], 4.0 * (4.0 + 4.0) / 8.0, rtol=1e-9)


def test_the_batches_of_these_tests_are_no_ideal_machines(batch: Configuration):
    """Every coefficient is off one and nothing for most configurations."""
    for name in js.Coefficients.__dataclass_fields__:
        values = getattr(batch.coefficients, name)
        if values is not None:
            assert (np.abs(np.asarray(values) - 1.0) > 1e-3).mean() > 0.9, name
    assert np.isfinite(peaks_of(batch).total).all()
