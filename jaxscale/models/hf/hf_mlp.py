"""MLPs of a configuration: dense, routed experts, shared experts; means where layers differ."""

from typing import Any

from jaxscale.models.hf.hf_layers import DOUBLE, LayerKinds, nas_blocks
from jaxscale.models.hf.hf_settings import Settings

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
    """Whether a configuration is of a mixture of experts."""
    return settings.number(*EXPERTS, default=0) > 1 and settings.get(*CHOSEN) is not None


def mlp_fields(settings: Settings, kinds: LayerKinds) -> dict[str, Any]:
    """MLPs as arguments of `Transformer`."""
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
    if settings.kind in DOUBLE:
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
