"""Plans 1,000 jobs of Inception-v3 on 1,024 GPUs (bandwidth x latency x batch x limit) and prints the time.

Run: python benchmarks/burst.py
"""

import time

import jax
import jax.numpy as jnp
import numpy as np

from jaxscale.burst import BurstJob, load_network, measured_layer_time, plan_burst

AXES = {
    "batch": np.geomspace(256, 8192, 5),
    "bandwidth": np.geomspace(5e9, 5e11, 8),
    "latency": np.geomspace(3e-6, 3e-4, 5),
    "limit": [1.5, 2.0, 3.0, 4.0, 6.0],
}
N_GPUS, N_OPTIONS, CHUNK = 1024.0, 11, 100


def main() -> None:
    graph, times = load_network("inception_v3"), measured_layer_time("inception_v3")
    batch, bandwidth, latency, limit = (jnp.ravel(x) for x in jnp.meshgrid(*map(jnp.asarray, AXES.values())))
    same = jnp.ones_like(limit)
    jobs = BurstJob(batch, N_GPUS * same, bandwidth, latency, limit, 3e-4 * same)
    sweep = jax.jit(
        lambda s: jax.lax.map(lambda one: plan_burst(graph, times, one, N_OPTIONS).time, s, batch_size=CHUNK)
    )
    for label in ("first call, compiling", "compiled"):
        wall, cpu = time.perf_counter(), time.process_time()
        jax.block_until_ready(sweep(jobs))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        print(f"{label}: {len(batch):,} jobs in {wall:.2f} s ({cpu:.2f} s on all cores)")


if __name__ == "__main__":
    main()
