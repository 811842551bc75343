"""Domain of a `Transformer`: valid numbers of its arguments, from any source."""

import numpy as np

from jaxscale.base.domains import Bound, Domain, Relation, at_most, divisor_of, needs

LARGEST = 1e9
"""Size that no model comes near: a larger number is a slip [1]."""


def _size(meaning: str, high: float = LARGEST) -> Bound:
    return Bound(0.0, high, True, meaning)


def _count(meaning: str, high: float = LARGEST) -> Bound:
    return Bound(0.0, high, False, meaning)


def _share(meaning: str) -> Bound:
    return Bound(0.0, 1.0, False, meaning)


MODEL = Domain(
    "Transformer",
    {
        "n_layers": _size("depth", 1e5),
        "d_model": _size("width", 1e7),
        "n_heads": _size("query heads", 1e6),
        "seq_len": _size("sequence length [token]"),
        "n_kv_heads": _size("key/value heads", 1e6),
        "head_dim": _size("width of a query and key head", 1e8),
        "d_ff": _size("width of the dense MLP"),
        "gated_mlp": _share("1 where an MLP has a gate matrix"),
        "vocab_size": _size("vocabulary"),
        "tied_embeddings": _share("1 where input and output embeddings are one matrix"),
        "n_experts": Bound(1.0, 1e6, False, "experts of a mixture layer"),
        "moe_top_k": _size("experts of a token", 1e6),
        "d_ff_expert": _size("inner width of one expert"),
        "moe_latent_size": _count("width of the projection on which routed experts work"),
        "n_shared_experts": _count("experts that see every token"),
        "expert_bias": _share("1 where the output of a routed expert has a bias"),
        "n_attention_layers": _count("layers with attention"),
        "n_mlp_layers": _count("layers with an MLP"),
        "n_dense_layers": _count("layers of a mixture whose MLP is dense"),
        "n_ssm_layers": _count("state-space layers"),
        "ssm_d_inner": _count("inner width of a state-space layer"),
        "ssm_state": _count("groups times state of a state-space layer"),
        "ssm_groups": Bound(1.0, LARGEST, False, "groups of a state-space layer"),
        "q_lora_rank": _count("rank of the query projection"),
        "kv_lora_rank": _count("rank of the key/value projection"),
        "rope_head_dim": _count("rotary part of a latent-attention head"),
        "v_head_dim": _size("width of a value head", 1e8),
        "shared_key_value": _share("1 where one projection makes keys and values"),
        "attention_gate": _share("1 where a gate multiplies the output of attention"),
        "o_lora_rank": _count("rank of the output projection"),
        "o_groups": Bound(1.0, LARGEST, False, "groups of heads of a low-rank output projection"),
        "window": _count("keys that a layer with a window attends to [token]"),
        "window_share": _share("share of the attention layers with a window"),
        "window_heads": _size("query heads of a layer with a window", 1e6),
        "window_kv_heads": _size("key/value heads of a layer with a window", 1e6),
        "window_head_dim": _size("width of a head of a layer with a window", 1e8),
        "window_v_head_dim": _size("width of a value head of a layer with a window", 1e8),
        "window_shared_key_value": _share("1 where one projection makes keys and values of a layer with a window"),
        "position_embeddings": _count("learned positions [token]"),
        "causal": _share("1 where a token attends to earlier ones alone"),
        "trainable_share": _share("share of the weights that receive gradients"),
        "n_predict_layers": _count("layers for multi-token prediction", 1e5),
    },
    (
        at_most("n_kv_heads", "n_heads"),
        divisor_of("n_kv_heads", "n_heads"),
        at_most("moe_top_k", "n_experts"),
        at_most("n_attention_layers", "n_layers"),
        at_most("n_mlp_layers", "n_layers"),
        at_most("n_ssm_layers", "n_layers"),
        at_most("n_dense_layers", "n_mlp_layers"),
        Relation(
            ("n_mlp_layers", "n_attention_layers", "n_ssm_layers"),
            lambda mlp, attention, ssm: np.add(np.add(mlp, attention), ssm) > 0.0,
            lambda mlp, attention, ssm: "leaves layers without work; expected an MLP, attention or a state in one",
            "one of `n_mlp_layers`, `n_attention_layers` and `n_ssm_layers` is above 0",
        ),
        at_most("rope_head_dim", "head_dim"),
        at_most("o_groups", "n_heads"),
        at_most("window_kv_heads", "window_heads"),
        needs("window_share", "window", "the keys of a window"),
        needs("n_ssm_layers", "ssm_d_inner", "the inner width of state-space layers"),
        needs("n_ssm_layers", "ssm_state", "the state of state-space layers"),
    ),
)
"""Valid arguments of a `Transformer`; layers are counted, whether they were given as counts or as shares."""
