"""Transformers: shapes, parameter counts and flops.

The FLOP convention of the package: model flops per token are `6 * (matmul parameters) + 12 * L * H * head_dim * S`,
halved in the attention part when causal masking is counted (`causal=True`).
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, InitVar
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from jaxscale.base.arrays import Number, as_float, number_field, stated_or, with_properties
from jaxscale.base.show import Printout, is_single, leaf_text, leaves_shown, printed
from jaxscale.base.smooth import smaller
from jaxscale.models.model_domain import MODEL

DEFAULT_VOCABULARY = 51200.0
"""Padded GPT-2 vocabulary, Megatron-LM's default (Korthikanti et al. 2022, section 6): used where none is stated."""


def _stated_layers(share: str) -> property:
    """Property of a model: number of layers of a type, from its share of the depth."""
    return property(lambda model: getattr(model, share) * model.n_layers)


def _of_windows(size: str, ratio: str) -> property:
    """Property of a model: size of heads in windowed layers, from the ratio to the size in full layers."""
    return property(lambda model: getattr(model, ratio) * getattr(model, size))


@printed(lambda model: _shown(model))
@with_properties(
    n_attention_layers=_stated_layers("attention_share"),
    n_mlp_layers=_stated_layers("mlp_share"),
    n_dense_layers=property(lambda model: _dense_share(model) * model.n_layers),
    n_ssm_layers=_stated_layers("ssm_share"),
    window_heads=_of_windows("n_heads", "window_heads_ratio"),
    window_kv_heads=_of_windows("n_kv_heads", "window_kv_heads_ratio"),
    window_head_dim=_of_windows("head_dim", "window_head_dim_ratio"),
    window_v_head_dim=_of_windows("v_head_dim", "window_v_head_dim_ratio"),
)
class Transformer(eqx.Module):
    """Transformer, dense or mixture of experts, with optional latent attention and state-space layers.

    All fields are numbers: array leaves that trace and differentiate, and different architectures stack. Layers of
    a type are shares of the depth, so that a larger `n_layers` makes the model deeper with equal proportions; counts of
    layers may be given in place of shares. An omitted field takes the customary value.

    Raises:
        ValueError: a shape that no transformer can have, with the valid range.
    """

    n_layers: Number = number_field()
    """L, depth, without the layers for multi-token prediction [1]."""
    d_model: Number = number_field()
    """d, width [1]."""
    n_heads: Number = number_field()
    """H, query heads [1]."""
    seq_len: Number = number_field(2048)
    """S [token]."""
    _: KW_ONLY
    n_kv_heads: Number = number_field(None)
    """K, key/value heads; H where left out [1]."""
    head_dim: Number = number_field(None)
    """Width of a head; d / H where left out [1]."""
    d_ff: Number = number_field(None)
    """f, width of the dense MLP; 4 d where left out [1]."""
    gated_mlp: Number = number_field(False)
    """1 for three MLP matrices (SwiGLU), 0 for two [1]."""
    vocab_size: Number = number_field(DEFAULT_VOCABULARY)
    """V [token]."""
    tied_embeddings: Number = number_field(False)
    """1 where input and output embeddings share their matrix [1]."""
    n_experts: Number = number_field(1)
    """E, experts per mixture layer; 1 is dense [1]."""
    moe_top_k: Number = number_field(1)
    """k, experts per token [1]."""
    d_ff_expert: Number = number_field(None)
    """MLP width of one expert; f where left out [1]."""
    moe_latent_size: Number = number_field(0)
    """Width of the projection on which routed experts work; 0 where they work on d [1]."""
    n_shared_experts: Number = number_field(0)
    """Experts that see every token [1]."""
    expert_bias: Number = number_field(False)
    """1 where the output of a routed expert has a bias [1]."""
    attention_share: Number = number_field(1)
    """Share of the layers with attention [1]."""
    mlp_share: Number = number_field(1)
    """Share of the layers with an MLP, dense or mixture [1]."""
    dense_share: Number = number_field(0)
    """Share of the layers of a mixture of experts whose MLP is dense; all MLPs of a dense model are [1]."""
    ssm_share: Number = number_field(0)
    """Share of the layers that are state-space (Mamba-2) layers [1]."""
    ssm_d_inner: Number = number_field(0)
    """Inner width of a state-space layer [1]."""
    ssm_state: Number = number_field(0)
    """Groups times state size of a state-space layer [1]."""
    ssm_groups: Number = number_field(1)
    """Groups of channels that share their projections into and out of the state [1]."""
    q_lora_rank: Number = number_field(0)
    """Rank of the query projection of latent attention; 0 for a full one [1]."""
    kv_lora_rank: Number = number_field(0)
    """Rank of the key/value projection of latent attention; 0 for a full one [1]."""
    rope_head_dim: Number = number_field(0)
    """Rotary part of a latent-attention head [1]."""
    v_head_dim: Number = number_field(None)
    """Width of a value head; `head_dim` where left out [1]."""
    shared_key_value: Number = number_field(False)
    """1 where one projection makes keys and values [1]."""
    attention_gate: Number = number_field(False)
    """1 where a gate as wide as all value heads multiplies the output of attention [1]."""
    o_lora_rank: Number = number_field(0)
    """Rank of the output projection, over all its groups; 0 for a full one [1]."""
    o_groups: Number = number_field(1)
    """Groups of heads that the first half of a low-rank output projection keeps apart [1]."""
    window: Number = number_field(0)
    """Keys that a sliding-window layer attends to [token]."""
    window_share: Number = number_field(0)
    """Share of the attention layers with a sliding window [1]."""
    window_heads_ratio: Number = number_field(1)
    """Query heads of a layer with a window over those of the others [1]."""
    window_kv_heads_ratio: Number = number_field(1)
    """Key/value heads likewise [1]."""
    window_head_dim_ratio: Number = number_field(1)
    """Width of a head likewise [1]."""
    window_v_head_dim_ratio: Number = number_field(1)
    """Width of a value head likewise [1]."""
    window_shared_key_value: Number = number_field(None)
    """1 where one projection makes keys and values of a layer with a window; as in the others where left out [1]."""
    position_embeddings: Number = number_field(0)
    """Learned positions [token]."""
    causal: Number = number_field(True)
    """1 where a token attends to earlier ones alone, 0 for an encoder [1]."""
    trainable_share: Number = number_field(1)
    """Share of the weights that receive gradients; 0 for low-rank adapters [1]."""
    n_predict_layers: Number = number_field(0)
    """Layers for multi-token prediction beside the `n_layers`; each has attention, an MLP, a merge and logits [1]."""
    n_attention_layers: InitVar[Any] = None
    """Layers with attention, in place of their share [1]."""
    n_mlp_layers: InitVar[Any] = None
    """Layers with an MLP, dense or mixture, in place of their share [1]."""
    n_dense_layers: InitVar[Any] = None
    """Layers of a mixture of experts whose MLP is dense, in place of their share [1]."""
    n_ssm_layers: InitVar[Any] = None
    """State-space layers, in place of their share [1]."""
    window_heads: InitVar[Any] = None
    """Query heads of a layer with a window, in place of their ratio [1]."""
    window_kv_heads: InitVar[Any] = None
    """Key/value heads of a layer with a window, in place of their ratio [1]."""
    window_head_dim: InitVar[Any] = None
    """Width of a head of a layer with a window, in place of its ratio [1]."""
    window_v_head_dim: InitVar[Any] = None
    """Width of a value head of a layer with a window, in place of its ratio [1]."""

    def __post_init__(self, *stated: Any):
        """Fill in dependent fields; `stated` are the counts of layers and sizes given in place of shares and ratios."""
        # Checked first: divisors below.
        MODEL.check({name: getattr(self, name) for name in ("n_layers", "n_heads")})
        for share, count in zip(LAYER_SHARES, stated, strict=False):
            if count is not None:
                # As a share: a deeper model keeps the proportions.
                setattr(self, share, as_float(count) / self.n_layers)
        for name, follows in FOLLOWING.items():
            if hasattr(self, name) and getattr(self, name) is None:
                setattr(self, name, follows(vars(self)))
        # Impossible numbers are refused below, where they are named; until then numpy does not warn of them.
        with np.errstate(all="ignore"):
            for (ratio, usual), size in zip(WINDOW_RATIOS.items(), stated[len(LAYER_SHARES) :], strict=True):
                if size is not None:
                    setattr(self, ratio, as_float(size) / getattr(self, usual))

    def __check_init__(self):
        """Refuse impossible shapes; traced values are not checked."""
        with np.errstate(all="ignore"):
            MODEL.check({name: getattr(self, name) for name in ARGUMENTS})


