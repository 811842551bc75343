"""Transformers: parameter counts against published ones, flops, defaults, refusals."""

import dataclasses
import tomllib

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxscale.base.documents import data_path
from jaxscale.models import model
from jaxscale.models.transformer import (
    Transformer,
    attention_flops_per_token,
    attention_layers,
    attention_params,
    embedding_params,
    matmul_params_per_token,
    model_flops,
    n_active_params,
    n_params,
    scores_per_token,
    total_layers,
    widest_matrix,
)

MODELS = tomllib.loads(data_path("models.toml").read_text(encoding="utf-8"))["models"]
PUBLISHED = sorted(name for name, entry in MODELS.items() if "published_params" in entry)
ACTIVE = sorted(name for name, entry in MODELS.items() if "published_active_params" in entry)


def tolerance(entry: dict) -> float:
    """1 %, or half a unit in the last published digit [1]."""
    digits = entry.get("published_digits")
    count = entry["published_params"]
    return max(0.01, 0.5 * 10.0 ** (np.floor(np.log10(count)) - digits + 1) / count) if digits else 0.01


def test_no_more_layers_are_dense_than_have_an_mlp():
    with pytest.raises(ValueError, match="n_dense_layers = 3 exceeds n_mlp_layers = 2"):
        Transformer(4, 64, 4, 16, vocab_size=8, n_experts=4, n_mlp_layers=2, n_dense_layers=3)


# `intermediate_size`, and `moe_intermediate_size` where no MLP is dense, of the published config.json files.
@pytest.mark.parametrize(
    ("name", "width"),
    [("llama3-8b", 14336), ("deepseek-v3", 18432), ("mixtral-8x7b", 14336), ("qwen3-30b-a3b", 768)],
)
def test_the_widest_matrix_is_that_of_a_dense_mlp_else_of_an_expert(name: str, width: int):
    assert float(widest_matrix(model(name))) == width


def test_twenty_models_have_a_published_count():
    assert len(PUBLISHED) >= 20


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_match_the_published_count(name: str):
    counted, published = float(n_params(model(name))), MODELS[name]["published_params"]
    assert counted == pytest.approx(published, rel=tolerance(MODELS[name]))
    without_embeddings = float(n_params(model(name, vocab_size=1)))
    assert without_embeddings < counted


# NeMo's tables of performance state both: Tflop/s over tokens/s of the rows of release 26.02 and later, and "w/o MTP".
GIGAFLOPS_PER_TOKEN = [
    ("deepseek-v3", 4096, 1, 260.0),
    ("deepseek-v3", 4096, 0, 249.6),
    ("nemotron3-super-120b-a12b", 8192, 2, 84.7),
]


@pytest.mark.parametrize(("name", "length", "further", "published"), GIGAFLOPS_PER_TOKEN)
def test_prediction_layers_bring_the_published_flops(name: str, length: int, further: int, published: float):
    shape = model(name, seq_len=length, n_predict_layers=further)
    assert float(model_flops(shape, causal=True)) / 1e9 == pytest.approx(published, rel=0.005)
    other = model(name, seq_len=length, n_predict_layers=further + 1)
    assert float(model_flops(other, causal=True)) / 1e9 != pytest.approx(published, rel=0.03)


def test_a_prediction_layer_is_a_layer_with_a_projection():
    """DeepSeek-V3's weighs 14 billion with its own copies of embedding and head (arXiv 2412.19437, model card)."""
    plain, further = (model("deepseek-v3", n_predict_layers=n) for n in (0, 1))
    assert (further.n_layers, total_layers(further), attention_layers(further)) == (61.0, 62.0, 62.0)
    assert float(further.n_dense_layers) == pytest.approx(3.0)
    copies = float(embedding_params(plain))
    assert float(n_params(further) - n_params(plain)) + copies == pytest.approx(14e9, rel=0.05)


