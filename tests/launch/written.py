"""Plans and models that settings are written of, and an independent count of what the settings build."""

import ast
import re
from functools import cache
from typing import Any

from jaxscale.launch.options import pattern_of
from jaxscale.models import catalogue_model
from jaxscale.plans.plan_questions import framework_space

MODELS = (
    "llama3-8b",
    "falcon-7b",
    "llama3.2-1b",
    "mixtral-8x7b",
    "qwen3-30b-a3b",
    "deepseek-v3",
    "kimi-k2",
    "gemma3-27b",
    "nemotron-h-56b",
    "jamba-1.5-mini",
    "gpt3-13b",
    "llama4-maverick",
    "gpt-oss-20b",
)
"""Dense and gated, ungated, tied, mixtures, latent attention, windows, hybrids, learned positions, shared experts."""

CLUSTERS = ((8, 8), (64, 8), (256, 4))
"""Chips, and chips of a node."""

FRAMEWORKS = ("megatron-lm", "megatron-bridge", "torchtitan", "maxtext", "deepspeed", "nanotron")
ENDINGS = {
    "megatron-lm": "sh",
    "megatron-bridge": "py",
    "torchtitan": "py",
    "torchtitan-toml": "toml",
    "deepspeed": "json",
}


def fields(name: str) -> dict[str, Any]:
    """Arguments of a model of the catalogue; `with prediction layers` behind the name adds one."""
    found = dict(catalogue_model(name.split(" with ")[0]) or {})
    return {**found, "n_predict_layers": 1} if " with " in name else found


@cache
def software_of(framework: str) -> tuple[dict[str, Any], Any]:
    """Words of a framework's software, and the space of its plans."""
    space = framework_space(framework)
    return space.software.words(), space