def _shown(model: Transformer) -> Printout:
    """Fields that differ from a plain model, with the counts of parameters."""
    if not is_single(model, ("n_layers", "d_model", "n_heads", "n_kv_heads", "d_ff", "vocab_size", "seq_len")):
        return leaves_shown(model)
    plain = {field.name: field.default for field in dataclasses.fields(model)}
    rows = [
        (name, leaf_text(getattr(model, name)))
        for name, usual in plain.items()
        if usual is None or usual is dataclasses.MISSING or float(getattr(model, name)) != float(usual)
    ]
    count, active = (f"{float(counted(model)) / 1e9:.4g}e9" for counted in (n_params, n_active_params))
    of_token = "" if count == active else f", {active} of them active"
    return Printout(f"Transformer: {count} parameters{of_token}", ("", ""), rows)


LAYER_SHARES = ("attention_share", "mlp_share", "dense_share", "ssm_share")
"""Fields that are shares of the depth, in the order of the counts that may be given in their place."""

WINDOW_RATIOS = {
    "window_heads_ratio": "n_heads",
    "window_kv_heads_ratio": "n_kv_heads",
    "window_head_dim_ratio": "head_dim",
    "window_v_head_dim_ratio": "v_head_dim",
}
"""Fields that are ratios of the heads of layers with a window to another field, in the order of the sizes that may be
given in their place."""

