"""Tracing: workload and plan from a JAX function and the shapes and shardings of its arguments, without running it."""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from unittest import mock

import jax
import numpy as np
from jax.interpreters import partial_eval
from jax.sharding import NamedSharding

from jaxscale.base.errors import InputError
from jaxscale.tracing.assembly import named_classes, tables_of
from jaxscale.tracing.class_plan import ClassPlan, class_plan
from jaxscale.tracing.flatten import Flattener, Place
from jaxscale.tracing.fusion import Fusion
from jaxscale.tracing.liveness import live_points
from jaxscale.tracing.program import FlatProgram, Value
from jaxscale.tracing.traced_workload import Workload


def trace(
    fn: Callable[..., Any],
    *args: Any,
    weights: int | Sequence[int] = 0,
    turns: Mapping[str, int] | None = None,
    names: Mapping[str, str] | None = None,
) -> Workload:
    """Kernels, traffic and memory of a JAX function over dimension classes (sets of equal axes), from its jaxpr.

    A whole training step contains all phases: `trace(train_step, state, batch)`. Arguments may be arrays or
    `jax.ShapeDtypeStruct`s, which need no memory.

    Args:
        fn: function of the arguments, such as a training step.
        args: arguments of the function; leaves other than arrays are static.
        weights: indices of the arguments with weights and optimiser state; all further arguments are data.
        turns: iterations of loops with a data-dependent end, by a name in the loop's scope, or by `while` [1].
        names: new names of dimension classes, by names from arguments and axes, e.g. `{"tokens[0]": "batch"}`.

    Raises:
        InputError: a primitive with unknown work, a loop without an end, or an unknown class in `names`.
    """
    return trace_with_inputs(fn, args, weights, turns).work.renamed(names or {})


class InputAxes(NamedTuple):
    """Array among the arguments of a traced function.

    Attributes:
        label: path in the arguments.
        origin: `data`, `weights` or `state`.
        shape: shape of the array.
        dtype: number format of the array.
        classes: indices of the dimension classes of each axis, major factor first.
    """

    label: str
    origin: str
    shape: tuple[int, ...]
    dtype: Any
    classes: tuple[tuple[int, ...], ...]


class TraceWithInputs(NamedTuple):
    """Workload, and the arrays among the arguments of the traced function, in the order of the leaves."""

    work: Workload
    inputs: list[InputAxes]


def trace_with_inputs(
    fn: Callable[..., Any],
    args: Sequence[Any],
    weights: int | Sequence[int] = 0,
    turns: Mapping[str, int] | None = None,
) -> TraceWithInputs:
    """Workload of a JAX function, with the dimension classes of the arguments; see `trace`."""
    program = flat_program(fn, args, {weights} if isinstance(weights, int) else set(weights), turns or {})
    fusion = Fusion(program)
    sizes, tables = tables_of(program, fusion, live_points(program, fusion))
    classes = named_classes(program, fusion)
    leaves = abstract_leaves(fn, args, set())[0]
    inputs = [
        InputAxes(
            value.label,
            value.origin,
            leaf.shape,
            leaf.dtype,
            tuple(tuple(classes.classes([axis])) for axis in value.axes),
        )
        for value, leaf in zip(program.inputs, leaves, strict=True)
    ]
    return TraceWithInputs(Workload(sizes, tables), inputs)


def flat_program(
    fn: Callable[..., Any], args: Sequence[Any], weights: set[int], turns: Mapping[str, int]
) -> FlatProgram:
    """Flat program of a function: calls inlined, dead code removed, weights distinguished from state and data.

    Args:
        fn: the function.
        args: arguments of the function.
        weights: indices of the arguments with weights and optimiser state.
        turns: iterations of loops with a data-dependent end [1].
    """
    leaves, places, origins, rebuild = abstract_leaves(fn, args, weights)
    with cudnn_without_a_device():
        closed = jax.make_jaxpr(
            lambda *arrays: [leaf for leaf in jax.tree.leaves(fn(*rebuild(arrays))) if is_array(leaf)]
        )(*leaves)
    # Dead code would count as kernels.
    jaxpr, used = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True)
    del used
    flattener = Flattener(turns)
    inputs = []
    for aval, label, origin in zip(closed.in_avals, places, origins, strict=True):
        value = flattener.new_value(aval, None)
        value.label, value.origin = label, origin
        inputs.append(value)
    outputs = flattener.run(jaxpr, closed.consts, inputs, Place(None, None, (), 0))
    program = flattener.program
    program.inputs = inputs
    program.outputs = [value for value in outputs if value is not None]
    mark_updates(program)
    mark_weights(program)
    return program


def abstract_leaves(
    fn: Callable[..., Any], args: Sequence[Any], weights: set[int]
) -> tuple[list[Any], list[str], list[str], Callable[[Sequence[Any]], list[Any]]]:
    """Abstract arrays among the arguments, their paths and origins, and a function that rebuilds the arguments."""
    parameters = parameter_names(fn, len(args))
    leaves, paths, origins, kept, statics = [], [], [], [], []
    flat, tree = jax.tree_util.tree_flatten_with_path(list(args))
    for path, leaf in flat:
        place = path[0].idx
        if is_array(leaf):
            kept.append(len(statics))
            leaves.append(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))
            paths.append(".".join([parameters[place], *map(_key, path[1:])]))
            origins.append("state" if place in weights else "data")
            statics.append(None)
        else:
            statics.append(leaf)

    def rebuild(arrays: Sequence[Any]) -> list[Any]:
        full = list(statics)
        for place, array in zip(kept, arrays, strict=True):
            full[place] = array
        return jax.tree.unflatten(tree, full)

    return leaves, paths, origins, rebuild


