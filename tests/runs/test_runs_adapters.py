"""Adapters: sizes as published, bytes and flops of their weights alone, and cells that contradict them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jaxscale as js
from jaxscale.base.arrays import with_fields
from jaxscale.base.errors import InputError
from jaxscale.models.transformer import n_params
from jaxscale.plans.adapters import adapter_widths, target_shares
from jaxscale.plans.plan import Plan
from jaxscale.runs.predict import Prediction

ROW = {
    "model": "llama2-7b", "framework": "transformers", "seq_len": 2048, "gpu": "a100-80gb", "n_gpus": 1, "tp": 1,
    "pp": 1, "activation_recompute": "full", "micro_batch_size": 1, "global_batch_size_seqs": 8, "source_row": "",
}  # fmt: skip


def predicted(*rows: dict[str, Any]) -> Prediction:
    """Predictions of rows that differ from `ROW` in some cells."""
    names = dict.fromkeys([*ROW, *(name for row in rows for name in row)])
    return js.predict({name: [{**ROW, **row}.get(name) for row in rows] for name in names})


@pytest.mark.parametrize(
    ("name", "targets", "rank", "published"),
    [
        # Trainable parameters as peft prints them for its examples (2023 to 2025).
        ("llama2-7b", "q+v", 8, 4_194_304),
        ("llama2-7b", "all-linear", 64, 159_907_840),
        ("llama3-8b", "all-linear", 16, 41_943_040),
        ("llama3-8b", "attention", 8, 6_815_744),
        ("llama3.1-70b", "all-linear", 16, 207_093_760),
    ],
)
def test_weights_of_adapters_are_the_published_ones(name: str, targets: str, rank: int, published: int):
    widths = adapter_widths(js.model(name), target_shares(targets))
    assert float(rank * (widths.dense + widths.routed)) == published


def test_experts_have_adapters_each_and_a_token_meets_those_of_its_own():
    mixture = js.Transformer(2, 1024, 8, 512, d_ff=2048, gated_mlp=True, n_experts=8, moe_top_k=2)
    widths = adapter_widths(mixture, target_shares("down"))
    assert (float(widths.dense), float(widths.routed), float(widths.of_token)) == (0, 2 * 8 * 3072, 2 * 2 * 3072)


def test_states_are_those_of_the_adapters_alone():
    plan = Plan(recompute="full", gradient_bytes=4, kept_gradients=True, adapter_bytes=2)
    shape = js.model("llama2-7b", seq_len=2048)
    adapted = with_fields(plan, {"lora_rank": np.float64(64.0)})
    frozen = js.memory(with_fields(shape, {"trainable_share": np.float64(0.0)}), plan, "a100-80gb")
    full, lora = (js.memory(shape, one, "a100-80gb") for one in (plan, adapted))
    states = float(lora.optimizer + lora.gradients)
    assert states == pytest.approx(16.0 * 159_907_840, rel=1e-9), "and not of the 7e9 beside them"
    assert float(lora.weights) == float(frozen.weights)
    assert float(full.optimizer + full.gradients) == pytest.approx(16.0 * float(n_params(shape)), rel=0.01)


def test_embeddings_and_head_have_no_adapters():
    """A larger vocabulary moves neither the states nor the gradients of adapters, nor their reduction and update."""
    cluster, plan = js.cluster("h100-80gb", 8), Plan(dp=8, zero_stage=1, lora_rank=64, recompute="full")
    shapes = (js.Transformer(8, 1024, 8, 1024, vocab_size=size) for size in (32_000, 256_000))
    small, large = ((js.memory(shape, plan, cluster), js.step_time(shape, plan, cluster)) for shape in shapes)
    for term in ("optimizer", "gradients"):
        assert float(getattr(small[0], term)) == pytest.approx(float(getattr(large[0], term)), rel=1e-9)
    assert float(small[1].optimizer) == pytest.approx(float(large[1].optimizer), rel=1e-9)
    assert float(small[0].weights) < float(large[0].weights)  # negative control


def test_a_token_passes_through_the_adapters_three_times():
    """With ideal kernels the matmuls grow by 6 r (d_in + d_out) flops of a token, and by no gradient of a weight."""
    shape = js.model("llama2-7b", seq_len=2048)
    chip = js.chip("a100-80gb")
    times = [
        float(js.step_time(shape, Plan(lora_rank=rank, lora_targets="mlp"), "a100-80gb").matmul)
        for rank in (512.0, 1024.0, 2048.0)
    ]
    widths = float(adapter_widths(shape, target_shares("mlp")).of_token)
    ideal = 6.0 * 512.0 * widths * 2048.0 / float(chip.peak("bf16"))
    assert times[2] - times[1] == pytest.approx(2.0 * (times[1] - times[0]), rel=1e-3)
    assert 1.0 < (times[1] - times[0]) / ideal < 1.6


def test_narrow_weights_cost_a_time_that_tokens_do_not_change():
    """16 to 30 ms per 1e9 weights and microbatch with recomputation, on A100 (Qwen's README of 2024)."""
    lengths = (512, 2048, 8192)
    rows = [{"seq_len": length, "adapter": word, "lora_rank": 8} for word in ("lora", "qlora") for length in lengths]
    times = predicted(*rows).step_time
    per_weight = (times[3:] - times[:3]) / 8.0 / 6.48e9
    assert per_weight == pytest.approx(per_weight[0], rel=0.02)
    assert 16e-12 < per_weight[0] < 30e-12


def test_qlora_and_the_width_it_stands_for_are_one():
    found = predicted(
        {"adapter": "qlora", "lora_rank": 8, "lora_targets": "q_proj, v_proj"},
        {"adapter": "lora", "lora_rank": 8, "weight_bytes": 0.5, "lora_targets": "q+v"},
        {"adapter": "lora", "weight_bytes": 1},
        {"adapter": "lora"},
        {"trainable_share": 0},
        {},
    )
    assert found.step_time[0] == found.step_time[1] and found.memory[0] == found.memory[1]
    assert found.memory[0] < found.memory[2] < found.memory[3] < found.memory[5]
    assert found.step_time[4] < found.step_time[3] < found.step_time[5]
    assert "lora_rank is empty: taken as 8; lora_targets is empty: taken as q+v" in found.notes[3]
    assert "lora" not in found.notes[0] and "lora" not in found.notes[5]


def test_frozen_weights_take_the_bytes_that_are_stated():
    """Llama-3.1 70B: embeddings and logits head stay in 16 bits, 70.0e9 weights of the layers do not."""
    cells = {"model": "llama3.1-70b", "trainable_share": 0, "mem_kind": "allocated"}
    memory = predicted(*({**cells, "weight_bytes": width} for width in (None, 0.5, 1, 2, 4))).memory / 1e9
    assert memory[0] == memory[3]
    assert memory[4] - memory[3] == pytest.approx(2.0 * 70.6, rel=0.02)
    assert memory[3] - memory[2] == pytest.approx(68.5, rel=0.02)
    assert memory[2] - memory[1] == pytest.approx(0.4375 * 68.5, rel=0.02)


def test_gathered_weights_are_as_wide_as_they_are_stored():
    cells = {"n_gpus": 8, "zero_stage": 3, "model": "llama3.1-70b", "gpus_per_node": 1, "global_batch_size_seqs": 8}
    cells |= {"inter_node_gbit_per_s_per_gpu": 25, "overlap_gathers": False}
    found = predicted(*({**cells, "adapter": word} for word in ("lora", "qlora")))
    over_links = found.terms["data_parallel"]
    assert over_links[1] / over_links[0] == pytest.approx(0.5625 / 2.0, rel=0.1)


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        ({"adapter": "dora"}, "expected none, lora or qlora"),
        ({"adapter": "banana"}, "expected one of none"),
        ({"lora_targets": "q+banana"}, "'banana' is not known; expected some of q, k, v, o"),
        ({"adapter": "none", "lora_rank": 8}, "contradicts lora_rank"),
        ({"adapter": "qlora", "weight_bytes": 2}, "contradicts adapter = qlora"),
        ({"adapter": "lora", "lora_rank": 8, "trainable_share": 0.5}, "which are 0.000622 of the weights"),
    ],
)
def test_contradictions_are_refused_in_one_line(cells: dict[str, Any], says: str):
    with pytest.raises(InputError) as refused:
        predicted(cells)
    assert says in str(refused.value) and "\n" not in str(refused.value)


def test_a_share_that_agrees_is_taken():
    found = predicted(
        {"adapter": "lora", "lora_rank": 8, "lora_targets": "q+v", "trainable_share": 0.00062},
        {"adapter": "lora", "lora_rank": 8, "lora_targets": "q+v"},
    )
    assert found.step_time[0] == found.step_time[1]


@pytest.mark.parametrize("words", ["all-linear", "q+v", "attention"])
def test_plans_with_adapters_have_words(words: str, plan: Callable[..., Plan] = Plan):
    made = plan(lora_rank=8, lora_targets=words)
    assert made.words()["lora_targets"] == words
    assert Plan(**made.words()).words() == made.words()
    with pytest.raises(ValueError, match="lora_targets = 'banana'"):
        plan(lora_targets="banana")