_PARAMETERS = inspect.signature(Transformer).parameters
_DEFAULTS = {
    name: float(argument.default)
    for name, argument in _PARAMETERS.items()
    if isinstance(argument.default, bool | int | float)
}
ARGUMENTS = tuple(name for name in _PARAMETERS if name not in (*LAYER_SHARES, *WINDOW_RATIOS))
"""Names by which a shape is described, as in a TOML file."""


FOLLOWING: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "n_kv_heads": lambda model: model["n_heads"],
    "head_dim": lambda model: model["d_model"] / model["n_heads"],
    "d_ff": lambda model: 4.0 * model["d_model"],
    "d_ff_expert": lambda model: model["d_ff"],
    "v_head_dim": lambda model: model["head_dim"],
    "window_shared_key_value": lambda model: model["shared_key_value"],
}
"""Fields that follow from others where they are left out, in the order in which they do."""

_COUNTED: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "n_attention_layers": lambda model: model["n_layers"],
    "n_mlp_layers": lambda model: model["n_layers"],
    "n_dense_layers": lambda model: np.zeros_like(model["n_layers"]),
    "n_ssm_layers": lambda model: np.zeros_like(model["n_layers"]),
    "window_heads": lambda model: model["n_heads"],
    "window_kv_heads": lambda model: model["n_kv_heads"],
    "window_head_dim": lambda model: model["head_dim"],
    "window_v_head_dim": lambda model: model["v_head_dim"],
}
"""The same of arguments that are no fields."""


def customary(arguments: Mapping[str, np.ndarray], n_models: int) -> dict[str, np.ndarray]:
    """Arguments of many models with gaps filled by customary values.

    Args:
        arguments: stated values, nan for a gap [argument][model].
        n_models: number of models [1].

    Returns:
        All of `ARGUMENTS` [argument][model].
    """
    filled: dict[str, np.ndarray] = {}
    # Independent arguments first, then arguments that follow from earlier arguments.
    for name in (*(name for name in ARGUMENTS if name not in {**FOLLOWING, **_COUNTED}), *FOLLOWING, *_COUNTED):
        stated = np.asarray(arguments.get(name, np.full(n_models, np.nan)), float)
        follows = FOLLOWING.get(name) or _COUNTED.get(name)
        usual = follows(filled) if follows else _DEFAULTS.get(name, np.nan)
        filled[name] = stated_or(stated, usual)
    return filled


