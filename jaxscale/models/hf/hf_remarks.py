"""Features of a configuration without a field of `Transformer`, with the effect on time and memory."""

from collections.abc import Mapping
from typing import Any

from jaxscale.models.hf.hf_settings import Settings
from jaxscale.models.transformer import Transformer, model_flops, n_params, ssm_layers

KNOWN = frozenset(
    (
        "llama llama4 mistral mistral3 ministral3 mixtral qwen2 qwen2_moe qwen3 qwen3_moe qwen3_next qwen3_5 "
        "qwen3_5_moe qwen2_vl qwen2_5_vl qwen3_vl qwen3_vl_moe deepseek deepseek_v2 deepseek_v3 deepseek_v32 "
        "deepseek_v4 kimi_k2 kimi_k25 kimi_linear kimi_k3 glm glm4 glm4_moe glm4_moe_lite glm_moe_dsa gpt_oss gemma "
        "gemma2 gemma3 gemma3n gemma4 phi phi3 phimoe phi4mm olmo olmo2 olmo3 olmoe nemotron nemotron_h nemotron-nas "
        "granite granitemoe granitemoeshared granitemoehybrid minimax minimax_m1 minimax_m2 minimax_text_01 mimo "
        "mimo_v2_flash step3p5 step3p7 step3 jamba falcon falcon_h1 falcon_mamba falcon3 starcoder2 gpt_bigcode gpt2 "
        "gpt_neo gpt_neox gptj bert roberta modernbert vit deit dinov2 opt bloom mpt stablelm cohere cohere2 ernie4_5 "
        "ernie4_5_moe hunyuan_v1_dense hunyuan_v1_moe exaone exaone4 smollm3 bailing_moe bailing_moe_v2 seed_oss "
        "arcee apertus dots1 internlm2 internlm3 baichuan lfm2 lfm2_moe bamba mamba mamba2 dbrx moonlight afmoe gpt- "
        "neox persimmon codegen xlm-roberta electra deberta-v2 distilbert qwen longcat_flash "
    ).split()
)
"""Values of `model_type` whose keys the reader has been checked to understand."""

GATED_TOWERS = frozenset("pixtral qwen2_5_vl qwen2_5_vl_vision".split())
"""Values of `model_type` of vision towers whose MLP has three matrices."""


def prediction_part(settings: Settings, fields: Mapping[str, Any]) -> dict[str, float]:
    """Parameters of the layers for multi-token prediction, which the fields leave out [1]."""
    count = settings.number("num_nextn_predict_layers", "mtp_num_hidden_layers", "mtp_num_layers", default=0)
    if settings.flag("use_mtp"):
        count = settings.number("num_mtp_modules", default=1) * settings.number("mtp_transformer_layers", default=1)
    if not count:
        return {}
    deeper = n_params(Transformer(**{**fields, "n_predict_layers": count}))
    return {"prediction layers": float(deeper - n_params(Transformer(**fields)))}


def vision_params(vision: Mapping[str, Any]) -> float:
    """Parameters of a vision transformer: attention and MLP of its layers, embedding and joining of patches [1]."""
    settings = Settings(vision)
    width = settings.number("hidden_size", "embed_dim", "vt_hidden_size", default=0)
    depth = settings.number("num_hidden_layers", "depth", "vt_num_hidden_layers", "layers", default=0)
    inner = settings.number("intermediate_size", "vt_intermediate_size", default=4.0 * width)
    patch = settings.number("patch_size", default=14)
    matrices = 3.0 if settings.get("hidden_act") == "silu" or settings.kind in GATED_TOWERS else 2.0
    # The outputs of four patches are joined and projected to the width of the language model.
    merged = 4.0 * width if settings.get("out_hidden_size") else 0.0
    joined = merged * (merged + settings.number("out_hidden_size", default=0))
    # Attention 4 w^2, MLP, and patch embedding 3 p^2 w.
    return depth * (4.0 * width**2 + matrices * width * inner) + 3.0 * patch**2 * width + joined


def told_remarks(
    settings: Settings, fields: Mapping[str, Any], parts: Mapping[str, float], scans: list[str]
) -> list[str]:
    """Features without a field, with the effect of each on time and memory."""
    model = Transformer(**fields)
    # A third of a training step is forward.
    flops = float(model_flops(model, causal=True)) / 3.0
    said = [f"{text}up to {_percent(_scan_flops(model), flops)} more" for text in scans]
    if settings.get("index_topk") and settings.get("index_n_heads"):
        said.append(_indexer(settings, fields, flops))
    if streams := settings.number("hc_mult", default=0):
        share = _percent(8.0 * streams * fields["n_layers"] * fields["d_model"] * 100.0, flops)
        said.append(
            f"hyper-connections: {streams:g} residual streams instead of one; memory-bound work grows, step time by"
            f" {share} or so, memory of kept inputs of layers up to {streams:g} times"
        )
    if widths := settings.number("hidden_size_per_layer_input", default=0):
        params = settings.number("vocab_size_per_layer_input", "vocab_size") * widths * fields["n_layers"]
        said.append(f"embeddings of each layer: {params / 1e9:.2f}e9 parameters more in memory; step time below 1 %")
    if vision := parts.get("vision tower"):
        said.append(f"vision tower: {vision / 1e9:.2f}e9 parameters more in memory; step time of text 0 %")
    if settings.kind not in KNOWN:
        said.append(f"model_type {settings.kind!r} is not known: its keys are read as those of Llama and DeepSeek")
    return said


def _percent(flops: float, of: float) -> str:
    share = 100.0 * flops / of
    return f"{share:.1f} %" if share >= 0.1 else "0.1 %"


def _scan_flops(model: Transformer) -> float:
    """Forward flops of the scans of all layers for a token, see `jaxscale.costs.attention` [flop]."""
    return float(6.0 * model.ssm_state / model.ssm_groups * model.ssm_d_inner * ssm_layers(model))


def _indexer(settings: Settings, fields: Mapping[str, Any], flops: float) -> str:
    """Remark on the scores of sparse attention's key selection; the selection counts as a window."""
    heads, width = settings.number("index_n_heads"), settings.number("index_head_dim", default=128)
    rank = settings.number("q_lora_rank", default=0) or fields["d_model"]
    # DeepSeek-V4 chooses among blocks of four tokens, in the layers that have such blocks.
    ratios = [ratio for ratio in settings.sequence("compress_ratios") or () if 0 < ratio <= 8]
    layers, block = (len(ratios), max(ratios)) if ratios else (fields["n_layers"], 1.0)
    params = layers * (rank * heads * width + fields["d_model"] * (width + heads))
    # 2 flop a score, halved by the causal mask.
    scores = layers * heads * width * fields["seq_len"] / block
    share = _percent(2.0 * params + scores, flops)
    return (
        f"sparse-attention indexer: {params / 1e9:.2f}e9 parameters; its scores take {share} of the flops of a step at"
        f" {fields['seq_len']:g} tokens, in proportion to the length; attention itself reads"
        f" {settings.number('index_topk'):g} chosen keys"
    )
