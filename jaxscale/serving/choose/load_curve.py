"""Latency and throughput of an engine against the requests in flight: what a choice of the batch gives up."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxscale.base.arrays import host_arrays, with_fields
from jaxscale.base.jit import array_jit
from jaxscale.hardware.cluster import Cluster
from jaxscale.models.transformer import Transformer
from jaxscale.runs.arrays import padded
from jaxscale.serving.calibrate.serving_coefficients import ServingCoefficients
from jaxscale.serving.engine import Engine, Requests
from jaxscale.serving.serving_time import ServingTime, serving_time

BUCKET = 64
"""Loads that are evaluated at a time [1]."""


@array_jit
def _curve(
    model: Transformer, engine: Engine, cluster: Cluster, requests: Requests, coefficients: ServingCoefficients,
    concurrency: Array,
) -> ServingTime:  # fmt: skip
    def one(load: Array) -> ServingTime:
        return serving_time(model, engine, cluster, with_fields(requests, {"concurrency": load}), coefficients)

    return jax.vmap(one)(concurrency)


def load_curve(
    model: Transformer,
    engine: Engine,
    cluster: Cluster,
    requests: Requests,
    coefficients: ServingCoefficients,
    concurrency: Float[np.ndarray, " load"],
) -> ServingTime:
    """Latency and throughput of an engine at several loads, each leaf [load].

    Args:
        model: the transformer.
        engine: its copies.
        cluster: the chips.
        requests: lengths and kind of serving.
        coefficients: of the stack.
        concurrency: requests in flight over all copies [1], [load].
    """
    arrays = jax.device_put(host_arrays((model, engine, cluster, requests, coefficients)))
    weights, copies, chips, lengths, rates = arrays  # once on the device, whatever the number of blocks
    loads, blocks = np.asarray(concurrency, float), []
    for start in range(0, len(loads), BUCKET):
        block = loads[start : start + BUCKET]
        blocks.append(_curve(weights, copies, chips, lengths, rates, padded(block, len(block), BUCKET)))
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[: len(loads)], *blocks)
