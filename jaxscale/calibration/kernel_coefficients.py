"""Coefficients of traced kernels: what a chip and a software stack make of the flop and bytes of a workload.

`data/kernels.toml` gives each one its unit, prior, source and meaning, and the values that software stacks were
fitted to.
"""

import functools
from typing import Any

import equinox as eqx

from jaxscale.base.arrays import Number, as_float
from jaxscale.base.errors import InputError, nearest
from jaxscale.base.resources import data_path, read_toml


def _leaf() -> Any:
    return eqx.field(converter=as_float)


class KernelCoefficients(eqx.Module):
    """Fitted parameters of traced kernels; `data/kernels.toml` has their units, priors and sources."""

    matmul_efficiency: Number = _leaf()
    half_area: Number = _leaf()
    exposed_share: Number = _leaf()
    attention_efficiency: Number = _leaf()
    traffic_efficiency: Number = _leaf()
    kernel_launch: Number = _leaf()
    host_launch: Number = _leaf()
    step_launch: Number = _leaf()
    conv_efficiency: Number = _leaf()
    grouped_conv_efficiency: Number = _leaf()
    conv3d_efficiency: Number = _leaf()
    gather_passes: Number = _leaf()


@functools.cache
def kernel_priors() -> dict[str, Any]:
    """Priors of all coefficients of kernels, their sources, and what stacks were fitted to."""
    return read_toml(data_path("kernels.toml"))


def kernel_coefficients(stack: str = "jax") -> KernelCoefficients:
    """Coefficients of the kernels of a software stack.

    Args:
        stack: `jax` (compiled whole), `pytorch` (eager), or `prior` (before any run was seen).

    Returns:
        The coefficients; prior medians where the stack states none.

    Raises:
        InputError: a stack that the table lacks.
    """
    table = kernel_priors()
    stacks = {"prior": {"host_launch": 0.0}, **table["fits"]}
    if stack not in stacks:
        raise InputError(f"stack {stack!r} of kernels is unknown; {nearest(stack, stacks)}")
    medians = {name: entry["median"] for name, entry in table["coefficients"].items()}
    return KernelCoefficients(**{**medians, **stacks[stack]})
