"""Coefficients of a serving stack: what a chip and a framework make of the roofline."""

import functools

import equinox as eqx
from jaxtyping import Array, ArrayLike, Float

from jaxscale.base.arrays import Number
from jaxscale.calibration.spec import Spec, spec_from
from jaxscale.calibration.stand_ins import StandIns, longest_within
from jaxscale.serving.calibrate.level_names import nearest_release


class ServingCoefficients(eqx.Module):
    """Efficiencies and times of a stack, above zero; `data/serving.toml` has their units, priors and meanings."""

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
def serving_spec() -> Spec:
    """Table of the coefficients, `data/serving.toml`, in the order of `SERVING_NAMES`."""
    # A fork or a wrapper often bears the name of a framework within its own.
    choices = {"framework": longest_within, "release": nearest_release}
    return spec_from("serving.toml", SERVING_NAMES, stand_ins=StandIns(choices=choices))


def usual_coefficients() -> ServingCoefficients:
    """Coefficients at the medians of their priors."""
    return ServingCoefficients(**serving_spec().medians)


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
