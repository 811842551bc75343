"""Coefficients of the cost terms: what the datasheet does not say and measurements do.

The table `data/coefficients.toml` gives each one its unit, its physical range, a prior with source and a sentence of
physics. Here they are one flat module of float leaves, so that a step time differentiates with respect to each.
"""

import functools
import tomllib
from typing import Any, NamedTuple

import equinox as eqx
from jaxtyping import ArrayLike, Float

from jaxscale._resources import data_path
from jaxscale._types import as_float
from jaxscale.calibration import Calibration


MEMORY_COEFFICIENTS = (
    "activation_factor",
    "logit_memory_bytes",
    "gradient_memory_bytes",
    "fragmentation",
    "framework_bytes",
)
"""Coefficients that only the memory model reads; the others belong to the step time."""


def _coefficient() -> Any:
    return eqx.field(converter=as_float)


class Coefficients(eqx.Module):
    """Fitted parameters of every cost term; `data/coefficients.toml` has their units, priors and sources.

    The static `calibration` records effects of levels, scatter and provenance of the fit they come from.
    """

    matmul_efficiency: Float[ArrayLike, "*batch"] = _coefficient()
    fp8_efficiency: Float[ArrayLike, "*batch"] = _coefficient()
    fp4_efficiency: Float[ArrayLike, "*batch"] = _coefficient()
    matmul_half_tokens: Float[ArrayLike, "*batch"] = _coefficient()
    matmul_half_width: Float[ArrayLike, "*batch"] = _coefficient()
    attention_efficiency: Float[ArrayLike, "*batch"] = _coefficient()
    score_bytes: Float[ArrayLike, "*batch"] = _coefficient()
    hbm_efficiency: Float[ArrayLike, "*batch"] = _coefficient()
    residual_passes: Float[ArrayLike, "*batch"] = _coefficient()
    hidden_passes: Float[ArrayLike, "*batch"] = _coefficient()
    logit_bytes: Float[ArrayLike, "*batch"] = _coefficient()
    kernel_time: Float[ArrayLike, "*batch"] = _coefficient()
    host_time_layer: Float[ArrayLike, "*batch"] = _coefficient()
    host_time_tp: Float[ArrayLike, "*batch"] = _coefficient()
    host_time_tp_node: Float[ArrayLike, "*batch"] = _coefficient()
    layer_time_factor: Float[ArrayLike, "*batch"] = _coefficient()
    scale_up_efficiency: Float[ArrayLike, "*batch"] = _coefficient()
    scale_out_efficiency: Float[ArrayLike, "*batch"] = _coefficient()
    collective_launch: Float[ArrayLike, "*batch"] = _coefficient()
    link_latency_scale: Float[ArrayLike, "*batch"] = _coefficient()
    network_latency_scale: Float[ArrayLike, "*batch"] = _coefficient()
    tp_exposed: Float[ArrayLike, "*batch"] = _coefficient()
    dp_overlap: Float[ArrayLike, "*batch"] = _coefficient()
    dp_congestion: Float[ArrayLike, "*batch"] = _coefficient()
    dp_efficiency: Float[ArrayLike, "*batch"] = _coefficient()
    dp_buckets: Float[ArrayLike, "*batch"] = _coefficient()
    fsdp_overlap: Float[ArrayLike, "*batch"] = _coefficient()
    cp_overlap: Float[ArrayLike, "*batch"] = _coefficient()
    ep_efficiency: Float[ArrayLike, "*batch"] = _coefficient()
    moe_imbalance: Float[ArrayLike, "*batch"] = _coefficient()
    moe_layer_time: Float[ArrayLike, "*batch"] = _coefficient()
    pp_exposed: Float[ArrayLike, "*batch"] = _coefficient()
    pp_slot_time: Float[ArrayLike, "*batch"] = _coefficient()
    pp_slot_node_time: Float[ArrayLike, "*batch"] = _coefficient()
    pp_slot_tp_time: Float[ArrayLike, "*batch"] = _coefficient()
    head_balance: Float[ArrayLike, "*batch"] = _coefficient()
    optimizer_bytes: Float[ArrayLike, "*batch"] = _coefficient()
    microbatch_time: Float[ArrayLike, "*batch"] = _coefficient()
    step_time: Float[ArrayLike, "*batch"] = _coefficient()
    straggler: Float[ArrayLike, "*batch"] = _coefficient()
    activation_factor: Float[ArrayLike, "*batch"] = _coefficient()
    logit_memory_bytes: Float[ArrayLike, "*batch"] = _coefficient()
    gradient_memory_bytes: Float[ArrayLike, "*batch"] = _coefficient()
    fragmentation: Float[ArrayLike, "*batch"] = _coefficient()
    framework_bytes: Float[ArrayLike, "*batch"] = _coefficient()
    calibration: Calibration | None = eqx.field(static=True, default=None)


class Prior(NamedTuple):
    """What is known of a coefficient before any fit.

    Attributes:
        median: in the coefficient's own unit.
        spread: standard deviation in the unconstrained coordinate (log, or logit for fractions) [1].
        kind: `positive` (log) or `fraction` (logit).
        unit: unit of the coefficient.
        meaning: one sentence of physics.
        source: where median and spread come from.
        effects: kinds of level (framework, gpu, ...) by which the coefficient may differ.
    """

    median: float
    spread: float
    kind: str
    unit: str
    meaning: str
    source: str
    effects: tuple[str, ...]


@functools.cache
def priors() -> dict[str, Prior]:
    """Prior of every coefficient, in the order of the fields of `Coefficients`."""
    with data_path("coefficients.toml").open("rb") as file:
        table = tomllib.load(file)["coefficients"]
    return {name: Prior(**{**table[name], "effects": tuple(table[name]["effects"])}) for name in names()}


def names() -> tuple[str, ...]:
    """Names of the coefficients, in field order."""
    return tuple(name for name in Coefficients.__dataclass_fields__ if name != "calibration")


def prior_medians() -> Coefficients:
    """Coefficients at their prior medians: the model before it has seen a measured run."""
    return Coefficients(**{name: prior.median for name, prior in priors().items()})
