"""Time of traced kernels: closed forms, scalings, measured steps that no fit has seen."""

import csv
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxscale as js
from jaxscale.calibration.kernel_coefficients import KernelCoefficients, kernel_coefficients, kernel_priors
from jaxscale.examples import decoder_steps, other_steps, vision_steps
from jaxscale.tracing.plan_time import ATTENTION, KernelTimes, kernel_rows, traced_kernel_times
from jaxscale.tracing.traced_workload import Workload

H100 = js.cluster("h100-80gb", 1).chip
DATA = Path(__file__).resolve().parents[2] / "data"


def array(*shape: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
    """An abstract array."""
    return jax.ShapeDtypeStruct(shape, dtype)


def times(work: Workload, c: KernelCoefficients) -> KernelTimes:
    """Times on one H100."""
    return traced_kernel_times(kernel_rows(work), H100, c)


def total(work: Workload, c: KernelCoefficients | None = None) -> float:
    """Time of a step on one H100 [s]."""
    return float(sum(times(work, c or kernel_coefficients())))


def without(*names: str, stack: str = "jax") -> KernelCoefficients:
    """Coefficients with some of them nothing."""
    base = kernel_coefficients(stack)
    return eqx.tree_at(lambda c: [getattr(c, name) for name in names], base, [0.0] * len(names))


FREE = ("half_area", "exposed_share", "kernel_launch", "step_launch")


def test_a_large_matmul_runs_at_its_efficiency():
    work = js.trace(lambda w, x: x @ w, array(8192, 8192), array(8192, 8192))
    c = without(*FREE)
    assert total(work, c) == pytest.approx(2 * 8192**3 / (c.matmul_efficiency * 989e12), rel=0.01)
    wide = js.trace(lambda w, x: x @ w, array(8192, 8192, dtype=jnp.float32), array(8192, 8192, dtype=jnp.float32))
    assert total(wide, c) == pytest.approx(2 * total(work, c), rel=0.01)


def test_a_small_output_takes_twice_as_long_at_half_the_area():
    c = without("exposed_share", "kernel_launch", "step_launch")
    side = float(np.sqrt(c.half_area))
    work = js.trace(lambda w, x: x @ w, array(65536, 512), array(512, 65536))
    names = [name for name, size in work.classes().items() if size == 512]
    work = work.with_sizes(dict.fromkeys(names, side))
    assert total(work, c) == pytest.approx(2 * float(work.flop()) / (c.matmul_efficiency * 989e12), rel=0.01)


def test_elementwise_work_runs_at_the_memory_bandwidth():
    work = js.trace(lambda w, x: jnp.tanh(x) * w, array(4096, 4096), array(4096, 4096))
    c = without(*FREE)
    assert total(work, c) == pytest.approx(3 * 2 * 4096**2 / (c.traffic_efficiency * 3.35e12), rel=0.01)


def test_an_attention_kernel_takes_its_products_and_a_share_of_its_bytes():
    queries = array(4, 2048, 16, 128)
    work = js.trace(lambda q: jax.nn.dot_product_attention(q, q, q, implementation="cudnn"), queries)
    c, rows = kernel_coefficients(), kernel_rows(work)
    is_attention = np.asarray(rows.code) == ATTENTION
    assert is_attention.sum() == 1
    found = float(times(work, c).attention)
    flop, traffic = (float(np.asarray(column)[is_attention][0]) for column in (rows.flop, rows.bytes))
    products = flop / (c.attention_efficiency * 989e12)
    reads = traffic / (c.traffic_efficiency * H100.hbm_bandwidth)
    assert products < found <= 1.001 * (products + c.exposed_share * reads + c.kernel_launch)
    assert float(times(work, without("kernel_launch", "step_launch")).attention) == pytest.approx(
        products + c.exposed_share * reads, rel=0.01
    )


def test_an_eager_program_waits_for_its_host():
    small = js.trace(*decoder_steps.decoder(n_layers=2, d_model=128, n_heads=2, n_kv_heads=2, d_ff=256, vocab_size=512))
    large = js.trace(*decoder_steps.decoder(n_layers=2, micro_batch=16))
    c = kernel_coefficients("pytorch")
    launches = float(small.columns().launches[np.array(small.tables.phases) != "update"].sum())
    assert float(times(small, c).host) > 0.5 * c.host_launch * launches
    assert float(times(large, c).host) < 0.01 * total(large, c)


def test_terms_are_those_of_their_phases():
    plain = times(js.trace(*decoder_steps.decoder(n_layers=2)), kernel_coefficients())
    again = times(js.trace(*decoder_steps.decoder(n_layers=2, recompute=True)), kernel_coefficients())
    assert float(plain.recompute) == 0
    assert float(again.recompute) > 0.15 * float(plain.matmul)
    assert float(again.matmul) == pytest.approx(float(plain.matmul), rel=0.02)
    assert float(plain.optimizer) > 0


@pytest.mark.parametrize("precision", [jnp.float32, jnp.float64])
def test_time_differentiates_by_every_coefficient_and_size(precision: Any):
    work = js.trace(*decoder_steps.decoder(n_layers=2, recompute=True))

    def seconds(sizes: jax.Array, c: KernelCoefficients) -> jax.Array:
        return sum(traced_kernel_times(kernel_rows(Workload(sizes, work.tables)), H100, c))  # pyright: ignore

    c = jax.tree.map(lambda leaf: jnp.asarray(leaf, precision), kernel_coefficients("pytorch"))
    slopes = jax.grad(seconds, (0, 1))(jnp.asarray(work.sizes, precision), c)
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(slopes))
    batch = work.place_of("tokens[1]")
    step = 1e-3
    up = work.with_sizes({"tokens[1]": 4 * (1 + step)})
    down = work.with_sizes({"tokens[1]": 4 * (1 - step)})
    finite = (total(up, c) - total(down, c)) / (8 * step)
    assert float(slopes[0][batch]) == pytest.approx(finite, rel=0.02)