def is_dense(n_experts: Any) -> Any:
    """Indicator of a dense MLP: 1 for a single expert, 0 from two experts on, smooth between with flat ends [1]."""
    clip = jnp.clip if isinstance(n_experts, jax.Array) else np.clip
    single = clip(2.0 - n_experts, 0.0, 1.0)
    # Flat ends, so that the number of experts, one, has no slope in a dense model.
    return as_float(single * single * (3.0 - 2.0 * single))


def total_layers(model: Transformer) -> Number:
    """Number of layers, multi-token prediction layers included [1]."""
    return model.n_layers + model.n_predict_layers


def attention_layers(model: Transformer) -> Number:
    """Number of layers with attention, multi-token prediction layers included [1]."""
    return model.attention_share * model.n_layers + model.n_predict_layers


def mlp_layers(model: Transformer) -> Number:
    """Number of layers with an MLP, dense or mixture, multi-token prediction layers included [1]."""
    return model.mlp_share * model.n_layers + model.n_predict_layers


def dense_layers(model: Transformer) -> Number:
    """Number of layers with a dense MLP: as stated for a mixture of experts, all MLP layers of a dense model [1]."""
    return _dense_share(model) * model.n_layers + is_dense(model.n_experts) * model.n_predict_layers


def _dense_share(model: Transformer) -> Number:
    """Share of the stated layers whose MLP is dense [1]."""
    # dense_share in a mixture, mlp_share in a dense model.
    return model.dense_share + is_dense(model.n_experts) * (model.mlp_share - model.dense_share)


def ssm_layers(model: Transformer) -> Number:
    """Number of state-space (Mamba-2) layers [1]."""
    return model.ssm_share * model.n_layers


class Heads(NamedTuple):
    """Attention heads of the layers with a window, or of the layers with full attention.

    Attributes:
        share: share of these layers among the attention layers [1].
        n_heads: H, query heads [1].
        n_kv_heads: K, key/value heads [1].
        head_dim: h, width of a head [1].
        v_head_dim: h_v, width of a value head [1].
        shared_key_value: 1 where one projection makes keys and values [1].
        keys: mean number of keys of a query, without a causal mask [token].
    """

    share: Number
    n_heads: Number
    n_kv_heads: Number
    head_dim: Number
    v_head_dim: Number
    shared_key_value: Number
    keys: Number


def head_kinds(model: Transformer) -> tuple[Heads, Heads]:
    r"""Heads of the full-attention layers, and heads of the windowed layers.

    A causal query has $S / 2$ keys on average with full attention, and $w - w^2 / (2 S)$ with a window of w tokens. The
    field `keys` is twice the causal mean.
    """
    m, window = model, smaller(model.window, model.seq_len)
    # Twice the causal mean w - w^2 / (2 S); the causal mask halves.
    windowed = window * (2.0 - window / model.seq_len)
    full = Heads(1.0 - m.window_share, m.n_heads, m.n_kv_heads, m.head_dim, m.v_head_dim, m.shared_key_value, m.seq_len)
    heads, kv_heads, width, value_width = (
        getattr(m, usual) * getattr(m, ratio) for ratio, usual in WINDOW_RATIOS.items()
    )
    shared = m.window_shared_key_value
    return full, Heads(m.window_share, heads, kv_heads, width, value_width, shared, windowed)


def mean_over_heads(model: Transformer, of: Callable[[Heads], Number]) -> Number:
    """Mean of a function of the heads over full-attention and windowed layers, weighted by their shares."""
    full, windowed = head_kinds(model)
    return full.share * of(full) + windowed.share * of(windowed)


def attention_params(model: Transformer) -> Array:
    r"""Matmul parameters of an attention layer, the mean where layers differ [1].

    $d H h + 2 d K h + H h_v d$ (query, key/value, output) for grouped-query attention; for latent attention
    (DeepSeek-V2, arXiv 2405.04434, section 2.1) the query goes through rank $r_q$ and keys and values through $r_{kv}$.
    Keys that serve as values count once, $d K h$; an output gate adds $d H h_v$; an output projection of rank $r_o$ in
    g groups of heads has $r_o (H h_v / g + d)$.
    """
    return mean_over_heads(model, functools.partial(_params_of_heads, model))


