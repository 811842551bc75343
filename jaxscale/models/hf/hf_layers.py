"""Layers of a configuration: token mixer, attention (heads, latent projections, windows) and MLP of each layer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxscale.base.documents import read_toml
from jaxscale.base.errors import InputError
from jaxscale.models.hf.hf_settings import Settings

_TABLE = read_toml(Path(__file__).with_name("hf_words.toml"))

WORDS = {word: kind for kind, words in _TABLE["layers"].items() for word in words}
"""Kinds of layers by the words of configurations and the letters of patterns."""

FAMILIES: Mapping[str, list[str]] = _TABLE["families"]
"""Values of `model_type`: those that are known, and those with layers, windows or towers of their own."""


@dataclass(frozen=True)
class LayerKinds:
    """Token mixer and MLP type of each layer of a model.

    Attributes:
        mixers: full, window, linear, mamba or conv; joined by + for a layer with two mixers, empty for none [layer].
        mlps: dense, moe or empty [layer].
    """

    mixers: tuple[str, ...]
    mlps: tuple[str, ...]

    def count(self, *kinds: str) -> int:
        """Number of layers with any of the given mixers [1]."""
        return sum(any(kind in mixer.split("+") for kind in kinds) for mixer in self.mixers)

    def mlp_count(self, *kinds: str) -> int:
        """Number of layers with an MLP of the given types [1]."""
        return sum(mlp in kinds for mlp in self.mlps)


def layer_kinds(settings: Settings, is_mixture: bool) -> LayerKinds:
    """Token mixer and MLP of each layer of a configuration.

    Raises:
        InputError: no number of layers, or an unknown type of layer.
    """
    n_layers = int(settings.number("num_hidden_layers", "n_layer", "n_layers", "num_layers"))
    if not 1 <= n_layers <= 100_000:
        raise InputError(f"'num_hidden_layers' = {n_layers} is no depth; expected a whole number from 1 to 100000")
    if settings.kind in FAMILIES["double"]:
        return LayerKinds(("full",) * 2 * n_layers, ("moe", "dense") * n_layers)
    if (pattern := _pattern(settings)) is not None:
        words = [_kind(word) for word in pattern]
        mixers = tuple("" if word in ("moe", "dense") else word for word in words)
        return LayerKinds(mixers, tuple(word if word in ("moe", "dense") else "" for word in words))
    mixers = _mixers(settings, n_layers)
    if settings.kind in ("mamba", "mamba2", "falcon_mamba"):
        return LayerKinds(("mamba",) * n_layers, ("",) * n_layers)
    return LayerKinds(mixers, _mlps(settings, n_layers) if is_mixture else ("dense",) * n_layers)


def _kind(word: Any) -> str:
    kind = WORDS.get(str(word).lower())
    if kind is None:
        raise InputError(f"a layer of kind {word!r} is not known; expected one of {', '.join(WORDS)}")
    return kind


def _pattern(settings: Settings) -> Sequence[str] | None:
    """Layers of a stack in which a layer is either a mixer or an MLP."""
    text = settings.get("hybrid_override_pattern")
    if isinstance(text, str):
        return [letter for letter in text.split("/")[0] if letter != "|"]
    blocks = settings.sequence("layers_block_type")
    return blocks if blocks and {"moe", "mlp"} & {str(word).lower() for word in blocks} else None


def _mixers(settings: Settings, n_layers: int) -> tuple[str, ...]:
    """Token mixer of each layer, by the first key that lists mixers."""
    if (words := settings.sequence("layer_types", "layers_block_type")) is not None:
        return tuple(_kind(word) for word in words[:n_layers])
    if (delta := settings.sequence("linear_attn_config.kda_layers")) is not None:
        # Kimi counts layers from 1.
        return tuple("linear" if layer + 1 in delta else "full" for layer in range(n_layers))
    if (is_softmax := settings.sequence("attn_type_list")) is not None:
        return tuple("full" if flag else "linear" for flag in is_softmax[:n_layers])
    if (is_window := settings.sequence("hybrid_layer_pattern")) is not None:
        return tuple("window" if flag else "full" for flag in is_window[:n_layers])
    if (is_chunked := settings.sequence("no_rope_layers")) and settings.get("attention_chunk_size"):
        # In Llama 4 a 1 stands for a layer with rotations, hence with chunks.
        return tuple("window" if flag else "full" for flag in is_chunked[:n_layers])
    rule = _rule(settings, n_layers)
    return tuple(rule(layer) for layer in range(n_layers))


def _rule(settings: Settings, n_layers: int) -> Callable[[int], str]:
    """Mixer of a layer by its index, where the configuration lists no mixers."""
    if settings.kind == "falcon_h1":
        return lambda layer: "full+mamba"
    if (full := settings.sequence("attn_layer_indices", "full_attn_idxs")) is not None:
        other = "conv" if settings.get("full_attn_idxs") is not None else "mamba"
        return lambda layer: "full" if layer in full else other
    if settings.get("attn_layer_period") is not None:
        period, offset = settings.number("attn_layer_period"), settings.number("attn_layer_offset", default=0)
        return lambda layer: "full" if layer % period == offset else "mamba"
    if settings.get("full_attention_interval") is not None:
        interval = settings.number("full_attention_interval")
        # The last layer of an interval is full.
        return lambda layer: "linear" if (layer + 1) % interval else "full"
    window = settings.get("sliding_window", "sliding_window_size")
    if not window or settings.get("use_sliding_window") is False:
        return lambda layer: "full"
    pattern = settings.get("sliding_window_pattern")
    if settings.kind == "gemma2" or (pattern is None and settings.kind in ("gemma3", "cohere2")):
        # Customary periods of the families.
        pattern = {"gemma2": 2, "gemma3": 6, "cohere2": 4}[settings.kind]
    if isinstance(pattern, int) and pattern > 1:
        # The last layer of a period is full.
        return lambda layer: "window" if (layer + 1) % pattern else "full"
    if isinstance(pattern, str):
        return lambda layer: "window" if pattern[layer % len(pattern)].upper() == "L" else "full"
    # The first layers of Qwen are full.
    first = settings.number("max_window_layers", default=0) if settings.kind.startswith("qwen") else 0
    slides = settings.kind in FAMILIES["all_window"] or settings.kind.startswith("qwen")
    return lambda layer: "window" if slides and layer >= first else "full"


def _mlps(settings: Settings, n_layers: int) -> tuple[str, ...]:
    """MLP of each layer of a mixture."""
    if (words := settings.sequence("mlp_layer_types")) is not None:
        return tuple(_kind(word) for word in words[:n_layers])
    if (flags := settings.sequence("moe_layer_freq")) is not None:
        return tuple("moe" if flag else "dense" for flag in flags[:n_layers])
    if (places := _places(settings)) is not None:
        return tuple("moe" if layer in places else "dense" for layer in range(n_layers))
    first = settings.number("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers", default=0)
    step = settings.number(
        "moe_layer_freq", "decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval",
        "expert_layer_period", default=1,
    )  # fmt: skip
    counts_from_zero = settings.get("expert_layer_period") is not None or settings.kind.startswith("deepseek")
    # Counted from 1, the last layer of a step holds the mixture.
    offset = settings.number("expert_layer_offset", default=0) if counts_from_zero else step - 1
    dense = settings.sequence("mlp_only_layers") or ()
    is_mixture = [
        layer >= first and layer not in dense and (step > 0 and layer % step == offset) for layer in range(n_layers)
    ]
    return tuple("moe" if flag else "dense" for flag in is_mixture)


def _places(settings: Settings) -> set[int] | None:
    """Layers with a mixture, where the configuration lists them."""
    places = settings.get("moe_layers", "moe_layers_enum")
    if isinstance(places, str):
        places = [int(place) for place in places.split(",") if place.strip().isdigit()]
    return {int(place) for place in places} if isinstance(places, list) and places else None


def nas_blocks(settings: Settings) -> list[Mapping[str, Any]] | None:
    """Layers of a model from architecture search, with individual attention and MLPs; None for a usual model."""
    blocks = settings.sequence("block_configs")
    return [block for block in blocks if isinstance(block, Mapping)] if blocks else None


GATED = frozenset("qwen3_next qwen3_5 qwen3_5_moe".split())
"""Families whose full attention has an output gate of the width of its heads."""


@dataclass(frozen=True)
class AttentionKind:
    """Attention heads of a group of equal layers.

    Attributes:
        layers: number of layers [1].
        heads: query heads [1].
        key_heads: key/value heads [1].
        width: width of a query or key head [1].
        value_width: width of a value head [1].
        shared: 1 where keys serve as values, else 0 [1].
    """

    layers: float
    heads: float
    key_heads: float
    width: float
    value_width: float
    shared: float = 0.0

    def sizes(self) -> tuple[float, float, float, float]:
        """Heads, key/value heads, width of a head and of a value head [1]."""
        return self.heads, self.key_heads, self.width, self.value_width


def attention_fields(settings: Settings, kinds: LayerKinds) -> dict[str, Any]:
    """Attention fields of a configuration, as arguments of `Transformer`.

    Layers with a window have separate heads where stated in the configuration.
    """
    d_model = settings.number("hidden_size", "n_embd", "d_model", "dim")
    heads = settings.number(
        "num_attention_heads", "n_head", "n_heads", default=1.0 if not kinds.count("full") else None
    )
    fields: dict[str, Any] = {"d_model": d_model, "n_heads": heads}
    full, windowed = kinds.count("full"), kinds.count("window")
    fields |= _windows(settings, full, windowed)
    if settings.number("kv_lora_rank", default=0) > 0:
        return fields | _latent(settings, heads)
    usual = _usual(settings, d_model, heads)
    fields |= _heads(_of_full(settings, usual, full), _of_windows(settings, usual, windowed))
    if settings.flag("attn_output_gate", default=settings.kind in GATED):
        fields["attention_gate"] = 1
    if rank := settings.number("share_q_dim", default=0):
        fields["q_lora_rank"] = rank
    if settings.get("o_lora_rank") and settings.get("q_lora_rank"):
        fields |= {"q_lora_rank": settings.number("q_lora_rank"), "o_groups": settings.number("o_groups", default=1)}
        # The configuration states the rank of a group, the field the rank over all groups.
        fields |= {"o_lora_rank": settings.number("o_lora_rank") * fields["o_groups"], "shared_key_value": 1}
    return fields


def _usual(settings: Settings, d_model: float, heads: float) -> AttentionKind:
    """Attention of layers without special keys in the configuration."""
    if heads <= 0:
        raise InputError(f"'num_attention_heads' = {heads:g} is no number of heads; expected at least 1")
    key_heads = settings.number(
        "num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads", "multi_query_group_num",
        "attn_config.kv_n_heads", "num_attention_groups", default=0,
    )  # fmt: skip
    # Older Falcon: a single key/value head, or as many as query heads.
    if settings.kind == "falcon" and not settings.flag("new_decoder_architecture"):
        key_heads = 1.0 if settings.flag("multi_query", default=True) else heads
    if settings.kind == "gpt_bigcode" and settings.flag("multi_query", default=True):
        key_heads = 1.0
    width = settings.number("head_dim", "kv_channels", "attention_head_dim", "qk_head_dim", default=d_model / heads)
    return AttentionKind(0.0, heads, key_heads or heads, width, settings.number("v_head_dim", default=width))


def _of_full(settings: Settings, usual: AttentionKind, layers: int) -> AttentionKind:
    width = settings.number("global_head_dim", default=usual.width)
    return AttentionKind(
        float(layers),
        usual.heads,
        settings.number("num_global_key_value_heads", default=usual.key_heads),
        width,
        width if settings.get("global_head_dim") else usual.value_width,
        float(settings.flag("attention_k_eq_v")),
    )


def _of_windows(settings: Settings, usual: AttentionKind, layers: int) -> AttentionKind:
    other = "attention_other_setting."
    return AttentionKind(
        float(layers),
        settings.number("swa_num_attention_heads", f"{other}num_attention_heads", default=usual.heads),
        settings.number("swa_num_key_value_heads", f"{other}num_attention_groups", default=usual.key_heads),
        settings.number("swa_head_dim", f"{other}head_dim", default=usual.width),
        settings.number("swa_v_head_dim", f"{other}head_dim", default=usual.value_width),
    )


def _heads(full: AttentionKind, windowed: AttentionKind) -> dict[str, Any]:
    """Heads of full-attention layers and, where different, heads of windowed layers."""
    # A model of windows alone has no full layers.
    one = full if full.layers or not windowed.layers else windowed
    fields: dict[str, Any] = dict(zip(("n_heads", "n_kv_heads", "head_dim", "v_head_dim"), one.sizes(), strict=True))
    if one.shared:
        fields["shared_key_value"] = one.shared
    if not (full.layers and windowed.layers):
        return fields
    names = ("window_heads", "window_kv_heads", "window_head_dim", "window_v_head_dim")
    pairs = zip(names, windowed.sizes(), full.sizes(), strict=True)
    fields |= {name: size for name, size, usual in pairs if size != usual}
    return fields | ({"window_shared_key_value": windowed.shared} if windowed.shared != full.shared else {})


def _latent(settings: Settings, heads: float) -> dict[str, Any]:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434)."""
    rotary = settings.number("qk_rope_head_dim", default=0)
    # Unrotated and rotary width.
    width = settings.number("qk_nope_head_dim", default=settings.number("head_dim", default=0)) + rotary
    fields = {
        # Keys and values of every head come from the latent.
        "n_kv_heads": heads,
        "head_dim": width,
        "v_head_dim": settings.number("v_head_dim", default=width),
        "rope_head_dim": rotary,
        "q_lora_rank": settings.number("q_lora_rank", default=0),
        "kv_lora_rank": settings.number("kv_lora_rank"),
    }
    return fields | ({"attention_gate": 1} if settings.flag("mla_use_output_gate") else {})


