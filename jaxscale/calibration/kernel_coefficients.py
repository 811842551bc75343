"""Coefficients of traced kernels: efficiencies and launch times of a chip and a software stack.

`data/kernels.toml` gives unit, prior, source and meaning of each coefficient, and the fitted values of software stacks.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import equinox as eqx

from jaxscale.base.arrays import Number, number_field
from jaxscale.base.documents import data_path, read_toml
from jaxscale.base.errors import InputError, nearest
from jaxscale.calibration.base_record import Record
from jaxscale.calibration.spec import Spec, spec_from


class KernelCoefficients(eqx.Module):
    """Fitted coefficients of the time of traced kernels; units, priors and sources are in `data/kernels.toml`."""

    matmul_efficiency: Number = number_field()
    half_area: Number = number_field()
    exposed_share: Number = number_field()
    attention_efficiency: Number = number_field()
    traffic_efficiency: Number = number_field()
    kernel_launch: Number = number_field()
    host_launch: Number = number_field()
    step_launch: Number = number_field()
    conv_efficiency: Number = number_field()
    grouped_conv_efficiency: Number = number_field()
    conv3d_efficiency: Number = number_field()
    gather_passes: Number = number_field()


@dataclass(frozen=True)
class KernelFit(Record):
    """Fit of the coefficients of the kernels of a software stack."""

    @classmethod
    @functools.cache
    def spec(cls) -> Spec:
        """Priors, units and ranges of the coefficients of traced kernels (`data/kernels.toml`)."""
        return spec_from("kernels.toml", KernelCoefficients.__dataclass_fields__)


@functools.cache
def kernel_priors() -> dict[str, Any]:
    """Content of `data/kernels.toml`: priors of coefficients and paces, sources, fitted values of stacks."""
    return read_toml(data_path("kernels.toml"))


@functools.cache
def _fits() -> dict[str, KernelFit]:
    """Fit of each stack of the table, by name."""
    stacks = {"prior": {"host_launch": 0.0}, **kernel_priors()["fits"]}
    path = data_path("kernels.toml")
    return {name: KernelFit.of_tables(path, {"name": name, "coefficients": c}) for name, c in stacks.items()}


def kernel_coefficients(stack: str = "jax", measured: Mapping[str, float] | None = None) -> KernelCoefficients:
    """Coefficients of the kernels of a software stack.

    Args:
        stack: `jax` (whole program compiled), `pytorch` (eager), or `prior` (no measured runs).
        measured: values of a chip by coefficient, from a hardware file; preferred to the values of the stack.

    Returns:
        The coefficients; prior medians where neither chip nor stack states a value.

    Raises:
        InputError: a stack absent from the table.
    """
    if stack not in _fits():
        raise InputError(f"stack {stack!r} of kernels is unknown; {nearest(stack, _fits())}")
    return KernelCoefficients(**{**_fits()[stack].centre, **(measured or {})})
