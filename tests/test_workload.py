"""Transformers: parameter counts against published ones, flops, defaults, refusals."""

import dataclasses
import tomllib

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxscale.base.documents import data_path
from jaxscale.models import model
from jaxscale.models.transformer import (
    Transformer,
    attention_flops_per_token,
    attention_layers,
    attention_params,
    copies_width,
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


@st.composite
def architectures(draw: st.DrawFn) -> dict[str, int]:
    """Arguments of a transformer of any kind, with small whole sizes."""
    size = st.integers(1, 12)
    switch = st.integers(0, 1)
    arguments = {name: draw(size) for name in ("d_model", "n_heads", "head_dim", "v_head_dim", "d_ff", "vocab_size")}
    arguments |= {name: draw(switch) for name in ("gated_mlp", "tied_embeddings", "attention_gate", "n_predict_layers")}
    arguments |= {"n_layers": draw(st.integers(2, 6)), "position_embeddings": draw(st.sampled_from([0, 7]))}
    arguments["n_kv_heads"] = arguments["n_heads"]
    if draw(st.booleans()):
        arguments |= {"q_lora_rank": draw(size)}
    if draw(st.booleans()):
        arguments |= {"kv_lora_rank": draw(size), "rope_head_dim": draw(st.integers(1, arguments["head_dim"]))}
    if draw(st.booleans()):
        arguments |= {"o_lora_rank": draw(size), "o_groups": arguments["n_heads"]}
    if draw(st.booleans()):
        arguments |= {"n_experts": draw(st.integers(2, 8)), "moe_top_k": draw(st.integers(1, 2))}
        arguments |= {"d_ff_expert": draw(size), "n_shared_experts": draw(st.integers(0, 2))}
        arguments |= {"moe_latent_size": draw(st.integers(0, 9)), "n_dense_layers": draw(st.integers(0, 2))}
    if draw(st.booleans()):
        arguments |= {"n_ssm_layers": 1, "ssm_d_inner": draw(size), "ssm_state": draw(size)}
    return arguments


def counted_matrices(a: dict[str, int], n_experts: int) -> int:
    """Numbers of all matrices of an architecture, each with so many routed experts, its embeddings and norms left out.

    An independent count: a list of shapes for each layer, as a program would make them.
    """
    of = {name: a.get(name, 0) for name in ("q_lora_rank", "kv_lora_rank", "o_lora_rank", "moe_latent_size")}
    d, heads, h, h_v, mlp = a["d_model"], a["n_heads"], a["head_dim"], a["v_head_dim"], 2 + a["gated_mlp"]
    queries, rope = heads * h, a.get("rope_head_dim", 0)
    attention = [(d, of["q_lora_rank"]), (of["q_lora_rank"], queries)] if of["q_lora_rank"] else [(d, queries)]
    if of["kv_lora_rank"]:
        attention += [(d, of["kv_lora_rank"] + rope), (of["kv_lora_rank"], heads * (h - rope + h_v))]
    else:
        attention += [(d, heads * h), (d, heads * h_v)]
    if of["o_lora_rank"]:
        # The rank is that of all groups together, of one head each here.
        attention += [(h_v, of["o_lora_rank"]), (of["o_lora_rank"], d)]
    else:
        attention += [(heads * h_v, d)]
    attention += [(d, heads * h_v)] * a["attention_gate"]
    dense = [(d, a["d_ff"])] * mlp
    layers = a["n_layers"] + a["n_predict_layers"]
    total = attention * layers + [(2 * d, d)] * a["n_predict_layers"]
    if "n_experts" in a:
        width, latent = a["d_ff_expert"], of["moe_latent_size"]
        mixture = [(d, a["n_experts"])] + [(d, width)] * mlp * a["n_shared_experts"]
        mixture += [(d, latent), (latent, d)] + [(latent or d, width)] * mlp * n_experts
        total += dense * a["n_dense_layers"] + mixture * (layers - a["n_dense_layers"])
    else:
        total += dense * layers
    if "n_ssm_layers" in a:
        total += [(d, 2 * a["ssm_d_inner"] + 2 * a["ssm_state"]), (a["ssm_d_inner"], d)]
    return sum(rows * columns for rows, columns in total)


@given(architectures())
@settings(max_examples=60)
def test_parameters_are_those_of_the_matrices_counted_one_by_one(arguments: dict[str, int]):
    """All experts count for the size, the chosen ones for a token; the logits count for each predicted token."""
    made = Transformer(**arguments)
    d, vocabulary, further = (arguments[name] for name in ("d_model", "vocab_size", "n_predict_layers"))
    layers = arguments["n_layers"] + further
    norms = d * (2 * layers + arguments.get("n_ssm_layers", 0) + 1)
    looked_up = d * ((2 - arguments["tied_embeddings"]) * vocabulary + arguments["position_embeddings"])
    whole, active = (counted_matrices(arguments, arguments.get(name, 1)) for name in ("n_experts", "moe_top_k"))
    assert float(n_params(made)) == pytest.approx(whole + norms + looked_up, rel=1e-9)
    assert float(n_active_params(made)) == pytest.approx(active + norms + looked_up, rel=1e-9)
    assert float(matmul_params_per_token(made)) == pytest.approx(active + (1 + further) * d * vocabulary, rel=1e-9)
    dispatched = arguments.get("moe_latent_size", 0) or d
    copies = (layers - arguments["n_dense_layers"]) * arguments["moe_top_k"] if "n_experts" in arguments else 0
    assert float(copies_width(made)) == pytest.approx(copies * dispatched, rel=1e-9)


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
