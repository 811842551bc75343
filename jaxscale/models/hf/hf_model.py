"""Conversion of a config.json of Hugging Face to arguments of `Transformer`, and remarks on features without a field.

Linear attention and convolutions become state-space layers with equal projections and state. A state-space layer has
$d (3 d_i + 2 n_s)$ parameters, with $d_i$ the inner width and $n_s$ groups times state. Gated delta networks (arXiv
2412.06464) project d to queries and keys of width $n_s$ and to values and gates of width $d_i$, an equal count. For
further layer types $n_s$ is set to match the number of parameters, and the groups to match the state of the scan.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxscale.base.arrays import as_whole
from jaxscale.base.errors import InputError
from jaxscale.models.hf.hf_layers import FAMILIES, LayerKinds, attention_fields, is_mixture, layer_kinds, mlp_fields
from jaxscale.models.hf.hf_settings import ENCODER_DECODERS, Settings
from jaxscale.models.transformer import Transformer, model_flops, n_params, ssm_layers


def prediction_part(settings: Settings, fields: Mapping[str, Any]) -> dict[str, float]:
    """Parameters of multi-token prediction layers, beyond the fields of the model [1]; empty without these layers."""
    count = settings.number("num_nextn_predict_layers", "mtp_num_hidden_layers", "mtp_num_layers", default=0)
    if settings.flag("use_mtp"):
        count = settings.number("num_mtp_modules", default=1) * settings.number("mtp_transformer_layers", default=1)
    if not count:
        return {}
    deeper = n_params(Transformer(**{**fields, "n_predict_layers": count}))
    return {"prediction layers": float(deeper - n_params(Transformer(**fields)))}


def vision_params(vision: Mapping[str, Any]) -> float:
    """Parameters of a vision transformer: attention, MLPs, patch embedding, projection to the language model [1]."""
    settings = Settings(vision)
    width = settings.number("hidden_size", "embed_dim", "vt_hidden_size", default=0)
    depth = settings.number("num_hidden_layers", "depth", "vt_num_hidden_layers", "layers", default=0)
    inner = settings.number("intermediate_size", "vt_intermediate_size", default=4.0 * width)
    patch = settings.number("patch_size", default=14)
    matrices = 3.0 if settings.get("hidden_act") == "silu" or settings.kind in FAMILIES["gated_towers"] else 2.0
    # The outputs of four patches are joined and projected to the width of the language model.
    merged = 4.0 * width if settings.get("out_hidden_size") else 0.0
    joined = merged * (merged + settings.number("out_hidden_size", default=0))
    # Attention 4 w^2, MLP, and patch embedding 3 p^2 w.
    return depth * (4.0 * width**2 + matrices * width * inner) + 3.0 * patch**2 * width + joined


def told_remarks(
    settings: Settings, fields: Mapping[str, Any], parts: Mapping[str, float], scans: list[str]
) -> list[str]:
    """Remarks on features of a configuration without a field in `Transformer`, with the effect on time and memory."""
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
    if settings.kind not in FAMILIES["known"]:
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


def recurrent_fields(settings: Settings, kinds: LayerKinds) -> tuple[dict[str, Any], list[str]]:
    """Linear attention, state-space and convolution layers as arguments of `Transformer`, with remarks on the scans."""
    d_model = settings.number("hidden_size", "n_embd", "d_model", "dim")
    for kind, convert in (("linear", _linear), ("mamba", _mamba), ("conv", _convolution)):
        if layers := kinds.count(kind):
            (inner, state, groups), remark = convert(settings, d_model)
            fields = {"n_ssm_layers": layers, "ssm_d_inner": inner, "ssm_state": state, "ssm_groups": groups}
            return fields, [remark] if remark else []
    return {}, []


def _linear(settings: Settings, d_model: float) -> tuple[tuple[float, float, float], str]:
    """Gated delta, Kimi delta or lightning attention."""
    scan = "{} layers: scans are counted as those of Mamba-2, which do about half the flops of the scan; step time "
    if settings.get("linear_attn_config.kda_layers") is not None:
        head = settings.number("linear_attn_config.head_dim", default=128)
        heads = settings.number("linear_attn_config.num_heads", "num_attention_heads")
        inner = heads * head
        # Queries, keys, values and output are four inner widths; gates of rank `head`, and one number for each head.
        state = inner / 2.0 + head * (1.0 + inner / d_model) + heads / 2.0
        return (inner, state, state / head), scan.format("Kimi delta attention")
    if settings.get("linear_num_value_heads") is not None:
        values = settings.number("linear_num_value_heads")
        keys = settings.number("linear_num_key_heads")
        inner = values * settings.number("linear_value_head_dim")
        # 2 d n_s: queries, keys, and two numbers for each value head.
        state = keys * settings.number("linear_key_head_dim") + values
        return (inner, state, keys), scan.format("gated delta")
    heads = settings.number("num_attention_heads")
    head = settings.number("head_dim", default=d_model / heads)
    # Queries, keys, values, output gate and output: five inner widths.
    return (heads * head, heads * head, heads), ""


def _mamba(settings: Settings, d_model: float) -> tuple[tuple[float, float, float], str]:
    expanded = settings.number("expand", "mamba_expand", default=2.0) * d_model
    state = settings.number("ssm_state_size", "mamba_d_state", "state_size", default=128)
    heads = settings.get("mamba_num_heads", "mamba_n_heads", "num_heads")
    if settings.kind in ("jamba", "mamba", "falcon_mamba") or heads is None:
        inner = settings.number("intermediate_size", default=expanded) if settings.kind != "jamba" else expanded
        rank = settings.get("mamba_dt_rank", "time_step_rank")
        # `auto` in Mamba: d / 16.
        rank = float(rank) if isinstance(rank, int | float) else math.ceil(d_model / 16)
        # 2 d n_s = d_i (2 r + 2 s): projections to step, B and C, and of the step.
        mixed = inner * (rank + state) / d_model
        remark = "Mamba-1 layers: their scan, channel by channel, is counted as that of Mamba-2; step time "
        return (inner, mixed, mixed / state), remark
    width = settings.number("mamba_head_dim", "mamba_d_head", "head_dim", default=expanded / float(heads))
    inner = settings.number("mamba_d_ssm", default=float(heads) * width)
    groups = settings.number("n_groups", "mamba_n_groups", default=1)
    return (inner, groups * state, groups), ""


def _convolution(settings: Settings, d_model: float) -> tuple[tuple[float, float, float], str]:
    """Gated short convolutions (LFM2): three input projections and an output projection, as wide as the model."""
    # d (3 d + 2 d / 2) = 4 d^2; state over groups is the length of the filter.
    return (d_model, d_model / 2.0, d_model / 2.0 / settings.number("conv_L_cache", default=3)), ""


TIED = frozenset(
    "gemma gemma2 gemma3 gemma3n gemma4 gpt2 gpt_neo gpt_bigcode bloom opt mpt falcon bert roberta starcoder2 cohere "
    "cohere2 lfm2 lfm2_moe deberta deberta-v2 vit deit dinov2 mamba mamba2".split()
)
"""Families that tie their embeddings where the configuration does not say."""

LEARNED_POSITIONS = frozenset("gpt2 gpt_neo gpt_bigcode opt bert roberta xlm-roberta electra distilbert".split())
ENCODERS = frozenset(
    "bert roberta xlm-roberta electra deberta deberta-v2 distilbert modernbert vit deit dinov2".split()
)
IMAGES = frozenset("vit deit dinov2".split())
TRAINED_LENGTH = 4096.0
"""Sequence length where a configuration states no shorter one: its own is what the model can read at most [token]."""


class Converted(NamedTuple):
    """A configuration as a `Transformer`.

    Attributes:
        fields: arguments of `Transformer`.
        parts: parameters beyond the fields, by name of the component [1].
        not_modelled: features without a field.
        length: origin of the sequence length, in words.
    """

    fields: dict[str, Any]
    parts: dict[str, float]
    not_modelled: tuple[str, ...]
    length: str


def converted(config: Mapping[str, Any]) -> Converted:
    """Conversion of a configuration to arguments of `Transformer`.

    Args:
        config: content of a config.json.

    Raises:
        InputError: no depth, width or heads, an invalid size, or an unsupported type of model.
    """
    settings = Settings(config)
    if settings.flag("is_encoder_decoder") or settings.kind in ENCODER_DECODERS:
        raise InputError(f"model_type {settings.kind!r} has an encoder and a decoder; expected a model of one stack")
    kinds = layer_kinds(settings, is_mixture(settings))
    attention = attention_fields(settings, kinds)
    recurrent, scans = recurrent_fields(settings, kinds)
    fields = {"n_layers": len(kinds.mixers), **attention, **_counts(kinds), **recurrent, **mlp_fields(settings, kinds)}
    fields |= _vocabulary(settings, fields["d_model"])
    fields = {name: as_whole(value) for name, value in fields.items()}
    parts = prediction_part(settings, fields)
    if settings.vision is not None:
        parts["vision tower"] = vision_params(settings.vision)
    parts = {name: params for name, params in parts.items() if params}
    longest = 0.0 if settings.kind in IMAGES else _longest(settings)
    length = f"as in pretraining; the file allows {longest:,.0f}" if longest > TRAINED_LENGTH else "as the file says"
    return Converted(fields, parts, tuple(told_remarks(settings, fields, parts, scans)), length)


def _counts(kinds: LayerKinds) -> dict[str, Any]:
    """Layers with attention and with an MLP, where not all have both."""
    n_layers, attention, mlps = len(kinds.mixers), kinds.count("full", "window"), kinds.mlp_count("dense", "moe")
    counts = {"n_attention_layers": attention, "n_mlp_layers": mlps}
    return {name: count for name, count in counts.items() if count != n_layers}


def _vocabulary(settings: Settings, d_model: float) -> dict[str, Any]:
    """Embeddings, positions and sequence length."""
    if settings.kind in IMAGES:
        return _image_patches(settings)
    tied = settings.flag("tie_word_embeddings", "tie_embeddings", default=settings.kind in TIED)
    fields: dict[str, Any] = {
        "vocab_size": settings.number("vocab_size", "padded_vocab_size"),
        "tied_embeddings": tied,
        "seq_len": min(_longest(settings), TRAINED_LENGTH),
    }
    if settings.kind in LEARNED_POSITIONS:
        fields["position_embeddings"] = settings.number("max_position_embeddings", "n_positions", "n_ctx", default=0)
    if settings.kind in ENCODERS:
        fields["causal"] = False
    return fields


def _longest(settings: Settings) -> float:
    """Longest sequence before any extension of the context [token]."""
    return settings.number(
        "rope_scaling.original_max_position_embeddings", "initial_context_length", "max_position_embeddings",
        "n_positions", "seq_length", "max_seq_len", "model_max_length", default=TRAINED_LENGTH,
    )  # fmt: skip


def _image_patches(settings: Settings) -> dict[str, Any]:
    """Vision transformer: a patch is a token, and the patch embedding a tied vocabulary of pixels."""
    size, patch = settings.number("image_size", default=224), settings.number("patch_size", default=16)
    # Patches and a class token.
    tokens = (size // patch) ** 2 + 1
    pixels = patch**2 * settings.number("num_channels", default=3)
    return {
        "vocab_size": pixels,
        "tied_embeddings": True,
        "seq_len": tokens,
        "position_embeddings": tokens,
        "causal": False,
    }
