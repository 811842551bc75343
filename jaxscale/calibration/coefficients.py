"""Coefficients of the cost terms of training: quantities from measurements, not from a datasheet.

The table `data/coefficients.toml` gives unit, physical range, prior with source and physical meaning of each
coefficient. The module `Coefficients` is flat, with float leaves, for derivatives of the step time.

A chip has anchors: the share of the peak flop rate reached in large matmuls, and the memory of the driver. All
software on a chip calls the same kernels, hence an anchor is known before any training run. A chip without timed
kernels gets the anchor of a chip with the same die, or the mean of the chip's class. Sources: `data/chip_anchors.toml`.
"""

import functools
from collections.abc import Container, Mapping, Sequence
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from jaxscale.base.arrays import Number, as_float
from jaxscale.base.documents import data_path, read_toml
from jaxscale.base.show import leaves_shown, printed
from jaxscale.calibration.levels import COMPANY, Levels
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
    """Fitted coefficients of all cost terms of training; units, priors and sources are in `data/coefficients.toml`."""

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
    """Priors, units and ranges of the coefficients of the cost terms (`data/coefficients.toml`), in field order."""
    return spec_from("coefficients.toml", names(), kinds=KINDS, stand_ins=STAND_INS, retired=RETIRED)


def priors() -> Mapping[str, Prior]:
    """Prior of every coefficient, in the order of the fields of `Coefficients`."""
    return training_spec().priors


def names() -> tuple[str, ...]:
    """Names of the coefficients, in the order of the fields of `Coefficients`."""
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
    """Values of coefficients as Python floats, in the order of `names()`."""
    return tuple(float(getattr(coefficients, name)) for name in names())


def prior_medians() -> Coefficients:
    """Coefficients at their prior medians, without any measured run."""
    return from_values(list(training_spec().medians.values()))


def constrain(unconstrained: Float[Array, "*batch coefficient"]) -> Coefficients:
    """Coefficients from coordinates u: exp(u) for a positive coefficient, 1 / (1 + exp(-u)) for a fraction."""
    values = constrain_values(unconstrained)
    return from_values([values[..., index] for index in range(values.shape[-1])])


def constrain_values(unconstrained: Any) -> Any:
    """Values of coefficients from logs or logits, for numpy and JAX arrays [..., coefficient]."""
    return training_spec().constrained(unconstrained)


def unconstrain(coefficients: Coefficients) -> np.ndarray:
    """Log of positive coefficients, logit of fractions [coefficient]."""
    return training_spec().unconstrained(values_of(coefficients))


ANCHORED = "matmul_efficiency"
"""Coefficient of the achieved share of the peak, which every anchor states."""

HELD = "framework_bytes"
"""Coefficient of the memory of the driver, anchored where a chip reports memory that is free for programs."""


@functools.cache
def chip_anchors() -> Mapping[str, float]:
    """Share of the peak flop rate reached by each chip in large matmuls, by catalogue id [1]."""
    return {chip: entry[ANCHORED] for entry in _entries() for chip in entry["chips"]}


@functools.cache
def held_by_drivers() -> Mapping[str, float]:
    """Memory occupied by the driver beside a program, by catalogue id of the chip, where known [byte]."""
    return {chip: entry[HELD] for entry in _entries() if HELD in entry for chip in entry["chips"]}


@functools.cache
def timed_chips() -> frozenset[str]:
    """Catalogue ids of the chips with anchors from timed kernels of the chip."""
    return frozenset(chip for entry in _entries() if entry.get("timed", True) for chip in entry["chips"])


@functools.cache
def _table() -> Mapping[str, Any]:
    """Content of `data/chip_anchors.toml`."""
    return read_toml(data_path("chip_anchors.toml"))


def _entries() -> list[Mapping[str, Any]]:
    return _table()["anchors"]


def anchor_shifts(
    levels: Levels, fitted: Container[str] = (), own: Mapping[str, float] | None = None
) -> Float[np.ndarray, "row coefficient"]:
    r"""Shifts of the log or logit of coefficients by the anchors of the runs' chips.

    $\logit(a) - \logit(a_0)$ for the matmul efficiency a and $\ln(b / b_0)$ for the memory b of the driver, with the
    references $a_0$ and $b_0$ of `data/chip_anchors.toml`; 0 for all further coefficients.

    Args:
        levels: levels of the runs; a run without a chip has no shift.
        fitted: chips with fitted effects; without an anchor, a fitted chip has the reference $a_0$.
        own: matmul efficiency by chip from the user's hardware file, preferred to the table [1].

    Returns:
        The shifts [1], [row, coefficient].
    """
    anchors, reference = {**chip_anchors(), **(own or {})}, _table()["reference"]
    usual, unseen = reference[ANCHORED], reference["at_first_sight"]

    def anchor(chip: str) -> float:
        own_anchor = anchors.get(chip)
        return own_anchor if own_anchor is not None else usual if chip in fitted else unseen

    efficiency = levels.numbers(anchor, "gpu", of_none=usual)
    by_context = reference[HELD]
    held = levels.numbers(lambda chip: held_by_drivers().get(chip, by_context), "gpu", of_none=by_context)
    shifts = np.zeros((len(levels), len(names())))
    shifts[:, names().index(ANCHORED)] = _logit(efficiency) - _logit(usual)
    shifts[:, names().index(HELD)] = np.log(held / by_context)
    return shifts


def _logit(share: np.ndarray | float) -> np.ndarray:
    return np.asarray(np.log(share) - np.log1p(-np.asarray(share)))