def _params_of_heads(model: Transformer, kind: Heads) -> Array:
    """Matmul parameters of an attention layer with the given heads [1]."""
    d, heads, h, h_v = model.d_model, kind.n_heads, kind.head_dim, kind.v_head_dim
    # r_q (d + H h)
    full_query, latent_query = d * heads * h, model.q_lora_rank * (d + heads * h)
    full_key_value = d * key_value_numbers(kind)
    unrotated = h - model.rope_head_dim
    # d (r_kv + h_r) + r_kv H (h - h_r + h_v)
    latent_key_value = d * (model.kv_lora_rank + model.rope_head_dim) + model.kv_lora_rank * heads * (unrotated + h_v)
    # No branch: different architectures stack.
    query = full_query + indicator(model.q_lora_rank) * (latent_query - full_query)
    key_value = full_key_value + is_latent(model) * (latent_key_value - full_key_value)
    # r_o (H h_v / g + d)
    full_output, latent_output = heads * h_v * d, model.o_lora_rank * (heads * h_v / model.o_groups + d)
    output = full_output + indicator(model.o_lora_rank) * (latent_output - full_output)
    return query + key_value + output + model.attention_gate * full_output


def key_value_numbers(kind: Heads) -> Number:
    """Keys and values of a token in a layer without latent compression: K (h + h_v), half where shared [1]."""
    return kind.n_kv_heads * (kind.head_dim + kind.v_head_dim) * (1.0 - 0.5 * kind.shared_key_value)


def indicator(rank: ArrayLike) -> Array:
    """Indicator of a positive rank or count: 1 for at least 1, 0 for 0, linear between [1]."""
    return jnp.clip(rank, 0.0, 1.0)


def is_latent(model: Transformer) -> Array:
    """Indicator of latent attention: 1 with, 0 without [1]."""
    return indicator(model.kv_lora_rank)


def mlp_params(model: Transformer, width: ArrayLike) -> Number:
    """Matmul parameters of an MLP of the given width: `(2 + gated) * d * width` [1]."""
    return (2.0 + model.gated_mlp) * model.d_model * width


def expert_input(model: Transformer) -> Array:
    """Input width of routed experts, and width of dispatched tokens: d, or the width of a down projection [1]."""
    return model.d_model + indicator(model.moe_latent_size) * (model.moe_latent_size - model.d_model)


def expert_params(model: Transformer) -> Array:
    """Matmul parameters of a routed expert [1]."""
    return (2.0 + model.gated_mlp) * expert_input(model) * model.d_ff_expert


def merge_params(model: Transformer) -> Number:
    """Parameters of the merging projections of prediction layers, 2 d^2 each (arXiv 2412.19437, equation 21) [1]."""
    return model.n_predict_layers * 2.0 * jnp.square(model.d_model)


def logits_per_token(model: Transformer) -> Number:
    """Passes of the logits head per token: 1, and 1 for each additional predicted token [1]."""
    return 1.0 + model.n_predict_layers


def router_params(model: Transformer) -> Number:
    """Matmul parameters of the router of a mixture layer: a score per token and expert, d E [1]."""
    return model.d_model * model.n_experts


def shared_expert_params(model: Transformer) -> Number:
    """Matmul parameters of a mixture layer used by every token: shared experts, projections to the latent width [1]."""
    # Down and up projection of the latent.
    return model.n_shared_experts * mlp_params(model, model.d_ff_expert) + 2.0 * model.d_model * model.moe_latent_size


def ssm_params(model: Transformer) -> Number:
    r"""Matmul parameters of a Mamba-2 layer: $d (2 d_i + 2 n_s) + d_i d$ (arXiv 2405.21060, section 7) [1]."""
    return model.d_model * (3.0 * model.ssm_d_inner + 2.0 * model.ssm_state)


def moe_layers(model: Transformer) -> Number:
    """Number of layers with a mixture of experts as MLP [1]."""
    return mlp_layers(model) - dense_layers(model)


def mlp_width(model: Transformer) -> Number:
    """Sum over layers of the inner widths of dense MLPs and shared experts [1]."""
    return dense_layers(model) * model.d_ff + moe_layers(model) * model.n_shared_experts * model.d_ff_expert


