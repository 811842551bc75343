"""Frameworks by the names that people have for them, their defaults, and what a blank cell may mean."""

from typing import Any

import numpy as np
import pytest

import jaxscale as js
from jaxscale.runs.defaults import recomputation
from jaxscale.runs.predict import Prediction

ROW = {
    "model": "qwen3-30b-a3b", "framework": "megatron-lm", "seq_len": 4096, "gpu": "h100-80gb", "n_gpus": 16, "tp": 1,
    "pp": 1, "ep": 16, "micro_batch_size": 1, "global_batch_size_seqs": 1024,
}  # fmt: skip
RECIPE = {"moe_dispatcher": "hybridep", "execution": "cuda-graphs"}


def predicted(*rows: dict[str, Any]) -> Prediction:
    """Predictions of rows that differ from `ROW` in some cells."""
    names = dict.fromkeys([*ROW, *(name for row in rows for name in row)])
    return js.predict({name: [{**ROW, **row}.get(name) for row in rows] for name in names})


def test_an_interval_covers_what_a_blank_cell_may_mean_and_the_note_says_which_column_decides():
    """Megatron-LM's own recipe takes 25.1 s (16 H100, Qwen3-30B); without its options a run is twice as long."""
    fits = {"zero_stage": 1}
    found = predicted(fits, {**fits, "moe_dispatcher": "alltoall", "execution": "eager"}, {**fits, **RECIPE})
    assert found.lo[0] < 25.1 < found.hi[0] and found.lo[1] > 25.1
    assert found.step_time[0] == found.step_time[1]
    assert found.lo[0] <= found.lo[2] and found.hi[0] >= found.hi[1]
    assert "moe_dispatcher = hybridep and execution = cuda-graphs would take 0." in found.notes[0]
    assert "blank cells" not in found.notes[1] + found.notes[2]


def test_a_dense_run_is_asked_for_its_tensor_parallel_collectives_alone():
    dense = {"model": "llama3-70b", "ep": 1}
    found = predicted({**dense, "tp": 8}, {**dense, "tp": 8, "tp_overlap": "backward"}, dense)
    assert found.step_time[0] == found.step_time[1] and found.hi[0] >= found.hi[1] and found.lo[0] < found.lo[1]
    assert "tp_overlap = full would take 0." in found.notes[0]
    assert "blank cells" not in found.notes[1] + found.notes[2]


def test_a_table_that_says_what_its_rows_did_leaves_nothing_to_a_guess():
    known = {"model": "llama3-70b", "tp": 8, "ep": 1, "source": "megatron_lm_readme_scaling"}
    found = predicted({**known, "source_row": "model_table:1"}, {"model": "llama3-70b", "tp": 8, "ep": 1})
    assert "blank cells" not in found.notes[0] and "blank cells" in found.notes[1]


def test_more_chunks_than_layers_leave_the_ends_a_layer_less():
    """Qwen3-235B has 94 layers: 96 chunks hold them, the embedding and the logits head."""
    run = {"model": "qwen3-235b-a22b", "n_gpus": 256, "pp": 32, "vpp": 3, "ep": 8, "micro_batch_size": 4}
    found = predicted(run, {**run, "first_stage_layers": 2, "last_stage_layers": 2}, {**run, "vpp": 4})
    assert found.step_time[0] == found.step_time[1] and found.memory[0] == found.memory[1]
    # 128 chunks are no reading of 94 layers.
    assert "exceeds 94 layers" in found.notes[2] and "exceeds" not in found.notes[0]


def test_a_run_that_does_not_fit_is_told_the_blank_cells_that_would_let_it():
    run = {"model": "llama3-70b", "framework": None, "ep": 1, "n_gpus": 64, "global_batch_size_seqs": 512}
    full = {"zero_stage": 3, "activation_recompute": "full"}
    found = predicted(run, {**run, **full}, {**run, "zero_stage": 0}, {"model": "llama3-8b", "ep": 1, "tp": 8})
    assert not found.fits[0] and found.fits[1] and not found.fits[2] and found.fits[3]
    peak, factor = round(found.memory[1] / 1e9), round(float(found.step_time[1] / found.step_time[0]), 2)
    assert f"activation_recompute = full would fit, in {peak:g} GB, and take {factor:g} times as long" in found.notes[0]
    # What is stated is no guess, and what fits needs none.
    assert "would fit" not in found.notes[2] + found.notes[3]


