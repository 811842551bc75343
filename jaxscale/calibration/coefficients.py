"""Coefficients of the cost terms: quantities that come from measurements, not from a datasheet.

The table `data/coefficients.toml` gives unit, physical range, prior with source and physical meaning of each
coefficient. The module `Coefficients` is flat, with float leaves, so that a step time differentiates by coefficient.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from jaxscale.base.arrays import Number, as_float
from jaxscale.base.show import leaves_shown, printed
from jaxscale.calibration.levels import COMPANY
from jaxscale.calibration.spec import Prior, Spec, StandIns, spec_from

CENTRE_KINDS = ("stack", "gpu", "number_format", "recipe", "company")
"""Factors whose effects make up the centre, the prediction for an unknown stack."""

OFFSET_KINDS = ("source", "mixture", "local_shape")
"""Factors whose effects set a known stack apart from the centre."""

KINDS = (*CENTRE_KINDS, *OFFSET_KINDS)
"""All factors with effects."""

STAND_INS = StandIns(
    # Without a stated number format, the name of the precision counts: fp8 unless it is mxfp8.
    others={"number_format": "precision"},
    # A run without a stated recipe counts as set up by its user, on several chips with collectives.
    usual={"recipe": "user", "company": COMPANY[1]},
)
"""Default levels of runs without a level."""

MEMORY_COEFFICIENTS = (
    "activation_factor",
    "queued_bytes",
    "framework_bytes",
)
"""Coefficients of the memory model; all remaining coefficients belong to the step time."""

RETIRED = ("logit_memory_bytes", "gradient_memory_factor", "working_bytes")
"""Coefficients of earlier fits, now computed from first principles; values in files are ignored."""


def _coefficient() -> Any:
    return eqx.field(converter=as_float)


@printed(lambda coefficients: leaves_shown(coefficients))
class Coefficients(eqx.Module):
    """Fitted parameters of all cost terms; units, priors and sources are in `data/coefficients.toml`."""

    matmul_efficiency: Number = _coefficient()
    fp8_efficiency: Number = _coefficient()
    fp4_efficiency: Number = _coefficient()
    matmul_half_area: Number = _coefficient()
    matmul_exposed_bytes: Number = _coefficient()
    attention_efficiency: Number = _coefficient()
    scan_efficiency: Number = _coefficient()
    score_bytes: Number = _coefficient()
    hbm_efficiency: Number = _coefficient()
    residual_passes: Number = _coefficient()
    hidden_passes: Number = _coefficient()
    routed_passes: Number = _coefficient()
    bias_passes: Number = _coefficient()
    logit_bytes: Number = _coefficient()
    accumulation_bytes: Number = _coefficient()
    fsdp_bytes: Number = _coefficient()
    host_time_layer: Number = _coefficient()
    host_time_mixture: Number = _coefficient()
    host_time_tp_network: Number = _coefficient()
    host_time_tp_node: Number = _coefficient()
    layer_time_factor: Number = _coefficient()
    scale_up_efficiency: Number = _coefficient()
    scale_out_efficiency: Number = _coefficient()
    collective_launch: Number = _coefficient()
    link_latency_scale: Number = _coefficient()
    network_latency_scale: Number = _coefficient()
    tp_overlap: Number = _coefficient()
    dp_overlap: Number = _coefficient()
    dp_congestion: Number = _coefficient()
    dp_buckets: Number = _coefficient()
    reduce_rings: Number = _coefficient()
    fsdp_overlap: Number = _coefficient()
    cp_overlap: Number = _coefficient()
    ep_overlap: Number = _coefficient()
    moe_expert_time: Number = _coefficient()
    pp_exposed: Number = _coefficient()
    pp_slot_time: Number = _coefficient()
    optimizer_bytes: Number = _coefficient()
    step_time: Number = _coefficient()
    straggler: Number = _coefficient()
    activation_factor: Number = _coefficient()
    queued_bytes: Number = _coefficient()
    framework_bytes: Number = _coefficient()


@functools.cache
def training_spec() -> Spec:
    """Table of the coefficients, `data/coefficients.toml`, in the order of the fields of `Coefficients`."""
    return spec_from("coefficients.toml", names(), kinds=KINDS, stand_ins=STAND_INS, retired=RETIRED)


def priors() -> Mapping[str, Prior]:
    """Prior of every coefficient, in the order of the fields of `Coefficients`."""
    return training_spec().priors


def names() -> tuple[str, ...]:
    """Names of the coefficients, in field order."""
    return tuple(Coefficients.__dataclass_fields__)


def from_values(values: Sequence[Any]) -> Coefficients:
    """Coefficients from values in the order of `names()`."""
    return Coefficients(*values)


def checked(coefficients: Any) -> Coefficients:
    """Check that the argument is a `Coefficients` and return it unchanged.

    Raises:
        TypeError: the argument has another type, such as a fit.
    """
    if isinstance(coefficients, Coefficients):
        return coefficients
    raise TypeError(
        f"the model takes Coefficients, not {type(coefficients).__name__}; a fit gives them for the levels of a run: "
        "fit.coefficients(levels)"
    )


def values_of(coefficients: Coefficients) -> tuple[float, ...]:
    """Values of coefficients as Python floats, in field order."""
    return tuple(float(getattr(coefficients, name)) for name in names())


def prior_medians() -> Coefficients:
    """Coefficients at their prior medians, before any measured run."""
    return from_values(list(training_spec().medians.values()))


def constrain(unconstrained: Float[Array, "*batch coefficient"]) -> Coefficients:
    """Coefficients from coordinates: exp for a positive coefficient, the logistic function for a fraction."""
    values = constrain_values(unconstrained)
    return from_values([values[..., index] for index in range(values.shape[-1])])


def constrain_values(unconstrained: Any) -> Any:
    """Values of coefficients from coordinates, for numpy and JAX arrays [..., coefficient]."""
    return training_spec().constrained(unconstrained)


def unconstrain(coefficients: Coefficients) -> np.ndarray:
    """Coordinates of coefficient values: log, or logit for a fraction [coefficient]."""
    return training_spec().unconstrained(values_of(coefficients))