def test_the_count_can_miss():
    wrong = float(n_params(model("llama3-8b", n_layers=33)))
    assert wrong != pytest.approx(MODELS["llama3-8b"]["published_params"], rel=0.01)


@pytest.mark.parametrize("name", ACTIVE)
def test_active_parameters_are_near_the_published_count(name: str):
    shape, published = model(name), MODELS[name]["published_active_params"]
    # Some publishers leave the embedding lookup out, and most round to few digits.
    counts = [float(n_active_params(shape)), float(n_active_params(shape) - shape.vocab_size * shape.d_model)]
    assert min(abs(count / published - 1.0) for count in counts) < 0.05


def test_flops_are_six_per_parameter_and_twelve_per_layer_width_and_key():
    gpt = Transformer(96, 12288, 96, 2048, vocab_size=51200)
    layers, width, length = 96.0, 12288.0, 2048.0
    matmul = layers * 12.0 * width**2 + 51200.0 * width
    assert float(model_flops(gpt)) == pytest.approx(6.0 * matmul + 12.0 * layers * width * length, rel=1e-12)
    assert float(model_flops(gpt, causal=True)) == pytest.approx(
        6.0 * matmul + 6.0 * layers * width * length, rel=1e-12
    )
    assert float(matmul_params_per_token(gpt)) == pytest.approx(matmul, rel=1e-12)


def test_iteration_flops_of_korthikanti():
    """Korthikanti et al., arXiv 2205.05198, equation 7: `72 B L s h^2 (1 + s / (6 h) + v / (12 h L))`."""
    layers, width, length, vocabulary = 105.0, 20480.0, 2048.0, 51200.0
    shape = Transformer(layers, width, 128, length, vocab_size=vocabulary)
    bracket = 1.0 + length / (6.0 * width) + vocabulary / (12.0 * width * layers)
    assert float(model_flops(shape)) == pytest.approx(72.0 * layers * width**2 * bracket, rel=1e-12)


def test_a_mixture_multiplies_only_its_chosen_experts():
    dense = Transformer(8, 1024, 8, d_ff=2048, vocab_size=1000)
    mixture = Transformer(8, 1024, 8, d_ff_expert=1024, n_experts=64, moe_top_k=2, vocab_size=1000)
    router = 6.0 * 8 * 64 * 1024
    assert float(model_flops(mixture)) == pytest.approx(float(model_flops(dense)) + router, rel=1e-12)
    assert float(n_params(mixture)) > 10.0 * float(n_params(dense))


def test_one_expert_is_a_dense_layer_however_it_is_written():
    """A number, an array and a traced number: the same model, and its neighbours in a batch are mixtures."""

    def count(n_experts: object) -> jax.Array:
        return n_params(Transformer(8, 1024, 8, d_ff=2048, vocab_size=1000, n_experts=n_experts, n_dense_layers=2))

    one, two = (float(count(number)) for number in (1, 2))
    assert one == float(count(jnp.asarray(1.0))) == float(count(np.array(1))) == float(jax.jit(count)(1.0))
    np.testing.assert_allclose(jax.vmap(count)(jnp.asarray([1.0, 2.0])), [one, two], rtol=1e-7)
    assert two > 1.2 * one


def test_windows_shorten_attention():
    assert scores_per_token(Transformer(8, 1024, 8, 8192)) == 8 * 8192.0
    windowed = 128 * (2.0 - 128 / 8192)
    half = Transformer(8, 1024, 8, 8192, window=128, window_share=0.5)
    assert scores_per_token(half) == 8 * (0.5 * 8192 + 0.5 * windowed)
    assert model_flops(half) < model_flops(Transformer(8, 1024, 8, 8192))


