"""Throughput of the step-time model: configurations per second and gradients per second, float32.

Run `python benchmarks/step.py`. Depth, width, heads, vocabulary, sequence length, experts, degrees, ZeRO stage, batch
are drawn for every row, all other numbers scattered by a few percent. Two layouts are timed: every leaf varies from
row to row (a scenario sweep), and model and plan vary on one cluster with one set of coefficients (a plan search). The
script fixes no device: what JAX finds is what is measured.
"""

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxscale.calibration.coefficients import prior_medians
from jaxscale.costs.step import step_time
from jaxscale.hardware.catalogue import cluster
from jaxscale.hardware.cluster import Cluster
from jaxscale.models.transformer import Transformer
from jaxscale.plans.plan import Plan

TARGETS = {"values": 5e6, "gradients": 5e5}
"""Rows per second on 2 cores [1/s]."""

ALL_VARY = (0, 0, 0, 0)
PLAN_SEARCH = (0, 0, None, None)
Arguments = tuple[Any, Any, Any, Any]


def random_rows(n: int, seed: int = 0) -> Arguments:
    """Model, plan, cluster and coefficients of n random rows, every leaf an array of n float32."""
    generator = np.random.default_rng(seed)

    def draw(*options: float) -> np.ndarray:
        return generator.choice(np.asarray(options), n)

    heads, layers = draw(16, 32, 64, 96), draw(24, 32, 64, 80, 96)
    mixture = draw(0, 1)
    dp, pp = draw(1, 8, 64, 512), draw(1, 2, 4, 8)
    tp, cp = draw(1, 2, 4, 8), draw(1, 2, 8)
    shape = Transformer(
        layers,
        128.0 * heads,
        heads,
        seq_len=draw(2048, 4096, 8192, 32768),
        n_kv_heads=heads / draw(1, 4, 8),
        gated_mlp=draw(0, 1),
        vocab_size=draw(32000, 50304, 128256),
        tied_embeddings=draw(0, 1),
        n_experts=1.0 + mixture * 63.0,
        moe_top_k=1.0 + mixture,
        n_dense_layers=(1.0 - mixture) * layers,
    )
    plan = Plan(
        dp,
        tp,
        pp,
        vpp=1.0 + (pp > 1.0) * draw(0, 1),
        cp=cp,
        ep=1.0 + mixture * draw(0, 1, 3),
        zero_stage=draw(0, 1, 2, 3),
        micro_batch_size=draw(1, 2, 4),
        n_microbatches=pp * draw(1, 4, 16),
        sequence_parallel=draw(0, 1),
        shard_group=np.minimum(dp, 64.0),
        flash_attention=draw(0, 1),
        overlap_gradients=draw(0, 1),
        balanced_stages=draw(0, 1),
    )
    machine = cluster("h100-80gb", 1)
    rows = (shape, plan, machine, prior_medians())

    def per_row(leaf: Any) -> np.ndarray:
        leaf = np.asarray(leaf, np.float64)
        whole = leaf.ndim == 1 and leaf.shape[0] == n
        table = leaf if whole else leaf * np.exp(0.05 * generator.standard_normal((n, *leaf.shape)))
        return table.astype(np.float32)

    shape, plan, machine, coefficients = jax.tree.map(per_row, rows)
    chips = (dp * tp * pp * cp).astype(np.float32)
    return shape, plan, Cluster(machine.chip, machine.network, chips), coefficients


def with_layout(rows: Arguments, in_axes: tuple[int | None, ...]) -> Arguments:
    """Rows on the device; arguments that do not vary keep only their first row."""
    kept = (
        part if axis == 0 else jax.tree.map(lambda leaf: leaf[0], part)
        for part, axis in zip(rows, in_axes, strict=True)
    )
    return jax.device_put(tuple(kept))


def total(*arguments: Any) -> jax.Array:
    """Step time of one row [s]."""
    return step_time(*arguments).total


def seconds_of(function: Callable[..., Any], arguments: Arguments, repeats: int) -> tuple[float, float, float]:
    """Time of the first call, compilation included; of the best of the others; processor time of the cheapest [s]."""
    wall, busy = [], []
    for _ in range(repeats + 1):
        start, start_busy = time.perf_counter(), time.process_time()
        jax.block_until_ready(function(*arguments))
        wall.append(time.perf_counter() - start)
        busy.append(time.process_time() - start_busy)
    return wall[0], min(wall[1:]), min(busy[1:])


def report(name: str, kind: str, function: Callable[..., Any], arguments: Arguments, n: int, repeats: int) -> None:
    """Time one function and print a line."""
    first, best, busy = seconds_of(function, arguments, repeats)
    rate = n / best
    verdict = "meets" if rate >= TARGETS[kind] else "misses"
    print(
        f"{name:62s} {rate:13,.0f} rows/s ({verdict} {TARGETS[kind]:,.0f}); "
        f"{n / busy:,.0f} rows per core-second; first call {first:.1f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2**13, help="rows per call; those that fit the cache go fastest")
    parser.add_argument("--repeats", type=int, default=100, help="timed calls; the best counts")
    options = parser.parse_args()
    n, repeats = options.rows, options.repeats
    device = jax.devices()[0]
    print(f"device: {device.platform} ({device.device_kind}), {os.cpu_count()} cores, JAX {jax.__version__}, float32")
    rows = random_rows(n)
    n_leaves = sum(int(np.prod(leaf.shape[1:])) for leaf in jax.tree.leaves(rows))
    print(f"{n:,} rows per call; {n_leaves} float leaves per row")
    for label, in_axes in (
        ("every leaf varies", ALL_VARY),
        ("model and plan vary, the rest is broadcast", PLAN_SEARCH),
    ):
        arguments = with_layout(rows, in_axes)
        values = jax.jit(jax.vmap(total, in_axes))
        report(f"step_time, {label}", "values", values, arguments, n, repeats)
        assert bool(jnp.all(jnp.isfinite(values(*arguments))))
        gradients = jax.jit(jax.vmap(jax.value_and_grad(total, argnums=(0, 1, 2, 3)), in_axes))
        report(f"value and gradient, {label}", "gradients", gradients, arguments, n, repeats)


if __name__ == "__main__":
    main()
