"""Attention of a configuration: heads, their widths, latent projections, windows."""

from dataclasses import dataclass
from typing import Any

from jaxscale.base.errors import InputError
from jaxscale.models.hf.hf_layers import LayerKinds
from jaxscale.models.hf.hf_settings import Settings

GATED = frozenset("qwen3_next qwen3_5 qwen3_5_moe".split())
"""Families whose full attention has an output gate of the width of its heads."""


@dataclass(frozen=True)
class AttentionKind:
    """Attention of a group of equal layers.

    Attributes:
        layers: number of layers [1].
        heads: query heads [1].
        key_heads: key/value heads [1].
        width: of a query or key head [1].
        value_width: of a value head [1].
        shared: 1 where keys serve as values [1].
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
    """Attention as arguments of `Transformer`.

    Layers with a window have separate heads where the configuration states such heads.
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
