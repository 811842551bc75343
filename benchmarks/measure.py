"""Steps of small decoders on the device at hand, against their prediction by the record of `jaxscale measure`.

Run: python benchmarks/measure.py [seconds of the measurement]. None of the steps is among the timed kernels. On a
processor the least time of repeats counts, for steps as for kernels.
"""

import argparse
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxscale as js
from jaxscale.calibration.kernel_coefficients import kernel_coefficients
from jaxscale.examples.decoder_steps import decoder
from jaxscale.measuring.chip_record import ChipRecord
from jaxscale.measuring.measured_devices import measure_devices
from jaxscale.tracing import kernel_rows, trace, traced_kernel_times

SHAPES = (
    (2, 128, 4, 512, 128, 4, False),
    (2, 256, 4, 1024, 256, 2, False),
    (4, 256, 8, 768, 128, 4, True),
    (2, 512, 8, 2048, 128, 2, False),
    (6, 128, 4, 512, 256, 2, True),
    (1, 768, 12, 3072, 256, 1, False),
    (2, 384, 6, 1024, 512, 1, True),
)
"""Layers, width, heads, MLP, tokens, sequences and whether the MLP has a gate."""

REPEATS = 7


def steps() -> list[tuple[Any, ...]]:
    """Training steps with the shapes of their arguments, in 32 bits."""
    names = ("n_layers", "d_model", "n_heads", "d_ff", "seq_len", "micro_batch", "gated_mlp")
    found = []
    for shape in SHAPES:
        setting = dict(zip(names, shape, strict=True))
        setting |= {"n_kv_heads": setting["n_heads"], "vocab_size": 2048, "attention": "xla", "dtype": jnp.float32}
        found.append(decoder(**setting))
    return found


def seconds_of(step: Any, state: Any, tokens: Any) -> float:
    """Time of a step [s]: the least of repeats on a processor, else the median."""

    def filled(leaf: Any) -> jax.Array:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return jnp.zeros(leaf.shape, leaf.dtype)
        return (0.02 * jnp.abs(jax.random.normal(jax.random.key(0), leaf.shape))).astype(leaf.dtype)

    run, state = jax.jit(step, donate_argnums=0), jax.tree.map(filled, state)
    tokens = jax.random.randint(jax.random.key(1), tokens.shape, 0, 2048, tokens.dtype)
    times = []
    for _ in range(REPEATS + 2):
        begin = time.perf_counter()
        state = jax.block_until_ready(run(state, tokens))
        times.append(time.perf_counter() - begin)
    return float(min(times[2:]) if jax.devices()[0].platform == "cpu" else np.median(times[2:]))


def predicted(step: tuple[Any, ...], record: ChipRecord, own: bool) -> float:
    """Time of a step by the record [s], with its own coefficients of kernels or those of the package."""
    kernels = kernel_coefficients("jax", record.kernels if own else None)
    rows = kernel_rows(trace(*step))
    chip = js.chip(record.id, js.Hardware({record.id: record.entry()}))
    return float(sum(traced_kernel_times(rows, chip, kernels)))


def main() -> None:
    """Measure, predict, print."""
    jax.config.update("jax_enable_x64", True)
    parser = argparse.ArgumentParser()
    parser.add_argument("seconds", nargs="?", type=float, default=120.0)
    record = measure_devices(parser.parse_args().seconds).record
    off = []
    for shape, step in zip(SHAPES, steps(), strict=True):
        measured = seconds_of(*step)
        errors = [predicted(step, record, own) / measured - 1.0 for own in (True, False)]
        off.append(errors)
        print(f"{shape}: {1e3 * measured:.1f} ms, by the record {errors[0]:+.0%}, by the package {errors[1]:+.0%}")
    for name, column in zip(("record", "package"), np.asarray(off).T, strict=True):
        size = np.abs(column)
        print(f"{name}: median {np.median(size):.0%}, mean {size.mean():.0%}, largest {size.max():.0%}")
    print(
        f"{len(record.errors)} timed kernels: median {np.median(np.abs(np.expm1(record.errors))):.0%}; {record.drift}"
    )


if __name__ == "__main__":
    main()
