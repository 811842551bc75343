"""Configurations of Hugging Face: counts of released models, and what has no field is told."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
from hf_builders import EVERY_SIXTH, decoder, latent
from hf_dense import DENSE
from hf_hybrids import HYBRIDS
from hf_mixtures import MIXTURES

import jaxscale as js
from jaxscale.base.errors import InputError
from jaxscale.models import described_model, model, model_file_fields
from jaxscale.models.hf.hf_model import converted
from jaxscale.models.transformer import (
    ARGUMENTS,
    Transformer,
    attention_params,
    n_active_params,
    n_params,
    scores_per_token,
)
from jaxscale.plans.rules import violations
from jaxscale.runs.measured import describe_runs
from jaxscale.runs.schema import MODEL_FIELDS

RELEASED = DENSE | MIXTURES | HYBRIDS


def counted(config: dict) -> tuple[float, float]:
    """Parameters of a configuration in all and active [1e9]."""
    shape = Transformer(**converted(config).fields)
    return float(n_params(shape)) / 1e9, float(n_active_params(shape)) / 1e9


@pytest.mark.parametrize("name", RELEASED)
def test_released_models_have_their_published_counts(name: str):
    released = RELEASED[name]
    total, active = counted(released.config)
    assert total == pytest.approx(released.params, rel=released.tolerance)
    assert active == pytest.approx(released.active or total, rel=released.active_tolerance)


def test_a_wrong_depth_misses_the_published_count():
    """Negative control."""
    released = RELEASED["Llama-3.1-8B"]
    assert counted(released.config | {"num_hidden_layers": 33})[0] != pytest.approx(released.params, rel=0.01)


def test_no_remark_moves_the_time_by_much():
    """Shares of the flops of a step in the remarks stay below 5 %."""
    for name, released in RELEASED.items():
        shares = [word for text in converted(released.config).not_modelled for word in text.split(" %")[:-1]]
        assert all(float(share.split()[-1]) < 5.0 for share in shares), name


def test_remarked_shares_are_in_proportion():
    """Twice the heads of an indexer and twice the residual streams take twice the time, within the printed digit."""
    config = RELEASED["DeepSeek-V4-Flash"].config
    twice = {key: 2 * config[key] for key in ("index_n_heads", "hc_mult")}
    shares = [
        [float(share) for share in re.findall(r"([\d.]+) %", " ".join(converted(one).not_modelled))]
        for one in (config, config | twice)
    ]
    assert len(shares[0]) == 2 and min(shares[0]) > 0.5
    assert shares[1] == pytest.approx(2.0 * np.asarray(shares[0]), abs=0.15)


@pytest.mark.parametrize(("pattern", "heads"), [(0, (64.0, 4.0)), (1, (32.0, 8.0))], ids=["full", "windows"])
def test_layers_of_one_kind_have_the_heads_of_that_kind(pattern: int, heads: tuple[float, float]):
    config = next(one.config for one in MIXTURES.values() if one.config["model_type"] == "mimo_v2_flash")
    layers = [pattern] * config["num_hidden_layers"]
    fields = converted(config | {"hybrid_layer_pattern": layers, "swa_num_attention_heads": 32}).fields
    assert (fields["n_heads"], fields["n_kv_heads"]) == heads
    assert not fields.keys() & {"window_heads", "window_kv_heads"}


def test_prediction_layers_and_vision_towers_are_parts():
    """DeepSeek-V3: 671e9 and one prediction layer of 11.5e9 (technical report, table of its weights)."""
    parts = converted(RELEASED["DeepSeek-V3"].config).parts
    assert parts["prediction layers"] == pytest.approx(11.6e9, rel=0.02)
    vision = converted(RELEASED["gemma-3-27b"].config).parts["vision tower"]
    assert vision == pytest.approx(0.417e9, rel=0.02)
    assert not converted(RELEASED["Llama-3.1-8B"].config).parts


def test_windows_by_layer():
    shape = Transformer(**converted(RELEASED["gemma-3-27b"].config).fields)
    assert (shape.window, shape.window_share) == (1024.0, pytest.approx(52 / 62))
    assert scores_per_token(shape) < shape.n_heads * shape.seq_len
    plain = Transformer(**converted(RELEASED["Qwen2.5-7B"].config).fields)
    assert scores_per_token(plain) == plain.n_heads * plain.seq_len


def test_sparse_attention_reads_the_chosen_keys():
    config = decoder("deepseek_v32", 61, 7168, 128, 128, 18432, 129280, **latent(1536), index_topk=2048)
    chosen = converted(config | {"index_n_heads": 64, "index_head_dim": 128})
    assert (chosen.fields["window"], chosen.fields["window_share"]) == (2048, 1)
    assert "sparse-attention indexer" in chosen.not_modelled[0]
    assert not converted(config | {"index_topk": None}).not_modelled


def test_layers_with_a_window_keep_their_own_heads():
    """Attention of Gemma 4: 25 layers of 16 x 256 with 8 x 256 keys, five of 16 x 512 with 2 x 512 keys as values."""
    shape = Transformer(**converted(RELEASED["gemma-4-26B-A4B"].config).fields)
    d = 2816.0
    windowed, full = d * (2 * 16 * 256 + 2 * 8 * 256), d * (2 * 16 * 512 + 2 * 512)
    expected = (25 * windowed + 5 * full) / 30
    assert float(attention_params(shape)) == pytest.approx(expected, rel=1e-6)
    assert len(EVERY_SIXTH) * 5 == 30
    assert (shape.n_kv_heads, shape.window_kv_heads) == (2.0, 8.0)


def test_mlp_widths_of_single_layers_are_means():
    one = decoder("llama", 2, 64, 4, 2, 128, 100)
    assert counted({**one, "intermediate_size": [64, 192]}) == counted(one)
    with pytest.raises(InputError, match="is no size"):
        converted({**one, "intermediate_size": [64, "wide"]})


def test_gates_and_low_rank_outputs():
    shape = {"n_layers": 2, "d_model": 64, "n_heads": 4, "head_dim": 32, "v_head_dim": 16}
    plain = float(attention_params(Transformer(**shape)))
    assert float(attention_params(Transformer(**shape, attention_gate=1))) - plain == 64 * 4 * 16
    low = float(attention_params(Transformer(**shape, o_lora_rank=8, o_groups=2)))
    assert low - plain == 8 * (4 * 16 / 2 + 64) - 4 * 16 * 64
    assert plain - float(attention_params(Transformer(**shape, shared_key_value=1))) == 64 * 4 * (32 + 16) / 2


def test_files_names_and_folders(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(RELEASED["Qwen3-30B-A3B"].config))
    assert model(file).n_experts == model(tmp_path).n_experts == 128.0
    assert model(file, seq_len=512).seq_len == 512.0
    assert model_file_fields(file)["moe_top_k"] == 8
    toml = tmp_path / "mine.toml"
    toml.write_text("[model]\nn_layers = 2\nd_model = 64\nn_heads = 4\n")
    assert described_model(toml).fields == {"n_layers": 2, "d_model": 64, "n_heads": 4}


BAD = {
    "not JSON": ("{", "not valid JSON"),
    "a list": ("[1]", "is no configuration"),
    "empty": ("{}", "'num_hidden_layers' is missing"),
    "a word for a size": ('{"num_hidden_layers": "many"}', "'num_hidden_layers' = 'many' is no size"),
    "no width": ('{"num_hidden_layers": 2, "num_attention_heads": 2}', "'hidden_size' is missing"),
    "two stacks": ('{"model_type": "t5", "num_layers": 2}', "has an encoder and a decoder"),
    "a strange layer": (
        json.dumps(decoder("llama", 1, 8, 2, 2, 16, 10, layer_types=["quantum"])),
        "a layer of kind 'quantum' is not known",
    ),
    "more keys than heads": (json.dumps(decoder("llama", 1, 8, 2, 4, 16, 10)), "exceeds n_heads"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_configuration_with_a_mistake_is_refused_in_one_line(tmp_path, name):
    text, expected = BAD[name]
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        model(file)
    assert expected in str(caught.value) and str(caught.value).startswith(f"{file}: ")
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="absent.json: cannot be read"):
        model(tmp_path / "absent.json")


def test_an_unknown_family_says_so():
    assert "is not known" in converted(decoder("newest", 2, 64, 4, 2, 128, 100)).not_modelled[-1]


def test_a_model_in_a_row_is_the_model(tmp_path: Path):
    """Every released configuration: all fields of the `Transformer` that a row becomes are those of its file."""
    names = {name: tmp_path / f"{place}.json" for place, name in enumerate(RELEASED)}
    for name, path in names.items():
        path.write_text(json.dumps(RELEASED[name].config))
    rows = {"model_file": [str(path) for path in names.values()], "gpu": "h100-80gb", "n_gpus": 64, "seq_len": 4096}
    rows |= {"tp": 1, "pp": 1, "micro_batch_size": 1, "global_batch_size_seqs": 64}
    table = {name: value if isinstance(value, list) else [value] * len(names) for name, value in rows.items()}
    batch = describe_runs(js.read_runs(table)).batch
    assert batch is not None and len(batch) == len(names)
    for row, (name, path) in enumerate(names.items()):
        own = js.model(path, seq_len=4096)
        for field in dataclasses.fields(own):
            assert getattr(batch.model, field.name)[row] == getattr(own, field.name), (name, field.name)


def test_rows_can_say_every_argument_of_a_model():
    assert {*MODEL_FIELDS, "seq_len"} == set(ARGUMENTS)


def test_windows_with_heads_of_their_own_are_planned_and_predicted(tmp_path: Path):
    """A row that leaves its plan open asks the planner, which finds plans by the heads of both kinds of layers."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(RELEASED["gemma-4-26B-A4B"].config))
    row = {"model_file": [str(path)], "gpu": ["h100-80gb"], "n_gpus": [64], "global_batch_size_seqs": [512]}
    found = js.predict({**row, "seq_len": [4096]}, fit="prior")
    assert found.step_time[0] > 0.0 and "micro_batch_size" in found.assumed[0]
    mimo = Transformer(**converted(RELEASED["MiMo-V2-Flash"].config).fields)
    assert not violations(mimo, js.Plan(dp=1, tp=8, cp=8), 64)
    assert any("window_kv_heads = 8" in text for text in violations(mimo, js.Plan(dp=2, tp=12), 24))