def _windows(settings: Settings, full: int, windowed: int) -> dict[str, Any]:
    """Window, and share of the layers with a window; sparse selection of k keys counts as a window of k tokens."""
    if settings.get("compress_ratios") and settings.get("index_topk"):
        return _compressed(settings)
    if chosen := settings.number("index_topk", default=0):
        return {"window": chosen, "window_share": 1}
    size = settings.number(
        "sliding_window", "sliding_window_size", "attention_chunk_size", "local_attention", default=0
    )
    return {"window": size, "window_share": windowed / (full + windowed)} if windowed and size else {}


def _compressed(settings: Settings) -> dict[str, Any]:
    """Keys of compressed attention (DeepSeek-V4): a window, and chosen or all blocks of earlier keys."""
    ratios = (settings.sequence("compress_ratios") or [])[: int(settings.number("num_hidden_layers"))]
    # Sequence length as in `hf_model`.
    near, chosen, seq_len = settings.number("sliding_window", default=128), settings.number("index_topk"), 4096.0
    keys = [
        # Ratio 0: the window alone; up to 8: chosen blocks; beyond: all blocks.
        near + min(chosen if 0 < ratio <= 8 else seq_len, seq_len / max(ratio, 1)) * (ratio > 0)
        for ratio in ratios
    ]
    return {"window": round(sum(keys) / max(len(keys), 1)), "window_share": 1}


