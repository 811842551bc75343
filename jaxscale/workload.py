"""Transformers: shapes, parameter counts and flops.

The FLOP convention of the package: model flops per token are `6 * (matmul parameters) + 12 * L * H * head_dim * S`,
halved in the attention part when causal masking is counted (`causal=True`).
"""

import inspect
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from jaxscale._arrays import Number, as_float
from jaxscale._smooth import smaller

DEFAULT_VOCABULARY = 51200.0
"""Padded GPT-2 vocabulary, Megatron-LM's default (Korthikanti et al. 2022, section 6): used where none is stated."""


class Transformer(eqx.Module):
    """Transformer, dense or mixture of experts, with optional latent attention and state-space layers.

    All fields are floats: they trace and differentiate, and models of different kinds stack. Layers of one kind are
    shares of the depth: a model with another `n_layers` is the same model, deeper.

    Attributes:
        n_layers: L, depth [1].
        d_model: d, width [1].
        n_heads: H, query heads [1].
        n_kv_heads: K, key/value heads [1].
        head_dim: width of a head [1].
        d_ff: f, width of the dense MLP [1].
        gated_mlp: 1 for three MLP matrices (SwiGLU), 0 for two [1].
        vocab_size: V [token].
        seq_len: S [token].
        tied_embeddings: 1 where input and output embeddings share their matrix [1].
        n_experts: E, experts per mixture layer; 1 is dense [1].
        moe_top_k: k, experts per token [1].
        d_ff_expert: MLP width of one expert [1].
        moe_latent_size: width of the projection on which routed experts work; 0 where they work on d [1].
        n_shared_experts: experts that see every token [1].
        expert_bias: 1 where the output of a routed expert has a bias [1].
        dense_share: share of the layers whose MLP is dense [1].
        attention_share: share of the layers with attention [1].
        mlp_share: share of the layers with an MLP, dense or mixture [1].
        ssm_share: share of the layers that are state-space (Mamba-2) layers [1].
        ssm_d_inner: inner width of a state-space layer [1].
        ssm_state: groups times state size of a state-space layer [1].
        ssm_groups: groups of channels that share their projections into and out of the state [1].
        q_lora_rank: rank of the query projection of latent attention; 0 for a full one [1].
        kv_lora_rank: rank of the key/value projection of latent attention; 0 for a full one [1].
        rope_head_dim: rotary part of a latent-attention head [1].
        v_head_dim: width of a value head [1].
        shared_key_value: 1 where one projection makes keys and values [1].
        attention_gate: 1 where a gate as wide as all value heads multiplies the output of attention [1].
        o_lora_rank: rank of the output projection, over all its groups; 0 for a full one [1].
        o_groups: groups of heads that the first half of a low-rank output projection keeps apart [1].
        window: keys a sliding-window layer attends to [token].
        window_share: share of attention layers with a sliding window [1].
        position_embeddings: learned positions [token].
        causal: 1 where a token attends to earlier ones alone, 0 for an encoder [1].
        trainable_share: share of the weights that receive gradients; 0 for low-rank adapters [1].
        n_predict_layers: layers for multi-token prediction, among the others, with a merge and logits of their own [1].
    """

    n_layers: Number
    d_model: Number
    n_heads: Number
    n_kv_heads: Number
    head_dim: Number
    d_ff: Number
    gated_mlp: Number
    vocab_size: Number
    seq_len: Number
    tied_embeddings: Number
    n_experts: Number
    moe_top_k: Number
    d_ff_expert: Number
    moe_latent_size: Number
    n_shared_experts: Number
    expert_bias: Number
    dense_share: Number
    attention_share: Number
    mlp_share: Number
    ssm_share: Number
    ssm_d_inner: Number
    ssm_state: Number
    ssm_groups: Number
    q_lora_rank: Number
    kv_lora_rank: Number
    rope_head_dim: Number
    v_head_dim: Number
    shared_key_value: Number
    attention_gate: Number
    o_lora_rank: Number
    o_groups: Number
    window: Number
    window_share: Number
    position_embeddings: Number
    causal: Number
    trainable_share: Number
    n_predict_layers: Number

    def __init__(
        self,
        n_layers: Any,
        d_model: Any,
        n_heads: Any,
        seq_len: Any = 2048,
        *,
        n_kv_heads: Any = None,
        head_dim: Any = None,
        d_ff: Any = None,
        gated_mlp: Any = False,
        vocab_size: Any = DEFAULT_VOCABULARY,
        tied_embeddings: Any = False,
        n_experts: Any = 1,
        moe_top_k: Any = 1,
        d_ff_expert: Any = None,
        moe_latent_size: Any = 0,
        n_shared_experts: Any = 0,
        expert_bias: Any = False,
        n_dense_layers: Any = 0,
        n_attention_layers: Any = None,
        n_mlp_layers: Any = None,
        n_ssm_layers: Any = 0,
        ssm_d_inner: Any = 0,
        ssm_state: Any = 0,
        ssm_groups: Any = 1,
        q_lora_rank: Any = 0,
        kv_lora_rank: Any = 0,
        rope_head_dim: Any = 0,
        v_head_dim: Any = None,
        shared_key_value: Any = False,
        attention_gate: Any = False,
        o_lora_rank: Any = 0,
        o_groups: Any = 1,
        window: Any = 0,
        window_share: Any = 0,
        position_embeddings: Any = 0,
        causal: Any = True,
        trainable_share: Any = 1,
        n_predict_layers: Any = 0,
    ):
        """Describe a model; what is left out takes the customary value (`d_ff = 4 d_model`, full attention heads).

        `n_layers`, `n_attention_layers` and `n_mlp_layers` are those of the model without the `n_predict_layers`, which
        have attention and an MLP each and add to all three.

        Raises:
            ValueError: a shape that no transformer can have, with the valid range.
        """
        d_model, n_heads, stack = as_float(d_model), as_float(n_heads), as_float(n_layers)
        _check_size("n_layers", stack)
        self.n_predict_layers = further = as_float(n_predict_layers)
        n_layers = stack + further
        self.n_layers, self.d_model, self.n_heads = n_layers, d_model, n_heads
        self.seq_len = as_float(seq_len)
        self.n_kv_heads = _default(n_kv_heads, n_heads)
        self.head_dim = d_model / n_heads if head_dim is None else as_float(head_dim)
        self.d_ff = 4.0 * d_model if d_ff is None else as_float(d_ff)
        self.gated_mlp, self.vocab_size = as_float(gated_mlp), as_float(vocab_size)
        self.tied_embeddings = as_float(tied_embeddings)
        self.n_experts, self.moe_top_k = as_float(n_experts), as_float(moe_top_k)
        self.d_ff_expert = _default(d_ff_expert, self.d_ff)
        self.moe_latent_size = as_float(moe_latent_size)
        self.n_shared_experts, self.expert_bias = as_float(n_shared_experts), as_float(expert_bias)
        self.attention_share = (_default(n_attention_layers, stack) + further) / n_layers
        self.mlp_share = (_default(n_mlp_layers, stack) + further) / n_layers
        stated = as_float(n_dense_layers) / n_layers
        self.dense_share = stated + is_dense(self.n_experts) * (self.mlp_share - stated)
        self.ssm_share, self.ssm_d_inner = as_float(n_ssm_layers) / n_layers, as_float(ssm_d_inner)
        self.ssm_state, self.ssm_groups = as_float(ssm_state), as_float(ssm_groups)
        self.q_lora_rank, self.kv_lora_rank = as_float(q_lora_rank), as_float(kv_lora_rank)
        self.rope_head_dim, self.v_head_dim = as_float(rope_head_dim), _default(v_head_dim, self.head_dim)
        self.shared_key_value, self.attention_gate = as_float(shared_key_value), as_float(attention_gate)
        self.o_lora_rank, self.o_groups = as_float(o_lora_rank), as_float(o_groups)
        self.window, self.window_share = as_float(window), as_float(window_share)
        self.position_embeddings, self.causal = as_float(position_embeddings), as_float(causal)
        self.trainable_share = as_float(trainable_share)

    def __check_init__(self):
        """Refuse impossible shapes; traced values are not looked at."""
        for name in ("d_model", "n_heads", "n_kv_heads", "head_dim", "d_ff", "vocab_size", "seq_len"):
            _check_size(name, getattr(self, name))
        for name, most in (("n_kv_heads", "n_heads"), ("moe_top_k", "n_experts")):
            few, many = getattr(self, name), getattr(self, most)
            if _both_floats(few, many) and few > many:
                raise ValueError(f"Transformer.{name} = {few:g} exceeds {most} = {many:g}")
        if _both_floats(self.dense_share, self.mlp_share) and self.dense_share > self.mlp_share:
            dense, mlp = (float(share * self.n_layers) for share in (self.dense_share, self.mlp_share))
            raise ValueError(f"Transformer.n_dense_layers = {dense:g} exceeds n_mlp_layers = {mlp:g}")

    @property
    def n_attention_layers(self) -> Number:
        """Layers with attention [1]."""
        return self.attention_share * self.n_layers

    @property
    def n_mlp_layers(self) -> Number:
        """Layers with an MLP, dense or mixture [1]."""
        return self.mlp_share * self.n_layers

    @property
    def n_dense_layers(self) -> Number:
        """Layers whose MLP is dense [1]."""
        return self.dense_share * self.n_layers

    @property
    def n_ssm_layers(self) -> Number:
        """State-space (Mamba-2) layers [1]."""
        return self.ssm_share * self.n_layers