def widest_matrix(model: Transformer) -> Array:
    """Inner width of the widest MLP matrix: of a dense MLP where present, or of an expert [1]."""
    # Part of a layer counts as such a part, so that shares of layers move the width without a jump.
    dense = jnp.minimum(dense_layers(model), 1.0) * model.d_ff
    return jnp.maximum(dense, jnp.minimum(moe_layers(model), 1.0) * model.d_ff_expert)


def routed_width(model: Transformer) -> Number:
    """Sum over layers of the inner widths of the routed experts of a token [1]."""
    return moe_layers(model) * model.moe_top_k * model.d_ff_expert


def copies_width(model: Transformer) -> Array:
    """Sum over layers of the widths of a token's copies dispatched to routed experts [1]."""
    return moe_layers(model) * model.moe_top_k * expert_input(model)


def n_params(model: Transformer) -> Array:
    """Number of parameters: attention, MLPs and experts, routers, norms, embeddings [1]."""
    routed = model.n_experts * expert_params(model) + router_params(model)
    return _layer_params(model, routed) + embedding_params(model)


def n_active_params(model: Transformer) -> Array:
    """Number of active parameters of a token, embeddings included [1]."""
    routed = model.moe_top_k * expert_params(model) + router_params(model)
    return _layer_params(model, routed) + embedding_params(model)


def dense_layer_params(model: Transformer) -> Array:
    """Matmul parameters of all layers without routed experts and routers [1]."""
    return (
        attention_layers(model) * attention_params(model)
        + dense_layers(model) * mlp_params(model, model.d_ff)
        + ssm_layers(model) * ssm_params(model)
        + moe_layers(model) * shared_expert_params(model)
        + merge_params(model)
    )


def _layer_params(model: Transformer, routed: ArrayLike) -> Array:
    # A norm of width d before each mixer and MLP, and before the logits.
    norms = model.d_model * (attention_layers(model) + mlp_layers(model) + ssm_layers(model) + 1.0)
    return dense_layer_params(model) + moe_layers(model) * routed + norms


def embedding_params(model: Transformer) -> Number:
    """Parameters of input and output embeddings and of learned positions [1]."""
    # Two matrices, a single matrix where tied.
    vocabulary = (2.0 - model.tied_embeddings) * model.vocab_size * model.d_model
    return vocabulary + model.position_embeddings * model.d_model


def head_params(model: Transformer) -> Number:
    """Weights of the logits head: vocabulary times d [1]."""
    return model.vocab_size * model.d_model


def matmul_params_per_token(model: Transformer) -> Array:
    """Matmul parameters per token: active layers and the logits head, not the embedding lookup [1]."""
    routed = model.moe_top_k * expert_params(model) + router_params(model)
    return dense_layer_params(model) + moe_layers(model) * routed + logits_per_token(model) * head_params(model)


def scores_per_token(model: Transformer) -> Number:
    """Attention scores per token and attention layer over all heads, without a causal mask: `H keys` [1]."""
    return mean_over_heads(model, lambda kind: kind.n_heads * kind.keys)


def attention_flops_per_token(model: Transformer, causal: ArrayLike = 0.0) -> Number:
    """Forward flops of scores and weighted values per token and attention layer: `2 H (h + h_v) keys` [flop]."""
    flops = mean_over_heads(model, lambda kind: 2.0 * kind.n_heads * (kind.head_dim + kind.v_head_dim) * kind.keys)
    # The causal mask halves the keys.
    return flops * (1.0 - 0.5 * causal)


def model_flops(model: Transformer, causal: bool = False) -> Array:
    """Model flops per token of a training step, forward and backward, without recomputation [flop].

    `6 * (matmul parameters) + 12 * L * H * head_dim * S`; with `causal` the attention part of a causal model is halved.

    Args:
        model: the transformer.
        causal: whether only the keys within the causal mask count.

    Returns:
        Flops per token [flop].
    """
    # Backward takes twice the forward flops.
    attention = 3.0 * attention_layers(model) * attention_flops_per_token(model, causal * model.causal)
    return 6.0 * matmul_params_per_token(model) + attention