UNGATED = frozenset(
    "gpt2 gpt_neo gpt_neox gptj gpt_bigcode bloom falcon opt mpt starcoder2 phi bert roberta xlm-roberta electra "
    "deberta deberta-v2 distilbert vit deit dinov2 nemotron nemotron_h codegen persimmon arcee apertus".split()
)
"""Families whose MLP has two matrices."""

EXPERTS = ("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts", "ffn_config.moe_num_experts")
CHOSEN = (
    "num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_top_k", "moe_k",
    "experts_per_token", "num_selected_experts", "ffn_config.moe_top_k",
)  # fmt: skip


def is_mixture(settings: Settings) -> bool:
    """Whether a configuration describes a mixture of experts."""
    return settings.number(*EXPERTS, default=0) > 1 and settings.get(*CHOSEN) is not None


def mlp_fields(settings: Settings, kinds: LayerKinds) -> dict[str, Any]:
    """MLP fields of a configuration, as arguments of `Transformer`."""
    d_model = settings.number("hidden_size", "n_embd", "d_model", "dim")
    d_ff = settings.mean(
        "intermediate_size_mlp", "intermediate_size", "n_inner", "ffn_hidden_size", "ffn_dim", default=0
    )
    if settings.kind == "qwen":
        d_ff /= 2.0  # the first Qwen counts both matrices of its gated MLP
    if settings.kind == "mpt":
        d_ff = settings.number("expansion_ratio", default=4) * d_model
    if settings.kind == "dbrx":
        d_ff = settings.number("ffn_config.ffn_hidden_size", default=0)
    if settings.kind == "lfm2" and settings.flag("block_auto_adjust_ff_dim", default=True):
        # Two thirds: three gated matrices with the parameters of two plain matrices.
        d_ff = _whole_tiles(2.0 / 3.0 * d_ff * settings.number("block_ffn_dim_multiplier", default=1.0))
    fields: dict[str, Any] = {"d_ff": d_ff or 4.0 * d_model, "gated_mlp": settings.kind not in UNGATED}
    if (blocks := nas_blocks(settings)) is not None:
        return fields | _chosen_widths(settings, blocks, d_model)
    mixtures = kinds.mlp_count("moe")
    if mixtures:
        fields |= _experts(settings, fields["d_ff"])
        fields["n_dense_layers"] = kinds.mlp_count("dense")
    return fields