ARGUMENTS = tuple(inspect.signature(Transformer).parameters)
"""Names by which a shape is described, as in a TOML file."""


def is_dense(n_experts: Any) -> Any:
    """1 for a single expert, which makes a layer a dense one, 0 from two on, linear between [1]."""
    clip = jnp.clip if isinstance(n_experts, jax.Array) else np.clip
    return as_float(clip(2.0 - n_experts, 0.0, 1.0))


def _default(value: Any, otherwise: Any) -> Any:
    return otherwise if value is None else as_float(value)


def _check_size(name: str, value: Any) -> None:
    if isinstance(value, float) and not 0 < value < float("inf"):
        raise ValueError(f"Transformer.{name} = {value:g} is not a size; expected a number above 0")


def _both_floats(first: Any, second: Any) -> bool:
    return isinstance(first, float) and isinstance(second, float)


def attention_params(model: Transformer) -> Array:
    r"""Matmul parameters of one attention layer [1].

    $d H h + 2 d K h + H h_v d$ (query, key/value, output) for grouped-query attention; for latent attention
    (DeepSeek-V2, arXiv 2405.04434, section 2.1) the query goes through rank $r_q$ and keys and values through $r_{kv}$.
    Keys that serve as values count once, $d K h$; an output gate adds $d H h_v$; an output projection of rank $r_o$ in
    g groups of heads has $r_o (H h_v / g + d)$.
    """
    d, heads, h, h_v = model.d_model, model.n_heads, model.head_dim, model.v_head_dim
    full_query, latent_query = d * heads * h, model.q_lora_rank * (d + heads * h)
    full_key_value = d * model.n_kv_heads * (h + h_v) * (1.0 - 0.5 * model.shared_key_value)
    unrotated = h - model.rope_head_dim
    latent_key_value = d * (model.kv_lora_rank + model.rope_head_dim) + model.kv_lora_rank * heads * (unrotated + h_v)
    query = full_query + _indicator(model.q_lora_rank) * (latent_query - full_query)
    key_value = full_key_value + _indicator(model.kv_lora_rank) * (latent_key_value - full_key_value)
    full_output, latent_output = heads * h_v * d, model.o_lora_rank * (heads * h_v / model.o_groups + d)
    output = full_output + _indicator(model.o_lora_rank) * (latent_output - full_output)
    return query + key_value + output + model.attention_gate * full_output


