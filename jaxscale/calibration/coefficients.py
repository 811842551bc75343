"""Coefficients of the cost terms: what the datasheet does not say and measurements do.

The table `data/coefficients.toml` gives each one its unit, its physical range, a prior with source and a sentence of
physics. Here they are one flat module of float leaves, so that a step time differentiates with respect to each.
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
from jaxscale.calibration.spec import Prior, Spec, spec_from
from jaxscale.calibration.stand_ins import StandIns

CENTRE_KINDS = ("stack", "gpu", "number_format", "recipe", "company")
"""Kinds of level whose effects make up the centre, which answers for a stack that no fit knows."""

OFFSET_KINDS = ("source", "mixture", "local_shape")
"""Kinds of level whose effects set single stacks apart from the centre."""

KINDS = (*CENTRE_KINDS, *OFFSET_KINDS)
"""All kinds of level that have effects."""

STAND_INS = StandIns(
    # A run without a number format has that of its precision's name, as fp8 where it is not mxfp8.
    others={"number_format": "precision"},
    # A run that does not say was set up by its user, on chips that exchange.
    usual={"recipe": "user", "company": COMPANY[1]},
)
"""Levels that count for runs that name none."""

MEMORY_COEFFICIENTS = (
    "activation_factor",
    "queued_bytes",
    "framework_bytes",
)
"""Coefficients that only the memory model reads; the others belong to the step time."""

RETIRED = ("logit_memory_bytes", "gradient_memory_factor", "working_bytes")
"""Coefficients of earlier fits that are counted now; what a file says of them is passed over."""


def _coefficient() -> Any:
    return eqx.field(converter=as_float)


@printed(lambda coefficients: leaves_shown(coefficients))
class Coefficients(eqx.Module):
    """Fitted parameters of every cost term; `data/coefficients.toml` has their units, priors and sources."""

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
    """Coefficients from their values, one for each of `names()` and in that order."""
    return Coefficients(*values)


def checked(coefficients: Any) -> Coefficients:
    """The argument, if it is `Coefficients`.

    Raises:
        TypeError: anything else, such as a whole fit.
    """
    if isinstance(coefficients, Coefficients):
        return coefficients
    raise TypeError(
        f"the model takes Coefficients, not {type(coefficients).__name__}; a fit gives them for the levels of a run: "
        "fit.coefficients(levels)"
    )


def values_of(coefficients: Coefficients) -> tuple[float, ...]:
    """Values of coefficients on the host, in field order."""
    return tuple(float(getattr(coefficients, name)) for name in names())


def prior_medians() -> Coefficients:
    """Coefficients at their prior medians: the model before it has seen a measured run."""
    return from_values(list(training_spec().medians.values()))


def constrain(unconstrained: Float[Array, "*batch coefficient"]) -> Coefficients:
    """Coefficients in their own units from their coordinates: exp, or the logistic function for fractions."""
    values = constrain_values(unconstrained)
    return from_values([values[..., index] for index in range(values.shape[-1])])


def constrain_values(unconstrained: Any) -> Any:
    """Values in their own units from coordinates, of arrays of the host or of JAX [..., coefficient]."""
    return training_spec().constrained(unconstrained)


def unconstrain(coefficients: Coefficients) -> np.ndarray:
    """Coordinates of coefficient values, in field order: log, or logit for fractions [coefficient]."""
    return training_spec().unconstrained(values_of(coefficients))
