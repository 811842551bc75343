"""No stated column is without effect: each moves a predicted number or the note, or is documented as carried along."""

from pathlib import Path
from typing import Any

import pytest

import jaxscale as js
from jaxscale.runs.predict import Prediction
from jaxscale.runs.schema import BY_NAME, CARRIED

BASE = {
    "model": "llama3-8b", "framework": "pytorch", "seq_len": 4096, "gpu": "h100-80gb", "n_gpus": 16, "tp": 2, "pp": 2,
    "activation_recompute": "none", "micro_batch_size": 1, "global_batch_size_seqs": 64, "source_row": "x",
}  # fmt: skip
OPEN = {name: value for name, value in BASE.items() if name not in ("activation_recompute", "micro_batch_size", "pp")}
OWN = {**BASE, "model": None, "n_layers": 32, "d_model": 4096, "n_heads": 32}
MIXTURE = {**BASE, "model": "qwen3-30b-a3b", "ep": 4, "gpus_per_node": 2}
LATENT = {**BASE, "model": "deepseek-v3", "n_gpus": 512, "pp": 1, "tp": 8, "ep": 64, "global_batch_size_seqs": 512}
WINDOWED = {**BASE, "window": 1024, "window_share": 0.5}
HYBRID = {**BASE, "model": "nemotron-h-8b"}
SHARDED = {**BASE, "tp": 1, "pp": 1, "zero_stage": 3}
ADAPTED = {**BASE, "framework": "transformers", "adapter": "lora"}

CASES: dict[str, tuple[dict[str, Any], Any]] = {
    "source": (BASE, "mine"), "model": (BASE, "llama3-70b"), "framework": (BASE, "nemo"),
    "release": ({**BASE, "framework": "megatron-lm"}, "2021"),
    "n_layers": (BASE, 16),
    "d_model": (OWN, 2048), "n_heads": (OWN, 16), "n_kv_heads": (BASE, 32), "d_ff": (BASE, 8192),
    "gated_mlp": (BASE, False), "vocab_size": (BASE, 32000), "n_experts": (MIXTURE, 64), "moe_top_k": (MIXTURE, 4),
    "head_dim": (BASE, 64), "tied_embeddings": ({**BASE, "pp": 1}, True), "d_ff_expert": (MIXTURE, 1024),
    "n_shared_experts": (MIXTURE, 1), "n_dense_layers": (MIXTURE, 4), "moe_latent_size": (MIXTURE, 1024),
    "q_lora_rank": (LATENT, 768), "kv_lora_rank": (LATENT, 256), "rope_head_dim": (LATENT, 32),
    "v_head_dim": (LATENT, 64), "window": ({**WINDOWED, "window": 2048}, 1024),
    "window_share": (WINDOWED, 0.9),
    "window_heads": (WINDOWED, 16), "window_kv_heads": (WINDOWED, 4), "window_head_dim": (WINDOWED, 64),
    "window_v_head_dim": (WINDOWED, 64), "window_shared_key_value": (WINDOWED, True),
    "first_stage_layers": (BASE, 15), "last_stage_layers": (BASE, 15),
    "n_attention_layers": (HYBRID, 8), "n_mlp_layers": (HYBRID, 12),
    "n_ssm_layers": (HYBRID, 12), "ssm_d_inner": (HYBRID, 4096), "ssm_state": (HYBRID, 256), "ssm_groups": (HYBRID, 1),
    "n_predict_layers": (BASE, 1), "o_lora_rank": (BASE, 512), "o_groups": ({**BASE, "o_lora_rank": 512}, 4),
    "position_embeddings": (BASE, 65536), "shared_key_value": (BASE, True), "attention_gate": (BASE, True),
    "expert_bias": (MIXTURE, True), "causal": (BASE, False), "trainable_share": (BASE, 0), "seq_len": (BASE, 8192),
    "gpu": (BASE, "a100-80gb"), "n_gpus": (BASE, 32), "gpus_per_node": (BASE, 4),
    "inter_node_gbit_per_s_per_gpu": ({**BASE, "gpus_per_node": 1}, 25), "precision": (BASE, "fp8"), "tp": (BASE, 4),
    "pp": (BASE, 4), "vpp": (BASE, 2), "cp": (BASE, 2), "ep": (MIXTURE, 2), "dp": ({**OPEN, "micro_batch_size": 1}, 4),
    "etp": (MIXTURE, 1), "shard_group": (SHARDED, 8), "zero_stage": (BASE, 1), "sequence_parallel": (BASE, True),
    "activation_recompute": (BASE, "full"), "recompute_modules": (BASE, "mlp"), "schedule": (BASE, "gpipe"),
    "offload": (BASE, "optimizer"), "execution": (MIXTURE, "cuda-graphs"), "tp_overlap": (BASE, "full"),
    "overlap_gradients": (BASE, False), "overlap_gathers": (SHARDED, False), "moe_dispatcher": (MIXTURE, "allgather"),
    "expert_skew": (MIXTURE, 1.0), "expert_load": (MIXTURE, 2.0),
    "capacity_factor": ({**MIXTURE, "expert_skew": 1.0}, 1.25),
    "balanced_experts": ({**MIXTURE, "expert_skew": 1.0}, True),
    "moe_overlap": (MIXTURE, True), "attention_kernel": (BASE, "eager"), "fused_norm": (BASE, False),
    "fused_glu": (BASE, True), "chunked_loss": (BASE, True), "vocab_parallel_loss": (BASE, True),
    "optimizer": (BASE, "sgd"), "optimizer_bytes": (BASE, 4), "gradient_bytes": (BASE, 2), "weight_bytes": (BASE, 4),
    "loss_bytes": (BASE, 6), "adapter": (BASE, "lora"), "lora_rank": (ADAPTED, 64), "lora_targets": (ADAPTED, "mlp"),
    "adapter_bytes": (ADAPTED, 2), "autocast": (BASE, True), "wide_weights": (BASE, True),
    "narrow_gate": ({**BASE, "precision": "fp8"}, True), "kept_gate": ({**BASE, "execution": "compiled"}, True),
    "copied_attention": (BASE, True), "dropout": (BASE, True),
    "kept_gradients": ({**SHARDED, "global_batch_size_seqs": 16}, True), "gradient_copy_bytes": (BASE, 4),
    "held_bytes": (BASE, 3e9), "cached_share": ({**BASE, "mem_kind": "reserved"}, 0.3),
    "host_time_layer": (BASE, 0.01), "cached_gradients": (BASE, True),
    "gathered_stages": ({**BASE, "zero_stage": 3}, True),
    "queued_collectives": ({**BASE, "pp": 4}, False),
    "micro_batch_size": (BASE, 2), "global_batch_size_seqs": (BASE, 128),
    "n_microbatches": ({**OPEN, "pp": 2}, 4), "mem_kind": (BASE, "driver"),
}  # fmt: skip
"""For each column a row for which it means something, and a cell."""

