"""A config.json of Hugging Face as arguments of `Transformer`, and features without a field.

Layers without attention become state-space layers with equal projections and state. A state-space layer has
$d (3 d_i + 2 n_s)$ parameters, with $d_i$ the inner width and $n_s$ groups times state. Gated delta networks (arXiv
2412.06464) project d to queries and keys of width $n_s$ and to values and gates of width $d_i$, the same count. Further
types get the $n_s$ that gives the count of parameters, and the groups that give the state of the scan.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxscale.base.arrays import as_whole
from jaxscale.base.errors import InputError
from jaxscale.models.hf.hf_attention import attention_fields
from jaxscale.models.hf.hf_layers import LayerKinds, layer_kinds
from jaxscale.models.hf.hf_mlp import is_mixture, mlp_fields
from jaxscale.models.hf.hf_remarks import prediction_part, told_remarks, vision_params
from jaxscale.models.hf.hf_settings import ENCODER_DECODERS, Settings


def recurrent_fields(settings: Settings, kinds: LayerKinds) -> tuple[dict[str, Any], list[str]]:
    """Linear attention, state-space and convolution layers as arguments of `Transformer`, with remarks."""
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
    """Fields of a `Transformer`, parameters of parts beyond the fields [1], and features without a field."""

    fields: dict[str, Any]
    parts: dict[str, float]
    not_modelled: tuple[str, ...]


def converted(config: Mapping[str, Any]) -> Converted:
    """A configuration as arguments of `Transformer`.

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
    return Converted(fields, parts, tuple(told_remarks(settings, fields, parts, scans)))


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
    longest = settings.number(
        "rope_scaling.original_max_position_embeddings", "initial_context_length", "max_position_embeddings",
        "n_positions", "seq_length", "max_seq_len", "model_max_length", default=TRAINED_LENGTH,
    )  # fmt: skip
    fields: dict[str, Any] = {
        "vocab_size": settings.number("vocab_size", "padded_vocab_size"),
        "tied_embeddings": tied,
        "seq_len": min(longest, TRAINED_LENGTH),
    }
    if settings.kind in LEARNED_POSITIONS:
        fields["position_embeddings"] = settings.number("max_position_embeddings", "n_positions", "n_ctx", default=0)
    if settings.kind in ENCODERS:
        fields["causal"] = False
    return fields


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
