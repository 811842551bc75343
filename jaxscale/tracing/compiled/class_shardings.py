"""Shardings of the arguments of a step that a plan over its dimension classes asks for."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxscale.base.arrays import number
from jaxscale.base.errors import InputError
from jaxscale.tracing.plans.class_plan import ClassPlan
from jaxscale.tracing.tracer import InputAxes

AXES = ("copies", "shard", "tensor")
"""Axes of the mesh of a plan: copies of the weights, chips that share one, chips among which classes are divided."""


class ShardedArguments(NamedTuple):
    """Arguments of a step on the devices of a plan.

    Attributes:
        leaves: abstract arrays with their shardings.
        shardings: of the leaves; None on a single device.
    """

    leaves: list[jax.ShapeDtypeStruct]
    shardings: list[Any]


def sharded_arguments(inputs: Sequence[InputAxes], plan: ClassPlan, devices: Sequence[Any]) -> ShardedArguments:
    """Arguments of a step, divided as a plan says.

    Args:
        inputs: leaves of the arguments with the classes of their axes.
        plan: degrees; one stage and one microbatch, since those are what a program itself does.
        devices: as many as the plan has chips.

    Returns:
        The arguments.

    Raises:
        InputError: a plan that shardings alone cannot say.
    """
    degrees = {name: number(getattr(plan, name)) for name in ("data", "shard", "tensor", "pipeline", "n_microbatches")}
    if degrees["pipeline"] > 1 or degrees["n_microbatches"] > 1:
        raise InputError("stages and microbatches are part of a program; expected a plan with one of each to compile")
    sizes = (round(degrees["data"] / degrees["shard"]), round(degrees["shard"]), round(degrees["tensor"]))
    if np.prod(sizes) != len(devices):
        raise InputError(f"the plan has {np.prod(sizes):g} chips; expected one of n = {len(devices)}")
    mesh = Mesh(np.asarray(devices, dtype=object).reshape(sizes), AXES)
    split = np.asarray(plan.split) > 0
    leaves = [leaf_sharding(one, plan, split, mesh) for one in inputs]
    arrays = [
        jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=sharding)
        for one, sharding in zip(inputs, leaves, strict=True)
    ]
    return ShardedArguments(arrays, leaves)


def leaf_sharding(one: InputAxes, plan: ClassPlan, split: np.ndarray, mesh: Mesh) -> NamedSharding:
    """Sharding of one array: the batch over all copies, divided classes over `tensor`, weights over `shard` if shared.

    Raises:
        InputError: a class that is not the major part of its axis, or does not divide evenly.
    """
    parts: list[Any] = [None] * len(one.shape)
    for axis, places in enumerate(one.classes):
        for minor, place in enumerate(places):
            wanted = "tensor" if split[place] else ("copies", "shard") if place == plan.data_class else None
            if wanted is None or ways_of(mesh, wanted) == 1:
                continue
            if minor:
                raise InputError(f"axis {axis} of {one.label} is divided inside a class; expected another split")
            parts[axis] = wanted
    shard = mesh.shape["shard"]
    # One copy among several chips: the longest axis that is still whole is divided.
    free = [axis for axis, size in enumerate(one.shape) if parts[axis] is None and size % shard == 0]
    if one.origin != "data" and shard > 1 and free:
        parts[max(free, key=lambda axis: one.shape[axis])] = "shard"
    for axis, part in enumerate(parts):
        ways = ways_of(mesh, part or ())
        if one.shape[axis] % ways:
            raise InputError(f"axis {axis} of {one.label} has length {one.shape[axis]}; expected a multiple of {ways}")
    return NamedSharding(mesh, PartitionSpec(*parts))


def ways_of(mesh: Mesh, names: str | tuple[str, ...]) -> int:
    """Parts into which axes of a mesh divide an axis of an array [1]."""
    return int(np.prod([mesh.shape[name] for name in ((names,) if isinstance(names, str) else names)]))


def output_shardings(
    function: Callable[..., Any], leaves: Sequence[jax.ShapeDtypeStruct], state: Sequence[int], shardings: Sequence[Any]
) -> Any:
    """Shardings of the results of a step: of the new state those of the old one, of other results the compiler's.

    Args:
        function: of the leaves, to a list of arrays.
        leaves: its arguments.
        state: places of weights and state among them.
        shardings: of the arguments.

    Returns:
        One sharding for each result, None where the compiler chooses; None where there is no new state.
    """
    made = jax.eval_shape(function, *leaves)
    old = [leaves[place] for place in state]
    is_same = len(made) >= len(old) and all(
        (a.shape, a.dtype) == (b.shape, b.dtype) for a, b in zip(made, old, strict=False)
    )
    return [shardings[place] for place in state] + [None] * (len(made) - len(old)) if is_same and old else None