def _indicator(rank: ArrayLike) -> Array:
    """1 for a rank of at least one, 0 for none, linear between."""
    return jnp.clip(rank, 0.0, 1.0)


def mlp_params(model: Transformer, width: ArrayLike) -> Number:
    """Matmul parameters of one MLP of the given width: `(2 + gated) * d * width` [1]."""
    return (2.0 + model.gated_mlp) * model.d_model * width


def expert_input(model: Transformer) -> Array:
    """Width of a token as routed experts see it, and as it is sent to them: d, or that of a projection of it [1]."""
    return model.d_model + _indicator(model.moe_latent_size) * (model.moe_latent_size - model.d_model)


def expert_params(model: Transformer) -> Array:
    """Matmul parameters of one routed expert [1]."""
    return (2.0 + model.gated_mlp) * expert_input(model) * model.d_ff_expert


def merge_params(model: Transformer) -> Number:
    """Parameters by which prediction layers make one token of two, 2 d^2 each (arXiv 2412.19437, equation 21) [1]."""
    return model.n_predict_layers * 2.0 * jnp.square(model.d_model)


def logits_per_token(model: Transformer) -> Number:
    """Passes of the logits head per token: one, and one for each further token that is predicted [1]."""
    return 1.0 + model.n_predict_layers


def router_params(model: Transformer) -> Number:
    """Matmul parameters of the router of one mixture layer: a score of every token for every expert, d E [1]."""
    return model.d_model * model.n_experts


def shared_expert_params(model: Transformer) -> Number:
    """Matmul parameters of a mixture layer that see every token: shared experts, projections to the latent [1]."""
    return model.n_shared_experts * mlp_params(model, model.d_ff_expert) + 2.0 * model.d_model * model.moe_latent_size


