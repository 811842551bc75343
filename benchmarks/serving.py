"""Serving: evaluations of latency and throughput per second, and predictions of 10,000 rows of a table."""

import csv
import itertools
import statistics
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jaxscale as js
from jaxscale import serving
from jaxscale.base.jit import array_jit

CHUNK, ROUNDS = 16384, 64


def evaluations_per_second() -> float:
    """Full answers per second: first token, time per token and throughput, in 32 bits, batches and lengths varied."""
    model, cluster = js.model("deepseek-v3"), js.cluster("h100-80gb", 8)
    engine, usual = serving.Engine(tp=8, precision="fp8"), serving.usual_coefficients()
    shared = jax.tree.map(jnp.asarray, (model, engine, cluster, usual))

    def one(batch, length, common):
        own, engine, cluster, coefficients = common
        load = serving.Requests(concurrency=batch, input_len=length, output_len=0.5 * length)
        times = serving.serving_time(own, engine, cluster, load, coefficients)
        return times.ttft, times.tpot, times.throughput

    def chunked(batches, lengths, common):
        return jax.lax.map(lambda part: jax.vmap(one, in_axes=(0, 0, None))(*part, common), (batches, lengths))

    program = array_jit(chunked)
    rng = np.random.default_rng(0)
    batches, lengths = (jnp.asarray(rng.uniform(1, 999, (ROUNDS, CHUNK)), jnp.float32) for _ in range(2))
    jax.block_until_ready(program(batches, lengths, shared))
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        jax.block_until_ready(program(batches, lengths, shared))
        seconds.append(time.perf_counter() - start)
    return CHUNK * ROUNDS / min(seconds)


def seconds_for_rows(count: int = 10_000) -> float:
    """Median time to read a table of serving rows and predict them, warm [s]."""
    with (js.data_path("serving") / "aiconfigurator_silicon.csv").open(encoding="utf-8") as stream:
        rows = list(itertools.islice(itertools.cycle(list(csv.DictReader(stream))), count))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        with path.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        seconds = []
        for _ in range(4):
            start = time.perf_counter()
            serving.predict_serving(serving.read_serving(path))
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


if __name__ == "__main__":
    print(f"{evaluations_per_second() / 1e6:.2f} million evaluations/s ({jax.default_backend()}, 32 bits)")
    print(f"{seconds_for_rows():.2f} s for 10,000 rows")
