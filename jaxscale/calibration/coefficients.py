"""Coefficients of the cost terms: what the datasheet does not say and measurements do.

The table `data/coefficients.toml` gives each one its unit, its physical range, a prior with source and a sentence of
physics. Here they are one flat module of float leaves, so that a step time differentiates with respect to each.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx

from jaxscale.base.arrays import Number, as_float
from jaxscale.base.resources import data_path, read_toml
from jaxscale.base.show import leaves_shown, printed

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


class Prior(NamedTuple):
    """What is known of a coefficient before any fit.

    Attributes:
        median: in the coefficient's own unit.
        spread: standard deviation in the unconstrained coordinate (log, or logit for fractions) [1].
        kind: `positive` (log) or `fraction` (logit).
        unit: unit of the coefficient.
        meaning: one sentence of physics.
        source: where median and spread come from.
        effects: kinds of level (source, mixture, ...) by which known stacks may differ from the centre.
        levels: standard deviation of the effects that make up the centre, by kind of level (stack, gpu, ...) [1].
        spread_of_levels: unit of the scale of their effects; the spread itself unless single levels are known to differ
            more than the pool is unsure of [1].
        hides_where: `small` or `large` for a coefficient whose term hides behind others where it is so; else empty.
    """

    median: float
    spread: float
    kind: str
    unit: str
    meaning: str
    source: str
    effects: tuple[str, ...]
    spread_of_levels: float
    levels: Mapping[str, float]
    hides_where: str = ""


@functools.cache
def priors() -> dict[str, Prior]:
    """Prior of every coefficient, in the order of the fields of `Coefficients`."""
    table = read_toml(data_path("coefficients.toml"))["coefficients"]
    return {name: _prior(table[name]) for name in names()}


def _prior(entry: Mapping[str, Any]) -> Prior:
    return Prior(**{"spread_of_levels": entry["spread"], "levels": {}, **entry, "effects": tuple(entry["effects"])})


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
    return from_values([prior.median for prior in priors().values()])