def test_layers_with_a_window_have_heads_of_their_own():
    """Attention of Gemma 4: 25 layers of 16 x 256 with 8 x 256 keys, five of 16 x 512 with 2 x 512 keys as values."""
    d, length = 2816.0, 4096.0
    model = Transformer(
        30, d, 16, length, n_kv_heads=2, head_dim=512, shared_key_value=True, window=1024, window_share=25 / 30,
        window_kv_heads=8, window_head_dim=256, window_v_head_dim=256, window_shared_key_value=False,
    )  # fmt: skip
    assert (model.window_heads, model.window_kv_heads, model.window_head_dim) == (16.0, 8.0, 256.0)
    windowed, full = d * (2 * 16 * 256 + 2 * 8 * 256), d * (2 * 16 * 512 + 2 * 512)
    assert float(attention_params(model)) == pytest.approx((25 * windowed + 5 * full) / 30, rel=1e-6)
    keys = 1024.0 * (2.0 - 0.25)
    assert attention_flops_per_token(model) == pytest.approx(2.0 * 16 * (25 * 512 * keys + 5 * 1024 * length) / 30)
    # A wider model keeps the proportions of its windows.
    assert dataclasses.replace(model, n_kv_heads=4).window_kv_heads == 16.0


@pytest.mark.parametrize("window", [1, 7, 64, 100])
def test_windowed_keys_are_those_of_each_query_counted_one_by_one(window: int):
    """Query i meets the last w of its i + 1 keys, its own one counted half, as in the S / 2 of full attention."""
    length = 64
    counted = sum(min(window, query + 1) for query in range(length)) / length
    keys = float(scores_per_token(Transformer(8, 1024, 8, length, window=window, window_share=1.0))) / 16
    assert keys == pytest.approx(counted - 0.5 * min(window, length) / length)


def test_a_deeper_model_has_more_layers_of_each_kind():
    hybrid = Transformer(
        52, 1024, 8, n_attention_layers=4, n_mlp_layers=24, n_ssm_layers=24, ssm_d_inner=2048, ssm_state=128
    )
    deeper = eqx.tree_at(lambda shape: shape.n_layers, hybrid, 104.0)
    counts = (deeper.n_attention_layers, deeper.n_mlp_layers, deeper.n_dense_layers, deeper.n_ssm_layers)
    assert counts == pytest.approx((8.0, 48.0, 48.0, 48.0))
    layers = [float(n_params(shape) - embedding_params(shape)) - 1024.0 for shape in (hybrid, deeper)]
    assert layers[1] == pytest.approx(2.0 * layers[0])


def test_defaults_are_the_customary_ones():
    shape = Transformer(12, 768, 12)
    assert (shape.d_ff, shape.head_dim, shape.n_kv_heads, shape.vocab_size) == (3072.0, 64.0, 12.0, 51200.0)
    assert (shape.n_attention_layers, shape.n_mlp_layers, shape.n_dense_layers) == (12.0, 12.0, 12.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_layers": 0}, r"Transformer.n_layers = 0 is out of range; expected a number above 0"),
        ({"d_model": -1}, r"Transformer.d_model = -1 is out of range"),
        ({"seq_len": float("nan")}, r"Transformer.seq_len = nan is out of range"),
        ({"vocab_size": float("inf")}, r"Transformer.vocab_size = inf is out of range"),
        ({"n_kv_heads": 16}, r"Transformer.n_kv_heads = 16 exceeds n_heads = 12"),
        ({"moe_top_k": 4}, r"Transformer.moe_top_k = 4 exceeds n_experts = 1"),
    ],
)
def test_impossible_shapes_are_refused(change: dict[str, float], message: str):
    with pytest.raises(ValueError, match=message):
        Transformer(**({"n_layers": 12, "d_model": 768, "n_heads": 12} | change))


def test_widths_differentiate():
    slope = jax.grad(lambda width: n_params(Transformer(12, width, 12)))(768.0)
    step = 1e-3
    ends = [float(n_params(Transformer(12, 768.0 + sign * step, 12))) for sign in (-1, 1)]
    assert float(slope) == pytest.approx((ends[1] - ends[0]) / (2 * step), rel=1e-6)
