"""Model in the terms of launch files: whole numbers, patterns of layers, and features beyond `Transformer`."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jaxscale.models.transformer import Transformer, n_params


@dataclass(frozen=True)
class ModelShape:
    """Model in whole numbers, for launch files.

    Attributes:
        fields: arguments of `Transformer`.
        parts: parameters not included in `fields`, by component of the model [1].
    """

    fields: Mapping[str, Any]
    parts: Mapping[str, float]

    @cached_property
    def model(self) -> Transformer:
        """Model with default values for unstated fields."""
        return Transformer(**self.fields)

    def count(self, name: str) -> int:
        """Field of the model, or a number of layers, rounded to an integer [1]."""
        # Fields are floats, as designs vary sizes smoothly.
        return round(float(getattr(self.model, name)))

    def has(self, name: str) -> bool:
        """Whether a field is above zero."""
        return float(getattr(self.model, name)) > 0.0

    @property
    def n_params(self) -> float:
        """Number of parameters described by the fields [1]."""
        return float(n_params(self.model))

    @property
    def is_mixture(self) -> bool:
        """Whether the model is a mixture of experts."""
        return float(self.model.n_experts) > 1.0

    @property
    def is_latent(self) -> bool:
        """Whether keys and values go through a latent projection."""
        return self.has("kv_lora_rank")

    @property
    def is_hybrid(self) -> bool:
        """Whether the model mixes layers of several types, such as attention and state-space layers."""
        shares = (self.model.attention_share, self.model.mlp_share)
        return self.has("ssm_share") or any(float(share) < 1.0 for share in shares)

    @property
    def is_gated(self) -> bool:
        """Whether the MLP is gated (three matrices)."""
        return bool(float(self.model.gated_mlp))

    @property
    def is_tied(self) -> bool:
        """Whether input and output embeddings are tied."""
        return bool(float(self.model.tied_embeddings))

    @property
    def has_layer_norm(self) -> bool:
        """Whether the model has layer norms with biases and learned positions, as GPT-3."""
        return self.has("position_embeddings") and not self.is_gated

    @property
    def has_biases(self) -> bool:
        """Whether the matrices have biases."""
        return self.has_layer_norm or bool(float(self.model.expert_bias))

    @property
    def n_dense_layers(self) -> int:
        """Number of layers with a dense MLP in a mixture of experts [1]."""
        return self.count("n_dense_layers") if self.is_mixture else 0

    def dense_pattern(self) -> list[int]:
        """Pattern of the layers of a mixture: 1 for experts, 0 for a dense MLP [layer].

        Dense layers come first; if dense layers are half or more, the two types alternate.
        """
        layers, dense = self.count("n_layers"), self.n_dense_layers
        # From a half on, dense layers alternate with layers with experts.
        if dense and 2 * dense >= layers:
            return [1 - (dense * (layer + 1) // layers - dense * layer // layers) for layer in range(layers)]
        return [0] * dense + [1] * (layers - dense)

    def _of_windows(self, size: str) -> float:
        """Ratio of the head width in windowed layers to the head width in full layers [1]."""
        return float(getattr(self.model, f"window_{size}_ratio"))

    def n_window_layers(self) -> int:
        """Number of attention layers with a sliding window [1]."""
        return round(float(self.model.window_share) * self.count("n_attention_layers")) if self.has("window") else 0

    def window_pattern(self) -> list[int]:
        """Pattern of the layers: 1 for a sliding window, evenly spaced, else 0 as in the last layer [layer]."""
        layers, full = self.count("n_layers"), self.count("n_layers") - self.n_window_layers()
        # Cumulated shares: layers without a window evenly spaced, the last layer included.
        return [1 - (full * (layer + 1) // layers - full * layer // layers) for layer in range(layers)]

    def hybrid_letters(self) -> str:
        """Sublayers of a hybrid model in order, one letter each: M state space, * attention, - MLP, E experts."""
        attention, mlp = self.count("n_attention_layers"), self.count("n_mlp_layers")
        mixers = alternated("*" * attention, "M" * self.count("n_ssm_layers"))
        experts = mlp - self.n_dense_layers if self.is_mixture else 0
        dense = "-" * (mlp - experts)
        return alternated(mixers, alternated(dense, "E" * experts) if 2 * len(dense) > mlp else dense + "E" * experts)

    def is_mamba2(self, head_width: int) -> bool:
        """Whether the state-space layers are Mamba-2: whole heads in whole groups, and a state size of a power of 2."""
        inner, groups, state = (self.count(f"ssm_{name}") for name in ("d_inner", "groups", "state"))
        # State size of a group.
        each = state // max(groups, 1)
        is_whole = inner % head_width == 0 and groups > 0 and each * groups == state
        # Linear attention and Mamba-1 have further state sizes, or a state as wide as all heads.
        return is_whole and (inner // head_width) % groups == 0 and each & (each - 1) == 0 and state < inner

    def special_parts(self) -> dict[str, bool]:
        """Whether the model has each feature beyond a causal decoder with gated MLPs, by name of the feature."""
        return {
            "layers of several kinds": self.is_hybrid,
            "an MLP of two matrices": not self.is_gated,
            "learned positions": self.has("position_embeddings"),
            "experts on a latent width": self.has("moe_latent_size"),
            "a gate of attention": bool(float(self.model.attention_gate)),
            "attention to later tokens": not float(self.model.causal),
        }

    def unlike(self, *special: str) -> list[str]:
        """Features of the model without an option in any framework, and features among `special`.

        Args:
            special: names from `special_parts` without an option in the framework.
        """
        said = []
        if self.has("o_lora_rank"):
            said.append("low-rank output projection of attention")
        if self.has("shared_key_value"):
            said.append("keys that serve as values")
        if self.has("q_lora_rank") and not self.is_latent:
            said.append("low-rank queries without latent keys")
        if not self.is_latent and self.count("v_head_dim") != self.count("head_dim"):
            said.append(f"value heads {self.count('v_head_dim')} wide beside heads {self.count('head_dim')} wide")
        sizes = ("heads", "kv_heads", "head_dim", "v_head_dim")
        own = [f"window_{size} = {self.count(f'window_{size}')}" for size in sizes if self._of_windows(size) != 1.0]
        if own and self.n_window_layers():
            said.append(f"heads of their own in layers with a window ({', '.join(own)})")
        parts = self.special_parts()
        return said + [name for name in special if parts[name]]


def alternated(few: str, many: str) -> str:
    """Letters of two texts in alternation, each text evenly spaced; at equal counts `few` comes first."""
    if not few or not many:
        return few + many
    # Letter k of n lies at (2k + 1) / (2n), multiplied out to whole numbers.
    places = sorted(
        [((2 * k + 1) * len(many), 0, letter) for k, letter in enumerate(few)]
        + [((2 * k + 1) * len(few), 1, letter) for k, letter in enumerate(many)]
    )
    return "".join(letter for _, _, letter in places)


def run_lengths(pattern: list[int]) -> str:
    """Pattern over layers in the shortest syntax of Megatron-LM, for example `([0]*3+[1]*58)`."""
    period = next(n for n in range(1, len(pattern) + 1) if pattern == (pattern[:n] * len(pattern))[: len(pattern)])
    times = len(pattern) / period
    if times == int(times) and 1 < period <= 8 and times > 1:
        return f"([{','.join(map(str, pattern[:period]))}]*{int(times)})"
    parts, last = [], 0
    for place in range(1, len(pattern) + 1):
        if place == len(pattern) or pattern[place] != pattern[last]:
            parts.append(f"[{pattern[last]}]*{place - last}")
            last = place
    return f"({'+'.join(parts)})"


def vocabulary_divisor(vocabulary: int, tp: int) -> int:
    """Largest power of two up to 128 that, times tp, divides the vocabulary; 1 if there is none [1]."""
    divisor = 128
    while divisor > 1 and vocabulary % (divisor * tp):
        divisor //= 2
    return divisor


def padded_vocabulary(vocabulary: int, tp: int) -> int:
    """Vocabulary size padded to the next multiple of tp [1]."""
    return math.ceil(vocabulary / tp) * tp