CHANGES = [
    {"micro_batch": 8},
    {"seq_len": 4096},
    {"d_ff": 12288},
    {"n_layers": 8},
    {"d_model": 3072, "n_heads": 24, "n_kv_heads": 24},
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))
def test_derivatives_agree_with_tracing_again(change: dict[str, int]):
    base = {
        "n_layers": 4,
        "d_model": 2048,
        "n_heads": 16,
        "n_kv_heads": 16,
        "d_ff": 8192,
        "micro_batch": 4,
        "seq_len": 2048,
    }
    here, there = js.trace(*decoder_steps.decoder(**base)), js.trace(*decoder_steps.decoder(**{**base, **change}))
    moved = here.with_sizes(there.classes())
    assert total(moved) == pytest.approx(total(there), rel=0.005)
    # The slope along the way from one to the other, summed up by the midpoint rule.
    start, end = jnp.log(jnp.asarray(here.sizes)[1:]), jnp.log(jnp.maximum(jnp.asarray(moved.sizes)[1:], 1e-9))
    start = jnp.where(jnp.isfinite(start), start, end)

    def log_time(share: jax.Array) -> jax.Array:
        sizes = jnp.concatenate([jnp.ones(1), jnp.exp(start + share * (end - start))])
        rows = kernel_rows(Workload(sizes, here.tables))
        return jnp.log(sum(traced_kernel_times(rows, H100, kernel_coefficients())))  # pyright: ignore

    slopes = jax.vmap(jax.grad(log_time))(jnp.linspace(0.05, 0.95, 10))
    assert float(jnp.mean(slopes)) == pytest.approx(float(np.log(total(there) / total(here))), rel=0.02)


def steps_in_jax() -> list[tuple[str, float, float, float]]:
    """Workload, batch, time [s] and peak memory [GB] of the steps measured in JAX."""
    with (DATA / "workloads" / "h100_jax_workloads.csv").open() as file:
        return [
            (row["workload"], float(row["batch"]), float(row["step_time_s"]), float(row["peak_mem_gb"]))
            for row in csv.DictReader(file)
        ]


@pytest.mark.slow
def test_convolutions_and_diffusion_that_no_fit_has_seen():
    works = {
        "resnet50": js.trace(*vision_steps.resnet50(batch=37), names={"data0[0]": "batch"}),
        "dit-xl": js.trace(*other_steps.dit(batch=37), names={"data0[0]": "batch"}),
        "dit-xl rolled": js.trace(*other_steps.dit(batch=37, unroll=False), names={"data0[0]": "batch"}),
    }
    off, blind = [], []
    for name, batch, seconds, peak in steps_in_jax():
        work = works[name].with_sizes({"batch": batch})
        off.append(total(work) / seconds - 1)
        blind.append(float(work.flop()) / (0.7 * 989e12) / seconds - 1)
        assert float(work.peak_bytes()) == pytest.approx(peak * 1e9, rel=0.08)
    assert max(map(abs, off)) < 0.12
    assert max(map(abs, blind)) > 0.5  # flop alone do not tell


def test_the_shipped_table_is_complete():
    table = kernel_priors()
    assert set(table["coefficients"]) == set(KernelCoefficients.__dataclass_fields__)
    assert all(entry["source"] in table["sources"] for entry in table["coefficients"].values())
    with pytest.raises(js.InputError, match="stack 'torch' of kernels is unknown; did you mean pytorch"):
        kernel_coefficients("torch")


def residual_chain(depth: int, norm: Any) -> Workload:
    """Training step of a chain of convolutions with norms and activations."""

    def loss(weights: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        for layer in range(depth):
            x = jax.nn.relu(
                norm(vision_steps.convolve(x, weights[f"w{layer}"]), weights[f"g{layer}"], weights[f"b{layer}"])
            )
        return jnp.sum(x.astype(jnp.float32) ** 2)

    def step(weights: dict[str, jax.Array], x: jax.Array) -> dict[str, jax.Array]:
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights, x))

    weights = {f"w{layer}": array(3, 3, 64, 64) for layer in range(depth)}
    weights |= {f"{name}{layer}": array(64, dtype=jnp.float32) for layer in range(depth) for name in ("g", "b")}
    return js.trace(step, weights, array(32, 28, 28, 64))


def kernels_of_passes(work: Workload, fused_norms: float) -> float:
    """Kernels that do not multiply, of the forward and the backward pass."""
    rows = kernel_rows(work, fused_norms=fused_norms)
    turned = np.array([name.split("/")[-1] == "rev" for name in work.tables.names])
    return float(np.sum(np.where((rows.phase == 0) & (rows.code > 10) & ~turned, np.asarray(rows.launches), 0.0)))


def test_a_fused_norm_is_one_kernel_forward_and_one_backward():
    chains = [residual_chain(depth, vision_steps.batch_norm) for depth in (3, 4)]
    assert kernels_of_passes(chains[1], 1.0) - kernels_of_passes(chains[0], 1.0) == 2.0
    assert kernels_of_passes(chains[1], 0.0) - kernels_of_passes(chains[0], 0.0) > 5.0
    frozen = residual_chain(3, vision_steps.frozen_norm)
    assert kernels_of_passes(frozen, 1.0) == kernels_of_passes(frozen, 0.0)