def ssm_params(model: Transformer) -> Number:
    r"""Matmul parameters of one Mamba-2 layer: $d (2 d_i + 2 n_s) + d_i d$ (arXiv 2405.21060, section 7) [1]."""
    return model.d_model * (3.0 * model.ssm_d_inner + 2.0 * model.ssm_state)


def moe_layers(model: Transformer) -> Number:
    """Layers whose MLP is a mixture of experts [1]."""
    return model.n_mlp_layers - model.n_dense_layers


def mlp_width(model: Transformer) -> Number:
    """Inner widths of the MLPs that every token passes through, dense ones and shared experts, added up [1]."""
    return model.n_dense_layers * model.d_ff + moe_layers(model) * model.n_shared_experts * model.d_ff_expert


def routed_width(model: Transformer) -> Number:
    """Inner widths of the routed experts that a token passes through, over all layers, added up [1]."""
    return moe_layers(model) * model.moe_top_k * model.d_ff_expert


def copies_width(model: Transformer) -> Array:
    """Widths of the copies of a token that its routed experts take in, over all layers, added up [1]."""
    return moe_layers(model) * model.moe_top_k * expert_input(model)


def n_params(model: Transformer) -> Array:
    """All parameters: attention, MLPs and experts, routers, norms, embeddings [1]."""
    routed = model.n_experts * expert_params(model) + router_params(model)
    return _layer_params(model, routed) + embedding_params(model)


def n_active_params(model: Transformer) -> Array:
    """Parameters that one token passes through, embeddings included [1]."""
    routed = model.moe_top_k * expert_params(model) + router_params(model)
    return _layer_params(model, routed) + embedding_params(model)


def dense_layer_params(model: Transformer) -> Array:
    """Matmul parameters of all layers that every token meets: routed experts and their routers left out [1]."""
    return (
        model.n_attention_layers * attention_params(model)
        + model.n_dense_layers * mlp_params(model, model.d_ff)
        + model.n_ssm_layers * ssm_params(model)
        + moe_layers(model) * shared_expert_params(model)
        + merge_params(model)
    )


def _layer_params(model: Transformer, routed: ArrayLike) -> Array:
    norms = model.d_model * (model.n_attention_layers + model.n_mlp_layers + model.n_ssm_layers + 1.0)
    return dense_layer_params(model) + moe_layers(model) * routed + norms


def embedding_params(model: Transformer) -> Number:
    """Input and output embeddings and learned positions [1]."""
    vocabulary = (2.0 - model.tied_embeddings) * model.vocab_size * model.d_model
    return vocabulary + model.position_embeddings * model.d_model


def head_params(model: Transformer) -> Number:
    """Weights of the logits head: vocabulary times d [1]."""
    return model.vocab_size * model.d_model


def matmul_params_per_token(model: Transformer) -> Array:
    """Parameters that multiply one token: active layers and the logits head, not the embedding lookup [1]."""
    routed = model.moe_top_k * expert_params(model) + router_params(model)
    return dense_layer_params(model) + moe_layers(model) * routed + logits_per_token(model) * head_params(model)


def attended_keys(model: Transformer) -> Number:
    r"""Keys that a query meets on average over queries and layers, the causal mask counted as a half of them [token].

    Causal attention meets $S / 2$ keys, with a window of w tokens $w - w^2 / (2 S)$: the first w queries meet fewer.
    """
    window = smaller(model.window, model.seq_len)
    windowed = window * (2.0 - window / model.seq_len)
    return model.seq_len + model.window_share * (windowed - model.seq_len)


def attention_flops_per_token(model: Transformer, causal: ArrayLike = 0.0) -> Number:
    """Forward flops of scores and weighted values per token and attention layer: `2 H (h + h_v) keys` [flop]."""
    keys = attended_keys(model) * (1.0 - 0.5 * causal)
    return 2.0 * model.n_heads * (model.head_dim + model.v_head_dim) * keys


def model_flops(model: Transformer, causal: bool = False) -> Array:
    """Model flops per token of one training step, forward and backward, nothing recomputed [flop].

    `6 * (matmul parameters) + 12 * L * d * S`; with `causal` the attention part of a causal model is halved.

    Args:
        model: the transformer.
        causal: count only the keys that the causal mask lets through.

    Returns:
        Flops per token [flop].
    """
    attention = 3.0 * model.n_attention_layers * attention_flops_per_token(model, causal * model.causal)
    return 6.0 * matmul_params_per_token(model) + attention
