"""Flop of traced training steps against closed forms, for models of many kinds."""

import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxscale.examples import decoder_steps, other_steps, recommendation_steps, vision_steps
from jaxscale.tracing.traced_workload import Workload
from jaxscale.tracing.tracer import trace

TOLERANCE = 1e-3


@functools.cache
def traced(module: Any, name: str, **setting: Any) -> Workload:
    """Trace of an example, shared by tests."""
    return trace(*getattr(module, name)(**setting))


def flop(work: Workload, *kinds: str, phase: str | None = None) -> float:
    """Flop of some kinds and of one phase."""
    if phase is None:
        return float(work.flop(*kinds))
    rows = [one == phase and kind in kinds for one, kind in zip(work.tables.phases, work.tables.kinds, strict=True)]
    return float(np.sum(np.asarray(work.columns().flop)[np.array(rows)]))


GROUPED = {"n_kv_heads": 4, "gated_mlp": True}
LAYER = 2 * 2048**2 + 2 * 2048 * 512 + 3 * 2048 * 8192
TOKENS = 4 * 2048


@pytest.mark.parametrize("unroll", [True, False], ids=["unrolled", "rolled"])
def test_decoder_with_grouped_queries(unroll: bool):
    work = traced(decoder_steps, "decoder", **GROUPED, unroll=unroll)
    weights = 16 * LAYER + 2048 * 32000
    assert flop(work, "matmul") == pytest.approx(6 * weights * TOKENS, rel=TOLERANCE)
    # Scores and weighted values of half of all pairs; five matmuls backward for two forward.
    attention = 16 * TOKENS * 2048 * 2048 * 2 / 2 * 7
    assert flop(work, "attention") == pytest.approx(attention, rel=TOLERANCE)
    assert float(work.n_weights()) == pytest.approx(weights + 2048 * 32000 + 33 * 2048, rel=1e-6)
    assert flop(work, "matmul") != pytest.approx(6 * (weights + 2048 * 32000) * TOKENS, rel=TOLERANCE)


def test_scores_in_memory_count_every_pair():
    work = traced(decoder_steps, "decoder", attention="xla", n_layers=4)
    weights = 4 * (4 * 2048**2 + 2 * 2048 * 8192) + 2048 * 32000
    pairs = 4 * TOKENS * 2048 * 2048 * 2 * 2 * 3
    assert flop(work, "matmul") == pytest.approx(6 * weights * TOKENS + pairs, rel=TOLERANCE)


def test_rematerialisation_is_one_more_forward_pass_but_for_its_last_product():
    plain = traced(decoder_steps, "decoder", **GROUPED, unroll=True)
    again = traced(decoder_steps, "decoder", **GROUPED, unroll=True, recompute=True)
    layers = flop(plain, "matmul", phase="forward") - 2 * TOKENS * 2048 * 32000
    last = 16 * 2 * TOKENS * 8192 * 2048  # nothing of the backward pass needs the result of the last product
    assert flop(again, "matmul", phase="recompute") == pytest.approx(layers - last, rel=1e-6)
    assert flop(again, "attention", phase="recompute") == pytest.approx(
        flop(plain, "attention", phase="forward"), rel=1e-6
    )
    for phase in ("forward", "backward"):
        assert flop(again, "matmul", phase=phase) == pytest.approx(flop(plain, "matmul", phase=phase), rel=1e-6)
    assert float(again.stored_bytes()) < 0.1 * float(plain.stored_bytes())


def test_microbatches_repeat_the_step():
    once = traced(decoder_steps, "decoder", n_layers=2, micro_batch=8)
    four = traced(decoder_steps, "decoder", n_layers=2, micro_batch=2, n_microbatches=4)
    assert flop(four) == pytest.approx(flop(once), rel=1e-6)
    assert float(four.columns().launches.sum()) > 2 * float(once.columns().launches.sum())


def test_mixture_of_experts():
    work = traced(decoder_steps, "decoder", n_layers=2, n_experts=8, gated_mlp=True)
    active = 4 * 2048**2 + 2048 * 8 + 2 * 3 * 2048 * 8192
    assert flop(work, "matmul") == pytest.approx(6 * (2 * active + 2048 * 32000) * TOKENS, rel=TOLERANCE)
    assert float(work.n_weights()) > 2 * 8 * 3 * 2048 * 8192


@pytest.mark.parametrize("unroll", [True, False], ids=["unrolled", "rolled"])
def test_diffusion_transformer(unroll: bool):
    batch, tokens, d, n = 32, 256, 1152, 28
    work = traced(other_steps, "dit", batch=batch, unroll=unroll)
    layers = 6 * batch * n * (tokens * 12 * d**2 + 6 * d**2)
    # The first products need no gradient of their input.
    ends = batch * (tokens * 16 * d * (4 + 6) + 4 * 256 * d + 6 * d**2)
    assert flop(work, "matmul") == pytest.approx(layers + ends, rel=TOLERANCE)
    assert flop(work, "attention") == pytest.approx(7 * n * batch * tokens**2 * d * 2, rel=TOLERANCE)


