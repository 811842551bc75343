"""Coefficients of a serving stack: what a chip and a framework make of the roofline."""

import functools

import equinox as eqx
from jaxtyping import Array, ArrayLike, Float

from jaxscale.base.arrays import Number
from jaxscale.base.resources import data_path, read_toml


class ServingCoefficients(eqx.Module):
    """Efficiencies and times of a stack, each above zero.

    Attributes:
        weight_bandwidth: share of the memory bandwidth at which weights are read [1].
        expert_bandwidth: share of that at which experts are read, and of the matmul rate at which they compute [1].
        cache_bandwidth: share of the memory bandwidth at which the key/value cache is read [1].
        matmul: share of the peak that the matmuls of decode steps reach [1].
        prefill_matmul: share of the peak that the matmuls of prompts reach [1].
        narrow_matmul: part of those two shares that is left where a narrower format doubles the peak [1].
        layer_floor: launches and small kernels of one layer of one pass [s].
        step_floor: scheduler and sampler of one pass [s].
        sequence_floor: scheduler and sampler of one sequence of one step [s].
        collective_latency: small all-reduce between two chips [s].
        link: share of the bandwidth of links that large collectives reach [1].
        link_ramp: time constant with which the bandwidth of links ramps up with the size of a message [s].
        first_token: fixed part of the time to the first token [s].
        queue: prompts that the first token waits for, per sequence in flight [1].
        lockstep: part of the prompts of the other attention ranks, which step together, that the first token waits for
            like those of its own [1].
        waiting: requests of each copy that wait for a place while the others are answered [1].
        batch_limit: sequences that the scheduler admits to a rank where the client sends more [1].
        pace: factor on every time, which levels such as the release or the model move [1].
    """

    weight_bandwidth: Number
    expert_bandwidth: Number
    cache_bandwidth: Number
    matmul: Number
    prefill_matmul: Number
    narrow_matmul: Number
    layer_floor: Number
    step_floor: Number
    sequence_floor: Number
    collective_latency: Number
    link: Number
    link_ramp: Number
    first_token: Number
    queue: Number
    lockstep: Number
    waiting: Number
    batch_limit: Number
    pace: Number


SHARES = ("weight_bandwidth", "cache_bandwidth", "matmul", "prefill_matmul", "link")
"""Coefficients that are shares of what the hardware reaches at most, which no stack exceeds."""

SHARPNESS = 8.0
"""Exponent of the bound of shares [1]: 0.75 becomes 0.74, 1.5 becomes 0.995."""

SERVING_NAMES = tuple(ServingCoefficients.__dataclass_fields__)
"""Names of the coefficients, in order."""


@functools.cache
def serving_priors() -> dict[str, dict[str, float]]:
    """Prior median and spread of each coefficient by name, from `data/serving.toml`."""
    return read_toml(data_path("serving.toml"))["coefficients"]


def usual_coefficients() -> ServingCoefficients:
    """Coefficients at the medians of their priors."""
    return ServingCoefficients(**{name: float(serving_priors()[name]["median"]) for name in SERVING_NAMES})


def serving_coefficients(logs: Float[ArrayLike, " coefficient"]) -> ServingCoefficients:
    r"""Coefficients from their natural logarithms, in the order of `SERVING_NAMES` [coefficient].

    Those of `SHARES` are bounded by one, $x (1 + x^8)^{-1/8}$: shares above it would have floors that are too long make
    up for them, and small models would come out too slow.
    """
    import jax.numpy as jnp

    values: Array = jnp.exp(jnp.asarray(logs))
    bounded = values * (1.0 + values**SHARPNESS) ** (-1.0 / SHARPNESS)
    pairs = enumerate(SERVING_NAMES)
    return ServingCoefficients(*((bounded if name in SHARES else values)[index] for index, name in pairs))
