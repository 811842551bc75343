"""Plans over dimension classes that are read from the shardings of a program's own arguments."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding

from jaxscale.base.errors import InputError
from jaxscale.tracing.plans.class_plan import ClassPlan, class_plan
from jaxscale.tracing.traced_workload import Workload
from jaxscale.tracing.tracer import InputAxes, is_array, trace_with_inputs


class ShardedWorkload(NamedTuple):
    """A workload, and the plan that the shardings of its arguments say.

    Attributes:
        work: the workload, of the whole batch.
        plan: degrees over its classes.
    """

    work: Workload
    plan: ClassPlan


class _Division(NamedTuple):
    """One axis of an array that axes of a mesh divide.

    Attributes:
        array: the array.
        place: major class of its axis.
        names: axes of the mesh.
    """

    array: InputAxes
    place: int
    names: tuple[str, ...]


def trace_sharded(
    fn: Callable[..., Any], *args: Any, weights: int | Sequence[int] = 0, joint_statistics: bool = True
) -> ShardedWorkload:
    """Workload of a JAX function, and its plan as the types of its arguments say.

    Arguments are arrays, or `jax.ShapeDtypeStruct`s, with a `NamedSharding` over one mesh, which may be abstract: no
    device is needed. Axes of the mesh that divide data are data parallelism; where they divide weights too, weights are
    spread among these chips; other axes that divide weights are tensor parallelism of the classes that they divide.

    Args:
        fn: function of the arguments, such as a training step.
        args: its arguments; leaves that are no arrays are static.
        weights: places of the arguments that hold weights and state of the optimiser.
        joint_statistics: whether norms over the batch see the batch of all chips.

    Returns:
        The workload and the plan; the compiler decides the shardings of all other values, and is taken to follow.

    Raises:
        InputError: shardings that a plan over classes cannot say, or no mesh.
    """
    work, inputs = trace_with_inputs(fn, args, weights)
    found = [leaf for leaf in jax.tree.leaves(list(args)) if is_array(leaf)]
    mesh, divisions = _divisions(inputs, found)
    batch, data = _data_axes(work, divisions)
    sizes = dict(mesh.shape)
    used = {name for one in divisions for name in one.names}
    idle = [name for name, size in sizes.items() if size > 1 and name not in used]
    if idle:
        raise InputError(f"axis {idle[0]!r} of the mesh divides no argument; expected a mesh of axes that do")
    shared = _shared_axes(divisions, data)
    split = sorted({one.place for one in divisions if set(one.names) - data})
    names = work.tables.class_names
    plan = class_plan(
        work,
        data=_product(sizes, data),
        shard=_product(sizes, shared),
        tensor=_product(sizes, used - data),
        split=[names[place] for place in split],
        data_class=None if batch is None else names[batch],
        joint_statistics=joint_statistics,
    )
    return ShardedWorkload(work, plan)


def _product(sizes: dict[str, int], names: set[str]) -> int:
    """Chips along some axes of a mesh [1]."""
    return int(np.prod([sizes[name] for name in names], dtype=int))


def _divisions(inputs: Sequence[InputAxes], leaves: Sequence[Any]) -> tuple[Any, list[_Division]]:
    """Mesh of the arguments, and their divided axes.

    Raises:
        InputError: no argument has a sharding over a mesh, or two have different ones.
    """
    shardings = [getattr(leaf, "sharding", None) for leaf in leaves]
    named = [one for one in shardings if isinstance(one, NamedSharding)]
    if not named:
        raise InputError("no argument has a sharding over a mesh; expected arrays with a NamedSharding")
    mesh = named[0].mesh
    if any(dict(one.mesh.shape) != dict(mesh.shape) for one in named):
        raise InputError("arguments have shardings over different meshes; expected one mesh")
    divisions = []
    for array, sharding in zip(inputs, shardings, strict=True):
        for axis, part in enumerate(sharding.spec if isinstance(sharding, NamedSharding) else ()):
            names = tuple(name for name in (part if isinstance(part, tuple) else (part,)) if isinstance(name, str))
            names = tuple(name for name in names if mesh.shape[name] > 1)
            if names:
                divisions.append(_Division(array, array.classes[axis][0], names))
    return mesh, divisions


def _data_axes(work: Workload, divisions: Sequence[_Division]) -> tuple[int | None, set[str]]:
    """Class of the batch and the axes of the mesh that divide it; None and no axes where no data are divided.

    Raises:
        InputError: data are divided along two classes.
    """
    places = {one.place for one in divisions if one.array.origin == "data"}
    if len(places) > 1:
        several = " and ".join(repr(work.tables.class_names[place]) for place in sorted(places))
        raise InputError(f"data are divided along {several}; expected one class of the batch")
    data = {name for one in divisions if one.array.origin == "data" for name in one.names}
    return next(iter(places), None), data


def _shared_axes(divisions: Sequence[_Division], data: set[str]) -> set[str]:
    """Axes of the mesh among which both weights and state are spread.

    Raises:
        InputError: state is spread and weights are not.
    """
    of_weights, of_state = (
        {name for one in divisions if one.array.origin == origin for name in one.names if name in data}
        for origin in ("weights", "state")
    )
    if of_state - of_weights:
        axis = sorted(of_state - of_weights)[0]
        raise InputError(f"axis {axis!r} of the mesh spreads state but no weights; expected weights spread with it")
    return of_weights