def parameter_names(fn: Callable[..., Any], count: int) -> list[str]:
    """Names of the positional arguments of a function; arguments of `*name` are numbered."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # a builtin without a signature
        parameters = []
    names = [one.name for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    gathered = next((one.name for one in parameters if one.kind == one.VAR_POSITIONAL), "arg")
    return [*names[:count], *(f"{gathered}{place}" for place in range(max(count - len(names), 0)))]


def is_array(leaf: Any) -> bool:
    """Whether a leaf of the arguments has a shape and a number format."""
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def _key(entry: Any) -> str:
    """Name of an entry of a tree path."""
    return str(next((getattr(entry, name) for name in ("key", "name", "idx") if hasattr(entry, name)), entry))


def mark_updates(program: FlatProgram) -> None:
    """Assign to the update phase unmarked operations that the loss does not need, such as the decay of moments."""
    if not any(operation.phase == "backward" for operation in program.operations):
        return
    needed: set[Value] = set()
    for operation in reversed(program.operations):
        if operation.phase == "update":
            continue
        if operation.marked or needed.intersection(operation.outputs):
            needed.update(operation.inputs)
        else:
            operation.phase = "update"


def mark_weights(program: FlatProgram) -> None:
    """Mark updated arguments read by loss or gradient as weights, and all further updated arguments as state."""
    read: set[Value] = set()
    for operation in program.operations:
        if operation.phase in ("forward", "backward", "recompute"):
            read.update(operation.inputs)
    for value in program.inputs:
        # An updated argument without a reader in loss or gradient is state, as moments of Adam.
        if value.origin == "state" and value in read and value.axes and value.itemsize > 0:
            value.origin = "weights"


@contextlib.contextmanager
def cudnn_without_a_device() -> Iterator[None]:
    """Context in which cuDNN attention can be traced without the library and a device."""
    try:
        from jax._src.cudnn import fused_attention_stablehlo as attention
    except ImportError:  # jax without cuDNN attention
        yield
        return
    with contextlib.ExitStack() as stack:
        # Version 9.10 of cuDNN, above any demand of the attention of JAX.
        for name, answer in {"check_cudnn_version": 91000, "check_compute_capability": True}.items():
            if hasattr(attention, name):
                stack.enter_context(mock.patch.object(attention, name, lambda *_, answer=answer, **__: answer))
        yield


class ShardedWorkload(NamedTuple):
    """Workload, and the plan that follows from the shardings of the arguments.

    Attributes:
        work: workload of the whole batch.
        plan: degrees over the classes.
    """

    work: Workload
    plan: ClassPlan


class _Division(NamedTuple):
    """Array axis divided by mesh axes.

    Attributes:
        array: the array.
        place: index of the major class of the axis.
        names: axes of the mesh.
    """

    array: InputAxes
    place: int
    names: tuple[str, ...]


def trace_sharded(
    fn: Callable[..., Any], *args: Any, weights: int | Sequence[int] = 0, joint_statistics: bool = True
) -> ShardedWorkload:
    """Workload of a JAX function, and the plan that follows from the shardings of the arguments.

    Arguments are arrays, or `jax.ShapeDtypeStruct`s, with a `NamedSharding` over a common mesh, which may be abstract:
    no device is needed. Mesh axes that divide data are data parallelism; where the same axes also divide weights, the
    weights are sharded. Further mesh axes that divide weights are tensor parallelism of the divided classes.

    Args:
        fn: function of the arguments, such as a training step.
        args: arguments of the function; leaves other than arrays are static.
        weights: indices of the arguments with weights and optimiser state.
        joint_statistics: whether norms over the batch include the batch of all chips.

    Returns:
        The workload and the plan. Intermediate values, whose shardings the compiler decides, are assumed to follow the
        arguments.

    Raises:
        InputError: shardings that a plan over classes cannot express, or no mesh.
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
    # Mesh axes beyond the data axes split weights: tensor parallelism.
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
    """Number of chips along mesh axes [1]."""
    return int(np.prod([sizes[name] for name in names], dtype=int))


def _divisions(inputs: Sequence[InputAxes], leaves: Sequence[Any]) -> tuple[Any, list[_Division]]:
    """Mesh of the arguments, with the divided axes of each array."""
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
            # Axes of a single chip divide nothing.
            names = tuple(name for name in names if mesh.shape[name] > 1)
            if names:
                # A sharded axis is split at the major factor.
                divisions.append(_Division(array, array.classes[axis][0], names))
    return mesh, divisions


def _data_axes(work: Workload, divisions: Sequence[_Division]) -> tuple[int | None, set[str]]:
    """Batch class and the mesh axes that divide the class; None and no axes for undivided data."""
    places = {one.place for one in divisions if one.array.origin == "data"}
    if len(places) > 1:
        several = " and ".join(repr(work.tables.class_names[place]) for place in sorted(places))
        raise InputError(f"data are divided along {several}; expected one class of the batch")
    data = {name for one in divisions if one.array.origin == "data" for name in one.names}
    return next(iter(places), None), data


def _shared_axes(divisions: Sequence[_Division], data: set[str]) -> set[str]:
    """Axes of the mesh that shard weights and state."""
    of_weights, of_state = (
        {name for one in divisions if one.array.origin == origin for name in one.names if name in data}
        for origin in ("weights", "state")
    )
    if of_state - of_weights:
        axis = sorted(of_state - of_weights)[0]
        raise InputError(f"axis {axis!r} of the mesh spreads state but no weights; expected weights spread with it")
    return of_weights