OF_WORKLOADS = ("workload", "split_classes", "table_placement", "joint_statistics")
"""Columns of traced workloads, which `test_traced_rows.py` states one by one."""

NUMBERS = ("step_time", "lo", "hi", "memory", "memory_lo", "memory_hi", "oom_probability")


def differing(cases: dict[str, tuple[dict[str, Any], Any]]) -> set[str]:
    """Columns whose statement moves a predicted number or the note."""
    rows = [row for name, (base, cell) in cases.items() for row in (base, {**base, name: cell})]
    names = dict.fromkeys(name for row in rows for name in row)
    found = js.predict({name: [row.get(name) for row in rows] for name in names})
    return {name for place, name in enumerate(cases) if answer(found, 2 * place) != answer(found, 2 * place + 1)}


def answer(found: Prediction, row: int) -> tuple[Any, ...]:
    """What is said of a row."""
    return (*(float(getattr(found, name)[row]) for name in NUMBERS), found.notes[row], found.assumed[row])


def test_every_stated_column_moves_a_number_or_the_note():
    assert set(CASES) == set(BY_NAME) - {*CARRIED, *OF_WORKLOADS, "model_file"}
    assert differing(CASES) == set(CASES)


@pytest.mark.parametrize(("name", "cell"), [("notes", "4 GB"), ("step_time_s", 3.0)])
def test_what_is_carried_along_decides_nothing(name: str, cell: Any):
    """Negative control of the comparison, and of the list."""
    assert differing({name: (BASE, cell)}) == set()


def test_what_is_carried_along_is_documented():
    text = (Path(__file__).parents[2] / "data" / "README.md").read_text(encoding="utf-8")
    told = text.split("Some columns are carried along")[1].split("A fit reads")[0]
    assert all(f"`{name}`" in told for name in CARRIED) and told.count("`") == 2 * len(CARRIED)
