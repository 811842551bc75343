"""Layers of a configuration: token mixer and MLP of each layer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxscale.base.errors import InputError
from jaxscale.models.hf.hf_settings import Settings

WORDS = {
    "full_attention": "full",
    "attention": "full",
    "*": "full",
    "sliding_attention": "window",
    "sliding_window_attention": "window",
    "chunked_attention": "window",
    "local_attention": "window",
    "compressed_sparse_attention": "full",
    "heavily_compressed_attention": "full",
    "linear_attention": "linear",
    "gated_deltanet": "linear",
    "kda": "linear",
    "lightning_attention": "linear",
    "mamba": "mamba",
    "mamba2": "mamba",
    "m": "mamba",
    "conv": "conv",
    "hybrid": "full+mamba",
    "moe": "moe",
    "e": "moe",
    "mlp": "dense",
    "-": "dense",
    "dense": "dense",
    "sparse": "moe",
}
"""Kinds of layers by the words of configurations and the letters of patterns."""

ALL_WINDOW = frozenset("mistral mixtral phi3 phimoe starcoder2".split())
"""Families in which a stated window holds for every layer."""

DOUBLE = frozenset({"longcat_flash"})
"""Families whose layers hold two attentions and two dense MLPs, and one mixture beside them: two layers of the usual
kind, the dense MLP of the first a shared expert of its mixture."""


@dataclass(frozen=True)
class LayerKinds:
    """Kinds of the layers of a model.

    Attributes:
        mixers: full, window, linear, mamba, conv, joined by + where a layer has two, or empty [layer].
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
    if settings.kind in DOUBLE:
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
    slides = settings.kind in ALL_WINDOW or settings.kind.startswith("qwen")
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
    """Layers of a model from architecture search with individual attention and MLPs; None for different models."""
    blocks = settings.sequence("block_configs")
    return [block for block in blocks if isinstance(block, Mapping)] if blocks else None