def _experts(settings: Settings, d_ff: float) -> dict[str, Any]:
    width = settings.number(
        "moe_intermediate_size", "moe_ffn_hidden_size", "expert_ffn_hidden_size", "expert_hidden_size", default=0
    )
    if not width:
        # Where dense layers have a width of their own, the plain key is that of an expert.
        width = settings.number("intermediate_size", "ffn_config.ffn_hidden_size", default=d_ff)
    count = settings.number(*EXPERTS)
    # Of the chosen experts, those that hand a token on as it is cost nothing.
    working = count / (count + settings.number("zero_expert_num", default=0))
    fields: dict[str, Any] = {
        "n_experts": count,
        "moe_top_k": settings.number(*CHOSEN) * working,
        "d_ff_expert": width,
    }
    if shared := _shared_experts(settings, width):
        fields["n_shared_experts"] = shared
    if latent := settings.number("moe_latent_size", "routed_expert_hidden_size", default=0):
        fields["moe_latent_size"] = latent
    if settings.kind == "gpt_oss":
        fields["expert_bias"] = True
    return fields


def _shared_experts(settings: Settings, width: float) -> float:
    """Total width of the shared experts over the width of a routed expert [1]."""
    if settings.flag("enable_moe_block"):
        return settings.number("intermediate_size") / width
    if settings.kind.startswith("llama4"):
        # Llama 4: a shared expert as wide as a routed expert.
        return 1.0
    if settings.kind in FAMILIES["double"]:
        return settings.number("ffn_hidden_size") / width
    wide = settings.number(
        "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "share_expert_dim",
        "shared_intermediate_size", default=0,
    )  # fmt: skip
    if wide:
        return wide / width
    count = settings.get("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert")
    if isinstance(count, list):
        count = count[0] if count else 0
    return float(count or 0)


