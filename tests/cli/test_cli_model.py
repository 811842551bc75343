"""`jaxscale model`: figures of a catalogue model and of a config.json; the list of the catalogue."""

import json

import pytest

CONFIG = {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 48,
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "vocab_size": 151936,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}


def test_figures_of_a_file(run, tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIG))
    document = run("model", file, "--json").json
    named = run("model", "Qwen/Qwen3-30B-A3B", "--json").json
    assert {"n_params", "n_active_params", "flop_per_token", "kv_bytes_per_token", "fields", "not_modelled"} <= set(
        named
    )
    for key in ("n_params", "n_active_params", "flop_per_token", "kv_bytes_per_token"):
        assert document[key] == pytest.approx(named[key], rel=1e-6)
    assert document["kv_bytes_per_token"] == 2 * 48 * 4 * 128 * 2
    text = run("model", file).out
    assert "30.53e9 parameters, 3.35e9 active" in text and "n_experts = 128" in text


def test_keys_and_values_of_latent_attention(run):
    """DeepSeek-V3 keeps 512 + 64 numbers for each token and layer (arXiv 2412.19437, section 4.2)."""
    assert run("model", "deepseek-v3", "--json").json["kv_bytes_per_token"] == 2 * 61 * (512 + 64)


def test_the_catalogue_is_listed(run):
    assert "llama3-8b" in run("model").out
    assert "deepseek-v3" in run("model", "--json").json["models"]


def test_refusals(run):
    outcome = run("model", "gpt-9")
    assert outcome.code == 2 and outcome.out == "" and outcome.err.count("\n") == 1