NAMES = {
    "peft": "transformers", "trl": "transformers", "axolotl": "transformers", "LLaMA-Factory": "transformers",
    "ms-swift": "transformers", "unsloth": "transformers", "OpenRLHF": "transformers", "verl": "pytorch-fsdp",
    "verl-megatron": "megatron-lm", "litgpt": "pytorch-fsdp", "fms": "pytorch-fsdp", "open_lm": "pytorch-fsdp",
    "EasyLM": "jax", "bionemo": "nemo", "torchprime": "jax", "Primus": "megatron-lm", "megatron-bridge": "nemo",
}  # fmt: skip


def test_names_that_people_have_are_answered_by_known_features():
    rows = [{"framework": name, "model": "llama3-8b", "ep": 1} for name in (*NAMES, "lightning", "thunder", "nemo")]
    found = predicted(*rows)
    for note, (name, base) in zip(found.notes, NAMES.items(), strict=False):
        assert f"framework {name.lower()} is answered as {base}" in note
    assert not any("answered as" in note for note in found.notes[-3:])
    places = {name: place for place, name in enumerate((*NAMES, "lightning", "thunder", "nemo"))}
    same = places["bionemo"], places["megatron-bridge"], places["nemo"]
    assert len({(found.lo[place], found.hi[place], found.memory[place]) for place in same}) == 1
    assert "not in the fit" not in found.notes[places["megatron-bridge"]], "it has the interval of nemo, too"


@pytest.mark.parametrize(("layers", "measured"), [(2, 11.33), (4, 18.35), (10, 39.43), (20, 74.56)])
def test_pure_16_bit_peaks_of_thunder(layers: int, measured: float):
    """Peaks of Llama-2 13B by layers that Thunder's authors measured on one H100 (2024) [1e9 byte]."""
    row = {"model": "llama2-13b", "n_layers": layers, "framework": "lightning-thunder", "precision": "bf16-true"}
    row |= {"n_gpus": 1, "ep": 1, "micro_batch_size": 2, "global_batch_size_seqs": 2}
    found = predicted({**row}, {**row, "kept_gate": False})
    assert found.memory[0] / 1e9 == pytest.approx(measured, rel=0.15)
    off = np.abs(found.memory[:2] / 1e9 - measured)
    assert layers < 20 or off[0] < 0.5 * off[1], "what a compiler makes again is not what it kept"
    assert np.all(np.isfinite(found.step_time))


@pytest.mark.parametrize(
    ("name", "ending"),
    [
        ("amd/Llama-3.1-70B-Instruct-FP8-KV", "fp8-kv"),
        ("Qwen/Qwen2.5-72B-Instruct-AWQ", "awq"),
        ("lmsys/vicuna-7b-v1.5-16k", "16k"),
        ("unsloth/Meta-Llama-3.1-8B-bnb-4bit", "bnb-4bit"),
        ("meta-llama/Llama-3.1-8B-Instruct", ""),
        ("gpt-oss-120b", ""),
    ],
)
def test_a_variant_is_answered_by_its_base_and_says_so(name: str, ending: str):
    found = js.predict({key: [cell] for key, cell in {**ROW, "ep": 1, "framework": "nemo", "model": name}.items()})
    assert np.isfinite(found.step_time[0])
    assert (f": {ending} changes no shape" in found.notes[0]) if ending else "is taken as" not in found.notes[0]


def test_a_module_inside_another_one_is_recomputed_once():
    """The recipe of Nemotron 3 Super names the activation of experts beside the whole mixture that holds it."""
    both, whole = (recomputation("selective", words, "nemo") for words in ("moe+moe_act+layernorm", "moe+layernorm"))
    part = recomputation("selective", "moe_act+layernorm", "nemo")
    assert both == whole
    assert part.dropped < whole.dropped < 1.0


@pytest.mark.parametrize(
    ("name", "word", "is_told"),
    [("moe_dispatcher", "deepep", True), ("expert_skew", 0.5, True), ("moe_overlap", False, False)],
)
def test_columns_of_mixtures_are_told_to_say_nothing_of_a_dense_model(name: str, word: Any, is_told: bool):
    found = predicted({"model": "llama3-8b", "ep": 1, name: word}, {name: word})
    assert (f"{name} has no effect: no experts" in found.notes[0]) == is_told
    assert "no effect" not in found.notes[1]