def _chosen_widths(settings: Settings, blocks: list, d_model: float) -> dict[str, Any]:
    """Layers of a search over architectures (Puzzle, arXiv 2411.19146): mean width of the layers that have an MLP."""
    widths = [_block_width(block.get("ffn") or {}, d_model) for block in blocks]
    attention = [block.get("attention") or {} for block in blocks]
    with_mlp = [width for width in widths if width > 0.0]
    with_attention = [one for one in attention if not (one.get("no_op") or one.get("replace_with_linear"))]
    heads = settings.number("num_attention_heads")
    keys = [one.get("num_key_value_heads") or heads / (one.get("n_heads_in_group") or 1) for one in with_attention]
    # A linear layer in the place of attention is a third of a gated MLP of the width of the model.
    linear = sum(bool(one.get("replace_with_linear")) for one in attention)
    total = sum(with_mlp) + linear * d_model / 3.0
    return {
        "d_ff": total / max(len(with_mlp), 1),
        "n_mlp_layers": len(with_mlp),
        "n_attention_layers": len(with_attention),
        "n_kv_heads": sum(keys) / max(len(keys), 1),
    }


def _block_width(ffn: dict, d_model: float) -> float:
    """Width of the MLP of a block; 0 without MLP [1]."""
    if ffn.get("no_op"):
        return 0.0
    if ffn.get("replace_with_linear"):
        return d_model / 3.0
    if ffn.get("intermediate_size"):
        return float(ffn["intermediate_size"])
    # Three gated matrices with the parameters of two of width ffn_mult d.
    return _whole_tiles(2.0 / 3.0 * float(ffn.get("ffn_mult") or 4.0) * d_model)


def _whole_tiles(width: float) -> float:
    """Width rounded up to whole tiles of 256, as the modelling code of some families does [1]."""
    # The tolerance guards whole widths against rounding.
    return -(-int(width + 1e-6) // 256) * 256.0
