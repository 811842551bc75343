"""Hybrids of sample and spatial split: which are possible, and how long each takes."""

import equinox as eqx
import jax.numpy as jnp

from jaxscale.base.errors import InputError
from jaxscale.burst.networks.layer_time import Device, LayerTimeCoefficients
from jaxscale.burst.spatial import SpatialMachine, SpatialNetwork, SpatialStep, spatial_step


def splits_of(pieces: int, rank: int) -> tuple[int, ...]:
    """Parts per dimension of a power of two, as near to a cube as powers of two allow.

    Raises:
        InputError: `pieces` is not a power of two.
    """
    if pieces < 1 or pieces & (pieces - 1):
        raise InputError(f"pieces = {pieces}: expected a power of two")
    exponent = pieces.bit_length() - 1
    return tuple(2 ** (exponent // rank + (dim < exponent % rank)) for dim in range(rank))


_compiled = eqx.filter_jit(spatial_step)


class Split(eqx.Module):
    """One way to use a number of GPUs.

    Attributes:
        pieces: parts of a sample, their product [1].
        groups: groups of samples [1].
        step: terms of the iteration.
        fits: a group has at least one sample, and the memory holds it.
    """

    pieces: int = eqx.field(static=True)
    groups: int = eqx.field(static=True)
    step: SpatialStep
    fits: bool


def survey_splits(
    network: SpatialNetwork,
    n_chips: int,
    batch: int,
    machine: SpatialMachine,
    coefficients: LayerTimeCoefficients,
    device: Device,
    memory: float,
    regime: int = 0,
) -> list[Split]:
    """All hybrids of sample and spatial split on `n_chips` GPUs, pieces in powers of two.

    Args:
        network: geometry and kernels.
        n_chips: a power of two [1].
        batch: global batch [sample].
        machine: links.
        coefficients: analytical layer time.
        device: chip.
        memory: of one GPU [byte].
        regime: index of its software regime.

    Returns:
        Splits from no spatial split to all GPUs on one group.

    Raises:
        InputError: `n_chips` is not a power of two.
    """
    splits_of(n_chips, 1)
    rank = network.extent.shape[1]
    splits = []
    for exponent in range(n_chips.bit_length()):
        pieces, groups = 2**exponent, n_chips // 2**exponent
        parts = jnp.asarray(splits_of(pieces, rank), jnp.result_type(float))
        sizes = jnp.asarray(groups, parts.dtype), jnp.asarray(batch, parts.dtype)
        step = _compiled(network, parts, *sizes, machine, coefficients, device, regime)
        splits.append(Split(pieces, groups, step, bool(groups <= batch and step.memory <= memory)))
    return splits