def test_recommendation_model():
    work = traced(recommendation_steps, "dlrm")
    batch, wide = 6912, 27 * 128
    dense = 13 * 512 + 512 * 256 + 256 * 128 + 3 * 2 * wide * 512 + wide * 1024 + 1024**2 + 1024 * 512 + 512 * 256 + 256
    assert flop(work, "matmul") == pytest.approx(6 * batch * dense - 2 * batch * 13 * 512, rel=TOLERANCE)
    columns = work.columns()
    rows = np.array(work.tables.kinds) == "scatter"
    # Each row that was looked up is read, its gradient added, and written: 214 look-ups of 128 numbers in 32 bits.
    looked_up = batch * 214 * 128 * 4
    assert float(columns.written[rows].sum()) == pytest.approx(looked_up, rel=TOLERANCE)
    assert float((columns.read + columns.read_weights)[rows].sum()) == pytest.approx(2 * looked_up, rel=0.02)


def test_graph_network():
    nodes, edges, d = 100_000, 1_000_000, 128
    work = traced(other_steps, "graph_network")
    closed = 6 * 4 * (nodes + edges) * 2 * d * d + 4 * nodes * 100 * d + 6 * nodes * d
    assert flop(work, "matmul") == pytest.approx(closed, rel=TOLERANCE)


def test_resnet_counts_padding_and_no_hole_of_a_stride():
    work = traced(vision_steps, "resnet50", batch=256)
    forward = flop(work, "conv", "matmul", phase="forward")
    # 4.089 billion multiplications of an image, as torchvision states for its ResNet-50, padding included.
    assert forward == pytest.approx(2 * 4.089e9 * 256, rel=TOLERANCE)
    stem = 2 * 112**2 * 49 * 3 * 64 * 256
    assert flop(work, "conv", "matmul") == pytest.approx(3 * forward - stem, rel=TOLERANCE)
    assert float(work.n_weights()) == pytest.approx(25.557e6, rel=1e-3)


def test_grouped_and_three_dimensional_convolutions():
    retina = traced(vision_steps, "retinanet", batch=2)
    places = 3 * 200**2 * 4 * 128 + 4 * 100**2 * 8 * 256 + 6 * 50**2 * 16 * 512 + 3 * 25**2 * 32 * 1024
    blocks = 2 * 2 * 9 * places  # each output sees the 4 to 32 channels of its group
    assert flop(retina, "grouped_conv", phase="forward") == pytest.approx(blocks, rel=TOLERANCE)
    frozen = 2 * 2 * 9 * 3 * 200**2 * 4 * 128  # the first stage has no backward pass
    assert flop(retina, "grouped_conv") == pytest.approx(3 * blocks - 2 * frozen, rel=TOLERANCE)
    volume = traced(vision_steps, "unet3d", batch=2)
    first = 2 * 2 * 128**3 * 27 * 32
    assert flop(volume, "conv3d") == pytest.approx(3 * flop(volume, "conv3d", phase="forward") - first, rel=TOLERANCE)


def test_state_space_model():
    batch, length, d, inner, state, chunk, heads, layers = 4, 4096, 2048, 4096, 128, 256, 64, 4
    work = traced(other_steps, "mamba2")
    projections = d * (2 * inner + 2 * state + heads) + inner * d
    core = chunk * state + chunk * inner + 2 * state * inner
    closed = 6 * layers * batch * length * (projections + core)
    assert flop(work, "matmul") == pytest.approx(closed, rel=TOLERANCE)


def test_traces_are_quick_and_allocate_nothing():
    setting: dict[str, Any] = {"n_layers": 126, "d_model": 16384, "n_heads": 128, "n_kv_heads": 8, "d_ff": 53248}
    begin = time.perf_counter()
    work = trace(*decoder_steps.decoder(**setting, gated_mlp=True, micro_batch=64, seq_len=8192))
    assert time.perf_counter() - begin < 10.0  # 0.2 s on an idle machine
    assert float(work.n_weights()) > 3e11
    assert not [array for array in jax.live_arrays() if array.size > 1e6]


def test_fast_fourier_transforms_and_solves_have_flop():
    def step(x: jax.Array) -> jax.Array:
        return jnp.fft.fft(x), jnp.linalg.cholesky(x @ x.T)

    work = trace(step, jax.ShapeDtypeStruct((256, 256), jnp.float32))
    assert flop(work, "fft") == pytest.approx(5 * 256 * 256 * 8)
    assert flop(work, "factorisation") > 256**3 / 3