def plan_of(framework: str, model: dict[str, Any], n_chips: int, **changes: Any) -> dict[str, Any]:
    """A plan of some chips as `Plan.words` gives it, with the software of a framework."""
    words, space = software_of(framework.removesuffix("-toml"))
    tp = 2 if model["n_heads"] % 2 == 0 and model.get("n_kv_heads", 2) % 2 == 0 else 1
    pp = 2 if n_chips > 8 and not model.get("tied_embeddings") else 1
    plan = {**words, "dp": n_chips // tp // pp, "tp": tp, "pp": pp, "vpp": 1, "cp": 1, "ep": 1}
    plan |= {"zero_stage": space.zero_stage[-1], "micro_batch_size": 1, "n_microbatches": 8, "recompute": "none"}
    plan |= {"sequence_parallel": tp > 1, "recompute_full": 0.0}
    plan |= changes
    usual = "1f1b" if plan["pp"] == 1 or "1f1b" in space.schedule else space.schedule[0]
    return {"schedule": "interleaved" if plan["vpp"] > 1 else usual, **plan, "shard_group": plan["dp"]}


def n_params_of(framework: str, settings: dict[str, Any], text: str) -> float:
    """Parameters of the model that settings build, counted from the settings' own keys [1]."""
    if framework == "megatron-lm":
        return megatron_params({key[2:].replace("-", "_"): value for key, value in settings.items()})
    if framework == "megatron-bridge":
        return megatron_params(bridge_options(settings))
    if framework == "torchtitan":
        return titan_params(settings, text)
    if framework == "maxtext":
        return maxtext_params(settings)
    return nanotron_params({key.removeprefix("model.model_config."): value for key, value in settings.items()})


def bridge_options(settings: dict[str, Any]) -> dict[str, Any]:
    """Fields of Megatron-Bridge under the names of Megatron-LM's options."""
    own = {key.removeprefix("model."): value for key, value in settings.items() if key.startswith("model.")}
    own["num_experts"] = own.get("num_moe_experts")
    own["swiglu"] = own["gated_linear_unit"]
    own["untie_embeddings_and_output_weights"] = not own["share_embeddings_and_output_weights"]
    own["disable_bias_linear"] = not own["add_bias_linear"]
    own["group_query_attention"] = "num_query_groups" in own
    own["max_position_embeddings"] = own["seq_length"]
    return own


def megatron_params(o: dict[str, Any]) -> float:
    """Parameters by Megatron-LM's options, as its modules have them, without padding of the vocabulary [1]."""
    d, heads = o["hidden_size"], o["num_attention_heads"]
    norm = d * (2 if o["normalization"] == "LayerNorm" else 1)
    matrices = 3 if o.get("swiglu") else 2
    if o.get("multi_latent_attention"):
        query = heads * (o["qk_head_dim"] + o["qk_pos_emb_head_dim"])
        rank = o.get("q_lora_rank")
        attention = d * rank + rank * query if rank else d * query
        attention += d * (o["kv_lora_rank"] + o["qk_pos_emb_head_dim"])
        attention += o["kv_lora_rank"] * heads * (o["qk_head_dim"] + o["v_head_dim"]) + heads * o["v_head_dim"] * d
    else:
        width = o["kv_channels"] * heads
        groups = o["num_query_groups"] if o.get("group_query_attention") else heads
        attention = 2 * d * width + 2 * d * o["kv_channels"] * groups
        attention += d * width if o.get("attention_output_gate") else 0
    dense = matrices * d * o["ffn_hidden_size"]
    mixture = 0.0
    if experts := o.get("num_experts"):
        inner = o.get("moe_latent_size") or d
        mixture = experts * matrices * inner * o["moe_ffn_hidden_size"] + d * experts
        mixture += matrices * d * (o.get("moe_shared_expert_intermediate_size") or 0)
        mixture += 2 * d * inner if o.get("moe_latent_size") else 0
    embeddings = (2 if o.get("untie_embeddings_and_output_weights") else 1) * o["vocab_size"] * d
    if o["position_embedding_type"] == "learned_absolute":
        embeddings += o["max_position_embeddings"] * d
    if letters := str(o.get("hybrid_layer_pattern") or "").replace("|", ""):
        inner = o.get("mamba_num_heads", 0) * o.get("mamba_head_dim", 0)
        groups = o.get("mamba_num_groups", 0) * o.get("mamba_state_dim", 0)
        mamba = d * (2 * inner + 2 * groups + o.get("mamba_num_heads", 0)) + inner * d
        sizes = {"M": mamba, "*": attention, "-": dense, "E": mixture}
        return embeddings + norm + sum(sizes[letter] + norm for letter in letters)
    layers = o["num_layers"]
    pattern = pattern_of(o.get("moe_layer_freq", "")) or [1 if experts else 0] * layers
    total = sum(attention + 2 * norm + (mixture if entry else dense) for entry in pattern)
    if predicts := o.get("mtp_num_layers"):
        total += predicts * (attention + (mixture or dense) + 2 * norm + 2 * d * d)
    return embeddings + norm + total


PUBLISHED = {
    "llama3 8B": 8_030_261_248,
    "llama3 1B": 1_235_814_400,
    "qwen3 30B-A3B": 30_532_122_624,
    "deepseek_v3 671B": 671_026_404_352,
    "gpt_oss 20b": 20_914_757_184,
}
"""Parameters of models of torchtitan's registry, counted by building them without memory in release 0.3.0."""


def titan_params(settings: dict[str, Any], text: str) -> float:
    """Parameters of the registry's model, or of the layers that the configuration builds [1]."""
    if (spec := settings["model_spec"]) in PUBLISHED:
        return PUBLISHED[spec]
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    builder = next(
        call for call in calls if ast.unparse(call.func).startswith("family._build") and len(call.keywords) > 4
    )
    a: dict[Any, Any] = {
        word.arg: word.value.value for word in builder.keywords if isinstance(word.value, ast.Constant)
    }
    d, heads = a["dim"], a["n_heads"]
    if "kv_lora_rank" in a:
        rope, part = a["qk_rope_head_dim"], a["qk_nope_head_dim"]
        query, rank = heads * (rope + part), a["q_lora_rank"]
        attention = (d * rank + rank * query if rank else d * query) + d * (a["kv_lora_rank"] + rope)
        attention += a["kv_lora_rank"] * heads * (part + a["v_head_dim"]) + heads * a["v_head_dim"] * d
    else:
        head = a.get("head_dim") or d // heads
        attention = 2 * d * heads * head + 2 * d * head * a["n_kv_heads"]
    dense = 3 * d * (a.get("hidden_dim") or a.get("dense_hidden_dim") or 0)
    shared = 3 * d * a.get("num_shared_experts", 0) * a.get("moe_hidden_dim", 0)
    mixture = a.get("num_experts", 0) * (3 * d * a.get("moe_hidden_dim", 0) + d) + shared
    n_dense = a.get("n_dense_layers", 0) if "num_experts" in a else a["n_layers"]
    total = n_dense * dense + (a["n_layers"] - n_dense) * mixture + a["n_layers"] * (attention + 2 * d) + d
    if predicts := int((re.search(r"num_mtp_layers=(\d+)", text) or [0, 0])[1]):
        total += predicts * (attention + mixture + 2 * d + 2 * d * d)
    tied = settings.get("model_spec.model.enable_weight_tying")
    return total + (1 if tied else 2) * settings["model_spec.model.vocab_size"] * d


def maxtext_params(s: dict[str, Any]) -> float:
    """Parameters by MaxText's base sizes [1]."""
    d, heads, layers = s["base_emb_dim"], s["base_num_query_heads"], s["base_num_decoder_layers"]
    matrices = len(s["mlp_activations"]) + 1
    if s.get("attention_type") == "mla":
        rope, part = s["qk_rope_head_dim"], s["qk_nope_head_dim"]
        query, rank = heads * (rope + part), s["q_lora_rank"]
        attention = (d * rank + rank * query if rank else d * query) + d * (s["kv_lora_rank"] + rope)
        attention += s["kv_lora_rank"] * heads * (part + s["v_head_dim"]) + heads * s["v_head_dim"] * d
    else:
        attention = 2 * d * s["head_dim"] * (heads + s["base_num_kv_heads"])
    dense, mixture, n_dense = matrices * d * s["base_mlp_dim"], 0, layers
    if (experts := s.get("num_experts", 1)) > 1:
        mixture = (experts + s.get("shared_experts", 0)) * matrices * d * s["base_moe_mlp_dim"] + d * experts
        n_dense = s.get("first_num_dense_layers", 0)
        if s.get("interleave_moe_layer_step", 1) > 1:
            n_dense = layers - layers // s["interleave_moe_layer_step"]
    predicts = s.get("mtp_num_layers", 0) * (attention + (mixture or dense) + 2 * d * d)
    embeddings = (1 if s["logits_via_embedding"] else 2) * s["vocab_size"] * d
    positions = max(s.get("trainable_position_size", 0), 0) * d
    return (
        layers * (attention + 2 * d)
        + n_dense * dense
        + (layers - n_dense) * mixture
        + embeddings
        + positions
        + predicts
    )


def nanotron_params(s: dict[str, Any]) -> float:
    """Parameters by nanotron's sizes [1]."""
    d, heads, layers = s["hidden_size"], s["num_attention_heads"], s["num_hidden_layers"]
    attention = 2 * d * d + 2 * d * (d // heads) * s["num_key_value_heads"]
    dense, mixture, mixtures = 3 * d * s["intermediate_size"], 0, 0
    if experts := s.get("moe_config.num_experts"):
        mixture = experts * (3 * d * s["moe_config.moe_intermediate_size"] + d)
        mixture += 3 * d * s.get("moe_config.shared_expert_intermediate_size", 0)
        mixtures = len(s.get("moe_config.layers", range(layers)))
    embeddings = (1 if s["tie_word_embeddings"] else 2) * s["vocab_size"] * d
    return layers * (attention + 2 * d) + (layers - mixtures) * dense + mixtures * mixture + embeddings + d
