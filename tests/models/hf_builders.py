"""What configurations of released models are written with: keys of families, and published counts beside them."""

from typing import Any, NamedTuple


class Released(NamedTuple):
    """A configuration, parameters in all and active [1e9], and the tolerances of the two [1]."""

    config: dict[str, Any]
    params: float
    active: float | None = None
    tolerance: float = 0.01
    active_tolerance: float = 0.03


def decoder(
    kind: str, layers: int, width: int, heads: int, key_heads: int, inner: int, words: int, **more: Any
) -> dict:
    """A configuration with the keys that most families have."""
    return {
        "model_type": kind,
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "intermediate_size": inner,
        "vocab_size": words,
        **more,
    }


def latent(query_rank: int | None, unrotated: int = 128, value: int = 128, **more: Any) -> dict[str, Any]:
    """Keys of multi-head latent attention."""
    shapes = {"kv_lora_rank": 512, "qk_nope_head_dim": unrotated, "qk_rope_head_dim": 64, "v_head_dim": value}
    return {**shapes, "q_lora_rank": query_rank, **more}


def experts(count: int, chosen: int, width: int, key: str = "n_routed_experts", **more: Any) -> dict[str, Any]:
    """Keys of a mixture of experts."""
    return {key: count, "num_experts_per_tok": chosen, "moe_intermediate_size": width, **more}


EVERY_FOURTH = ["linear_attention"] * 3 + ["full_attention"]
EVERY_SIXTH = ["sliding_attention"] * 5 + ["full_attention"]
